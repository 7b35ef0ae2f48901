"""The source that a path or an object stands for."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.recipe import TEXT_LISTS, Recipe
from packer.sources.archives.opening import SUFFIXES as ARCHIVE_SUFFIXES
from packer.sources.archives.opening import is_pattern, open_file, open_folder, open_pattern
from packer.sources.base import Roots, Source
from packer.sources.folder import FolderSource
from packer.sources.packed import PackedSource, is_packed
from packer.sources.rows import RowsSource
from packer.sources.table import TABLE_SUFFIXES, TableSource
from packer.sources.values import column_types
from shardspec.errors import UsageError


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
    roots, types = Roots.of(*recipe.root) if recipe.root else None, column_types(recipe)
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        _refuse_keys(recipe, "rows")
        return RowsSource(source, roots or Path.cwd(), types=types)
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "list_items"):
            _refuse_table_options(recipe, "an object")
            return source
        raise UsageError(
            f"source: expected a folder, a table, rows, or an object with list_items, found {type(source).__name__}"
        )
    path = Path(source)
    if path.is_dir():
        if out.resolve().is_relative_to(path.resolve()):
            raise UsageError(
                f"{out}: expected a folder outside the source, found one inside {path}: its files would become items"
            )
        packed = is_packed(path)
        archives = None if packed else open_folder(path, recipe)
        if archives is not None:
            return archives
        _refuse_table_options(recipe, "a packed dataset" if packed else "a folder")
        return PackedSource(path) if packed else FolderSource(path)
    if not os.path.lexists(path) and is_pattern(str(path)):
        return open_pattern(str(path), recipe)
    if not path.exists():
        raise UsageError(f"{path}: expected a folder, a table or an archive, found nothing of that name")
    opened = open_file(path, recipe)
    if opened is not None:
        return opened
    _refuse_keys(recipe, "a table")
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise UsageError(
            f"{path}: expected a folder, a table ({', '.join(sorted(TABLE_SUFFIXES))}) or an archive "
            f"({', '.join(ARCHIVE_SUFFIXES)}), "
            f"found a file {path.suffix or 'without suffix'}"
        )
    return TableSource(path, roots, types)


def _refuse_table_options(recipe: Recipe, found: str) -> None:
    """Refuse the options that only tables or archives read, for a source without columns."""
    _refuse_keys(recipe, found)
    for name in TEXT_LISTS:
        if getattr(recipe, name):
            raise UsageError(f"{name}: applies only to tables, found {found}")


def _refuse_keys(recipe: Recipe, found: str) -> None:
    if recipe.keys is not None:
        raise UsageError(f"keys: applies only to archives, found {found}")
