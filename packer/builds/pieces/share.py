"""Pack one share of a build's tasks into a folder of pieces. Other processes pack the other shares.

The folder holds the plan and the parts of finished tasks, as the folder of an unfinished build does. Shares need no
lock after the plan is written: a part is published once, and two processes that run the same task make the same bytes.
"""

import json
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from packer.assembly.inputs import PiecePlaces, open_piece
from packer.builds.job import BuildJob, BuildRequest
from packer.builds.pieces.folder import PieceFolder
from packer.builds.planning.plan import ItemLines
from packer.builds.provenance import describe_runtime
from packer.builds.work import summarise
from packer.jobs.plan import ResultReader, describe_changes
from packer.jobs.progress import ProgressListener
from packer.jobs.result import Result
from packer.jobs.stages import Workers, run_tasks
from packer.jobs.start import JobStart
from packer.workspace import Workspace
from packer.workspace.durable import fsync_folder, writing
from packer.workspace.folder import committed, locked, refuse_files
from packer.workspace.holder import Holder
from packer.workspace.machines import PIECES
from packer.workspace.shared_files import map_files, refresh_listing
from shardspec.errors import BuildLockedError, ResumeMismatchError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.wording import counted, program, shorten

_LOOK_S = 0.5
"""Pause before looking again for the plan that another process is making."""

_SHARE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})\Z")
_SHARES_MAX = 100_000


class Share(NamedTuple):
    """Every `of`-th task of a plan, beginning with task `number` - 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: Any) -> "Share":
        """Parse ``K/N``.

        Raises
        ------
        UsageError
            If the text has another form, K is not between 1 and N, or N is more than 100,000.
        """
        match = _SHARE.match(text) if isinstance(text, str) else None
        found = None if match is None else cls(int(match[1]), int(match[2]))
        if found is None or not 1 <= found.number <= found.of <= _SHARES_MAX:
            raise UsageError(
                option="share",
                expected=f"K/N, where K counts the N shares from 1, such as 2/8, and N is at most {_SHARES_MAX:,}",
                found=shorten(text),
            )
        return found

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def of_tasks(self, tasks: int) -> Sequence[int]:
        """Return the numbers of the share's tasks, given the number of all tasks."""
        return range(self.number - 1, tasks, self.of)


@dataclass(frozen=True, repr=False)
class ShareResult(Result):
    """A packed share of a build.

    Attributes
    ----------
    path : Path
        The folder of pieces.
    share : str
        The share, such as ``"2/8"``.
    tasks, items, samples, rejected : int
        Contents of the share, including what earlier calls have packed.
    tasks_done, tasks_of_all : int
        Number of tasks of all shares that are packed in this folder, and number of tasks of the plan.
    notes : tuple of str
        Notes for the user about the source, one line each. Only the call that made the plan has them.
    """

    path: Path
    share: str
    tasks: int
    items: int
    samples: int
    rejected: int
    tasks_done: int
    tasks_of_all: int
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the share, the progress of all shares in the folder, and the notes."""
        own = f"{counted(self.samples, 'sample')} of {counted(self.items, 'item')}, {self.rejected} rejected"
        packed = f"{self.tasks_done} of {counted(self.tasks_of_all, 'task')} of the build are packed in this folder"
        then = f"pack the other shares, then run {program()} merge FOLDER... OUT"
        if self.tasks_done == self.tasks_of_all:
            then = f"{program()} merge {shlex.quote(str(self.path))} OUT makes the dataset"
        return "\n".join((f"{self.path}: share {self.share} is packed: {own}", f"{packed}: {then}", *self.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON."""
        return {**vars(self), "path": str(self.path), "notes": list(self.notes)}


class ShareTerms(NamedTuple):
    """Arguments of a call that packs a share.

    Attributes
    ----------
    source : str or None
        The source as given; None if it is not a path, so that each process must list it.
    request : BuildRequest
    make_plan : callable
        Lists the source. Returns the build, and notes for the user.
    """

    share: Share
    source: str | None
    request: BuildRequest
    make_plan: Callable[[], tuple[BuildJob, tuple[str, ...]]]

    def to_json(self, job: BuildJob) -> dict[str, Any]:
        """Return what a merge needs in addition to the plan."""
        about = {"about": job.about.to_json(), "from_packed": job.from_packed}
        return {"shares": self.share.of, "source": self.source, "options": self.options_of_merge(), **about}

    def options_of_merge(self) -> dict[str, Any]:
        """Return the options of the build that the plan does not have, as JSON."""
        options = self.request.options
        chosen = {"on_error": options.on_error, "max_rejects": options.max_rejects, **options.about}
        found: dict[str, Any] = json.loads(json.dumps(chosen))
        return found

    def check_options(self, found: PieceFolder) -> None:
        """Check that a merge would use the options of this call.

        Raises
        ------
        ResumeMismatchError
            If they differ from those of the call that made the plan.
        """
        if changes := describe_changes("option", found.terms["options"], self.options_of_merge()):
            raise _mismatch("; ".join(changes), found.path)


def pack_share(terms: ShareTerms, listener: ProgressListener) -> ShareResult:
    """Pack the unfinished tasks of a share.

    Raises
    ------
    UsageError
        If the folder holds a dataset, a build that is not packed in shares, or other files.
    ResumeMismatchError
        If the folder holds pieces of another plan.
    BuildError
        If the build cannot continue.
    """
    share, options, out = terms.share, terms.request.options, terms.request.out
    refuse_files(out)
    job, notes = _find_plan(terms, out, listener.on_message) or _check_plan(terms, out)
    job.settings = replace(job.settings, target="pieces")
    space = Workspace(out / BUILD_FOLDER).of_plan(job.plan.fingerprint).of_owner(Holder.here().name)
    tasks, chosen = job.tasks, share.of_tasks(len(job.tasks))
    with writing(out):
        space.create_results(len(tasks))
        space.logs.mkdir(parents=True, exist_ok=True)
        workers = Workers(job, space, options, listener.on_message, lambda: None)
        try:
            finished = ResultReader(space.finished_tasks(), _no_rows)
            run_tasks(job, space, workers, listener, finished, rejects=options.on_error != "fail", chosen=chosen)
        finally:
            workers.close()
        for folder in space.part_folders():
            fsync_folder(folder)
    # Not from the journal, which lacks tasks whose process was killed just after them.
    done = [summarise(part.items) for part in map_files(space.root, partial(open_piece, space, PiecePlaces()), chosen)]
    return ShareResult(
        out,
        str(share),
        len(chosen),
        sum(tasks[number].stop - tasks[number].start for number in chosen),
        sum(one["rows"] for one in done),
        sum(sum(one.get("rejected", {}).values()) for one in done),
        len(space.finished_tasks()),
        len(tasks),
        notes,
    )


def _find_plan(terms: ShareTerms, out: Path, say: Callable[[str], None]) -> tuple[BuildJob, tuple[str, ...]] | None:
    """Plan the build unless the folder has a plan. If another process is planning it, wait for its plan and use that.

    Returns None if the plan was there before, or is not what this call would plan.
    """
    space, waited = Workspace(out / BUILD_FOLDER), False
    while not space.plan.exists():
        try:
            with locked(space, say):
                if not space.plan.exists():
                    return _start(terms, out, say)
        except BuildLockedError:
            if not waited:
                say(f"another process is planning the build in {out}: waiting for its plan")
            waited = True
            time.sleep(_LOOK_S)
            refresh_listing(space.root)
    return _adopt(terms, out) if waited else None


def _start(terms: ShareTerms, out: Path, say: Callable[[str], None]) -> tuple[BuildJob, tuple[str, ...]]:
    """Plan the build in a new or empty folder."""
    _refuse_dataset(out)
    job, notes = terms.make_plan()
    space = Workspace(out / BUILD_FOLDER).of_plan(job.plan.fingerprint)
    JobStart(job, Layout(out), space, False, say, None).start_pieces({PIECES: terms.to_json(job)})
    return job, notes


def _adopt(terms: ShareTerms, out: Path) -> tuple[BuildJob, tuple[str, ...]] | None:
    """Return the build that another process has planned just now for the same source. None if it differs."""
    found = PieceFolder.open(out)
    if found is None or terms.source is None or found.terms["source"] != terms.source:
        return None
    plan, known = found.plan, describe_runtime(terms.request.recipe)
    if plan.recipe != terms.request.recipe.to_json() or {name: plan.runtime.get(name) for name in known} != known:
        return None
    terms.check_options(found)
    about, from_packed = found.about, found.terms["from_packed"]
    job = BuildJob(
        plan,
        ItemLines(),
        terms.request.options,
        terms.request.recipe,
        about=about,
        from_packed=from_packed,
        functions=terms.request.functions,
    )
    return job, ()


def _check_plan(terms: ShareTerms, out: Path) -> tuple[BuildJob, tuple[str, ...]]:
    """List the source again, and compare the plan with that in the folder."""
    _refuse_dataset(out)
    found = PieceFolder.open(out)
    if found is None:
        raise UsageError(
            place=out,
            expected="a new or empty folder, or pieces of this build",
            found="an unfinished build that is not packed in shares",
            hint="choose another folder",
        )
    terms.check_options(found)
    job, _ = terms.make_plan()
    if job.plan.fingerprint != found.plan.fingerprint:
        raise _mismatch(job.record.describe_unfinished(found.space, found.document), out)
    return job, ()


def _mismatch(difference: str, out: Path) -> ResumeMismatchError:
    return ResumeMismatchError(
        (
            f"the pieces in this folder belong to another plan ({difference}): repeat the original command, or pack "
            "into another folder"
        ),
        place=out,
    )


def _refuse_dataset(out: Path) -> None:
    if committed(Layout(out)) is not None:
        raise UsageError(
            place=out,
            expected="a new or empty folder, or pieces of this build",
            found="a packed dataset",
            hint="choose another folder",
        )


def _no_rows() -> NoReturn:
    raise AssertionError("a share makes no shards")
