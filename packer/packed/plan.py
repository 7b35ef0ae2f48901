"""Plans of jobs that read encoded rows from packed datasets."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from packer.assembly.plan import Piece, ShardPlan, shuffled
from packer.builds.provenance import library_versions
from packer.jobs.plan import (
    Assembly,
    Contents,
    JobSettings,
    Made,
    Resumption,
    Task,
    TaskResults,
    describe_changes,
    join_changes,
)
from packer.packed.work import RepackWork
from packer.recipe.checks import parse_bytes, plain_value
from packer.workspace import Workspace
from shardspec.columns import IntArray
from shardspec.entries import BUILD_KINDS, Generation, total
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import shorten

BUILT_KEY = re.compile(rb"([0-9]{8,18})(?:-[0-9]+)+\Z")
"""Item, ordinal, and one more number for each time that a step made several samples from a packed one."""

_ADAPTED = ("format", "shard_size", "shuffle")
"""Keys of a generation's recipe that a job may change. Everything else records how the samples were made."""


@dataclass(frozen=True)
class Input:
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
    def layout(self) -> Layout:
        """Where the files of the dataset are."""
        return Layout(self.path)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest without the wall clock: it covers all bytes, and where they come from.

        A dataset that is about to take the place of another has the same digest before and after its files are renamed.
        """
        document = self.manifest.with_own_names().to_json()
        del document["wall_clock"]
        return sha256_json(document)

    def provenance(self) -> dict[str, Any]:
        """Description of the dataset and how it was made, for a recipe."""
        generations = [g.to_json() for g in self.manifest.generations]
        for document in generations:
            del document["shards"]
        return {"digest": self.manifest.digest, "generations": generations}


@dataclass(frozen=True)
class RepackPlan:
    """Plan of a job over packed datasets.

    Attributes
    ----------
    kind : {"convert", "merge", "split"}
    inputs : tuple of Input
    options : dict
        ``format``, ``shard_size`` and ``shuffle``, and those of the kind.
    runtime : dict of str to str
        Versions of the libraries that write the format.
    """

    kind: str
    inputs: tuple[Input, ...]
    options: Mapping[str, Any]
    runtime: Mapping[str, str]

    @property
    def rows(self) -> dict[str, Any]:
        """The row source's configuration."""
        inputs = [
            {"path": str(one.path), "items_before": one.items_before, "digest": one.manifest.digest}
            for one in self.inputs
        ]
        return {"kind": "packed", "inputs": inputs}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes; the inputs count by their contents, not by their paths."""
        inputs = [[one.digest, one.items_before] for one in self.inputs]
        return sha256_json([self.kind, dict(self.options), dict(self.runtime), inputs])

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {**self.provenance, "fingerprint": self.fingerprint, "rows": self.rows}

    @property
    def provenance(self) -> dict[str, Any]:
        """The plan as a manifest records it: the inputs by their digests alone."""
        digests = [one.digest for one in self.inputs]
        return {"kind": self.kind, "options": dict(self.options), "runtime": dict(self.runtime), "digests": digests}

    def built(self) -> dict[str, dict[str, Any]]:
        """By the fingerprint of each build: the original values of the recipe keys that these jobs change."""
        found = {}
        for one in self.inputs:
            for generation in one.manifest.generations:
                if generation.kind in (*BUILD_KINDS, "write"):
                    recipe = recipe_as_built(one.manifest, generation)
                    found[generation.fingerprint] = {name: recipe.get(name) for name in _ADAPTED}
        return found

    def describe_difference(self, old: Mapping[str, Any]) -> str:
        """Describe what differs from another plan of the same kind."""
        found = describe_changes("option", old.get("options", {}), self.options)
        found += describe_changes("runtime", old.get("runtime", {}), self.runtime)
        if old.get("digests") != [one.digest for one in self.inputs]:
            found.append("the packed datasets that are read, or their order")
        return join_changes(found) or "the numbers of the items"

    def describe_made(self, made: Manifest) -> str:
        """Describe what differs from the job that made a dataset."""
        job = made.wall_clock.get("job")
        noted = job if isinstance(job, Mapping) else {}
        # The generations say how the samples were made, not how this folder was. Only a build notes ``tasks_run``.
        kind = noted.get("kind", "build" if "tasks_run" in made.wall_clock else None)
        if kind is None:
            return f"it does not say what made it, and this is a {self.kind}"
        if kind != self.kind:
            return f"it is a {kind}, and this a {self.kind}"
        return self.describe_difference(noted)


@dataclass(frozen=True)
class Repack:
    """A plan and what follows from it, in the form that a job runs (`packer.jobs.plan.JobPlan`).

    Its tasks are the shards that are read.

    Attributes
    ----------
    plan : RepackPlan
    order : (rows,) int64 or None
        The inputs' rows in the order in which they are to be stored; None for all rows in their own order.
    pieces : tuple of Piece
        The rows of each generation.
    kept : tuple of Generation
        The generations, without their shards.
    write_reports : callable
        Writes ``items.jsonl`` and ``rejects.jsonl`` into a folder.
    """

    plan: RepackPlan
    order: IntArray | None
    pieces: tuple[Piece, ...]
    kept: tuple[Generation, ...]
    write_reports: Callable[[Path], None]

    base: ClassVar[None] = None

    @property
    def settings(self) -> JobSettings:
        """See `JobPlan`."""
        return JobSettings(self.plan.kind, stage="checking", item="shard")

    @property
    def resumption(self) -> Resumption:
        """See `JobPlan`."""
        return _Resumption(self.plan)

    @property
    def fingerprint(self) -> str:
        """See `RepackPlan`."""
        return self.plan.fingerprint

    @property
    def tasks(self) -> Sequence[Task]:
        """One for each shard of the inputs."""
        shards = sum(len(one.manifest.shards) for one in self.plan.inputs)
        return [Task(number, number + 1, 0) for number in range(shards)]

    def to_json(self) -> dict[str, Any]:
        """See `RepackPlan`."""
        return self.plan.to_json()

    def take_item_lines(self) -> Iterable[str]:
        """See `JobPlan`: the manifests of the inputs list the shards."""
        return ()

    def open_work(self, space: Workspace) -> RepackWork:
        """See `JobPlan`."""
        return RepackWork(space, self.plan.rows)

    def collect(self, space: Workspace) -> AbstractContextManager[TaskResults]:
        """See `JobPlan`: the shards say everything."""
        finished = {task for task in range(len(self.tasks)) if space.scan(task).exists()}
        return nullcontext(TaskResults(finished, partial(self._assemble, space)))

    def _assemble(self, space: Workspace) -> Assembly:
        self.write_reports(space.final)
        return Assembly(self.plan.rows, self.plan.options["format"], self.pieces, self.order)

    def contents(self, space: Workspace, finished: str, tasks_run: int) -> Contents:
        """See `JobPlan`: columns have become fields of the shards."""
        made = [Made(generation, piece.rows) for generation, piece in zip(self.kept, self.pieces, strict=True)]
        noted = {"plan": self.plan.fingerprint, "job": self.plan.provenance, "built": self.plan.built()}
        return Contents(made, wall_clock=noted)


class _Resumption(Resumption):
    """Relation of a plan over packed datasets to earlier work. Checking the inputs is quick, so nothing is taken over."""

    def __init__(self, plan: RepackPlan) -> None:
        self._plan = plan

    def made(self, manifest: Manifest) -> bool:
        """Return whether the plan has made a dataset. Rows keep their provenance; the plan is recorded next to it."""
        return manifest.wall_clock.get("plan") == self._plan.fingerprint

    def describe_unfinished(self, space: Workspace, old: Mapping[str, Any]) -> str:
        """See `Resumption`."""
        return self._plan.describe_difference(old)

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        """See `Resumption`."""
        return self._plan.describe_made(manifest)

    def resume(self, space: Workspace) -> None:
        """Have the inputs checked again: the interruption may be long ago, and the inputs may have been moved since."""
        space.take_away(space.scans)
        space.create_results(0)
        if space.assembly.exists():
            replace(ShardPlan.load(space), rows=self._plan.rows).save()


def open_input(path: Path, out: Path) -> Input:
    """Open a packed dataset to read. The output must be neither inside it nor around it.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    UsageError
        If dataset and output are the same folder, or one lies inside the other.
    """
    manifest = Layout(path).load()
    if out.resolve() == path.resolve():
        raise UsageError(
            place=out, expected="a folder apart from the dataset", found="the dataset itself", hint="choose another"
        )
    if out.resolve().is_relative_to(path.resolve()) or path.resolve().is_relative_to(out.resolve()):
        raise UsageError(place=out, expected=f"a folder apart from {path}", found="one inside the other")
    return Input(path.absolute(), manifest)


def several_paths(datasets: Sequence[str | os.PathLike[str]], why: str) -> list[Path]:
    """The paths of some datasets.

    Raises
    ------
    UsageError
        If there are fewer than two.
    """
    given = [datasets] if isinstance(datasets, str | os.PathLike) else datasets
    if len(given) < 2:
        raise UsageError(expected=f"two packed datasets or more {why}", found=len(given))
    return [given_path("datasets", path) for path in given]


def plan_of(kind: str, inputs: Sequence[Input], options: Mapping[str, Any]) -> RepackPlan:
    """The plan of a job, its shard size in bytes.

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
    return RepackPlan(kind, tuple(inputs), checked, library_versions(options["format"]))


def arrange_whole(plan: RepackPlan, write_reports: Callable[[Path], None]) -> Repack:
    """All rows of all inputs. Each generation keeps its provenance, unless a shuffle mixes several into one."""
    generations = tuple(g for one in plan.inputs for g in one.manifest.generations)
    shuffle = plan.options["shuffle"]
    if shuffle is not None and len(generations) > 1:
        generations = (join_generations(plan, generations),)
    rows = sum(g.counts.samples for g in generations)
    pieces = tuple(Piece(g.counts.samples, shard_bytes(plan, g)) for g in generations)
    kept = tuple(replace(g, recipe=_adapt(g.recipe, plan.options), shards=()) for g in generations)
    return Repack(plan, None if shuffle is None else shuffled(rows, shuffle), pieces, kept, write_reports)


def join_generations(plan: RepackPlan, generations: Sequence[Generation]) -> Generation:
    """One generation in place of several; its recipe holds the provenance of the inputs."""
    made = {**plan.options, "shard_size": shard_bytes(plan, generations[0])}
    recipe = {**made, "inputs": [one.provenance() for one in plan.inputs]}
    return Generation(plan.kind, plan.fingerprint, recipe, plan.runtime, total(generations), ())


def shard_bytes(plan: RepackPlan, generation: Generation) -> int | None:
    """Encoded bytes per shard (`Piece`): as asked for, or as the rows were packed before."""
    chosen = plan.options["shard_size"] or generation.recipe.get("shard_size")
    return None if chosen is None else int(chosen)


def recipe_as_built(manifest: Manifest, generation: Generation) -> dict[str, Any]:
    """The recipe by which a generation was built, without the changes of later jobs."""
    built = manifest.wall_clock.get("built")
    noted = built.get(generation.fingerprint) if isinstance(built, Mapping) else None
    return {**generation.recipe, **(noted if isinstance(noted, Mapping) else {})}


def _adapt(recipe: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the new format, and shard size and shuffle if they were asked for. No other key changes."""
    changed = {name: options[name] for name in _ADAPTED if options[name] is not None}
    return {name: changed.get(name, value) for name, value in recipe.items()}
