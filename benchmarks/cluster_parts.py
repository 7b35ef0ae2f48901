"""What the parts of a build cost that decide how it does on a cluster, measured on this machine.

    python -m benchmarks.cluster_parts --video VIDEO --json parts.json

Method. Seconds are CPU seconds of builds in this process (``engine="inline"``) unless another is named, each figure the
slope between two builds of different size, so that what a build costs in any case drops out; medians of `--runs`. A unit
of work is an item of a real build: VIDEO with ``--preset faces`` and two samplings, which gives the time of a frame of
the source (it is decoded) and of a sampled frame (it is searched, its faces are cut out and encoded); photos of about
500 x 400 pixels whose bytes are kept, and with ``--size 256``. The coordinator's time a task is that of the real engine
and schedule, journal and progress included, with workers that answer at once, the messages being those of real ones.
Plan, cut and shards are those of builds of a step that makes samples of nothing (`wait_step`), with an item in each
task. What a part takes that is taken in for the cut while tasks run is the difference between a cut that opens all parts
and one that finds them taken in. *Publishing* is creating, writing, flushing and renaming a file of the size of a video's part, by the wall clock.
Operations of the file system are system calls with paths below the output folder (or of the source), counted by strace:
opening, closing, asking for the attributes of a file that is not open, listing, renaming, removing, flushing.
"""

import argparse
import csv
import itertools
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import packer
from benchmarks.measure import machine, versions
from benchmarks.pack_pictures import make_photos
from packer.assembly.plan import ShardPlan
from packer.builds.job import BuildJob
from packer.builds.parts.draft import Draft
from packer.builds.parts.early import EarlyCut
from packer.jobs.engines.base import Event
from packer.jobs.engines.processes import ProcessesEngine
from packer.jobs.engines.worker import Worker
from packer.jobs.place import Place
from packer.jobs.plan import Tasks, Unit
from packer.jobs.progress import Progress, Stage, listener_of
from packer.jobs.schedule import ItemTally, Schedule
from packer.jobs.stages.early import EarlyShards
from packer.jobs.stages.tasks import done_line
from packer.recipe.engines import Team
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.durable import write_durably
from packer.workspace.lines import LineFile
from shardspec.errors import TooManyRejectsError
from shardspec.layout import BUILD_FOLDER

LIBRARIES = ("numpy", "opencv-python-headless", "openvino", "av", "simplejpeg", "lmdb")
STEP = "benchmarks.wait_step:wait"
COORDINATED = ((64, 20_000), (1024, 8_192), (4096, 12_288))
"""Workers, and tasks, with which the coordinator is measured."""

_ALONE_BYTES = 20 * 10**6
"""An item of so many bytes, of a file without blocks, is a task of its own."""


class Stages:
    """Notes when the stages of a build begin and end: CPU seconds of this process, and seconds."""

    def __init__(self) -> None:
        self.at: dict[str, tuple[float, float]] = {}

    def note(self, name: str) -> None:
        """Note a moment, the first time."""
        self.at.setdefault(name, (time.process_time(), time.perf_counter()))

    def on_progress(self, progress: Progress) -> None:
        """See `packer.ProgressListener`."""
        if progress.stage in ("packing", "writing"):
            self.note(f"{progress.stage} ended" if progress.ended else progress.stage)

    def on_message(self, line: str) -> None:
        """See `packer.ProgressListener`."""


def staged(source: Path, out: Path, **options: Any) -> dict[str, float]:
    """Build, and say what each stage took: ``plan``, ``tasks``, ``cut``, ``shards``, ``commit``, and ``<stage>_wall``."""
    stages = Stages()
    stages.note("begin")
    packer.build(source, out, progress=stages, **options)
    stages.note("end")
    order = ("begin", "packing", "packing ended", "writing", "writing ended", "end")
    found: dict[str, float] = {}
    for name, (one, other) in zip(
        ("plan", "tasks", "cut", "shards", "commit"), itertools.pairwise(stages.at[name] for name in order), strict=True
    ):
        found |= {name: other[0] - one[0], f"{name}_wall": other[1] - one[1]}
    return found


def median_of(runs: int, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    found = [measure() for _ in range(runs)]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


SIDE = 80
"""Pixels of this width and height take 19,200 bytes, as a face does."""


def write_items(
    path: Path, items: int, *, wait_ms: float = 0.0, samples: int = 1, alone: bool = True, side: int = SIDE
) -> Path:
    """A table of items for `wait_step`; each is a task of its own if they are to be alone."""
    data = path.with_name("alone.npy" if alone else "small.npy")
    with data.open("wb") as file:
        file.truncate(_ALONE_BYTES if alone else 128)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "wait_ms", "samples", "side", "number"))
        writer.writerows((data.name, wait_ms, samples, side, number) for number in range(items))
    return path


OF_STEP: Mapping[str, Any] = {"preset": "images", "steps": [STEP], "encode": "raw", "format": "npy"}


class Bench:
    """Measures the parts in a folder.

    Parameters
    ----------
    folder : Path
    runs : int
    small : bool
        Whether to try everything with little work.
    """

    def __init__(self, folder: Path, runs: int, *, small: bool) -> None:
        self._folder = folder
        self._runs = runs
        self._small = small
        self._numbers = itertools.count()

    def build(self, source: Path, **options: Any) -> dict[str, float]:
        """What the stages of a build take, in this process if nothing else is said; `kept` keeps the result."""

        def once() -> dict[str, float]:
            out = self._folder / f"out-{next(self._numbers)}"
            found = staged(source, out, **{"engine": "inline", **options})
            manifest = json.loads((out / "manifest.json").read_bytes())
            shards = [shard for one in manifest["generations"] for shard in one["shards"]]
            found |= {
                "rows": float(sum(shard["samples"] for shard in shards)),
                "bytes": float(sum(file["bytes"] for shard in shards for file in shard["files"])),
                "shards_made": float(len(shards)),
            }
            shutil.rmtree(out)
            return found

        return median_of(self._runs, once)

    def faces(self, video: Path) -> dict[str, float]:
        """A frame of a 1080p video, decoded, and a sampled one with its faces."""
        frames = int(cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FRAME_COUNT))
        found = {}
        for every, copies in ((10, 1), (10, 3), (2, 1)):
            source = self._folder / f"videos-{copies}"
            source.mkdir(exist_ok=True)
            for number in range(copies):
                shutil.copy(video, source / f"video-{number}{video.suffix}")
            found[every, copies] = self.build(source, preset="faces", every=every)
        one, three, dense = found[10, 1], found[10, 3], found[2, 1]
        sampled = {every: -(-frames // every) for every in (10, 2)}
        video_s = (three["tasks"] - one["tasks"]) / 2
        frame_s = (dense["tasks"] - one["tasks"]) / (sampled[2] - sampled[10])
        return {
            "decode_s": max(0.0, video_s - sampled[10] * frame_s) / frames,
            "frame_s": frame_s,
            "sampled_frame_s": video_s / sampled[10],
            "rows_a_frame": one["rows"] / sampled[10],
            "bytes_a_frame": one["bytes"] / sampled[10],
        }

    def pictures(self) -> dict[str, dict[str, float]]:
        """A photo whose bytes are kept, and with ``--size 256``."""
        few, many = (20, 60) if self._small else (200, 800)
        for count in (few, many):
            if not (self._folder / f"photos-{count}").exists():
                make_photos(self._folder / f"photos-{count}", count)
        found = {}
        for name, size in (("kept", None), ("resized", 256)):
            one, other = (
                self.build(self._folder / f"photos-{count}", preset="images", size=size, format="lmdb")
                for count in (few, many)
            )
            found[name] = {
                "item_s": (other["tasks"] - one["tasks"]) / (many - few),
                "bytes": (other["bytes"] - one["bytes"]) / (many - few),
            }
        return found

    def starts(self) -> dict[str, float]:
        """A worker process from its launch until it is ready, CPU seconds."""
        picture = self._folder / "picture"
        picture.mkdir(exist_ok=True)
        cv2.imwrite(str(picture / "picture.png"), np.zeros((64, 64, 3), np.uint8))
        found = {}
        for preset in ("faces", "images"):
            out = self._folder / f"start-{preset}"

            def once(preset: str = preset, out: Path = out) -> dict[str, float]:
                def spent() -> float:
                    used = resource.getrusage(resource.RUSAGE_CHILDREN)
                    return used.ru_utime + used.ru_stime

                stages, before = Stages(), spent()
                with suppress(TooManyRejectsError):  # it shows no face
                    packer.build(picture, out, engine="processes", workers=1, preset=preset, progress=stages)
                shutil.rmtree(out, ignore_errors=True)
                return {"s": spent() - before}

            found[preset] = median_of(self._runs, once)["s"]
        found["agent"] = median_of(
            self._runs, lambda: {"s": _cpu_of("-c", "import packer.builds.job, packer.jobs.job")}
        )["s"]
        command = "import packer.jobs.launchers.host"
        found["launch"] = median_of(self._runs, lambda: {"s": _cpu_of("-c", command)})["s"]
        found["shards"] = median_of(
            self._runs, lambda: {"s": _cpu_of("-c", "import packer.jobs.worker, packer.builds.work")}
        )["s"]
        return found

    def plan(self) -> float:
        """Listing and planning, a file."""
        few, many = (100, 400) if self._small else (1_000, 6_000)
        times = []
        for count in (few, many):
            source = self._folder / f"files-{count}"
            source.mkdir()
            for number in range(count):
                (source / f"{number:06d}.jpg").write_bytes(b"")
            times.append(median_of(self._runs, lambda source=source: {"s": self._plan(source)})["s"])
        return (times[1] - times[0]) / (many - few)

    def _plan(self, source: Path) -> float:
        stages, out = Stages(), self._folder / "planned"
        stages.note("begin")
        with suppress(TooManyRejectsError):  # they are all empty
            packer.build(source, out, preset="images", engine="inline", progress=stages)
        shutil.rmtree(out)
        return stages.at["packing"][0] - stages.at["begin"][0]

    def cut(self) -> dict[str, float]:
        """The cut, the shards and the commit: a part, a row, a byte, a shard."""
        few, many = (20, 80) if self._small else (300, 1_500)
        table = self._folder / "items.csv"
        parts = [self.build(write_items(table, count), **OF_STEP) for count in (few, many)]
        rows = self.build(write_items(table, few, samples=41), **OF_STEP)
        small = self.build(write_items(table, few, samples=201, side=4), **OF_STEP)
        with _offers() as offers:
            self.build(write_items(table, few, samples=41), shard_size=10**6, **OF_STEP)
        with _takes_nothing_in():
            big = self.build(write_items(table, few, samples=41), shard_size=10**6, **OF_STEP)
            late = [self.build(write_items(table, count), **OF_STEP) for count in (few, many)]
            late_small = self.build(write_items(table, few, samples=201, side=4), **OF_STEP)
        part_s = _slope(parts, "cut", many - few)
        more = small["rows"] - parts[0]["rows"]
        row_s = max(0.0, (small["cut"] - parts[0]["cut"]) / more)
        byte_s = (rows["shards"] - parts[0]["shards"]) / (rows["bytes"] - parts[0]["bytes"])
        shards = big["shards_made"] - rows["shards_made"]
        return {
            "cut_part_s": part_s,
            "cut_row_s": row_s,
            "cut_s": max(0.0, parts[0]["cut"] - few * part_s),
            "take_part_s": max(0.0, _slope(late, "cut", many - few) - part_s),
            "take_row_s": max(0.0, (late_small["cut"] - late[0]["cut"]) / more - row_s),
            "early_shard_s": offers.seconds / offers.count,
            "shard_byte_s": max(0.0, byte_s),
            "shard_s": max(0.0, (big["shards"] - rows["shards"]) / shards),
            "commit_s": rows["commit"],
            "commit_shard_s": max(0.0, (big["commit"] - rows["commit"]) / shards),
        }

    def coordinator(self) -> list[dict[str, float]]:
        """A task of the coordinator, by the number of workers."""
        counts = ((4, 200), (16, 200)) if self._small else COORDINATED
        return [{"workers": workers, "task_s": coordinate(workers, tasks, self._folder)} for workers, tasks in counts]

    def disk(self) -> dict[str, float]:
        """Publishing a part and claiming a block, seconds by the wall clock."""
        folder = self._folder / "disk"
        folder.mkdir()
        data = bytes(600_000)
        count = 20 if self._small else 200
        publish = [_wall(lambda n=n: write_durably(folder / f"part-{n:06d}", data)) for n in range(count)]
        claim = [_wall(lambda n=n: _make(folder / f"task-{n:06d}.1", b"agent")) for n in range(count)]
        finish = [_wall(lambda n=n: _make(folder / f"task-{n:06d}.done", b"")) for n in range(count)]
        return {
            "publish_s": statistics.median(publish),
            "claim_s": statistics.median(claim) + statistics.median(finish),
        }


@dataclass
class _Offers:
    """The early shards of builds, and the coordinator's CPU seconds for them."""

    count: int = 0
    seconds: float = 0.0


@contextmanager
def _offers() -> Iterator[_Offers]:
    """Measure what the coordinator does for early shards: to find them, and to have them written."""
    found, look, offer = _Offers(), EarlyCut.look, EarlyShards.offer

    def timed_look(cut: EarlyCut, draft: Draft) -> Iterator[ShardPlan]:
        before = time.process_time()
        plans = list(look(cut, draft))
        found.seconds += (time.process_time() - before) * bool(plans)
        found.count += len(plans)
        return iter(plans)

    def timed_offer(shards: EarlyShards, plans: Iterable[ShardPlan]) -> None:
        before, plans = time.process_time(), list(plans)
        offer(shards, plans)
        found.seconds += (time.process_time() - before) * bool(plans)

    EarlyCut.look, EarlyShards.offer = timed_look, timed_offer  # type: ignore[method-assign]
    try:
        yield found
    finally:
        EarlyCut.look, EarlyShards.offer = look, offer  # type: ignore[method-assign]


@contextmanager
def _takes_nothing_in() -> Iterator[None]:
    """Have builds open all parts after the last task, as the agent does that makes the cut, and write no shard early."""
    takes_in = BuildJob.taking_in
    BuildJob.taking_in = lambda job, space: nullcontext(lambda made: ())  # type: ignore[method-assign]
    try:
        yield
    finally:
        BuildJob.taking_in = takes_in  # type: ignore[method-assign]


def coordinate(workers: int, tasks: int, folder: Path) -> float:
    """CPU seconds of a coordinator for a task, in the steady state, with so many workers that answer at once."""
    space = Workspace(folder / f"coordinated-{workers}" / BUILD_FOLDER)
    space.create()
    plan = Tasks((n, n + 1, 0) for n in range(tasks))
    tally = ItemTally(plan)
    engine = Instant(space, workers)
    marks: dict[int, float] = {}
    done = 0
    with LineFile(space.journal) as journal, Stage(listener_of(False), "packing", tasks, "items", 0) as stage:

        def on_event(event: Event) -> None:
            nonlocal done
            gain = tally.take(event)
            stage.advance(*gain, size=event.result.get("bytes", 0), reasons=[], frames=None)
            if event.kind == "done" and event.unit is not None:
                journal.append(done_line(event))
                done += 1
                if done in (workers // 4, tasks - workers):
                    marks[done] = time.process_time()
            journal.look()

        Schedule(engine, space, plan, on_event, BuildOptions().item_timeout).run(Unit("task", n) for n in range(tasks))
    (first, began_s), (last, ended_s) = sorted(marks.items())
    shutil.rmtree(space.out)
    return (ended_s - began_s) / (last - first)


class Instant(ProcessesEngine):
    """The processes engine with workers that answer at once, each while all others are under way."""

    def __init__(self, space: Workspace, workers: int) -> None:
        super().__init__(space, None, Team(workers, BuildOptions().item_timeout))  # type: ignore[arg-type]
        self._at = space.root / "items"
        self._at.mkdir()

    def _start_worker(self, place: int) -> Any:
        return _Answering(place, next(self._serials), self._at / str(place), self._answers)


class _Answering(Worker):
    """Stands for a worker, and answers each request as one that has done an item."""

    ready = True

    def __init__(self, place: int, serial: int, at: Path, answers: Any) -> None:
        super().__init__(place, serial)
        self._place, self._answers = Place.create(at), answers

    @property
    def item(self) -> int | None:
        return self._place.get()

    @property
    def frames(self) -> int:
        return self._place.frames()

    def send(self, request: Mapping[str, Any]) -> None:
        number = json.loads(json.dumps(request))["unit"][1]
        self._place.set(number)
        for message in (
            {"event": "items", "ends": [[number, 30, ""]]},
            {"event": "done", "result": {"rows": 30, "bytes": 600_000}},
        ):
            self._answers.put((self, json.loads(json.dumps(message).encode())))

    def end(self) -> None:
        pass

    def has_ended(self) -> bool:
        return False

    def describe_death(self) -> str:
        return ""


def operations(folder: Path, few: int, many: int) -> dict[str, float]:
    """Operations of the file system, for each task, item, part and shard, counted by strace."""
    counts = []
    for items in (few, many):
        table, out = write_items(folder / f"traced-{items}.csv", items), folder / f"traced-{items}"
        counts.append(_trace(folder / f"trace-{items}", table, out, "--shard-size", "1GB"))
        shutil.rmtree(out)
    cut = _trace(folder / "trace-shards", table, folder / "traced", "--shard-size", "400kB")
    shards = -(-many * 19_200 // 400_000) - 1

    def a_task(role: str) -> float:
        return (counts[1][role] - counts[0][role]) / (many - few)

    def coordinated(traced: Mapping[str, int]) -> int:  # the first part is opened while tasks still run
        return traced["coordinator"] + traced["cut"]

    def written(traced: Mapping[str, int]) -> int:
        return traced["worker"] + traced["shard"]

    return {
        "list_item_operations": 1.0,
        "look_task_operations": a_task("look"),
        "task_begin_operations": 0.0,
        "task_end_operations": a_task("worker"),
        "source_operations": a_task("source") + 2.0,  # `wait_step` does not open and close it
        "coordinator_task_operations": a_task("coordinator"),
        "early_shard_operations": max(0.0, (coordinated(cut) - coordinated(counts[1])) / shards),
        "cut_part_operations": a_task("cut"),
        "shard_part_operations": a_task("shard"),
        "delete_part_operations": a_task("coordinating shards"),
        "coordinator_shard_operations": max(
            0.0, (cut["coordinating shards"] - counts[1]["coordinating shards"]) / shards
        ),
        "shard_operations": max(0.0, (written(cut) - written(counts[1])) / shards),
        "commit_shard_operations": max(0.0, (cut["commit"] - counts[1]["commit"]) / shards),
    }


_CALL = re.compile(r"([0-9.]+) (\w+)\((.*)")
_PATH = re.compile(r'<(/[^>]*)>|"(/[^"]*)"')
_OPERATIONS = re.compile(
    r"open|openat|openat2|creat|stat|lstat|newfstatat|statx|access|faccessat2?|readlink(at)?|mkdir(at)?|rmdir|rename(at2?)?|"
    r"unlink(at)?|link(at)?|symlink(at)?|getdents(64)?|fsync|fdatasync"
)


_ELSEWHERE = """\
import sys
from pathlib import Path
if "packer.jobs.worker" in sys.orig_argv:
    import packer.workspace.fresh
    packer.workspace.fresh._BOOT_ID = Path(__file__)
"""
"""Has workers believe that they run on another machine than the coordinator, so that they flush what they make."""


def _trace(traces: Path, table: Path, out: Path, *arguments: str) -> Counter[str]:
    """Operations of a build by who asked for them, and when."""
    traces.mkdir()
    options = [f"--{name}={value}" for name, value in (("preset", "images"), ("encode", "raw"), ("format", "npy"))]
    command = [
        sys.executable,
        "-m",
        "packer",
        "build",
        str(table),
        str(out),
        "--steps",
        STEP,
        "--workers",
        "2",
        *options,
    ]
    traced = "trace=%file,close,getdents64,fsync,fdatasync,clone,clone3,fork,vfork,execve"
    strace = ["strace", "-ff", "-ttt", "-y", "-qq", "-s", "4096", "-e", traced, "-o", str(traces / "t")]
    (traces / "sitecustomize.py").write_text(_ELSEWHERE)
    path = os.pathsep.join([str(traces), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*strace, *command, "--quiet", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"strace: {done.stderr.strip()[-500:]}")
    return count_operations(traces, out, table.parent)


def count_operations(traces: Path, out: Path, source: Path) -> Counter[str]:
    """Count what ``strace -ff -ttt -y`` has written.

    Operations of workers below `out` and of their sources, and those of the coordinator before the first worker
    (``look``), with the tasks, in the cut, with the shards and at the commit.
    """
    lines = {int(path.suffix[1:]): path.read_text(errors="replace").splitlines() for path in traces.glob("t.*")}
    parent: dict[int, int] = {}
    worker: set[int] = set()
    for number, found in lines.items():
        for line in found:
            if (child := re.search(r"(?:clone3?|v?fork)\(.* = ([0-9]+)$", line)) is not None:
                parent[int(child[1])] = number
            if "execve(" in line and "packer.jobs.worker" in line:
                worker.add(number)

    def is_worker(number: int | None) -> bool:
        while number is not None and number not in worker:
            number = parent.get(number)
        return number is not None

    began_s = min(float(found[0].split()[0]) for number, found in lines.items() if number in worker)
    counts: Counter[str] = Counter()
    main = min(set(lines) - set(parent), default=min(lines))
    marks = {"cut": float("inf"), "shard": float("inf")}
    for line in lines[main]:
        seconds = float(line.split()[0])
        if "/part-" in line and "O_RDONLY" in line:
            marks["cut"] = min(marks["cut"], seconds)
        if "assembly.json" in line and "rename" in line:
            marks["shard"] = min(marks["shard"], seconds)
    ends = max(float(found[-1].split()[0]) for number, found in lines.items() if is_worker(number) and found)
    for number, found in lines.items():
        for line in found:
            call = _CALL.match(line)
            if call is None or not _OPERATIONS.fullmatch(call[2]) or "AT_EMPTY_PATH" in call[3]:
                continue
            seconds, paths = float(call[1]), ["".join(pair) for pair in _PATH.findall(call[3])]
            below = any(path.startswith(f"{out}/") or path == str(out) for path in paths)
            if is_worker(number):
                phase = "worker" if seconds < marks["shard"] else "shard"
                if not below:
                    phase = "source" if any(path.startswith(f"{source}/") for path in paths) else ""
            elif not below:
                phase = ""
            elif seconds < began_s:
                phase = "look"
            elif number == main and seconds >= marks["cut"]:
                phase = (
                    "cut" if seconds <= marks["shard"] else "commit" if seconds > ends - 1e-3 else "coordinating shards"
                )
            else:
                phase = "coordinator"
            counts[phase] += 2 if call[2] in ("open", "openat", "openat2", "creat") and " = -1 " not in call[3] else 1
    return counts


def _make(path: Path, data: bytes) -> None:
    """Make a file that nobody else has made, as claims are."""
    with path.open("xb") as file:
        file.write(data)


def _slope(found: Sequence[Mapping[str, float]], name: str, more: float) -> float:
    return max(0.0, (found[1][name] - found[0][name]) / more)


def _seconds(call: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    before = time.process_time()
    call()
    return time.process_time() - before


def _wall(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def _cpu_of(*arguments: str) -> float:
    """CPU seconds of a Python process."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)}: ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--video", type=Path, required=True, help="a video with faces")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="try everything with little work")
    parser.add_argument("--folder", type=Path, help="where to work: on the disk that is to be measured")
    parser.add_argument("--only", nargs="+", help="measure these alone, such as cut and plan")
    parser.add_argument("--before", type=Path, help="a JSON of this benchmark, or of the model, which has the others")
    parser.add_argument("--json", type=Path, required=True, help="write what was measured here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        bench = Bench(folder, options.runs, small=options.small)
        parts: dict[str, Any] = json.loads(options.before.read_text())["parts"] if options.before else {}
        for what, measure in (
            ("operations", lambda: operations(folder, *((10, 30) if options.small else (50, 400)))),
            # Made and closed, and so again when it is done; a record is opened and closed.
            ("agents", lambda: {"claim_operations": 4.0, "agent_look_operations": 2.0}),
            ("coordinator", lambda: {"coordinator": bench.coordinator()}),
            ("disk", bench.disk),
            ("cut", bench.cut),
            ("plan", lambda: {"plan_item_s": bench.plan()}),
            ("starts", lambda: {"starts": bench.starts()}),
            ("units", lambda: {"units": {"faces": bench.faces(options.video), **bench.pictures()}}),
        ):
            if options.only and what not in options.only:
                continue
            found = measure()
            print(json.dumps({what: found}), file=sys.stderr, flush=True)
            parts |= found
        for name, start in (("agent_start_s", "agent"), ("shard_start_s", "shards"), ("launch_s", "launch")):
            parts[name] = parts["starts"][start]
    document = {"benchmark": "cluster_parts", "machine": machine(), "versions": versions(LIBRARIES), "parts": parts}
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
