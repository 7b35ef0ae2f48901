"""Run a job: find it finished, start or resume it, run its tasks, write the shards, and commit the dataset."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packer.assembly.plan import ShardPlan
from packer.jobs.mirror import RemoteMirror, has_files
from packer.jobs.plan import JobPlan
from packer.jobs.progress import ProgressListener
from packer.jobs.result import JobResult
from packer.jobs.stages import Workers, assemble_shards, cut_into_shards, run_tasks
from packer.jobs.start import JobStart
from packer.jobs.upload import Upload
from packer.recipe.engines import ENGINES
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.card import CARD_KEPT, is_card_kept
from packer.workspace.durable import writing
from packer.workspace.folder import give_up_replacing, locked
from packer.workspace.lock import FolderLock
from packer.workspace.replacement import commit, make_manifest
from shardspec.entries import Shard
from shardspec.errors import TooManyRejectsError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.manifest import Manifest


def finish_upload(upload: Upload, out: Path, listener: ProgressListener) -> None:
    """Finish the commit of an update to a store, if it was interrupted, or discard the update. Delete its workspace.

    The workspace of a build that is to replace the dataset stays.

    Parameters
    ----------
    out : Path
        The folder to work in.
    """
    space = Workspace(out / BUILD_FOLDER, remote=upload.work)
    if upload.work is not None and has_files(upload.work):
        with locked(space, listener.on_message), RemoteMirror(space, listener.on_message):
            if upload.finish(space) or not (space.plan.exists() and space.replaced.exists()):
                upload.discard(space)
                space.remove()


class Job:
    """Runs one plan in one folder.

    Parameters
    ----------
    out : Path
        The dataset's folder.
    upload : Upload, optional
        If given, the dataset belongs in a store, and `out` is only the folder to work in.

    Attributes
    ----------
    noted : mapping or None
        What the merge has noted (`packer.assembly.plan.Merge`), once this call has finished the job.
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
        shared = ENGINES[options.engine].many_hosts
        remote = None if upload is None else upload.work
        self.workspace = Workspace(out / BUILD_FOLDER, shared=shared, remote=remote).of_plan(plan.record.fingerprint)
        self._mirror: RemoteMirror | None = None
        self._options = options
        self._listener = listener
        self._upload = upload
        self._place = out if upload is None else upload.url
        self.noted: Mapping[str, Any] | None = None
        self._lock: FolderLock | None = None
        self._started_s = time.time()
        self._start = JobStart(plan, self.layout, self.workspace, options.overwrite, listener.on_message, upload)
        self._workers = Workers(plan, self.workspace, options, listener.on_message, self._check_lock)

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
        made = self._start.find_finished()
        resumed = found_finished = True
        if made is None:
            for line in self.plan.settings.notes:
                self._listener.on_message(line)
            with locked(self.workspace, self._listener.on_message) as self._lock, self._mirroring():
                made = self._start.start_or_resume()
                if made is None:  # otherwise, the workspace may have been removed, with its lease
                    self._check_lock(at_once=True)
                    made, found_finished = self._make(), False
                    resumed = self._start.sessions > 1
            if self._upload is not None:
                with suppress(OSError):  # the user's files are in it
                    self.layout.root.rmdir()
        return JobResult(self._place, made, resumed, found_finished)

    @contextmanager
    def _mirroring(self) -> Iterator[None]:
        """Keep the copies of the workspace in its store, if it has one."""
        if self.workspace.remote is None:
            yield
        else:
            with RemoteMirror(self.workspace, self._listener.on_message) as self._mirror:
                yield

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
                    self._check_lock(at_once=True)
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
        wall_clock = {
            "finished": finished,
            "seconds": round(time.time() - self._started_s, 3),
            "sessions": self._start.sessions,
            "shards_written": self._done("shard"),
            "tasks_run": self._done("task", "join"),
            **assembly.wall_clock,
        }
        if "history" in wall_clock:
            *earlier, last = wall_clock["history"]
            wall_clock["history"] = [*earlier, {**last, "finished": last["finished"] or finished}]
        schema, columns, about = assembly.source.schema, assembly.columns, assembly.about
        generations = assembly.assign(shards)
        manifest = make_manifest(
            self.workspace, assembly.format, schema, generations, assembly.files, wall_clock, columns, about
        )
        self.noted = assembly.noted
        if self._upload is None:
            staged = [
                (assembly.published(n) / entry.name, entry) for n, one in enumerate(shards) for entry in one.files
            ]
            commit(self.workspace, manifest, staged)
            if is_card_kept(self.layout):
                self._listener.on_message(CARD_KEPT)
        else:
            self._upload.commit(manifest, self.workspace, self._listener, self._check_lock)
        assembly.source.close()
        self.workspace.remove()
        return manifest

    def _check_lock(self, *, at_once: bool = False) -> None:
        if self._lock is not None:
            self._lock.check(at_once=at_once)
        if self._mirror is not None:
            self._mirror.check(at_once=at_once)

    def _done(self, *what: str) -> int:
        """Count the units of some kinds that all calls have finished."""
        return sum(line["did"] in what for line in self.workspace.read_journal())
