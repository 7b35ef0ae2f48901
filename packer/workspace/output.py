"""The one file that a command writes, under the name that its caller gives."""

from pathlib import Path

from packer.workspace.durable import write_durably
from shardspec.errors import UsageError, system_reason


def check_output(path: Path, *suffixes: str) -> None:
    """Check the name of a file to write.

    Parameters
    ----------
    path : Path
    suffixes : str
        Those that it may end in, in lower case; the first is the usual one.

    Raises
    ------
    UsageError
        If it ends in none of them, or is the name of a folder, or lies in a folder that is not there.
    """
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: expected a name that ends in {suffixes[0]}")
    if path.is_dir():
        raise UsageError(f"{path}: expected a file's name, found a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: expected a file in an existing folder, found no folder {path.parent}")


def write_output(path: Path, data: bytes) -> None:
    """Write the file, in place of one that is there; it is never there in part.

    Raises
    ------
    UsageError
        If it cannot be written.
    """
    try:
        write_durably(path, data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {system_reason(error)}") from error
