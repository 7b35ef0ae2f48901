"""Open the source for a path or an object."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from packer.recipe import Recipe
from packer.sources.archives.opening import SUFFIXES as ARCHIVE_SUFFIXES
from packer.sources.archives.opening import expand_braces, is_pattern, open_file, open_folder, open_pattern
from packer.sources.base import AllowedFolders, Source
from packer.sources.column_types import TYPES, column_types
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.folders.folder import FolderSource
from packer.sources.folders.sidecars import SIDECAR_BYTES, sidecar_suffix
from packer.sources.packed import PackedSource, is_packed
from packer.sources.rows import RowsSource, TableSource
from packer.sources.stores.access import check_url
from packer.sources.stores.files import StoredFiles
from packer.sources.stores.source import StoredSource
from packer.sources.tables.base import TABLES, is_table
from packer.vision.media import medium_of
from shardspec.errors import UsageError
from shardspec.layout import BUILD_FOLDER, Layout, given_path, is_url
from shardspec.stores import local_path, names_store
from shardspec.stores.store import StoredObject
from shardspec.wording import program

_READ_BY: Sequence[tuple[Sequence[str], str, Collection[str]]] = (
    (("unquoted",), "tables of cells", ("a table",)),
    (("include", "exclude", "sidecars"), "folders of files", ("a folder",)),
    (("fields_from_path",), "folders of files and archives", ("a folder", "archives")),
    (("keys",), "archives", ("archives",)),
    (("frame_folders",), "folders of files, and tables", ("a folder", "a table", "rows")),
    (("root",), "tables", ("a folder", "a table", "rows")),
    (("path_suffix",), "tables", ("a table", "rows")),
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
    stored = any(map(is_url, recipe.root))
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        _check_options(recipe, "rows")
        opens: Callable[[Any], Source] = partial(_open_rows, source, recipe)
    elif not isinstance(source, str | os.PathLike):
        if hasattr(source, "list_items"):
            _check_options(recipe, "an object")
            return source
        raise UsageError(
            option="source",
            expected="a folder, a table, rows, or an object with list_items",
            found=type(source).__name__,
        )
    elif not os.fspath(source):
        raise UsageError(
            option="source",
            expected="a folder, a table or an archive",
            found="an empty text; '.' is the current folder",
        )
    elif names_store(source):
        opens, stored = partial(_open_url, check_url(str(source)), out, recipe), True
    else:
        opens = partial(_open_path, given_path("source", local_path(source)), out, recipe)
    return StoredSource(opens, partial(_is_sidecar, recipe)) if stored else opens(LOCAL)


def _open_rows(rows: Sequence[Mapping[str, Any]], recipe: Recipe, files: LocalFiles) -> Source:
    return RowsSource(
        rows, _roots(recipe, files) or Path.cwd(), column_types(recipe), recipe.frame_folders, recipe.path_suffix
    )


def _open_path(path: Path, out: Path, recipe: Recipe, files: LocalFiles) -> Source:
    """Return the source for a path, which may stand for a URL."""
    if files.is_folder(path):
        return _open_folder(path, out, recipe, files)
    if not files.lexists(path) and is_pattern(str(path)):
        _check_options(recipe, "archives")
        return open_pattern(str(path), recipe, files)
    if not files.exists(path):
        raise UsageError(place=path, expected="a folder, a table or an archive", found="nothing at this path")
    opened = open_file(path, recipe, files)
    _check_options(recipe, "a table" if opened is None else "archives")
    if opened is not None:
        return opened
    if not is_table(path):
        raise UsageError(
            place=path,
            expected=f"a folder, a table ({', '.join(sorted(TABLES))}) or an archive ({', '.join(ARCHIVE_SUFFIXES)})",
            found=f"a file {path.suffix or 'without suffix'}{_remedy(path)}",
        )
    roots = _roots(recipe, files)
    if isinstance(files, StoredFiles) and files.holds(path):
        roots = roots or AllowedFolders.of(files.add_beside(path), files=files)
        files.download(path)
    types, suffix = column_types(recipe), recipe.path_suffix
    return TableSource(path, roots, types, recipe.frame_folders, recipe.unquoted, suffix)


def _open_url(url: str, out: Path, recipe: Recipe, files: StoredFiles) -> Source:
    """Return the source for a URL of a store."""
    scheme, _, place = url.partition("://")
    bucket, *names = place.split("/")
    magic = next((number for number, name in enumerate(names) if is_pattern(name)), None)
    if magic is not None:
        folder = files.add("/".join((f"{scheme}://{bucket}", *names[:magic])))
        pattern = "/".join(names[magic:])
        files.ask(expand_braces(pattern))
        return _open_path(folder / pattern, out, recipe, files)
    path = files.add_object(url) if names else None
    if path is None:
        if scheme.startswith("http"):
            raise UsageError(
                place=url,
                expected="a table or an archive",
                found="nothing at this URL",
                hint="web servers cannot list folders",
            )
        path = files.add(url)
    return _open_path(path, out, recipe, files)


def _is_sidecar(recipe: Recipe, found: StoredObject) -> bool:
    """Return whether an object may be a sidecar, whose content is listed."""
    return recipe.sidecars and sidecar_suffix(found.name) is not None and found.bytes <= SIDECAR_BYTES


def _open_folder(path: Path, out: Path, recipe: Recipe, files: LocalFiles) -> Source:
    """Return the source for a folder: a packed dataset, archives, or a folder of files."""
    packed = is_packed(path, files)
    if packed and isinstance(files, StoredFiles):
        raise UsageError(
            place=path,
            expected="images, videos or archives",
            found="a packed dataset",
            hint=f"fetch it with {program()} copy",
        )
    archives = None if packed else open_folder(path, recipe, files)
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
    _refuse_build(path, files)
    if any(map(is_url, recipe.root)):
        raise UsageError("URLs apply only to tables, found a folder", option="root")
    return FolderSource(path, recipe, files)


def _remedy(path: Path) -> str:
    """Return advice if the file is an image or video rather than a source."""
    return ": use the folder that contains it" if medium_of(path.name) is not None else ""


def _roots(recipe: Recipe, files: LocalFiles) -> AllowedFolders | None:
    """Return the folders that a recipe names, with paths for URLs."""
    folders = [files.add(root) if isinstance(files, StoredFiles) and is_url(root) else root for root in recipe.root]
    return AllowedFolders.of(*folders, files=files) if folders else None


def _refuse_build(path: Path, files: LocalFiles) -> None:
    """Refuse a folder that holds only an unfinished build."""
    layout = Layout(path)
    if files.is_folder(layout.build) and [name for name, *_ in islice(files.scan(path), 2)] == [BUILD_FOLDER]:
        raise UsageError(place=path, expected="a source", found=layout.describe_build())


def _check_options(recipe: Recipe, found: str) -> None:
    for options, readers, sources in _READ_BY:
        chosen = [name for name in options if getattr(recipe, name)]
        if chosen and found not in sources:
            raise UsageError(f"applies only to {readers}, found {found}", option=chosen[0])
