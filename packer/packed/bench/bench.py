"""``packer bench``: raw against packed, on one's own data and recipe."""

import math
import os
import platform
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.builds.build import open_source
from packer.builds.listing import list_items
from packer.builds.plan import is_storable, make_plan
from packer.packed.bench.process import MeasuredProcess, gather
from packer.packed.bench.report import BenchReport, Packing, Side
from packer.packed.plan import recipe_as_built
from packer.recipe import Recipe
from packer.recipe.resources import count_workers
from packer.sources.base import Listing
from packer.sources.item import Item
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest

DEFAULT_RUNS = 5
DEFAULT_SECONDS = 3.0
DEFAULT_BATCH_SIZE = 64
_SEED = 0
"""Of the choice of items: the same ones every time."""


def bench(
    source: Path,
    packed: Path,
    *,
    workers: str | int = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    runs: int = DEFAULT_RUNS,
    seconds: float = DEFAULT_SECONDS,
    batches: int = 1,
    root: Sequence[str | Path] = (),
) -> BenchReport:
    """Measure what a training's epoch costs over raw files and over what they were packed to.

    Raw: `workers` processes with one math thread each run the steps of the dataset's recipe over items drawn at random, one
    after another, as a dataset's ``__getitem__`` would in as many workers of a DataLoader. Packed: `readers.Loader` with as
    many threads, shuffled, all fields. Both in processes of their own, which first do their work once (models load, the page
    cache warms), then in turn, raw, packed, raw, packed, ….

    Parameters
    ----------
    source, packed : Path
    workers : int or "auto"
    batch_size : int
    runs : int
        Of each side.
    seconds : float
        Of a run: packed runs take as long at least, raw runs pass over as many items as took so long at first.
    batches : int
        Of a packed run, at least.
    root : sequence of path
        As for the build: the manifest holds the names of those folders alone.

    Raises
    ------
    UsageError
        The dataset was not made by one build, or the source has no items.
    BuildError
        A side cannot be measured.
    """
    for name, value in (("batch_size", batch_size), ("runs", runs), ("batches", batches)):
        if value < 1:
            raise UsageError(f"{name}: expected 1 or more, found {value}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"seconds: expected more than 0, found {seconds}")
    manifest = Layout(packed).load()
    recipe = replace(_recipe_of(packed, manifest), root=tuple(str(Path(folder).absolute()) for folder in root))
    listing = list_items(open_source(source, packed.absolute(), recipe), recipe)
    items = _shuffled(listing, recipe)
    count = count_workers(workers, recipe.preset, len(items))
    shares = [[item.to_line() for item in items[number::count]] for number in range(min(count, len(items)))]
    reading = {"path": str(packed), "batch_size": batch_size, "workers": count, "seconds": seconds, "batches": batches}
    with ExitStack() as stack:
        raw = [
            stack.enter_context(
                MeasuredProcess(
                    "packer.packed.bench.raw", {"recipe": recipe.to_json(), "items": share, "seconds": seconds}
                )
            )
            for share in shares
        ]
        warmed = gather(raw)
        measured_items = sum(answer["items"] for answer in warmed)
        # Only now: the sides are not to warm up at each other's cost.
        reader = stack.enter_context(MeasuredProcess("readers.loader.measure", reading))
        gather([reader])
        raw_side, packed_side = _take_turns(raw, reader, runs)
    stored = sum(shard.bytes for shard in manifest.shards)
    if not raw_side["samples"]:
        reason = next((answer["reason"] for answer in warmed if answer["reason"]), "no reason is known")
        raise UsageError(
            f"{source}: expected items that give samples, found none among the {measured_items} tried ({reason})"
        )
    return BenchReport(
        source=str(source),
        packed=str(packed),
        format=manifest.format,
        same_source=_is_same_source(manifest, recipe, listing),
        machine={"cores": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        workers=count,
        batch_size=batch_size,
        seconds=seconds,
        items=len(items),
        measured_items=measured_items,
        samples=manifest.samples,
        raw=Side.of_runs(raw_side, manifest.samples),
        reading=Side.of_runs(
            {**packed_side, "file_bytes": stored / manifest.samples * packed_side["samples"]}, manifest.samples
        ),
        packing=_packing_of(manifest),
    )


def _take_turns(
    raw: list[MeasuredProcess], reader: MeasuredProcess, runs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sums and rates of all runs of both sides, for `Side.of_runs`."""
    sides = [_empty_side(), _empty_side()]
    for _ in range(runs):
        for side, processes in zip(sides, (raw, [reader]), strict=True):
            before = [process.disk_bytes() for process in processes]
            for process in processes:
                process.send({"do": "run"})
            answers = gather(processes)
            after = [process.disk_bytes() for process in processes]
            # Each process at its own rate: the last one to end would count the others' idleness.
            side["rates"].append(sum(a["samples"] / a["seconds"] for a in answers))
            side["cpu_s"].append(sum(a["cpu_s"] for a in answers) / max(1, sum(a["samples"] for a in answers)))
            side["samples"] += sum(a["samples"] for a in answers)
            side["file_bytes"] += sum(a.get("bytes", 0) for a in answers)
            if None in before or None in after or side["disk_bytes"] is None:
                side["disk_bytes"] = None
            else:
                side["disk_bytes"] += sum(b or 0 for b in after) - sum(b or 0 for b in before)
    for side, processes in zip(sides, (raw, [reader]), strict=True):
        side["peak_bytes"] = sum(process.peak_bytes for process in processes)
    return sides[0], sides[1]


def _empty_side() -> dict[str, Any]:
    return {"rates": [], "cpu_s": [], "samples": 0, "file_bytes": 0, "disk_bytes": 0}


def _recipe_of(packed: Path, manifest: Manifest) -> Recipe:
    """The recipe by which a dataset was built, also where it was converted since."""
    made = manifest.generations[-1]
    try:
        return Recipe.from_options(recipe_as_built(manifest, made))
    except UsageError as error:
        raise UsageError(
            f"{packed}: expected a dataset that `packer build` made, found one of {made.kind!r}, which has no recipe to run "
            "over raw items: name a dataset that went into it"
        ) from error


def _shuffled(listing: Listing, recipe: Recipe) -> list[Item]:
    """The items in the order in which they are tried."""
    items = [item for item in listing.items[: recipe.limit] if is_storable(item)]
    random.Random(_SEED).shuffle(items)  # noqa: S311 -- no secret
    if not items:
        raise UsageError("source: expected one item or more, found none")
    return items


def _is_same_source(manifest: Manifest, recipe: Recipe, listing: Listing) -> bool:
    """Whether the source is, file by file, what the dataset was built from."""
    made = manifest.generations[-1]
    plan, _ = make_plan(recipe, made.runtime, listing)
    return plan.fingerprint == made.fingerprint


def _packing_of(manifest: Manifest) -> Packing | None:
    """What the manifest says of the build's time; None where it was made in several sessions, or by another job since."""
    clock = manifest.wall_clock
    if clock.get("sessions") == 1 and clock.get("tasks_run"):
        return Packing(float(clock["seconds"]), recorded=True)
    return None
