"""A Ray cluster on this machine: a head and nodes, in a network namespace of its own. Nothing outlives it.

Ray replaces 127.0.0.1 by the machine's own address, so without such a namespace it would be open to the network.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from support.processes import command_of, is_alive, kill, wait_for
from support.sloppy import SERVERS, client_environment, find_server

CPUS = 2
"""Of each node but the head, which has none."""

_PORT = 6399
_STORE_PORT = 9321
_RELAY_PORT = 9322
_STORE_BYTES = 78_643_200  # Ray takes no less
_LIMITS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
    "RAY_raylet_start_wait_time_s": "60",
}
"""A lost node is soon seen."""

_ATTEMPTS = 5
"""A raylet ends if its agent takes more than 15 s to start, as on a busy machine; `ray start` waits on for it."""


def missing() -> str:
    """What this machine lacks for a cluster, in words; empty if nothing."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "a network namespace needs unshare, on Linux"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "a network namespace needs root, and the package iproute2"


class Ray:
    """A running cluster.

    Attributes
    ----------
    environment : dict
        To be added to that of every command in the cluster.
    address : str
    """

    address = f"127.0.0.1:{_PORT}"

    def __init__(self, namespace: int, folder: Path, token: str | None = None) -> None:
        self._namespace = namespace
        self._folder = folder
        # A token that the user's home holds would become the cluster's.
        access = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        self.environment = {**_LIMITS, **access, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}

    def command(self, *words: str) -> list[str]:
        """A command line, run in the cluster's network."""
        return ["nsenter", "--net", f"--target={self._namespace}", *words]

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command in the cluster's network to its end; what it printed."""
        done = subprocess.run(
            self.command(*words),
            env={**os.environ, **(env or {}), **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start_head(self) -> None:
        """Start the head, which has no cores."""
        self._start("--head", f"--port={_PORT}", "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats")

    def start_node(self, *prefix: str, **env: str) -> int:
        """Start a node, by a command that a prefix may wrap, with more variables; the process of its raylet."""
        before = set(self.raylets())
        self._start(f"--address={self.address}", f"--num-cpus={CPUS}", prefix=prefix, env=env)
        return wait_for("the raylet", lambda: set(self.raylets()) - before).pop()

    @contextmanager
    def bucket(self, folder: Path) -> Iterator[dict[str, str]]:
        """Run a store in the cluster's network whose buckets are the folders in a folder; its clients' environment."""
        program = find_server("rclone")
        assert program is not None
        command = self.command(program, *SERVERS["rclone"](folder, _STORE_PORT))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield client_environment(_STORE_PORT)
            finally:
                process.kill()

    @contextmanager
    def faulty_bucket(self, folder: Path, fault: Path) -> Iterator[dict[str, str]]:
        """Run a store (`bucket`) behind a relay to which a file says what is wrong (`support.relay`)."""
        command = self.command(sys.executable, "-m", "support.relay", str(_RELAY_PORT), str(_STORE_PORT), str(fault))
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        with self.bucket(folder), subprocess.Popen(command, env=env) as process:
            try:
                yield client_environment(_RELAY_PORT)
            finally:
                process.kill()

    def raylets(self) -> list[int]:
        """The raylets in the order in which they were started, that of the head first."""
        return sorted(self._daemons(b"/raylet"), key=_start_of)

    def close(self) -> None:
        """End everything at once."""
        for process in self._processes():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        wait_for("the end of Ray", lambda: not any(is_alive(process) for process in self._processes()), 0.05)

    def _start(self, *options: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        store = f"--object-store-memory={_STORE_BYTES}"
        before = self._daemons(b"/raylet", b"/gcs_server")
        for attempt in range(_ATTEMPTS):
            try:
                self.run(*prefix, ray, "start", "--node-ip-address=127.0.0.1", store, *options, env=env)
            except AssertionError:
                kill(*self._daemons(b"/raylet", b"/gcs_server") - before)
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _daemons(self, *names: bytes) -> set[int]:
        """Processes of Ray that run programs with these names."""
        found = {process: command_of(process).split(b"\0")[0] for process in self._processes()}
        return {process for process, program in found.items() if any(name in program for name in names)}

    def _processes(self) -> list[int]:
        """All processes of the namespace but the one that holds it."""
        ours = Path(f"/proc/{self._namespace}/ns/net").readlink()
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdecimal() and int(path.name) != self._namespace and (path / "ns/net").readlink() == ours:
                    found.append(int(path.name))
        return [process for process in found if is_alive(process)]


def _start_of(process: int) -> int:
    """When a process was started, in ticks since the boot. Numbers of processes begin again after the largest one."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


@contextmanager
def cluster(nodes: int = 2, token: str | None = None) -> Iterator[Ray]:
    """Start a cluster, and end it with all that runs in it. With a token, it takes only those who have it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    # It ends all processes of the namespace when the test process ends, however that ends.
    guard = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-m", "support.ray_cluster"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdout.readline()
        ray = Ray(guard.pid, folder, token)
        ray.start_head()
        for _ in range(nodes):
            ray.start_node()
        yield ray
    finally:
        guard.stdin.close()
        guard.stdout.close()
        guard.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _guard() -> None:
    """Hold the network; end all that is in it when standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print("up", flush=True)
    sys.stdin.buffer.read()
    Ray(os.getpid(), Path()).close()


if __name__ == "__main__":
    _guard()
