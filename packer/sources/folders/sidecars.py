"""Sidecars: ``.txt`` or ``.json`` files next to an item, with the same stem, whose content becomes fields."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from packer.recipe import field_name
from packer.sources.base import describe_path
from packer.sources.item import ItemFile
from packer.sources.tables.json_lines import without_doubles
from packer.vision.faults import may_pass
from shardspec.errors import BuildError, system_reason
from shardspec.fields import RESERVED
from shardspec.wording import LONG, found_instead, list_some, shorten

TEXT, OBJECT = ".txt", ".json"
"""Suffixes of sidecars, in lower or upper case."""

PART = "sidecar"
"""Beginning of the names of sidecars in `Item.files`, which their suffixes follow."""

TEXT_COLUMN = "text"
"""Column for the content of a ``.txt`` file."""

RENAMED = "sidecar_"
"""Prefix for a name in a JSON file if a build itself writes a field of that name."""

SIDECAR_BYTES = 2**20
"""Largest sidecar in bytes. Sidecars become part of the plan."""

_DEPTH = 32
"""Most levels of lists and objects in a JSON file."""


def sidecar_suffix(name: str) -> str | None:
    """Return the suffix of a sidecar in lower case; None for any other file."""
    suffix = PurePath(name).suffix.lower()
    return suffix if suffix in (TEXT, OBJECT) else None


def read_sidecars(
    paths: Sequence[str], root: Path, roots: Sequence[Path]
) -> tuple[dict[str, Any], dict[str, ItemFile]]:
    """Read the sidecars of an item. Return their columns, and the files by ``sidecar`` and suffix.

    Parameters
    ----------
    paths : sequence of str
        Paths of the sidecars, relative to `root`.
    roots : sequence of Path
        Folders that the files must not leave, with resolved links.

    Raises
    ------
    ValueError
        If a sidecar is too large, if its content does not suit its suffix, or if two sidecars have the same suffix or
        column. The message is the reason of the reject.
    BuildError
        If a sidecar cannot be read because of a temporary fault.
    """
    columns: dict[str, Any] = {}
    files: dict[str, ItemFile] = {}
    for path in paths:
        try:
            found = describe_path(0, path, root / path, roots, {})
            if found.reject is not None:
                raise ValueError(found.reject)
            part = f"{PART}{sidecar_suffix(path)}"
            if part in files:
                raise ValueError(f"expected one such file, found {shorten(files[part].name)} as well")
            more = _read(root / path)
            both = sorted(columns.keys() & more.keys())
            if both:
                raise ValueError(f"expected other names than in the {OBJECT} file, found {list_some(both)} as well")
        except ValueError as error:
            raise ValueError(f"sidecar {shorten(path, LONG)}: {error}") from error
        columns |= more
        files[part] = ItemFile(path, str(root / path), found.bytes, found.mtime_ns)
    return columns, files


def _read(path: Path) -> dict[str, Any]:
    """Read the columns in a sidecar.

    Spaces and line ends around a text are removed, and an empty text is missing. Names in an object that a build uses
    for its own fields get the prefix ``sidecar_``.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIDECAR_BYTES + 1)
    except OSError as error:
        if may_pass(error):  # the plan depends on the content, so a temporary fault must not make a reject
            raise BuildError(f"cannot be read: {error}", place=path, hint="run the same command again") from error
        raise ValueError(f"expected a readable file, found: {system_reason(error)}") from error
    if len(data) > SIDECAR_BYTES:
        raise ValueError(f"expected at most {SIDECAR_BYTES:,} bytes, found more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, found the byte 0x{data[error.start]:02x} at {error.start}") from error
    if sidecar_suffix(path.name) == TEXT:
        return {TEXT_COLUMN: text.strip() or None}
    columns: dict[str, Any] = {}
    for name, value in _parse_object(text).items():
        column = f"{RENAMED}{field_name(name)}" if field_name(name) in RESERVED else name
        if column in columns:
            raise ValueError(f"expected names of different columns, found two that become {column!r}")
        columns[column] = value
    return columns


def _parse_object(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=without_doubles
        )
        if "\\u" in text:  # half of a surrogate pair is not a character
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("expected text that can be encoded as UTF-8, found half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a JSON object, {found_instead(error)}") from error
    except RecursionError as error:
        raise ValueError(f"expected at most {_DEPTH} levels of lists and objects, found more") from error
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, found {type(document).__name__}")
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEPTH):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"expected at most {_DEPTH} levels of lists and objects, found more")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"expected finite numbers, found {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, found {shorten(text)}")
    return value
