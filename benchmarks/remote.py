"""Our Loader over a dataset on a web server with a fixed rate, against the same dataset on the local disk.

    python -m benchmarks.remote --folder /somewhere
    python -m benchmarks.remote --folder /somewhere --rates 50 200 --kinds raw jpeg

The server is on loopback, in a process of its own. All its connections together send at most ``--rates`` MB/s (a token
bucket), and every answer begins after ``--latency-ms``. For each rate, kind and order, every round has three epochs in
turn: with an empty cache, with the cache that the first one filled, and of the local dataset. *link* is the bytes of all
files over the rate, divided by the time of the cold epoch; *first* is the time to the first batch, and in shards, the
time that one shard takes on the link; *warm* is the time of the local epoch over that of the warm one.
"""

import argparse
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import packer
from benchmarks.data import Source, add_arguments, make_source, pack_ours, rows_of
from readers import Loader, open_dataset

_PIECE = 1 << 16


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
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, bucket: _Bucket, latency_s: float, **options: Any) -> None:
        self._bucket, self._latency_s = bucket, latency_s
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        time.sleep(self._latency_s)
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while piece := source.read(_PIECE):
            self._bucket.take(len(piece))
            outputfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(folder: str, rate: str, latency_ms: str) -> None:
    """Serve a folder until the process is killed; print the port."""
    handler = partial(_Handler, directory=folder, bucket=_Bucket(float(rate) * 1e6), latency_s=float(latency_ms) / 1e3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def epoch(loader: Loader) -> tuple[float, float]:
    """Return the seconds until the first batch, and until the last."""
    begin, first = time.perf_counter(), 0.0
    for batch in loader:
        first = first or time.perf_counter() - begin
        del batch
    return first, time.perf_counter() - begin


def measure(url: str, root: Path, cache: Path, shuffle: Any, batch: int) -> dict[str, float]:
    """Run one round."""
    local = open_dataset(root)
    window = min(16, len(local.manifest.shards) // 4) or 1
    remote = open_dataset(url, cache=cache)
    loaders = [Loader(ds, batch, seed=1, shuffle=shuffle, window=window) for ds in (remote, remote, local)]
    (first, cold), (_, warm), (_, here) = map(epoch, loaders)
    return {"first": first, "cold": cold, "warm": warm, "local": here}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--rates", nargs="*", type=float, default=[50, 200], help="MB/s")
    parser.set_defaults(kinds=["raw", "jpeg"], rounds=3)
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--format", default="lmdb")
    parser.add_argument("--shard-size", default="32MB")
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    make_source(source, tuple(arguments.kinds), rows_of(arguments))
    print("kind  order   rate  link              first (shards)        warm")
    for kind in arguments.kinds:
        packed = arguments.folder / f"{kind}-{arguments.format}"
        pack_ours(Source(source, kind), packed, arguments.format)
        root = arguments.folder / f"{kind}-{arguments.format}-remote"
        packer.convert(packed, root, format=arguments.format, shard_size=arguments.shard_size, progress=False)
        manifest = open_dataset(root).manifest
        size, shard = manifest.stored_bytes, max(part.bytes for part in manifest.parts)
        for rate in arguments.rates:
            command = [sys.executable, "-c", "import sys; from benchmarks.remote import serve; serve(*sys.argv[1:])"]
            given = [str(root), str(rate), str(arguments.latency_ms)]
            with subprocess.Popen([*command, *given], stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                url = f"http://127.0.0.1:{int(server.stdout.readline())}"
                for shuffle in ("blocks", "full"):
                    rounds = []
                    for _ in range(arguments.rounds):
                        cache = arguments.folder / "cache"
                        rounds.append(measure(url, root, cache, shuffle, arguments.batch))
                        time.sleep(2)  # the stager ends
                        shutil.rmtree(cache)
                    link = [size / rate / 1e6 / one["cold"] for one in rounds]
                    first = [one["first"] for one in rounds]
                    shards = median(first) / (shard / rate / 1e6)
                    warm = [one["local"] / one["warm"] for one in rounds]
                    print(
                        f"{kind:5} {shuffle:7} {rate:4.0f}  {_spread(link)}  "
                        f"{median(first):.2f} s ({shards:.1f})  {_spread(warm)}",
                        flush=True,
                    )
                server.kill()


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
