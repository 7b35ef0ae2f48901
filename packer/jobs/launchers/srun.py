"""Workers on the nodes of a Slurm allocation: ``srun`` starts a step on each node, whose process starts the workers."""

import hashlib
import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer.jobs.child import Answers, Child
from packer.jobs.launchers.base import Link, Node, Take
from packer.jobs.process import inherited_environment
from packer.recipe.engines import Team
from packer.workspace import Workspace
from shardspec.errors import BuildError, UsageError

_COMMAND_LIMIT_S = 60.0
"""Limit on waiting for one of Slurm's commands, which wait for its controller for a while."""

_PROBE_LIMIT_S = 60.0
_REPORT_S = 10.0
"""How long the process on the node is given to report the end of a worker."""

_CLOSE_S, _TERM_S, _CANCEL_S = 3.0, 3.0, 10.0
"""How long each way to end a step is given until the next one."""

_STEP = ("--nodes=1", "--ntasks=1", "--unbuffered", "--mpi=none", "--export=ALL", "--mem=0", "--kill-on-bad-exit=0")
"""Of every step. A share of the memory, which a step would be given by default, would make one wait for another."""

_SHARED = ("--overlap",)
"""Workers may run on all cores of the allocation, as on one host, and what Slurm still takes for running never keeps a
new step from starting."""

_REQUESTS = re.compile(
    r"SLURM_(NTASKS\w*|NPROCS|CPUS_PER_\w+|TRES_PER_TASK|MEM_PER_\w+|GPUS\w*|GRES\w*|CPU_BIND\w*|DISTRIBUTION|EXACT|"
    r"EXCLUSIVE|OVERLAP|WHOLE|THREADS_PER_CORE|NNODES|NODELIST|JOB_NODELIST|JOB_NUM_NODES|TASKS_PER_NODE|STEP\w*|"
    r"EXPORT_ENV|JOB_NAME|PROCID|LOCALID|LABELIO|STDINMODE|STDOUTMODE|STDERRMODE|UMASK|WORKING_DIR)"
)
"""Variables that Slurm sets in an allocation and that ``srun`` reads as requests for each of its steps."""


class SrunLauncher:
    """Starts workers by ``srun`` inside the allocation that this process runs in (`Launcher`).

    Each node has one step for all its workers, since Slurm starts some dozens of steps a second in the whole cluster; a
    worker that needs a GPU has a step of its own, since Slurm gives GPUs to steps.

    Steps are named after the workspace. Those that an earlier process left behind are cancelled first: whoever holds
    the workspace's lock may do so.
    """

    again = "run the same command again, in an allocation whose nodes are well"

    def __init__(self, workspace: Workspace, team: Team) -> None:
        self._logs = workspace.logs
        self._job = os.environ["SLURM_JOB_ID"]
        self._name = f"packer-{hashlib.sha256(os.fsencode(workspace.root.resolve())).hexdigest()[:12]}"
        self._share: tuple[str, ...] = _SHARED
        self._alone = team.gpus
        self._hosts: dict[str, _Host] = {}
        self._cancels: list[subprocess.Popen[bytes]] = []
        self.nodes: Sequence[Node] = _nodes(team)
        if team.gpus:
            cores = min(max(1, node.cores // node.places) for node in self.nodes)
            self._share = ("--exact", f"--cpus-per-task={cores}", "--gpus-per-task=1")
        self._cancel_left()

    def start(self, node: Node, command: Sequence[str], log: str, variables: Mapping[str, str], take: Take) -> Link:
        """See `Launcher`."""
        name = log if self._alone else node.name
        host = self._hosts.get(name)
        if host is None or host.is_over:
            if host is not None:
                host.end(wait=False)
            srun = ["srun", *_STEP, *self._share, f"--nodelist={node.name}", f"--job-name={self._name}"]
            host = self._hosts[name] = _Host(self._logs, self._logs / f"{name}.srun.log", srun, self)
        return _Worker(host, command, log, variables, take, alone=self._alone)

    def probe(self, node: Node) -> "_Question":
        """Have the node run a program that does nothing."""
        return _Question(["srun", *_STEP, *_SHARED, f"--nodelist={node.name}", "true"])

    def cancel(self, step: str | None) -> None:
        """Cancel a step. One whose number is not known, since it has not begun, is left to `close`."""
        self._cancels = [process for process in self._cancels if process.poll() is None]
        if step is not None:
            self._cancels.append(_start("scancel", "--quiet", "--signal=KILL", f"{self._job}.{step}"))

    def close(self) -> None:
        """See `Launcher`."""
        for host in self._hosts.values():
            host.ask_to_end()
        for host in self._hosts.values():
            host.end()
        self._hosts.clear()
        for process in self._cancels:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_COMMAND_LIMIT_S)
            _kill(process)
        self._cancels.clear()
        with suppress(BuildError):
            self._cancel_left()

    def _cancel_left(self) -> None:
        """Cancel the steps of our name."""
        listed = _ask("squeue", "--noheader", "--steps", f"--jobs={self._job}", "--format=%i %j")
        left = [step for step, _, name in (line.partition(" ") for line in listed.split("\n")) if name == self._name]
        if left:
            _ask("scancel", "--quiet", "--signal=KILL", *left)


class _Host(Child):
    """A step of the allocation, with the process that starts workers there, and the ``srun`` that speaks for it."""

    def __init__(self, logs: Path, log: Path, prefix: Sequence[str], launcher: SrunLauncher) -> None:
        self._launcher = launcher
        self._step: str | None = None
        self._numbers = itertools.count()
        self._takes: dict[int, Take] = {}
        self._is_ending = self._was_ended = False
        self._how = ""
        command = ["packer.jobs.launchers.host", str(logs)]
        super().__init__(command, log, _NOBODY, prefix=prefix, environment=_environment())

    @property
    def is_over(self) -> bool:
        """Whether no worker can be started there any more."""
        return self._is_ending or self.has_ended()

    def add(self, take: Take) -> int:
        """The number of a new worker, whose messages are taken from now on."""
        number = next(self._numbers)
        self._takes[number] = take
        return number

    def take(self, message: dict[str, Any], answers: Answers) -> None:
        """See `Child`. The last message to each worker is that it has died."""
        if message["event"] == "host":
            self._step = message.get("slurm_step_id")
        elif message["event"] == "died":
            self._is_ending = True
            for take in list(self._takes.values()):
                take(message)
        else:
            number = message.pop("worker")
            self._takes[number](message)
            if message["event"] == "ended":
                self._takes.pop(number)({"event": "died"})

    def ask_to_end(self) -> None:
        """Close its standard input: it then ends its workers and itself."""
        assert self.process.stdin is not None
        self._is_ending = True
        with suppress(OSError):
            self.process.stdin.close()

    def end(self, *, wait: bool = True) -> None:
        """End all workers there: the gentle way first; the step is cancelled by its number if that is not enough."""
        if self._was_ended:
            return
        self._was_ended = True
        self.ask_to_end()
        if wait and not self._ended_within(_CLOSE_S):
            self.process.terminate()  # srun then ends the step, too
        gone = self._ended_within(_TERM_S if wait else 0.0)
        if not (gone and self.process.returncode == 0):
            self._launcher.cancel(self._step)
            if wait:
                self._ended_within(_CANCEL_S)
        super().end()

    def describe_end(self) -> str:
        """How the connection ended."""
        if not self._how and not self._ended_within(_CLOSE_S):
            self._how = "srun lost its connection"
        elif not self._how:
            code, how = self.process.returncode, self.describe_death()
            # The shell's way to tell a signal: the process on the node died by it.
            signalled = how.replace(f"exit status {code}", f"signal {code - 128} on the node")
            self._how = signalled if code > 128 else f"srun: {how}"
        return self._how

    def _ended_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None


class _Worker:
    """See `Link`.

    Parameters
    ----------
    host : _Host
    command, log, variables, take
        See `Launcher.start`.
    alone : bool
        Whether the step is this worker's own, and is to end with it.
    """

    def __init__(
        self,
        host: _Host,
        command: Sequence[str],
        log: str,
        variables: Mapping[str, str],
        take: Take,
        *,
        alone: bool,
    ) -> None:
        self._host = host
        self._alone = alone
        self._ended = threading.Event()

        def pass_on(message: dict[str, Any]) -> None:
            take(message)
            if message["event"] == "died":
                self._ended.set()

        self._number = host.add(pass_on)
        self._tell(start={"command": list(command), "log": log, "variables": dict(variables)})

    def send(self, request: Mapping[str, Any]) -> None:
        self._tell(request=dict(request))

    def ask_to_end(self) -> None:
        if not self._ended.is_set():
            self._tell(end=True)

    def end(self, *, wait: bool = True) -> None:
        """See `Link`. If the process on the node does not report the end in time, its step ends with all workers."""
        self.ask_to_end()
        if self._alone or not wait or self._host.is_over or not self._ended.wait(_REPORT_S):
            self._host.end(wait=wait)

    def has_ended(self) -> bool:
        return self._ended.is_set() or self._host.has_ended()

    def describe_end(self) -> str:
        return self._host.describe_end()

    def _tell(self, **what: Any) -> None:
        self._host.send({"worker": self._number, **what})


class _Question:
    """See `Probe`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = _start(*command)
        self._until_s = time.monotonic() + _PROBE_LIMIT_S

    def answered(self) -> bool | None:
        code = self._process.poll()
        if code is None and time.monotonic() < self._until_s:
            return None
        self.close()
        return code == 0

    def close(self) -> None:
        _kill(self._process)


_NOBODY: Answers = None  # type: ignore[assignment]  # `_Step.take` passes every answer on


def _nodes(team: Team) -> list[Node]:
    """The nodes of the allocation, and how many workers fit on each."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    names = _ask("scontrol", "show", "hostnames", listed).split()
    cores = parse_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1"))
    if len(cores) != len(names):
        raise BuildError(
            f"expected the cores of {len(names)} nodes in SLURM_JOB_CPUS_PER_NODE, found {len(cores)}: "
            "run the command in the allocation's own shell or script"
        )
    gpus = _number("SLURM_GPUS_ON_NODE") if team.gpus else None
    known = _known_to_slurm(listed)
    nodes = []
    for name, count in zip(names, cores, strict=True):
        facts = known.get(name, {})
        places = team.per_node or team.fitting(count, _memory(facts, count))
        nodes.append(Node(name, min(places, gpus) if gpus else places, count, _is_well(facts)))
    return nodes


def _known_to_slurm(listed: str) -> dict[str, dict[str, str]]:
    """What Slurm says of each node, by the names of its facts."""
    lines = _ask("scontrol", "show", "node", "--oneliner", listed).splitlines()
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {facts["NodeName"]: facts for facts in found if "NodeName" in facts}


def _is_well(facts: Mapping[str, str]) -> bool:
    """Whether a node answers, as far as Slurm knows: a star marks one that does not."""
    state = facts.get("State", "")
    return not state.startswith("DOWN") and "*" not in state


def parse_counts(text: str) -> list[int]:
    """What ``SLURM_JOB_CPUS_PER_NODE`` says, node by node: ``"72(x2),36"`` is 72, 72, 36."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise UsageError(f"SLURM_JOB_CPUS_PER_NODE: expected counts such as '72(x2),36', found {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _memory(facts: Mapping[str, str], cores: int) -> int | None:
    """Bytes of memory that the allocation has on a node; None if Slurm does not count memory."""
    if of_node := _number("SLURM_MEM_PER_NODE"):
        return of_node * 2**20
    if of_core := _number("SLURM_MEM_PER_CPU"):
        return of_core * cores * 2**20
    configured = facts.get("RealMemory", "")
    # Without a configured size, Slurm's is 1 MB.
    return int(configured) * 2**20 if configured.isdecimal() and int(configured) > 1 else None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _environment() -> dict[str, str]:
    """The environment of ``srun`` and of workers, without the allocation's own requests."""
    return {name: value for name, value in inherited_environment().items() if not _REQUESTS.fullmatch(name)}


def _start(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 -- Slurm's own commands
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        start_new_session=True,
    )


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a command of Slurm's with its helper."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ask(*command: str) -> str:
    """What one of Slurm's commands prints."""
    try:
        done = subprocess.run(  # noqa: S603 -- Slurm's own commands
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise BuildError(f"expected Slurm's commands on this host, found no {command[0]!r}") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"Slurm's {command[0]} gave no answer within {_COMMAND_LIMIT_S:g} s") from None
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise BuildError(f"Slurm's {command[0]} failed: {last[:200]}")
    return done.stdout
