"""What a source lists."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from packer.recipe import Recipe
from packer.sources.item import Item
from packer.vision.faults import may_pass
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
    roots : Roots or None
        What further paths in the items' columns are relative to, and must not leave; None where columns hold no paths.
    fields : dict of str to str
        The field of a sample that each column of a table becomes.
    further : tuple of str
        Fields of pictures beside ``image`` that the items bring.
    arrays : dict of str to tuple
        Of the columns that hold lists of numbers, which become arrays: the dtype, and the sizes behind the first axis.
    outside : dict of int to str
        The items whose paths lead out of `roots`, and where each stands, in words.
    """

    items: Sequence[Item]
    ignored: int = 0
    classes: dict[str, list[str]] = field(default_factory=dict)
    roots: "Roots | None" = None
    fields: dict[str, str] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    outside: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Roots:
    """The folders that the paths of a table are relative to, or lie below, and must not leave.

    Attributes
    ----------
    folders : tuple of Path
        As they were given, absolute.
    """

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, *folders: str | Path) -> "Roots":
        """The roots of some folders.

        Raises
        ------
        UsageError
            One is no folder, or lies in another, or two have one name, by which files below them are called.
        """
        roots = cls(tuple(Path(folder).absolute() for folder in folders))
        for number, folder in enumerate(roots.folders):
            if not folder.is_dir():
                raise UsageError(
                    f"root: expected a folder, found {'a file' if folder.exists() else 'none'} at {folders[number]}"
                )
            for other in roots.folders[:number]:
                if folder.resolve().is_relative_to(other.resolve()) or other.resolve().is_relative_to(folder.resolve()):
                    raise UsageError(
                        f"root: expected folders apart from one another, found {other} and {folder}: give the outer one"
                    )
                if folder.name == other.name:
                    raise UsageError(
                        f"root: expected folders of different names, by which their files are told apart, found {other} and {folder}: "
                        "give the folder above both, or a link of another name"
                    )
        return roots

    @cached_property
    def resolved(self) -> tuple[Path, ...]:
        """The folders without links."""
        return tuple(folder.resolve() for folder in self.folders)

    def describe(self, index: int, path: str | Path, columns: Mapping[str, Any]) -> Item:
        """An item for a path in a table: called by its path below its root, and behind the root's name where there are several.

        A relative path that is there below several roots is a reject.
        """
        found = [folder for folder in self.resolved if os.path.lexists(folder / path)]
        location = (found or self.resolved)[0] / path
        if len(found) > 1 and not Path(path).is_absolute():
            reason = (
                f"expected a path below one of the roots, found it below {len(found)}: make it absolute in the table"
            )
            return Item(index, str(path), str(location), columns=columns, reject=reason)
        return describe_path(index, self._name(location) or str(path), location, self.resolved, columns)

    def leads_out(self, path: str | Path) -> bool:
        """Whether a path, absolute or relative, leads out of every root; through links too."""
        for folder in self.resolved:
            try:
                resolved = (folder / path).resolve()
            except (OSError, RuntimeError, ValueError):
                return False
            if any(resolved.is_relative_to(root) for root in self.resolved):
                return False
        return True

    def _name(self, location: Path) -> str | None:
        """The name of a file below a root; None where it lies outside of all."""
        # As it is written; without links where that has `..`, or looks like another place since a link leads to the root.
        for see in (Path, _resolve):
            place = see(location)
            for given, real in zip(self.folders, self.resolved, strict=True):
                for root in (real, given):
                    if place.is_relative_to(root) and ".." not in place.parts:
                        name = place.relative_to(root).as_posix()
                        return f"{given.name}/{name}" if len(self.folders) > 1 else name
        return None


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


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


def describe_path(index: int, name: str, path: Path, roots: Sequence[Path], columns: Mapping[str, Any]) -> Item:
    """An item for a file, or a reject if there is no such regular file inside one of `roots`, which have no links.

    Raises
    ------
    BuildError
        If the file cannot be looked at, for a reason that may pass.
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
    if not any(resolved.is_relative_to(root) for root in roots):
        kind = "a symbolic link that leaves" if path.is_symlink() or _through_link(path, roots) else "a path outside"
        return reject(f"expected a file inside the source, found {kind} it")
    if not resolved.is_file():
        return reject("expected a regular file, found something else")
    return Item(index, name, str(path), stat.st_size, stat.st_mtime_ns, columns)


def _through_link(path: Path, roots: Sequence[Path]) -> bool:
    """Whether the path as written lies inside a root, so that only a link can lead outside."""
    return any(Path(os.path.normpath(path)).is_relative_to(root) for root in roots)
