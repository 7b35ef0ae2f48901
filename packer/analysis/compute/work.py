"""Compute blocks of rows: in this process, or as the work of an engine."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.analysis.compute.function import Function, Values, open_function
from packer.analysis.compute.values import Values as ColumnValues
from packer.analysis.compute.values import concatenate, read_result, save_block
from packer.jobs.plan import OnItem, Task, Tasks, Unit, Verdicts
from packer.recipe.engines import usable_processors
from packer.recipe.options import read_shared_settings
from packer.steps.chain import StepResources
from packer.vision.faults import describe_error
from packer.workspace import Workspace
from packer.workspace.durable import fsync_file, fsync_folder, publish, writing
from packer.workspace.paths import temporary_path
from packer.workspace.shared_files import host
from shardspec import errors
from shardspec.columns import IntArray
from shardspec.errors import BuildError, DatasetError, MissingDependencyError, ShardspecError, UsageError
from shardspec.registry import import_target
from shardspec.wording import one_line

_PREFETCH = 3


class Block(NamedTuple):
    """A run of the rows to compute.

    Attributes
    ----------
    number : int
    start, stop : int
        Places in the list of rows; `stop` is exclusive.
    """

    number: int
    start: int
    stop: int


class BlockWork:
    """Reads blocks with a `readers.Loader`, calls functions with its batches, and writes what they return.

    Parameters
    ----------
    dataset : str
        Folder or URL.
    functions : sequence
        As for `open_function`.
    folder : Path
        Where blocks are written.
    rows : Path, optional
        An ``.npy`` file with the rows to compute; by default all.
    batch_size : int
    device : str
    threads : int or None
        Threads that read and decode; None for one for each processor.
    storage_options : mapping, optional
    """

    def __init__(
        self,
        dataset: str,
        functions: Sequence[Any],
        folder: str,
        rows: str | None,
        batch_size: int,
        device: str,
        threads: int | None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._functions = [open_function(one) for one in functions]
        open_dataset = import_target("readers:open_dataset", what="compute", extra="torch")
        self._loader = import_target("readers:Loader", what="compute", extra="torch")
        schema = open_dataset(dataset, storage_options=storage_options).schema
        self._fields = {one.name: one.fields_in(schema, dataset) for one in self._functions}
        fields = list(dict.fromkeys(name for names in self._fields.values() for name in names))
        self._dataset = open_dataset(dataset, fields, storage_options=storage_options)
        self._folder = Path(folder)
        self._rows: IntArray = np.arange(len(self._dataset)) if rows is None else np.load(rows)
        threads = threads or usable_processors()
        self._how: dict[str, Any] = {"batch_size": batch_size, "workers": threads, "prefetch": threads + _PREFETCH}
        self._how |= {} if device == "cpu" else {"device": device}
        try:
            self._calls = {one.name: one.make(device) for one in self._functions}
        except ShardspecError:
            raise
        except Exception as error:
            names = ", ".join(one.name for one in self._functions)
            raise UsageError(
                f"{names} cannot be made: {one_line(describe_error(error))}", option="functions"
            ) from error

    def compute(self, block: Block) -> None:
        """Compute a block, and publish its file."""
        rows = self._rows[block.start : block.stop]
        loader = self._loader(self._dataset.subset(rows), shuffle=False, drop_last=False, **self._how)
        results: dict[str, list[dict[str, ColumnValues]]] = {one.name: [] for one in self._functions}
        at = 0
        with closing(iter(loader)) as batches:
            for batch in batches:
                count = len(next(iter(batch.values())))
                for function in self._functions:
                    results[function.name].append(self._call(function, batch, rows[at : at + count]))
                at += count
        columns: dict[str, ColumnValues] = {}
        for place, (name, found) in enumerate(results.items()):
            columns |= {f"{place}.{column}": values for column, values in concatenate(found, name).items()}
        names = [column.partition(".")[2] for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(option="functions", expected="a column of each name", found=f"several named {name!r}")
        path = block_path(self._folder, block.number)
        attempt = temporary_path(path)
        with writing(self._folder):
            save_block(attempt, columns)
            fsync_file(attempt)
            publish(attempt, path)
            fsync_folder(self._folder)

    def _call(self, function: Function, batch: Mapping[str, Any], rows: IntArray) -> dict[str, ColumnValues]:
        fields = {name: batch[name] for name in self._fields[function.name]}
        try:
            result: Values = self._calls[function.name](**fields)
        except MemoryError:
            raise
        except Exception as error:
            raise self._explain(function, fields, rows, error) from error
        return read_result(result, len(rows), function.name, lambda row: self._dataset.describe(int(rows[row])))

    def _explain(self, function: Function, fields: Values, rows: IntArray, error: Exception) -> ShardspecError:
        """Call the function with each sample alone, to name the one at which it fails."""
        place, reason = f"samples from {self._dataset.describe(int(rows[0]))}", error
        for at, row in enumerate(rows.tolist()):
            try:
                self._calls[function.name](**{name: values[at : at + 1] for name, values in fields.items()})
            except Exception as alone:
                place, reason = self._dataset.describe(row), alone
                break
        if isinstance(reason, MissingDependencyError):
            return reason
        return DatasetError(f"function {function.name} failed: {one_line(describe_error(reason))}", place=place)


def block_path(folder: Path, number: int) -> Path:
    """Return the file of a block."""
    return folder / f"block-{number:06d}.npz"


class ComputeWork:
    """Computes the blocks of a plan (`packer.jobs.plan.Work`). Its tasks are blocks.

    Parameters
    ----------
    arguments : mapping
        Arguments of `BlockWork`.
    records : sequence of dict
        How the values are to be computed (`Function.record`).
    tasks : sequence of Task
    """

    def __init__(
        self, arguments: Mapping[str, Any], records: Sequence[Mapping[str, Any]], tasks: Sequence[Task]
    ) -> None:
        self._arguments = arguments
        self._records = records
        self._tasks = tasks
        self._work: BlockWork | None = None

    @classmethod
    def of_plan(cls, space: Workspace, document: Mapping[str, Any], _resources: StepResources) -> "ComputeWork":
        """Return the work of a workspace's plan."""
        return cls(document["arguments"], document["functions"], Tasks.from_json(document["blocks"]))

    def prepare(self) -> None:
        """Do nothing. Functions are opened by the first unit, whose result reports if they are wrong."""

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Compute a block.

        Returns
        -------
        dict
            Empty, or ``error``: the class and the text of an error of the function, which is not the worker's.
        """
        start, stop, *_ = self._tasks[unit.number]
        try:
            if self._work is None:
                self._check_functions()
                self._work = BlockWork(**self._arguments, storage_options=read_shared_settings()[1] or None)
            self._work.compute(Block(unit.number, start, stop))
        except ShardspecError as error:
            return {"error": [_public_class(error).__name__, str(error)]}
        except OSError as error:
            return {"error": [BuildError.__name__, str(error)]}
        return {}

    def close(self) -> None:
        """Do nothing. Readers close with the process."""

    def _check_functions(self) -> None:
        """Raise `BuildError` if a function differs from the one that the coordinating process has."""
        for given, record in zip(self._arguments["functions"], self._records, strict=True):
            if open_function(given).record != record:
                raise BuildError(
                    place=f"host {host()}",
                    expected=f"the version of {record['function']} that the command has",
                    found="another",
                    hint="install the same version on all hosts",
                )


def _public_class(error: ShardspecError) -> type:
    """Return the class of an error, or of a subclass in another module the nearest class in `shardspec.errors`."""
    public: type = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return public
