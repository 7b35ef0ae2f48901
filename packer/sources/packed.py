"""A packed dataset as a source: each sample is an item with its fields decoded."""

import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.assembly.groups import read_groups
from packer.assembly.rows import read_column
from packer.sources.base import Listing, refuse_path_column
from packer.sources.item import PACKED_ROW, Item
from readers.formats.machine import available_processors
from shardspec.errors import UsageError
from shardspec.fields import is_further_picture
from shardspec.layout import MANIFEST_NAME, Layout
from shardspec.manifest import Manifest
from shardspec.splits import NO_GROUP

_DIGEST_DIGITS = 16
"""Characters of the dataset's digest in every item: enough for the plan to change with it."""


def is_packed(path: Path) -> bool:
    """Whether a folder is a packed dataset; a folder of pictures may contain a ``manifest.json`` of its own."""
    try:
        document = json.loads((path / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "spec_version" in document


class PackedSource:
    """The samples of a packed dataset as items. Each keeps its key, source, frame, time, label and all other fields.

    The shards' digests are compared with the manifest when the items are listed. The built-in ``resize`` scales
    geometry and masks with the picture; a user's step that moves pixels has to move landmarks, hull, regions, matrix
    and ``*_image`` as well.

    Parameters
    ----------
    root : Path
        The dataset's folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, in the order of the rows.

        Parameters
        ----------
        label_from : str
            ``"auto"`` keeps the field ``label``, ``"none"`` drops it, the name of another field replaces it by that
            field; a row without a value of it is a reject.

        Raises
        ------
        UsageError
            If there is no such field, or if `path_column` is given.
        DatasetError
            If a shard differs from the manifest.
        """
        refuse_path_column(path_column, "a packed dataset")
        layout = Layout(self.root)
        manifest = layout.load()
        check_digests(layout, manifest)
        classes = {field.name: list(field.classes) for field in manifest.schema if field.classes is not None}
        labels: list[int | None] | None = None
        if label_from != "auto":
            classes.pop("label", None)
            if label_from != "none":
                labels, names = self._labels(label_from, manifest)
                classes |= {} if names is None else {"label": names}
        digest = manifest.digest[:_DIGEST_DIGITS]
        row_bytes = sum(shard.bytes for shard in manifest.shards) // max(1, manifest.samples)
        names = self._names(manifest)
        taken = taken_ordinals(names)
        items = [
            describe_row(
                row,
                name,
                self.root,
                digest,
                taken.get(name, 0),
                row_bytes,
                {} if labels is None else {"label": labels[row] or 0},
            )
            for row, name in enumerate(names)
        ]
        if labels is not None:
            reason = f"expected a label in field {label_from!r}, found none"
            items = [item if labels[item.index] is not None else replace(item, reject=reason) for item in items]
        further = tuple(field.name for field in manifest.schema if field.is_image and is_further_picture(field.name))
        return Listing(items, classes=classes, further=further)

    def _names(self, manifest: Manifest) -> list[str]:
        """The names of the rows in reports: their keys."""
        if "key" not in manifest.schema:
            return [f"row-{row:08d}" for row in range(manifest.samples)]
        return [key.decode("utf-8", "surrogateescape") for key in read_column(self.root, manifest, "key")]

    def _labels(self, field_name: str, manifest: Manifest) -> tuple[list[int | None], list[str] | None]:
        """A field as labels: texts are numbered in sorted order; class numbers and integers stay as they are.

        None stands for the label of a row without a value.
        """
        groups = read_groups(self.root, field_name)
        field = manifest.schema[field_name]
        if field.kind == "text":
            names = sorted(groups.names)
            numbers = {name: number for number, name in enumerate(names)}
            of_group = {number: numbers[name] for number, name in enumerate(groups.names)}
            return [of_group.get(group) for group in groups.of_row.tolist()], names  # `NO_GROUP` is not in it
        if field.dtype[1] not in "iub":
            raise UsageError(
                f"label_from: expected a field of text, integers or truth values, found {field_name!r} of {field.dtype}"
            )
        values = read_column(self.root, manifest, field_name).tolist()
        labels = [
            None if group == NO_GROUP else int(value)
            for value, group in zip(values, groups.of_row.tolist(), strict=True)
        ]
        return labels, None if field.classes is None else list(field.classes)


def check_digests(layout: Layout, manifest: Manifest) -> None:
    """Compare the digests of all shards with the manifest; a `DatasetError` names the file that differs."""
    entries = [entry for shard in manifest.shards for entry in shard.files]
    with ThreadPoolExecutor(available_processors()) as pool:
        for _ in pool.map(layout.check_digest, entries):
            pass


def describe_row(
    index: int, name: str, root: Path, digest: str, taken: int, row_bytes: int, columns: Mapping[str, Any]
) -> Item:
    """The item of a row, small enough for the plan. `taken` is its key's ordinal of `taken_ordinals`, 0 for none."""
    row = [index, digest, taken] if taken else [index, digest]
    return Item(index, name, str(root), row_bytes, columns={PACKED_ROW: row, **columns})


def taken_ordinals(keys: Collection[str]) -> dict[str, int]:
    """For each key, the largest ordinal that other keys append to it: 2 for ``a`` where there is a key ``a-000002``."""
    known, taken = set(keys), dict[str, int]()
    for key in keys:
        stem, _, ordinal = key.rpartition("-")
        if stem in known and ordinal.isdecimal():
            taken[stem] = max(taken.get(stem, 0), int(ordinal))
    return taken
