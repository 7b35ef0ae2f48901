"""Check and write the single output file of a command."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from packer.workspace.durable import write_durably
from shardspec.errors import BuildError, UsageError, system_reason


def check_output(path: Path, *suffixes: str, datasets: Iterable[Path] = ()) -> None:
    """Check, before the work starts, the name of an output file and that its folder can be written.

    Parameters
    ----------
    path : Path
    suffixes : str
        Allowed suffixes, in lower case.
    datasets : iterable of Path
        Datasets that must not contain the file: a build refuses to replace a dataset with other files in its folder.

    Raises
    ------
    UsageError
        If the name has another suffix or belongs to a folder, or if the file's folder does not exist, is one of
        `datasets`, or cannot be written.
    """
    if path.suffix.lower() not in suffixes:
        found = path.suffix or "no suffix"
        raise UsageError(place=path, expected=f"a name that ends in {' or '.join(suffixes)}", found=found)
    folder = path.absolute().parent.resolve()
    for dataset in datasets:
        if folder.is_relative_to(dataset.resolve()):
            raise UsageError(place=path, expected="a file outside the dataset", found=f"one in {dataset}")
    if path.is_dir():
        raise UsageError(place=path, expected="a file's name", found="a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(place=path, expected="a file in an existing folder", found=f"no folder {path.parent}")
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(_describe(path, error)) from error


def write_output(path: Path, data: bytes) -> None:
    """Write the file, replacing an existing one. A partial file is never visible.

    Raises
    ------
    BuildError
        See `writing_output`.
    """
    with writing_output(path):
        write_durably(path, data)


@contextmanager
def writing_output(path: Path) -> Iterator[None]:
    """Turn a failed write into a `BuildError` that names the output file.

    Raises
    ------
    BuildError
        If the file cannot be written, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(_describe(path, error)) from error


def _describe(path: Path, error: OSError) -> str:
    return f"{path}: cannot be written: {system_reason(error)}"
