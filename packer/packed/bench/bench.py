"""``packer bench``: compare reading raw files with reading the packed dataset, on the user's own data and recipe."""

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import is_storable, make_plan
from packer.jobs.child import SyncChild
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.packed.bench.report import BenchReport, Run, Side
from packer.packed.plan import recipe_as_built
from packer.recipe import Recipe
from packer.recipe.checks import checked
from packer.recipe.engines import count_workers
from packer.sources.base import Listing
from packer.sources.item import Item
from packer.sources.opening import open_source
from shardspec.errors import BuildError, UsageError
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest
from shardspec.wording import program, shorten

DEFAULT_RUNS = 5
DEFAULT_SECONDS = 3.0
DEFAULT_BATCH_SIZE = 64
_SEED = 0
"""Seed of the choice of items, so that every call measures the same items."""
_SIDE = "packer.packed.bench.timed_loader"
_POLL_S = 1.0


def bench(
    source: str | os.PathLike[str],
    packed: str | os.PathLike[str],
    *,
    workers: str | int = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    runs: int = DEFAULT_RUNS,
    seconds: float = DEFAULT_SECONDS,
    root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    boxes: str | os.PathLike[str] | None = None,
    progress: bool | ProgressListener = True,
) -> BenchReport:
    """Measure what a training epoch costs with raw files and with the dataset that they were packed into.

    Raw: `workers` processes with one math thread each run the steps of the dataset's recipe over randomly drawn items,
    one after another, as ``__getitem__`` would in the workers of a DataLoader. Packed: `readers.Loader` with `workers`
    threads, shuffled, all fields. Both sides run in separate processes. These first do their work once, to load models
    and to warm the page cache, and then take turns.

    Parameters
    ----------
    source : path
        The folder or table that was packed.
    packed : path
        The dataset that `packer.build` made from it.
    workers : int or "auto"
        Processes (raw) and threads (packed).
    batch_size : int
        Samples per batch, at least 1.
    runs : int
        Runs of each side, at least 1.
    seconds : float
        Length of a run, above 0. Packed runs take at least this time. Raw runs pass over the items that fit into this
        time in the first run.
    root : path, or sequence of path
        As for the build, because the manifest holds only the names of the folders.
    boxes : path, optional
        As for the build, for the same reason; by default the file of the manifest's name in the current folder.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    BenchReport

    Raises
    ------
    UsageError
        If the dataset was not made by one build, or the source has no items.
    BuildError
        If a side cannot be measured.
    """
    source, packed = given_path("source", source), given_path("packed", packed)
    batch_size, runs = checked("batch_size", batch_size, int, minimum=1), checked("runs", runs, int, minimum=1)
    seconds = checked("seconds", seconds, float, above=0)
    manifest = Layout(packed).load()
    roots = [root] if isinstance(root, str | os.PathLike) else root
    recipe = replace(_recipe_of(packed, manifest), root=tuple(str(Path(folder).absolute()) for folder in roots))
    recipe = _with_boxes(recipe, boxes)
    listing = list_items(open_source(source, packed.absolute(), recipe), recipe)
    items = _shuffled(listing, recipe)
    count = count_workers(workers, recipe.preset, len(items))
    shares = [[item.to_line() for item in items[number::count]] for number in range(min(count, len(items)))]
    with ExitStack() as stack:
        stage = stack.enter_context(Stage(listener_of(progress), "measuring", 2 + 2 * runs, "passes"))

        def start(requests: Sequence[Mapping[str, Any]]) -> list[SyncChild]:
            processes = [stack.enter_context(SyncChild([_SIDE])) for _ in requests]
            for process, request in zip(processes, requests, strict=True):
                process.send(request)
            return processes

        raw = start([{"recipe": recipe.to_json(), "items": share, "seconds": seconds} for share in shares])
        warmed = _answers(raw)
        stage.advance()
        # Only now: the warm-ups of the two sides must not slow each other down.
        packed_request = {"path": str(packed), "batch_size": batch_size, "workers": count, "seconds": seconds}
        reader = start([packed_request])
        _answers(reader)
        stage.advance()
        found: tuple[list[Run], list[Run]] = ([], [])
        for _ in range(runs):
            for processes, taken in zip((raw, reader), found, strict=True):
                for process in processes:
                    process.send({"do": "run"})
                taken.append(Run.of(_answers(processes)))
                stage.advance()
    measured_items = sum(answer["items"] for answer in warmed)
    if not any(run.samples for run in found[0]):
        reason = next((answer["reason"] for answer in warmed if answer["reason"]), "no reason is known")
        raise UsageError(
            place=source, expected="items that yield samples", found=f"none among the {measured_items} tried ({reason})"
        )
    return BenchReport(
        source=str(source),
        packed=str(packed),
        format=manifest.format,
        same_source=_is_same_source(manifest, recipe, listing),
        workers=count,
        batch_size=batch_size,
        seconds=seconds,
        items=len(items),
        measured_items=measured_items,
        samples=manifest.samples,
        raw=Side.of_runs(found[0], manifest.samples),
        reading=Side.of_runs(found[1], manifest.samples),
        recorded_pack_s=_packing_time(manifest),
    )


def _answers(processes: Sequence[SyncChild]) -> list[dict[str, Any]]:
    """Take one answer from each process.

    Raises
    ------
    BuildError
        If a process has ended, or reports a failure.
    """
    answers = []
    for process in processes:
        while (answer := process.answer(_POLL_S)) is None:
            pass
        if answer["event"] == "died":
            raise BuildError(place=_SIDE, expected="an answer", found=f"that it ended ({process.describe_death()})")
        if answer["event"] == "failed":
            raise BuildError(answer["message"])
        answers.append(answer)
    return answers


def _recipe_of(packed: Path, manifest: Manifest) -> Recipe:
    """Return the recipe by which a dataset was built, even if it was converted since."""
    made = manifest.generations[-1]
    try:
        return Recipe.from_options(recipe_as_built(manifest, made))
    except UsageError as error:
        raise UsageError(
            place=packed,
            expected=f"a dataset that `{program()} build` made",
            found=f"one of {shorten(made.kind)}, which has no recipe to run over raw items",
            hint="name a dataset that went into it",
        ) from error


def _with_boxes(recipe: Recipe, boxes: str | os.PathLike[str] | None) -> Recipe:
    """Return the recipe with the present path of its boxes."""
    if recipe.boxes is None:
        if boxes is not None:
            raise UsageError(option="boxes", expected="none, since the dataset was built without --boxes")
        return recipe
    place = Path(recipe.boxes if boxes is None else boxes)
    if not place.exists():
        raise UsageError(
            option="boxes",
            expected=f"those that the dataset was built with ({shorten(recipe.boxes)})",
            found=f"nothing at {place}",
            hint="say where they are with `boxes`",
        )
    return replace(recipe, boxes=str(place))


def _shuffled(listing: Listing, recipe: Recipe) -> list[Item]:
    items = [item for item in listing.items[: recipe.limit] if is_storable(item)]
    random.Random(_SEED).shuffle(items)  # noqa: S311 -- not a secret
    if not items:
        raise UsageError(option="source", expected="one item or more", found="none")
    return items


def _is_same_source(manifest: Manifest, recipe: Recipe, listing: Listing) -> bool:
    made = manifest.generations[-1]
    plan, _ = make_plan(recipe, made.runtime, listing)
    return plan.fingerprint == made.fingerprint


def _packing_time(manifest: Manifest) -> float | None:
    """Return the build's recorded seconds, or None if it took several sessions, or another job made the dataset since."""
    clock = manifest.wall_clock
    return (
        float(clock["seconds"])
        if clock.get("sessions") == 1 and clock.get("tasks_run") and "job" not in clock
        else None
    )
