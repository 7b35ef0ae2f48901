"""The nodes of a Slurm allocation: ``srun`` starts a step with one agent on each node."""

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from packer.jobs.hosts.base import Host, HostLimits, start_agent
from packer.jobs.process import inherited_environment
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from shardspec.errors import BuildError, UsageError
from shardspec.wording import LONG, cut

_COMMAND_LIMIT_S = 120.0
"""Time limit of one of Slurm's commands, which may wait for the controller."""

_CLOSE_S, _TERM_S = 5.0, 3.0
"""Time that an agent may take to end after its input is closed, and after ``srun`` was asked to end it."""

_STEP = ("--nodes=1", "--ntasks=1", "--unbuffered", "--mpi=none", "--export=ALL", "--mem=0", "--kill-on-bad-exit=0")
"""Options of every step. Without ``--mem=0``, a step gets a share of the memory, and steps would wait for each other."""

_SHARED = ("--overlap",)
"""Agents use all cores of the allocation, and a step that Slurm still counts as running never blocks a new one."""

_REQUESTS = re.compile(
    r"SLURM_(NTASKS\w*|NPROCS|CPUS_PER_\w+|TRES_PER_TASK|MEM_PER_\w+|GPUS\w*|GRES\w*|CPU_BIND\w*|DISTRIBUTION|EXACT|"
    r"EXCLUSIVE|OVERLAP|WHOLE|THREADS_PER_CORE|NNODES|NODELIST|JOB_NODELIST|JOB_NUM_NODES|TASKS_PER_NODE|STEP\w*|"
    r"EXPORT_ENV|JOB_NAME|PROCID|LOCALID|LABELIO|STDINMODE|STDOUTMODE|STDERRMODE|UMASK|WORKING_DIR)"
)
"""Variables that Slurm sets in an allocation and that ``srun`` reads as requests for each of its steps."""


class SrunCluster:
    """The nodes of the allocation that this process runs in (`packer.jobs.hosts.base.Cluster`).

    A node with GPUs gets one agent for each GPU if the build needs them. Steps are named after the workspace; those
    that are left at the end are cancelled.
    """

    def __init__(self, workspace: Workspace, room: HostLimits, _options: BuildOptions) -> None:
        self._job = os.environ["SLURM_JOB_ID"]
        self._name = f"packer-{hashlib.sha256(os.fsencode(workspace.root.resolve())).hexdigest()[:12]}"
        hosts, cores = _nodes(room)
        self.hosts: Sequence[Host] = room.limit(hosts)
        self._share = ("--exact", f"--cpus-per-task={cores}", "--gpus-per-task=1") if room.gpus else _SHARED

    def start(self, host: Host, command: Sequence[str], log: Path) -> "_Step":
        srun = ["srun", *_STEP, *self._share, f"--nodelist={host.name}", f"--job-name={self._name}"]
        return _Step([*srun, *command], log)

    def close(self) -> None:
        """Cancel the steps of this build that are left, such as those whose ``srun`` was killed."""
        with suppress(BuildError):
            listed = run_slurm("squeue", "--noheader", "--steps", f"--jobs={self._job}", "--format=%i %j")
            left = [
                step for step, _, name in (line.partition(" ") for line in listed.split("\n")) if name == self._name
            ]
            if left:
                run_slurm("scancel", "--quiet", "--signal=KILL", *left)


class _Step:
    """A step of the allocation, and its ``srun`` process."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        environment = inherited_environment().items()
        kept = {name: value for name, value in environment if not _REQUESTS.fullmatch(name)}
        self._process = start_agent(command, log, kept)

    def poll(self) -> int | None:
        status = self._process.poll()
        return None if status is None else -status if status < 0 else status

    def end(self) -> None:
        """Close the agent's input, then have ``srun`` end the step, then end ``srun``."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self._ended_within(_CLOSE_S):
            self._process.terminate()
            if not self._ended_within(_TERM_S):
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ended_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None


def _nodes(room: HostLimits) -> tuple[list[Host], int]:
    """Return the hosts of the allocation, one for each agent, and the cores of an agent with a GPU."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    names = run_slurm("scontrol", "show", "hostnames", listed).split()
    cores = parse_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1"))
    if len(cores) != len(names):
        raise BuildError(
            expected=f"the cores of {len(names)} nodes in SLURM_JOB_CPUS_PER_NODE",
            found=len(cores),
            hint="run the command in the allocation's own shell or script",
        )
    gpus = _number("SLURM_GPUS_ON_NODE") or 1
    known = _known_to_slurm(listed)
    hosts = []
    for name, count in zip(names, cores, strict=True):
        facts = known.get(name, {})
        if _answers(facts):
            hosts += room.share(name, count, _memory(facts, count), gpus)
    if not hosts:
        raise BuildError(
            f"no node of the allocation answers ({listed})", hint="run the same command again in another one"
        )
    return hosts, max(1, min(cores) // gpus)


def _known_to_slurm(listed: str) -> dict[str, dict[str, str]]:
    lines = run_slurm("scontrol", "show", "node", "--oneliner", listed).splitlines()
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {facts["NodeName"]: facts for facts in found if "NodeName" in facts}


def _answers(facts: Mapping[str, str]) -> bool:
    """Return whether a node answers, as far as Slurm knows. A star marks a node that does not."""
    state = facts.get("State", "")
    return not state.startswith("DOWN") and "*" not in state


def parse_counts(text: str) -> list[int]:
    """Parse ``SLURM_JOB_CPUS_PER_NODE``: ``"72(x2),36"`` is 72, 72, 36."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise UsageError(place="SLURM_JOB_CPUS_PER_NODE", expected="counts such as '72(x2),36'", found=f"{text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _memory(facts: Mapping[str, str], cores: int) -> int | None:
    """Return the bytes of memory that the allocation has on a node, or None if Slurm does not count memory."""
    if of_node := _number("SLURM_MEM_PER_NODE"):
        return of_node * 2**20
    if of_core := _number("SLURM_MEM_PER_CPU"):
        return of_core * cores * 2**20
    configured = facts.get("RealMemory", "")
    # Slurm reports 1 MB if no size is configured.
    return int(configured) * 2**20 if configured.isdecimal() and int(configured) > 1 else None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def run_slurm(program: str, *arguments: str) -> str:
    """Run one of Slurm's commands, and return its output.

    Raises
    ------
    BuildError
        If the command is not installed, fails, or does not answer.
    """
    place = f"Slurm's {program}"
    try:
        done = subprocess.run(  # noqa: S603 -- Slurm's own commands
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"cannot be run: {error.strerror}", place=place) from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"no answer within {_COMMAND_LIMIT_S:g} s", place=place) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2].removeprefix(f"{program}: ")
        raise BuildError(cut(said.removeprefix("error: "), LONG) or f"exit status {done.returncode}", place=place)
    return done.stdout
