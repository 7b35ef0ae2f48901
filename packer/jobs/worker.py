"""Worker process, ``python -m packer.jobs.worker WORKSPACE PLACE AHEAD [DETECTOR]``.

The worker receives units on standard input and answers on standard output, both in JSON lines. It records the current
item in the mapped file PLACE (`packer.jobs.process.CurrentItem`). It ends with its children when its standard input
ends, so it never outlives the build. Steps, and programs that they run, read an empty standard input, and print to
standard error. AHEAD is 1 if the worker decodes ahead, otherwise 0. DETECTOR is the descriptor of a connection to the
detector process.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from packer.jobs.plan import Unit, Work
from packer.jobs.process import CurrentItem, Requests, entry_point, one_thread, read_requests, send
from packer.steps.chain import StepResources
from packer.vision.detect.remote import DetectorLost, RemoteDetector
from packer.workspace import Workspace
from packer.workspace.machines import OWNER, PLAN, enter_plan
from packer.workspace.remote import REMOTE, RemoteFiles
from shardspec.errors import ShardspecError
from shardspec.registry import ImportTarget, import_target, resolve

WORKS: Mapping[str, ImportTarget] = {
    "build": ImportTarget("packer.builds.work:BuildWork"),
    "compute": ImportTarget("packer.analysis.compute.work:ComputeWork"),
    "convert": ImportTarget("packer.packed.plan:RepackWork"),
    "copy": ImportTarget("packer.packed.plan:RepackWork"),
    "merge": ImportTarget("packer.packed.plan:RepackWork"),
    "remove": ImportTarget("packer.packed.plan:RepackWork"),
    "split": ImportTarget("packer.packed.plan:RepackWork"),
}
"""The class that runs the units of a plan, by the plan's kind."""

_ENDS_S = 0.1
"""Items that end within this time of one another are reported together, since a message costs as much as a tiny image."""


def open_remote(work: str, out: str) -> RemoteFiles:
    """Open the places of a workspace and of its dataset, with the settings that are shared with workers."""
    open_store = import_target("packer.sources.stores.access:source_store", what="a workspace in a store")
    return RemoteFiles(open_store(work), open_store(out))


def open_work(space: Workspace, resources: StepResources) -> Work:
    """Open the work of the plan in a workspace, and load everything that is slow to load.

    Raises
    ------
    ShardspecError
        If the plan cannot be run in this process.
    """
    space, document = enter_plan(space)
    work: Work = resolve("plan", document["kind"], WORKS).of_plan(space, document, resources)
    if not space.assembly.exists():
        work.prepare()
    return work


def main(arguments: Sequence[str]) -> None:
    """Serve units until the end of standard input."""
    with entry_point() as (descriptor, answers):
        workspace, place, *more = arguments
        resources = _equip(*more)
        requests = read_requests(descriptor)
        try:
            _work(Path(workspace), CurrentItem(Path(place)), resources, requests, answers)
        except DetectorLost:  # neither this process nor its item is to blame
            with suppress(OSError):
                send(answers, event="lost")
            raise


def _work(workspace: Path, place: CurrentItem, resources: StepResources, requests: Requests, answers: TextIO) -> None:
    try:
        space, owner = Workspace(workspace, key=os.environ.get(PLAN, "")), os.environ.get(OWNER, "")
        space = space.of_owner(owner) if owner else space
        if REMOTE in os.environ:
            space = replace(space, remote=open_remote(*json.loads(os.environ[REMOTE])))
        work = open_work(space, resources)
    except ShardspecError as error:
        send(answers, event="failed", message=str(error))
        return
    send(answers, event="ready")
    with one_thread():
        while True:
            _serve(work, place, requests.get(), answers)


def _serve(work: Work, place: CurrentItem, request: dict[str, Any], answers: TextIO) -> None:
    unit = Unit(*request["unit"])
    verdicts = {int(item): (step, reason) for item, (step, reason) in request["verdicts"].items()}
    ends: list[list[Any]] = []
    sent_s = 0.0

    def report(now_s: float) -> None:
        nonlocal sent_s
        if ends:
            send(answers, event="items", ends=ends)
        ends.clear()
        sent_s = now_s

    def progress(what: str, item: int, samples: int, reason: str) -> None:
        if what == "start":
            place.set(item)
            return
        if what == "frame":
            place.set_frames(samples)
            return
        if ends and (last := ends[-1])[0] + last[3] == item and last[1] == samples and last[2] == reason == "":
            last[3] += 1
        else:
            ends.append([item, samples, reason, 1])
        place.set(None)
        now_s = time.monotonic()
        if now_s - sent_s > _ENDS_S or reason:
            report(now_s)

    try:
        result = work.run(unit, verdicts, progress)
    except ShardspecError as error:
        report(0.0)
        send(answers, event="failed", message=str(error))
    else:
        report(0.0)
        send(answers, event="done", result=result)


def _connect(descriptor: str) -> RemoteDetector:
    """Connect to the detector process over an inherited descriptor, which processes started by steps do not inherit."""
    os.set_inheritable(int(descriptor), False)
    return RemoteDetector(socket.socket(fileno=int(descriptor)))


def _equip(ahead: str, *detector: str) -> StepResources:
    return StepResources(_connect(*detector) if detector else None, decodes_ahead=ahead == "1")


if __name__ == "__main__":
    main(sys.argv[1:])
