"""Loaders over a dataset on a server with a fixed rate: ours, LitData, MosaicML Streaming and WebDataset, in turn.

    python -m benchmarks.remote --folder /somewhere --json benchmarks/results
    python -m benchmarks.remote --folder /somewhere --rates 200 --kinds jpeg --only Loader

The server is on loopback, in a process of its own. It serves files to web clients (WebDataset and, by a URL, our
Loader) and to S3 clients (the others). All its connections together send at most ``--rates`` MB/s (a token bucket), each
at most ``--connection-rate``, and every answer begins after ``--latency-ms``. All formats have shards of ``--shard-mb``.

In every round each loader begins with an empty cache, in a new process. *Of the link* is the bytes of all files over
the rate, divided by the time of this epoch. *First batch* is the time from asking for it, also in units of the time that
the link takes for one shard. Then come epochs with the full cache; our Loader has them in turn with epochs over a local
copy, and *of local* is the ratio of the rates. WebDataset streams, and has no cache.

The last table shows how often our Loader downloads a shard if the cache holds a quarter of the dataset.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contender import ROOT, Contender, ContenderError
from benchmarks.data import KINDS, SourceImages, add_arguments, make_source, pack_ours, settings_of
from benchmarks.measure import Entry, artefact, document, versions, write
from benchmarks.peers import PEERS, pack_peer
from benchmarks.reader_arms import FIELDS
from benchmarks.tables import remote_tables
from readers import Loader, open_dataset

LIBRARIES = ("litdata", "mosaicml-streaming", "webdataset", "torch", "obstore", "boto3")
STREAMED = ("WebDataset",)
FORMAT = "lmdb"
JPEGS = 2
"""Rows of JPEG crops for one of raw crops: they are smaller."""
ORDERS = ("blocks", "full")
_WARM = 2
"""Epochs with a full cache, and over the local copy, in each round."""
_FAST = 2000.0
"""Rate of the server in MB/s where only files are counted: none."""
_PIECE = 1 << 16
_TIMEOUT_S = 180.0


class _Bucket:
    """Limits the bytes that all threads send in a second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at, self._lock = rate, 0.0, threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now - 0.01, self._free_at) + size / self._rate
            pause = self._free_at - now
        if pause > 0:
            time.sleep(pause)


class _Handler(SimpleHTTPRequestHandler):
    """GET and HEAD of files and ranges, for web clients and, with a folder as the bucket, for S3 clients."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, bucket: _Bucket, latency_s: float, connection_rate: float, **options: Any) -> None:
        self._buckets, self._latency_s, self._left = [bucket, _Bucket(connection_rate)], latency_s, 0
        super().__init__(*args, **options)

    def send_head(self) -> Any:
        time.sleep(self._latency_s)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return None
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2]), size - 1) if wanted and wanted[2] else size - 1
        self._left = last - first + 1
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(self._left))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.end_headers()
        file = path.open("rb")
        file.seek(first)
        return file

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while piece := source.read(min(_PIECE, self._left)):
            self._left -= len(piece)
            for bucket in self._buckets:
                bucket.take(len(piece))
            outputfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(folder: str, rate: str, latency_ms: str, connection_rate: str) -> None:
    """Serve a folder until the process is killed; print the port."""
    options = {"latency_s": float(latency_ms) / 1e3, "connection_rate": float(connection_rate) * 1e6}
    handler = partial(_Handler, directory=folder, bucket=_Bucket(float(rate) * 1e6), **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def server(folder: Path, rate: float, latency_ms: float, connection_rate: float = _FAST) -> Iterator[str]:
    """Start a server of a folder, whose files are in memory, and yield its URL; S3 clients find it in the environment."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()
    command = [sys.executable, "-c", "import sys; from benchmarks.remote import serve; serve(*sys.argv[1:])"]
    given = [str(folder), str(rate), str(latency_ms), str(connection_rate)]
    # Clients may close a connection early, which the server reports.
    options: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*command, *given], **options) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        os.environ |= dict.fromkeys(("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"), url)
        os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "none")
        os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        try:
            yield url
        finally:
            process.kill()


def entries_of(
    folder: Path, source: SourceImages, batch: int, shard_bytes: int, only: Sequence[str] | None
) -> list[Entry]:
    """Our Loader in both orders and the others, over data in the folder, which are packed if they are not there."""
    options = {"source": str(source.folder), "kind": source.kind, "batch": batch}
    root = folder / f"{source.kind}-{FORMAT}"
    mine = options | {"root": str(root)}
    facts = pack_ours(source, root, FORMAT, shard_bytes=shard_bytes)
    arm = "benchmarks.reader_arms:loader"
    entries = [Entry(f"Loader, {one}", arm, mine | {"shuffle": one}, ours=True, facts=facts) for one in ORDERS]
    for peer in PEERS:
        if peer.name in ("LitData", "MosaicML Streaming", "WebDataset") and (only is None or peer.name in only):
            root = peer.root(source.kind, folder)
            facts = pack_peer(peer, source, root, shard_bytes=shard_bytes)
            arm = f"benchmarks.peer_loaders.{peer.module}:{peer.open}"
            entries.append(Entry(peer.name, arm, options | {"root": str(root)}, facts=facts))
    return [entry for entry in entries if only is None or entry.name.startswith(tuple(only))]


def measure(entry: Entry, url: str, cache: Path, warm: bool, check: bool) -> dict[str, Any]:
    """Run one round of a loader: an epoch with an empty cache and, with `warm`, some with a full one."""
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    place = {"root": f"{url}/{Path(entry.options['root']).name}"} if entry.ours else {"server": url}
    with ExitStack() as stack:
        remote = stack.enter_context(Contender(entry.arm, entry.options | place | {"cache": str(cache)}, _TIMEOUT_S))
        cold = remote.epoch(1)
        found: dict[str, Any] = {name: cold[name] for name in ("seconds", "first_s", "cpu_s")} | {
            "warm": [],
            "local": [],
        }
        in_turn = {"warm": remote}
        if warm and entry.ours:
            in_turn["local"] = stack.enter_context(Contender(entry.arm, entry.options, _TIMEOUT_S))
            in_turn["local"].epoch(1)
        for number in range(2, 2 + _WARM if warm and entry.name not in STREAMED else 2):
            for name, contender in in_turn.items():
                epoch = contender.epoch(number)
                found[name].append(epoch["samples"] / epoch["seconds"])
        if check:
            remote.epoch(2 + _WARM, check=True)
    return found


def row_of(
    entry: Entry, rounds: Sequence[Mapping[str, Any]], rate: float, shard_bytes: int, error: str
) -> dict[str, Any]:
    """A row of the document."""
    warm, local = ([value for one in rounds for value in one[name]] for name in ("warm", "local"))
    return {
        "name": entry.name,
        "ours": entry.ours,
        "error": error,
        "of_link": [entry.facts["disk_mb"] / rate / one["seconds"] for one in rounds],
        "first_s": [one["first_s"] for one in rounds],
        "first_shards": [one["first_s"] * rate * 1e6 / shard_bytes for one in rounds],
        "cpu_s": [one["cpu_s"] for one in rounds],
        "warm": warm,
        "of_local": [a / b for a, b in zip(warm, local, strict=False)],
    }


def group_of(
    name: str, entries: Sequence[Entry], arguments: argparse.Namespace, url: str, rate: float
) -> dict[str, Any]:
    """Measure loaders in turn, round after round; with a full cache only at the highest rate, as it makes no difference.

    A loader that fails in one round is tried again in the next.
    """
    rounds: list[list[dict[str, Any]]] = [[] for _ in entries]
    errors = ["" for _ in entries]
    warm = rate == max(arguments.rates)
    for number in range(arguments.rounds):
        for i, entry in enumerate(entries):
            try:
                check = warm and number == arguments.rounds - 1
                rounds[i].append(measure(entry, url, arguments.folder / "cache", warm, check))
            except ContenderError as error:
                errors[i] = str(error)
                print(f"{name}: {entry.name}: {errors[i].strip().splitlines()[-1:]}", flush=True)
    shard_bytes = int(arguments.shard_mb * 1e6)
    rows = [
        row_of(entry, found, rate, shard_bytes, error)
        for entry, found, error in zip(entries, rounds, errors, strict=True)
    ]
    return {"name": name, "rows": rows}


def downloads(url: str, root: Path, cache: Path, order: str, batch: int) -> dict[str, Any]:
    """How often an epoch downloads the dataset if the cache holds a quarter of it."""
    manifest = open_dataset(root).manifest
    dataset = open_dataset(f"{url}/{root.name}", FIELDS, cache=cache, cache_size=manifest.stored_bytes // 4)
    loader = Loader(dataset, batch, shuffle="auto" if order == "blocks" else "full", drop_last=True)
    counts = [loader.stats().get("fetched_bytes", 0)]
    for _ in range(2 if order == "blocks" else 1):  # an epoch in full order downloads it some twenty times
        for one in loader:
            del one
        counts.append(loader.stats()["fetched_bytes"])
    epochs = [(b - a) / manifest.stored_bytes for a, b in pairwise(counts)]
    return {"name": f"Loader, {order}", "ours": True, "shards": len(manifest.shards), "epochs": epochs}


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--rates", nargs="*", type=float, default=[50, 200], help="MB/s")
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--connection-rate", type=float, default=_FAST, help="MB/s of each connection")
    parser.add_argument("--shard-mb", type=float, default=32)
    parser.set_defaults(kinds=["raw", "jpeg"], rounds=3, rows=6000)
    arguments = parser.parse_args()
    stored = arguments.folder / "store"
    stored.mkdir(parents=True, exist_ok=True)
    given = {name: getattr(arguments, name) for name in ("rates", "latency_ms", "connection_rate", "shard_mb")}
    rows = {"raw": arguments.rows, "jpeg": arguments.rows * JPEGS}
    settings = settings_of(arguments) | given | {"rows": rows, "peers": versions(LIBRARIES)}
    out = artefact(arguments.json, "remote")
    groups: list[dict[str, Any]] = []
    for kind in arguments.kinds:
        shard_bytes = int(arguments.shard_mb * 1e6)
        source = arguments.folder / f"source-{kind}"
        make_source(source, (kind,), dict.fromkeys(KINDS, rows[kind]))
        entries = entries_of(stored, SourceImages(source, kind), arguments.batch, shard_bytes, arguments.only)
        for rate in arguments.rates:
            with server(stored, rate, arguments.latency_ms, arguments.connection_rate) as url:
                groups.append(group_of(f"{kind}, {rate:g} MB/s", entries, arguments, url, rate))
            print(remote_tables([groups[-1]])[0] + "\n", flush=True)
            write(document("remote", settings, groups), out)
    root, caches = stored / f"{arguments.kinds[0]}-{FORMAT}", arguments.folder / "caches"
    with server(stored, _FAST, 0) as url:
        counted = [downloads(url, root, caches / order, order, arguments.batch) for order in ORDERS]
    shutil.rmtree(caches)
    groups.append({"name": f"{arguments.kinds[0]}, a cache of a quarter", "rows": counted})
    print(remote_tables(groups[-1:])[0])
    write(document("remote", settings, groups), out)


if __name__ == "__main__":
    main()
