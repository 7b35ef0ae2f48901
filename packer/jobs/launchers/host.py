"""The process beside the workers on another host: ``python -m packer.jobs.launchers.host LOGS``.

It starts workers, passes requests and answers on, and says which items are under way: of its own accord only once an
item lasts, so that a tiny picture costs no message. It outlives its workers, and so tells exactly at which item and how
each died. If the connection ends without this report, then something else ended: the host, the connection, or this
process itself.

On standard input it takes JSON lines with the number of a ``worker``, and one of ``start`` (what `Hosted` needs to
know; the stem of a log's name below LOGS; in the command, ``{place}`` stands for the file in which the worker notes its
item), ``request`` (for the worker) and ``end``. On standard output it writes the workers' answers with their numbers;
the last one of each is ``ended``. The first line says where the process runs (`describe_host`).
"""

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.jobs.child import Answers, Child
from packer.jobs.place import Place
from packer.jobs.process import entry_point, inherited_environment, send
from packer.workspace.fresh import host

_LOOK_S = 0.2
"""How often it looks at which item is under way."""


class Hosted:
    """A worker on this host.

    Parameters
    ----------
    command : sequence of str
        A module of ours and its arguments.
    log : Path
        Receives what the worker writes to standard error.
    environment : mapping of str to str or None
        See `Child`.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="packer-"))
        at = self._folder / "item"
        self._place = Place.create(at)
        self._answers = Answers()
        try:
            words = [word.replace("{place}", str(at)) for word in command]
            self._child = Child(words, log, self._answers, environment=environment)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def send(self, request: Mapping[str, Any]) -> None:
        """Pass a request on."""
        self._child.send(request)

    def kill(self) -> None:
        """Kill the worker with all that it started, without waiting; `serve` reports the end."""
        self._child.kill()

    def end(self) -> None:
        """End the worker with all that it started."""
        self._child.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def serve(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Pass answers on, and say what is under way, until the worker has died; the last message says how."""
        told: tuple[int | None, int] = (None, 0)
        looked_s = 0.0
        while True:
            message: dict[str, Any] | None
            try:
                _, message = self._answers.get(timeout=_LOOK_S)
            except queue.Empty:
                message = {"event": "died"} if self._child.has_ended() else None
            if message is not None and message["event"] == "died":
                item = self._place.get()
                how = self._child.describe_death()
                self.end()
                tell({"event": "ended", "item": item, "message": how})
                return
            if message is not None:
                if message["event"] == "ready":
                    message |= describe_host()
                    shutil.rmtree(self._folder, ignore_errors=True)  # both have the file mapped
                tell(message)
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S:
                looked_s, at = now_s, (self._place.get(), self._place.frames())
                if at != told:
                    told = at
                    tell({"event": "at", "item": at[0], "frames": at[1]})


def describe_host() -> dict[str, Any]:
    """Where this process runs: the host's name, and Slurm's numbers of job and step, if there are any."""
    step = {name.lower(): os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in os.environ}
    return {"host": host(), "pid": os.getpid(), **step}


class Host:
    """The workers of this process, by number.

    Parameters
    ----------
    logs : Path
    tell : callable
        Takes messages, from several threads.
    """

    def __init__(self, logs: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self._logs = logs
        self._tell = tell
        self._workers: dict[int, Hosted] = {}

    def take(self, message: Mapping[str, Any]) -> None:
        """Do what a message asks for. One to a worker that has died meanwhile is in vain; its end was told."""
        number = message["worker"]
        if "start" in message:
            self._start(number, **message["start"])
        elif (worker := self._workers.get(number)) is None:
            pass
        elif "request" in message:
            worker.send(message["request"])
        else:
            worker.kill()

    def end(self) -> None:
        """End all workers."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.end()

    def _start(self, number: int, command: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        def tell(message: dict[str, Any]) -> None:
            self._tell({"worker": number, **message})

        try:
            worker = Hosted(command, self._logs / f"{log}.log", {**inherited_environment(), **variables})
        except OSError as error:
            tell({"event": "ended", "item": None, "message": str(error)})
            return

        def serve() -> None:
            try:
                worker.serve(tell)
            finally:
                self._workers.pop(number, None)

        self._workers[number] = worker
        threading.Thread(target=serve, daemon=True).start()


def main(logs: Path) -> None:
    """Serve messages on standard input until it ends."""
    with entry_point() as (descriptor, answers):
        one_at_a_time = threading.Lock()

        def tell(message: dict[str, Any]) -> None:
            with one_at_a_time:
                send(answers, **message)

        workers = Host(logs, tell)
        tell({"event": "host", **describe_host()})
        # Workers end when the thread does that has started them, so it is the one that lives as long as this process.
        try:
            with os.fdopen(descriptor, encoding="ascii") as lines:
                for line in lines:
                    workers.take(json.loads(line))
        finally:
            workers.end()
        os._exit(0)  # whoever started this process sees that it ended as it should


if __name__ == "__main__":
    main(Path(sys.argv[1]))
