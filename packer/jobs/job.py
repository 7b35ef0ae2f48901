"""What every job does in its output folder: enter it or resume, run units, write the shards, commit."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from packer.assembly.plan import AssemblyPlan
from packer.builds.plan import Task
from packer.jobs.engines.base import Engine, Event
from packer.jobs.engines.inline import InlineEngine
from packer.jobs.engines.processes import ProcessesEngine
from packer.jobs.lost_worker import describe_lost
from packer.jobs.progress import say
from packer.jobs.schedule import Schedule
from packer.jobs.shards import assemble_shards
from packer.jobs.units import Unit, UnitWork
from packer.recipe.options import BuildOptions
from packer.recipe.resources import count_workers, has_core_to_spare
from packer.workspace import Workspace, append_line, read_lines
from packer.workspace.commit import commit
from packer.workspace.durable import write_durably
from packer.workspace.folder import begun_on, committed, make_room
from packer.workspace.replacement import finish_replacement
from shardspec.entries import Generation, Shard
from shardspec.errors import BuildError, ResumeMismatchError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.manifest import Manifest
from shardspec.plurals import counted


@dataclass(frozen=True)
class JobResult:
    """What a job made.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    manifest : Manifest
    resumed : bool
        Whether some of the work had been done by an earlier call.
    found_finished : bool
        Whether all of it had, so that this one did nothing.
    """

    path: Path
    manifest: Manifest
    resumed: bool
    found_finished: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {self._contents()}>"

    def describe(self) -> str:
        """The dataset in one line, and whether there was anything left to do."""
        done = "finished already, nothing was done: " if self.found_finished else ""
        return f"{self.path}: {done}{self._contents()}"

    def _contents(self) -> str:
        shards, size = self.manifest.shards, sum(shard.bytes for shard in self.manifest.shards)
        cut = counted(len(shards), f"{self.manifest.format} shard")
        return f"{counted(self.manifest.samples, 'sample')} in {cut} ({size / 1e6:.1f} MB)"


class JobPlan(Protocol):
    """What a job will do, as a resume compares it."""

    @property
    def kind(self) -> str:
        """A key of `packer.jobs.worker.WORKS`."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides the bytes."""
        ...

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Of units with items."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, with ``kind`` and ``fingerprint``."""
        ...

    def made(self, manifest: Manifest) -> bool:
        """Whether a dataset is what this plan makes."""
        ...


class JobSession:
    """One call of a job. Its methods but `layout` and `workspace` are for the holder of the folder's lock.

    Parameters
    ----------
    out : Path
    preset : str
        What a worker's memory is reckoned by (`packer.recipe.resources.count_workers`).
    options : BuildOptions
    shown : bool
        Whether to show progress on standard error.
    """

    def __init__(self, out: Path, preset: str, options: BuildOptions, *, shown: bool) -> None:
        self.layout = Layout(out)
        self.workspace = Workspace(out / BUILD_FOLDER)
        self.shown = shown
        self._preset = preset
        self._options = options
        self._sessions = 1
        self._started_s = time.time()

    @property
    def resumed(self) -> bool:
        """Whether an earlier call began this job."""
        return self._sessions > 1

    def find_finished(self, plan: JobPlan) -> Manifest | None:
        """What this plan has made, where nothing else is under way: a look that needs no lock, so the folder may be read-only."""
        if self._options.overwrite:
            return None
        with suppress(OSError, BuildError):  # told by who enters the folder
            manifest = None if self.workspace.root.exists() else committed(self.layout)
            return manifest if manifest is not None and plan.made(manifest) else None
        return None

    def enter(
        self,
        plan: JobPlan,
        items: Iterable[str],
        describe: Callable[[Mapping[str, Any]], str],
        describe_made: Callable[[Manifest], str],
    ) -> Manifest | None:
        """Take up the folder: what this plan has made already is returned, what it has begun resumed, else it is begun.

        Parameters
        ----------
        items : iterable of str
            Lines of the plan's items file.
        describe : callable
            What differs from another plan of the same kind, given as JSON.
        describe_made : callable
            What differs from a finished dataset.

        Raises
        ------
        UsageError, ResumeMismatchError
            The folder holds something else.
        """
        space, overwrite = self.workspace, self._options.overwrite
        replaced = finish_replacement(space)
        manifest = committed(self.layout)
        begun = not replaced and begun_on(space, manifest)
        if manifest is not None and plan.made(manifest) and (replaced or not overwrite):
            if not begun:  # an unfinished replacement of this dataset stays for who began it
                space.remove()
            return manifest
        why = "" if manifest is None or overwrite else f"made by another plan: {describe_made(manifest)}"
        if begun:
            old = json.loads(space.plan.read_bytes())
            same = old["fingerprint"] == plan.fingerprint
            if same and (manifest is None or overwrite):
                space.sweep()
                self._sessions += sum(line.get("did") == "session" for line in read_lines(space.journal))
                self._write_plan(plan, items)  # once more: the same files may lie elsewhere by now
                return None
            if manifest is None and not overwrite:
                alike = old["kind"] == plan.kind
                difference = describe(old) if alike else f"it is a {old['kind']}, and this a {plan.kind}"
                raise ResumeMismatchError(
                    f"{self.layout.root}: the unfinished {old['kind']} here was planned otherwise ({difference}): "
                    "run it as it was planned to resume it, or discard it with --overwrite"
                )
            if same:
                why += "; the one of this plan that is to replace it is unfinished, and goes on with --overwrite"
        make_room(self.layout, space, manifest, overwrite, why)
        self._write_plan(plan, items)
        return None

    def _write_plan(self, plan: JobPlan, items: Iterable[str]) -> None:
        """What workers go by, the plan last; from here on the call is a session of the job."""
        write_durably(self.workspace.items, "".join(items).encode("ascii"))
        write_durably(self.workspace.plan, json.dumps(plan.to_json()).encode())
        append_line(self.workspace.journal, {"did": "session"})

    def run_units(
        self,
        work: Callable[[], UnitWork],
        tasks: Sequence[Task],
        units: list[Unit],
        on_event: Callable[[Event], None],
        *,
        shared_detector: bool = False,
        announced: str = "",
    ) -> None:
        """Run units to their end. A worker that is lost is told in a line.

        Parameters
        ----------
        work : callable
            What does them in this process (inline engine); worker processes make their own from the workspace.
        shared_detector : bool
            Whether one process detects for all workers.
        announced : str
            What is told before they are begun, with the number of workers behind it.
        """
        if not units:
            return
        engine: Engine
        if self._options.engine == "inline":
            engine, done_by = InlineEngine(work()), "in this process"
        else:
            workers = count_workers(self._options.workers, self._preset, len(units))
            timeout = self._options.item_timeout
            # Who waits for another process's faces has nothing else to do meanwhile.
            ahead = shared_detector or has_core_to_spare(min(workers, len(units)))
            engine = ProcessesEngine(
                self.workspace, workers, timeout, decodes_ahead=ahead, shared_detector=shared_detector
            )
            done_by = f"by {workers} worker processes" if workers > 1 else "by 1 worker process"

        def told(event: Event) -> None:
            if lost := describe_lost(event, self.workspace, tasks):
                self.say(lost)
            on_event(event)

        try:
            if announced:
                self.say(f"{announced} {done_by}")
            Schedule(engine, self.workspace, tasks, told).run(units)
        finally:
            engine.close()

    def say(self, line: str) -> None:
        """Print a line on standard error, where progress is shown."""
        if self.shown:
            say(line)

    def write_shards(self, work: Callable[[], UnitWork]) -> tuple[Shard, ...]:
        """Write every shard of the assembly plan that is not written yet, and delete parts that none needs any more."""
        return assemble_shards(
            self.workspace, lambda units, on_event: self.run_units(work, (), units, on_event), self.shown
        )

    def note_done(self, event: Event) -> None:
        """Write into the journal that a unit is done."""
        assert event.unit is not None
        append_line(self.workspace.journal, {"did": event.unit.do, "number": event.unit.number, **event.result})

    def done(self, *what: str) -> int:
        """Units of these kinds that the journal has, over all calls."""
        return sum(line["did"] in what for line in read_lines(self.workspace.journal))

    def commit(self, generations: Sequence[Generation], facts: Mapping[str, Any]) -> Manifest:
        """Put the manifest into place and remove the workspace.

        Parameters
        ----------
        facts : mapping
            Further keys of the manifest's ``wall_clock``.
        """
        assembly = AssemblyPlan.load(self.workspace)
        wall_clock = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started_s, 3),
            "sessions": self._sessions,
            **facts,
            "shards_written": self.done("shard"),
        }
        manifest = commit(self.workspace, assembly.format, assembly.source.schema, generations, wall_clock)
        self.workspace.remove()
        return manifest
