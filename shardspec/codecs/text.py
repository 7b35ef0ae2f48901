"""``utf8`` and ``json``: text."""

import json
from typing import Any

import numpy.typing as npt

from shardspec.codecs.base import codec_error
from shardspec.columns import Buffer
from shardspec.schema import Field
from shardspec.wording import found_instead


class UTF8Codec:
    """A string as UTF-8. Lone surrogates (file names that are not valid UTF-8) are kept by ``surrogateescape``."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> Buffer:
        """Encode a string as UTF-8."""
        if not isinstance(value, str):
            raise codec_error(self.field, expected="str", found=type(value).__name__)
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise codec_error(self.field, str(error)) from error

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> str:
        """Decode a string; `out` is not used."""
        return bytes(data).decode("utf-8", "surrogateescape")


class JSONCodec:
    """A JSON document as UTF-8: sorted keys, no spaces, no NaN."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> Buffer:
        """Encode objects, lists, strings, numbers, booleans and None."""
        try:
            return json.dumps(
                value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise codec_error(self.field, expected="JSON values", hint=error) from error

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Any:
        """Decode a document; `out` is not used."""
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise codec_error(self.field, f"expected JSON, {found_instead(error)}") from error
