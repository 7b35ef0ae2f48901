"""Where the bytes of a member of an archive lie."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

MEMBER_MARK = "!"
"""Stands between the name of an archive and that of a member in the name of an item: ``train-000.tar!0001``."""

MemberKind = Literal["stored", "gzip", "parquet"]


class Member(NamedTuple):
    """Where the bytes of an item lie within an archive, the file at the item's path.

    Attributes
    ----------
    kind : {"stored", "gzip", "parquet"}
        How they are read: at their offset; at their offset in the decompressed file; as a value of a Parquet file.
    place : tuple of int
        Offset and size in bytes; for ``"stored"``, further pairs of them if the bytes lie in pieces. For ``"parquet"``:
        the row group, the row in it, the column, and the field of the column's struct, or -1.
    archive_bytes : int
        Size of the archive when it was listed.
    """

    kind: MemberKind
    place: tuple[int, ...]
    archive_bytes: int

    @property
    def run(self) -> tuple[int, ...] | None:
        """Properties shared by members that are read in one pass over a part of the archive; None for a member read alone."""
        return {"stored": None, "gzip": (), "parquet": self.place[:1]}[self.kind]

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Member":
        """A member from its JSON."""
        return cls(values[0], tuple(values[1]), values[2])
