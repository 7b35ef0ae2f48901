"""One job, whatever it makes: find it finished, begin or resume it; run its tasks; cut; write the shards; commit."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packer.assembly.plan import ShardPlan
from packer.jobs.child import EarlyWorkers
from packer.jobs.early import EarlyShards, clear_early
from packer.jobs.engines.base import Engine, Event
from packer.jobs.plan import JobPlan, Made, TakeIn, Unit
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.result import JobResult
from packer.jobs.schedule import ItemTally, Schedule, describe_lost
from packer.jobs.shards import assemble_shards, cut_into_shards
from packer.recipe.engines import ENGINES, Team
from packer.recipe.options import BuildOptions
from packer.recipe.recipe import WORKER_BYTES
from packer.recipe.resources import count_workers, has_core_to_spare
from packer.sources.item import item_name
from packer.workspace import Workspace, append_line
from packer.workspace.checkpoints import Checkpoints, drop_unflushed, flush_all
from packer.workspace.commit import commit
from packer.workspace.durable import write_durably, write_if_changed, writing
from packer.workspace.folder import (
    begun_on,
    committed,
    discard,
    give_up_replacing,
    locked,
    make_room,
    make_room_beside,
)
from packer.workspace.fresh import machine_run, wait_for
from packer.workspace.lines import LineFile
from packer.workspace.lock import FolderLock
from packer.workspace.machines import MADE_ON, here
from packer.workspace.paths import FLUSHED, WORKSPACE_LAYOUT
from packer.workspace.replacement import finish_replacement
from packer.workspace.sharing.array import close_to_agents, open_to_agents
from packer.workspace.spool import Again
from shardspec.entries import Generation, Shard
from shardspec.errors import BuildError, DatasetError, ResumeMismatchError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.manifest import Manifest
from shardspec.registry import resolve
from shardspec.wording import counted

_WITH_MODELS = "faces"
"""The preset whose workers hold models, whose memory the next stage can use."""


class Job:
    """One plan, carried out in one folder.

    Parameters
    ----------
    plan : JobPlan
    out : Path
        The dataset's folder.
    options : BuildOptions
    listener : ProgressListener
    early : EarlyWorkers, optional
        Workers that were started before the plan was made.
    """

    def __init__(
        self,
        plan: JobPlan,
        out: Path,
        options: BuildOptions,
        listener: ProgressListener,
        early: EarlyWorkers | None = None,
    ) -> None:
        self.plan = plan
        self.layout = Layout(out)
        self.workspace = Workspace(out / BUILD_FOLDER).of_plan(plan.fingerprint)
        self._options = options
        self._listener = listener
        self._early = early
        self._lock: FolderLock | None = None
        self._sessions = 1
        self._lost_hosts: set[str] = set()
        self._started_s = time.time()
        self._engine: Engine | None = None
        self._team_size = 0

    def run(self) -> JobResult:
        """Do the job, resume it, or find that it is done.

        Raises
        ------
        UsageError, ResumeMismatchError
            If the folder holds anything other than this plan's unfinished or finished job.
        BuildLockedError
            If another process is at work in the folder.
        BuildError
            If the job cannot continue. Running it again resumes.
        """
        made = self._find_finished()
        if made is None:
            for line in self.plan.notes:
                self._listener.on_message(line)
            with locked(self.workspace, self._listener.on_message) as self._lock:
                made = self._enter_alone()
                if made is None:
                    return JobResult(self.layout.root, self._make(), resumed=self._sessions > 1)
        return JobResult(self.layout.root, made, resumed=True, found_finished=True)

    def open_to_agents(self, check: Callable[[], None], submit: Callable[[], Mapping[str, Any]]) -> JobResult | None:
        """Write the plan, or take up the one that was begun, and leave the work to agents.

        Parameters
        ----------
        check : callable
            Called once the folder is held, before anything in it changes.
        submit : callable
            Called once agents can begin, while the folder is held; returns what is to be noted about the agents.

        Returns
        -------
        JobResult or None
            The dataset, if there is nothing left to do.

        Raises
        ------
        UsageError, ResumeMismatchError, BuildLockedError, BuildError
            See `run`.
        """
        space, options = self.workspace, self._options
        made = self._find_finished()
        if made is None:
            for line in self.plan.notes:
                self._listener.on_message(line)
            with locked(space, self._listener.on_message) as self._lock:
                check()
                made = self._enter_alone()
                if made is None:
                    names = ("item_timeout", "on_error", "shared_detector")
                    terms = {"options": {name: getattr(options, name) for name in names}}
                    with writing(space.out):
                        flush_all(space)
                        done = {path.name for path in space.part_files()}
                        open_to_agents(space, terms, len(self.plan.tasks), lambda n: space.part(n).name in done)
                    noted = submit()
                    write_durably(space.array, json.dumps({**terms, **noted}).encode())
                    return None
        return JobResult(self.layout.root, made, resumed=True, found_finished=True)

    def _enter_alone(self) -> Manifest | None:
        """Enter the folder once no agent is at work in it."""
        reopen, goes_on = close_to_agents(self.workspace, self._listener.on_message), False
        try:
            made = None
            if self.plan.rewritten is not None:
                self._enter_to_rewrite(self.plan.rewritten)
            elif self.plan.base is not None:
                self._enter_beside(self.plan.base)
            else:
                made = self._enter()
            goes_on = made is None
        finally:
            if not goes_on:
                reopen()
        return made

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the folder while the caller does the tasks itself, and then calls `finish`.

        Such a job cannot be resumed: there is no plan, so that any call may clear away what a killed one left. If an
        exception ends the block, nothing is left, and the dataset that was to be replaced stays.

        Raises
        ------
        UsageError, ResumeMismatchError
            If the folder holds anything other than a dataset to overwrite, or the unfinished build of another plan.
        BuildLockedError
            If another process is at work in the folder.
        BuildError
            If the folder cannot be written.
        """
        space, overwrite, owner = self.workspace, self._options.overwrite, os.getpid()
        with locked(space, self._listener.on_message) as self._lock:
            with writing(space.out):
                replaced = finish_replacement(space)
                manifest = committed(self.layout)
                if not replaced and begun_on(space, manifest) and not overwrite:
                    self._refuse_other_plan(json.loads(space.plan.read_bytes()))
                why = "" if manifest is None else counted(manifest.samples, "sample")
                reopen = close_to_agents(space, self._listener.on_message)
                try:
                    make_room(self.layout, space, manifest, overwrite, why, self.plan.remedy)
                except BaseException:
                    reopen()
                    raise
            try:
                yield
            except BaseException:
                if os.getpid() == owner:  # not in a fork of the process
                    give_up_replacing(space)
                raise

    def finish(self) -> JobResult:
        """Cut and commit what the caller's tasks have left."""
        return JobResult(self.layout.root, self._make(), resumed=False)

    def _find_finished(self) -> Manifest | None:
        """What this plan has made, if nothing else is under way. Takes no lock, so the folder may be read-only."""
        if self._options.overwrite or self.plan.base is not None or self.plan.rewritten is not None:
            return None
        with suppress(OSError, BuildError):  # reported when the folder is entered
            manifest = None if self.workspace.root.exists() else committed(self.layout)
            return manifest if manifest is not None and self.plan.made(manifest) else None
        return None

    def _enter(self) -> Manifest | None:
        """Enter the folder: return the dataset if this plan has made it, resume the plan's build, or begin it."""
        plan, space, overwrite = self.plan, self.workspace, self._options.overwrite
        replaced = finish_replacement(space)
        manifest = committed(self.layout)
        begun = not replaced and begun_on(space, manifest)
        if manifest is not None and plan.made(manifest) and (replaced or not overwrite):
            if not begun:  # an unfinished replacement of this dataset stays for the call that began it
                space.remove()
            return manifest
        why = (
            ""
            if manifest is None or overwrite
            else f"made by another plan: {plan.describe_made(self.layout, manifest)}"
        )
        if begun:
            old = json.loads(space.plan.read_bytes())
            same = old["fingerprint"] == plan.fingerprint
            if same and (manifest is None or overwrite) and self._continues(old):
                self._resume()
                return None
            goes_on = space.replaced.exists() if overwrite else manifest is None
            if goes_on and self._take_over(old):
                if manifest is not None:
                    write_durably(space.replaced, manifest.dumps())
                self._write_plan()
                return None
            if manifest is None and not overwrite and not same:
                self._refuse_other_plan(old)
            if same:
                why += "; an unfinished build of this plan is to replace it: add --overwrite to resume it"
        make_room(self.layout, space, manifest, overwrite, why, plan.remedy)
        self._write_plan()
        return None

    def _enter_beside(self, base: Manifest) -> None:
        """Enter the folder of a dataset: resume the plan's addition to it, or begin it."""
        space = self.workspace
        self._check_standing(base)
        if space.plan.exists() and not space.replaced.exists():
            old = json.loads(space.plan.read_bytes())
            if begun_on(space, base) and self._continues(old):
                self._resume()
                return
            self._take_over(old)
        make_room_beside(space, base)
        self._write_plan()

    def _enter_to_rewrite(self, standing: Manifest) -> None:
        """Enter the folder of a dataset: resume the plan that writes it anew, or begin it."""
        space = self.workspace
        self._check_standing(standing)
        if space.plan.exists():
            old = json.loads(space.plan.read_bytes())
            if old["kind"] != self.plan.kind:
                raise UsageError(
                    f"{self.layout.root}: expected a dataset at rest, found an unfinished {old['kind']} in its folder: "
                    f"run its command again, or delete {BUILD_FOLDER}"
                )
            if begun_on(space, standing) and self._continues(old):
                self._resume()
                return
        discard(space, aside=True)
        write_durably(space.replaced, standing.dumps())
        self._write_plan()

    def _check_standing(self, expected: Manifest) -> None:
        """Check that the dataset in the folder is still the one that the plan was made for."""
        if self.workspace.successor.exists() or committed(self.layout) != expected:
            raise BuildError(
                f"{self.layout.root}: expected the dataset that the work was planned for, found that it has changed "
                "since: run the same command again"
            )

    def _continues(self, old: Mapping[str, Any]) -> bool:
        """Whether an unfinished plan is this one, and its folder can be gone on with."""
        if old["fingerprint"] != self.plan.fingerprint:
            return False
        if not _is_laid_out_alike(old):
            self._listener.on_message(
                f"packer: another version of packer has begun the {self.plan.kind} in this folder, and this one cannot "
                "go on with it: it begins anew"
            )
            self._drop_kept()
            return False
        return True

    def _take_over(self, old: Mapping[str, Any]) -> bool:
        """Clear the workspace of another plan, but keep what this one can use; return whether there may be any."""
        space = self.workspace
        if not _is_laid_out_alike(old):
            self._drop_kept()
            return False
        drop_unflushed(space.of_plan(old["fingerprint"]))
        line = self.plan.take_over(space, old) if old["kind"] == self.plan.kind else None
        if line is None:
            return False
        self._count_sessions()
        discard(space, aside=space.replaced.exists() or space.base.exists(), kept=True)
        self._listener.on_message(line)
        return True

    def _drop_kept(self) -> None:
        """Remove the parts of earlier plans, which another version has made."""
        if self.workspace.kept.exists():
            self.workspace.take_away(self.workspace.kept)

    def _count_sessions(self) -> None:
        self._sessions += sum(line.get("did") == "session" for line in self.workspace.read_journal())

    def _resume(self) -> None:
        self.workspace.sweep()
        drop_unflushed(self.workspace)
        self._count_sessions()
        self._write_plan()  # again: the same files may have been moved since
        self.plan.take_up(self.workspace)

    def _refuse_other_plan(self, old: Mapping[str, Any]) -> None:
        kind = old["kind"]
        if kind == self.plan.kind:
            difference = self.plan.describe(self.workspace, old)
        else:
            difference = f"it is a {kind}, and this a {self.plan.kind}"
        raise ResumeMismatchError(
            f"{self.layout.root}: the unfinished {kind} in this folder was started with other settings ({difference}): "
            "repeat the original command to resume it, or add --overwrite to discard it"
        )

    def _write_plan(self) -> None:
        """Write what workers read, the plan last; from here on this call counts as a session of the job."""
        self.workspace.create_results(len(self.plan.tasks))
        lines = self.plan.take_item_lines()
        write_if_changed(self.workspace.items, Again(lambda: (line.encode("ascii") for line in lines)))
        made_on = {**here(), "layout": WORKSPACE_LAYOUT}
        write_if_changed(self.workspace.plan, [json.dumps({**self.plan.to_json(), MADE_ON: made_on}).encode()])
        append_line(self.workspace.journal, {"did": "session", "machine_run": machine_run()})

    def _make(self) -> Manifest:
        """Do what is left of the job."""
        written: Collection[int] = ()
        try:
            if self.workspace.assembly.exists():
                assembly = ShardPlan.load(self.workspace)
            else:
                with self.plan.taking_in(self.workspace) as take_in:
                    early = self._run_tasks(take_in)
                    assembly, written = self._cut(early), early.written
            clear_early(self.workspace, except_of=assembly.key)
            shards = assemble_shards(assembly, self._run_units, self._listener, written)
        finally:
            self._close_engine()
        return self._commit(assembly, shards)

    def _run_tasks(self, take_in: TakeIn) -> EarlyShards:
        """Run every unfinished task, and write the shards that are whole meanwhile."""
        plan = self.plan
        finished = plan.finished(self.workspace) if plan.tasks else ()
        missing = [number for number in range(len(plan.tasks)) if number not in finished]
        early = EarlyShards(self.workspace, len(plan.tasks), len(missing))
        if not plan.tasks:
            return early
        items = sum(task.stop - task.start for task in plan.tasks)
        done = items - sum(plan.tasks[number].stop - plan.tasks[number].start for number in missing)
        tally, promised = ItemTally(plan.tasks), set[int]()
        with (
            LineFile(self.workspace.journal) as journal,
            Checkpoints(self.workspace) as checkpoints,
            Stage(self._listener, plan.stage, items, plan.items_are, done) as stage,
        ):
            early.offer(take_in(finished))

            def on_event(event: Event) -> None:
                reasons = [ended.reason for ended in event.ends if ended.rejected]
                gain, frames = tally.take(event), event.frames if event.kind == "tick" else None
                stage.advance(*gain, size=event.result.get("bytes", 0), reasons=reasons, frames=frames)
                failed = next((ended for ended in event.ends if ended.rejected), None)
                if failed is not None and self._options.on_error == "fail":
                    assert event.unit is not None
                    task = plan.tasks[event.unit.number]
                    raise failed_item(item_name(self.workspace.items, task, failed.item), failed.reason)
                made = []
                if event.kind == "done" and event.unit is not None:
                    early.note(event)
                    if event.unit.do != "early":
                        journal.append(done_line(event))
                        note_part(event.unit, FLUSHED in event.result)
                    if event.unit.do in ("task", "join"):
                        made.append(event.unit.number)
                journal.look()
                early.offer(take_in(made))

            def note_part(unit: Unit, flushed: bool) -> None:
                alone = unit.do == "item"
                made = self.workspace.item_part(unit.number, unit.item) if alone else self.workspace.part(unit.number)
                if flushed and alone:  # maybe on another machine
                    wait_for(made)
                elif flushed:
                    promised.add(unit.number)
                if not alone and (flushed or made.exists()):
                    checkpoints.add(unit.number, flushed=flushed)

            units = [Unit("task", number) for number in missing]
            try:
                self._run_units(
                    units,
                    on_event,
                    shares_detector=plan.shares_detector,
                    needs_gpus=plan.needs_gpus,
                    announced=plan.announce(done),
                    urgent=early.units,
                )
            except (BuildError, OSError):  # maybe for want of room, which a quota does not show before
                early.close()
                raise
            # A look at each part, when it is made, would keep the coordinator of many workers waiting.
            for number in sorted(promised - self.workspace.finished_tasks()) if promised else ():
                wait_for(self.workspace.part(number))
        return early

    def _run_units(
        self,
        units: list[Unit],
        on_event: Callable[[Event], None],
        *,
        shares_detector: bool = False,
        needs_gpus: bool = False,
        announced: str = "",
        urgent: deque[Unit] | None = None,
    ) -> None:
        """Run units until all are done, and those that become urgent meanwhile. A lost worker is reported in one line.

        The workers of one stage go on with the next, unless they hold models, or more of them would have work.
        """
        if not units:
            return
        engine = self._engine_for(len(units), shares_detector, needs_gpus)

        def report(event: Event) -> None:
            self._check_lock()
            if lost := describe_lost(event, self.workspace, self.plan.tasks):
                self._listener.on_message(lost)
            on_event(event)

        if announced:
            self._listener.on_message(f"{announced} {engine.describe(len(units))}")
        limit_s = self._options.item_timeout if ENGINES[self._options.engine].limits_items else None
        try:
            Schedule(engine, self.workspace, self.plan.tasks, report, limit_s).run(units, urgent=urgent)
        except BaseException:
            self._close_engine()
            raise
        if self.plan.preset == _WITH_MODELS:
            self._close_engine()

    def _engine_for(self, units: int, shares_detector: bool, needs_gpus: bool) -> Engine:
        """The engine for some units: the one that is open, if it will do."""
        workers = self._count_workers(units)
        if self._engine is None or self._team_size < workers:
            self._close_engine()
            self._engine, self._team_size = self._open_engine(units, workers, shares_detector, needs_gpus), workers
        return self._engine

    def _count_workers(self, units: int) -> int:
        """How many workers there are to be; for an engine that finds its own hosts, how many at most."""
        entry, requested = ENGINES[self._options.engine], self._options.workers
        if entry.many_hosts:
            return sys.maxsize if str(requested) == "auto" else int(requested)
        return count_workers(requested, self.plan.preset, units) if entry.many_workers else 1

    def _close_engine(self) -> None:
        """End the workers."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _open_engine(self, units: int, workers: int, shares_detector: bool, needs_gpus: bool) -> Engine:
        options, entry = self._options, ENGINES[self._options.engine]
        # A worker that waits for the detecting process has nothing else to do meanwhile.
        ahead = shares_detector or (not entry.many_hosts and has_core_to_spare(min(workers, units)))
        team = Team(
            workers,
            options.item_timeout,
            ahead,
            shares_detector,
            per_node=options.workers_per_node,
            worker_bytes=WORKER_BYTES[self.plan.preset],
            gpus=needs_gpus,
            address=options.ray_address,
            lost=self._lost_hosts,
            early=self._early,
        )
        engine: Engine = resolve("engine", options.engine, ENGINES)(
            self.workspace, lambda: self.plan.open_work(self.workspace), team
        )
        return engine

    def _cut(self, early: EarlyShards) -> ShardPlan:
        """Write reports and index, and cut the rows into shards. The assembly plan is written last."""
        before = None if self.plan.base is None else self._index_files(self.plan.base)
        assembly = cut_into_shards(self.plan, self.workspace, before, early.adopt)
        for number in early.adopted:
            append_line(self.workspace.journal, {"did": "shard", "number": number})
        return assembly

    def _index_files(self, base: Manifest) -> dict[str, Path]:
        """The checked index files of a dataset, by field."""
        found = {}
        for name in (field.name for field in base.shard_schema if field.is_fixed and not field.shape):
            entry = self.layout.find_index(base, name)
            if entry is None:
                raise DatasetError(f"{self.layout.root}: expected an index of the field {name!r}, found none")
            self.layout.check_digest(entry)
            found[name] = self.layout.file(entry)
        return found

    def _commit(self, assembly: ShardPlan, shards: Sequence[Shard]) -> Manifest:
        """Put the manifest into place and remove the workspace."""
        self._check_lock(at_once=True)
        wall_clock = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started_s, 3),
            "sessions": self._sessions,
            **self.plan.facts(self._done("task", "join")),
            "shards_written": self._done("shard"),
        }
        made = _share_out(self.plan.generations(self.workspace), assembly.cuts, shards)
        generations = [*self.plan.kept_generations(self.workspace), *made]
        history = self.plan.history(self.workspace, generations[-1], str(wall_clock["finished"]))
        wall_clock |= {} if history is None else {"history": history}
        columns = self.plan.columns(self.workspace)
        manifest = commit(self.workspace, assembly.format, assembly.source.schema, generations, wall_clock, columns)
        assembly.source.close()
        self.workspace.remove()
        return manifest

    def _check_lock(self, *, at_once: bool = False) -> None:
        """Check that no other process has taken the folder over."""
        if self._lock is not None:
            self._lock.check(at_once=at_once)

    def _done(self, *what: str) -> int:
        """The number of units of these kinds in the journal, over all calls."""
        return sum(line["did"] in what for line in self.workspace.read_journal())


def _is_laid_out_alike(plan: Mapping[str, Any]) -> bool:
    """Whether the results of a plan lie where this version of packer looks for them."""
    return bool(plan.get(MADE_ON, {}).get("layout") == WORKSPACE_LAYOUT)


def done_line(event: Event) -> dict[str, Any]:
    """The line of the journal that a unit is done, and when."""
    assert event.unit is not None
    unit, at_s = event.unit, round(time.time(), 2)
    return {"did": unit.do, "number": unit.number, "at_s": at_s, **event.result}


def failed_item(item: str, why: str) -> BuildError:
    """The error for an item that yielded no sample, if that is to end the job."""
    return BuildError(f"item {item!r} gave no sample, and --on-error is fail: {why}")


def _share_out(made: Sequence[Made], cuts: Sequence[int], shards: Sequence[Shard]) -> list[Generation]:
    """Give each generation its new shards; no shard holds rows of two generations."""
    shared, first, stop = [], 0, 0
    for generation, rows in made:
        stop += rows
        last = first
        while last < len(shards) and cuts[last + 1] <= stop:
            last += 1
        shared.append(replace(generation, shards=(*generation.shards, *shards[first:last])))
        first = last
    return shared
