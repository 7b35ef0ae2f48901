"""Run functions over the rows of a dataset in blocks, in worker processes or in this one, and join the blocks."""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from packer.analysis.compute.function import Function
from packer.analysis.compute.values import Kind, Values, common_kind, load_block
from packer.analysis.compute.work import Block, BlockWork, block_path
from packer.jobs.child import AnswerQueue, Child
from packer.jobs.progress import ProgressListener, Stage
from packer.recipe.engines import usable_processors
from packer.workspace.durable import remove_tree
from shardspec import errors
from shardspec.columns import IntArray
from shardspec.errors import BuildError
from shardspec.manifest import sha256_json
from shardspec.wording import list_some

BATCH_SIZE = 64
BLOCK_ROWS = 1024
"""Rows that are computed again at most by each worker after an interruption."""

_TICK_S = 0.5


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
    workers : int
        Worker processes; 0 to compute in this process.
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
    workers: int = 0
    storage_options: Mapping[str, Any] | None = None

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks. The first one is a single batch, so that wrong results are found early."""
        rows = self.samples if self.rows is None else len(self.rows)
        edges = [0, *range(min(self.batch_size, rows), rows, BLOCK_ROWS), rows]
        return [Block(number, start, stop) for number, (start, stop) in enumerate(pairwise(edges))]

    @property
    def key(self) -> str:
        """Name of the folder of the pass: blocks of another dataset or other functions are never mixed with its own."""
        rows = None if self.rows is None else self.rows.tolist()
        records = [one.record for one in self.functions]
        return sha256_json([self.digest, records, rows, self.batch_size, BLOCK_ROWS])[:16]

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Return the arguments of `BlockWork`, as JSON if the functions are names."""
        rows = None
        if self.rows is not None:
            rows = str(folder / "rows.npy")
            np.save(rows, self.rows)
        threads = usable_processors() if self.workers < 2 else 1
        how = {"batch_size": self.batch_size, "device": self.device, "threads": threads}
        if self.storage_options is not None:
            how["storage_options"] = dict(self.storage_options)
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
    folder = root / one.key
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
        with _computing(one, folder, missing) as blocks:
            for block in chain(finished, blocks):
                for column in kinds.check(load(folder, block.number)):
                    check(*_split(one, column))
                stage.advance(0 if block in known else block.stop - block.start)
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


@contextmanager
def _computing(one: Pass, folder: Path, blocks: Sequence[Block]) -> Iterator[Iterator[Block]]:
    """Yield an iterator over blocks, each as soon as it is computed. Worker processes end with the context."""
    if not blocks:
        yield iter(())
    elif not one.workers:
        work = BlockWork(**one.arguments(folder))
        yield _compute_here(work, blocks)
    else:
        with ExitStack() as stack:
            yield _compute_apart(stack, one, folder, blocks)


def _compute_here(work: BlockWork, blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        work.compute(block)
        yield block


def _compute_apart(stack: ExitStack, one: Pass, folder: Path, blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks as worker processes finish them."""
    answers, waiting = AnswerQueue(), list(reversed(blocks))
    arguments = one.arguments(folder)
    for number in range(min(one.workers, len(blocks))):
        child = Child(["packer.analysis.compute.work"], folder / f"worker-{number:03d}.log", answers)
        stack.callback(child.end)
        child.send(arguments)
    under_way: dict[Child, Block] = {}
    left = len(blocks)
    while left:
        try:
            child, message = answers.get(_TICK_S)
        except queue.Empty:
            continue
        if message["event"] == "failed":
            raise getattr(errors, message["kind"])(message["message"])
        if message["event"] == "died":
            what = f"block {under_way[child].number}" if child in under_way else "the first block"
            raise BuildError(
                f"a worker process ended, {child.describe_death()}",
                place=what,
                hint="run the same command again to resume, with fewer workers if memory ran out",
            )
        if message["event"] == "done":
            left -= 1
            yield under_way.pop(child)
        if waiting:
            block = under_way[child] = waiting.pop()
            child.send({"block": list(block)})


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
