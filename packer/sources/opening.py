"""Open the source for a path or an object."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.recipe import Recipe
from packer.sources.archives.opening import SUFFIXES as ARCHIVE_SUFFIXES
from packer.sources.archives.opening import is_pattern, open_file, open_folder, open_pattern
from packer.sources.base import Roots, Source
from packer.sources.column_types import TYPES, column_types
from packer.sources.folders.folder import FolderSource
from packer.sources.packed import PackedSource, is_packed
from packer.sources.rows import RowsSource
from packer.sources.table import TableSource
from packer.sources.tables.opening import TABLES, is_table
from packer.vision.media import medium_of
from shardspec.errors import UsageError
from shardspec.layout import BUILD_FOLDER, Layout, given_path

_READ_BY: Sequence[tuple[Sequence[str], str, Collection[str]]] = (
    (("unquoted",), "tables of cells", ("a table",)),
    (("include", "exclude", "fields_from_path", "sidecars"), "folders of files", ("a folder",)),
    (("keys",), "archives", ("archives",)),
    (("frame_folders",), "folders of files, and tables", ("a folder", "a table", "rows")),
    (("root",), "tables", ("a folder", "a table", "rows")),
    (TYPES, "tables", ("a folder", "a table", "rows", "archives")),
)
"""Options that apply only to some sources, with a name for these sources in messages, and the sources themselves."""


def open_source(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source, out: Path, recipe: Recipe | None = None
) -> Source:
    """Return the source for a path or an object, opened with the options of a recipe.

    Raises
    ------
    UsageError
        If the path does not exist or is not a source, or if the output folder is inside it.
    """
    recipe = recipe or Recipe()
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        _check_options(recipe, "rows")
        return RowsSource(source, _roots(recipe) or Path.cwd(), column_types(recipe), recipe.frame_folders)
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "list_items"):
            _check_options(recipe, "an object")
            return source
        raise UsageError(
            option="source",
            expected="a folder, a table, rows, or an object with list_items",
            found=type(source).__name__,
        )
    if not os.fspath(source):
        raise UsageError(
            option="source",
            expected="a folder, a table or an archive",
            found="an empty text; '.' is the current folder",
        )
    path = given_path("source", source)
    if path.is_dir():
        return _open_folder(path, out, recipe)
    if not os.path.lexists(path) and is_pattern(str(path)):
        _check_options(recipe, "archives")
        return open_pattern(str(path), recipe)
    if not path.exists():
        raise UsageError(place=path, expected="a folder, a table or an archive", found="nothing at this path")
    opened = open_file(path, recipe)
    _check_options(recipe, "a table" if opened is None else "archives")
    if opened is not None:
        return opened
    if not is_table(path):
        raise UsageError(
            place=path,
            expected=f"a folder, a table ({', '.join(sorted(TABLES))}) or an archive ({', '.join(ARCHIVE_SUFFIXES)})",
            found=f"a file {path.suffix or 'without suffix'}{_remedy(path)}",
        )
    return TableSource(path, _roots(recipe), column_types(recipe), recipe.frame_folders, recipe.unquoted)


def _open_folder(path: Path, out: Path, recipe: Recipe) -> Source:
    """Return the source for a folder: a packed dataset, archives, or a folder of files."""
    packed = is_packed(path)
    archives = None if packed else open_folder(path, recipe)
    _check_options(recipe, "a packed dataset" if packed else "a folder" if archives is None else "archives")
    if out.resolve() == path.resolve():
        raise UsageError(
            place=out, expected="a folder outside the source", found="the source itself", hint="choose another"
        )
    if out.resolve().is_relative_to(path.resolve()):
        raise UsageError(
            place=out,
            expected="a folder outside the source",
            found=f"one inside {path}",
            hint="its files would become items",
        )
    if packed or archives is not None:
        return PackedSource(path) if archives is None else archives
    _refuse_build(path)
    return FolderSource(path, recipe)


def _remedy(path: Path) -> str:
    """Return advice if the file is an image or video rather than a source."""
    return ": use the folder that contains it" if medium_of(path.name) is not None else ""


def _roots(recipe: Recipe) -> Roots | None:
    return Roots.of(*recipe.root) if recipe.root else None


def _refuse_build(path: Path) -> None:
    """Refuse a folder that holds only an unfinished build."""
    layout = Layout(path)
    if layout.build.is_dir() and all(entry.name == BUILD_FOLDER for entry in path.iterdir()):
        raise UsageError(place=path, expected="a source", found=layout.describe_build())


def _check_options(recipe: Recipe, found: str) -> None:
    for options, readers, sources in _READ_BY:
        chosen = [name for name in options if getattr(recipe, name)]
        if chosen and found not in sources:
            raise UsageError(f"applies only to {readers}, found {found}", option=chosen[0])
