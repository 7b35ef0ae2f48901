"""Cost of the process that coordinates a Ray cluster: idle units, and the part of a build that is not its workers'.

    python -m benchmarks.ray_driver [--units 10000 100000 1000000] [--workers 16] [--build SOURCE --rounds 3]

Starts a head and two nodes with two cores in a network namespace of this machine (``tests/support/ray_cluster.py``).

*Units.* Real actors, in which another engine stands in for the worker processes: it reports an item and the end of each
unit at once. So everything else is real: the schedule, the counts, the journal, Ray, and the calls between this process
and the actors. *CPU* is that of the coordinating process with all threads of Ray in it, without the start. Memory is the
largest anonymous memory of the process.

*Build.* ``packer build SOURCE --preset faces`` with `--every`, on the two nodes and with as many local workers, in turns.
The CPU time of all processes is read from ``/proc``; those of Ray count from the start of the build on. *Other* is the
share of everything but worker and detector processes.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.pack_scale import Watch
from packer.jobs.engines import ray as ray_engine
from packer.jobs.engines.base import TICK_S, Ended, Event
from packer.jobs.plan import JobPlan, JobSettings, ResultReader, Tasks, Unit, Work
from packer.jobs.progress import listener_of
from packer.jobs.stages import Workers, run_tasks
from packer.recipe.engines import WorkerSettings
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.durable import write_record
from packer.workspace.machines import MADE_ON, here

_OUR_WORKERS = (b"packer.jobs.worker", b"packer.jobs.detector")
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.1


class IdleEngine:
    """An engine whose units are done as soon as they are started (`packer.jobs.engines.base.Engine`)."""

    def __init__(self, _workspace: Workspace, _open_work: Callable[[], Work] | None, _team: WorkerSettings) -> None:
        self._events: deque[Event] = deque()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self, unit: Unit, *_: Any, alone: bool = False) -> None:
        """End the unit."""
        self._events.append(Event("items", unit, ends=[Ended(unit.number, 1, "")]))
        self._events.append(Event("done", unit, result={"rows": 1}))

    def wait(self) -> Event:
        """Return the next event."""
        if not self._events:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=TICK_S)
        return self._events.popleft() if self._events else Event("tick")

    def wake(self) -> None:
        """Have `wait` return."""
        self._woken.put(None)

    def close(self) -> None:
        """Do nothing."""


class IdleActor(ray_engine.NodeWorkers):
    """An actor with that engine."""

    def __init__(self, *arguments: Any) -> None:
        ray_engine.ProcessesEngine = IdleEngine  # type: ignore[assignment,misc]
        super().__init__(*arguments)


class IdlePlan:
    """A plan of a number of tasks, each with an item (`packer.jobs.plan.JobPlan`)."""

    settings = JobSettings("copy")

    def __init__(self, tasks: int) -> None:
        self.tasks = Tasks((number, number + 1, 0) for number in range(tasks))


def run_idle(units: int, workers: int, folder: Path) -> dict[str, float]:
    """Run units that do nothing, and return the seconds and the CPU time."""
    import ray

    ray_engine._WORKERS = ray.remote(IdleActor)
    space = Workspace(folder / ".build", shared=True).of_plan("0" * 64)
    space.create()
    space.create_results(0)
    write_record(space.plan, {"kind": "copy", "fingerprint": "0" * 64, MADE_ON: here()})
    plan, listener = cast(JobPlan, IdlePlan(units)), listener_of(False)
    team = Workers(plan, space, BuildOptions(engine="ray", workers_per_node=workers), listener.on_message)
    ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    run_tasks(plan, space, team, listener, ResultReader((), lambda: cast(Any, None)), rejects=True)
    found = {"seconds": time.perf_counter() - started_s, "cpu_s": time.process_time() - cpu_s}
    team.close()
    return found


class Times:
    """CPU time of all processes of a network namespace, of worker processes and of others, since it was made."""

    def __init__(self, namespace: Path) -> None:
        self._namespace = namespace.readlink()
        self._seen: dict[int, float] = {}
        self._workers: set[int] = set()
        self._look()
        self._before = dict(self._seen)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> tuple[float, float]:
        """Return the seconds of workers and those of the others."""
        self._ended.set()
        self._thread.join()
        spent = {pid: seconds - self._before.get(pid, 0.0) for pid, seconds in self._seen.items()}
        workers = sum(seconds for pid, seconds in spent.items() if pid in self._workers)
        return workers, sum(spent.values()) - workers

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        for path in Path("/proc").iterdir():
            try:
                if not path.name.isdecimal() or (path / "ns/net").readlink() != self._namespace:
                    continue
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if any(name in (path / "cmdline").read_bytes() for name in _OUR_WORKERS):
                    self._workers.add(int(path.name))
            except OSError:  # it has just ended
                continue
            self._seen[int(path.name)] = (int(fields[11]) + int(fields[12])) / _TICKS


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--workers", type=int, default=16, help="workers of each node that units are sent to")
    parser.add_argument("--build", metavar="SOURCE")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support import ray_cluster

    if lacking := ray_cluster.missing():
        raise SystemExit(lacking)
    with tempfile.TemporaryDirectory() as name, ray_cluster.cluster() as ray:
        env = {**os.environ, **ray.environment, "RAY_ADDRESS": ray.address}
        env["PYTHONPATH"] = str(Path(__file__).parents[1])
        if options.units:
            print("| units | seconds | units/s | CPU µs of the coordinator a unit | units/s of a core | own MB |")
            print("|--:|--:|--:|--:|--:|--:|")
        for units in options.units:
            _measure_units(units, options.workers, Path(name) / str(units), ray.command, env)
        if options.build:
            _measure_builds(options, Path(name), ray, env)


def _measure_units(
    units: int, workers: int, folder: Path, command: Callable[..., list[str]], env: dict[str, str]
) -> None:
    call = (
        f"from benchmarks.ray_driver import *; print(json.dumps(run_idle({units}, {workers}, Path({str(folder)!r}))))"
    )
    process = subprocess.Popen(command(sys.executable, "-c", call), env=env, stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    printed, _ = process.communicate()
    watch.end()
    if process.returncode:
        raise SystemExit("the run failed")
    found = json.loads(printed.splitlines()[-1])
    rate, cpu = units / found["seconds"], found["cpu_s"] / units
    row = [f"{units:,}", f"{found['seconds']:.0f}", f"{rate:.0f}", f"{cpu * 1e6:.0f}", f"{1 / cpu:.0f}"]
    print(f"| {' | '.join(row)} | {watch.found['own_bytes'] / 1e6:.0f} |", flush=True)


def _measure_builds(options: argparse.Namespace, folder: Path, ray: Any, env: dict[str, str]) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {"processes": [], "ray": []}
    more = {"processes": ["--workers", "4"], "ray": ["--workers-per-node", "2"]}
    for _ in range(options.rounds):
        for engine, times in found.items():
            out = folder / engine
            shutil.rmtree(out, ignore_errors=True)
            words = [sys.executable, "-m", "packer", "build", options.build, out, "--preset", "faces", "--quiet"]
            words += ["--every", options.every, "--engine", engine, *more[engine]]
            started_s, watch = time.perf_counter(), Times(Path(f"/proc/{ray.raylets()[0]}/ns/net"))
            subprocess.run(ray.command(*map(str, words)), env=env, check=True)
            times.append((*watch.end(), time.perf_counter() - started_s))
    print("\n| engine | CPU s of workers | CPU s of the others | others | seconds |\n|---|--:|--:|--:|--:|")
    for engine, times in found.items():
        workers, others, seconds = ([time[at] for time in times] for at in range(3))
        shares = [other / (worker + other) for worker, other in zip(workers, others, strict=True)]
        texts = [_spread(values, "{:.1f}") for values in (workers, others)]
        print(f"| {engine} | {' | '.join(texts)} | {_spread(shares, '{:.1%}')} | {_spread(seconds, '{:.0f}')} |")


def _spread(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.median(values))} ({low} to {high})"


if __name__ == "__main__":
    main()
