"""List the members of a tar file from its headers (POSIX.1-2001, and GNU's long names), without unpacking it.

Python's ``tarfile`` is not used, because it keeps every member in memory, reads extended headers of any size, and
recurses into chains of them.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

BLOCK_BYTES = 512

Kind = Literal["file", "folder", "a link", "a device", "a sparse file", "an entry of an unknown type"]

_KINDS: dict[bytes, Kind] = {
    **dict.fromkeys((b"0", b"\0", b"7"), "file"),
    b"5": "folder",
    **dict.fromkeys((b"1", b"2"), "a link"),
    **dict.fromkeys((b"3", b"4", b"6"), "a device"),
    b"S": "a sparse file",
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_EXTENDED = (_LONG_NAME, _LONG_LINK, _PAX, b"X", _PAX_GLOBAL)
_EXTENDED_BYTES_MAX = 1 << 20
_EXTENDED_MAX = 16
"""Most extended headers before a member."""
_NAME_MAX = 4096
_GZIP_MAGIC = b"\x1f\x8b"
_SPARSE_KEY = "GNU.sparse."
_END_BYTES_MAX = 1 << 20
"""Most zeros after the end of an archive. GNU's tar fills the last record, which has up to 1 MiB."""
_COPY_BYTES = 1 << 20
_EXPANSION_MAX = 200
_EXPANSION_FREE_BYTES = 256 * 10**6
"""Largest ratio of unpacked to compressed size, and an unpacked size that is always allowed. Images hardly shrink."""


class TarMember(NamedTuple):
    """A member of a tar file.

    Attributes
    ----------
    name : str
        Name in the archive. Bytes that are not UTF-8 become surrogates.
    offset, size : int
        Position of its bytes in the decompressed archive.
    data : bytes or None
        The content, if it was requested.
    """

    name: str
    kind: Kind
    offset: int
    size: int
    data: bytes | None = None


class TarDamage(Exception):  # noqa: N818 -- it is the end of a listing, not an error of a call
    """The rest of an archive cannot be read; the message says why."""


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed by gzip, regardless of its name."""
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def walk_tar(path: Path, wanted_bytes: "dict[str, int]") -> Iterator[TarMember]:
    """Yield the members of a tar file in order, with the bytes of some of them.

    Memory does not grow with the archive.

    Parameters
    ----------
    wanted_bytes : dict of str to int
        Largest size to read, by the last suffix of a member's name in lower case.

    Raises
    ------
    TarDamage
        If the archive is damaged or cut off. Raised after the last complete member.
    OSError
        If the file cannot be read.
    """
    compressed = is_compressed(path)
    with path.open("rb") as raw:
        size = raw.seek(0, 2)
        raw.seek(0)
        if not compressed:
            yield from _walk(_Stream(raw, size), wanted_bytes)
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield from _walk(_Stream(file, None, _EXPANSION_MAX * size + _EXPANSION_FREE_BYTES), wanted_bytes)


class _Stream:
    """A file that is read in order. A compressed file has no known size, and must not exceed `limit` bytes."""

    def __init__(self, file: BinaryIO | gzip.GzipFile, size: int | None, limit: int = 0) -> None:
        self._file, self._size, self._limit, self.at = file, size, limit, 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer only at the end."""
        try:
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TarDamage(f"expected a whole gzip file, found an error after {self.at} bytes: {error}") from error
        self.at += len(data)
        if self._size is None and self.at > self._limit:
            raise TarDamage(
                f"expected at most {_EXPANSION_MAX} times the bytes of the compressed file, found more than "
                f"{self._limit}: unpack it, and give the .tar"
            )
        return data

    def skip(self, size: int) -> int:
        """Skip bytes, and return how many were skipped."""
        if self._size is not None:
            found = max(0, min(size, self._size - self.at))
            self.at += found
            self._file.seek(self.at)
            return found
        left = size
        while left and (found := len(self.read(min(left, _COPY_BYTES)))):
            left -= found
        return size - left


def _walk(file: _Stream, wanted_bytes: dict[str, int]) -> Iterator[TarMember]:
    name: str | None = None
    length: int | None = None
    sparse, extended = False, 0
    while True:
        start = file.at
        block = file.read(BLOCK_BYTES)
        if block.count(0) == len(block):
            _check_end(file, start, block)
            return
        size, kind = _read_header(block, start)
        if kind in _EXTENDED:
            extended += 1
            if size > _EXTENDED_BYTES_MAX or extended > _EXTENDED_MAX:
                raise TarDamage(f"expected a name at byte {start}, found an extended header of {size} bytes or many")
            data = file.read(size)
            _skip_padding(file, size, start, len(data))
            if kind == _LONG_NAME:
                name = _as_text(data.partition(b"\0")[0])
            elif kind != _LONG_LINK and kind != _PAX_GLOBAL:
                records = _parse_pax(data, start)
                sparse |= any(key.startswith(_SPARSE_KEY) for key in records)
                name = records.get("path", name)
                length = _parse_size(records["size"], start) if "size" in records else length
            continue
        if length is not None:
            size = length
        found = _as_text(_header_name(block)) if name is None else name
        if len(found) > _NAME_MAX:
            raise TarDamage(f"expected a name of at most {_NAME_MAX} characters at byte {start}, found {len(found)}")
        what: Kind = "a sparse file" if sparse else _KINDS.get(kind, "an entry of an unknown type")
        if what == "file" and found.endswith("/"):  # this meant a folder before POSIX
            what = "folder"
        if what in ("folder", "a link", "a device"):
            size = 0
        offset = file.at
        wanted = what == "file" and size <= wanted_bytes.get(found.rpartition(".")[2].lower(), -1)
        data = file.read(size) if wanted else b""
        _skip_padding(file, size, start, len(data) if wanted else file.skip(size))
        yield TarMember(found, what, offset, size, data if wanted else None)
        name, length, sparse, extended = None, None, False, 0


def _skip_padding(file: _Stream, size: int, start: int, found: int) -> None:
    """Skip to the next block after the member at `start`, of which `found` bytes were read."""
    padding = -size % BLOCK_BYTES
    if found < size or file.skip(padding) < padding:
        raise TarDamage(
            f"expected {size} bytes in the member at byte {start}, found the end of the file after {found}: cut off"
        )


def _read_header(block: bytes, start: int) -> tuple[int, bytes]:
    """Return the size and type from a header block, and check its checksum."""
    if len(block) < BLOCK_BYTES:
        raise TarDamage(f"expected a header at byte {start}, found the end of the file: cut off")
    announced = _number(block[148:156])
    plain = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    if announced != plain and announced != plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise TarDamage(f"expected a header at byte {start}, found other bytes: damaged, or no tar file")
    size = _number(block[124:136])
    if size is None or size < 0:
        raise TarDamage(f"expected the size of a member at byte {start}, found {block[124:136]!r}")
    return size, block[156:157]


def _number(field: bytes) -> int | None:
    """Parse a number in octal digits, or in binary if the first bit is set; None if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big", signed=True) + (1 << (8 * len(field) - 1) if field[0] != 0xFF else 0)
    text = field.strip(b" \0")
    return int(text or b"0", 8) if not text.strip(b"01234567") else None


def _header_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    # GNU's tar stores times in place of the prefix.
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _parse_pax(data: bytes, start: int) -> dict[str, str]:
    """Parse an extended header: lines of ``<length> <key>=<value>``, with the length in bytes."""
    records: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 20].partition(b" ")
        stop = at + int(digits) if space and digits.isdigit() else 0
        key, equals, value = data[at + len(digits) + 1 : stop - 1].partition(b"=")
        if stop <= at + len(digits) + 1 or stop > len(data) or not equals:
            raise TarDamage(f"expected an extended header at byte {start}, found a damaged one")
        records[_as_text(key)] = _as_text(value)
        at = stop
    return records


def _parse_size(text: str, start: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise TarDamage(f"expected the size of a member at byte {start}, found {text[:20]!r}")
    return int(text)


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check_end(file: _Stream, start: int, block: bytes) -> None:
    """Check that the file ends with a block of zeros, followed only by zeros."""
    if len(block) < BLOCK_BYTES:
        found = f"{len(block)} bytes" if block else "the end of the file"
        raise TarDamage(f"expected the end mark of a tar file at byte {start}, found {found}: cut off")
    rest = file.read(_END_BYTES_MAX)
    if rest.count(0) != len(rest) or len(rest) == _END_BYTES_MAX:
        raise TarDamage(
            f"expected the end of the file after the end mark at byte {start}, found more: several tar files in one "
            "cannot be read; unpack them"
        )
