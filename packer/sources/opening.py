"""The source that a path or an object stands for."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.recipe import Recipe
from packer.sources.archives.opening import SUFFIXES as ARCHIVE_SUFFIXES
from packer.sources.archives.opening import is_pattern, open_file, open_folder, open_pattern
from packer.sources.base import Roots, Source
from packer.sources.folders.folder import FolderSource
from packer.sources.packed import PackedSource, is_packed
from packer.sources.requested_types import TYPES, column_types
from packer.sources.rows import RowsSource
from packer.sources.table import TableSource
from packer.sources.tables.opening import TABLES, is_table
from packer.vision.media import medium_of
from shardspec.errors import UsageError
from shardspec.layout import BUILD_FOLDER, Layout, given_path

_TABLE_OPTIONS = ("root", *TYPES)
_CELL_OPTIONS = ("unquoted",)
_ARCHIVE_OPTIONS = ("keys",)
_FOLDER_OPTIONS = ("include", "exclude", "fields_from_path", "sidecars")
_FRAME_OPTIONS = ("frame_folders",)


def open_source(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source, out: Path, recipe: Recipe | None = None
) -> Source:
    """The source that a path or an object stands for, opened as a recipe says.

    Raises
    ------
    UsageError
        If there is nothing at that path, if it is not a source, or if the output folder would lie inside it.
    """
    recipe = recipe or Recipe()
    types = column_types(recipe)
    if not (isinstance(source, str | os.PathLike) and is_table(Path(source))):
        _refuse(recipe, _CELL_OPTIONS, "tables of cells", "another source")
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        _refuse(recipe, _FOLDER_OPTIONS, "folders", "rows")
        _refuse(recipe, _ARCHIVE_OPTIONS, "archives", "rows")
        return RowsSource(source, _roots(recipe) or Path.cwd(), types, recipe.frame_folders)
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "list_items"):
            _refuse(recipe, _FOLDER_OPTIONS, "folders", "an object")
            _refuse(recipe, _TABLE_OPTIONS, "tables", "an object")
            _refuse(recipe, _ARCHIVE_OPTIONS, "archives", "an object")
            _refuse(recipe, _FRAME_OPTIONS, "folders and tables", "an object")
            return source
        raise UsageError(
            f"source: expected a folder, a table, rows, or an object with list_items, found {type(source).__name__}"
        )
    if not os.fspath(source):
        raise UsageError(
            "source: expected a folder, a table or an archive, found an empty text; '.' is the current folder"
        )
    path = given_path("source", source)
    if path.is_dir():
        if out.resolve() == path.resolve():
            raise UsageError(f"{out}: expected a folder outside the source, found the source itself: choose another")
        if out.resolve().is_relative_to(path.resolve()):
            raise UsageError(
                f"{out}: expected a folder outside the source, found one inside {path}: its files would become items"
            )
        if not is_packed(path):
            archives = open_folder(path, recipe)
            if archives is not None:
                _refuse(recipe, _FOLDER_OPTIONS, "folders of files", "archives")
                _refuse(recipe, _FRAME_OPTIONS, "folders of files, and tables", "archives")
                return archives
            _refuse(recipe, _ARCHIVE_OPTIONS, "archives", "a folder")
            _refuse_build(path)
            return FolderSource(path, recipe)
        _refuse(recipe, _ARCHIVE_OPTIONS, "archives", "a packed dataset")
        _refuse(recipe, _FOLDER_OPTIONS, "folders of files", "a packed dataset")
        _refuse(recipe, _FRAME_OPTIONS, "folders of files, and tables", "a packed dataset")
        _refuse(recipe, _TABLE_OPTIONS, "tables", "a packed dataset")
        return PackedSource(path)
    if not os.path.lexists(path) and is_pattern(str(path)):
        _refuse(recipe, _FOLDER_OPTIONS, "folders of files", "archives")
        _refuse(recipe, _FRAME_OPTIONS, "folders of files, and tables", "archives")
        return open_pattern(str(path), recipe)
    if not path.exists():
        raise UsageError(f"{path}: expected a folder, a table or an archive, found nothing of that name")
    opened = open_file(path, recipe)
    if opened is not None:
        _refuse(recipe, _FOLDER_OPTIONS, "folders of files", "an archive")
        _refuse(recipe, _FRAME_OPTIONS, "folders of files, and tables", "an archive")
        return opened
    _refuse(recipe, _ARCHIVE_OPTIONS, "archives", "a table")
    if not is_table(path):
        raise UsageError(
            f"{path}: expected a folder, a table ({', '.join(sorted(TABLES))}) or an archive "
            f"({', '.join(ARCHIVE_SUFFIXES)}), "
            f"found a file {path.suffix or 'without suffix'}{_remedy(path)}"
        )
    _refuse(recipe, _FOLDER_OPTIONS, "folders", "a table")
    return TableSource(path, _roots(recipe), types, recipe.frame_folders, recipe.unquoted)


def _remedy(path: Path) -> str:
    """Return advice about a file that is an item and not a source of items."""
    return ": give the folder that holds it" if medium_of(path.name) is not None else ""


def _roots(recipe: Recipe) -> Roots | None:
    """The folders that a table's paths are relative to, if the recipe names any."""
    return Roots.of(*recipe.root) if recipe.root else None


def _refuse_build(path: Path) -> None:
    """Refuse a folder that holds a build without a dataset, and nothing else."""
    layout = Layout(path)
    if layout.build.is_dir() and all(entry.name == BUILD_FOLDER for entry in path.iterdir()):
        raise UsageError(f"{path}: expected a source, found {layout.describe_build()}")


def _refuse(recipe: Recipe, options: Sequence[str], readers: str, found: str) -> None:
    """Refuse options that a source does not read."""
    for name in options:
        if getattr(recipe, name):
            raise UsageError(f"{name}: applies only to {readers}, found {found}")
