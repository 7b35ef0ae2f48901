"""What a source lists."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from packer.faults import may_pass
from packer.recipe import Recipe
from packer.sources.item import Item
from shardspec.errors import BuildError, UsageError


@dataclass(frozen=True)
class Listing:
    """The items of a source.

    Attributes
    ----------
    items : sequence of Item
        Sorted, ``items[i].index == i``.
    ignored : int
        Files that are no items.
    classes : dict of str to list of str
        Class names of the integer columns that have them.
    root : Path or None
        What further paths in the items' columns are relative to, and must not leave; None where columns hold no paths.
    fields : dict of str to str
        The field of a sample that each column of a table becomes.
    further : tuple of str
        Fields of packed pictures beside ``image``.
    """

    items: Sequence[Item]
    ignored: int = 0
    classes: dict[str, list[str]] = field(default_factory=dict)
    root: Path | None = None
    fields: dict[str, str] = field(default_factory=dict)
    further: tuple[str, ...] = ()


class Source(Protocol):
    """Lists its items. Sources of Python objects may put arrays into an item's columns; those need the inline engine."""

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """All items, in a fixed order, with their labels in a column ``label`` as `label_from` says."""
        ...


def refuse_path_column(path_column: str, found: str) -> None:
    """For sources without columns: an option that nothing would read was meant for another call.

    Raises
    ------
    UsageError
    """
    if path_column != Recipe.path_column:
        raise UsageError(f"path_column: read only of a table, found {found}")


def name_inside(root: Path, path: str | Path) -> str:
    """How a path in a table is called: relative to the root, with ``/``, or as it stands where it lies outside."""
    location = root / path
    return location.relative_to(root).as_posix() if location.is_relative_to(root) else str(path)


def describe_path(index: int, name: str, path: Path, root: Path, columns: dict[str, Any]) -> Item:
    """An item for a file, or a reject if there is no such regular file inside `root`.

    Raises
    ------
    BuildError
        The file cannot be looked at, for a reason that may pass.
    """
    columns = dict(columns)

    def reject(reason: str) -> Item:
        return Item(index, name, str(path), columns=columns, reject=reason)

    try:
        resolved = path.resolve(strict=True)
        stat = path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        if may_pass(error):  # what is listed decides the plan
            raise BuildError(f"{path}: cannot be looked at: {error}: run the same command again") from error
        link = os.path.islink(path)  # noqa: PTH114 -- Path.is_symlink raises where a name is too long
        broken = "a symbolic link to nothing" if link else (getattr(error, "strerror", None) or str(error))
        return reject(f"expected a file, found {broken}")
    if not resolved.is_relative_to(root):
        kind = "a symbolic link that leaves" if path.is_symlink() or _through_link(path, root) else "a path outside"
        return reject(f"expected a file inside the source, found {kind} it")
    if not resolved.is_file():
        return reject("expected a regular file, found something else")
    return Item(index, name, str(path), stat.st_size, stat.st_mtime_ns, columns)


def _through_link(path: Path, root: Path) -> bool:
    """Whether the path as written lies inside the root, so that only a link can lead outside."""
    return Path(os.path.normpath(path)).is_relative_to(root)
