"""Read the names and places of the files in a zip file from its central directory (PKWARE's APPNOTE 6.3.10).

Python's ``zipfile`` reads the directory. It handles zip64, names in UTF-8 and code page 437, and data before the
archive. It does not read the files, because it would read the whole directory again in each worker.
"""

import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from packer.sources.member_bytes import MAX_UNPACKED_BYTES
from shardspec.wording import shorten

_HEADER_BYTES = 30
"""Size of a file's header in the archive, without its name and extra fields (APPNOTE 4.3.7)."""
_NAME_MAX = 4096
_ENCRYPTED = 0x1
"""Bit of a file's general purpose flag (APPNOTE 4.4.4)."""
_DOS = 0
"""`ZipInfo.create_system` of programs for DOS and Windows, some of which separate folders by backslashes."""
_METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 99: "AES, with a password"}
"""Names of compression methods (APPNOTE 4.4.5)."""
_METADATA = "__MACOSX"
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error)
"""Errors of `zipfile` for a directory that it cannot read."""


class ZipEntry(NamedTuple):
    """A file in a zip file.

    Attributes
    ----------
    name : str
        Its path in the archive, with ``/``.
    size : int
        Size of the unpacked file in bytes.
    place : tuple of int
        See `Member`.
    fault : str or None
        Why the file cannot be read.
    """

    name: str
    size: int
    place: tuple[int, ...]
    fault: str | None


class ZipDamage(Exception):  # noqa: N818 -- it is the end of a listing, not an error of a call
    """The directory of a zip file cannot be read; the message says why."""


def read_directory(file: BinaryIO) -> None:
    """Read the parts of a zip file that `zip_entries` reads, which are at its end, also if they are damaged."""
    with suppress(*_DAMAGE):
        zipfile.ZipFile(file).close()


def zip_entries(path: Path) -> Iterator[ZipEntry]:
    """Yield the files of a zip file in the order of their bytes, without hidden files.

    Raises
    ------
    ZipDamage
        If the directory cannot be read. Raised before the first file.
    OSError
        If the archive cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files = sorted(archive.infolist(), key=lambda file: file.header_offset)
            ends = [*(file.header_offset for file in files), archive.start_dir][1:]
    except _DAMAGE as error:
        raise ZipDamage(f"expected a whole zip file, found one that is cut off, damaged or split: {error}") from error
    names: set[str] = set()
    for file, end in zip(files, ends, strict=True):
        name = file.filename.replace("\\", "/") if file.create_system == _DOS else file.filename
        name = name.removeprefix("./")
        parts = name.split("/")
        if name.endswith("/") or parts[0] == _METADATA or any(part[:1] == "." and part != ".." for part in parts):
            continue
        room = end - file.header_offset
        fault = (
            "expected every name once in the archive, found it again" if name in names else _fault(file, parts, room)
        )
        names.add(name)
        place = (file.header_offset, room, file.compress_type, file.compress_size, file.file_size, file.CRC)
        yield ZipEntry(shorten(name, _NAME_MAX) if len(name) > _NAME_MAX else name, file.file_size, place, fault)


def _fault(file: zipfile.ZipInfo, parts: list[str], room: int) -> str | None:
    """Return why a file cannot be read; None if it can. Its bytes end at most `room` bytes after its header begins."""
    if not parts[0] or ".." in parts or len(file.filename) > _NAME_MAX:
        return "expected a short name inside the archive, found one that is too long or leads out of it"
    if stat.S_ISLNK(file.external_attr >> 16):
        return "expected a plain file in the archive, found a link"
    if file.flag_bits & _ENCRYPTED:
        return "expected a file without a password, found an encrypted one: unpack the archive"
    if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = _METHODS.get(file.compress_type, f"method {file.compress_type}")
        return f"expected a stored or deflated file, found one compressed by {method}: unpack the archive"
    if file.compress_type == zipfile.ZIP_DEFLATED and file.file_size > MAX_UNPACKED_BYTES:
        found = f"{file.file_size}: unpack the archive"
        return f"expected at most {MAX_UNPACKED_BYTES} bytes in a compressed file, found {found}"
    is_copied = file.compress_type == zipfile.ZIP_STORED
    is_whole = file.header_offset >= 0 and room >= _HEADER_BYTES + file.compress_size
    if not is_whole or (is_copied and file.compress_size != file.file_size):
        return f"expected {file.compress_size} bytes of this file in the archive, found others or fewer: damaged"
    return None
