"""The one file that a command writes, under the name that its caller gives."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from packer.workspace.durable import write_durably
from shardspec.errors import BuildError, UsageError, system_reason


def check_output(path: Path, *suffixes: str, datasets: Iterable[Path] = ()) -> None:
    """Check the name of a file to write, and that its folder can be written, before the work that gives its contents.

    Parameters
    ----------
    path : Path
    suffixes : str
        Those that it may end in, in lower case.
    datasets : iterable of Path
        Folders in which it may not lie: a build would refuse to replace a dataset that holds other files.

    Raises
    ------
    UsageError
        If it ends in none of them, is the name of a folder, or lies in a folder that is not there, is not meant for it,
        or cannot be written.
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
    """Write the file, in place of one that is there; it is never there in part.

    Raises
    ------
    BuildError
        See `writing_output`.
    """
    with writing_output(path):
        write_durably(path, data)


@contextmanager
def writing_output(path: Path) -> Iterator[None]:
    """Name the file where it cannot be written.

    Raises
    ------
    BuildError
        If it cannot, though its folder could be written when it was checked (`check_output`): the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(_describe(path, error)) from error


def _describe(path: Path, error: OSError) -> str:
    return f"{path}: cannot be written: {system_reason(error)}"
