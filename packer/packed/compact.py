"""``packer compact``: write a packed dataset anew, without superseded rows and with its generations merged."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from packer.assembly.plan import Piece
from packer.jobs.history import note, noted
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import JobResult
from packer.packed.plan import Input, Repack, plan_of, shard_bytes
from packer.packed.reports import read_report
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.columns import FieldColumn
from packer.workspace.folder import finish_left, output_folder
from packer.workspace.lines import encode_line
from shardspec.entries import BUILD_KINDS, Generation, total
from shardspec.layout import BUILD_FOLDER, ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import counted

_OF_A_RUN = ("finished", "seconds", "sessions", "shards_written", "history")
"""Keys of the wall clock that are about the last run alone."""


@dataclass(frozen=True, repr=False)
class CompactResult(JobResult):
    """A dataset that was written anew.

    Attributes
    ----------
    removed : int
        Superseded samples that are not in the shards any more.
    bytes_before : int
        Bytes of all shards before.
    """

    removed: int = 0
    bytes_before: int = 0

    def describe(self) -> str:
        """See `JobResult`; adds what was removed."""
        if self.found_finished:
            return f"{self.path}: nothing to compact: {self._contents()}"
        removed = counted(self.removed, "superseded sample")
        return f"{super().describe()}; {removed} removed (before: {self.bytes_before / 1e6:.1f} MB)"

    def _facts(self) -> dict[str, Any]:
        return {"removed": self.removed, "bytes_before": self.bytes_before}


@dataclass(frozen=True)
class Compaction(Repack):
    """A dataset that is written anew in its own folder (`packer.jobs.plan.JobPlan`).

    It keeps what it notes of how it was made, so it can be updated as before.
    """

    @property
    def rewritten(self) -> Manifest | None:
        """See `JobPlan`."""
        return self.plan.inputs[0].manifest

    def columns(self, space: Workspace) -> Sequence[FieldColumn]:
        """See `JobPlan`: the rows are the same, so the columns stay as they are."""
        manifest = self.plan.inputs[0].manifest
        return [FieldColumn(manifest.schema[column.field], column) for column in manifest.columns]

    def history(self, space: Workspace, last: Generation, finished: str) -> list[Any] | None:
        """See `JobPlan`."""
        manifest = self.plan.inputs[0].manifest
        return [*noted(manifest), note("compact", replace(last, runtime=self.plan.runtime), finished)]

    def facts(self, tasks_run: int) -> dict[str, Any]:
        """See `JobPlan`."""
        manifest = self.plan.inputs[0].manifest
        kept = {name: value for name, value in manifest.wall_clock.items() if name not in _OF_A_RUN}
        built = kept.get("built")
        if isinstance(built, Mapping):
            kept["built"] = {**built, **_built_of_merged(manifest.generations, built)}
        return kept


def compact(
    dataset: str | os.PathLike[str],
    *,
    workers: str | int = "auto",
    engine: str = "processes",
    progress: bool | ProgressListener = True,
) -> CompactResult:
    """Write a packed dataset anew in its folder: without superseded rows, in shards of full size.

    Nothing is decoded. The rows keep their order, and added fields stay as they are. Generations that follow one
    another, and were packed by one recipe, become one. The dataset can be updated as before. The new shards need room
    beside the old ones until they take their place, in one step; the same call again resumes.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    workers, engine, progress
        See `packer.convert`.

    Returns
    -------
    CompactResult

    Raises
    ------
    UsageError
        If an unfinished build lies in the folder.
    DatasetError
        If the dataset cannot be read, or if a file of it does not match its manifest.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the job cannot continue. The same call resumes.
    """
    path = output_folder(dataset, "dataset")
    options = BuildOptions(workers=workers, engine=engine)
    Layout(path).load()
    finish_left(Workspace(path / BUILD_FOLDER))
    one = Input(path, Layout(path).load())
    manifest = one.manifest
    groups = _alike(manifest.generations)
    if len(groups) == len(manifest.generations) and not manifest.superseded_samples:
        return CompactResult(path, manifest, resumed=False, found_finished=True)
    plan = plan_of("compact", [one], {"format": manifest.format, "shard_size": None, "shuffle": None})
    kept = tuple(_merge(group) for group in groups)
    pieces = tuple(Piece(generation.counts.samples, shard_bytes(plan, generation)) for generation in kept)
    numbers = [number for number, group in enumerate(groups) for _ in group]
    job = Compaction(plan, None, pieces, kept, partial(_write_reports, one=one, numbers=numbers))
    done = Job(job, path, options, listener_of(progress)).run()
    bytes_before = sum(shard.bytes for shard in manifest.shards)
    return CompactResult(**vars(done), removed=manifest.superseded_samples, bytes_before=bytes_before)


def _alike(generations: Sequence[Generation]) -> list[list[Generation]]:
    """Runs of generations that builds have made by one recipe and the same versions."""

    def terms(numbered: tuple[int, Generation]) -> str:
        number, one = numbered
        if one.kind not in BUILD_KINDS:
            return str(number)
        # The contents of ``boxes`` grow with the items.
        runtime = {name: value for name, value in one.runtime.items() if name != "boxes"}
        return sha256_json([dict(one.recipe), runtime])

    return [[one for _, one in run] for _, run in groupby(enumerate(generations), terms)]


def _merge(generations: Sequence[Generation]) -> Generation:
    """One generation in place of several alike, without shards."""
    first, last = generations[0], generations[-1]
    made = [generation.fingerprint for generation in generations]
    fingerprint = made[0] if len(made) == 1 else sha256_json(made)
    return replace(last, kind=first.kind, fingerprint=fingerprint, counts=total(generations), shards=())


def _built_of_merged(generations: Sequence[Generation], built: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes on how the generations of a group were built, by the fingerprint of the merged generation."""
    found = {}
    for group in _alike(generations):
        noted = next((one.fingerprint for one in reversed(group) if one.fingerprint in built), None)
        if noted is not None:
            found[_merge(group).fingerprint] = built[noted]
    return found


def _write_reports(folder: Path, one: Input, numbers: Sequence[int]) -> None:
    """Write both reports into a folder; in ``items.jsonl``, with the new numbers of the generations."""
    for name in (ITEMS_NAME, REJECTS_NAME):
        if one.manifest.find_file(name) is not None:
            with (folder / name).open("wb") as file:
                file.writelines(_renumbered(raw, line, numbers) for raw, line in read_report(one, name))


def _renumbered(raw: bytes, line: Mapping[str, Any], numbers: Sequence[int]) -> bytes:
    before = line.get("generation")
    if before is None or numbers[before] == before:
        return raw
    left = {name: value for name, value in line.items() if name != "generation"}
    return encode_line({**left, **({"generation": numbers[before]} if numbers[before] else {})})
