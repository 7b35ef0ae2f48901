"""The stager: a process that downloads the files of remote datasets to a cache folder for all processes of a machine.

Clients (`readers.staging.client`) start it by ``python -m readers.staging.server FOLDER``, and send JSON over a
loopback connection. Only this process uses the client library of object stores, and it never forks. It ends soon after
its last client, however that client ends.
"""

import errno
import hmac
import json
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, count
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Lock, RLock, Thread
from typing import Any

from filelock import Timeout

from readers.staging.folder import PARTIAL, CacheFolder, key_of, read_address, write
from readers.staging.schedule import CacheSchedule, FileKey, Plan, StagedFile
from shardspec.entries import FileEntry
from shardspec.errors import (
    DatasetChangedError,
    DatasetError,
    NotADatasetError,
    ShardCorruptError,
    ShardspecError,
    StoreError,
    UsageError,
    system_reason,
)
from shardspec.layout import MANIFEST_NAME, Layout, checked_chunks, missing_object
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.stores import Hub, Store, open_store
from shardspec.stores.store import CONNECTIONS_VARIABLE

FETCHERS = 4
"""Downloads at a time. Four streams fill the link of one store."""
SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "HF_", CONNECTIONS_VARIABLE)
"""Prefixes of the environment variables from which stores take their settings. A client sends its own."""
MESSAGE_BYTES_MAX = 1 << 26
_LINGER_S = 1.0
"""Time without clients after which the stager ends. A script often opens several datasets one after the other."""
_FIRST_CLIENT_S = 60.0
_TICK_S = 1.0
_BEAT_S = 5.0
"""Time between messages to each client, which takes a silent stager for suspended (`readers.staging.client`)."""
_FREE_SHARE = 0.9
_ATTEMPTS = 2
_PROBE_S = 20.0
"""Seconds for which the first request for a dataset is repeated, if the cache has nothing of it: its URL may be misspelt."""


class RemoteDataset:
    """A remote dataset that some client has opened."""

    def __init__(self, store: Store | Hub, key: str, root: Path, manifest: Manifest) -> None:
        self.store, self.key, self.root = store, key, root
        self.entries: Mapping[str, FileEntry] = {entry.name: entry for entry in manifest.entries}
        self.parts = [[entry.name for entry in part.files] for part in manifest.parts]
        self.largest = max((part.bytes for part in manifest.parts), default=0)


class Stager:
    """State of the stager. Public methods take the lock `changed`; private ones, but those that download, need it held."""

    def __init__(self, folder: CacheFolder) -> None:
        self.folder = folder
        lock = RLock()
        self.changed = Condition(lock)
        self._work = Condition(lock)  # for threads that download
        self.datasets: dict[str, RemoteDataset] = {}
        self.schedule = CacheSchedule()
        self.outboxes: dict[int, SimpleQueue[Mapping[str, Any] | None]] = {}
        self.counts: Counter[str] = Counter()
        self.sizes: dict[int, int] = {}  # the cache size that each client wants
        self.roots: dict[str, Path] = {}  # of all cached datasets, including those that nobody has opened
        self._adopting = Lock()
        self._beaten = time.monotonic()
        self._urls: set[str] = set()  # of datasets that were opened once
        for cached in folder.list():
            self._urls.add(cached.url)
            self.roots[cached.key] = cached.root
            for name, size in cached.files.items() if cached.manifest is not None else ():
                self.schedule.add((cached.key, name), size, held=True)

    # Messages of clients.

    def open(
        self,
        client: int,
        url: str,
        size: int | None,
        options: Mapping[str, Any],
        env: Mapping[str, str],
        patient: bool = False,
    ) -> Any:
        """Open a dataset by its URL; return its key, folder and the bytes that the cache may hold."""
        with self._adopting:
            _adopt(env)
            store = first = open_store(url, options)
            if isinstance(store, Store) and not patient and url not in self._urls:
                first = Store(url, options, patience_s=_PROBE_S)
        try:
            data = first.read(MANIFEST_NAME, MANIFEST_BYTES_MAX)  # without a lock, because it may take minutes
        except FileNotFoundError:
            raise NotADatasetError(
                place=url, expected=f"a packed dataset with a {MANIFEST_NAME}", found="none"
            ) from None
        manifest = Manifest.loads(data, store.place(MANIFEST_NAME))
        key = key_of(data)
        with self.changed:
            root = self.folder.add(key, url, data)
            dataset = RemoteDataset(store, key, root, manifest)
            limit = self._free_bytes() if size is None else size
            if limit < 2 * dataset.largest:
                raise UsageError(
                    option="cache_size",
                    expected=f"{2 * dataset.largest} bytes or more, for two of the largest shards of {url}",
                    found=limit if size is not None else f"{limit} bytes of free disk",
                )
            self.datasets[key], self.roots[key] = dataset, root
            self._urls.add(url)
            for entry in manifest.entries:
                self.schedule.add((key, entry.name), entry.bytes, held=False)
            self.sizes[client] = max(limit, self.sizes.get(client, 0))
            self.schedule.limit = max(self.sizes.values())
        return self.attach(key)

    def attach(self, key: str) -> Any:
        """Return what `open` returned for a dataset that is open; None if it is not."""
        with self.changed:
            dataset = self.datasets.get(key)
            if dataset is None:
                return None
            return {"key": key, "root": str(dataset.root), "limit": self.schedule.limit}

    def missing(self, key: str) -> int:
        """Return the number of files of shards and columns of a dataset that are not in the cache."""
        with self.changed:
            names = chain.from_iterable(self.datasets[key].parts)
            return sum(not self.schedule.files[key, name].is_held for name in names)

    def stats(self) -> Any:
        """Return counts since the start of this process."""
        with self.changed:
            return {**self.counts, "held": self.schedule.held, "limit": self.schedule.limit}

    def beat(self) -> None:
        """Tell the clients now and then that this process answers."""
        now = time.monotonic()
        if now - self._beaten >= _BEAT_S:
            self._beaten = now
            for outbox in self.outboxes.values():
                if outbox.empty():  # not to clients that are suspended themselves
                    outbox.put({})

    def act(self, client: int, message: Mapping[str, Any]) -> None:
        """Act on a message that is answered later or not at all."""
        kind, key = message["op"], message.get("key", "")
        with self.changed:
            if kind == "get":
                wanted = [(key, name) for name in message["names"]]
                self._notice_deleted(wanted)
                request = self.schedule.request(client, message["id"], wanted, message["pin"])
                self.counts["hits" if request.is_ready else "waits"] += 1
                self._answer_ready()
            elif kind == "free":
                self.schedule.free(client, [(key, name) for name in message["names"]])
            elif kind == "doubt":
                for name in message["names"]:
                    self.schedule.doubt(self.schedule.files[key, name])
            elif kind == "plan":
                plan = self.schedule.plans.setdefault((client, message["plan"]), Plan())
                dataset = self.datasets[key]
                for first, last, part in message["uses"]:
                    plan.extend(first, last, [self.schedule.files[key, name] for name in dataset.parts[part]])
            elif kind == "at":
                plan = self.schedule.plans.get((client, message["plan"]), Plan())
                plan.move(message["batch"])
            elif kind == "unplan":
                self.schedule.plans.pop((client, message["plan"]), None)
            self._notify()

    def forget(self, client: int) -> None:
        """Remove everything of a client that has ended."""
        with self.changed:
            self.schedule.forget(client)
            self.outboxes.pop(client, None)
            self.sizes.pop(client, None)
            self.schedule.limit = min(self.schedule.limit, max(self.sizes.values(), default=self.schedule.limit))
            self._notify()

    def _notify(self) -> None:
        """Wake those who wait for a change. One thread that downloads wakes the next if it finds a file."""
        self.changed.notify_all()
        self._work.notify()

    def _notice_deleted(self, files: Iterable[FileKey]) -> None:
        """Notice files that a user has deleted."""
        for key in files:
            file = self.schedule.files[key]
            if file.state == "present" and not self._path(key).exists():
                self.schedule.lose(file)

    def _path(self, key: FileKey) -> Path:
        return self.roots[key[0]] / key[1]

    def _free_bytes(self) -> int:
        """Return the size of the cache if no client gave one: most of what the disk has left, with what is cached."""
        status = os.statvfs(self.folder.root) if hasattr(os, "statvfs") else None
        free = status.f_bavail * status.f_frsize if status is not None else 1 << 40
        return int(_FREE_SHARE * free) + self.schedule.held

    # Downloads.

    def fetch_forever(self) -> None:
        """Download one file after the other."""
        while True:
            with self.changed:
                found = self.schedule.next(time.monotonic())
                self._send_releases()
                if found is None:
                    self._work.wait(_TICK_S)
                    continue
                self._work.notify()
                for file in found.evicted:
                    self._delete(file)
                dataset = self.datasets[found.file.key[0]]
            error: ShardspecError | None = None
            try:
                self._download(dataset, dataset.entries[found.file.key[1]])
            except ShardspecError as raised:
                error = raised
            except Exception as raised:
                error = StoreError(f"{type(raised).__name__}: {raised}", place=dataset.store.place(found.file.key[1]))
            with self.changed:
                self.schedule.finish(found.file, error is None)
                if error is not None:
                    self._fail(found.file, error)
                self._answer_ready()
                self._notify()

    def _download(self, dataset: RemoteDataset, entry: FileEntry) -> None:
        """Download a file to its place, unless an equal one is there.

        One that is missing or has a wrong digest is downloaded again, once.
        """
        with suppress(DatasetError, OSError):
            Layout(dataset.root).check_digest(entry)
            return
        for left in reversed(range(_ATTEMPTS)):
            begin = time.monotonic()
            try:
                self._write(dataset, entry)
            except (ShardCorruptError, FileNotFoundError) as error:
                _check_standing(dataset)
                if not left and isinstance(error, ShardCorruptError):
                    raise
                if not left:
                    raise missing_object(entry, dataset.store.place(entry.name)) from None
            except OSError as error:
                if not _is_known(self.folder):  # the clients find another stager
                    os._exit(0)
                raise _unusable(self.folder, error) from error
            else:
                with self.changed:
                    self.counts["fetched_bytes"] += entry.bytes
                    self.counts["fetched_files"] += 1
                    self.counts["fetching_ms"] += int(1000 * (time.monotonic() - begin))
                return

    def _write(self, dataset: RemoteDataset, entry: FileEntry) -> None:
        """Download a file. If the disk is full, make space and begin again: fsync and close report it for all bytes."""
        while True:
            try:
                self._write_once(dataset, entry)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._make_space()
            else:
                return

    def _write_once(self, dataset: RemoteDataset, entry: FileEntry) -> None:
        path = dataset.root / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        chunks = dataset.store.chunks(entry.name, entry.bytes)
        try:
            with unfinished.open("xb") as file:
                for chunk in checked_chunks(chunks, entry, dataset.store.place(entry.name)):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _make_space(self) -> None:
        """Delete a file that is not in use, and keep the cache smaller by its size.

        If all are in use, wait for clients to release one; raise StoreError if none of them answers.
        """
        with self.changed:
            while True:
                file, asked = self.schedule.evict_one(time.monotonic())
                self._send_releases()
                if file is not None:
                    self._delete(file)
                    self.schedule.limit = self.schedule.held
                    return
                if not asked:
                    raise StoreError(
                        "The disk is full, and the cache has no file that is not in use.",
                        place=self.folder.root,
                        hint="free some space, or read with fewer `workers`",
                    )
                self.changed.wait(_TICK_S)

    def _delete(self, file: StagedFile) -> None:
        if not _is_known(self.folder):  # the files belong to another stager
            os._exit(0)
        self.counts["evictions"] += 1
        with suppress(OSError):  # Windows refuses it while a view of the file is left
            self._path(file.key).unlink(missing_ok=True)

    # Answers.

    def _answer_ready(self) -> None:
        for request in self.schedule.ready():
            self._send(request.client, {"id": request.number})

    def _fail(self, file: StagedFile, error: ShardspecError) -> None:
        """Answer the requests for a file that cannot be downloaded. Plans of it are dropped, until it is requested."""
        for request in [request for request in self.schedule.requests if file in request.files]:
            self.schedule.requests.remove(request)
            self._send(request.client, _failure(request.number, error))
        self.schedule.drop_plans(file)

    def _send_releases(self) -> None:
        for client, (key, name) in self.schedule.releases:
            self._send(client, {"release": [key, name]})
        self.schedule.releases.clear()

    def _send(self, client: int, message: Mapping[str, Any]) -> None:
        outbox = self.outboxes.get(client)
        if outbox is not None:
            outbox.put(message)


def _check_standing(dataset: RemoteDataset) -> None:
    """Check that the dataset in the store is still the one that was opened."""
    found = "another in its place"
    try:
        if key_of(dataset.store.read(MANIFEST_NAME, MANIFEST_BYTES_MAX)) == dataset.key:
            return
    except FileNotFoundError:
        found = f"no {MANIFEST_NAME}: it was deleted, or another is being copied there"
    raise DatasetChangedError(
        place=dataset.store.url, expected="the dataset that was opened", found=found, hint="open it again"
    )


def _unusable(folder: CacheFolder, error: OSError) -> StoreError:
    return StoreError(f"The cache folder cannot be used: {system_reason(error)}", place=folder.root)


def _failure(number: int, error: ShardspecError) -> Mapping[str, Any]:
    data = {name: getattr(error, name) for name in ("problem", "option", "place", "expected", "found", "hint")}
    return {"id": number, "error": [type(error).__name__, data]}


def _adopt(variables: Mapping[str, str]) -> None:
    """Set the environment variables from which a store takes its settings to those of a client."""
    for name in settings().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def settings() -> dict[str, str]:
    """Return the environment variables of this process from which stores take their settings."""
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


def serve(given: Path) -> None:
    """Run the stager of a cache folder until its last client has ended. Do nothing if another one runs."""
    folder = CacheFolder(given)
    folder.make()
    lock = folder.lock()
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return
    folder.sweep()
    stager, token = Stager(folder), secrets.token_hex(16)
    listener = Listener(("127.0.0.1", 0), backlog=64)
    address = {"port": listener.address[1], "token": token, "pid": os.getpid(), "host": socket.gethostname()}
    write(folder.address, json.dumps(address).encode())
    for work in [stager.fetch_forever] * FETCHERS + [partial(_accept, stager, listener, token)]:
        Thread(target=work, daemon=True).start()
    with stager.changed:
        patience = _FIRST_CLIENT_S
        while stager.changed.wait_for(lambda: stager.outboxes, patience):
            while not stager.changed.wait_for(lambda: not stager.outboxes, _TICK_S):
                if not _is_known(folder):  # a user deleted the folder, or another stager has taken this one's place
                    os._exit(0)
                stager.beat()
            patience = _LINGER_S
        if _is_known(folder):
            folder.address.unlink(missing_ok=True)
        os._exit(0)  # without waiting for downloads


def _is_known(folder: CacheFolder) -> bool:
    """Return whether clients find this process."""
    address = read_address(folder.address)
    return address is not None and address["pid"] == os.getpid()


def _accept(stager: Stager, listener: Listener, token: str) -> None:
    for number in count():
        connection = listener.accept()
        Thread(target=_converse, args=(stager, number, connection, token), daemon=True).start()


def _converse(stager: Stager, client: int, connection: "Connection[Any, Any]", token: str) -> None:
    """Act on the messages of one client until it ends."""
    outbox: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
    try:
        if not hmac.compare_digest(connection.recv_bytes(len(token)), token.encode()):
            return
        with stager.changed:
            stager.outboxes[client] = outbox
            stager.changed.notify_all()
        outbox.put({"hello": os.getpid()})
        Thread(target=send_all, args=(outbox, connection), daemon=True).start()
        while True:
            message = json.loads(connection.recv_bytes(MESSAGE_BYTES_MAX))
            answer = _ANSWERED.get(message["op"])
            if answer is None:
                stager.act(client, message)
                continue
            try:
                outbox.put({"id": message["id"], "result": answer(stager, client, message)})
            except ShardspecError as error:
                outbox.put(_failure(message["id"], error))
            except OSError as error:
                outbox.put(_failure(message["id"], _unusable(stager.folder, error)))
    except (EOFError, OSError):
        pass
    finally:
        stager.forget(client)
        outbox.put(None)
        connection.close()


def send_all(outbox: "SimpleQueue[Mapping[str, Any] | None]", connection: "Connection[Any, Any]") -> None:
    """Send the messages of a queue until None comes or the other side has ended."""
    with suppress(OSError):
        while (message := outbox.get()) is not None:
            connection.send_bytes(json.dumps(message).encode())


_ANSWERED: Mapping[str, Callable[[Stager, int, Mapping[str, Any]], Any]] = {
    "open": lambda stager, client, message: stager.open(client, *message["args"]),
    "attach": lambda stager, client, message: stager.attach(message["key"]),
    "missing": lambda stager, client, message: stager.missing(message["key"]),
    "stats": lambda stager, client, message: stager.stats(),
}
"""Messages that are answered at once."""


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
