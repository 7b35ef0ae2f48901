"""The decoded fields of items that are rows of a packed dataset."""

from collections.abc import Mapping
from typing import Any

from packer.assembly.samples import PackedSamples
from packer.recipe import Recipe
from packer.sources.item import PACKED_ROW, Item
from packer.steps.encode import KEPT, Kept, image_codec
from shardspec.columns import Columns

PACKED_KEY = "_packed_key"
"""Key under which a sample carries the key of its row in the packed dataset."""

_PLAIN: Mapping[str, type] = {"<i8": int, "<f8": float, "|b1": bool}
"""Dtypes of scalars that steps get as Python numbers, because NumPy would store these as the same dtype."""

_BLOCK_ROWS, _BLOCK_BYTES = 64, 1 << 20
"""Limits of a block of consecutive rows that are read together: reading one row takes nearly as long as many."""


class PackedItems:
    """Loads the fields of items that are packed rows. Keeps the last dataset open; not safe between threads."""

    def __init__(self, recipe: Recipe) -> None:
        self._codec = image_codec(recipe)
        self._keeps_label = recipe.label_from == "auto" and not recipe.numbers_classes
        self._path: str | None = None
        self._samples: PackedSamples | None = None
        self._block: Columns = {}
        self._of_block = range(0)
        self._next = -1

    def load(self, item: Item) -> dict[str, Any]:
        """Return all fields of an item's row, decoded; an empty dict if the item is not a packed row.

        If the image already has the recipe's encoding, its encoded bytes are included. They are stored unchanged unless
        a step changes the image.
        """
        if PACKED_ROW not in item.columns:
            return {}
        row, digest = item.columns[PACKED_ROW][:2]
        if self._samples is None or self._path != item.path:
            self.close()
            # The digests of the files were compared when the items were listed.
            self._path, self._samples = item.path, PackedSamples(item.location(), check="size", digest=digest)
        columns = self._read(self._samples, row)
        (sample,) = self._samples.decode(columns)
        for field in self._samples.schema:
            if field.is_scalar and field.dtype in _PLAIN:
                sample[field.name] = _PLAIN[field.dtype](sample[field.name])
        if not self._keeps_label:
            sample.pop("label", None)
            mark = self._samples.schema.validity("label")
            if mark is not None:
                del sample[mark]  # the field that says which samples have a label
        if "key" in sample:
            sample[PACKED_KEY] = sample["key"]
        return {**sample, KEPT: self._kept(sample, columns)}

    def _read(self, samples: PackedSamples, row: int) -> Columns:
        """Return the encoded values of a row. If rows are read in sequence, the next rows are read ahead."""
        if row not in self._of_block:
            count = 1
            if row == self._next and samples.row_bytes < _BLOCK_BYTES:
                count = min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, samples.row_bytes), len(samples) - row)
            try:
                block = samples.read_encoded(range(row, row + count))
            except Exception:  # raised by any library; if this row is the cause, reading it alone reports the error
                count, block = 1, samples.read_encoded([row])
            self._block, self._of_block = block, range(row, row + count)
        self._next, at = row + 1, row - self._of_block.start
        # Copy, so that a step's changes to an array are gone when the item is retried.
        return {
            name: values[at : at + 1] if isinstance(values, list) else values[at : at + 1].copy()
            for name, values in self._block.items()
        }

    def close(self) -> None:
        """Close the open dataset."""
        self._block, self._of_block, self._next = {}, range(0), -1
        if self._samples is not None:
            self._samples.rows.close()
            self._samples = None

    def _kept(self, sample: Mapping[str, Any], columns: Columns) -> Kept | None:
        assert self._samples is not None
        field = self._samples.schema.by_name.get("image")
        # The stored bytes of a raw image may begin with its shape, which a part stores separately.
        if field is None or field.codec.name == "raw" or field.codec != self._codec:
            return None
        sample["image"].setflags(write=False)  # a change in place would not change the kept bytes
        return Kept(sample["image"], bytes(columns["image"][0]), self._codec.name)


def sample_key(item: Item, key: str, number: int) -> str:
    """Return the key of a sample from a packed row: the row's key; further samples get an unused number."""
    taken = sum(item.columns[PACKED_ROW][2:])
    return f"{key}-{number + taken:06d}" if number else key
