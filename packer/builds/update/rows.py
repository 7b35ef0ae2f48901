"""The rows of a dataset that an update writes again: those of unchanged items, copied, and those of the new parts."""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from packer.assembly.packed_rows import PackedRows
from packer.assembly.rows import Lengths, RowSource, open_rows
from packer.workspace import Workspace
from shardspec.columns import Columns, IntArray, allocate
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest


class UpdatedRows:
    """All rows of the dataset in the workspace's folder, followed by those of an update's parts, as encoded bytes.

    The schema is that of the new rows, which fit into the dataset: its values stay as they are.

    Parameters
    ----------
    config : mapping
        See `describe_updated`.
    workspace : Workspace
    added : RowSource, optional
        The new rows, if they are open already. Then the caller has just compared the digests of the old shards. A
        worker process compares the digest of each shard that it copies from: an interruption may be long ago.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Workspace, added: RowSource | None = None) -> None:
        check = "digest" if added is None else "size"
        base = {"inputs": [{"path": str(workspace.out), "digest": config["base"]}], "columns": False, "check": check}
        self._old = PackedRows(base)
        self._added = open_rows(config["added"], workspace) if added is None else added
        self.schema = self._added.schema

    def __len__(self) -> int:
        return len(self._old) + len(self._added)

    def sizes(self) -> Mapping[str, Lengths]:
        """Encoded bytes of every value of the fields that are not fixed."""
        old, added = self._old.sizes(), self._added.sizes()
        return {name: np.concatenate([old[name], lengths]) for name, lengths in added.items()}

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """The encoded values of some rows, in the order asked for."""
        out, is_old = allocate(self.schema.select(list(fields)), len(rows)), rows < len(self._old)
        sources = ((self._old, 0, np.flatnonzero(is_old)), (self._added, len(self._old), np.flatnonzero(~is_old)))
        for source, first, at in sources:
            if not len(at):
                continue
            for name, values in source.read(rows[at] - first, fields).items():
                if isinstance(out[name], np.ndarray):
                    out[name][at] = values
                else:
                    for place, value in zip(at.tolist(), values, strict=True):
                        out[name][place] = value
        return out

    def close(self) -> None:
        """Close the files."""
        self._old.close()
        self._added.close()


def describe_updated(base: Manifest, added: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of `UpdatedRows`, given that of the new rows."""
    return {"kind": "update", "base": base.digest, "added": dict(added)}


def find_rows(layout: Layout, base: Manifest, samples: IntArray) -> IntArray:
    """The rows of some items of a dataset, ascending.

    Their keys begin with the numbers of the items. Digests are not compared, since every shard would have to be read.

    Parameters
    ----------
    samples : (items,) int64
        How many samples each item of the dataset has, by its number; 0 for those whose rows are not looked for.

    Raises
    ------
    DatasetError
        If these are not the samples that the dataset has of them.
    """
    found = array("q")
    if samples.any():
        row = 0
        with closing(PackedRows.of(layout.root, check="size", manifest=base)) as rows:
            for batch in rows.batches(["key"]):
                for key in batch["key"]:
                    number = bytes(key).partition(b"-")[0]
                    if number.isdigit() and (item := int(number)) < len(samples) and samples[item]:
                        found.append(row)
                    row += 1
    expected = samples.sum()
    if len(found) != expected:
        raise DatasetError(
            place=layout.root,
            expected=f"{expected} samples of the items that are replaced or dropped",
            found=len(found),
            hint="pack it once more with --overwrite",
        )
    return np.frombuffer(found, np.int64)
