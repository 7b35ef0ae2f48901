"""Items, the raw inputs of a build, and the file in which a plan stores them."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from packer.sources.archives.member import MEMBER_MARK, Member
from packer.sources.folders.frames import Frames, FramesState
from packer.vision.media import IMAGE, VIDEO, Medium, medium_of
from packer.workspace.disk_list import DiskList
from packer.workspace.durable import damaged, line_encoder
from shardspec.layout import is_url

ALSO = "also"
BOXES_FROM = "boxes_from"
"""Options that name a column with further files of the items."""

PACKED_ROW = "_packed_row"
"""Column of an item that is a row of a packed dataset: ``[row, digest of the dataset]``. If the dataset has other keys
that consist of the row's key and an ordinal, the largest such ordinal is the third value. An item of several rows
(`packer.sources.packed.PackedVideos`) has an object with ``rows``, ``digest``, and ``once``, the fields that a sample of
its frames has once."""

REASON_LENGTH = 1000
"""Longest reason in a report, in characters. Longer messages of libraries and steps are cut."""


ItemPlace = Member | Frames
"""Position of an item's content, unless it is the whole file at the item's path."""


def place_of(values: Sequence[Any]) -> ItemPlace:
    """Read a place from its JSON."""
    return Frames("frames", tuple(values[1]), values[2], values[3]) if values[0] == "frames" else Member.of(values)


class ItemFile(NamedTuple):
    """A further file of an item, from a column of a table, or a further member of its archive.

    Attributes
    ----------
    name : str
        The file's path relative to the source.
    member : Member or Frames or None
        Position of the bytes in the archive at `path`, or the frames in the folder at `path`; None for a whole file.
    """

    name: str
    path: str
    bytes: int
    mtime_ns: int
    member: ItemPlace | None = None

    @property
    def medium(self) -> Medium:
        """Medium by suffix. A folder of frames is a video; a file without a known suffix counts as an image."""
        return VIDEO if isinstance(self.member, Frames) else medium_of(self.name) or IMAGE

    def change(self) -> str | None:
        """Describe how the file has changed since it was listed; None if it has not changed.

        Raises
        ------
        OSError
            If the file cannot be examined.
        """
        if isinstance(self.member, Frames):
            paths = [os.path.join(self.path, name) for name in self.member.names]  # noqa: PTH118 -- many
            name = self.name
        else:
            paths = [self.path]
            name = self.name if self.member is None else self.name.partition(MEMBER_MARK)[0]
        try:
            found = list(map(os.stat, paths))
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(self.member, Frames):
                name = f"{name}/{os.path.basename(os.fsdecode(error.filename))}"  # noqa: PTH119 -- a name
            return f"{name!r} existed when the build was planned"
        if isinstance(self.member, Frames):
            same = FramesState(found).digest == self.member.state
        else:
            size = self.bytes if self.member is None else self.member.archive_bytes
            same = (found[0].st_size, found[0].st_mtime_ns) == (size, self.mtime_ns)
        return None if same else f"{name!r} has changed since the build was planned"


class Item(NamedTuple):
    """One raw input of a source.

    Attributes
    ----------
    index : int
        Position in the sorted list of items.
    name : str
        The item's name in messages and in the ``source`` field: its path relative to the source, or the name of its
        row.
    path : str or None
        Path of the image or video, of the folder of its frames, or of the archive that contains it; None if the row
        holds the data itself.
    bytes : int
        Size of the image or video; 0 if there is none. For an image in a Parquet file it is the average size.
    mtime_ns : int
        Modification time of the file in nanoseconds; 0 if there is no file.
    columns : dict
        Further fields of the sample: JSON values, and arrays of a Python source.
    reject : str or None
        Why the source itself rejected the item; None if it did not.
    files : dict of str to ItemFile
        Further files, by the option that uses them.
    member : Member or Frames or None
        Position of the bytes in the archive at `path`, or the frames in the folder at `path`; None for a whole file.
    arrays : dict of str to Member
        Large fields, whose values are read from the archive when the item is packed.
    number : int or None
        The item's number in the keys of its samples; None if it is `index`.
    """

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    name: str
    path: str | None
    bytes: int = 0
    mtime_ns: int = 0
    columns: Mapping[str, Any] = {}
    reject: str | None = None
    files: Mapping[str, ItemFile] = {}
    member: ItemPlace | None = None
    arrays: Mapping[str, Member] = {}
    number: int | None = None

    @property
    def medium(self) -> Medium:
        """Medium by suffix. A folder of frames is a video; an item without a known suffix counts as an image."""
        return VIDEO if isinstance(self.member, Frames) else medium_of(self.name) or IMAGE

    @property
    def is_stored(self) -> bool:
        """True if one of the item's files is in a store: its path is a URL. Datasets in stores are opened by their URL."""
        return PACKED_ROW not in self.columns and any(
            "://" in (path or "") for path in (self.path, *(file.path for file in self.files.values()))
        )

    def to_line(self) -> str:
        """Return the item as one line of JSON, in ASCII, which preserves names that are not UTF-8."""
        return f"{_TO_JSON(self.pack())}\n"

    @classmethod
    def from_line(cls, line: str) -> "Item":
        """Read a line that `to_line` wrote."""
        return cls.unpack(json.loads(line))

    def pack(self) -> tuple[Any, ...]:
        """Return the item as plain values, for a `DiskList`.

        Raises
        ------
        ValueError
            If a column holds an array or another object.
        """
        if self.columns and not all(type(value) in _PLAIN or _is_plain(value) for value in self.columns.values()):
            raise ValueError("expected plain values")
        files: Any = self.files
        if files:
            files = {option: (*file[:4], file.member and tuple(file.member)) for option, file in files.items()}
        document = (self.index, self.name, self.path, self.bytes, self.mtime_ns, self.columns, self.reject, files)
        if self.member is None and self.number is None and not self.arrays:
            return document
        arrays = {name: tuple(member) for name, member in self.arrays.items()}
        return (*document, self.member and tuple(self.member), arrays, self.number)

    @classmethod
    def unpack(cls, values: Sequence[Any]) -> "Item":
        """Make an item from the result of `pack`, or from the values in a line."""
        index, name, path, size, mtime_ns, columns, reject, found, *more = values
        files = found and {
            option: ItemFile(*file[:4], *map(place_of, filter(None, file[4:]))) for option, file in found.items()
        }
        if not more:
            return cls(index, name, path, size, mtime_ns, columns, reject, files)
        member = None if more[0] is None else place_of(more[0])
        arrays = {field: Member.of(place) for field, place in more[1].items()}
        number = more[2] if len(more) > 2 else None
        return cls(index, name, path, size, mtime_ns, columns, reject, files, member, arrays, number)

    @property
    def file(self) -> ItemFile:
        """The image or video of the item. Raise `ValueError` if it has none."""
        if self.path is None:
            raise ValueError(f"item {self.name!r} has no path")
        return ItemFile(self.name, self.path, self.bytes, self.mtime_ns, self.member)

    def location(self) -> Path:
        """The path of the item's file. Raise `ValueError` if it has none."""
        return Path(self.file.path)

    def changes(self) -> Iterator[str]:
        """Describe each of the item's files that has changed since it was listed.

        Raises
        ------
        OSError
            If a file cannot be examined.
        """
        for file in [*([] if self.path is None else [self.file]), *self.files.values()]:
            if not file.mtime_ns and not isinstance(file.member, Frames):  # it was not examined when it was listed
                continue
            if is_url(file.path):  # it was not downloaded, for a reason that the build knows
                continue
            change = file.change()
            if change is not None:
                yield change


_PLAIN = frozenset((str, int, float, bool, type(None), bytes))


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of plain values. An array would lose its type in a `DiskList`."""
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in _PLAIN


_PARSED = 512
"""Number of lines to parse with one call."""

_TO_JSON = line_encoder(separators=(",", ":"), allow_nan=False)

QUOTE = json.encoder.encode_basestring_ascii
"""Encode a text as JSON."""


def item_list() -> DiskList[Item]:
    """Return an empty list for items."""
    return DiskList(Item.pack, Item.unpack)


def read_items(path: Path, start: int, stop: int, offset: int, expected: int) -> Iterator[Item]:
    """Read the items `start` to `stop` (exclusive) of a plan's items file.

    Parameters
    ----------
    offset : int
        The byte at which the first line begins.
    expected : int
        The checksum of the lines (`sum_lines`).

    Raises
    ------
    BuildError
        If the checksum differs.
    """
    with path.open("rb") as file:
        yield from items_of(file, start, stop, offset, expected)


def items_of(file: BinaryIO, start: int, stop: int, offset: int, expected: int) -> Iterator[Item]:
    """Read items of an open items file of a plan, like `read_items`."""
    file.seek(offset)
    lines = list(islice(file, stop - start))
    if zlib.crc32(b"".join(lines)) != expected:
        raise damaged(Path(file.name))
    for first in range(0, len(lines), _PARSED):
        yield from map(Item.unpack, json.loads(b"[%b]" % b",".join(lines[first : first + _PARSED])))


def sum_lines(lines: Iterable[str], before: int = 0) -> int:
    """Return the checksum of lines of an items file, given that of the lines before them."""
    return zlib.crc32("".join(lines).encode("ascii"), before)


def item_name(path: Path, task: tuple[int, int, int, int], index: int) -> str:
    """Return the name of an item of a task. The task has the numbers that `read_items` takes."""
    return next(item.name for item in read_items(path, *task) if item.index == index)
