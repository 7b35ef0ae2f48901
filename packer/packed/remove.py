"""``packer remove``: take samples out of a dataset for good, in its own folder or store."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carry_columns
from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import Merge
from packer.assembly.records import NewGeneration, ReportWriter, reported_items
from packer.builds.provenance import library_versions
from packer.builds.records import note_generation, read_history
from packer.builds.update.checks import FROM_PACKED
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.copy.copy import copy
from packer.packed.plan import PackedInput, RepackPlan
from packer.packed.split.part import ItemsOfRows
from packer.recipe.checks import checked
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.durable import read_record
from packer.workspace.folder import clear_addition, finish_interrupted, output_folder
from packer.workspace.scratch import TemporaryFiles
from readers.conditions import rows_where
from shardspec.columns import IntArray
from shardspec.entries import BUILD_KINDS, REMOVE, Counts, Generation
from shardspec.errors import BuildError, UsageError
from shardspec.layout import BUILD_FOLDER, ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.splits.groups import NO_GROUP
from shardspec.stores import local_path, names_store
from shardspec.wording import counted, list_some

_OF_JOB = ("finished", "seconds", "sessions", "shards_written", "plan")
"""Keys of ``wall_clock`` that describe the job that wrote a dataset."""


@dataclass(frozen=True, repr=False)
class RemoveResult(Result):
    """A dataset from which samples were removed.

    Attributes
    ----------
    path : Path or str
        The dataset's folder or URL.
    manifest : Manifest
        Of the dataset as it is now.
    removed : int
        Samples that were removed, or with `dry_run` would be; 0 if the expression selects none.
    dry_run : bool
        Whether the dataset was left as it was.
    because : str
        The reason, for the history.
    """

    path: Path | str
    manifest: Manifest
    removed: int
    dry_run: bool = False
    because: str = ""

    def describe(self) -> str:
        """Describe the change in one line."""
        if not self.removed:
            return f"{self.path}: no sample is selected, nothing was removed"
        left = self.manifest.samples - (self.removed if self.dry_run else 0)
        verb = "would be removed" if self.dry_run else "removed for good"
        why = "" if self.because else "; no reason is recorded (--because)"
        return f"{self.path}: {counted(self.removed, 'sample')} {verb}, {left} left{why}"

    def to_json(self) -> dict[str, Any]:
        """Return the place, the digest and the counts as JSON."""
        facts = {"out": str(self.path), "digest": self.manifest.digest, "samples": self.manifest.samples}
        return {**facts, "removed": self.removed, "dry_run": self.dry_run}


def remove(
    dataset: str | os.PathLike[str],
    *,
    where: str,
    because: str = "",
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
) -> RemoveResult:
    """Remove samples from a packed dataset for good.

    The other samples are copied into new shards, columns and reports, which replace the old files in one step: at any
    moment, the old dataset or the new one can be read in full. Then the old files are deleted. If the call is
    interrupted, the same call resumes.

    The history of the dataset gets a generation of kind ``"remove"``, with the number of samples and the reason. An
    item without any samples left keeps a line with two digests in ``items.jsonl``, by which an update recognises it and
    does not pack it again.

    A dataset in a store is copied to the system's folder for temporary files, which needs room for it twice. Its old
    objects are deleted at the end.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or a URL.
    where : str
        An expression on small fields that selects the samples to remove (`readers.PackedDataset.where`).
    because : str
        The reason, for the history. It stays in the dataset, so it should not name anyone.
    dry_run : bool
        Whether to count the samples without removing any.
    storage_options : mapping, optional
        Credentials, region and endpoint; by default from the environment (`shardspec.stores.Store`).
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    RemoveResult

    Raises
    ------
    UsageError
        If the expression is invalid or selects all samples, or another command is unfinished in the folder.
    DatasetError
        If the dataset cannot be read, or a file differs from the manifest.
    StoreError
        If a store fails for longer than its retries last.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If a file cannot be written, or an old file cannot be deleted.
    """
    where, because = checked("where", where, str), checked("because", because, str)
    dry_run, listener = checked("dry_run", dry_run, bool), listener_of(progress)
    if not names_store(dataset):
        found = _remove_from_folder(output_folder(dataset, "dataset"), where, because, dry_run, listener)
        return replace(found, path=Path(local_path(dataset)))
    scratch = TemporaryFiles()
    try:
        folder = scratch.path / "dataset"
        copy(dataset, folder, storage_options=storage_options, progress=listener)
        found = _remove_from_folder(folder, where, because, dry_run, listener)
        if not dry_run:  # also if there is nothing to remove: an earlier call may have left old objects
            copy(folder, dataset, overwrite=True, storage_options=storage_options, progress=listener)
        return replace(found, path=str(dataset))
    finally:
        scratch.close()


def _remove_from_folder(
    path: Path, where: str, because: str, dry_run: bool, listener: ProgressListener
) -> RemoveResult:
    layout, workspace = Layout(path), Workspace(path / BUILD_FOLDER)
    layout.load()
    if not dry_run:
        finish_interrupted(workspace)
        kind = read_record(workspace.plan)["kind"] if workspace.plan.exists() else REMOVE
        if kind != REMOVE:
            raise UsageError(
                place=path,
                expected="a dataset at rest",
                found=f"an unfinished {kind} in its folder",
                hint=f"run its command again, or delete {BUILD_FOLDER}",
            )
    base = layout.load()
    rows = rows_where(BrowsedDataset(path, verify="digest"), where)  # a wrong value would select a wrong sample
    if len(rows) == base.samples:
        raise UsageError(
            option="where",
            expected="an expression that leaves samples",
            found=f"all {base.samples} selected",
            hint="delete the dataset's folder instead",
        )
    if dry_run or not len(rows):
        if not dry_run and not workspace.plan.exists():
            clear_addition(workspace, listener.on_message)  # an interrupted call may have left files
        return RemoveResult(path, base, len(rows), dry_run, because)
    made = Job(_plan_removal(path, base, rows, because), path, BuildOptions(), listener).run().manifest
    new = {entry.name for entry in made.entries}
    left = [entry.name for entry in base.entries if entry.name not in new and (path / entry.name).exists()]
    if left:
        raise BuildError(
            place=path,
            expected="that all files of the old dataset are deleted",
            found=f"{list_some(left)} left",
            hint="close the programs that read them, and delete these files",
        )
    return RemoveResult(path, made, len(rows), because=because)


def _plan_removal(path: Path, base: Manifest, removed: IntArray, because: str) -> "RemovalPlan":
    kept = np.setdiff1d(np.arange(base.samples), removed, assume_unique=True)
    stops = np.cumsum([sum(shard.samples for shard in one.shards) for one in base.generations])
    left = np.diff(np.searchsorted(kept, stops), prepend=0).tolist()
    made = tuple(
        NewGeneration(replace(one, shards=()), rows, one.recipe.get("shard_size"))
        for rows, one in zip(left, base.generations, strict=True)
    )
    options = {
        "format": base.format,
        "shuffle": None,
        "because": because,
        "rows": sha256_json(removed.tolist()),
    }
    return RemovalPlan(REMOVE, (PackedInput(path, base),), options, library_versions(base.format), made, kept)


@dataclass(frozen=True)
class RemovalPlan(RepackPlan):
    """Plan of a removal: the rows that stay are copied, generation by generation, within the dataset's folder."""

    @property
    def base(self) -> Manifest:
        """The dataset in the folder."""
        return self.inputs[0].manifest

    @property
    def source(self) -> dict[str, Any]:
        """The configuration of the rows, which have the fields of the shards."""
        found = super().source
        return {**found, "inputs": [{**one, "columns": False} for one in found["inputs"]]}

    @cached_property
    def _removed(self) -> IntArray:
        assert self.rows is not None
        return np.setdiff1d(np.arange(self.base.samples), self.rows, assume_unique=True)

    def _assemble(self, space: Workspace) -> Merge:
        columns = carry_columns(space, self.inputs[0].path, self.base, self._removed, 0)
        left = self._merge_reports(space.final)
        base, made, prints = self.base, list[NewGeneration](), dict[str, str]()
        for number, one in enumerate(self.generations):
            old = one.generation
            # A plan recognises its dataset by the fingerprint, so the fingerprint must change once samples have left.
            changed = one.rows != old.counts.samples
            prints[old.fingerprint] = sha256_json([old.fingerprint, self.fingerprint]) if changed else old.fingerprint
            counts = _without(old.counts, left.get(number, {}), one.rows)
            made.append(
                one._replace(generation=replace(old, fingerprint=prints[old.fingerprint], counts=counts, shards=()))
            )
        recipe = {"removed": len(self._removed), "because": self.options["because"]}
        generation = Generation(REMOVE, self.fingerprint, recipe, self.runtime, Counts(0, 0, 0, 0, 0, 0, 0, 0), ())
        made.append(NewGeneration(generation, 0, None))
        clock = {name: value for name, value in base.wall_clock.items() if name not in _OF_JOB}
        if "built" in clock:
            clock["built"] = {prints.get(name, name): value for name, value in clock["built"].items()}
        if "job" in clock:  # which its call must not find finished
            clock["job"] = {**clock["job"], "digests": []}
        clock["history"] = [*read_history(base), note_generation(REMOVE, generation, None, None, recipe)]
        rows = PackedRows(self.source, space)
        return Merge(
            self.source, rows, base.format, made, self.rows, columns=columns, wall_clock=clock, about=base.about
        )

    def _merge_reports(self, folder: Path) -> dict[int, Counter[str]]:
        """Write the reports without the items that have no samples left. Return the counts of these by generation."""
        one, left = self.inputs[0], defaultdict[int, Counter[str]](Counter)
        if one.manifest.find_file(ITEMS_NAME) and one.manifest.find_file(REJECTS_NAME):
            lost = _LostSamples(one, self._removed)
            with closing(ReportWriter(folder)) as reports:
                for number, item in enumerate(reported_items(Layout(one.path), one.manifest)):
                    removed, remaining, generation = lost.of(number, item.item)
                    if removed and not remaining:
                        left[generation].update(item.counts())
                        reports.write(item.removed())
                        continue
                    if removed:
                        item.item["samples"] = remaining
                        item.item["removed"] = item.item.get("removed", 0) + removed
                    reports.write(item)
                reports.finish()
        else:  # each sample is an item
            for number, made in enumerate(self.generations):
                left[number]["packed_items"] = made.generation.counts.samples - made.rows
        return left


class _LostSamples:
    """How many samples each item of a dataset's reports loses.

    Parameters
    ----------
    removed : int64 array
        The rows to remove, ascending.
    """

    def __init__(self, one: PackedInput, removed: IntArray) -> None:
        manifest = one.manifest
        items, self._number_of = _items_of_rows(one, removed)
        known = items != NO_GROUP
        gone = np.zeros(manifest.samples, np.bool_)
        gone[removed] = True
        size = int(items.max(initial=-1)) + 1
        self._removed = np.bincount(items[known & gone], minlength=size)
        self._kept = np.bincount(items[known & ~gone], minlength=size)
        stops = list(accumulate(sum(shard.samples for shard in one.shards) for one in manifest.generations))
        self._generation = np.zeros(size, np.int64)
        for number, (start, stop) in enumerate(pairwise([0, *stops])):
            within = items[start:stop]
            self._generation[within[within != NO_GROUP]] = number

    def of(self, number: int, line: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the numbers of samples that an item loses and keeps, and the number of its generation.

        Parameters
        ----------
        number : int
            The number of the item's line.
        line : mapping
        """
        found = self._number_of(number, line) if line["state"] == "packed" else NO_GROUP
        if not 0 <= found < len(self._removed):
            return 0, 0, 0
        return int(self._removed[found]), int(self._kept[found]), int(self._generation[found])


def _items_of_rows(one: PackedInput, removed: IntArray) -> tuple[IntArray, Callable[[int, Mapping[str, Any]], int]]:
    """Return the number of each row's item, and a function that returns that of a report's line.

    The keys of a build number the lines. In datasets that were made from others, items are found by name.
    """
    manifest = one.manifest
    if not {"job", FROM_PACKED} & manifest.wall_clock.keys() and all(
        generation.kind in (*BUILD_KINDS, REMOVE) for generation in manifest.generations
    ):
        items = np.full(manifest.samples, NO_GROUP, np.int64)
        at = 0
        with closing(PackedRows.of(one.path, check="size", manifest=manifest)) as rows:
            for batch in rows.batches(["key"]):
                for key in batch["key"]:
                    number = bytes(key).partition(b"-")[0]
                    items[at] = int(number) if number.isdigit() else NO_GROUP
                    at += 1
        return items, lambda number, _: number
    groups = ItemsOfRows(one).groups
    if groups is None:
        return np.full(manifest.samples, NO_GROUP, np.int64), lambda *_: NO_GROUP
    lost = np.unique(groups.of_row[removed])
    numbers = {groups.names[number]: number for number in lost[lost != NO_GROUP].tolist()}
    return groups.of_row, lambda _, line: numbers.get(str(line.get("item")), NO_GROUP)


def _without(counts: Counts, left: Mapping[str, int], samples: int) -> Counts:
    """Return the counts of a generation after items have left it."""
    found = {name: max(0, count - left.get(name, 0)) for name, count in vars(counts).items()}
    return Counts(**{**found, "items": found["packed_items"] + found["rejected_items"], "samples": samples})
