"""Open the source for a path or an object."""

import glob
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from packer.recipe import Recipe
from packer.recipe.checks import TYPES, column_types
from packer.sources.archives import parquet
from packer.sources.archives.keys import KeyTable
from packer.sources.archives.listing import ArchiveFile, ArchiveKind, ArchiveListing, ArchiveSource, ListedArchive
from packer.sources.archives.lmdb import list_keys
from packer.sources.archives.recordio import list_records
from packer.sources.archives.webdataset import list_tar
from packer.sources.archives.zip import list_zip
from packer.sources.base import AllowedFolders, Source
from packer.sources.files import LOCAL, LocalFiles, is_packed
from packer.sources.folders.folder import FolderSource
from packer.sources.folders.patterns import PathPattern
from packer.sources.folders.sidecars import SIDECAR_BYTES, sidecar_suffix
from packer.sources.packed import PackedSource
from packer.sources.rows import RowsSource, TableSource
from packer.sources.stores.access import check_url
from packer.sources.stores.files import StoredFiles
from packer.sources.stores.source import StoredSource
from packer.sources.tables.base import TABLES, is_table
from packer.vision.media import media_named, medium_of
from packer.workspace.shared_files import listing_folders
from shardspec.errors import UsageError
from shardspec.layout import BUILD_FOLDER, Layout, given_path, is_url
from shardspec.stores import local_path, names_store
from shardspec.stores.store import StoredObject
from shardspec.wording import LONG, counted, list_some, program, shorten

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

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)\Z")
_EXPANDED_MAX = 100_000


_KINDS: Sequence[ArchiveKind] = (
    ArchiveKind("tar files", (".tar", ".tar.gz", ".tgz"), "json", list_tar),
    ArchiveKind("zip files", (".zip",), "path", list_zip),
    ArchiveKind("RecordIO files", (".rec",), "record", list_records),
    ArchiveKind("LMDB files", (".mdb", ".lmdb"), "key", list_keys),
    ArchiveKind("Parquet files", (".parquet",), parquet.PREFIX, parquet.list_rows, has_columns=True),
)
ARCHIVE_SUFFIXES = tuple(suffix for kind in _KINDS for suffix in kind.suffixes)

DATA_NAME = "data.mdb"
"""Name of the data file in an LMDB that is a folder."""

_ACCOMPANYING = (".idx", "lock.mdb", "-lock")
"""Endings of the names of files that accompany an archive."""


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
    if not files.lexists(path) and _is_pattern(str(path)):
        _check_options(recipe, "archives")
        return _open_pattern(str(path), recipe, files)
    if not files.exists(path):
        raise UsageError(place=path, expected="a folder, a table or an archive", found="nothing at this path")
    opened = _open_archive(path, recipe, files)
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
    magic = next((number for number, name in enumerate(names) if _is_pattern(name)), None)
    if magic is not None:
        folder = files.add("/".join((f"{scheme}://{bucket}", *names[:magic])))
        pattern = "/".join(names[magic:])
        files.ask(_expand_braces(pattern))
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
    archives = None if packed else _open_archives(path, recipe, files)
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


def kind_of(name: str) -> ArchiveKind | None:
    """Return the kind of archive according to a file's name, or None if it is not an archive."""
    name = name.lower()
    return next((kind for kind in _KINDS if name.endswith(kind.suffixes) and not name.endswith("lock.mdb")), None)


def _open_archive(path: Path, recipe: Recipe, files: LocalFiles = LOCAL) -> Source | None:
    """Return the source for one archive. Return None for any other file, such as a Parquet table of paths."""
    kind = kind_of(path.name)
    if kind is None:
        return None
    if kind.has_columns:
        with files.reading(path):
            if not parquet.holds_images(path, recipe.path_column):
                return None
    path = path.absolute()
    return _archive_source(kind, path.parent, [path], recipe, 0, files)


def list_archive(path: Path, name: str, path_column: str) -> ArchiveListing:
    """List one archive. The names of the items start with `name`.

    Raises
    ------
    OSError, ShardspecError
        If the archive cannot be listed.
    """
    kind, status = kind_of(path.name), path.stat()
    if kind is None:
        raise UsageError(place=path, expected=f"an archive ({', '.join(ARCHIVE_SUFFIXES)})")
    return kind.lister(path_column, {})(ListedArchive(ArchiveFile(name, path), status.st_size, status.st_mtime_ns))


def _open_archives(folder: Path, recipe: Recipe, files: LocalFiles = LOCAL) -> Source | None:
    """Return the source for a folder of archives without files that the recipe takes (`_open_archive`); None for any other folder.

    Raises
    ------
    UsageError
        If there are archives of several kinds.
    BuildError
        If a folder cannot be listed.
    """
    folder, media = folder.resolve(), media_named(recipe.media)
    found: dict[ArchiveKind, list[Path]] = {}
    ignored, waiting = 0, [folder]
    while waiting:
        above = waiting.pop()
        packed = is_packed(above, files)  # its shards are not archives of images
        with listing_folders():
            for name, is_folder, is_link in files.scan(above):
                if is_folder:
                    waiting += [above / name] if not (packed or is_link or name.startswith(".")) else []
                elif packed or name.startswith("."):
                    ignored += 1
                elif medium_of(name, media) is not None:
                    return None
                elif (kind := kind_of(name)) is not None:
                    found.setdefault(kind, []).append(above / name)
                elif not name.endswith(_ACCOMPANYING):
                    ignored += 1
    if not found:
        return None
    kind = _only_kind(folder, found)
    return _archive_source(kind, folder, found[kind], recipe, ignored, files)


def _is_pattern(text: str) -> bool:
    """Return whether a string is a pattern and not the name of an existing file."""
    return glob.has_magic(text) or bool(_BRACES.search(text))


def _open_pattern(pattern: str, recipe: Recipe, files: LocalFiles = LOCAL) -> Source:
    """Return the source for a pattern of archives, with ``*``, ``?``, ``[...]``, ``**``, ``{a,b}`` and ``{000..099}``.

    Raises
    ------
    UsageError
        If the pattern matches no archive or archives of several kinds, or if a file listed in braces does not exist.
    """
    paths: dict[str, Path] = {}
    for one in _expand_braces(pattern):
        names = files.match(one) if glob.has_magic(one) else [one]
        paths |= {os.path.abspath(name): Path(name).absolute() for name in names}  # noqa: PTH100 -- without links
    found: dict[ArchiveKind, list[Path]] = {}
    missing = [str(path) for path in paths.values() if not files.exists(path)]
    if missing:
        raise UsageError(place=shorten(pattern), expected="files", found=f"none at {list_some(missing)}")
    for named in paths.values():
        inside = named / DATA_NAME
        path = inside if files.is_file(inside) else named
        if files.is_file(path) and (kind := kind_of(path.name)) is not None:
            found.setdefault(kind, []).append(path)
    if not found:
        known, other = ", ".join(ARCHIVE_SUFFIXES), counted(len(paths), "other file") if paths else "nothing"
        raise UsageError(place=shorten(pattern, LONG), expected=f"the names of archives ({known})", found=other)
    kind = _only_kind(pattern, found)
    root = Path(os.path.commonpath([path.parent for path in found[kind]]))
    return _archive_source(kind, root, found[kind], recipe, len(paths) - sum(map(len, found.values())), files)


def _expand_braces(pattern: str) -> Iterator[str]:
    """Yield the expansions of a pattern with braces.

    Raises
    ------
    UsageError
        If there are more than 100,000 expansions.
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _choices(piece) for number, piece in enumerate(pieces)]
    texts = ["".join(chosen) for chosen in islice(product(*choices), _EXPANDED_MAX + 1)]
    if len(texts) > _EXPANDED_MAX:
        raise UsageError(place=shorten(pattern), expected=f"at most {_EXPANDED_MAX} files", found="more")
    yield from texts


def _choices(text: str) -> Sequence[str]:
    numbers = _RANGE.match(text)
    if numbers is None:
        return text.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, min(last, first + _EXPANDED_MAX) + 1)]


def _only_kind(where: Path | str, found: Mapping[ArchiveKind, Sequence[Path]]) -> ArchiveKind:
    if len(found) > 1:
        what = " and ".join(f"{len(paths)} {kind.title}" for kind, paths in found.items())
        raise UsageError(
            place=where, expected="archives of one kind", found=what, hint="choose one kind with a pattern ('*.tar')"
        )
    return next(iter(found))


def _archive_source(
    kind: ArchiveKind, root: Path, paths: Sequence[Path], recipe: Recipe, ignored: int, files: LocalFiles
) -> Source:
    """Return the source for archives below a folder, in the order of their paths' bytes."""
    paths = sorted(paths, key=lambda path: os.fsencode(path.relative_to(root).as_posix()))
    archives = [ArchiveFile(_archive_name(root, path), path) for path in paths]
    keys = None if recipe.keys is None else KeyTable.read(Path(recipe.keys), recipe.text)
    pattern = None if recipe.fields_from_path is None else PathPattern(recipe.fields_from_path)
    return ArchiveSource(kind, archives, column_types(recipe), keys, pattern, ignored, files, media_named(recipe.media))


def _archive_name(root: Path, path: Path) -> str:
    """Return the name of an archive, which is its path below a folder. For an LMDB folder, it is the folder's path."""
    named = path.parent if path.name == DATA_NAME else path
    return root.name if named == root else named.relative_to(root).as_posix()
