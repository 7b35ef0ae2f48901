"""The processes engine: worker processes of our own entry point, so a user's script needs no ``__main__`` guard."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from packer.engines.base import Event
from packer.threads import limit_environment
from packer.units import Unit, Verdicts
from packer.workspace import Workspace

_TICK_S = 0.5
_READER_JOIN_S = 5.0
"""A child that left the worker's group may hold its pipe open; the reader is a daemon and may wait for it."""
_LOG_TAIL_BYTES = 1500
_START_ATTEMPTS = 5
"""Workers in a row that may die before they are ready (killed from outside, say) until the job gives up."""


class _Worker:
    """One process, the thread that reads its answers, and what it is doing."""

    def __init__(
        self, number: int, workspace: Workspace, answers: "queue.SimpleQueue[tuple[_Worker, dict[str, Any]]]"
    ) -> None:
        self.number = number
        self.log = workspace.logs / f"worker-{number:03d}.log"
        self.unit: Unit | None = None
        self.item: int | None = None
        self.item_started_s = 0.0
        self.used = False
        self.ready = False
        self.pending: dict[str, Any] | None = None
        environment = dict(os.environ)
        limit_environment(environment)
        # What this process can import (steps, too), the worker can, in the same order; -P adds nothing before it.
        environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-P", "-m", "packer.worker", str(workspace.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def send(self, request: dict[str, Any]) -> None:
        """Give the process a unit; one that has died says so by the end of its answers."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def end(self) -> None:
        """Kill the process, with all that it started, and wait until it is gone."""
        if os.name == "posix":
            # Its own session's group (start_new_session); a child that lived on would also hold the pipes open.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._reader.join(_READER_JOIN_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def describe_death(self) -> str:
        """How the process ended, with the end of what it wrote."""
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
        return f"{how}: {tail.splitlines()[-1]}" if tail else how

    def _read(self, answers: "queue.SimpleQueue[tuple[_Worker, dict[str, Any]]]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                answers.put((self, json.loads(line)))
            except ValueError:  # a line cut by the process's death
                break
        answers.put((self, {"event": "died"}))


class _Clock:
    """Time that stands still while this process is stopped (Ctrl-Z, a suspended Slurm job): its workers are stopped, too."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._ticked_s = time.monotonic()

    def tick(self) -> None:
        """Let the time since the last tick pass; a wait is hardly longer than `_TICK_S`."""
        now_s = time.monotonic()
        self._passed_s += min(now_s - self._ticked_s, 2 * _TICK_S)
        self._ticked_s = now_s

    def now_s(self) -> float:
        """Seconds that have passed by the last tick."""
        return self._passed_s


class ProcessesEngine:
    """Runs units in worker processes and notices those that die or hang.

    Parameters
    ----------
    workspace : Workspace
    workers : int
    item_timeout : float
        Seconds that one item may take.
    """

    def __init__(self, workspace: Workspace, workers: int, item_timeout: float) -> None:
        self._workspace = workspace
        self._item_timeout = item_timeout
        self._answers: queue.SimpleQueue[tuple[_Worker, dict[str, Any]]] = queue.SimpleQueue()
        self._workers: list[_Worker | None] = [None] * workers
        self._failed_starts = 0
        self._clock = _Clock()

    def idle(self) -> int:
        """Number of workers without a unit."""
        return sum(worker is None or worker.unit is None for worker in self._workers)

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool) -> None:
        """Give a unit to an idle worker, starting a process where there is none."""
        places = [i for i, worker in enumerate(self._workers) if worker is None or worker.unit is None]
        place = min(places, key=lambda i: self._workers[i] is None)
        worker = self._workers[place]
        if worker is not None and fresh and worker.used:
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[place] = _Worker(place, self._workspace, self._answers)
        worker.unit, worker.item, worker.used = unit, None, True
        request = {"unit": list(unit), "verdicts": {str(item): list(why) for item, why in verdicts.items()}}
        if worker.ready:
            worker.send(request)
        else:
            worker.pending = request

    def wait(self) -> Event:
        """The next event."""
        while True:
            overdue = self._overdue()
            if overdue is not None:
                return overdue
            try:
                worker, message = self._answers.get(timeout=_TICK_S)
            except queue.Empty:
                return self._silent_death() or Event("tick")
            finally:
                self._clock.tick()
            if worker in self._workers:
                event = self._translate(worker, message)
                if event is not None:
                    return event

    def close(self) -> None:
        """Kill all workers."""
        for place, worker in enumerate(self._workers):
            if worker is not None:
                worker.end()
            self._workers[place] = None

    def _translate(self, worker: _Worker, message: dict[str, Any]) -> Event | None:
        """What a worker's message means for the job."""
        kind, unit = message["event"], worker.unit
        if kind == "ready":
            worker.ready = True
            self._failed_starts = 0
            if worker.pending is not None:
                worker.send(worker.pending)
                worker.pending = None
        elif kind == "start":
            worker.item, worker.item_started_s = message["item"], self._clock.now_s()
        elif kind == "end":
            worker.item = None
            return Event("item", unit, message["item"], message["samples"], message=message["reason"])
        elif kind == "done":
            worker.unit = None
            return Event("done", unit, result=message["result"])
        elif kind == "failed":
            return Event("failed", unit, message=message["message"])
        elif kind == "died":
            return self._bury(worker, "died", worker.describe_death())
        return None

    def _silent_death(self) -> Event | None:
        """A worker that has ended while a child of its keeps the pipe open, so that no end of its answers is seen."""
        for worker in self._workers:
            if worker is not None and worker.process.poll() is not None:
                return self._bury(worker, "died", worker.describe_death())
        return None

    def _overdue(self) -> Event | None:
        now_s = self._clock.now_s()
        for worker in self._workers:
            if worker is not None and worker.item is not None and now_s - worker.item_started_s > self._item_timeout:
                return self._bury(worker, "timeout", f"took longer than {self._item_timeout:g} s")
        return None

    def _bury(self, worker: _Worker, kind: str, message: str) -> Event:
        """Forget a worker that is gone, or make it so."""
        worker.end()
        self._workers[worker.number] = None
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                return Event(
                    "failed",
                    worker.unit,
                    message=f"worker processes do not start: {message} (log: {self._log(worker)})",
                )
        return Event("timeout" if kind == "timeout" else "died", worker.unit, worker.item, message=message)

    @staticmethod
    def _log(worker: _Worker) -> Path:
        return worker.log
