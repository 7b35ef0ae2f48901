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

    The library prepares its encoder anew for each value, which takes longer than to encode an item. Values that refer
    to themselves are a `RecursionError`.

    Parameters
    ----------
    **options
        Of `json.JSONEncoder`, without `indent`.
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
"""Encodes a value as JSON; of its characters, only those are escaped that must be."""


def to_utf8(text: str) -> bytes:
    """JSON as UTF-8; what is no valid text, such as a file's name in another encoding, becomes JSON's escapes."""
    return text.encode("utf-8", "backslashreplace")


def encode_line(document: Any) -> bytes:
    """A line of a report, in UTF-8 (`to_utf8`)."""
    return to_utf8(encode_json(document) + "\n")


def append_line(path: Path, document: Any) -> None:
    """Append one JSON line. A line that a crash cut short is ended first, so that it spoils no other."""
    line = json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"
    with path.open("a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        ended = file.read(1) in (b"", b"\n")
        write_all(file.fileno(), [line if ended else b"\n" + line])


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON lines of a file, which may be missing or end in a line cut short by a crash."""
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
        """Return a file's new lines; none if it cannot be read. A line without its end is left for the next call."""
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
