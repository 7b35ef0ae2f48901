"""Kinds of archives, and the source for a single archive, a folder of archives, or a pattern of names."""

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path

from packer.recipe import Recipe
from packer.sources.archives import parquet
from packer.sources.archives.keys import KeyTable
from packer.sources.archives.listing import (
    ArchiveFile,
    ArchiveKind,
    ArchiveListing,
    ArchiveSource,
    ListedArchive,
)
from packer.sources.archives.lmdb import list_keys
from packer.sources.archives.recordio import list_records
from packer.sources.archives.webdataset import list_tar
from packer.sources.archives.zip import list_zip
from packer.sources.base import Source
from packer.sources.column_types import column_types
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.folders.patterns import PathPattern
from packer.sources.packed import is_packed
from packer.vision.media import media_named, medium_of
from packer.workspace.shared_files import listing_folders
from shardspec.errors import UsageError
from shardspec.wording import LONG, counted, list_some, shorten

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
SUFFIXES = tuple(suffix for kind in _KINDS for suffix in kind.suffixes)

DATA_NAME = "data.mdb"
"""Name of the data file in an LMDB that is a folder."""

_ACCOMPANYING = (".idx", "lock.mdb", "-lock")
"""Endings of the names of files that accompany an archive."""


def kind_of(name: str) -> ArchiveKind | None:
    """Return the kind of archive according to a file's name, or None if it is not an archive."""
    name = name.lower()
    return next((kind for kind in _KINDS if name.endswith(kind.suffixes) and not name.endswith("lock.mdb")), None)


def open_file(path: Path, recipe: Recipe, files: LocalFiles = LOCAL) -> Source | None:
    """Return the source for one archive. Return None for any other file, such as a Parquet table of paths."""
    kind = kind_of(path.name)
    if kind is None:
        return None
    if kind.has_columns:
        with files.reading(path):
            if not parquet.holds_images(path, recipe.path_column):
                return None
    path = path.absolute()
    return _source(kind, path.parent, [path], recipe, 0, files)


def list_archive(path: Path, name: str, path_column: str) -> ArchiveListing:
    """List one archive. The names of the items start with `name`.

    Raises
    ------
    OSError, ShardspecError
        If the archive cannot be listed.
    """
    kind, status = kind_of(path.name), path.stat()
    if kind is None:
        raise UsageError(place=path, expected=f"an archive ({', '.join(SUFFIXES)})")
    return kind.lister(path_column, {})(ListedArchive(ArchiveFile(name, path), status.st_size, status.st_mtime_ns))


def open_folder(folder: Path, recipe: Recipe, files: LocalFiles = LOCAL) -> Source | None:
    """Return the source for a folder of archives without files that the recipe takes (`open_file`); None for any other folder.

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
    return _source(kind, folder, found[kind], recipe, ignored, files)


def is_pattern(text: str) -> bool:
    """Return whether a string is a pattern and not the name of an existing file."""
    return glob.has_magic(text) or bool(_BRACES.search(text))


def open_pattern(pattern: str, recipe: Recipe, files: LocalFiles = LOCAL) -> Source:
    """Return the source for a pattern of archives, with ``*``, ``?``, ``[...]``, ``**``, ``{a,b}`` and ``{000..099}``.

    Raises
    ------
    UsageError
        If the pattern matches no archive or archives of several kinds, or if a file listed in braces does not exist.
    """
    paths: dict[str, Path] = {}
    for one in expand_braces(pattern):
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
        known, other = ", ".join(SUFFIXES), counted(len(paths), "other file") if paths else "nothing"
        raise UsageError(place=shorten(pattern, LONG), expected=f"the names of archives ({known})", found=other)
    kind = _only_kind(pattern, found)
    root = Path(os.path.commonpath([path.parent for path in found[kind]]))
    return _source(kind, root, found[kind], recipe, len(paths) - sum(map(len, found.values())), files)


def expand_braces(pattern: str) -> Iterator[str]:
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


def _source(
    kind: ArchiveKind, root: Path, paths: Sequence[Path], recipe: Recipe, ignored: int, files: LocalFiles
) -> Source:
    """Return the source for archives below a folder, in the order of their paths' bytes."""
    paths = sorted(paths, key=lambda path: os.fsencode(path.relative_to(root).as_posix()))
    archives = [ArchiveFile(_name(root, path), path) for path in paths]
    keys = None if recipe.keys is None else KeyTable.read(Path(recipe.keys), recipe.text)
    pattern = None if recipe.fields_from_path is None else PathPattern(recipe.fields_from_path)
    return ArchiveSource(kind, archives, column_types(recipe), keys, pattern, ignored, files, media_named(recipe.media))


def _name(root: Path, path: Path) -> str:
    """Return the name of an archive, which is its path below a folder. For an LMDB folder, it is the folder's path."""
    named = path.parent if path.name == DATA_NAME else path
    return root.name if named == root else named.relative_to(root).as_posix()
