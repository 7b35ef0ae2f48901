"""Files of JSON lines."""

import json
import os
from collections.abc import Callable, Iterator
from json import encoder
from pathlib import Path
from typing import Any

from packer.workspace.durable import write_all


def line_encoder(**options: Any) -> Callable[[Any], str]:
    """Return an equivalent of ``json.JSONEncoder(**options).encode`` that takes a third of the time for a short value.

    The standard encoder is set up again for each value, which takes longer than encoding an item. A value that
    contains itself raises `RecursionError`.

    Parameters
    ----------
    **options
        Options of `json.JSONEncoder` except `indent`.
    """
    plain = json.JSONEncoder(**options)
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # not in CPython
        return plain.encode
    text = encoder.encode_basestring_ascii if plain.ensure_ascii else encoder.encode_basestring
    marks = plain.key_separator, plain.item_separator
    prepared = make(None, plain.default, text, None, *marks, plain.sort_keys, plain.skipkeys, plain.allow_nan)
    return lambda value: "".join(prepared(value, 0))


encode_json = line_encoder(ensure_ascii=False)
"""Encodes a value as JSON and escapes only the characters that must be escaped."""


def to_utf8(text: str) -> bytes:
    """Encode JSON as UTF-8. Surrogates, as in a file name that is not UTF-8, become escapes."""
    return text.encode("utf-8", "backslashreplace")


def encode_line(document: Any) -> bytes:
    """Encode a document as one line of JSON in UTF-8 (`to_utf8`)."""
    return to_utf8(encode_json(document) + "\n")


def append_line(path: Path, document: Any) -> None:
    """Append one JSON line. If a crash cut the last line short, end that line first."""
    line = json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"
    with path.open("a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        ended = file.read(1) in (b"", b"\n")
        write_all(file.fileno(), [line if ended else b"\n" + line])


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the documents of a JSON lines file. The file may be missing, or end with a line that a crash cut short."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            continue


class NewLines:
    """Reads the lines that were appended to files since they were last read."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def read(self, path: Path) -> list[bytes]:
        """Return the new lines of a file, or none if it cannot be read. An incomplete line is left for the next call."""
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return []
        *lines, rest = data.split(b"\n")
        self._offsets[path] = offset + len(data) - len(rest)
        return lines
