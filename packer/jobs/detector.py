"""Detector process, ``python -m packer.jobs.detector WORKSPACE``: one detector for all workers of a build.

Standard input is a socket over which the build passes the connection of each worker, as a descriptor with the worker's
number. On standard output, the process reports in JSON lines when it is ready, whose requests wait, and whose request
is processed. The process ends when its standard input ends.
"""

import socket
import sys
import threading
from functools import partial
from pathlib import Path

from packer.jobs.process import entry_point, listen, one_thread, send
from packer.recipe import Recipe
from packer.steps.faces.search import make_detector
from packer.vision.detect.remote import DetectorServer, take_over
from packer.workspace import Workspace
from packer.workspace.durable import read_record


def main(workspace: Path) -> None:
    """Serve workers until the end of standard input."""
    with entry_point() as (requests, answers):
        turn = threading.Lock()

        def announce(what: str, worker: int, frames: int) -> None:
            with turn:
                send(answers, event=what, worker=worker, frames=frames)

        server = DetectorServer(announce)
        listen(partial(_attach_workers, socket.socket(fileno=requests), server))
        plan = read_record(Workspace(workspace).plan)
        detector = make_detector(Recipe.from_options(plan["recipe"]))
        send(answers, event="ready")
        with one_thread():
            server.run(detector)


def _attach_workers(control: socket.socket, server: DetectorServer) -> None:
    while (taken := take_over(control)) is not None:
        server.attach(*taken)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
