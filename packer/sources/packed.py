"""The source for a packed dataset, whose samples become items with decoded fields."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.assembly.packed_rows import PackedRows, read_column
from packer.sources.base import Listing, refuse_path_column
from packer.sources.item import PACKED_ROW, Item
from packer.workspace.disk_list import LazyMap, text_list
from packer.workspace.hashing import number_all
from readers.formats.machine import available_processors
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.fields import OF_VIDEOS, is_further_image
from shardspec.layout import Layout, layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.schema import Schema, class_name
from shardspec.splits.groups import NO_GROUP
from shardspec.wording import list_some, shorten

_DIGEST_DIGITS = 16
"""Number of digits of the dataset's digest in every item, so that the plan changes with the dataset."""

_BLOCK_ROWS = 1 << 12


class PackedSource:
    """The samples of a packed dataset as items. Each keeps its key, source, frame, time, label and all other fields.

    The digests of shards and columns are compared with the manifest when the items are listed. The built-in ``resize``
    scales geometry and masks with the image. A custom step that moves pixels must also transform landmarks, hull,
    regions, matrix and ``*_image``.

    Parameters
    ----------
    root : Path
        The dataset's folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items, in the order of the rows.

        Parameters
        ----------
        label_from : str
            ``"auto"`` keeps the field ``label``, and ``"none"`` drops it. The name of another field replaces ``label``
            by that field; a row without a value in this field is a reject.

        Raises
        ------
        UsageError
            If the field does not exist, or if `path_column` is given.
        DatasetError
            If a shard differs from the manifest.
        """
        refuse_path_column(path_column, "a packed dataset")
        layout = Layout(self.root)
        manifest = layout.load()
        check_digests(layout, manifest)
        classes = {field.name: list(field.classes) for field in manifest.schema if field.classes is not None}
        labels: np.ma.MaskedArray[Any, Any] | None = None
        if label_from != "auto":
            classes.pop("label", None)
            if label_from != "none":
                labels, names = self._labels(label_from, manifest)
                classes |= {} if names is None else {"label": names}
        digest = manifest.digest[:_DIGEST_DIGITS]
        row_bytes = manifest.stored_bytes // max(1, manifest.samples)
        keys = self._keys(manifest)
        taken = taken_ordinals(keys)
        reason = f"expected a label in field {label_from!r}, found none"

        def describe(row: int) -> Item:
            name = keys[row]
            item = describe_row(row, name, self.root, digest, taken.get(name, 0), row_bytes, {})
            if labels is None:
                return item
            label = labels[row]
            known = label is not np.ma.masked
            columns = {**item.columns, "label": int(label) if known else 0}
            return item._replace(columns=columns, reject=None if known else reason)

        items = LazyMap(range(len(keys)), describe)
        further = tuple(field.name for field in manifest.schema if field.is_image and is_further_image(field.name))
        return Listing(items, classes=classes, further=further, about=manifest.about)

    def _keys(self, manifest: Manifest) -> Sequence[str]:
        """Return the names of the rows for reports, which are their keys."""
        if "key" not in manifest.schema:
            return LazyMap(range(manifest.samples), "row-{:08d}".format)
        return text_list().extend(_keys_of(self.root, manifest))

    def _labels(self, field_name: str, manifest: Manifest) -> tuple["np.ma.MaskedArray[Any, Any]", list[str] | None]:
        """Read a field as labels. Texts are numbered in sorted order; class numbers and integers are kept."""
        groups = read_groups(self.root, field_name)
        field = manifest.schema[field_name]
        if field.kind == "text":
            names = sorted(groups.names, key=lambda text: (class_name(text), text))
            numbers = {name: number for number, name in enumerate(names)}
            of_group = np.array([numbers[name] for name in groups.names] or [0], np.int64)
            return np.ma.array(of_group[groups.of_row], mask=groups.of_row == NO_GROUP), names
        if field.dtype[1] not in "iub":
            raise UsageError(
                option="label_from",
                expected="a field of text, integers or booleans",
                found=f"{field_name!r} of {field.dtype}",
            )
        values = read_column(self.root, manifest, field_name)
        return np.ma.array(values, mask=groups.of_row == NO_GROUP), None if field.classes is None else list(
            field.classes
        )


class PackedVideos:
    """The items that the rows of a packed dataset were made from, each with its rows (`packer.sources.base.Source`).

    An item has the number that is in the keys of its rows, and the name that `name_of` returns for its first row. Its
    rows are in the order of their frames.

    Parameters
    ----------
    root : Path
        The dataset's folder, which may be that of a remote dataset in the cache (`packer.sources.stores.packed`).
    sample : {"frame", "track", "item"}
        What the samples will be.
    name_of : callable
        Returns the name of the item of a row.
    """

    def __init__(self, root: Path, sample: str, name_of: Callable[[int], str]) -> None:
        self.root = root
        self._sample = sample
        self._name_of = name_of

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items, by their numbers.

        Raises
        ------
        UsageError
            If the dataset's rows do not suit the samples.
        DatasetError
            If a shard differs from the manifest.
        """
        refuse_path_column(path_column, "a packed dataset")
        layout = layout_at(self.root)
        manifest = layout.load()
        self._check(manifest.schema)
        check_digests(layout, manifest)
        items = self._item_numbers(manifest)
        if manifest.schema.holds_tracks:
            order = np.argsort(items, kind="stable")
            once = [field.name for field in manifest.schema if not (field.in_time or field.is_encoded_video)]
        else:
            order = np.lexsort((read_column(self.root, manifest, "frame_position"), items))
            once = self._once(manifest, items)
        once = [name for name in once if name not in ("key", "audio", *OF_VIDEOS)]
        edges = np.flatnonzero(np.diff(items[order], prepend=-1, append=-1)).tolist()
        row_bytes = manifest.stored_bytes // max(1, manifest.samples)
        known = {"digest": manifest.digest[:_DIGEST_DIGITS], "once": once}
        place = str(place_of(self.root))

        def describe(index: int) -> Item:
            rows = order[edges[index] : edges[index + 1]].tolist()
            columns = {PACKED_ROW: {"rows": rows, **known}}
            name = self._name_of(rows[0])
            return Item(index, name, place, row_bytes * len(rows), columns=columns, number=int(items[rows[0]]))

        classes = {field.name: list(field.classes) for field in manifest.schema if field.classes is not None}
        return Listing(LazyMap(range(len(edges) - 1), describe), classes=classes, about=manifest.about)

    def _check(self, schema: Schema) -> None:
        tracks = schema.holds_tracks
        if self._sample == "frame":
            if not tracks:
                raise UsageError(option="sample", expected="a dataset of tracks or videos", found="one of frames")
            return
        if not tracks and not ("image" in schema and schema["image"].is_image):
            raise UsageError(
                option="sample", expected="a dataset with a field image or video", found=str(place_of(self.root))
            )
        missing = [name for name in ("key", "frame", "time", "frame_position") if name not in schema]
        if self._sample == "track" and "track" not in schema:
            missing.append("track")
        if missing:
            raise UsageError(
                option="sample",
                expected=f"samples that are frames of videos, with the fields {list_some(missing)}",
                found=f"samples without these ({place_of(self.root)})",
                hint="--sample item is for videos without faces" if missing == ["track"] else None,
            )

    def _item_numbers(self, manifest: Manifest) -> IntArray:
        """Return the number of each row's item, from its key."""
        numbers = np.empty(manifest.samples, np.int64)
        for row, key in enumerate(_keys_of(self.root, manifest)):
            item, dash, _ = key.partition("-")
            if not dash or not item.isdecimal():
                raise UsageError(
                    place=place_of(self.root),
                    expected="keys with an item's number, such as 00000003-000012",
                    found=shorten(key),
                )
            numbers[row] = int(item)
        return numbers

    def _once(self, manifest: Manifest, items: IntArray) -> list[str]:
        """Return the fields of frames that each sample has once: numbers and texts that are equal in all its frames."""
        schema = manifest.schema
        groups = items
        if self._sample == "track":
            tracks = read_column(self.root, manifest, "track")
            if (tracks < 0).all():
                raise UsageError(
                    option="sample", expected="a dataset of tracks' frames", found="images, without tracks"
                )
            _, groups = np.unique(np.stack([items, tracks]), axis=1, return_inverse=True)
        _, firsts, group_of = np.unique(groups, return_index=True, return_inverse=True)
        first_of = firsts[group_of.reshape(-1)]
        once = []
        for field in schema:
            if field.name in _OF_FRAMES or is_further_image(field.name.removesuffix("_valid")):
                continue
            if not (field.is_scalar or field.kind == "text"):
                continue
            values = read_groups(self.root, field.name).of_row
            if (values == values[first_of]).all():
                once.append(field.name)
            elif field.classes is not None:
                raise UsageError(
                    place=f"field {field.name!r}",
                    expected=f"one class for all frames of a sample with sample {self._sample}",
                    found="several",
                )
        return once


_OF_FRAMES = {
    *("key", "frame", "time", "frame_position", "score", "landmarks_valid", "interpolated", "audio", "audio_valid"),
}
"""Fields with a number or text of each frame, even if they are equal in all frames of a dataset."""


def _keys_of(root: Path, manifest: Manifest) -> Iterator[str]:
    with closing(PackedRows.of(root, check="size", manifest=manifest)) as rows:
        for batch in rows.batches(["key"]):
            for key in batch["key"]:
                yield bytes(key).decode("utf-8", "surrogateescape")


def check_digests(layout: Layout, manifest: Manifest) -> None:
    """Compare the digests of all shards and columns with the manifest. Raise `DatasetError` if a file differs.

    The files of a remote dataset are compared on arrival.
    """
    entries = [entry for part in manifest.parts for entry in part.files if layout.is_local]
    with ThreadPoolExecutor(available_processors()) as pool:
        for _ in pool.map(layout.check_digest, entries):
            pass


def describe_row(
    index: int, name: str, root: Path, digest: str, taken: int, row_bytes: int, columns: Mapping[str, Any]
) -> Item:
    """Return a small item that refers to a row. `taken` is the row's entry in `taken_ordinals`, or 0."""
    row = [index, digest, taken] if taken else [index, digest]
    return Item(index, name, str(root), row_bytes, columns={PACKED_ROW: row, **columns})


def taken_ordinals(keys: Sequence[str]) -> dict[str, int]:
    """Return, for each key, the largest ordinal appended to it in another key: 2 for ``a`` if ``a-000002`` exists."""
    known = number_all(keys)
    known.sort()
    taken: dict[str, int] = {}
    for start in range(0, len(keys), _BLOCK_ROWS):
        parted = [key.rpartition("-") for key in keys[start : start + _BLOCK_ROWS]]
        stems = number_all(stem for stem, _, _ in parted)
        places = np.minimum(np.searchsorted(known, stems), len(known) - 1)
        for row in np.flatnonzero(known[places] == stems).tolist():
            stem, _, ordinal = parted[row]
            if ordinal.isdecimal():
                taken[stem] = max(taken.get(stem, 0), int(ordinal))
    return taken
