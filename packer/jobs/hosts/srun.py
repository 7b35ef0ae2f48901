"""The nodes of a Slurm allocation: ``srun`` starts a step with one agent on each node."""

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from packer.jobs.hosts.base import Host, Node, place_agents, start_agent
from packer.jobs.plan import JobSettings
from packer.jobs.process import inherited_environment
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from shardspec.errors import BuildError
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


_CORES = re.compile(r"(\d+)(?:\(x\d+\))?")
"""Of ``SLURM_JOB_CPUS_PER_NODE``, such as ``72(x2),36``."""


class SrunCluster:
    """The nodes of the allocation that this process runs in (`packer.jobs.hosts.base.Cluster`).

    A node with GPUs gets one agent for each GPU if the build needs them. Steps are named after the workspace; those
    that are left at the end are cancelled.
    """

    def __init__(self, workspace: Workspace, settings: JobSettings, options: BuildOptions) -> None:
        self._job = os.environ["SLURM_JOB_ID"]
        self._name = f"packer-{hashlib.sha256(os.fsencode(workspace.root.resolve())).hexdigest()[:12]}"
        agents = _number("SLURM_GPUS_ON_NODE") or 1 if settings.needs_gpus else 1
        nodes = [Node(name, options.workers_per_node, agents) for name in _find_nodes()]
        self.hosts: Sequence[Host] = place_agents(nodes, options.workers)
        counts = map(int, _CORES.findall(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        cores = max(1, min(counts, default=1) // agents)
        exact = ("--exact", f"--cpus-per-task={cores}", "--gpus-per-task=1")
        self._share = exact if settings.needs_gpus else _SHARED
        self._limits = ["env", *_describe_memory(agents)]

    def start(self, host: Host, command: Sequence[str], log: Path) -> "_Step":
        srun = ["srun", *_STEP, *self._share, f"--nodelist={host.name}", f"--job-name={self._name}"]
        return _Step([*srun, *self._limits, *command], log)

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


def _find_nodes() -> list[str]:
    """Return the nodes of the allocation that answer, as far as Slurm knows."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    silent = set()
    for line in run_slurm("scontrol", "show", "node", "--oneliner", listed).splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        state = facts.get("State", "")
        if state.startswith("DOWN") or "*" in state:  # a star marks a node that does not answer
            silent.add(facts.get("NodeName"))
    names = [name for name in run_slurm("scontrol", "show", "hostnames", listed).split() if name not in silent]
    if not names:
        raise BuildError(
            f"no node of the allocation answers ({listed})", hint="run the same command again in another one"
        )
    return names


def _describe_memory(agents: int) -> list[str]:
    """Return the variables for the memory of the allocation. Set outside a step, they would be requests to ``srun``."""
    of_node, of_core = _number("SLURM_MEM_PER_NODE"), _number("SLURM_MEM_PER_CPU")
    if of_node:
        return [f"SLURM_MEM_PER_NODE={of_node // agents}"]
    return [f"SLURM_MEM_PER_CPU={of_core}"] if of_core else []


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
