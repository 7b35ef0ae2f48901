"""A worker process: ``python -m packer.worker WORKSPACE``. Takes units on standard input, answers on standard output.

Both are JSON lines. The worker ends when its standard input does, with all that it started, so it never outlives the build.
Steps, and programs that they run, see an empty standard input; what they print goes to standard error.
"""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from packer.threads import one_thread
from packer.units import Unit, UnitWork
from packer.workspace import Workspace
from shardspec.errors import ShardspecError
from shardspec.registry import Entry, resolve

WORKS: Mapping[str, Entry] = {
    "build": Entry("packer.work:Work"),
    "convert": Entry("packer.row_work:RowWork"),
    "merge": Entry("packer.row_work:RowWork"),
    "split": Entry("packer.row_work:RowWork"),
}
"""What does the units of a plan, by the plan's kind."""

_PR_SET_PDEATHSIG = 1
"""From Linux's ``prctl.h``."""


def main(workspace: Path) -> None:
    """Serve units until the end of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    lines = os.fdopen(os.dup(0), encoding="ascii")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines, requests), daemon=True).start()
    try:
        _work(workspace, requests, answers)
    except BaseException:
        # At once: a thread that a step left behind must not keep a broken process alive.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _work(workspace: Path, requests: "queue.SimpleQueue[dict[str, Any]]", answers: TextIO) -> None:
    try:
        space = Workspace(workspace)
        document = json.loads(space.plan.read_bytes())
        work: UnitWork = resolve("plan", document["kind"], WORKS).of_plan(space, document)
        if not space.assembly.exists():
            work.prepare()
    except ShardspecError as error:
        _send(answers, event="failed", message=str(error))
        return
    _send(answers, event="ready")
    with one_thread():
        while True:
            _serve(work, requests.get(), answers)


def _listen(lines: TextIO, requests: "queue.SimpleQueue[dict[str, Any]]") -> NoReturn:
    """Pass requests on; at the end of input end the process at once, whatever it is doing, and what it started."""
    for line in lines:
        requests.put(json.loads(line))
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _end_with_parent() -> None:
    """Have Linux end this process soon after its parent, even while a step holds the interpreter's lock.

    The parent's death is signalled as SIGHUP, whose number is 1 and whose handler is the C library's ``alarm``: so `_listen`
    has one second to end this process with all that it started, before SIGALRM ends it without asking the interpreter.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(int(signal.SIGHUP), ctypes.cast(libc.alarm, ctypes.c_void_p))
    parent = os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    if os.getppid() != parent:
        os._exit(1)


def _serve(work: UnitWork, request: dict[str, Any], answers: TextIO) -> None:
    unit = Unit(*request["unit"])
    verdicts = {int(item): (step, reason) for item, (step, reason) in request["verdicts"].items()}

    def progress(what: str, item: int, samples: int, reason: str) -> None:
        _send(answers, event=what, item=item, samples=samples, reason=reason)

    try:
        result = work.run(unit, verdicts, progress)
    except ShardspecError as error:
        _send(answers, event="failed", message=str(error))
    else:
        _send(answers, event="done", result=result)


def _send(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
