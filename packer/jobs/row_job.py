"""A job over packed datasets: their shards are checked, their rows cut anew and written, encoded as they are."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from packer.assembly.index import write_index
from packer.assembly.plan import AssemblyPlan, Piece, plan_assembly
from packer.jobs.engines.base import Event
from packer.jobs.job import JobResult, JobSession
from packer.jobs.progress import Progress
from packer.jobs.units import Unit
from packer.packed.plan import Arrangement, RowPlan
from packer.packed.work import RowWork
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.folder import locked
from shardspec.entries import Generation, Shard
from shardspec.layout import INDEX_FOLDER


def run_row_job(arrangement: Arrangement, out: Path, options: BuildOptions, *, shown: bool) -> JobResult:
    """Do a job, or go on with it, or find that it is done.

    Raises
    ------
    UsageError, ResumeMismatchError
        The folder holds something else.
    BuildError
        The job cannot go on. Running it again resumes.
    """
    plan = arrangement.plan
    session = JobSession(out, "rows", options, shown=shown)
    space = session.workspace
    finished = session.find_finished(plan)
    if finished is not None:
        return JobResult(out, finished, resumed=True, found_finished=True)
    with locked(space):
        finished = session.enter(plan, (), plan.describe_difference, plan.describe_made)
        if finished is not None:
            return JobResult(out, finished, resumed=True, found_finished=True)

        def work() -> RowWork:
            return RowWork(space, plan.rows)

        if session.resumed:
            _take_up(space, plan)
        if not space.assembly.exists():
            _scan(session, plan, work)
            _plan_shards(space, arrangement)
        shards = session.write_shards(work)
        cuts = AssemblyPlan.load(space).cuts
        generations = _share_out(arrangement.generations, arrangement.pieces, cuts, shards)
        manifest = session.commit(generations, {"plan": plan.fingerprint, "job": plan.told, "built": plan.built()})
    return JobResult(out, manifest, session.resumed)


def _take_up(space: Workspace, plan: RowPlan) -> None:
    """After an interruption, long ago maybe: the inputs may lie elsewhere, and are checked again before they are read."""
    shutil.rmtree(space.scans, ignore_errors=True)
    if space.assembly.exists():
        replace(AssemblyPlan.load(space), rows=plan.rows).save()


def _scan(session: JobSession, plan: RowPlan, work: Callable[[], RowWork]) -> None:
    """Compare every shard that is read with its digest, and find the lengths of its values."""
    space = session.workspace
    count = sum(len(one.manifest.shards) for one in plan.inputs)
    units = [Unit("scan", number) for number in range(count) if not space.scan(number).exists()]
    with Progress("checking", count, "shards", shown=session.shown, done=count - len(units)) as progress:

        def on_event(event: Event) -> None:
            progress.advance(int(event.kind == "done"))

        session.run_units(work, (), units, on_event)


def _plan_shards(space: Workspace, arrangement: Arrangement) -> None:
    """Write reports and index, and cut the shards. The assembly plan is written last."""
    plan = arrangement.plan
    arrangement.write_reports(space.final)
    assembly = plan_assembly(space, plan.rows, plan.options["format"], arrangement.pieces, arrangement.order)
    write_index(assembly.source, arrangement.order, space.final / INDEX_FOLDER)
    assembly.source.close()
    assembly.save()


def _share_out(
    generations: Sequence[Generation], pieces: Sequence[Piece], cuts: Sequence[int], shards: Sequence[Shard]
) -> list[Generation]:
    """Each generation with its shards: no shard holds rows of two."""
    shared, first, stop = [], 0, 0
    for generation, piece in zip(generations, pieces, strict=True):
        stop += piece.rows
        last = first
        while last < len(shards) and cuts[last + 1] <= stop:
            last += 1
        shared.append(replace(generation, shards=tuple(shards[first:last])))
        first = last
    return shared
