"""Search for samples whose vectors are near, such as embeddings of one person."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.analysis.duplicates.opened import OpenedDataset
from packer.analysis.duplicates.search import Pairs, near_vectors
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import list_some

_TRACK = ("source", "track")


def check_vectors(opened: Sequence[OpenedDataset], by: str) -> None:
    """Check that all datasets have a column of vectors of one length."""
    for one in opened:
        if by not in one.schema or not one.schema[by].is_fixed or len(one.schema[by].fixed_shape) != 1:
            fit = [field.name for field in one.schema if field.is_fixed and len(field.fixed_shape) == 1]
            raise UsageError(
                option="by",
                place=one.given,
                expected=f"a field of vectors ({list_some(fit) or 'there is none'})",
                found=by,
            )
        length, other = opened[0].schema[by].fixed_shape[0], one.schema[by].fixed_shape[0]
        if other != length:
            raise UsageError(
                option="by",
                place=one.given,
                expected=f"vectors of {length} numbers as in {opened[0].given}",
                found=other,
            )


def usual_distance(one: OpenedDataset, by: str) -> float:
    """Return the largest distance of duplicates by a column, if its function has one."""
    records = {column.field: column.computed for column in one.dataset.manifest.columns}
    if records.get(by, {}).get("function") != "identity":
        raise UsageError(option="within", expected="the largest cosine distance of duplicates by `by`", found="none")
    found: float = import_target("packer.analysis.measures.identity:WITHIN", what="by", extra="dlib")
    return found


def pairs_by_vectors(
    opened: Sequence[OpenedDataset], by: str, group: IntArray, within: float
) -> tuple[Pairs, IntArray]:
    """Find pairs by vectors. Samples of one track with the same vector count as one, by the first, which is returned."""
    vectors = np.concatenate([np.asarray(one.dataset.column(by), np.float32) for one in opened])
    known = np.concatenate([one.known(by) for one in opened]) & (np.abs(vectors).max(axis=1, initial=0) > 0)
    tracks = [
        [(number, *track) for track in zip(*(one.texts(name) for name in _TRACK if name in one.schema), strict=True)]
        for number, one in enumerate(opened)
    ]
    first: IntArray = np.arange(len(group))
    apart = len(np.unique(group)) == len(group)  # all samples are compared with each other
    seen: dict[Any, int] = {}
    for row, track in enumerate(track for of_dataset in tracks for track in of_dataset):
        if known[row] and len(track) == len(_TRACK) + 1 and None not in track:
            first[row] = seen.setdefault((track, vectors[row].tobytes(), None if apart else group[row]), row)
    rows = np.flatnonzero(known & (first == np.arange(len(first))))
    found = near_vectors(vectors[rows], group[rows], within)
    return Pairs(rows[found.ones], rows[found.others], found.distance), first
