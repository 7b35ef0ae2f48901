"""Crafted shards: bytes of a structure are changed and its checksum is corrected, as an attacker would do.

The places are found in the bytes of the file, without our readers.
"""

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from readers.formats.hdf5.file import lookup3
from shardspec.formats.parquet import FOOTER_MARK, TAIL_BYTES

_SIGNATURES = re.compile(rb"\x89HDF\r\n\x1a\n|OHDR|OCHK|FRHP|FHDB|FHIB|BTHD|BTLF|BTIN|FAHD|FADB")
_STRUCTURE_BYTES_MAX = 1024
_HEAP_BLOCK_BYTES = 512
_HEAP_BLOCK_CHECKSUM = 17
"""In a heap's block the checksum follows the head."""
_WIDTHS = (1, 1, 1, 2, 4, 8)


@dataclass(frozen=True)
class Rewrite:
    """Slices of a file replaced by other bytes, which may be more or fewer.

    Attributes
    ----------
    file : str
    edits : list of (start, stop, bytes in hexadecimal digits)
        Ascending, and apart from each other.
    place : int
        Place of a single change in its structure; -1 for others.
    """

    file: str
    edits: list[tuple[int, int, str]]
    place: int = -1

    def apply(self, data: bytes) -> bytes:
        """The crafted bytes."""
        pieces, place = [], 0
        for start, stop, new in self.edits:
            pieces += [data[place:start], bytes.fromhex(new)]
            place = stop
        return b"".join([*pieces, data[place:]])


def craft_hdf5(path: Path, count: int, seed: int) -> list[Rewrite]:
    """Changes in the structures of an HDF5 file, with all kinds of structures equally often."""
    rng, data = random.Random(seed), path.read_bytes()
    kinds: dict[bytes, list[tuple[int, int, int]]] = {}
    for name, *extent in _structures(data):
        kinds.setdefault(name, []).append((extent[0], extent[1], extent[2]))
    out = []
    for _ in range(count):
        start, stop, checksum = rng.choice(kinds[rng.choice(sorted(kinds))])
        block = bytearray(data[start:stop])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change_number(block, rng, (0, 1, len(data), start, 2**64 - 1))
        out.append(Rewrite(path.name, [(start, stop, _sealed(block, checksum).hex())]))
    return out


def every_byte(path: Path, structure: bytes, values: tuple[int, ...]) -> list[Rewrite]:
    """Every byte of the first structure of a name in an HDF5 file, changed to some values."""
    data = path.read_bytes()
    _, start, stop, checksum = next(found for found in _structures(data) if found[0] == structure)
    out = []
    for place in range(checksum):
        for value in values:
            block = bytearray(data[start:stop])
            block[place] = value
            out.append(Rewrite(path.name, [(start, stop, _sealed(block, checksum).hex())], place))
    return out


def _sealed(block: bytearray, checksum: int) -> bytes:
    """A structure with its checksum corrected."""
    block[checksum : checksum + 4] = bytes(4)
    covered = block if checksum == _HEAP_BLOCK_CHECKSUM else block[:checksum]
    block[checksum : checksum + 4] = lookup3(bytes(covered)).to_bytes(4, "little")
    return bytes(block)


def _structures(data: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Name, start and stop of every structure with a checksum, and the checksum's place in it."""
    for match in _SIGNATURES.finditer(data):
        start = match.start()
        if match.group() == b"FHDB":
            yield match.group(), start, start + _HEAP_BLOCK_BYTES, _HEAP_BLOCK_CHECKSUM
            continue
        for size in range(8, min(_STRUCTURE_BYTES_MAX, len(data) - start - 4)):
            stored = int.from_bytes(data[start + size : start + size + 4], "little")
            if lookup3(data[start : start + size]) == stored:
                yield match.group(), start, start + size + 4, size
                break


def craft_parquet(path: Path, count: int, seed: int) -> list[Rewrite]:
    """Changes in a Parquet file: in its footer, whose length and checksum are corrected, and in heads of pages."""
    rng, data = random.Random(seed), path.read_bytes()
    start = _footer_start(data)
    end = len(data) - TAIL_BYTES
    # A page's head: type 0, then its size.
    heads = [match.start() for match in re.finditer(rb"\x15\x00\x15", data[:start])]
    out = []
    for number in range(count):
        if number % 3 == 0:
            place = rng.choice(heads) + rng.randrange(48)
            out.append(Rewrite(path.name, [(place, place + 1, bytes([_other_byte(data[place], rng)]).hex())]))
            continue
        footer = bytearray(data[start:end])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            place = rng.randrange(len(footer))
            what = rng.randrange(8)
            if what == 0:
                del footer[place : place + rng.randint(1, 8)]
            elif what == 1:
                footer[place:place] = rng.choice((b"\xff" * 9 + b"\x01", bytes(3), b"\x1c" * 40, b"\x19" * 40))
            else:
                footer[place] = _other_byte(footer[place], rng)
        out.append(_with_footer(path.name, data, start, footer))
    return out


def new_footer(path: Path, old: bytes, new: bytes) -> Rewrite:
    """Bytes of a Parquet file's footer replaced by others, where they first occur."""
    data = path.read_bytes()
    start = _footer_start(data)
    footer = data[start:-TAIL_BYTES]
    if old not in footer:
        raise ValueError(f"expected {old!r} in the footer of {path}")
    return _with_footer(path.name, data, start, footer.replace(old, new, 1))


def _footer_start(data: bytes) -> int:
    end = len(data) - TAIL_BYTES
    return end - int.from_bytes(data[end : end + 4], "little")


def _with_footer(name: str, data: bytes, start: int, footer: bytes | bytearray) -> Rewrite:
    """Another footer in a Parquet file, with its length and checksum."""
    mark = FOOTER_MARK + zlib.crc32(footer).to_bytes(4, "little")
    tail = len(footer).to_bytes(4, "little") + data[-4:]
    return Rewrite(name, [(start - len(mark), len(data), (mark + footer + tail).hex())])


def craft_webdataset(path: Path, count: int, seed: int) -> list[Rewrite]:
    """Changes in a WebDataset shard: in its index, in headers of members, whose checksums are corrected, and in arrays.

    Parameters
    ----------
    path : Path
        The index or the tar file.
    """
    rng = random.Random(seed)
    tar, index = path.with_suffix(".tar"), path.with_suffix(".idx")
    data, text = tar.read_bytes(), index.read_bytes()
    words = [match.span() for match in re.finditer(rb"\S+", text)]
    magics = [match.start() - 257 for match in re.finditer(rb"ustar\x0000", data)]
    arrays = [match.start() for match in re.finditer(rb"\x93NUMPY", data)]
    lengths = [str(n).encode() for n in (0, 1, 511, 512, len(data), len(data) + 1, 10**17, 2**63, 10**40)]
    out = []
    for number in range(count):
        if number % 3 == 0:
            start, stop = rng.choice(words[2:])
            new = rng.choice([*lengths, b"-1", b"\xff", b"1_0", b"", b"cls", text[start:stop] * 2])
            out.append(Rewrite(index.name, [(start, stop, new.hex())]))
        elif number % 3 == 1:
            out.append(new_header(tar, rng.choice(magics), rng.choice(_HEADER_CHANGES)))
        else:
            place = rng.choice(arrays) + rng.randrange(128)
            out.append(Rewrite(tar.name, [(place, place + 1, bytes([_other_byte(data[place], rng)]).hex())]))
    return out


def new_header(path: Path, start: int, change: tuple[int, bytes]) -> Rewrite:
    """Bytes at a place of a tar file's header replaced by others, with the checksum corrected."""
    header = bytearray(path.read_bytes()[start : start + 512])
    place, new = change
    header[place : place + len(new)] = new
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return Rewrite(path.name, [(start, start + 512, header.hex())])


def new_size(path: Path, extension: bytes, size: int) -> Rewrite:
    """Another size of the first sample's file with that extension, in the index of a WebDataset shard."""
    found = re.search(re.escape(extension) + rb" \d+ (\d+) ", path.read_bytes())
    if found is None:
        raise ValueError(f"expected {extension!r} in {path}")
    return Rewrite(path.name, [(*found.span(1), str(size).encode().hex())])


_HEADER_CHANGES = (
    (0, b"../../outside.jpg\0"),
    (0, b"/etc/passwd\0"),
    (0, bytes(100)),
    (0, b"a" * 100),
    (124, b"77777777777\0"),
    (124, b"00000000000\0"),
    (124, b"\x80" + b"\xff" * 11),
    (124, b"-1\0"),
    (156, b"1"),
    (156, b"2"),
    (156, b"5"),
    (156, b"L"),
    (156, b"x"),
    (156, b"S"),
    (157, b"../../etc/passwd\0"),
    (257, b"ustar  \0"),
    (345, b"../../.."),
)
"""Places in a header and what is put there: names, sizes, types (links, folders, extensions) and targets of links."""


def _other_byte(old: int, rng: random.Random) -> int:
    return rng.choice((0, 0x7F, 0x80, 0xFF, old ^ 1 << rng.randrange(8), (old + 1) % 256, rng.randrange(256)))


def _change_number(block: bytearray, rng: random.Random, values: tuple[int, ...]) -> None:
    """Change a number of one to eight bytes."""
    width = rng.choice(_WIDTHS)
    place = rng.randrange(max(1, len(block) - 4 - width))
    old = int.from_bytes(block[place : place + width], "little")
    new = rng.choice((*values, old + 1, old - 1, old ^ 1 << rng.randrange(8 * width), rng.getrandbits(8 * width)))
    block[place : place + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
