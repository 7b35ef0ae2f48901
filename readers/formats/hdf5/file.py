"""The metadata of a packed HDF5 file, read from the mapped file itself: superblock, root group, object headers.

The library trusts what it reads: a crafted file with the right checksums can crash its process. Here every address,
length and number is checked before it is used, every checksum is compared, and the cost of a file is bounded. A
structure that the library does not write for a packed shard is an error.

The layout is that of the HDF5 File Format Specification, version 3, as the library writes it with bounds ``v110``:
superblock version 3, object headers version 2, links in the root group's header or in a fractal heap with a B-tree of
version 2.
"""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from readers.formats.mapping import ByteArray

UNDEFINED = 2**64 - 1
"""The address of something that does not exist."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_BYTES = 48
_CHECKSUM_BYTES = 4
_HEADER_BYTES_MAX = 1 << 16
"""Most bytes of all parts of one object header, since comparing checksums costs time."""
_BLOCK_BYTES_MAX = 1 << 16
"""Most bytes of a node of a B-tree, and of a heap's direct block; the library writes 64 KiB at most."""
_DEPTH_MAX = 8

_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _LAYOUT, _FILTERS, _CONTINUATION = 1, 2, 3, 6, 8, 11, 16
_READ = {_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _LAYOUT, _FILTERS}
_PASSED_OVER = {0, 5, 10, 12, 18, 21, 22}
"""Messages that are skipped: free space, fill value, group's sizes, attribute, time, attributes' place, number of
links.
"""
_SHARED = 2

_TREE_HEADER = struct.Struct("<4sBBIHHBBQHQ")
_TREE_OF_NAMES = 5
_HEAP_HEADER = struct.Struct("<4sBHHBI12QHQQHHQH")
_HEAP_ID = struct.Struct("<BIH")
_HEAP_BITS = 32
_HEAP_CHECKSUMS = 2
_HEAP_BLOCK = struct.Struct("<4sBQI")

_MASK = 0xFFFFFFFF


def lookup3(data: bytes) -> int:
    """HDF5's checksum of metadata: Bob Jenkins' lookup3, with initial value 0."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    if not data:
        return c
    last = (len(data) - 1) // 12 * 12
    words: Iterator[int] = iter(struct.unpack_from(f"<{last // 4}I", data))
    for first, second, third in zip(words, words, words, strict=True):
        a, b, c = a + first, b + second, c + third & _MASK
        a = (a - c ^ (c << 4 | c >> 28)) & _MASK
        c = c + b & _MASK
        b = (b - a ^ (a << 6 | a >> 26)) & _MASK
        a = a + c & _MASK
        c = (c - b ^ (b << 8 | b >> 24)) & _MASK
        b = b + a & _MASK
        a = (a - c ^ (c << 16 | c >> 16)) & _MASK
        c = c + b & _MASK
        b = (b - a ^ (a << 19 | a >> 13)) & _MASK
        a = a + c & _MASK
        c = (c - b ^ (b << 4 | b >> 28)) & _MASK
        b = b + a & _MASK
    rest: tuple[int, int, int] = struct.unpack("<3I", data[last:].ljust(12, b"\0"))
    a, b, c = a + rest[0] & _MASK, b + rest[1] & _MASK, c + rest[2] & _MASK
    c = (c ^ b) - (b << 14 | b >> 18) & _MASK
    a = (a ^ c) - (c << 11 | c >> 21) & _MASK
    b = (b ^ a) - (a << 25 | a >> 7) & _MASK
    c = (c ^ b) - (b << 16 | b >> 16) & _MASK
    a = (a ^ c) - (c << 4 | c >> 28) & _MASK
    b = (b ^ a) - (a << 14 | a >> 18) & _MASK
    return (c ^ b) - (b << 24 | b >> 8) & _MASK


class HDF5Error(ValueError):
    """A file that breaks the contract; the message says what was expected and found."""


@dataclass(frozen=True)
class DatasetHeader:
    """The messages of a dataset's object header, as they are in the file.

    Attributes
    ----------
    dataspace, datatype, layout : bytes
    filters : bytes
        Empty if there is no filter.
    """

    dataspace: bytes
    datatype: bytes
    layout: bytes
    filters: bytes


class HDF5File:
    """The datasets of a packed HDF5 file.

    Parameters
    ----------
    data : ndarray, (size,), uint8
        The file.
    names : collection of str
        The datasets that the root group must hold, and no others.

    Raises
    ------
    HDF5Error
        If the file is not a packed HDF5 file with these datasets.
    """

    def __init__(self, data: ByteArray, names: Collection[str]) -> None:
        self.data = data
        head = self.checked(0, _SUPERBLOCK_BYTES, "a superblock")
        base, extension, end, root = struct.unpack_from("<4Q", head, 12)
        if head[:11] != _SIGNATURE + b"\x03\x08\x08" or base != 0 or extension != UNDEFINED:
            raise HDF5Error("expected a superblock of version 3 at the beginning of the file, found another")
        if end != len(data):
            raise HDF5Error(f"expected a file of {end} bytes, found {len(data)}")
        self._addresses = self._links(root, {name.encode() for name in names})

    def dataset(self, name: str) -> DatasetHeader:
        """The header of a dataset."""
        found = self._messages(self._addresses[name.encode()])
        one = {kind: bodies[0] for kind, bodies in found.items() if len(bodies) == 1}
        if len(one) != len(found) or not {_DATASPACE, _DATATYPE, _LAYOUT} <= set(one):
            raise HDF5Error(f"dataset {name!r}: expected one dataspace, datatype and layout, found others")
        return DatasetHeader(one[_DATASPACE], one[_DATATYPE], one[_LAYOUT], one.get(_FILTERS, b""))

    def bytes_at(self, start: int, size: int, what: str) -> bytes:
        """Some bytes of the file, all of them within it."""
        if not 0 <= start <= len(self.data) - size:
            raise HDF5Error(f"expected {what} within the file, found one of {size} bytes at {start}")
        return self.data[start : start + size].tobytes()

    def checked(self, start: int, size: int, what: str) -> bytes:
        """The bytes of a structure without the checksum at its end, which is compared."""
        whole = self.bytes_at(start, size, what)
        body, stored = whole[:-_CHECKSUM_BYTES], int.from_bytes(whole[-_CHECKSUM_BYTES:], "little")
        if lookup3(body) != stored:
            raise HDF5Error(f"expected {what} with its checksum at {start}, found another")
        return body

    def _messages(self, address: int) -> dict[int, list[bytes]]:
        """The messages of an object header that are needed here, by type."""
        prefix = self.bytes_at(address, 6, "an object header")
        flags = prefix[5]
        if prefix[:5] != b"OHDR\x02" or flags & 0xC0:
            raise HDF5Error(f"expected an object header of version 2 at {address}, found another")
        width, ordered = 1 << (flags & 3), bool(flags & 4)
        begin = 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0) + width
        size = int.from_bytes(self.bytes_at(address + begin - width, width, "an object header"), "little")
        left = [(address, begin, begin + size + _CHECKSUM_BYTES)]
        found: dict[int, list[bytes]] = {}
        total = 0
        while left:
            start, skipped, length = left.pop()
            total += length
            if total > _HEADER_BYTES_MAX or length < skipped + _CHECKSUM_BYTES:
                raise HDF5Error(f"expected an object header of at most {_HEADER_BYTES_MAX} bytes at {address}")
            part = self.checked(start, length, "an object header")
            if skipped == 4 and part[:4] != b"OCHK":
                raise HDF5Error(f"expected an object header that continues at {start}, found something else")
            for kind, body in _split(part, skipped, ordered):
                if kind == _CONTINUATION:
                    if len(body) != 16:
                        raise HDF5Error(f"expected a continuation of 16 bytes, found {len(body)}")
                    place, more = struct.unpack("<2Q", body)
                    left.append((place, 4, more))
                else:
                    found.setdefault(kind, []).append(body)
        return found

    def _links(self, root: int, names: set[bytes]) -> dict[bytes, int]:
        """The addresses of the object headers of the root group's datasets, by name."""
        messages = self._messages(root)
        compact, info = messages.get(_LINK, []), messages.get(_LINK_INFO, [])
        if len(info) != 1 or len(info[0]) != 18 or info[0][:2] != b"\x00\x00":
            raise HDF5Error("expected a root group without an order of its own, found another")
        heap, tree = struct.unpack_from("<2Q", info[0], 2)
        if heap != UNDEFINED:
            if compact:
                raise HDF5Error("expected links in a heap only, found others too")
            compact = self._dense_links(heap, tree, len(names))
        links = dict(map(_parse_link, compact))
        if len(links) != len(compact) or links.keys() != names:
            missing = sorted(name.decode() for name in names - links.keys())
            raise HDF5Error(
                f"expected the {len(names)} datasets of the fields, found {len(compact)} links"
                + (f", none of them {missing[0]!r}" if missing else "")
            )
        return links

    def _dense_links(self, heap: int, tree: int, count: int) -> list[bytes]:
        """The link messages of a group that has many."""
        found = _Heap(self, heap)
        return [found.object(record[4:]) for record in self._records(tree, count)]

    def _records(self, address: int, count: int) -> Iterator[bytes]:
        """The records of a B-tree of link names."""
        head = self.checked(address, _TREE_HEADER.size + _CHECKSUM_BYTES, "a B-tree")
        name, version, kind, node_bytes, record_bytes, depth, _, _, root, root_count, total = _TREE_HEADER.unpack(head)
        if (name, version, kind, record_bytes) != (b"BTHD", 0, _TREE_OF_NAMES, 4 + _HEAP_ID.size):
            raise HDF5Error(f"expected a B-tree of link names at {address}, found another")
        if not 64 <= node_bytes <= _BLOCK_BYTES_MAX or depth > _DEPTH_MAX or total != count:
            raise HDF5Error(
                f"expected a B-tree of {count} names in nodes of 64 to {_BLOCK_BYTES_MAX} bytes, at most {_DEPTH_MAX} "
                f"levels deep, found {total} in nodes of {node_bytes} bytes, {depth} levels deep"
            )
        most = [(node_bytes - 10) // record_bytes]
        pointer_bytes = [0]
        below, below_bytes = most[0], 0
        for _ in range(depth):
            pointer_bytes.append(8 + _bytes_of(most[0]) + below_bytes)
            most.append((node_bytes - 10 - pointer_bytes[-1]) // (record_bytes + pointer_bytes[-1]))
            if most[-1] < 1:
                raise HDF5Error(f"expected nodes with room for a record, found nodes of {node_bytes} bytes")
            below = (most[-1] + 1) * below + most[-1]
            below_bytes = _bytes_of(below)
        nodes, seen = [(root, root_count, depth)], 0
        while nodes:
            address, records, level = nodes.pop()
            seen += records
            # Every node has a record, so that nodes in a circle end the loop too.
            if not 1 <= records <= most[level] or seen > total:
                raise HDF5Error(f"expected a B-tree of {total} names, found a node with {records} more")
            size = 6 + records * record_bytes + (records + 1) * pointer_bytes[level]
            node = self.checked(address, size + _CHECKSUM_BYTES, "a node of a B-tree")
            if node[:6] != (b"BTIN" if level else b"BTLF") + bytes([0, kind]):
                raise HDF5Error(f"expected a node of a B-tree at {address}, found something else")
            ends = 6 + records * record_bytes
            yield from (node[at : at + record_bytes] for at in range(6, ends, record_bytes))
            for at in range(ends, size, pointer_bytes[level] or 1) if level else ():
                child = int.from_bytes(node[at : at + 8], "little")
                held = int.from_bytes(node[at + 8 : at + 8 + _bytes_of(most[0])], "little")
                nodes.append((child, held, level - 1))
        if seen != total:
            raise HDF5Error(f"expected a B-tree of {total} names, found {seen}")


def _split(part: bytes, place: int, ordered: bool) -> Iterator[tuple[int, bytes]]:
    """Type and body of the messages in a part of an object header, except those that are skipped."""
    head = 6 if ordered else 4
    while place + head <= len(part):
        kind, size, flags = struct.unpack_from("<BHB", part, place)
        start = place + head
        place = start + size
        if place > len(part):
            raise HDF5Error(f"expected messages within their object header, found one of {size} bytes")
        if kind in _PASSED_OVER:
            continue
        if (kind not in _READ and kind != _CONTINUATION) or flags & _SHARED:
            raise HDF5Error(f"expected no message of type {kind} with flags {flags} in an object header")
        yield kind, part[start:place]


def _parse_link(body: bytes) -> tuple[bytes, int]:
    """Name and address of a hard link."""
    flags = body[1] if len(body) > 1 else 0xFF
    if body[:1] != b"\x01" or flags & 0xE0:
        raise HDF5Error("expected a link of version 1, found another")
    width = 1 << (flags & 3)
    kind = body[2:3] if flags & 8 else b"\x00"
    place = 2 + bool(flags & 8) + 8 * bool(flags & 4) + bool(flags & 16)
    start = place + width
    end = start + int.from_bytes(body[place:start], "little")
    if kind != b"\x00" or end + 8 != len(body):
        raise HDF5Error("expected a hard link, found another")
    return body[start:end], int.from_bytes(body[end:], "little")


def _bytes_of(number: int) -> int:
    """Number of bytes in which HDF5 stores numbers up to this one."""
    return (number.bit_length() - 1) // 8 + 1


class _Heap:
    """A fractal heap: objects in blocks, whose sizes double from row to row of a table."""

    def __init__(self, file: HDF5File, address: int) -> None:
        self._file = file
        self._address = address
        head = file.checked(address, _HEAP_HEADER.size + _CHECKSUM_BYTES, "a heap")
        name, version, id_bytes, filter_bytes, flags, *_ = values = _HEAP_HEADER.unpack(head)
        self._width, self._first_bytes, self._direct_bytes, bits, _, self._root, self._rows = values[-7:]
        if (name, version, id_bytes, filter_bytes) != (b"FRHP", 0, _HEAP_ID.size, 0) or flags & _HEAP_CHECKSUMS == 0:
            raise HDF5Error(f"expected a heap of links at {address}, found another")
        sizes = (self._width, self._first_bytes, self._direct_bytes)
        if bits != _HEAP_BITS or self._rows > _HEAP_BITS or any(size.bit_count() != 1 for size in sizes):
            raise HDF5Error(f"expected a heap of {_HEAP_BITS} bits with sizes that are powers of 2, found {sizes}")
        if not self._first_bytes <= self._direct_bytes <= _BLOCK_BYTES_MAX or self._width > 64:
            raise HDF5Error(f"expected a heap with blocks of at most {_BLOCK_BYTES_MAX} bytes, found {sizes}")
        self._blocks: dict[int, bytes] = {}

    def object(self, identity: bytes) -> bytes:
        """An object, given its heap ID."""
        flags, offset, size = _HEAP_ID.unpack(identity)
        if flags != 0:
            raise HDF5Error("expected objects in the heap's own blocks, found others")
        address, rows, block_bytes, base = self._root, self._rows, self._first_bytes, 0
        while rows:
            row, column, row_bytes, row_start = self._cell(offset - base)
            if row >= rows:
                raise HDF5Error(f"expected objects within their heap, found one at {offset}")
            cells = self._table(address, rows, base)
            at = 8 * (row * self._width + column)
            address, block_bytes = int.from_bytes(cells[at : at + 8], "little"), row_bytes
            base += row_start + column * row_bytes
            # Blocks larger than a direct one are tables again, whose number of rows follows from their size.
            is_table = row_bytes > self._direct_bytes
            rows = row_bytes.bit_length() - (self._first_bytes * self._width).bit_length() + 1 if is_table else 0
        start = offset - base
        block = self._block(address, block_bytes, base)
        if not _HEAP_BLOCK.size + _CHECKSUM_BYTES <= start <= block_bytes - size:
            raise HDF5Error(f"expected objects within their block, found one at {offset}")
        return block[start : start + size]

    def _cell(self, offset: int) -> tuple[int, int, int, int]:
        """Row and column of the block that holds an offset, the size of the row's blocks, and where the row begins."""
        first = self._first_bytes * self._width
        row = (offset // first).bit_length()
        row_bytes = self._first_bytes << max(0, row - 1)
        row_start = first << (row - 1) if row else 0
        return row, (offset - row_start) // row_bytes, row_bytes, row_start

    def _table(self, address: int, rows: int, base: int) -> bytes:
        """The addresses in an indirect block."""
        if address not in self._blocks:
            size = _HEAP_BLOCK.size + 8 * rows * self._width + _CHECKSUM_BYTES
            self._blocks[address] = self._file.checked(address, size, "a heap's table")
        return self._after_head(b"FHIB", address, base)[_HEAP_BLOCK.size :]

    def _block(self, address: int, size: int, base: int) -> bytes:
        """A direct block. Its checksum follows its head, and counts as zeros."""
        if address not in self._blocks:
            block = self._file.bytes_at(address, size, "a heap's block")
            end = _HEAP_BLOCK.size + _CHECKSUM_BYTES
            stored = int.from_bytes(block[_HEAP_BLOCK.size : end], "little")
            if size < end or lookup3(block[: _HEAP_BLOCK.size] + bytes(_CHECKSUM_BYTES) + block[end:]) != stored:
                raise HDF5Error(f"expected a heap's block with its checksum at {address}, found another")
            self._blocks[address] = block
        return self._after_head(b"FHDB", address, base)

    def _after_head(self, name: bytes, address: int, base: int) -> bytes:
        """A block that was read before, after a check of its head."""
        block = self._blocks[address]
        if len(block) < _HEAP_BLOCK.size or _HEAP_BLOCK.unpack_from(block) != (name, 0, self._address, base):
            raise HDF5Error(f"expected a block of the heap at {address}, found something else")
        return block
