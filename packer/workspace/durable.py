"""Durable files, which after a crash at any moment are complete or absent, and files of JSON lines.

The files of an unfinished build have checksums, so that a damaged one is an error and not part of the dataset.
"""

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from json import encoder
from pathlib import Path
from typing import Any

from shardspec.columns import Buffer
from shardspec.entries import FileEntry
from shardspec.errors import BuildError, DatasetError, ShardspecError, system_reason
from shardspec.layout import BUILD_FOLDER, MANIFEST_NAME, Layout
from shardspec.manifest import CHECKSUM, Manifest, is_intact, seal

_SUM = "crc"
"""Key of the checksum of a line."""
_RESULTS = ("parts", "scans", "kept")
"""Folders with the results of single tasks."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an `OSError` (disk full, read-only folder) into a `BuildError` that names the file or folder."""
    try:
        yield
    except ShardspecError:  # some are OSErrors, too
        raise
    except OSError as error:
        raise BuildError(f"cannot be written: {system_reason(error)}", place=error.filename or folder) from error


def write_durably(path: Path, data: bytes | Iterable[Buffer]) -> None:
    """Replace `path` with a file of these bytes: write a temporary file, flush it, rename it, and flush the folder."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with temporary.open("xb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_if_changed(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace `path` as `write_durably` does, unless the file already contains these bytes.

    Some shared mounts keep showing the old version of a replaced file, so unneeded replacements are avoided.

    Parameters
    ----------
    path : Path
    pieces : iterable of bytes
        Read twice if they differ.
    """
    if not _holds(path, pieces):
        write_durably(path, pieces)


def _holds(path: Path, pieces: Iterable[bytes]) -> bool:
    try:
        with path.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in pieces) and not file.read(1)
    except FileNotFoundError:
        return False


def damaged(path: Path, root: Path | None = None, found: str = "a damaged one") -> BuildError:
    """Return the error for a file of an unfinished build that is missing or differs from what was written.

    Parameters
    ----------
    root : Path, optional
        The build's ``.build`` folder, by default the one that holds the file.
    found : str
        Description of a file that exists.
    """
    root = root or next((folder for folder in path.parents if folder.name == BUILD_FOLDER), path.parent)
    out = root.parent
    if path.is_relative_to(root) and path.relative_to(root).parts[0] in _RESULTS:
        remove = [one for one in (path, root / "assembly.json") if one.exists()]
    else:
        remove = [root if (out / MANIFEST_NAME).exists() or (root / "upload.json").exists() else out]
    delete = f"delete {' and '.join(map(str, remove))}, and " if remove else ""
    return BuildError(
        place=path,
        expected="the file as this build wrote it",
        found=found if path.exists() else "none",
        hint=f"{delete}run the same command again",
    )


def write_record(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object that is not empty durably, with a checksum."""
    write_durably(path, seal(json.dumps(document)))


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote; `BuildError` if the file is damaged."""
    data = path.read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged(path) from None
    if isinstance(document, dict) and CHECKSUM not in document:
        raise damaged(path, found="one without a checksum: damaged, or made by an earlier version")
    if not isinstance(document, dict) or not is_intact(data, document.pop(CHECKSUM)):
        raise damaged(path)
    return document


def read_needed(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote; `BuildError` if the file is missing or damaged."""
    try:
        return read_record(path)
    except FileNotFoundError:
        raise damaged(path) from None


def read_manifest(path: Path) -> Manifest:
    """Read a manifest in the folder of an unfinished build; `BuildError` if it is damaged."""
    try:
        return Manifest.loads(path.read_bytes(), str(path))
    except DatasetError:
        raise damaged(path) from None


def check_files(folder: Path, entries: Iterable[FileEntry], root: Path | None = None) -> None:
    """Check the digests of files of an unfinished build in a folder; raise `damaged` if one is missing or differs."""
    for entry in entries:
        try:
            Layout(folder).check_digest(entry)
        except DatasetError:
            raise damaged(folder / entry.name, root) from None


def publish(attempt: Path, path: Path) -> bool:
    """Rename a finished file to `path` unless `path` exists. Return whether it was renamed. The attempt is removed.

    If the file system has no hard links, two processes that publish at the same moment may both succeed.
    """
    try:
        os.link(attempt, path)
    except FileExistsError:
        attempt.unlink()
        return False
    except FileNotFoundError:
        raise
    except OSError:
        if path.exists():
            attempt.unlink()
            return False
        os.replace(attempt, path)
        return True
    attempt.unlink()
    return True


def publish_folder(attempt: Path, path: Path) -> bool:
    """Rename a finished folder to `path` unless `path` exists. Return whether it was renamed.

    If `path` exists, the attempt is kept: a rename never replaces a folder that is not empty.
    """
    if path.exists():
        return False
    try:
        attempt.rename(path)
    except OSError:
        if path.exists():
            return False
        raise
    fsync_folder(path.parent)
    return True


def write_all(descriptor: int, values: Iterable[Buffer]) -> None:
    """Write values one after another."""
    rest = memoryview(b"".join(values))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder durable. Do nothing on systems that cannot open folders (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Flush a file to the disk. It is opened for writing, because Windows flushes no other files."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            fsync_folder(path)
        else:
            fsync_file(path)
    fsync_folder(folder)


def link_file(path: Path) -> Path:
    """Return a new hard link to a file, in the same folder; a copy if links are impossible."""
    link = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        os.link(path, link)
    except OSError:
        shutil.copyfile(path, link)
        fsync_file(link)
    return link


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except OSError as error:
            if not Path(
                str(error.filename)
            ).is_absolute():  # before Python 3.13, this is only the last part of the path
                error.filename = os.fspath(path)
            raise
    else:
        path.unlink(missing_ok=True)


def line_encoder(**options: Any) -> Callable[[Any], str]:
    """Return an equivalent of ``json.JSONEncoder(**options).encode`` that takes a third of the time for a short value.

    The standard encoder is set up again for each value, which takes longer than encoding an item. A value that
    contains itself raises `RecursionError`.

    Parameters
    ----------
    **options
        Options of `json.JSONEncoder` except `indent`.
    """
    plain = json.JSONEncoder(**options)
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # not in CPython
        return plain.encode
    text = encoder.encode_basestring_ascii if plain.ensure_ascii else encoder.encode_basestring
    marks = plain.key_separator, plain.item_separator
    prepared = make(None, plain.default, text, None, *marks, plain.sort_keys, plain.skipkeys, plain.allow_nan)
    return lambda value: "".join(prepared(value, 0))


encode_json = line_encoder(ensure_ascii=False)
"""Encodes a value as JSON and escapes only the characters that must be escaped."""


def to_utf8(text: str) -> bytes:
    """Encode JSON as UTF-8. Surrogates, as in a file name that is not UTF-8, become escapes."""
    return text.encode("utf-8", "backslashreplace")


def encode_line(document: Any) -> bytes:
    """Encode a document as one line of JSON in UTF-8 (`to_utf8`)."""
    return to_utf8(encode_json(document) + "\n")


def append_line(path: Path, document: Mapping[str, Any]) -> None:
    """Append a JSON object as a line with a checksum. If a crash cut the last line short, end that line first."""
    line = _compact({**document, _SUM: zlib.crc32(_compact(document))}) + b"\n"
    with path.open("a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        ended = file.read(1) in (b"", b"\n")
        write_all(file.fileno(), [line if ended else b"\n" + line])


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the documents of a JSON lines file. The file may be missing, or end with a line that a crash cut short."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that `append_line` wrote, without damaged lines. The file may be missing."""
    with suppress(FileNotFoundError):
        yield from filter(None, map(parse_line, path.read_bytes().split(b"\n")[:-1]))


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line that `append_line` wrote; None if the line is damaged or was cut short by a crash."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.pop(_SUM, None) != zlib.crc32(_compact(document)):
        return None
    return document


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")
