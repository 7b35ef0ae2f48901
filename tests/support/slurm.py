"""A Slurm cluster on this machine: three nodes, a temporary folder, its own network and munge. Nothing outlives it.

Each node has an address, processes and a folder ``/mnt`` that the others do not see. A guard, a process of its own, ends
every daemon and every job when the test process ends, however it ends.
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

import psutil

from support.command import COMMAND_LIMIT_S
from support.processes import is_alive, wait_for

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
"""Those of Debian and Ubuntu."""

CPUS = 2
"""Of each node. Slurm does not check them against the machine's."""

MEMORY_MB = 1500
"""Of each node, which a job gets a share of: jobs without `--mem` get all of it."""

_NETWORK = "10.77.0"

_NODE = """\
mount -t tmpfs none /mnt
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add {address}/24 dev eth0
ip link set eth0 up
exec {slurmd} -D -f {folder}/slurm.conf -N {node}
"""
"""Shell script of a node, the first process of its namespaces. The device is given to it from outside."""

_CONF = """\
ClusterName=local
SlurmctldHost=localhost({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
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
    if lacking:
        return f"not installed: {', '.join(lacking)} (packages {' '.join(PACKAGES)})"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"], capture_output=True)
    return "" if tried.returncode == 0 else "a network of its own needs iproute2, and the right to make bridges"


class Slurm:
    """A running cluster.

    Attributes
    ----------
    nodes : tuple of str
    environment : dict
        To be added to that of every command that speaks to it.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], network: int) -> None:
        self._folder = folder
        self.nodes = tuple(nodes)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._inside = ["nsenter", "--net", f"--target={network}"]
        self._running: dict[str, int] = {}

    def run(self, *command: str, expect: int | None = 0, env: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands, or another under them; what it printed."""
        done = subprocess.run(
            [*self._inside, *command],
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
        """Start a node, again after `kill_node`."""
        address = address_of(self.nodes.index(node))
        script = _NODE.format(folder=self._folder, address=address, slurmd=_require("slurmd"), node=node)
        namespaces = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # No child of this process, whose tests must not leave any behind. `setsid` does not fork here.
        start = 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'
        outer = int(self.run("sh", "-c", start, "sh", *namespaces, "sh", "-c", script))
        self._running[node] = outer
        (inner,) = wait_for("the node's first process", lambda: [one.pid for one in psutil.Process(outer).children()])
        # The peer of a device goes with the network in which the other end was.
        link = ["ip", "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", str(inner)]
        wait_for("the node's network", lambda: self._try(*link), 0.05)
        self.run("ip", "link", "set", f"to-{node}", "master", "br0", "up")

    def kill_node(self, node: str) -> None:
        """Lose a node, with all that runs on it."""
        with suppress(ProcessLookupError):
            os.kill(self._running[node], signal.SIGKILL)
        wait_for("the end of the node", lambda: not is_alive(self._running[node]))

    def close(self) -> None:
        """End all nodes."""
        for node in self._running:
            self.kill_node(node)

    def _try(self, *command: str) -> bool:
        done = subprocess.run([*self._inside, *command], capture_output=True, check=False)
        return done.returncode == 0

    def rest(self) -> None:
        """End all jobs, bring lost nodes back, and wait until every node is idle."""
        looks = itertools.count()
        wait_for("an idle cluster", lambda: self._rests(next(looks)), 0.1)

    def _rests(self, look: int) -> bool:
        """Whether nothing runs and all nodes are well; otherwise, what stands in the way is told to go."""
        for node in self.nodes:
            if not is_alive(self._running[node]):
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
            ["unshare", "--net", sys.executable, "-m", "support.slurm", str(folder)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        stack.callback(guard.wait)
        assert guard.stdin is not None
        assert guard.stdout is not None
        stack.callback(guard.stdout.close)
        stack.callback(guard.stdin.close)
        guard.stdout.readline()
        for name in ("state", "log", "munge", *(f"spool-{node}" for node in nodes)):
            (folder / name).mkdir()
        conf = _CONF.format(folder=folder, network=_NETWORK)
        hosts = "127.0.0.1 localhost\n"
        for number, node in enumerate(nodes):
            conf += (
                f"NodeName={node} NodeHostname={socket.gethostname().partition('.')[0]} "
                f"NodeAddr={address_of(number)} CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN\n"
            )
            hosts += f"{address_of(number)} {node}\n"
        (folder / "hosts").write_text(hosts)
        conf += "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        (folder / "slurm.conf").write_text(conf)
        slurm = Slurm(folder, nodes, guard.pid)
        stack.callback(slurm.close)
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


def address_of(node: int) -> str:
    """The address of a node, given its number."""
    return f"{_NETWORK}.{11 + node}"


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
    for command in (
        "link set lo up",
        "link add br0 type bridge",
        f"address add {_NETWORK}.1/24 dev br0",
        "link set br0 up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    print("up", flush=True)
    sys.stdin.buffer.read()
    for path in (folder / "slurmctld.pid", folder / "munge" / "pid"):
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
