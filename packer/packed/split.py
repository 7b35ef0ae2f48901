"""``packer split``: a packed dataset becomes several, and no group of samples is in two of them."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.groups import Groups, read_groups
from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import Piece, shuffled
from packer.jobs.job import JobResult
from packer.jobs.row_job import run_row_job
from packer.packed.assignment import check_ratios
from packer.packed.plan import Arrangement, Input, join_generations, open_input, plan_of, shard_bytes
from packer.packed.row_reports import read_report, write_reports
from packer.recipe.options import BuildOptions
from shardspec.columns import IntArray
from shardspec.entries import Counts
from shardspec.errors import UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.schema import Schema
from shardspec.splits import assign_groups, classes_of_groups


@dataclass(frozen=True)
class SplitPart:
    """One of the datasets that a split made.

    Attributes
    ----------
    name : str
    ratio : float
        The share of the samples that was wanted.
    groups : int
    result : JobResult
    """

    name: str
    ratio: float
    groups: int
    result: JobResult

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.result.manifest.samples


def split(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    by: str,
    ratios: Mapping[str, float],
    seed: int = 0,
    format: str | None = None,
    shard_size: int | None = None,
    shuffle: int | None = None,
    progress: bool = True,
    **how: Any,
) -> list[SplitPart]:
    """Write each split of a packed dataset as a dataset ``out/<name>``. Nothing is decoded; the same call again resumes.

    All samples with one value of `by` go into one split (`shardspec.splits.assign_groups` says which). Keys stay what they
    were, so `packer.packed.merge.merge` gives the samples back. Items are counted where they have samples; the source's rejects belong
    to no split.

    Parameters
    ----------
    source : path
        A packed dataset.
    by : str
        A field of text, or of one value per sample: ``"source"`` keeps the frames of a video together.
    ratios : dict of str to float
        Each split's share of the samples, adding up to 1 or to 100.
    seed : int
        Another seed gives other splits.
    format : str, optional
        By default the source's.
    shuffle : int, optional
        Seed of the stored order within each split; by default that of the source.
    **how
        As for `packer.packed.convert.convert`.

    Raises
    ------
    UsageError
        There is no such field, or samples without a value, or it has fewer values than there are splits.
    DatasetError, ResumeMismatchError, BuildLockedError, BuildError
        See `packer.packed.convert.convert`.
    """
    target = Path(out).absolute()
    shares = check_ratios(ratios)
    one = open_input(Path(source), target)
    if Layout(target).manifest.exists():
        raise UsageError(f"{target}: expected a folder for the splits, found a packed dataset: choose another folder")
    groups = read_groups(one.path, by)
    if groups.without:
        raise UsageError(
            f"{source}: expected a value of {by!r} in every sample, found none in {groups.without} of {len(groups.of_row)}, "
            "so nothing tells where they belong: fill the column (an original can name itself), or take another field"
        )
    classes = None
    if _has_classes(one.manifest.schema):
        classes = classes_of_groups(groups.of_row, _labels(one.path), len(groups.names))
    chosen = np.array(assign_groups(groups.names, groups.sizes().tolist(), shares, seed, classes))
    items = _Items(one)
    options: dict[str, Any] = {"format": format or one.manifest.format, "shard_size": shard_size, "shuffle": shuffle}
    options |= {"by": by, "ratios": shares, "seed": seed}
    parts = []
    for name, ratio in shares.items():
        rows = np.flatnonzero(chosen[groups.of_row] == name)
        arrangement = _arrange(one, {**options, "part": name}, rows, items)
        result = run_row_job(arrangement, target / name, BuildOptions(**how), shown=progress)
        parts.append(SplitPart(name, ratio, int((chosen == name).sum()), result))
    return parts


def _has_classes(schema: Schema) -> bool:
    """Whether ``label`` numbers classes."""
    return "label" in schema and schema["label"].shape == () and schema["label"].numpy_dtype.kind in "iu"


def _labels(path: Path) -> IntArray:
    """The ``label`` of every row."""
    rows = PackedRows({"inputs": [{"path": str(path)}], "check": "size"})
    labels = [np.asarray(batch["label"], np.int64).copy() for batch in rows.batches(["label"])]
    rows.close()
    return np.concatenate([np.empty(0, np.int64), *labels])


class _Items:
    """The items of the source's reports, by the names that rows know them by."""

    def __init__(self, one: Input) -> None:
        self._one = one
        self._listed = {str(line.get("item")) for _, line in read_report(one, ITEMS_NAME)}
        self._groups: Groups | None = None
        # Of a dataset that was built from a packed one, each sample was an item, called by its key.
        for field in ("source", "key"):
            if field in one.manifest.schema:
                groups = read_groups(one.path, field)
                if not self._listed or not self._listed.isdisjoint(groups.names):
                    self._groups = groups
                    break

    def of_rows(self, rows: IntArray) -> set[str]:
        """Names of the items that some rows came from."""
        if self._groups is None:
            return set()
        return {self._groups.names[number] for number in np.unique(self._groups.of_row[rows]).tolist()}

    def counts(self, names: set[str], samples: int) -> Counts:
        """What became of some items, all of which gave samples."""
        packed, frames, damaged, progressive = (0 if self._listed else len(names) or samples), 0, 0, 0
        for _, line in read_report(self._one, ITEMS_NAME):
            if _keeps(names, line):
                packed += 1
                progressive += line.get("progressive", 0)
        for _, line in read_report(self._one, REJECTS_NAME):
            if _keeps(names, line):
                frames += len(line.get("frames", ()))
                damaged += line.get("kind") == "damage"
        return Counts(packed, packed, 0, 0, samples, frames, damaged, progressive)


def _keeps(names: set[str], line: Mapping[str, Any]) -> bool:
    """Whether a report's line is about an item that has samples in a split."""
    return line.get("item") in names and line.get("kind") != "item" and line.get("state") != "rejected"


def _arrange(one: Input, options: Mapping[str, Any], rows: IntArray, items: _Items) -> Arrangement:
    """The rows of one split."""
    digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    plan = plan_of("split", [one], {**options, "rows": digest})
    names = items.of_rows(rows)
    generations = one.manifest.generations
    generation = replace(join_generations(plan, generations), counts=items.counts(names, len(rows)))
    shuffle = options["shuffle"]
    order = rows if shuffle is None else rows[shuffled(len(rows), shuffle)]
    write = partial(write_reports, inputs=[one], keep=partial(_keeps, names))
    return Arrangement(plan, order, (Piece(len(rows), shard_bytes(plan, generations[0])),), (generation,), write)
