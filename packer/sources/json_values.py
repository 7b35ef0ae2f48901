"""Parse JSON of sources: sidecars, members of archives, and lines of tables."""

import json
import math
from typing import Any

from shardspec.wording import counted, found_instead, shorten

_DEPTH = 32
"""Most levels of lists and objects."""


def parse_json(data: bytes) -> Any:
    """Parse JSON in UTF-8. A single NaN becomes None, a missing value.

    Raises
    ------
    ValueError
        If the bytes are not JSON, an object has a name twice, of which Python would take the last and other parsers the
        first, a number is infinite, a list has NaN, a text has half of a surrogate pair, or the values are nested too
        deeply.
    """
    try:
        document = json.loads(
            data.decode("utf-8-sig"),
            parse_constant=_parse_constant,
            parse_float=_finite,
            object_pairs_hook=_make_object,
        )
        if b"\\u" in data:  # half of a surrogate pair is not a character, but may stand for a byte of a file name
            json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError("expected text that can be encoded as UTF-8, found half of a surrogate pair") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected JSON, {found_instead(error)}") from error
    except RecursionError as error:
        raise ValueError(f"expected at most {_DEPTH} levels of lists and objects, found more") from error
    if data.count(b"[") + data.count(b"{") > _DEPTH:  # else it cannot be deeper
        _check_depth(document)
    if document is math.nan:
        return None
    if b"NaN" in data:
        try:
            json.dumps(document, allow_nan=False)
        except ValueError as error:
            raise ValueError("expected finite numbers in lists, found NaN") from error
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEPTH):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"expected at most {_DEPTH} levels of lists and objects, found more")


def _parse_constant(word: str) -> float:
    if word != "NaN":
        raise ValueError(f"expected finite numbers, found {word}")
    return math.nan


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, found {shorten(text)}")
    return value


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {name: None if value is math.nan else value for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError(f"expected every name once, found {counted(len(pairs) - len(found), 'name')} repeated")
    return found
