"""What a codec is."""

from typing import Any, Protocol

import numpy.typing as npt

from shardspec.columns import Buffer
from shardspec.schema import Field


class Codec(Protocol):
    """Turns one value of a field into bytes and back. Safe to share between threads; holds no open resources.

    A codec is made from its `Field`, whose ``codec.configuration`` it reads. Two codecs may share a name only if either
    decodes what the other encodes.
    """

    def __init__(self, field: Field) -> None: ...

    def encode(self, value: Any) -> Buffer:
        """The bytes of one value. A value that does not fit the field is a `CodecError`."""
        ...

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Any:
        """The value of some bytes, written into `out` (and returned) where an array of the right shape and dtype is given.

        Bytes that do not decode to what the field promises are a `CodecError`.
        """
        ...
