"""Helpers that format values, lists and suggestions in messages and keep them short."""

import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from json import JSONDecodeError
from pathlib import PurePath
from typing import Any

LENGTH = 80
"""Largest number of characters of a value in a message."""

LONG = 300
"""Maximum length of a path or a reason, which should rarely be cut."""

LISTED = 8
"""Largest number of list entries in a message."""

PROGRAM, OTHER_NAME = "packer", "facepack"
"""Names of the command; the second is for machines where ``packer`` is another program."""

_LINES = re.compile(r"\s*\n\s*")

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = LENGTH


def program() -> str:
    """Return the name of the command as the user typed it; ``packer`` in other programs."""
    return OTHER_NAME if PurePath(sys.argv[0] if sys.argv else "").stem == OTHER_NAME else PROGRAM


def shorten(value: Any, length: int = LENGTH) -> str:
    """Return the `repr` of a value, or its beginning and length if it is long."""
    if isinstance(value, str | bytes | bytearray):
        if len(value) <= length:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:length]!r}… ({len(value)} {unit})"
    text = _LINES.sub(" ", _REPR.repr(value))
    return text if len(text) <= length else f"{text[:length]}… ({type(value).__name__})"


def cut(text: str, length: int) -> str:
    """Return a text, or its beginning and length if it is long."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def first_words(text: str, length: int) -> str:
    """Return a text, or its first words and ``…`` if it is longer than `length` characters."""
    if len(text) <= length:
        return text
    words = text[: length - 1].rpartition(" ")[0].rstrip(" ,:;(…")
    return f"{words} …" if words else f"{text[: length - 1]}…"


def one_line(text: str) -> str:
    """Return a text as one line, with spaces for line breaks and escapes for control characters."""
    text = _LINES.sub(" ", text.strip())
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def list_some(texts: Sequence[str], listed: int = LISTED) -> str:
    """Return the first texts, separated by commas and cut if they are long, and the number of the others."""
    shown = ", ".join(one_line(text if len(text) <= LENGTH else f"{text[:LENGTH]}…") for text in texts[:listed])
    return shown if len(texts) <= listed else f"{shown} and {len(texts) - listed} more"


def quote_some(names: Iterable[object]) -> str:
    """Return `list_some` of names in quotation marks, which show surrounding spaces."""
    return list_some(list(map(shorten, names)))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``"1 item"``, ``"2 items"``, ``"2 classes"``."""
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def found_instead(error: Exception) -> str:
    """Return the error of a JSON or TOML parser as text: the fault and its position."""
    if isinstance(error, RecursionError):
        return "found too many levels"
    if isinstance(error, UnicodeDecodeError):
        return f"found the byte 0x{error.object[error.start]:02x}, which is not UTF-8"
    where = f"{error.msg} (line {error.lineno} column {error.colno})" if isinstance(error, JSONDecodeError) else error
    return f"found a syntax error: {where}"


def span(low: int, high: int) -> str:
    """Return the range ``"3 to 8"``, or ``"3"`` if both ends are equal."""
    return f"{low}" if low == high else f"{low} to {high}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'size'?"`` to append to a message, or nothing if no known name is similar."""
    like = {other.casefold(): other for other in known}
    found = get_close_matches(name.casefold(), list(like), n=1)
    return f"; did you mean {like[found[0]]!r}?" if found else ""
