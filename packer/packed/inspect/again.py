"""Count samples that occur in several datasets, which a merge would take twice."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import BATCH_BYTES, PackedRows
from packer.packed.plan import Input
from packer.packed.reports import read_report
from packer.workspace.hashing import in_several
from shardspec.columns import Columns, IntArray
from shardspec.entries import BUILD_KINDS
from shardspec.layout import ITEMS_NAME
from shardspec.schema import Schema

_STEP = np.int64(0x1E3779B97F4A7C15)
"""Odd and without a pattern, so that multiples of it are spread over all 64 bits and can be added to hashes."""


def count_again(inputs: Sequence[Input]) -> list[int]:
    """Count the samples of each dataset that an earlier dataset has, too. No image is decoded.

    Datasets that go back to one build or one dataset, such as the parts of a split, have the same sample if source and
    key are equal. All datasets have the same sample if its item has the same name, size and time, and its frame is the
    same. If they go back to one dataset, its ordinal among the samples of the item must be the same, too. So files with
    the same name in two folders differ, and so do two faces of a frame. Samples of a `packer.Writer` have no items. In
    unrelated datasets, they are the same if all values except the key are equal.

    Memory is 8 bytes a sample, and a few dozen for each sample whose source and frame several datasets have.
    """
    again = [np.zeros(one.manifest.samples, np.bool_) for one in inputs]
    frames = [_number_frames(one) for one in inputs]
    shared = in_several(frames)
    there = [np.isin(own, shared) for own in frames]
    candidates = [_Candidates.read(one, rows) for one, rows in zip(inputs, there, strict=True)] if len(shared) else []
    for at, own in enumerate(candidates):
        for other in candidates[:at]:
            again[at][np.flatnonzero(there[at])] |= own.are_in(other)
    _mark_equal(inputs, again)
    return [int(np.count_nonzero(rows)) for rows in again]


def _mark_equal(inputs: Sequence[Input], again: Sequence[npt.NDArray[np.bool_]]) -> None:
    """Mark samples of writers whose values occur in an earlier dataset."""
    written = [at for at, one in enumerate(inputs) if any(g.kind == "write" for g in one.manifest.generations)]
    ancestors = {at: frozenset(_ancestors(inputs[at])) for at in written}
    pairs = [(one, at) for one, at in combinations(written, 2) if ancestors[one].isdisjoint(ancestors[at])]
    compared = sorted({at for pair in pairs for at in pair})
    names = [name for name in inputs[0].manifest.schema.names if name != "key"]
    if not pairs or not names:
        return
    config = {"inputs": [{"path": str(inputs[at].path)} for at in compared], "check": "size"}
    with closing(PackedRows(config, manifests=[inputs[at].manifest for at in compared])) as rows:
        small = [name for name in names if rows.schema[name].is_small]
        ends = np.cumsum([inputs[at].manifest.samples for at in compared])[:-1]
        numbers = np.zeros(len(rows), np.int64)
        if small:  # most samples differ in these, so that their other fields need not be read
            numbers = np.concatenate([numbers[:0], *map(_number_values, rows.batches(small))])
        alike = np.flatnonzero(np.isin(numbers, in_several(np.split(numbers, ends))))
        step = max(1, BATCH_BYTES // max(1, rows.row_bytes))
        for start in range(0, len(alike), step):
            some = alike[start : start + step]
            numbers[some] = _number_values(rows.read(some, names))
    there = np.zeros(len(numbers), np.bool_)
    there[alike] = True
    own = dict(zip(compared, np.split(numbers, ends), strict=True))
    candidates = dict(zip(compared, np.split(there, ends), strict=True))
    for before, at in pairs:
        again[at][:] |= candidates[at] & np.isin(own[at], own[before][candidates[before]])


def _number_values(columns: Columns) -> IntArray:
    """Hash the values of each row."""
    return np.fromiter(map(hash, zip(*map(_as_bytes, columns.values()), strict=True)), np.int64)


def _as_bytes(values: Any) -> Iterator[bytes]:
    return (value.tobytes() for value in values) if isinstance(values, np.ndarray) else map(bytes, values)


def _number_frames(one: Input) -> IntArray:
    """Hash the source (or else the key) and the frame of each sample; return nothing for a dataset without keys."""
    fields = _fields_of(one.manifest.schema)
    found = [np.empty(0, np.int64)]
    if fields:
        name, *more = (field for field in fields if field != "key" or "source" not in fields)
        with closing(PackedRows.of(one.path, check="size", manifest=one.manifest)) as rows:
            for batch in rows.batches([name, *more]):
                found.append(_number(map(bytes, batch[name])) + _spread(batch.get("frame")))
    return np.concatenate(found)


def _number(values: Iterable[bytes]) -> IntArray:
    return np.fromiter(map(hash, values), np.int64)


def _fields_of(schema: Schema) -> list[str]:
    """Return the fields that identify a sample, ``source`` before ``key``."""
    if "key" not in schema:
        return []
    # A column of the user's may be called so, too.
    frames = [f.name for f in schema if f.name == "frame" and f.is_scalar and f.numpy_dtype.kind in "iu"]
    return [*(["source"] if "source" in schema else []), "key", *frames]


def _spread(frames: Any) -> Any:
    return 0 if frames is None else frames.astype(np.int64) * _STEP


class _Candidates(NamedTuple):
    """Hashes of the samples whose source and frame several datasets have.

    Attributes
    ----------
    ancestors : set of str
        Digests and fingerprints that the dataset goes back to.
    keys : (n,) int64
        Hashes of source and key.
    items : (n,) int64
        Hashes of source, facts of the item and frame.
    ordinals : (n,) int64
        Hashes of the ordinal among the samples of the item.
    known : (n,) bool
        Whether the facts of the item are known.
    """

    ancestors: frozenset[str]
    keys: IntArray
    items: IntArray
    ordinals: IntArray
    known: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, one: Input, shared: npt.NDArray[np.bool_]) -> "_Candidates":
        """Read the shared samples of a dataset."""
        fields = _fields_of(one.manifest.schema)
        parts: list[tuple[IntArray, ...]] = [(np.empty(0, np.int64),) * 4]
        with closing(PackedRows.of(one.path, check="size", manifest=one.manifest)) as rows:
            start = 0
            for batch in rows.batches(fields) if shared.any() else ():
                at = np.flatnonzero(shared[start : start + len(batch["key"])])
                start += len(batch["key"])
                names, texts = ([bytes(batch[name][row]) for row in at.tolist()] for name in (fields[0], "key"))
                framed = _number(names) + _spread(batch["frame"][at] if "frame" in batch else None)
                parts.append(
                    (_number(names), _number(texts), _number(text.partition(b"-")[2] for text in texts), framed)
                )
        sources, keys, ordinals, frames = map(np.concatenate, zip(*parts, strict=True))
        facts = _facts_of(one, sources, keys)
        return cls(frozenset(_ancestors(one)), sources + keys * _STEP, frames + facts, ordinals, facts != 0)

    def are_in(self, other: "_Candidates") -> npt.NDArray[np.bool_]:
        """Return which of these samples another dataset has, too."""
        if self.ancestors.isdisjoint(other.ancestors):
            return self.known & np.isin(self.items, other.items[other.known])
        placed, others = (one.items + one.ordinals * _STEP for one in (self, other))
        return np.isin(self.keys, other.keys) | (self.known & np.isin(placed, others[other.known]))


def _facts_of(one: Input, *names: IntArray) -> IntArray:
    """Hash the facts of each sample's item, or return 0 where the reports do not have them.

    Parameters
    ----------
    names : (n,) int64
        Hashes of possible names of the item: sources, or keys if it was packed from a packed dataset.
    """
    listed, facts = array("q"), array("q")
    for line in read_report(one, ITEMS_NAME):
        if line.get("state") == "packed" and isinstance(line.get("facts"), str):
            listed.append(hash(str(line["item"]).encode("utf-8", "surrogateescape")))
            facts.append(hash(line["facts"]) or 1)
    known, first, times = np.unique(np.frombuffer(listed, np.int64), return_index=True, return_counts=True)
    known, first = known[times == 1], first[times == 1]  # names of several items are ambiguous
    found = np.zeros(len(names[0]), np.int64)
    for numbers in names if len(known) else ():
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        fits = (known[places] == numbers) & (found == 0)
        found[fits] = np.frombuffer(facts, np.int64)[first[places[fits]]]
    return found


def _ancestors(one: Input) -> Iterator[str]:
    """Yield the digests of a dataset and of those it was made from, and the fingerprints of their builds."""
    above: list[Mapping[str, Any]] = [one.provenance()]
    while above:
        made = above.pop()
        yield made["digest"]
        for generation in made["generations"]:
            if generation["kind"] in BUILD_KINDS:  # a writer's fingerprint does not identify its samples
                yield generation["fingerprint"]
            above += generation["recipe"].get("inputs", ())
