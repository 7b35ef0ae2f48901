"""The process beside a worker on another host: ``python -m packer.jobs.launchers.host LOG MODULE ARGUMENT...``.

It starts the worker, passes requests and answers on, and says which item is under way: of its own accord only once an
item lasts, so that a tiny picture costs no message. It outlives the worker, and so tells exactly at which item and how
that died. If the connection ends without this report, then something else ended: the host, the connection, or this
process itself. In the arguments, ``{place}`` stands for the file in which the worker notes its item.
"""

import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.jobs.child import Answers, Child
from packer.jobs.place import Place
from packer.jobs.process import entry_point, listen, send
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
        self._answers: Answers = queue.SimpleQueue()
        try:
            words = [word.replace("{place}", str(at)) for word in command]
            self._child = Child(words, log, self._answers, environment=environment)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def send(self, request: Mapping[str, Any]) -> None:
        """Pass a request on."""
        self._child.send(request)

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


def main(log: Path, command: Sequence[str]) -> None:
    """Serve requests on standard input until it ends, or the worker does."""
    with entry_point() as (descriptor, answers):
        hosted = Hosted(command, log)

        def read() -> None:
            try:
                with os.fdopen(descriptor, encoding="ascii") as lines:
                    for line in lines:
                        hosted.send(json.loads(line))
            finally:
                hosted.end()
            os._exit(0)  # whoever started this process sees that it ended as it should

        listen(read)
        hosted.serve(lambda message: send(answers, **message))
        os._exit(0)  # the other thread would wait for requests


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
