"""The source that a path or an object stands for."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.recipe import TEXT_LISTS, Recipe
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
        _refuse_table_options(recipe, "a packed dataset" if packed else "a folder")
        return PackedSource(path) if packed else FolderSource(path)
    if not path.exists():
        raise UsageError(f"{path}: expected a folder or a table, found nothing of that name")
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise UsageError(
            f"{path}: expected a folder or a table ({', '.join(sorted(TABLE_SUFFIXES))}), "
            f"found a file {path.suffix or 'without suffix'}"
        )
    return TableSource(path, roots, types)


def _refuse_table_options(recipe: Recipe, found: str) -> None:
    """Refuse the options that only tables read, for a source without columns."""
    for name in TEXT_LISTS:
        if getattr(recipe, name):
            raise UsageError(f"{name}: applies only to tables, found {found}")
