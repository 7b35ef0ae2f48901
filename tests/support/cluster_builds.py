"""Builds on a cluster of this machine that are under way, and are to be disturbed."""

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from packer.builds.planning.plan import TASK_ITEMS
from support.builds import TESTS
from support.command import COMMAND_LIMIT_S, arguments, environment, run_packer
from support.packed import check_whole, fingerprints
from support.processes import is_alive, wait_for, workers_in
from support.steps import GATE, LOG, read_log

OPTIONS = ("--size", "16", "--label-from", "folder", "--shard-size", "20kB")
STEPS = ("--steps", "decode,resize,support.steps:log_processes,support.steps:wait_at_gate,support.steps:slow")

_ITEMS = 12 * TASK_ITEMS - 5
NAMES = [f"{'ab'[n > _ITEMS // 2]}/{n:03d}{'-bad' if n % TASK_ITEMS == 7 else ''}.png" for n in range(_ITEMS)]
"""Twelve tasks, each of which takes most of a second; at an item in its first half it can be held."""

ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "60"))
"""Rounds of random faults."""

SEED = int(os.environ.get("CLUSTER_SEED", str(random.randrange(10**6))))


def rounds() -> Iterator[tuple[int, random.Random]]:
    """Each round of random faults: its number, and what chooses its faults."""
    print(f"\n{ROUNDS} rounds of random faults, seed {SEED} (CLUSTER_ROUNDS, CLUSTER_SEED)", flush=True)
    for number in range(ROUNDS):
        yield number, random.Random(f"{SEED} {number}")
        print(f"round {number}: the same bytes", flush=True)


class Run:
    """A build that is under way. Use as a context manager; leaving it ends the build.

    Parameters
    ----------
    engine : str
    images : Path
    folder : Path
        Gets the dataset, the log of `log_processes`, and what is printed to standard error.
    more : sequence of str
        Further options.
    env : mapping of str to str
        What commands need to speak to the cluster.
    held : bool
        Whether workers stay at an item in the first half of their tasks until `gate` is made.
    """

    def __init__(
        self,
        engine: str,
        images: Path,
        folder: Path,
        more: Sequence[str],
        env: Mapping[str, str],
        *,
        held: bool = False,
    ) -> None:
        self.out = folder / "out"
        self.log = folder / "log"
        self.gate = folder / "gate"
        if not held:
            self.gate.touch()
        self.errors = folder / "errors"
        files = {LOG: str(self.log), GATE: str(self.gate)}
        self.env = {**environment(python_path=TESTS, **files), **env}
        self.command = arguments("build", images, self.out, *OPTIONS, *STEPS, "--engine", engine, *more)
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                self.started_by(),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def started_by(self) -> list[str]:
        """The command line that runs the build on the cluster."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def node_of(self, worker: int) -> Any:
        """The node that a worker runs on."""
        raise NotImplementedError

    def workers(self, node: Any = None) -> list[int]:
        """Worker processes, of all nodes or of one."""
        ours = workers_in(Path(*self.out.parts[-3:]))  # the end of its path and of its URL
        return [process for process in ours if node is None or self.node_of(process) == node]

    def at_work(self, node: Any = None) -> int:
        """Wait until a worker, of a node or of any, is in the first half of a task; its number."""

        def look() -> list[int]:
            begun = Counter(int(line) for line in read_log(self.log))
            workers = self.workers(node)
            return [worker for worker in workers if 2 < begun[worker] % TASK_ITEMS < TASK_ITEMS // 2]

        return wait_for("a worker in a task", look)[0]

    def wait_for_line(self, text: str) -> None:
        """Wait until something is printed to standard error."""
        wait_for(repr(text), lambda: text in self.errors.read_text() or self.process.poll() is not None, 0.05)
        assert text in self.errors.read_text()

    def end(self) -> tuple[int, str]:
        """Wait for the end; the exit status, and what was printed to standard error."""
        self.process.wait(COMMAND_LIMIT_S)
        errors = self.errors.read_text()
        assert "Traceback" not in errors, errors
        return self.process.returncode, errors

    def finish(self, expected: dict[str, str]) -> str:
        """Wait for the end, and compare; what was printed to standard error."""
        status, errors = self.end()
        assert status == 0, errors
        assert fingerprints(self.out) == expected, errors
        check_whole(self.out)
        wait_for("the end of all workers", lambda: not any(is_alive(worker) for worker in self.workers()))
        return errors


def made_on_one_host(images: Path, folder: Path, format: str = "lmdb") -> dict[str, str]:
    """The fingerprints of an undisturbed build."""
    folder.mkdir()
    env = environment(python_path=TESTS, **{LOG: str(folder / "log"), GATE: str(folder)})
    run_packer("build", images, folder / "out", *OPTIONS, *STEPS, "--format", format, env=env)
    return fingerprints(folder / "out")


def tree_of(process: int) -> list[int]:
    """A process and all that it and its descendants have started."""
    found = [process]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*"):
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def parent_of(process: int) -> int:
    """The parent of a process; 0 if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
