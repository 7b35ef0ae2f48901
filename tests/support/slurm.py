"""A Slurm cluster on this machine: three nodes, free ports, a temporary folder, its own munge. Nothing outlives it.

A guard, a process of its own, ends every daemon and every job when the test process ends, however it ends.
"""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.command import COMMAND_LIMIT_S
from support.processes import is_alive, wait_for

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
"""Those of Debian and Ubuntu."""

CPUS = 2
"""Of each node. Slurm does not check them against the machine's."""

MEMORY_MB = 1500
"""Of each node, which a job gets a share of: jobs without `--mem` get all of it."""

_CONF = """\
ClusterName=local
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=30
InactiveLimit=0
KillWait=3
MinJobAge=30
MaxArraySize=1001
"""


def missing() -> str:
    """What this machine lacks for a cluster, in words; empty if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "Slurm's daemons need root on Linux"
    lacking = [name for name in ("slurmctld", "slurmd", "srun", "munged") if _program(name) is None]
    return f"not installed: {', '.join(lacking)} (packages {' '.join(PACKAGES)})" if lacking else ""


class Slurm:
    """A running cluster.

    Attributes
    ----------
    nodes : tuple of str
    environment : dict
        To be added to that of every command that speaks to it.
    """

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self._folder = folder
        self.nodes = tuple(nodes)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, expect: int | None = 0, env: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands, or another under them; what it printed."""
        done = subprocess.run(
            command,
            env={**os.environ, **(env or {}), **self.environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert expect is None or done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """The state of each node, such as ``idle``, ``alloc`` or ``down*``."""
        listed = self.run("sinfo", "--noheader", "--Node", "--format=%N %t")
        return dict(line.split() for line in listed.splitlines())

    def jobs(self) -> dict[str, str]:
        """The state of each job in the queue, by its number, such as ``RUNNING``; one that has ended soon leaves it."""
        listed = self.run("squeue", "--noheader", "--format=%i %T")
        return dict(line.split() for line in listed.splitlines())

    def start_node(self, node: str) -> None:
        """Start a node's daemon, again after `kill_node`."""
        with suppress(OSError):
            (self._folder / f"slurmd-{node}.pid").unlink()
        self.run(_require("slurmd"), "-f", self.environment["SLURM_CONF"], "-N", node)

    def kill_node(self, node: str, how: int = signal.SIGKILL) -> None:
        """Signal a node's daemon: SIGKILL to lose it, SIGSTOP to make it deaf. What runs on the node runs on."""
        daemon = self._daemon(node)
        os.kill(daemon, how)
        if how == signal.SIGKILL:
            wait_for("the end of slurmd", lambda: not is_alive(daemon))

    def rest(self) -> None:
        """End all jobs, bring lost nodes back, and wait until every node is idle."""
        looks = itertools.count()
        wait_for("an idle cluster", lambda: self._rests(next(looks)), 0.1)

    def _rests(self, look: int) -> bool:
        """Whether nothing runs and all nodes are well; otherwise, what stands in the way is told to go."""
        for node in self.nodes:
            with suppress(OSError):
                self.kill_node(node, signal.SIGCONT)
            if not is_alive(self._daemon(node)):
                self.start_node(node)
        if jobs := list(self.jobs()):
            self.run("scancel", "--quiet", *jobs, expect=None)
            if look % 20 < 19:
                return False
        states = self.states()
        for node, state in states.items():
            if state.startswith("comp"):  # a node that was lost meanwhile would be asked again after half a minute only
                self._set(node, "DOWN", "Reason=rest")
            if state.startswith(("comp", "down", "drain")):
                self._set(node, "RESUME")
        return set(states.values()) == {"idle"}

    def _set(self, node: str, state: str, *more: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", f"State={state}", *more, expect=None)

    def _daemon(self, node: str) -> int:
        return int((self._folder / f"slurmd-{node}.pid").read_text())

    def log(self) -> str:
        """The ends of all logs, for a failure."""
        return "\n".join(
            f"{path.name}: {path.read_text()[-2000:]}" for path in sorted((self._folder / "log").iterdir())
        )


@contextmanager
def cluster(nodes: Sequence[str] = ("n1", "n2", "n3")) -> Iterator[Slurm]:
    """Start a cluster, and end it with all that runs on it."""
    # Not pytest's folder, which only its owner may enter: munge refuses a socket there.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        guard = subprocess.Popen(
            [sys.executable, "-m", "support.slurm", str(folder)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        stack.callback(guard.wait)
        assert guard.stdin is not None
        stack.callback(guard.stdin.close)
        for name in ("state", "log", "munge", *(f"spool-{node}" for node in nodes)):
            (folder / name).mkdir()
        # Held until the daemons bind them, so that no other cluster is given the same.
        ports = _free_ports(1 + len(nodes))
        conf = _CONF.format(folder=folder, port=ports[0])
        for node, port in zip(nodes, ports[1:], strict=True):
            conf += (
                f"NodeName={node} NodeHostname={socket.gethostname().partition('.')[0]} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN\n"
            )
        conf += "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        (folder / "slurm.conf").write_text(conf)
        slurm = Slurm(folder, nodes)
        _start_munge(slurm, folder / "munge")
        slurm.run(_require("slurmctld"), "-f", slurm.environment["SLURM_CONF"])
        wait_for("slurmctld", lambda: "UP" in slurm.run("scontrol", "ping", expect=None), 0.1)
        for node in nodes:
            slurm.start_node(node)
        try:
            wait_for("idle nodes", lambda: set(slurm.states().values()) == {"idle"}, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{slurm.log()}") from error
        yield slurm


def _start_munge(slurm: Slurm, folder: Path) -> None:
    key = folder / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
    slurm.run(_require("munged"), f"--socket={folder / 'socket'}", *files)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _require(name: str) -> str:
    found = _program(name)
    assert found is not None, f"{name} is not installed"
    return found


def _guard(folder: Path) -> None:
    """Wait for the end of the test process; then end the daemons by their pid files, and what they started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for path in (*folder.glob("*.pid"), folder / "munge" / "pid"):
        with suppress(OSError, ValueError):
            os.kill(int(path.read_text()), signal.SIGKILL)
    mark = os.fsencode(f"SLURM_CONF={folder / 'slurm.conf'}")
    until = time.monotonic() + 10
    while time.monotonic() < until and (left := _of_cluster(mark, os.fsencode(folder / "slurm.conf"))):
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _of_cluster(mark: bytes, conf: bytes) -> list[int]:
    """Processes that name the cluster in their environment or command line: daemons, steps, jobs."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal() and int(path.name) != os.getpid():
                named = mark in (path / "environ").read_bytes().split(b"\0")
                if named or conf in (path / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
