"""What every test runs under: no leaks, no global settings left behind, Hypothesis with few or many examples."""

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import hypothesis
import pytest
from support.fuzz import SEED, examples
from support.stores import StoreServer, serving

os.environ["PACKER_SMALLEST_SIZE"] = "1"  # shards of a few samples

hypothesis.settings.register_profile("ours", examples(60))
hypothesis.settings.load_profile("ours")

_GRACE_S = 5.0
"""Threads and processes that were told to end may take so long."""

_NOT_OURS = ("tqdm", "TMonitor")
"""Names of threads that a library keeps for the rest of the process."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C in what it starts in the background, and the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which third of enumerations the run takes."""
    return f"TEST_SEED={SEED}"


@pytest.fixture
def leaks_allowed() -> None:
    """Requested by a test that leaves something open on purpose, or whose libraries do."""


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    """An object store for the tests of a file."""
    with serving() as running:
        yield running


@pytest.fixture
def here(server: StoreServer, monkeypatch: pytest.MonkeyPatch, leaks_allowed: None) -> StoreServer:
    """The store for clients in this process, whose threads and connections stay, and for its children."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    server.fail()
    return server


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a file, a thread or a child process behind."""
    if "leaks_allowed" in request.fixturenames or not Path("/proc/self/fd").is_dir():
        yield
        return
    files, threads, children = open_files(), live_threads(), child_processes()
    yield
    _check("open files", lambda: open_files() - files)
    _check("threads", lambda: live_threads() - threads)
    _check("child processes", lambda: child_processes() - children)


def _check(what: str, left: Callable[[], set[str]]) -> None:
    """Nothing is left, after a while at the latest."""
    if not left():
        return
    gc.collect()
    until = time.monotonic() + _GRACE_S
    while left() and time.monotonic() < until:
        time.sleep(0.02)
    assert not left(), f"the test left {what} behind"


def open_files() -> set[str]:
    """Files, pipes and sockets that this process holds open, but for devices and libraries' own descriptors."""
    # Python's own helpers of `spawn` and `forkserver` are spoken to through pipes for as long as the process lives.
    helpers = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- the listing's own descriptor is gone when it is read
        try:
            target = str(Path(f"/proc/self/fd/{name}").readlink())
        except OSError:
            continue
        if int(name) not in helpers and not target.startswith(("/dev/", "/proc/", "/sys/", "anon_inode:", "/memfd:")):
            found.add(f"{name} -> {target}")
    return found


def live_threads() -> set[str]:
    """Threads of Python, but for those that a library keeps."""
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_NOT_OURS) and type(thread).__name__ not in _NOT_OURS
    }


def child_processes() -> set[str]:
    """Processes that this one started, dead ones that nobody waited for included."""
    multiprocessing.active_children()  # waits for those that have ended
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended since it was listed
            continue
        for child in children:
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if "resource_tracker" not in command and "forkserver" not in command:
                found.add(f"{child} {command}")
    return found
