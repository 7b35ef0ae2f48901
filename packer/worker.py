"""A worker process: ``python -m packer.worker WORKSPACE``. Takes units on standard input, answers on standard output.

Both are JSON lines. The worker ends when its standard input does, so it never outlives the build. What the steps print goes to
standard error.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

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


def main(workspace: Path) -> None:
    """Serve units until the end of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
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


def _listen(requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Pass requests on; at the end of input end the process at once, whatever it is doing."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def _serve(work: UnitWork, request: dict[str, Any], answers: TextIO) -> None:
    unit = Unit(*request["unit"])
    verdicts = {int(item): (step, reason) for item, (step, reason) in request["verdicts"].items()}

    def progress(what: str, item: int, samples: int) -> None:
        _send(answers, event=what, item=item, samples=samples)

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
