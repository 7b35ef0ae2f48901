"""``packer.status``: progress, agents and rejects of a build, read from its working folder."""

import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packer.cluster.slurm import SlurmJob, queued
from packer.jobs.plan import Tasks
from packer.jobs.progress import describe_seconds
from packer.jobs.result import Result
from packer.workspace import Workspace
from packer.workspace.agents import describe_closed, read_terms
from packer.workspace.durable import read_record
from packer.workspace.leases import Agent, is_running, read_agents, record_of
from packer.workspace.shared_files import host
from shardspec.entries import total
from shardspec.errors import NotADatasetError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout, given_path
from shardspec.wording import counted, cut, program

RATE_S = 300.0
"""The rate is measured over this many seconds before the end of the last finished task."""

NOTHING_PACKED = "nothing was packed"
"""Stage of a build in which every item was rejected."""

_REASON_LENGTH = 120
_SHOWN_REASONS = 12
_SHOWN_ENDED = 5


@dataclass(frozen=True)
class AgentStatus:
    """State of an agent, as seen from this host.

    Attributes
    ----------
    agent : Agent
    renewed_s : float
        Seconds since the agent renewed its lease, by the clocks of this host and of the file system.
    state : {"at work", "silent", "gone", "ended"}
        A silent agent has not renewed its lease in time. A gone agent ran on this machine and its process has died.
    """

    agent: Agent
    renewed_s: float
    state: str

    def describe(self) -> str:
        """Describe the agent and its work in one line."""
        agent = self.agent
        state = {
            "at work": ", ".join(agent.doing) or "waiting for others",
            "silent": f"silent for {describe_seconds(self.renewed_s)}, so other agents may take its work",
            "gone": "gone, so other agents may take its work",
            "ended": f"ended: {agent.ended}",
        }[self.state]
        return f"{agent.describe()}: {counted(agent.tasks, 'task')} done; {state}"


@dataclass(frozen=True, repr=False)
class StatusReport(Result):
    """Progress of a build.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    stage : {"finished", "listing", "packing", "writing shards", "nothing was packed"}
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
        Recent items per second, and seconds to the end of packing at that rate; None if no process is at work.
    tasks, tasks_done, shards, shards_done : int
        `shards` is 0 until the rows are cut into shards.
    sessions : int
        Number of times the build was started or resumed.
    agents : tuple of AgentStatus
    submitted : bool
        Whether agents may work on the build.
    closed : str
        The process that has taken the build over from the agents; empty if none has.
    jobs : tuple of SlurmJob
        Submitted jobs that are still in Slurm's queue.
    bytes : int
        Size of a finished dataset.
    """

    path: Path
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
    agents: tuple[AgentStatus, ...] = ()
    submitted: bool = False
    closed: str = ""
    jobs: tuple[SlurmJob, ...] = ()
    bytes: int = 0

    def describe(self) -> str:
        """Return the report as text: progress, agents, jobs and reasons of rejects."""
        if self.stage == "finished":
            size = f"{counted(self.shards, 'shard')} ({self.bytes / 1e6:.1f} MB)"
            return f"{self.path}: finished: {counted(self.samples, 'sample')} in {size}, {self.rejected} rejected"
        if self.stage == NOTHING_PACKED:
            return f"{self.path}: {self.stage}: {program()} rejects {shlex.quote(str(self.path))} says why"
        lines = [self._describe_progress(), *self._describe_work()]
        ended = [one for one in self.agents if one.state == "ended"]
        lines += [f"agent {one.agent.name}, {one.describe()}" for one in self.agents if one.state != "ended"]
        lines += [f"agent {one.agent.name}, {one.describe()}" for one in ended[-_SHOWN_ENDED:]]
        if len(ended) > _SHOWN_ENDED:
            lines.append(f"and {counted(len(ended) - _SHOWN_ENDED, 'earlier agent')} that ended")
        lines += [self.closed] if self.closed else []
        lines += [f"Slurm job {job.number}: {job.state.lower()}, {job.where}" for job in self.jobs]
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
        return f"{self.path}: {self.stage}: {done}{shards}{rate}{left}"

    def _describe_work(self) -> list[str]:
        """If no process is known to be at work, say so, and how to continue."""
        if self.running or self.jobs:
            return []
        by = f" (last: {self.held_by})" if self.held_by else ""
        if self.running is None:
            return [f"host {host()} cannot tell whether a process is at work{by}"]
        how = "run the same command again to continue"
        if self.submitted:
            path = shlex.quote(str(self.path))
            how = f"{program()} work {path} continues, and {program()} build with the same options finishes it"
        return [f"no process is at work: {how}{by}"]

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON."""
        agents = [{**asdict(one.agent), "renewed_s": one.renewed_s, "state": one.state} for one in self.agents]
        jobs = [job.to_json() for job in self.jobs]
        return {**vars(self), "path": str(self.path), "reasons": dict(self.reasons), "agents": agents, "jobs": jobs}


def status(out: str | os.PathLike[str]) -> StatusReport:
    """Report the progress of a build, from any host that sees its folder. Writes nothing and takes no lock.

    Parameters
    ----------
    out : path
        Folder of the dataset, finished or with an unfinished build.

    Returns
    -------
    StatusReport

    Raises
    ------
    UsageError
        If the folder holds neither a build nor a dataset.
    DatasetError
        If the dataset's manifest cannot be read.
    """
    layout = Layout(given_path("out", out))
    space = Workspace(layout.root / BUILD_FOLDER)
    if not space.root.is_dir():
        try:
            manifest = layout.load()
        except NotADatasetError as error:
            raise UsageError(place=layout.root, expected="a build or a packed dataset", found="neither") from error
        counts, size = total(manifest.generations), sum(shard.bytes for shard in manifest.shards)
        return StatusReport(
            layout.root,
            "finished",
            items=counts.items,
            done=counts.items,
            samples=manifest.samples,
            rejected=counts.rejected_items,
            shards=len(manifest.shards),
            shards_done=len(manifest.shards),
            bytes=size,
        )
    return read_status(space)


def read_status(space: Workspace) -> StatusReport:
    """Report the progress of the build in a workspace."""
    agents, terms = tuple(see_agents(space)), read_terms(space) or {}
    closed = terms.get("closed")
    shown = "" if not closed else describe_closed(closed)
    jobs = tuple(queued(list((terms.get("jobs") or {}).values())))
    holder, running = Agent.read(space.holder), is_at_work(space)
    held_by = holder.describe() if holder else ""
    more: dict[str, Any] = {"agents": agents, "submitted": bool(terms) and not closed, "closed": shown, "jobs": jobs}
    more |= {"running": running, "held_by": held_by}
    if space.reasons.exists():
        return StatusReport(space.out, NOTHING_PACKED, **more)
    try:
        document = read_record(space.plan)
    except OSError:
        return StatusReport(space.out, "listing", **more)
    space = space.of_plan(str(document.get("fingerprint", "")))
    tasks, shards = Tasks.from_json(document.get("tasks", [])), _count_shards(space)
    journal = list(space.read_journal())
    lines = {line["number"]: line for line in journal if line.get("did") in ("task", "join")}
    numbers = set(range(len(tasks))) if shards else set(_tasks_with_parts(space))
    done = [lines[number] for number in sorted(numbers & lines.keys())]
    reasons: Counter[str] = Counter()
    for line in done:
        reasons.update(line.get("rejected", {}))
    sizes = {number: tasks[number].stop - tasks[number].start for number in numbers if number < len(tasks)}
    items, finished = sum(task.stop - task.start for task in tasks), sum(sizes.values())
    rate = _rate([(line["at_s"], sizes.get(line["number"], 0)) for line in done if "at_s" in line])
    rate = None if running is False else rate
    return StatusReport(
        space.out,
        "writing shards" if shards else "packing",
        items,
        finished,
        sum(line.get("rows", 0) for line in done),
        reasons.total(),
        dict(reasons.most_common()),
        rate=rate,
        left_s=(items - finished) / rate if rate and items > finished else None,
        tasks=len(tasks),
        tasks_done=len(sizes),
        shards=shards,
        shards_done=len({line["number"] for line in journal if line.get("did") == "shard"}) if shards else 0,
        sessions=sum(line.get("did") == "session" for line in journal),
        **more,
    )


def is_at_work(space: Workspace) -> bool | None:
    """Return whether a process is at work in a workspace; None if this host cannot tell."""
    if any(one.state == "at work" for one in see_agents(space)):
        return True
    holder = Agent.read(space.holder)
    return False if holder is None else is_running(holder.process)


def see_agents(space: Workspace) -> list[AgentStatus]:
    """Return the state of all agents of a workspace, in the order in which they started."""
    found = []
    for agent in sorted(read_agents(space.agents).values(), key=lambda agent: agent.began_s):
        renewed_s = 0.0
        with suppress(OSError):
            renewed_s = max(0.0, time.time() - record_of(space.agents, agent.name).stat().st_mtime)
        late = renewed_s > agent.lease_s
        state = (
            "ended"
            if agent.ended
            else "gone"
            if is_running(agent.process) is False
            else "silent"
            if late
            else "at work"
        )
        found.append(AgentStatus(agent, round(renewed_s, 1), state))
    return found


def _tasks_with_parts(space: Workspace) -> list[int]:
    names = (path.name.removeprefix("part-") for path in space.part_files())
    return [int(name) for name in names if name.isdecimal()]


def _count_shards(space: Workspace) -> int:
    try:
        return len(read_record(space.assembly)["sizes"])
    except OSError:
        return 0


def _rate(done: Sequence[tuple[float, int]]) -> float | None:
    """Return the items per second over the last `RATE_S`, given the end and the items of each task."""
    late = sorted(one for one in done if one[0] > max(at_s for at_s, _ in done) - RATE_S)
    if len(late) < 2 or late[-1][0] <= late[0][0]:
        return None
    return sum(items for _, items in late[1:]) / (late[-1][0] - late[0][0])
