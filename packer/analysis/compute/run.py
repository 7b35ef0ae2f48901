"""Run functions over the rows of a dataset in blocks, in worker processes or in this one, and join the blocks."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from packer.analysis.compute.function import Function
from packer.analysis.compute.values import Kind, Values, common_kind, load_block
from packer.analysis.compute.work import Block, BlockWork, ComputeWork, block_path
from packer.jobs.engines.base import Event
from packer.jobs.plan import JobSettings, Tasks, Unit, Work
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.stages import Workers
from packer.recipe.engines import ENGINES
from packer.recipe.options import BuildOptions, share_settings
from packer.workspace import Workspace
from packer.workspace.durable import remove_tree, write_if_changed
from packer.workspace.machines import MADE_ON, RUNTIME, here
from shardspec import errors
from shardspec.columns import IntArray
from shardspec.errors import BuildError
from shardspec.manifest import seal, sha256_json
from shardspec.wording import list_some

BATCH_SIZE = 64
BLOCK_ROWS = 1024
"""Rows that are computed again at most by each worker after an interruption."""


@dataclass(frozen=True)
class Pass:
    """One reading of a dataset, in which some functions compute their columns.

    Attributes
    ----------
    dataset : str
        Folder or URL.
    digest : str
        Of the dataset.
    functions : tuple of Function
    given : tuple
        The same as the caller gave them.
    samples : int
        Rows of the dataset.
    rows : int64 array or None
        The rows to compute; None for all.
    device : str
    batch_size : int
    workers : int or str
        Worker processes; 0 to compute in this process.
    engine : str
        A key of `packer.recipe.engines.ENGINES`.
    runtime : mapping of str to str
        Versions of libraries, which must be the same on all hosts.
    storage_options : mapping or None
    """

    dataset: str
    digest: str
    functions: tuple[Function, ...]
    given: tuple[Any, ...]
    samples: int
    rows: IntArray | None = None
    device: str = "cpu"
    batch_size: int = BATCH_SIZE
    workers: int | str = 0
    engine: str = "processes"
    runtime: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, Any] | None = None

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks. The first one is a single batch, so that wrong results are found early."""
        rows = self.samples if self.rows is None else len(self.rows)
        edges = [0, *range(min(self.batch_size, rows), rows, BLOCK_ROWS), rows]
        return [Block(number, start, stop) for number, (start, stop) in enumerate(pairwise(edges))]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the values of the blocks."""
        rows = None if self.rows is None else self.rows.tolist()
        records = [one.record for one in self.functions]
        return sha256_json([self.digest, records, rows, self.batch_size, BLOCK_ROWS])

    @property
    def key(self) -> str:
        """Name of the folder of the pass: blocks of another dataset or other functions are never mixed with its own."""
        return self.fingerprint[:16]

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Return the arguments of `BlockWork` without storage options, as JSON if the functions are names."""
        rows = None
        if self.rows is not None:
            rows = str(folder / "rows.npy")
            np.save(rows, self.rows)
        alone = self.workers in (0, 1) or self.device != "cpu"
        how = {"batch_size": self.batch_size, "device": self.device, "threads": None if alone else 1}
        return {"dataset": self.dataset, "functions": list(self.given), "folder": str(folder), "rows": rows, **how}


def run_pass(
    one: Pass, root: Path, listener: ProgressListener, check: Callable[[str, Function], None]
) -> dict[str, tuple[Function, Values]]:
    """Compute what is not there yet, and return the columns of all rows of the pass, with their functions.

    Parameters
    ----------
    root : Path
        Folder for the blocks of all passes.
    check : callable
        Called with the name of each column and its function as soon as the first block is there.
    """
    space = Workspace(root / one.key, shared=ENGINES[one.engine].many_hosts)
    folder = space.root
    folder.mkdir(parents=True, exist_ok=True)
    if any(not function.version for function in one.functions):  # the code may have changed
        for path in folder.iterdir():
            remove_tree(path)
    finished = [block for block in one.blocks if block_path(folder, block.number).exists()]
    known = set(finished)
    missing = [block for block in one.blocks if block not in known]
    done = sum(block.stop - block.start for block in finished)
    total = len(one.rows) if one.rows is not None else one.samples
    with _removed_if_useless(folder), Stage(listener, "computing", total, "samples", done) as stage:
        kinds = _Kinds()

        def take(block: Block) -> None:
            for column in kinds.check(load(folder, block.number)):
                check(*_split(one, column))
            stage.advance(0 if block in known else block.stop - block.start)

        for block in finished:
            take(block)
        _compute(one, space, missing, take, listener)
        joined = join_blocks(folder, one.blocks)
    return {name: (function, joined[column]) for column in joined for name, function in [_split(one, column)]}


def _split(one: Pass, column: str) -> tuple[str, Function]:
    """Return the name and the function of a column of a block, whose name there begins with the function's place."""
    return _name_of(column), one.functions[int(column.partition(".")[0])]


def _name_of(column: str) -> str:
    return column.partition(".")[2]


@contextmanager
def _removed_if_useless(folder: Path) -> Iterator[None]:
    """Remove the blocks if the function is wrong, and the folder if there are none. Otherwise the same call resumes."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, errors.UsageError) or not any(folder.glob("block-*.npz")):
            remove_tree(folder)
            with suppress(OSError):  # other passes have blocks
                folder.parent.rmdir()
        raise


class _Kinds:
    """Compares the types of each block with those of the blocks before."""

    def __init__(self) -> None:
        self._known: dict[str, Kind | None] | None = None

    def check(self, columns: Mapping[str, Values]) -> list[str]:
        """Check a block, and return the names of columns that no block had before."""
        found = {name: values.kind for name, values in columns.items()}
        new = list(found) if self._known is None else []
        known = found if self._known is None else self._known
        if known.keys() != found.keys():
            raise errors.UsageError(
                option="functions",
                expected=f"the columns {list_some(sorted(map(_name_of, known)))} in every batch, as in the first",
                found=list_some(sorted(map(_name_of, found))),
            )
        self._known = {
            name: common_kind(f"column {_name_of(name)!r}", [known[name], kind]) for name, kind in found.items()
        }
        return new


def _compute(
    one: Pass, space: Workspace, blocks: Sequence[Block], take: Callable[[Block], None], listener: ProgressListener
) -> None:
    """Compute blocks, and call `take` with each as soon as it is there. Worker processes end with the call."""
    if not blocks:
        return
    arguments = one.arguments(space.root)
    if not one.workers:
        work = BlockWork(**arguments, storage_options=one.storage_options)
        for block in blocks:
            work.compute(block)
            take(block)
        return
    plan = _BlockPlan(one, arguments)
    space = plan.save(space)

    def on_event(event: Event) -> None:
        if event.kind != "done" or event.unit is None:
            return
        if "error" in event.result:
            name, message = event.result["error"]
            raise getattr(errors, name)(message)
        block = one.blocks[event.unit.number]
        space.promised(block_path(space.root, block.number))
        take(block)

    workers = Workers(plan, space, BuildOptions(workers=one.workers, engine=one.engine), listener.on_message)
    with share_settings(one.storage_options, ""), closing(workers):
        workers.run((Unit("task", block.number) for block in blocks), len(blocks), on_event)


@dataclass(frozen=True)
class _BlockPlan:
    """Plan of a pass (`packer.jobs.plan.WorkPlan`). Its tasks are the blocks."""

    one: Pass
    arguments: Mapping[str, Any]

    @property
    def settings(self) -> JobSettings:
        return JobSettings("compute", needs_gpus=self.one.device != "cpu", one_per_gpu=True)

    @cached_property
    def tasks(self) -> Tasks:
        return Tasks((block.start, block.stop, 0) for block in self.one.blocks)

    def open_work(self, space: Workspace) -> Work:
        return ComputeWork(self.arguments, [one.record for one in self.one.functions], self.tasks)

    def save(self, space: Workspace) -> Workspace:
        """Write the plan for the workers, and return the workspace with its key."""
        one = self.one
        space = space.of_plan(one.fingerprint)
        space.create()
        space.create_results(0)
        document = {
            "kind": self.settings.kind,
            "fingerprint": one.fingerprint,
            RUNTIME: one.runtime,
            MADE_ON: here(),
            "rows": {"inputs": [{"path": one.dataset}]},
            "functions": [function.record for function in one.functions],
            "arguments": self.arguments,
            "blocks": self.tasks.to_json(),
        }
        write_if_changed(space.plan, [seal(json.dumps(document))])
        return space


def load(folder: Path, number: int) -> dict[str, Values]:
    """Read a block; a `BuildError` that says what to delete if it is damaged."""
    path = block_path(folder, number)
    try:
        return load_block(path)
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as error:
        raise BuildError(
            f"a damaged block of values: {error}", place=path, hint="delete it, and run the same command again"
        ) from error


def join_blocks(folder: Path, blocks: Sequence[Block]) -> dict[str, Values]:
    """Join the columns of all blocks. Arrays are joined in a file, which is mapped, so that they need no memory."""
    first = {name: values.kind for name, values in load(folder, 0).items()} if blocks else {}
    kinds: dict[str, list[Kind | None]] = {name: [] for name in first}
    for block in blocks:
        for name, values in load(folder, block.number).items():
            kinds[name].append(values.kind)
    rows = blocks[-1].stop if blocks else 0
    joined = {}
    for name, of_blocks in kinds.items():
        kind = common_kind(f"column {name!r}", of_blocks)
        valid = np.ones(rows, np.bool_)
        data: Any = [None] * rows
        if kind is not None and kind.form == "array":
            path = folder / f"{name}.npy"
            data = np.lib.format.open_memmap(path, "w+", np.dtype(kind.dtype), (rows, *kind.shape))
        joined[name] = Values(kind, data, valid)
    for block in blocks:
        for name, values in load(folder, block.number).items():
            joined[name].valid[block.start : block.stop] = values.valid
            if values.kind is not None:
                joined[name].data[block.start : block.stop] = values.data
    return joined
