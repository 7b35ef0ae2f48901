"""``packer.status``: progress and rejects of a build, and who is at work, read from its working folder."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packer.assembly.inputs import PiecePlaces, open_piece
from packer.assembly.plan import ShardPlan
from packer.builds.work import summarise
from packer.jobs.mirror import is_renewed, peek
from packer.jobs.plan import Tasks
from packer.jobs.progress import describe_seconds
from packer.jobs.result import Result
from packer.jobs.upload import read_mark
from packer.workspace import Workspace
from packer.workspace.durable import read_record
from packer.workspace.holder import Holder, is_running
from packer.workspace.machines import PIECES
from packer.workspace.paths import RECORD_NAME
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import host
from shardspec.entries import total
from shardspec.errors import BuildError, NotADatasetError, UsageError
from shardspec.layout import BUILD_FOLDER, MANIFEST_NAME, REJECTS_NAME, Layout, given_path, is_url
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.stores import Store, names_store
from shardspec.wording import counted, cut, list_some, program

RATE_S = 300.0
"""The rate is measured over this many seconds before the end of the last finished task."""

NOTHING_PACKED = "nothing was packed"
"""Stage of a build in which every item was rejected."""

CHECKING = "checking"
"""Stage of a job that copies packed datasets."""

_EXPECTED = "a build or a packed dataset"
_REASON_LENGTH = 120
_SHOWN_REASONS = 12


@dataclass(frozen=True, repr=False)
class StatusReport(Result):
    """Progress of a build.

    Attributes
    ----------
    path : Path or str
        The dataset's folder, or the URL.
    stage : {"finished", "listing", "packing", "checking", "writing shards", "nothing was packed"}
        ``"checking"``: a job that copies packed datasets compares their shards with the manifests, one shard a task.
    items, done : int
        Items in the plan, and finished items.
    samples, rejected : int
        Samples and rejects from the finished items.
    reasons : dict of str to int
        Number of rejected items for each step and reason, the most frequent first.
    running : bool or None
        Whether a process is working on the build; None if this host cannot tell.
    held_by : str
        The process that holds the folder or held it last; empty if unknown.
    rate, left_s : float or None
        Recent items per second, and seconds to the end of packing at that rate; None if no process is at work, and in
        a folder of pieces, which does not show who is.
    tasks, tasks_done, shards, shards_done : int
        `shards` is 0 until the rows are cut into shards.
    sessions : int
        Number of times the build was started or resumed.
    bytes : int
        Size of a finished dataset.
    pieces : dict of str to sequence of int
        In a folder of pieces, the number of finished tasks and of all tasks of each share, such as ``"2/8"``.
    """

    path: Path | str
    stage: str
    items: int = 0
    done: int = 0
    samples: int = 0
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    running: bool | None = False
    held_by: str = ""
    rate: float | None = None
    left_s: float | None = None
    tasks: int = 0
    tasks_done: int = 0
    shards: int = 0
    shards_done: int = 0
    sessions: int = 0
    bytes: int = 0
    pieces: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the report as text: progress, who is at work, and reasons of rejects."""
        if self.stage == "finished":
            size = f"{counted(self.shards, 'shard')} ({self.bytes / 1e6:.1f} MB)"
            return f"{self.path}: finished: {counted(self.samples, 'sample')} in {size}, {self.rejected} rejected"
        if self.stage == NOTHING_PACKED and isinstance(self.path, str):
            return f"{self.path}: {self.stage}: {self.path}/{REJECTS_NAME} says why"
        if self.stage == NOTHING_PACKED:
            return f"{self.path}: {self.stage}: {program()} rejects {shlex.quote(str(self.path))} says why"
        lines = [self._describe_progress(), *self._describe_work()]
        lines += [f"{n} × {cut(why, _REASON_LENGTH)}" for why, n in list(self.reasons.items())[:_SHOWN_REASONS]]
        if len(self.reasons) > _SHOWN_REASONS:
            lines.append(f"and {counted(len(self.reasons) - _SHOWN_REASONS, 'other reason')}")
        return "\n".join(lines)

    def _describe_progress(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:.1f} items/s"
        left = "" if self.left_s is None else f", {describe_seconds(self.left_s)} left"
        shards = f", {self.shards_done} of {counted(self.shards, 'shard')}" if self.shards else ""
        done = (
            f"{self.done} of {counted(self.items, 'item')}, {counted(self.samples, 'sample')}, {self.rejected} rejected"
        )
        if self.stage == CHECKING:
            done = f"{self.tasks_done} of {counted(self.tasks, 'shard')}"
        return f"{self.path}: {self.stage}: {done}{shards}{rate}{left}"

    def _describe_work(self) -> list[str]:
        """Describe the process at work; if there is none, say how to continue."""
        if self.pieces:
            return self._describe_pieces()
        if self.running:
            return [f"at work: {self.held_by}"]
        by = f" (last: {self.held_by})" if self.held_by else ""
        if self.running is None:
            return [f"host {host()} cannot tell whether a process is at work{by}"]
        return [f"no process is at work: run the same command again to continue{by}"]

    def _describe_pieces(self) -> list[str]:
        left = [f"{share} ({done} of {counted(of, 'task')})" for share, (done, of) in self.pieces.items() if done < of]
        if not left:
            return [f"all shares are packed: {program()} merge {shlex.quote(str(self.path))} OUT makes the dataset"]
        return [f"unfinished shares in this folder: {list_some(left)}"]

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON."""
        return {**vars(self), "path": str(self.path), "reasons": dict(self.reasons)}


def status(out: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> StatusReport:
    """Report the progress of a build, from any host that sees its folder or store. Writes nothing and takes no lock.

    On another host than that of a build in a store, the call waits for up to 30 s for a sign of life.

    Parameters
    ----------
    out : path or str
        Folder or URL of the dataset, finished or with an unfinished build, or the URL that is the ``work`` of a build.
    storage_options : mapping, optional
        Credentials, region and endpoint; by default from the environment (`shardspec.stores.Store`).

    Returns
    -------
    StatusReport

    Raises
    ------
    UsageError
        If the place holds neither a build nor a dataset.
    DatasetError
        If the dataset's manifest cannot be read.
    StoreError
        If a store fails for longer than its retries last.
    """
    if names_store(out):
        return _status_of_url(str(out), storage_options)
    layout = Layout(given_path("out", out))
    space = Workspace(layout.root / BUILD_FOLDER)
    if not space.root.is_dir():
        try:
            manifest = layout.load()
        except NotADatasetError as error:
            raise UsageError(place=layout.root, expected=_EXPECTED, found="neither") from error
        return _finished(layout.root, manifest)
    return read_status(space)


def _finished(place: Path | str, manifest: Manifest) -> StatusReport:
    counts, size = total(manifest.generations), sum(shard.bytes for shard in manifest.shards)
    return StatusReport(
        place,
        "finished",
        items=counts.items,
        done=counts.items,
        samples=manifest.samples,
        rejected=counts.rejected_items,
        shards=len(manifest.shards),
        shards_done=len(manifest.shards),
        bytes=size,
    )


def _status_of_url(url: str, options: Mapping[str, Any] | None) -> StatusReport:
    """Report about a dataset in a store, or about the build whose objects are there or at the place that it names."""
    store = Store(url, options)
    mark = read_mark(store)
    if mark and not is_url(str(mark.get("work"))):
        raise UsageError(
            place=store.url,
            expected="a build whose files are in a store",
            found=f"one in {mark.get('work')} on host {mark.get('host')}",
            hint=f"run {program()} status there",
        )
    work = Store(str(mark["work"]), options) if mark else store
    with closing(TemporaryFiles()) as scratch:
        space = peek(work, scratch.path / BUILD_FOLDER)
        if space is not None:
            report = replace(read_status(space), path=store.url)
            holder = Holder.read(space.holder)
            if report.running is None and holder is not None:
                report = replace(report, running=is_renewed(work, holder))
            return report if report.running else replace(report, rate=None, left_s=None)
    try:
        manifest = Manifest.loads(store.read(MANIFEST_NAME, MANIFEST_BYTES_MAX), store.place(MANIFEST_NAME))
    except FileNotFoundError as error:
        raise UsageError(place=store.url, expected=_EXPECTED, found="neither") from error
    return _finished(store.url, manifest)


def read_status(space: Workspace) -> StatusReport:
    """Report the progress of the build in a workspace."""
    holder = Holder.read(space.holder)
    running = False if holder is None or holder.ended else is_running(holder.process)
    more: dict[str, Any] = {"running": running, "held_by": "" if holder is None else holder.describe()}
    if space.reasons.exists():
        return StatusReport(space.out, NOTHING_PACKED, **more)
    try:
        document = read_record(space.plan)
    except OSError:
        return StatusReport(space.out, "listing", **more)
    space = space.of_plan(str(document.get("fingerprint", "")))
    if PIECES in document:
        more["running"] = running = None  # shares hold no lock
    tasks = Tasks.from_json(document.get("tasks", []))
    copied = document.get("rows", {}).get("shards")  # of packed datasets, instead of items
    plan = ShardPlan.load(space) if space.assembly.exists() else None
    shards = 0 if plan is None else len(plan.sizes)
    journal = list(space.read_journal())
    lines = {line["number"]: line for line in journal if line.get("did") in ("task", "join")}
    numbers = set(range(len(tasks))) if shards else space.finished_tasks()
    # The journal lacks tasks whose process was killed just after them, and those that a merge takes from pieces.
    done = [lines[number] if number in lines else _summarise(space, number) for number in sorted(numbers)]
    reasons: Counter[str] = Counter()
    for line in done:
        reasons.update(line.get("rejected", {}))
    samples, rejected = sum(line.get("rows", 0) for line in done), reasons.total()
    sizes = {number: tasks[number].stop - tasks[number].start for number in numbers if number < len(tasks)}
    items, finished = sum(task.stop - task.start for task in tasks), sum(sizes.values())
    if plan is not None and (copied is not None or len(plan.generations) == 1):
        counts = total(one.generation for one in plan.generations)
        samples, rejected = counts.samples, counts.rejected_items
        items, finished = (items, finished) if copied is None else (counts.items, counts.items)
    rate = _rate([(line["at_s"], sizes.get(line["number"], 0)) for line in done if "at_s" in line])
    rate = None if running is False or PIECES in document else rate
    shares = int(document[PIECES]["shares"]) if PIECES in document else 0
    more["pieces"] = {
        f"{share + 1}/{shares}": (sum(n % shares == share for n in sizes), len(range(share, len(tasks), shares)))
        for share in range(shares)
    }
    return StatusReport(
        space.out,
        "writing shards" if shards else "packing" if copied is None else CHECKING,
        items,
        finished,
        samples,
        rejected,
        dict(reasons.most_common()),
        rate=rate,
        left_s=(items - finished) / rate if rate and items > finished else None,
        tasks=len(tasks if copied is None else copied),
        tasks_done=len(sizes) if copied is None else sum(1 for _ in space.scans.glob("scan-*.npy")),
        shards=shards,
        shards_done=0 if plan is None else sum(1 for _ in plan.staging.glob(f"shard-*[0-9]/{RECORD_NAME}")),
        sessions=sum(line.get("did") == "session" for line in journal),
        **more,
    )


def _summarise(space: Workspace, number: int) -> dict[str, Any]:
    """Count samples and rejects of a finished task from its part; nothing if the part is elsewhere, gone or damaged."""
    try:
        return summarise(open_piece(space, PiecePlaces(), number).items)
    except (KeyError, OSError, BuildError):
        return {}


def _rate(done: Sequence[tuple[float, int]]) -> float | None:
    """Return the items per second over the last `RATE_S`, given the end and the items of each task."""
    last_s = max((at_s for at_s, _ in done), default=0.0)
    late = sorted(one for one in done if one[0] > last_s - RATE_S)
    if len(late) < 2 or late[-1][0] <= late[0][0]:
        return None
    return sum(items for _, items in late[1:]) / (late[-1][0] - late[0][0])
