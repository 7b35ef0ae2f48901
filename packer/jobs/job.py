"""Run a job: find it finished, start or resume it, run its tasks, write the shards, and commit the dataset."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packer.assembly.plan import ShardPlan
from packer.jobs.hosts.base import run_agents
from packer.jobs.plan import JobPlan, NewGeneration
from packer.jobs.progress import ProgressListener
from packer.jobs.result import JobResult
from packer.jobs.stages import Workers, assemble_shards, cut_into_shards, run_tasks
from packer.jobs.start import JobStart
from packer.jobs.upload import Upload
from packer.recipe.engines import ENGINES
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.agents import open_to_agents
from packer.workspace.card import CARD_KEPT, is_card_kept
from packer.workspace.durable import write_record, writing
from packer.workspace.folder import give_up_replacing, locked
from packer.workspace.lock import FolderLock
from packer.workspace.replacement import commit, make_manifest
from shardspec.entries import Generation, Shard
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.manifest import Manifest

_ON_THIS_HOST: Mapping[str, Any] = {
    "engine": "processes",
    "workers": "auto",
    "workers_per_node": None,
    "ray_address": None,
}
"""Options for writing the shards after agents on other hosts have done the tasks."""


class Job:
    """Runs one plan in one folder.

    Parameters
    ----------
    out : Path
        The dataset's folder.
    upload : Upload, optional
        If given, the dataset belongs into a store, and `out` is only the folder to work in.
    """

    def __init__(
        self,
        plan: JobPlan,
        out: Path,
        options: BuildOptions,
        listener: ProgressListener,
        upload: Upload | None = None,
    ) -> None:
        self.plan = plan
        self.layout = Layout(out)
        self.workspace = Workspace(out / BUILD_FOLDER).of_plan(plan.fingerprint)
        self._options = options
        self._listener = listener
        self._upload = upload
        self._place = out if upload is None else upload.url
        self._lock: FolderLock | None = None
        self._started_s = time.time()
        self._start = JobStart(plan, self.layout, self.workspace, options.overwrite, listener.on_message, upload)
        here = replace(options, **_ON_THIS_HOST) if self._uses_agents else options
        self._workers = Workers(plan, self.workspace, here, listener.on_message, self._check_lock)

    @property
    def _uses_agents(self) -> bool:
        return ENGINES[self._options.engine].many_hosts

    def run(self) -> JobResult:
        """Run or resume the job, unless it is finished.

        Raises
        ------
        UsageError, ResumeMismatchError
            If the folder holds anything other than this plan's unfinished or finished job.
        BuildLockedError
            If another process is at work in the folder.
        BuildError
            If the job cannot continue. Running it again resumes the job.
        """
        if self._uses_agents and (found := self._run_agents()) is not None:
            return found
        made = self._start.find_finished()
        resumed = found_finished = True
        if made is None:
            for line in () if self._uses_agents else self.plan.settings.notes:
                self._listener.on_message(line)
            with locked(self.workspace, self._listener.on_message) as self._lock:
                made = self._start.start_or_resume()
                if made is None:
                    made, found_finished = self._make(), False
                    first = 2 if self._uses_agents else 1  # opening the folder to agents counts as a session
                    resumed = self._start.sessions > first
            if self._upload is not None:
                with suppress(OSError):  # the user's files are in it
                    self.layout.root.rmdir()
        return JobResult(self._place, made, resumed, found_finished)

    def _run_agents(self) -> JobResult | None:
        """Have agents on the hosts of a cluster run the tasks; return the dataset if it is already finished."""
        kind = self.plan.settings.kind
        if kind != "build":
            raise UsageError(
                f"{self._options.engine} runs builds only, found {kind}", option="engine", hint="leave the option out"
            )
        found = self.open_to_agents(lambda: None, dict)
        if found is None:
            run_agents(self.plan, self.workspace, self._options, self._listener)
        return found

    def open_to_agents(self, check: Callable[[], None], submit: Callable[[], Mapping[str, Any]]) -> JobResult | None:
        """Write the plan, or resume it if it is unfinished, and let agents work on it.

        Parameters
        ----------
        check : callable
            Called while the folder is locked, before anything in it changes.
        submit : callable
            Called while the folder is locked, when agents can start. Returns entries to record about the agents.

        Returns
        -------
        JobResult or None
            The dataset, if it is already finished.

        Raises
        ------
        UsageError, ResumeMismatchError, BuildLockedError, BuildError
            See `run`.
        """
        space, options = self.workspace, self._options
        made = self._start.find_finished()
        if made is None:
            for line in self.plan.settings.notes:
                self._listener.on_message(line)
            with locked(space, self._listener.on_message) as self._lock:
                check()
                made = self._start.start_or_resume()
                if made is None:
                    names = ("item_timeout", "on_error", "shared_detector")
                    terms = {"options": {name: getattr(options, name) for name in names}}
                    with writing(space.out):
                        done = {path.name for path in space.part_files()}
                        open_to_agents(space, terms, len(self.plan.tasks), lambda n: space.part(n).name in done)
                    noted = submit()
                    write_record(space.array, {**terms, **noted})
                    return None
        return JobResult(self._place, made, resumed=True, found_finished=True)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Lock the folder while the caller does the tasks itself, and then calls `finish`.

        Such a job has no plan and cannot be resumed. The next call removes the files of a killed one. If an exception
        ends the block, all its files are removed, and the dataset to be replaced stays.

        Raises
        ------
        UsageError, ResumeMismatchError
            If the folder holds anything other than a dataset to overwrite, or the unfinished build of another plan.
        BuildLockedError
            If another process is at work in the folder.
        BuildError
            If the folder cannot be written.
        """
        space, owner = self.workspace, os.getpid()
        with locked(space, self._listener.on_message) as self._lock:
            with writing(space.out):
                self._start.start_without_plan()
            try:
                yield
            except BaseException:
                if os.getpid() == owner:  # not in a fork of the process
                    give_up_replacing(space)
                raise

    def finish(self) -> JobResult:
        """Write and commit the dataset from the caller's tasks."""
        return JobResult(self.layout.root, self._make(), resumed=False)

    def _make(self) -> Manifest:
        """Run the tasks, write the shards, and return the manifest."""
        try:
            if self.workspace.assembly.exists():
                assembly = ShardPlan.load(self.workspace)
            else:
                with self.plan.collect(self.workspace) as results:
                    rejects = self._options.on_error != "fail"
                    run_tasks(self.plan, self.workspace, self._workers, self._listener, results, rejects=rejects)
                    assembly = cut_into_shards(results.assemble, self.workspace)
            shards = assemble_shards(assembly, self._workers, self._listener, self._upload)
            self._workers.close()
            return self._commit(assembly, shards)
        except TooManyRejectsError:
            if self._upload is not None:
                self._upload.abandon()
            raise
        finally:
            self._workers.close()
            if self._upload is not None:
                self._upload.close()

    def _commit(self, assembly: ShardPlan, shards: Sequence[Shard]) -> Manifest:
        self._check_lock(at_once=True)
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        contents = self.plan.contents(self.workspace, finished, self._done("task", "join"))
        wall_clock = {
            "finished": finished,
            "seconds": round(time.time() - self._started_s, 3),
            "sessions": self._start.sessions,
            "shards_written": self._done("shard"),
            **contents.wall_clock,
        }
        generations = _assign_shards(contents.generations, assembly.cuts, shards)
        schema = assembly.source.schema
        columns, about = contents.columns, contents.about
        manifest = make_manifest(
            self.workspace, assembly.format, schema, generations, assembly.files, wall_clock, columns, about
        )
        if is_card_kept(Layout(self.workspace.final)):
            self._listener.on_message(CARD_KEPT)
        if self._upload is None:
            commit(self.workspace, manifest)
        else:
            manifest = self._upload.commit(manifest, self.workspace, self._listener, self._check_lock)
        assembly.source.close()
        self.workspace.remove()
        return manifest

    def _check_lock(self, *, at_once: bool = False) -> None:
        if self._lock is not None:
            self._lock.check(at_once=at_once)

    def _done(self, *what: str) -> int:
        """Count the units of some kinds that all calls have finished."""
        return sum(line["did"] in what for line in self.workspace.read_journal())


def _assign_shards(made: Sequence[NewGeneration], cuts: Sequence[int], shards: Sequence[Shard]) -> list[Generation]:
    """Assign the new shards to generations. No shard has rows of two generations."""
    shared, first, stop = [], 0, 0
    for generation, rows in made:
        stop += rows
        last = first
        while last < len(shards) and cuts[last + 1] <= stop:
            last += 1
        shared.append(replace(generation, shards=(*generation.shards, *shards[first:last])))
        first = last
    return shared
