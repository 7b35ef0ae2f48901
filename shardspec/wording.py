"""Values, texts, lists, counts and likely corrections in messages, so that these stay short whatever they are about."""

import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from json import JSONDecodeError
from pathlib import PurePath
from typing import Any

LENGTH = 80
"""Characters of one value in a message."""

LONG = 300
"""Characters of a value that is of no use when it is cut: a path, a reason."""

LISTED = 8
"""Entries of a list in a message."""

PROGRAM, OTHER_NAME = "packer", "facepack"
"""The command, and its second name, for machines where ``packer`` is another program."""

_LINES = re.compile(r"\s*\n\s*")

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = LENGTH


def program() -> str:
    """Return the name that the user typed for the command; ``packer`` in any other program."""
    return OTHER_NAME if PurePath(sys.argv[0] if sys.argv else "").stem == OTHER_NAME else PROGRAM


def shorten(value: Any, length: int = LENGTH) -> str:
    """The `repr` of a value for a message; for a long one, its beginning and its length."""
    if isinstance(value, str | bytes | bytearray):
        if len(value) <= length:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:length]!r}… ({len(value)} {unit})"
    text = _LINES.sub(" ", _REPR.repr(value))
    return text if len(text) <= length else f"{text[:length]}… ({type(value).__name__})"


def cut(text: str, length: int) -> str:
    """A text for a message, unchanged; for a long one, its beginning and its length."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def first_words(text: str, length: int) -> str:
    """A text for a narrow place, unchanged.

    Of one that is longer than `length` characters its first words, then ``…``.
    """
    if len(text) <= length:
        return text
    words = text[: length - 1].rpartition(" ")[0].rstrip(" ,:;(…")  # "…": what was left out there is left out here
    return f"{words} …" if words else f"{text[: length - 1]}…"


def one_line(text: str) -> str:
    """A text as one line, whoever wrote it: a blank for each break, and what a terminal would obey as in its `repr`."""
    text = _LINES.sub(" ", text.strip())
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def list_some(texts: Sequence[str], listed: int = LISTED) -> str:
    """The first of some texts, separated by commas and each cut if it is long, then the number of those left out."""
    shown = ", ".join(one_line(text if len(text) <= LENGTH else f"{text[:LENGTH]}…") for text in texts[:listed])
    return shown if len(texts) <= listed else f"{shown} and {len(texts) - listed} more"


def quote_some(names: Iterable[object], listed: int = LISTED) -> str:
    """The first of some names as `list_some` has them, each in quotation marks, so that blanks beside one are seen."""
    return list_some(list(map(shorten, names)), listed)


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8.

    Not where it has half of a surrogate pair, as some names of files do.
    """
    return text == text.encode("utf-8", "replace").decode()


def counted(count: int, noun: str) -> str:
    """``"1 item"``, ``"2 items"``, ``"2 classes"``.

    A number and what it counts, in the plural unless the number is 1.
    """
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def found_instead(error: Exception) -> str:
    """Return the error of a JSON or TOML parser as text: the fault and its position."""
    if isinstance(error, RecursionError):
        return "found it too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"found the byte 0x{error.object[error.start]:02x}, which is not UTF-8"
    where = f"{error.msg} (line {error.lineno} column {error.colno})" if isinstance(error, JSONDecodeError) else error
    return f"found text that is none: {where}"


def span(low: int, high: int) -> str:
    """``"3 to 8"``: the range of some numbers; ``"3"`` if that is all of them."""
    return f"{low}" if low == high else f"{low} to {high}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'size'?"``, to be appended to a message; empty if no known name is similar."""
    like = {other.casefold(): other for other in known}
    found = get_close_matches(name.casefold(), list(like), n=1)
    return f"; did you mean {like[found[0]]!r}?" if found else ""
