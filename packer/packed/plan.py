"""Jobs that copy encoded rows from packed datasets: their plan, their work, and the reports that they carry over."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from packer.assembly.inputs import for_workers
from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import Merge, ShardPlan, shuffled
from packer.assembly.records import NewGeneration, checked_lines, join_neighbours, join_reports
from packer.assembly.shard import PlannedShards
from packer.builds.provenance import library_versions
from packer.jobs.plan import (
    JobSettings,
    OnItem,
    PlanRecord,
    ResultReader,
    Task,
    Unit,
    Verdicts,
    describe_changes,
    join_changes,
)
from packer.recipe.checks import parse_bytes, plain_value
from packer.sources.stores.packed import partial_folder
from packer.steps.chain import StepResources
from packer.workspace import Workspace
from packer.workspace.durable import writing
from packer.workspace.shared_files import map_threaded
from shardspec.columns import IntArray
from shardspec.entries import BUILD_KINDS, About, Generation, total
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.layout import Layout, place_of
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import shorten

BUILT_KEY = re.compile(rb"([0-9]{8,18})(?:-[0-9]+)+\Z")
"""Item, ordinal, and one more number for each time that a step made several samples from a packed one."""

_JOINED = ("build", "write")
"""Kinds of generations of which neighbours with one recipe are joined. Updates and retries are numbered in the items."""

_ADAPTED = ("format", "shard_size", "shuffle")
"""Keys of a generation's recipe that a job may change. All other keys record how the samples were made."""


@dataclass(frozen=True)
class PackedInput:
    """A packed dataset that rows are read from.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    items_before : int
        Added to the item number in every key.
    """

    path: Path
    manifest: Manifest
    items_before: int = 0

    @property
    def place(self) -> Path | str:
        """The dataset's folder, or its URL."""
        return place_of(self.path)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest without wall clock and ``about``, which covers all bytes and their provenance."""
        document = self.manifest.to_json()
        del document["wall_clock"]
        document.pop("about", None)
        return sha256_json(document)

    def provenance(self) -> dict[str, Any]:
        """Describe the dataset and how it was made, for a recipe."""
        generations = [g.to_json() for g in self.manifest.generations]
        for document in generations:
            del document["shards"]
        return {"digest": self.manifest.digest, "generations": generations}

    def report(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the parsed lines of a report; none if the dataset does not have it.

        Raises
        ------
        DatasetError
            If the file does not match the manifest.
        """
        return map(json.loads, self.report_lines(name))

    def report_lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a report."""
        return checked_lines(Layout(self.path), self.manifest, name) if self.manifest.find_file(name) else iter(())


@dataclass(frozen=True)
class RepackPlan:
    """Plan of a job over packed datasets (`packer.jobs.plan.JobPlan`). Its tasks are the shards that it reads.

    Attributes
    ----------
    kind : {"convert", "copy", "merge", "remove", "split"}
    inputs : tuple of PackedInput
    options : dict
        ``format``, ``shard_size`` and ``shuffle``, and the options of the kind.
    runtime : dict of str to str
        Versions of the libraries that write the format.
    generations : tuple of NewGeneration
    rows : (rows,) int64, optional
        The inputs' rows to copy, in order; by default all.
    keep : callable, optional
        Chooses the lines of the reports to keep; by default all.
    """

    kind: str
    inputs: tuple[PackedInput, ...]
    options: Mapping[str, Any]
    runtime: Mapping[str, str]
    generations: tuple[NewGeneration, ...] = ()
    rows: IntArray | None = None
    keep: Callable[[Mapping[str, Any]], bool] | None = None

    @property
    def base(self) -> Manifest | None:
        """None: the job makes a new dataset."""
        return None

    @property
    def settings(self) -> JobSettings:
        """How the job is run and shown."""
        return JobSettings(self.kind, stage="checking", item="shard")

    @property
    def record(self) -> PlanRecord:
        """The plan as it is stored in the folder."""
        return _CopyRecord(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes. Inputs count by their contents, not by their paths."""
        inputs = [[one.digest, one.items_before] for one in self.inputs]
        return sha256_json([self.kind, dict(self.options), dict(self.runtime), inputs])

    @cached_property
    def shards(self) -> Sequence[int]:
        """The numbers of the shards that hold the rows, over all inputs."""
        samples = [shard.samples for one in self.inputs for shard in one.manifest.shards]
        if self.rows is None:
            return range(len(samples))
        return shards_of(samples, self.rows)

    @property
    def tasks(self) -> Sequence[Task]:
        """One task for each shard that is read."""
        return [Task(number, number + 1, 0) for number in self.shards]

    @property
    def source(self) -> dict[str, Any]:
        """The configuration of the rows for workers (`packer.assembly.packed_rows.PackedRows`)."""
        return for_workers(self._rows)

    @property
    def _rows(self) -> dict[str, Any]:
        inputs = [
            {"path": str(one.path), "items_before": one.items_before, "digest": one.manifest.digest}
            for one in self.inputs
        ]
        return {"inputs": inputs, "shards": list(self.shards)}

    @property
    def provenance(self) -> dict[str, Any]:
        """The plan as a manifest records it, with the digests of the inputs."""
        digests = [one.digest for one in self.inputs]
        return {"kind": self.kind, "options": dict(self.options), "runtime": dict(self.runtime), "digests": digests}

    def open_work(self, space: Workspace) -> "RepackWork":
        """Open the work."""
        return RepackWork(space, self.source)

    def collect(self, space: Workspace) -> AbstractContextManager[ResultReader]:
        """Collect the results of the tasks."""
        finished = {task for task, shard in enumerate(self.shards) if space.scan(shard).exists()}
        return nullcontext(ResultReader(finished, partial(self._assemble, space)))

    def _assemble(self, space: Workspace) -> Merge:
        """Merge the reports, and describe the rows. Added columns become fields of the shards."""
        if space.remote is not None:
            list(map_threaded(space.promised, map(space.scan, self.shards)))
        join_reports(space.final, [(Layout(one.path), one.manifest) for one in self.inputs], self.keep)
        order, shuffle = self.rows, self.options["shuffle"]
        if shuffle is not None:
            drawn = shuffled(sum(one.rows for one in self.generations), shuffle)
            order = drawn if order is None else order[drawn]
        built = {}
        for one in self.inputs:
            for generation in one.manifest.generations:
                if generation.kind in (*BUILD_KINDS, "write"):
                    recipe = recipe_as_built(one.manifest, generation)
                    built[generation.fingerprint] = {name: recipe.get(name) for name in _ADAPTED}
        return Merge(
            self.source,
            PackedRows(self._rows, space),
            self.options["format"],
            self.generations,
            order,
            wall_clock={"plan": self.fingerprint, "job": self.provenance, "built": built},
            about=About.united(one.manifest.about for one in self.inputs),
        )


class _CopyRecord(PlanRecord):
    """The stored plan. Checking the inputs is quick, so nothing is taken over from other plans."""

    def __init__(self, plan: RepackPlan) -> None:
        self.base = plan.base
        self._plan = plan

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes."""
        return self._plan.fingerprint

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON. The manifests of the inputs list the shards, so there are no items."""
        return {**self._plan.provenance, "fingerprint": self.fingerprint, "rows": self._plan.source}

    def made(self, manifest: Manifest) -> bool:
        """Return whether the plan has made a dataset. Rows keep their provenance; the plan is recorded next to it."""
        return manifest.wall_clock.get("plan") == self._plan.fingerprint

    def describe_unfinished(self, space: Workspace, old: Mapping[str, Any]) -> str:
        """Describe what differs from another plan of the same kind."""
        plan = self._plan
        found = describe_changes("option", old.get("options", {}), plan.options)
        found += describe_changes("runtime", old.get("runtime", {}), plan.runtime)
        if old.get("digests") != [one.digest for one in plan.inputs]:
            found.append("the packed datasets that are read, or their order")
        return join_changes(found) or "the numbers of the items"

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        """Describe what differs from the job that made a dataset."""
        job = manifest.wall_clock.get("job")
        noted = job if isinstance(job, Mapping) else {}
        # A copy keeps the generations, which say how the samples were made.
        kind = noted.get("kind", manifest.generations[0].kind)
        if kind != self._plan.kind:
            return f"it is a {kind}, and this is a {self._plan.kind}"
        return self.describe_unfinished(Workspace(layout.build), noted)

    def resume(self, space: Workspace) -> None:
        """Have the inputs checked again: they may have been changed or moved since the interruption."""
        space.take_away(space.scans)
        space.create_results(0)
        if space.assembly.exists():
            replace(ShardPlan.load(space), rows=self._plan.source).save()


class RepackWork:
    """Does the tasks of a job over packed datasets (`packer.jobs.plan.Work`): checks and scans each input shard.

    Parameters
    ----------
    source : mapping
        The configuration of the rows.
    """

    def __init__(self, workspace: Workspace, source: Mapping[str, Any]) -> None:
        self._workspace = workspace
        self._source = source
        self._rows: PackedRows | None = None
        self._shards = PlannedShards(workspace)

    @classmethod
    def of_plan(cls, workspace: Workspace, document: Mapping[str, Any], _resources: StepResources) -> "RepackWork":
        """Return the work of a workspace's plan."""
        return cls(workspace, document["rows"])

    def prepare(self) -> None:
        """Do nothing, because nothing is slow to load."""

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Do one unit.

        Raises
        ------
        BuildError
            If a file cannot be written.
        DatasetError
            If a shard does not match its manifest.
        """
        with writing(self._workspace.out):
            if unit.do == "shard":
                return self._shards.write(unit.number)
            if self._rows is None:
                self._rows = PackedRows(self._source, self._workspace)
            shard = self._source["shards"][unit.number]
            self._rows.scan(shard)
            if self._workspace.remote is not None:
                self._workspace.remote.add(self._workspace.root, self._workspace.scan(shard))
            return {}

    def close(self) -> None:
        """Close the input shards."""
        self._shards.close()
        if self._rows is not None:
            self._rows.close()


def open_input(path: Path, out: Path | str) -> PackedInput:
    """Open a packed dataset to read, in a folder or the cache. The output must be neither inside it nor around it.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    UsageError
        If dataset and output are the same folder, or one is inside the other.
    """
    manifest, place = Layout(path).load(), place_of(path)
    here, there = (PurePosixPath(one) if isinstance(one, str) else one.resolve() for one in (place, out))
    if here == there:
        raise UsageError(
            place=out, expected="a place apart from the dataset", found="the dataset itself", hint="choose another"
        )
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UsageError(place=out, expected=f"a place apart from {place}", found="one inside the other")
    return PackedInput(path.absolute(), manifest)


def several_paths(datasets: Sequence[str | os.PathLike[str]], why: str) -> list[Path]:
    """Return the paths of some datasets.

    Raises
    ------
    UsageError
        If there are fewer than two.
    """
    given = [datasets] if isinstance(datasets, str | os.PathLike) else datasets
    if len(given) < 2:
        raise UsageError(expected=f"two packed datasets or more {why}", found=len(given))
    return [partial_folder(path, "datasets", whole_shards=True) for path in given]


def plan_copy(kind: str, inputs: Sequence[PackedInput], options: Mapping[str, Any]) -> RepackPlan:
    """Plan a job that copies all rows of its inputs.

    Each generation keeps its provenance, unless a shuffle mixes several generations into one. Neighbours that one recipe
    built are one generation, so datasets packed in pieces become the dataset that one build makes.

    Raises
    ------
    UsageError
        If the format is unknown, or a value is invalid.
    MissingDependencyError
        If a library that the format needs is not installed.
    """
    get_format(options["format"])
    shard_size, shuffle = options["shard_size"], plain_value(options["shuffle"])
    if shard_size is not None:
        shard_size = parse_bytes(plain_value(shard_size), "shard_size")
    if shuffle is not None and (type(shuffle) is not int or shuffle < 0):
        raise UsageError(option="shuffle", expected="a seed of 0 or more", found=shorten(shuffle))
    checked = {**options, "shard_size": shard_size, "shuffle": shuffle}
    plan = RepackPlan(kind, tuple(inputs), checked, library_versions(options["format"]))
    every = (g for one in plan.inputs for g in one.manifest.generations)
    made = [NewGeneration(replace(g, shards=()), g.counts.samples, shard_bytes(plan, g)) for g in every]
    made = list(join_neighbours(made, _JOINED))
    if shuffle is not None and len(made) > 1:
        made = [mix_generations(plan)]
    adapted = {name: checked[name] for name in _ADAPTED if checked[name] is not None}
    return replace(plan, generations=tuple(_adapt(one, adapted) for one in made))


def _adapt(one: NewGeneration, adapted: Mapping[str, Any]) -> NewGeneration:
    """Return a generation with the options of a job in its recipe."""
    recipe = {name: adapted.get(name, value) for name, value in one.generation.recipe.items()}
    return one._replace(generation=replace(one.generation, recipe=recipe))


def mix_generations(plan: RepackPlan) -> NewGeneration:
    """Return one generation in place of all of the inputs. Its recipe holds the provenance of the inputs."""
    generations = [g for one in plan.inputs for g in one.manifest.generations]
    size, counts = shard_bytes(plan, generations[0]), total(generations)
    recipe = {**plan.options, "shard_size": size, "inputs": [one.provenance() for one in plan.inputs]}
    made = Generation(plan.kind, plan.fingerprint, recipe, plan.runtime, counts, ())
    return NewGeneration(made, counts.samples, size)


def shard_bytes(plan: RepackPlan, generation: Generation) -> int | None:
    """Return the encoded bytes per shard (`NewGeneration`): as requested, or as the rows were packed before."""
    chosen = plan.options["shard_size"] or generation.recipe.get("shard_size")
    return None if chosen is None else int(chosen)


def shards_of(samples: Sequence[int], rows: IntArray) -> list[int]:
    """Return the numbers of the shards that hold some rows, given the number of samples of every shard."""
    found: list[int] = np.unique(np.searchsorted(np.cumsum(samples), rows, side="right")).tolist()
    return found


def recipe_as_built(manifest: Manifest, generation: Generation) -> dict[str, Any]:
    """Return the recipe by which a generation was built, without the changes of later jobs."""
    built = manifest.wall_clock.get("built")
    noted = built.get(generation.fingerprint) if isinstance(built, Mapping) else None
    return {**generation.recipe, **(noted if isinstance(noted, Mapping) else {})}
