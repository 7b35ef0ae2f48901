"""The position of a member in an archive."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

MEMBER_MARK = "!"
"""Separates the archive and the member in the name of an item: ``train-000.tar!0001``."""

MemberKind = Literal["stored", "gzip", "zip", "parquet"]


class Member(NamedTuple):
    """Position of an item's bytes in an archive, the file at the item's path.

    Attributes
    ----------
    kind : {"stored", "gzip", "zip", "parquet"}
        How the bytes are read: at an offset in the file, at an offset in the decompressed file, as a file of a zip
        file, or as a value of a Parquet file.
    place : tuple of int
        For ``"stored"`` and ``"gzip"``, offset and size in bytes; for ``"stored"``, further pairs follow if the bytes
        are in pieces. For ``"zip"``, offset and size of header and content, the number of the compression method, the
        compressed size, the size, and the CRC-32. For ``"parquet"``, the row group, the row in it, the column, and the field of the column's
        struct, or -1.
    archive_bytes : int
        Size of the archive when it was listed.
    """

    kind: MemberKind
    place: tuple[int, ...]
    archive_bytes: int

    @property
    def run(self) -> tuple[int, ...] | None:
        """Identifies the part of the archive that is read in one pass; None for a member that is read alone."""
        return {"stored": None, "gzip": (), "zip": None, "parquet": self.place[:1]}[self.kind]

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """Offset and size of each part of the file that a member of kind ``"stored"`` or ``"zip"`` needs."""
        place = self.place[:2] if self.kind == "zip" else self.place
        return zip(place[::2], place[1::2], strict=True)

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Member":
        """Read a member from its JSON."""
        return cls(values[0], tuple(values[1]), values[2])
