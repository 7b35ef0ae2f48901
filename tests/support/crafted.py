"""Crafted indexes: numbers are changed and the checksums over them corrected, as an attacker would do.

The places are found in the bytes of the file, as `SPEC.md` describes them, without our readers.
"""

import random
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

_HEAD, _ENTRY = 12, 56
_FACTS = struct.Struct("<IIQQ16s")
_DIRECTORY = struct.Struct("<QII5Q")
"""Start, width, CRC-32 and five lengths of a section."""
_LENGTHS = ("runs", "starts", "sizes", "shapes", "sums")


@dataclass(frozen=True)
class Rewrite:
    """Slices of a file replaced by other bytes, which may be more or fewer.

    Attributes
    ----------
    file : str
    edits : list of (start, stop, bytes in hexadecimal digits)
        Ascending, and apart from each other.
    """

    file: str
    edits: list[tuple[int, int, str]]

    def apply(self, data: bytes) -> bytes:
        """The crafted bytes."""
        pieces, place = [], 0
        for start, stop, new in self.edits:
            pieces += [data[place:start], bytes.fromhex(new)]
            place = stop
        return b"".join([*pieces, data[place:]])


class CraftedIndex:
    """The bytes of an index, to be changed.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self.data = bytearray(path.read_bytes())
        self._bytes = len(self.data)
        self.sections = _FACTS.unpack_from(self.data, _HEAD)[0]

    def entry(self, section: int) -> dict[str, int]:
        """A section's entry in the directory."""
        start, width, crc, *lengths = _DIRECTORY.unpack_from(self.data, self.entry_place(section))
        return {"start": start, "width": width, "crc": crc, **dict(zip(_LENGTHS, lengths, strict=True))}

    def entry_place(self, section: int) -> int:
        """Where a section's entry is."""
        return _HEAD + _FACTS.size + section * _ENTRY

    def place(self, section: int, array: str, number: int) -> tuple[int, int]:
        """Where a number of an array is, and its bytes."""
        entry = self.entry(section)
        start = entry["start"]
        for name in _LENGTHS:
            width = 4 if name in ("shapes", "sums") else entry["width"]
            if name == array:
                return start + number * width, width
            start += entry[name] * width
        raise ValueError(array)

    def get(self, section: int, array: str, number: int) -> int:
        """A number of an array."""
        place, width = self.place(section, array, number)
        return int.from_bytes(self.data[place : place + width], "little")

    def set(self, section: int, array: str, number: int, value: int) -> None:
        """Change a number of an array, as far as it has room for it."""
        place, width = self.place(section, array, number)
        self.data[place : place + width] = (value % (1 << 8 * width)).to_bytes(width, "little")

    def vouch_for(self, path: Path) -> None:
        """Put the size and the beginning of a shard's file into the facts."""
        data = path.read_bytes()
        sections, _, rows, _, identity = _FACTS.unpack_from(self.data, _HEAD)
        _FACTS.pack_into(self.data, _HEAD, sections, zlib.crc32(data[:512]), rows, len(data), identity)

    def widen(self) -> None:
        """Give every number of places eight bytes."""
        bodies, place = [], self.entry(0)["start"]
        for section in range(self.sections):
            entry = self.entry(section)
            wide = b"".join(
                self.get(section, name, number).to_bytes(4 if name in ("shapes", "sums") else 8, "little")
                for name in _LENGTHS
                for number in range(entry[name])
            )
            bodies.append((place, wide + bytes(-len(wide) % 8)))
            place += len(bodies[-1][1])
        del self.data[self.entry(0)["start"] :]
        for section, (start, body) in enumerate(bodies):
            struct.pack_into("<QI", self.data, self.entry_place(section), start, 8)
            self.data += body

    def sealed(self) -> Rewrite:
        """The index with all checksums corrected."""
        for section in range(self.sections):
            entry = self.entry(section)
            size = sum(entry[name] * (4 if name in ("shapes", "sums") else entry["width"]) for name in _LENGTHS)
            body = bytes(self.data[entry["start"] : entry["start"] + size + -size % 8])
            place = self.entry_place(section) + 12
            self.data[place : place + 4] = zlib.crc32(body).to_bytes(4, "little")
        end = self.entry_place(self.sections)
        self.data[8:12] = zlib.crc32(self.data[_HEAD:end]).to_bytes(4, "little")
        return Rewrite(self._name, [(0, self._bytes, self.data.hex())])


def craft_index(path: Path, count: int, seed: int, data_bytes: int) -> list[Rewrite]:
    """Changes in an index: in its facts, its directory, and its sections.

    Parameters
    ----------
    data_bytes : int
        Size of the shard's file.
    """
    rng, out = random.Random(seed), []
    for number in range(count):
        index = CraftedIndex(path)
        values = (0, 1, data_bytes, data_bytes - 1, data_bytes + 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if number % 3 == 0:
                end = index.entry_place(index.sections)
                _change_number(index.data, rng, rng.randrange(_HEAD, end - 8), values)
                continue
            section = rng.randrange(index.sections)
            arrays = [name for name in _LENGTHS[:4] if index.entry(section)[name]]
            if arrays:
                array = rng.choice(arrays)
                length = index.entry(section)[array]
                place, old = rng.randrange(length), index.get(section, array, rng.randrange(length))
                index.set(section, array, place, rng.choice((*values, old, old + 1, old - 1, 2 * old)))
        index.sections = min(index.sections, 64)
        out.append(_sealed_as_far_as_possible(index))
    return out


def every_byte(path: Path, values: tuple[int, ...]) -> list[Rewrite]:
    """Every byte of the facts and the directory, changed to some values."""
    whole = CraftedIndex(path)
    out = []
    for place in range(_HEAD, whole.entry_place(whole.sections)):
        for value in values:
            index = CraftedIndex(path)
            index.data[place] = value
            out.append(_sealed_as_far_as_possible(index))
    return out


def _sealed_as_far_as_possible(index: CraftedIndex) -> Rewrite:
    """The index with the checksums corrected; that of the directory alone if a section is not within the file."""
    try:
        return index.sealed()
    except (OverflowError, MemoryError, struct.error):
        end = index.entry_place(index.sections)
        index.data[8:12] = zlib.crc32(index.data[_HEAD:end]).to_bytes(4, "little")
        return Rewrite(index._name, [(0, len(index.data), index.data.hex())])


def _change_number(data: bytearray, rng: random.Random, place: int, values: tuple[int, ...]) -> None:
    width = rng.choice((1, 1, 2, 4, 8))
    old = int.from_bytes(data[place : place + width], "little")
    new = rng.choice((*values, old + 1, old - 1, old ^ 1 << rng.randrange(8 * width), rng.getrandbits(8 * width)))
    data[place : place + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
