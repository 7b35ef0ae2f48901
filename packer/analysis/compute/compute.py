"""``packer compute``: add columns that functions compute from the samples of a packed dataset."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.analysis.compute.function import Function, open_function, parse
from packer.analysis.compute.job import VALID, ComputeJob, has_computed
from packer.analysis.compute.run import BATCH_SIZE
from packer.assembly.columns import change_columns
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.recipe.checks import checked
from packer.recipe.engines import ENGINES, check_reachable, refuse_main, usable_processors
from packer.recipe.options import BuildOptions
from packer.workspace import Workspace
from packer.workspace.durable import fsync_file, writing
from packer.workspace.folder import changing, locked, output_folder
from packer.workspace.paths import temporary_path
from shardspec.errors import DatasetChangedError, UsageError
from shardspec.layout import given_path
from shardspec.registry import import_target
from shardspec.stores import local_path, names_store
from shardspec.wording import counted, list_some, shorten


@dataclass(frozen=True, repr=False)
class ComputeResult(Result):
    """Columns that were computed from the samples of a packed dataset.

    Attributes
    ----------
    path : Path or str
        The dataset's folder or URL.
    out : Path or None
        The table that was written; None if the columns were added to the dataset.
    samples : int
        Samples of the dataset.
    added, replaced : tuple of str
        Names of fields.
    missing : dict of str to int
        Number of samples without a value, by field.
    found_finished : bool
        Whether all columns were there already, so that nothing was done.
    """

    path: Path | str
    out: Path | None
    samples: int
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    missing: Mapping[str, int] | None = None
    found_finished: bool = False

    def describe(self) -> str:
        """Describe the columns, and how many values are missing."""
        where = self.out or self.path
        if self.found_finished:
            return f"{where}: finished already, nothing was done: the same functions have computed the columns"
        done = [("added", self.added), ("replaced", self.replaced)]
        text = f"{where}: " + ", ".join(f"{what} {list_some(names)}" for what, names in done if names)
        lines = [f"{text} for {counted(self.samples, 'sample')}"]
        lines += [f"{counted(count, 'sample')} without {name}" for name, count in (self.missing or {}).items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {
            "dataset": str(self.path),
            "out": None if self.out is None else str(self.out),
            "samples": self.samples,
            "added": list(self.added),
            "replaced": list(self.replaced),
            "missing": dict(self.missing or {}),
            "found_finished": self.found_finished,
        }


def compute(
    dataset: str | os.PathLike[str],
    functions: str | Mapping[str, Any] | Callable[..., Any] | Sequence[Any],
    *,
    out: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    workers: int | None = None,
    engine: str = "processes",
    batch_size: int = BATCH_SIZE,
    replace: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
) -> ComputeResult:
    """Add columns that functions compute from the samples of a packed dataset. No shard is touched.

    A function takes fields of a batch by the names of its parameters, as a `readers.Loader` yields them: images as uint8
    tensors, (B, 3, H, W), other fields as tensors, (B, …), texts and values of varying shape as lists. It returns a dict
    of columns: arrays or tensors, (B, …), masked arrays, or lists of B texts or arrays, with None for a missing value.
    Keyword-only parameters are options. A class is made once in each worker, with `device` if it takes it, and called
    like a function.

    The values are computed in blocks of rows. If a call is interrupted, the same call resumes with the blocks that are
    missing. Columns that the same version of a function has computed with the same options are not computed again.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or with `out` also a URL.
    functions : sequence of str, mapping or callable
        What to compute: ``"quality"``, ``"hash"``, ``"digest"``, ``"face"``, ``"identity"``, or ``"module:function"``. Options
        follow the name (``"identity,frames=5"``); in Python also ``{"use": name, option: value}``. Functions and classes
        themselves are called in this process.
    out : path, optional
        Write a Parquet table with the keys and the new columns to this file instead of changing the dataset.
    device : str
        Device of torch on which batches and classes are, such as ``"cuda"``.
    workers : int, optional
        Worker processes; by default one for each processor, or one with another `device` than the CPU. With 0, the
        functions are called in this process.
    engine : {"processes", "inline", "ray"}
        Where the work runs: in worker ``"processes"``, ``"inline"`` in this process, or on the Ray cluster that
        ``RAY_ADDRESS`` names. All nodes must see the dataset and import the functions.
    batch_size : int
        Samples of a batch.
    replace : bool
        Whether to replace columns of the same names that were added or computed before.
    storage_options : mapping, optional
        See `readers.open_dataset`.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    ComputeResult

    Raises
    ------
    UsageError
        If there is no such function, field or device; if a function returns another number of values than samples,
        values of another type than in the first batch, or NaN; or if the dataset has a field of the same name.
    DatasetError
        If the dataset cannot be read, changes meanwhile, or if a function raises an exception. The message has the key
        of the sample.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If a file cannot be written, if worker processes die again and again, or if no node can do the work.
    """
    given = [functions] if isinstance(functions, str | Mapping) or callable(functions) else list(functions)
    opened = [open_function(one) for one in given]
    names = [one.name for one in opened]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            option="functions", expected="one function or more, each once", found=list_some(names) or "none"
        )
    batch_size = checked("batch_size", batch_size, int, minimum=1)
    how = (device, _workers(workers, engine, device, given), batch_size, storage_options, engine)
    listener = listener_of(progress)
    if out is not None:
        job = ComputeJob(local_path(dataset), tuple(given), tuple(opened), *how)
        table = given_path("out", out)
        return dataclasses.replace(_to_table(job, table.absolute(), replace, listener), out=table)
    if names_store(dataset):
        raise UsageError(
            option="dataset",
            expected="a local folder",
            found=f"the URL {shorten(str(dataset))}",
            hint="write a table with `out`, and add it to a copy of the dataset",
        )
    path = output_folder(dataset, "dataset")
    with changing(path) as (workspace, manifest):
        columns = {column.field: column for column in manifest.columns}
        todo = [
            place for place, one in enumerate(opened) if replace or not one.version or not has_computed(manifest, one)
        ]
        if not todo:
            return ComputeResult(path, None, manifest.samples, found_finished=True)
        taken = set(manifest.schema.names)

        def check(name: str, function: Function) -> None:
            # After one of its columns was dropped, a function computes all of them again.
            known = columns[name].computed if name in columns and function.version else {}
            if name in taken and not (name in columns and (replace or {**known, **function.record} == known)):
                raise UsageError(
                    f"the dataset has a field {name!r} already",
                    place=f"function {function.name}",
                    hint="replace it with `replace`"
                    if name in columns
                    else f"rename the column that {function.name} returns",
                )

        job = ComputeJob(path, tuple(given[at] for at in todo), tuple(opened[at] for at in todo), *how)
        found = job.columns(workspace.computed, listener, check)
        gone = {mark for name in found.columns for mark in (name, f"{name}{VALID}") if mark in columns}
        change_columns(workspace, manifest, gone, found.fields, found.columns, found.records)
    return ComputeResult(
        path,
        None,
        manifest.samples,
        added=tuple(name for name in found.names if name not in columns),
        replaced=tuple(name for name in found.names if name in columns),
        missing=found.missing,
    )


def _workers(workers: int | None, engine: str, device: str, given: Sequence[Any]) -> int | str:
    """Return the number of worker processes, "auto" if the nodes of a cluster decide, or 0 for this process."""
    workers = checked("workers", workers, int | None, minimum=0)
    entry = ENGINES[BuildOptions(workers=workers or "auto", engine=engine).engine]
    if any(callable(one) for one in given):
        if workers or entry.many_hosts:
            raise UsageError(
                option="engine" if entry.many_hosts else "workers",
                expected=f"{'inline' if entry.many_hosts else 0}, since a function that is given as an object is called "
                "in this process",
                found=engine if entry.many_hosts else workers,
                hint="name it as 'module:function'",
            )
        return 0
    if not entry.many_workers or workers == 0:
        return 0
    for one in given:
        refuse_main(parse(one).use, engine)
    if entry.many_hosts:
        check_reachable(None)
        return workers or "auto"
    return workers if workers is not None else usable_processors() if device == "cpu" else 1


def _to_table(job: ComputeJob, out: Path, replace: bool, listener: ProgressListener) -> ComputeResult:
    """Compute the columns into a Parquet file. Its metadata say what was computed from which dataset."""
    table = import_target("packer.analysis.compute.table:write_table", what="out", extra="parquet")
    read_note = import_target("packer.analysis.compute.table:read_note", what="out", extra="parquet")
    if out.suffix != ".parquet":
        raise UsageError(option="out", expected="a file FILE.parquet", found=shorten(out.name))
    dataset = job.open()
    shown = str(job.dataset) if names_store(job.dataset) else Path(job.dataset)
    note = {"digest": dataset.manifest.digest, "functions": [one.record for one in job.functions]}
    if out.exists() and not replace:
        if all(one.version for one in job.functions) and read_note(out) == note:
            return ComputeResult(shown, out, len(dataset), found_finished=True)
        raise UsageError(
            option="out", expected="a new file", found=f"{out}, which exists", hint="overwrite it with `replace`"
        )
    workspace = Workspace(out.with_name(f".{out.name}.build"))
    with locked(workspace), writing(out.parent):
        found = job.columns(workspace.computed, listener, lambda name, function: None)
        again = job.open()
        if again.manifest.digest != dataset.manifest.digest:
            raise DatasetChangedError(
                place=job.dataset, expected="the dataset as it was", found="another", hint="run the same command again"
            )
        attempt = temporary_path(out)
        try:
            table(attempt, dataset.column("key"), found, json.dumps(note))
            fsync_file(attempt)
            os.replace(attempt, out)
        finally:
            attempt.unlink(missing_ok=True)
        workspace.remove()
    return ComputeResult(shown, out, len(dataset), added=tuple(found.names), missing=found.missing)
