"""S3 servers that implement less than S3 does, on loopback: ``rclone serve s3`` and ``s3rver``."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.command import environment

_KEYS = ("S3RVER", "S3RVER")  # those that s3rver accepts
BUCKET = "data"
_STARTS_S = 30


def _rclone(folder: Path, port: int) -> list[str]:
    keys = ",".join(_KEYS)
    own = ["--addr", f"127.0.0.1:{port}", "--auth-key", keys, "--dir-cache-time", "1s", "--config", os.devnull]
    return ["serve", "s3", *own, str(folder)]


def _s3rver(folder: Path, port: int) -> list[str]:
    return ["-d", str(folder), "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", BUCKET, "--silent"]


SERVERS: dict[str, Callable[[Path, int], list[str]]] = {"rclone": _rclone, "s3rver": _s3rver}
"""The arguments of each server."""

_NODE_PROGRAMS = Path(sys.prefix) / "s3rver" / "node_modules" / ".bin"
"""Where `make test-stores` installs s3rver."""


def find_server(name: str) -> str | None:
    """The program of a server, if it is installed."""
    places = os.pathsep.join([str(Path(sys.executable).parent), str(_NODE_PROGRAMS), os.environ.get("PATH", "")])
    return shutil.which(name, path=places)


@contextmanager
def sloppy_server(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run a server until the end of the block, and yield the environment of its clients."""
    program = find_server(name)
    assert program is not None
    (folder / BUCKET).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, *SERVERS[name](folder, port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _STARTS_S
            while not _answers(port):
                assert process.poll() is None, f"{name} has ended"
                assert time.monotonic() < until, f"{name} does not answer"
                time.sleep(0.05)
            yield environment() | client_environment(port)
        finally:
            process.kill()


def client_environment(port: int) -> dict[str, str]:
    """The variables by which clients find a server, and its keys."""
    keys = {"AWS_ACCESS_KEY_ID": _KEYS[0], "AWS_SECRET_ACCESS_KEY": _KEYS[1], "AWS_DEFAULT_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def cutting(env: dict[str, str], after_bytes: int) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Put a relay before a server that ends the first response longer than `after_bytes` there.

    Yields
    ------
    env : dict
        The environment of clients that use the relay.
    cut : list of int
        The bytes of responses that were cut.
    """
    port, cut = int(env["AWS_ENDPOINT_URL"].rpartition(":")[2]), list[int]()

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server, suppress(OSError):
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            passed = 0
            while data := server.recv(1 << 16):
                passed += len(data)
                if passed > after_bytes and not cut:
                    cut.append(passed)
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)  # ends it at once, although another thread reads from it

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield {**env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}"}, cut
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
