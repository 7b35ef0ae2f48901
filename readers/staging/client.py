"""A process's connection to the stager of a cache folder, which is started if it does not run."""

import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Client, Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any
from weakref import WeakValueDictionary

import shardspec.errors
from readers.formats.shards import open_shards
from readers.staging.folder import CacheFolder, read_address
from readers.staging.server import MESSAGE_BYTES_MAX, send_all
from shardspec.errors import ShardspecError, StoreError

_START_S = 60.0
_ANSWER_S = 10.0
_TICK_S = 5.0
"""Time between messages of a stager that has nothing else to say (`readers.staging.server`)."""
_SILENT_TICKS = 12
"""Ticks without any message after which a stager is treated as suspended. Time in which this process is itself
suspended does not count."""
_PAUSE_S = 0.02
_LOG_BYTES = 2000
_QUIET_S = 30.0
_log = logging.getLogger("readers")


class _Waiting:
    """Context that measures the time in which one thread or more is inside of it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside, self._since, self._seconds = 0, 0.0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._since = self._since if self._inside else time.perf_counter()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            self._seconds += 0.0 if self._inside else time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._seconds + (time.perf_counter() - self._since if self._inside else 0.0)


waiting = _Waiting()
"""Time in which threads of this process wait for files from stagers."""


class StagerLostError(ConnectionError):
    """The stager has ended, for example because it was killed, or has not answered for a minute."""


class StagerClient:
    """A connection to a stager, closed when nothing refers to this object. Thread-safe; a forked child makes its own.

    Attributes
    ----------
    attached : dict of str to mapping
        What the stager said about each dataset that it has opened, by the dataset's key.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self.attached: dict[str, Mapping[str, Any]] = {}
        self._folder = folder
        self._connection, self._pid = _connect(folder)
        self._outbox: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._numbers = count()
        self._answers: dict[int, SimpleQueue[Mapping[str, Any] | None]] = {}
        self._ended = Event()
        self._heard = [0]  # the number of messages
        self._warned = -math.inf
        # No thread refers to this object, so that it can be finalised.
        for work in (
            partial(
                _receive_all, self._connection, self._outbox, self._answers, self.attached, self._ended, self._heard
            ),
            partial(_send_all, self._connection, self._outbox),
        ):
            Thread(target=work, name="readers-staging", daemon=True).start()
        weakref.finalize(self, self._outbox.put, None).atexit = False

    @property
    def lost(self) -> bool:
        """True if the stager has ended."""
        return self._ended.is_set()

    def ask(self, op: str, *, waits_for: str = "", **message: Any) -> Any:
        """Send a request and return its result.

        Parameters
        ----------
        waits_for : str
            The URL that it waits for, which is logged every half minute.

        Raises
        ------
        StagerLostError
            If the stager ends, or stops answering for a minute, before it answers.
        ShardspecError
            The error that the stager reports.
        """
        number = next(self._numbers)
        answer: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._answers[number] = answer
        self.tell(op, id=number, **message)
        if self.lost:
            raise StagerLostError
        with waiting if op == "get" else nullcontext():
            found = self._wait(answer, waits_for)
        if found is None:
            raise StagerLostError
        if "error" in found:
            kind, data = found["error"]
            raise getattr(shardspec.errors, kind, ShardspecError)(**data)
        return found.get("result")

    def _wait(self, answer: "SimpleQueue[Mapping[str, Any] | None]", waits_for: str) -> Mapping[str, Any] | None:
        begin, heard, silent = time.monotonic(), self._heard[0], 0
        while True:
            with suppress(Empty):
                return answer.get(timeout=_TICK_S)
            heard, silent = self._heard[0], silent + 1 if self._heard[0] == heard else 0
            if silent >= _SILENT_TICKS:
                self._give_up()
                return None
            now = time.monotonic()
            if waits_for and now - max(begin, self._warned) >= _QUIET_S:  # one thread warns for all
                self._warned = now
                text = "%s: not here after %d s. The store is slow or away, or other processes use the whole cache."
                _log.warning(text, waits_for, now - begin)

    def _give_up(self) -> None:
        """Let another stager take the place of one that does not answer."""
        self._ended.set()
        self._outbox.put(None)
        with self._folder.starting():
            if not self._folder.depose(self._pid):  # another thread or process has done so
                return
        _log.warning(
            "%s: the stager (process %d) has not answered for a minute, because it was suspended or killed, or because "
            "the machine is overloaded. Another one takes its place.",
            self._folder.root,
            self._pid,
        )

    def tell(self, op: str, **message: Any) -> None:
        """Send a message that is not answered. Safe in finalisers."""
        self._outbox.put({"op": op, **message})

    def abandon(self) -> None:
        """Close the copy of the connection in a forked child."""
        self._ended.set()
        self._connection.close()


def _send_all(connection: "Connection[Any, Any]", outbox: "SimpleQueue[Mapping[str, Any] | None]") -> None:
    send_all(outbox, connection)
    # Closing the connection here would leave the receiver waiting in the system.
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def _receive_all(
    connection: "Connection[Any, Any]",
    outbox: "SimpleQueue[Mapping[str, Any] | None]",
    answers: dict[int, "SimpleQueue[Mapping[str, Any] | None]"],
    attached: Mapping[str, Mapping[str, Any]],
    ended: Event,
    heard: list[int],
) -> None:
    with suppress(EOFError, OSError):
        while True:
            message = json.loads(connection.recv_bytes(MESSAGE_BYTES_MAX))
            heard[0] += 1
            if "release" in message:
                key, name = message["release"]
                open_shards.release(Path(attached[key]["root"]) / name)
            elif "id" in message:
                answers.pop(message["id"]).put(message)
    ended.set()
    outbox.put(None)
    for answer in list(answers.values()):
        answer.put(None)
    connection.close()


_clients: "WeakValueDictionary[Path, StagerClient]" = WeakValueDictionary()
_lock = Lock()


def client_of(given: Path) -> StagerClient:
    """Return this process's connection to the stager of a cache folder; a new one if the stager has ended."""
    with _lock:
        found = _clients.get(given)
        if found is None or found.lost:
            _clients[given] = found = StagerClient(CacheFolder(given))
        return found


def stats(folders: Collection[Path] | None = None) -> list[Mapping[str, Any]]:
    """Return the counts of the stagers that this process is connected to, of all caches or of those in some folders."""
    with _lock:
        found = {folder: client for folder, client in _clients.items() if not client.lost}
    counts = []
    for folder, client in found.items():
        if folders is None or folder in folders:
            with suppress(StagerLostError):
                counts.append(client.ask("stats"))
    return counts


def _connect(folder: CacheFolder) -> "tuple[Connection[Any, Any], int]":
    """Return a connection to the stager of a folder, and its process number."""
    try:
        folder.make()
        found = _dial(folder)
        if found is not None:
            return found
        with folder.starting():
            return _begin(folder)
    except OSError as error:
        raise StoreError(f"The cache folder cannot be used: {error.strerror}", place=folder.root) from error


def _begin(folder: CacheFolder) -> "tuple[Connection[Any, Any], int]":
    """Start a stager, unless another process has started one, and return a connection to it (`_connect`).

    A stager that does not answer for a minute is replaced.
    """
    silent = read_address(folder.address)
    found = _try_begin(folder)
    if found is None and silent is not None and folder.depose(silent["pid"]):
        found = _try_begin(folder)
    if found is not None:
        return found
    pid = f" (process {silent['pid']} of {silent.get('host')})" if silent is not None else ""
    raise StoreError(
        f"The stager of this folder{pid} does not answer.",
        place=folder.root,
        hint="another host may use the folder, or its process hangs: choose another `cache`, or end the process",
    )


def _try_begin(folder: CacheFolder) -> "tuple[Connection[Any, Any], int] | None":
    deadline, process = time.monotonic() + _START_S, None
    while time.monotonic() < deadline:
        found = _dial(folder)
        if found is not None:
            return found
        status = 0 if process is None else process.poll()
        if status is not None and status > 0:
            log = folder.log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            problem = f"The stager does not start: {log or 'it wrote no reason, as on a full disk'}"
            raise StoreError(problem, place=folder.root)
        if status is not None:  # it was killed, or gave way to one that has ended since
            process = _start(folder)
        time.sleep(_PAUSE_S)
    return None


def _dial(folder: CacheFolder) -> "tuple[Connection[Any, Any], int] | None":
    """Return a connection to a running stager, and its process number, or None."""
    address = read_address(folder.address)
    if address is None:
        return None
    try:
        connection = Client(("127.0.0.1", address["port"]))
        connection.send_bytes(address["token"].encode())
        if not connection.poll(_ANSWER_S):  # another program has got the port of a stager that was killed
            return None
        connection.recv_bytes(MESSAGE_BYTES_MAX)
    except (OSError, EOFError):
        return None
    return connection, address["pid"]


def _start(folder: CacheFolder) -> "subprocess.Popen[bytes]":
    """Start a stager that outlives this process and its terminal, as long as it has other clients."""
    roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "readers.staging.server", str(folder.given)]
    with folder.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
            start_new_session=True,
        )
    Thread(target=process.wait, name="readers-stager", daemon=True).start()  # so that it leaves no zombie
    return process


def _forget_inherited() -> None:
    global _lock
    _lock = Lock()
    for client in list(_clients.values()):
        client.abandon()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
