"""How WebDataset stores a field: as a member of a tar file.

https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html, "ustar Interchange Format".
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardspec.columns import Buffer, IntArray
from shardspec.formats.index import Stored
from shardspec.formats.index import stored as stored_plainly
from shardspec.formats.npy import npy_header
from shardspec.schema import Field, Schema

BLOCK = 512
"""Size of a header in bytes. The content of a member is padded to a multiple of it."""
END = bytes(2 * BLOCK)
"""Bytes after the last member."""
NAME_BYTES_MAX = 100
MEMBER_BYTES_MAX = 8**11 - 1
"""Largest size of a member: eleven octal digits."""
INDEX_VERSION = b"v1.2"
"""First word of DALI's index (``tools/wds2idx.py``)."""
NUMBER_BYTES_MAX = 20
"""Length of the longest integer in decimal digits, ``-9223372036854775808`` or ``18446744073709551615``."""

Content = Literal["bytes", "decimal", "npy"]

_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
_TEMPLATE = np.zeros(BLOCK, np.uint8)
_TEMPLATE[100:148] = np.frombuffer(b"0000444\0" + b"0000000\0" * 2 + b"0" * 11 + b"\0" + b"0" * 11 + b"\0", np.uint8)
_TEMPLATE[_CHECKSUM] = ord(" ")  # the checksum is computed with spaces in its own place
_TEMPLATE[156] = ord("0")
_TEMPLATE[257:265] = np.frombuffer(b"ustar\x0000", np.uint8)
_OCTAL_SHIFTS = np.arange(30, -1, -3)
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class ShardMember:
    """Member of a tar file that stores a field of a sample.

    Attributes
    ----------
    field : Field
    extension : str
        Part of the name after the first dot: ``jpg`` for the field `image`, ``mask.png`` for `mask`.
    content : {"bytes", "decimal", "npy"}
        *bytes*: the encoded value. *decimal*: an integer in decimal digits. *npy*: a ``.npy`` file.
    """

    field: Field
    extension: str
    content: Content

    @cached_property
    def head(self) -> bytes:
        """Bytes of a fixed field's member before the value."""
        return npy_header(self.field.dtype, self.field.fixed_shape) if self.content == "npy" else b""

    @cached_property
    def size(self) -> int | None:
        """Size of the content in bytes; None if it varies."""
        if self.field.is_fixed and self.content == "npy":
            return len(self.head) + self.field.row_bytes
        return None


def members(schema: Schema) -> tuple[ShardMember, ...]:
    """Return the members of a sample in the order in which they are written: those of constant size first."""
    return tuple(sorted(map(member_of, schema), key=lambda member: member.size is None))


def member_of(field: Field) -> ShardMember:
    """Return the member that stores a field."""
    if field.kind == "text":
        return ShardMember(field, f"{field.name}.{'json' if field.codec.name == 'json' else 'txt'}", "bytes")
    entry = field.codec_entry
    if entry is not None and entry.image is not None:
        suffix = entry.image.suffixes[0][1:]
        return ShardMember(field, suffix if field.name == "image" else f"{field.name}.{suffix}", "bytes")
    if entry is not None and entry.video is not None:
        suffix = entry.video.suffix[1:]
        return ShardMember(field, suffix if field.name == "video" else f"{field.name}.{suffix}", "bytes")
    if field.kind == "bytes" and len(field.shape) == 1:
        return ShardMember(field, f"{field.name}.bin", "bytes")
    if field.name == "label" and field.is_scalar and field.dtype[1] in "iu":
        return ShardMember(field, "cls", "decimal")
    return ShardMember(field, f"{field.name}.npy", "npy")


def stored(field: Field, block_rows: int) -> Stored:
    """Return how a field is stored (`shardspec.formats.index.stored`)."""
    content = member_of(field).content
    if content == "decimal":
        return Stored(None, form="decimal")
    if content == "npy" and field.kind == "bytes":
        return Stored(None, form="shaped", axes=len(field.shape))
    return stored_plainly(field, block_rows)


def base_name(key: Buffer | None, row: int, extension_bytes: int) -> bytes:
    """Return the common prefix of the names of a sample's members, up to the first dot.

    It is the key, with ``%`` and two hexadecimal digits for every byte other than letters, digits, ``_`` and ``-``. If
    there is no key, or the names would become too long, it is ``@`` and the row in eight digits.

    Parameters
    ----------
    extension_bytes : int
        Length of the longest extension of the schema's members.
    """
    name = b"" if key is None else _UNSAFE.sub(lambda byte: b"%%%02X" % byte[0][0], bytes(key))
    return name if 0 < len(name) < NAME_BYTES_MAX - extension_bytes else b"@%08d" % row


def headers(names: npt.NDArray[np.uint8], sizes: IntArray) -> npt.NDArray[np.uint8]:
    """Return the headers of members: uint8, (n, 512).

    Parameters
    ----------
    names : ndarray, (n, 100), uint8
        Padded with zeros.
    sizes : int64 array, (n,), within 0 and `MEMBER_BYTES_MAX`
    """
    out = np.repeat(_TEMPLATE[None], len(names), axis=0)
    out[:, :NAME_BYTES_MAX] = names
    out[:, _SIZE] = _octal(sizes, 11)
    checksums = out.sum(axis=1, dtype=np.int64)
    out[:, 148:155] = _octal(checksums, 6)
    return out


def _octal(numbers: IntArray, digits: int) -> npt.NDArray[Any]:
    """Return numbers in octal digits, each followed by a zero byte: uint8, (n, digits + 1)."""
    out = np.zeros((len(numbers), digits + 1), np.uint8)
    out[:, :-1] = (numbers[:, None] >> _OCTAL_SHIFTS[-digits:] & 7) + ord("0")
    return out


def padded(sizes: Any) -> Any:
    """Return sizes including the padding."""
    return -(-sizes // BLOCK) * BLOCK
