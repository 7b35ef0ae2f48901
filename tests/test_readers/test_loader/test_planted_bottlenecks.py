"""Twenty planted bottlenecks: `readers.diagnose` names each. Delays outweigh everything else many times over."""

import functools
import http.server
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.crops import write_crops

from readers import Loader, RandomResizedCrop, diagnose, open_dataset
from readers.formats.machine import available_processors
from readers.formats.shards import reader_class

pytestmark = pytest.mark.slow

VERDICTS = {
    "step": "The step is the limit",
    "contention": "take the processors from each other",
    "moving": "copies to the device and batch_transform",
    "link": "The link is the limit",
    "transforms": "Transforms take",
    "busy": "for a free processor",
    "disk": "for the disk or network",
    "threads": "processors are unused",
    "decoding": "Reading and decoding take",
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_crops(tmp_path_factory.mktemp("raw") / "npy", "npy", None, 240, 32, 20)


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_crops(tmp_path_factory.mktemp("jpeg") / "lmdb", "lmdb", "jpeg", 240, 384, 20)


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def slowly(work: Callable[[float], None], seconds: float) -> Callable[..., Any]:
    def act(value: Any, *others: Any) -> Any:
        work(seconds)
        return value

    return act


def in_threads(transform: Callable[..., Any]) -> Callable[..., Any]:
    transform.seeded = transform.threaded = True  # type: ignore[attr-defined]
    return transform


def held_back(batch: Any) -> None:
    """Take longer while the Loader's threads work, as a step that needs all processors does."""
    time.sleep(0.12 if any(thread.name.startswith("readers-loader-") for thread in threading.enumerate()) else 0.03)


@contextmanager
def busy_processors() -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=spin, args=(600.0,), daemon=True) for _ in range(4 * (os.cpu_count() or 1))]
    for other in others:
        other.start()
    time.sleep(5)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


@contextmanager
def served(root: Path, bytes_per_s: float, latency_s: float) -> Iterator[str]:
    """Serve a folder over a link of a given rate, shared by all connections, and a delay of each request."""
    lock = threading.Lock()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def copyfile(self, source: Any, outputfile: Any) -> None:
            time.sleep(latency_s)
            while chunk := source.read(1 << 15):
                with lock:
                    time.sleep(len(chunk) / bytes_per_s)
                outputfile.write(chunk)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=root))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def nothing(batch: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("verdict", "kind", "how", "step"),
    [
        ("step", "raw", {}, slowly(time.sleep, 0.2)),
        ("step", "raw", {}, slowly(spin, 0.1)),
        ("step", "raw", {"sample_transform": slowly(time.sleep, 0.001)}, slowly(time.sleep, 0.2)),
        ("contention", "raw", {"sample_transform": slowly(time.sleep, 0.002)}, held_back),
        ("moving", "raw", {"batch_transform": slowly(time.sleep, 0.1)}, nothing),
        ("moving", "raw", {"batch_transform": slowly(spin, 0.1)}, nothing),
        ("transforms", "raw", {"sample_transform": slowly(time.sleep, 0.02)}, nothing),
        ("transforms", "raw", {"sample_transform": slowly(spin, 0.01)}, nothing),
        ("transforms", "raw", {"batch_transform": in_threads(slowly(time.sleep, 0.2))}, nothing),
        ("transforms", "raw", {"views": [slowly(time.sleep, 0.02), None]}, nothing),
        ("transforms", "part", {}, slowly(time.sleep, 0.01)),
        ("disk", "slow disk", {}, nothing),
        ("disk", "slow disk", {"shuffle": "blocks"}, nothing),
        ("disk", "slow disk", {"workers": 1}, slowly(time.sleep, 0.01)),
        ("threads", "jpeg", {"workers": 1}, nothing),
        ("decoding", "jpeg", {}, nothing),
        ("decoding", "cropped", {}, nothing),
        ("busy", "busy", {}, nothing),
        ("link", "slow link", {"batch_size": 5}, nothing),
        ("link", "far store", {"batch_size": 5}, slowly(time.sleep, 0.01)),
    ],
)
def test_a_planted_bottleneck_is_found(
    raw, jpeg, tmp_path, monkeypatch, leaks_allowed, verdict, kind, how, step
) -> None:
    if verdict == "threads" and available_processors() < 2:
        pytest.skip("there is only one processor")
    how = {"batch_size": 10, "shuffle": "full"} | how
    with ExitStack() as stack:
        if kind == "raw":
            dataset = open_dataset(raw)
        elif kind == "part":
            dataset = open_dataset(raw, transform=slowly(spin, 0.01)).subset(range(200))
        elif kind == "slow disk":
            dataset = open_dataset(raw)
            reader = reader_class("npy")
            read = reader.read

            def slow(*args: Any) -> None:
                time.sleep(0.03)
                read(*args)

            monkeypatch.setattr(reader, "read", slow)
        elif kind in ("slow link", "far store"):
            rate, latency = {"slow link": (100e3, 0.0), "far store": (1e9, 1.0)}[kind]
            url = stack.enter_context(served(raw, rate, latency))
            dataset = open_dataset(url, ["image", "label"], cache=tmp_path, cache_size="1GB")
            how["shuffle"] = "auto"
        else:
            decode = {"image": RandomResizedCrop(224)} if kind == "cropped" else None
            dataset = open_dataset(jpeg, ["image", "label"], decode=decode)
            if kind == "busy":
                stack.enter_context(busy_processors())
        found = diagnose(Loader(dataset, **how), step, batches=40 if verdict == "link" else 12)
    allowed = {verdict}
    if verdict in ("threads", "decoding") and os.getloadavg()[0] > available_processors():
        allowed.add("busy")  # with other programs, or the scenario before, that is true as well
    assert any(VERDICTS[name] in found.verdict for name in allowed), found
