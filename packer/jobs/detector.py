"""The detecting process: ``python -m packer.jobs.detector WORKSPACE LIMIT``. One detector for all workers of a build.

Standard input is a socket over which the build hands it each worker's connection, as a descriptor with the worker's number. On
standard output it says in JSON lines when it is ready, whose requests wait, and whose it detects. It ends when its standard input does.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from packer.jobs.process import end_group, end_with_parent, one_thread, send, take_streams
from packer.recipe import Recipe
from packer.steps.faces.search import make_detector
from packer.vision.detect.channel import take_over
from packer.vision.detect.server import DetectorServer
from packer.workspace import Workspace


def main(workspace: Path, limit_s: float) -> None:
    """Serve workers until the end of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    requests, answers = take_streams()

    turn = threading.Lock()

    def announce(what: str, worker: int, frames: int) -> None:
        with turn:
            send(answers, event=what, worker=worker, frames=frames)

    server = DetectorServer(announce, limit_s)
    control = socket.socket(fileno=requests)
    threading.Thread(target=_listen, args=(control, server), daemon=True).start()
    try:
        plan = json.loads(Workspace(workspace).plan.read_bytes())
        detector = make_detector(Recipe.from_options(plan["recipe"]))
        send(answers, event="ready")
        with one_thread():
            server.run(detector)
    except BaseException:
        # At once: threads that receive must not keep a broken process alive.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _listen(control: socket.socket, server: DetectorServer) -> NoReturn:
    """Take connections; at the end of input end the process at once, whatever it is doing."""
    try:
        while (taken := take_over(control)) is not None:
            server.attach(*taken)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        end_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
