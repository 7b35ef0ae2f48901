"""Sidecars: ``.txt`` or ``.json`` files next to an item, with the same stem, whose content becomes fields."""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from packer.recipe import field_name
from packer.sources.base import describe_path
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.item import ItemFile
from packer.sources.json_values import parse_json
from packer.vision.faults import stop_if_passing
from shardspec.errors import system_reason
from shardspec.fields import RESERVED
from shardspec.wording import LONG, list_some, shorten

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


def sidecar_suffix(name: str) -> str | None:
    """Return the suffix of a sidecar in lower case; None for any other file."""
    suffix = PurePath(name).suffix.lower()
    return suffix if suffix in (TEXT, OBJECT) else None


def read_sidecars(
    paths: Sequence[str], root: Path, roots: Sequence[Path], files: LocalFiles = LOCAL
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
    sidecars: dict[str, ItemFile] = {}
    for path in paths:
        try:
            found = describe_path(0, path, root / path, roots, {}, files=files)
            if found.reject is not None:
                raise ValueError(found.reject)
            part = f"{PART}{sidecar_suffix(path)}"
            if part in sidecars:
                raise ValueError(f"expected one such file, found {shorten(sidecars[part].name)} as well")
            more = _read(root / path, files)
            both = sorted(columns.keys() & more.keys())
            if both:
                raise ValueError(f"expected other names than in the {OBJECT} file, found {list_some(both)} as well")
        except ValueError as error:
            raise ValueError(f"sidecar {shorten(path, LONG)}: {error}") from error
        columns |= more
        sidecars[part] = ItemFile(path, str(root / path), found.bytes, found.mtime_ns)
    return columns, sidecars


def _read(path: Path, files: LocalFiles) -> dict[str, Any]:
    """Read the columns in a sidecar.

    Spaces and line ends around a text are removed, and an empty text is missing. Names in an object that a build uses
    for its own fields get the prefix ``sidecar_``.
    """
    try:
        data = files.read(path, SIDECAR_BYTES + 1)
    except OSError as error:
        stop_if_passing(error, path, "read")
        raise ValueError(f"expected a readable file, found: {system_reason(error)}") from error
    if len(data) > SIDECAR_BYTES:
        raise ValueError(f"expected at most {SIDECAR_BYTES:,} bytes, found more")
    if sidecar_suffix(path.name) == TEXT:
        try:
            return {TEXT_COLUMN: data.decode("utf-8-sig").strip() or None}
        except UnicodeDecodeError as error:
            raise ValueError(f"expected UTF-8, found the byte 0x{data[error.start]:02x} at {error.start}") from error
    document = parse_json(data)
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, found {type(document).__name__}")
    columns: dict[str, Any] = {}
    for name, value in document.items():
        column = f"{RENAMED}{field_name(name)}" if field_name(name) in RESERVED else name
        if column in columns:
            raise ValueError(f"expected names of different columns, found two that become {column!r}")
        columns[column] = value
    return columns
