"""The archives that a path, a folder or a pattern stands for."""

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from packer.recipe import Recipe
from packer.sources.archives import lmdb, parquet, recordio
from packer.sources.archives.keys import KeyTable
from packer.sources.archives.listing import Archive, ArchiveSource, Found, Place, relative_archives
from packer.sources.archives.tar import is_tar
from packer.sources.archives.webdataset import WebDatasetSource
from packer.sources.base import Source
from packer.sources.packed import is_packed
from packer.sources.requested_types import column_types
from packer.sources.walking import walk
from packer.vision.media import medium_of
from shardspec.errors import BuildError, UsageError, system_reason
from shardspec.layout import MANIFEST_NAME
from shardspec.wording import LONG, counted, list_some, shorten

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)\Z")
_EXPANDED_MAX = 100_000


class _Kind(NamedTuple):
    """A kind of archive: what it is called, how a file name is known, and its source."""

    name: str
    holds: Callable[[str], bool]
    source: type[ArchiveSource]


_KINDS: Mapping[str, _Kind] = {
    "tar": _Kind("tar files", is_tar, WebDatasetSource),
    "rec": _Kind("RecordIO files", lambda name: name.lower().endswith(recordio.SUFFIX), recordio.RecordIOSource),
    "lmdb": _Kind("LMDB files", lambda name: name.lower().endswith(lmdb.SUFFIXES), lmdb.LMDBSource),
    "parquet": _Kind("Parquet files", lambda name: name.lower().endswith(parquet.SUFFIX), parquet.ParquetSource),
}

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".rec", ".mdb", ".lmdb", ".parquet")
_BESIDE = (".idx", "lock.mdb", "-lock")
"""Ends of the names of files that belong to an archive beside them."""


def kind_of(name: str) -> str | None:
    """The kind of archive that a file is by its name; None for any other file."""
    return next((kind for kind, what in _KINDS.items() if what.holds(name) and not name.endswith("lock.mdb")), None)


def open_file(path: Path, recipe: Recipe) -> Source | None:
    """The source of one archive; None if the file is none, or a Parquet table of paths."""
    kind = kind_of(path.name)
    if kind is None or (kind == "parquet" and not parquet.holds_pictures(path, recipe.path_column)):
        return None
    path = path.absolute()
    name = path.parent.name if path.name == lmdb.DATA_NAME else path.name
    return _source(kind, [Archive(name, path)], recipe, 0)


def list_archive(path: Path, name: str, path_column: str) -> Found:
    """List one archive, whose items are named after it.

    Raises
    ------
    OSError, ShardspecError
        If it cannot be listed.
    """
    kind, status = kind_of(path.name), path.stat()
    if kind is None:
        raise UsageError(f"{path}: expected an archive ({', '.join(SUFFIXES)})")
    archive = Archive(name, path)
    return _KINDS[kind].source([archive]).lister(path_column)(Place(archive, status.st_size, status.st_mtime_ns))


def open_folder(folder: Path, recipe: Recipe) -> Source | None:
    """The source of a folder that holds archives, and no picture or video that is a file; None for any other folder.

    Raises
    ------
    UsageError
        If there are archives of several kinds.
    BuildError
        If a folder cannot be listed.
    """
    folder = folder.resolve()
    found: dict[str, list[Path]] = {}
    ignored = 0
    for name, folders, files in walk(folder, _fail):
        folders[:] = [one for one in folders if not one.startswith(".")]
        if MANIFEST_NAME in files and is_packed(Path(name)):  # its shards are no archives of pictures
            folders.clear()
            ignored += len(files)
            continue
        for file in files:
            if file.startswith("."):
                ignored += 1
            elif medium_of(file) is not None:
                return None
            elif (kind := kind_of(file)) is not None:
                found.setdefault(kind, []).append(Path(name) / file)
            elif not file.endswith(_BESIDE):
                ignored += 1
    if not found:
        return None
    kind = _only_kind(folder, found)
    archives = relative_archives(folder, found[kind])
    if kind == "lmdb":
        archives = [_name_lmdb(folder, archive) for archive in archives]
    return _source(kind, archives, recipe, ignored)


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern of file names and not the name of a file."""
    return glob.has_magic(text) or bool(_BRACES.search(text))


def open_pattern(pattern: str, recipe: Recipe) -> Source:
    """The source of the archives that a pattern names: ``*``, ``?``, ``[...]``, ``**``, ``{a,b}`` and ``{000..099}``.

    Raises
    ------
    UsageError
        If it names no archive, or archives of several kinds, or a file in braces is not there.
    """
    paths: dict[str, Path] = {}
    for one in expand_braces(pattern):
        names = glob.glob(one, recursive=True) if glob.has_magic(one) else [one]  # noqa: PTH207 -- from any folder
        paths |= {os.path.abspath(name): Path(name).absolute() for name in names}  # noqa: PTH100 -- without links
    found: dict[str, list[Path]] = {}
    missing = [str(path) for path in paths.values() if not path.exists()]
    if missing:
        raise UsageError(f"{shorten(pattern)}: expected files, found none at {list_some(missing)}")
    for named in paths.values():
        inside = named / lmdb.DATA_NAME
        path = inside if inside.is_file() else named
        if path.is_file() and (kind := kind_of(path.name)) is not None:
            found.setdefault(kind, []).append(path)
    if not found:
        known, other = ", ".join(SUFFIXES), counted(len(paths), "other file") if paths else "nothing"
        raise UsageError(f"{shorten(pattern, LONG)}: expected the names of archives ({known}), found {other}")
    kind = _only_kind(pattern, found)
    root = Path(os.path.commonpath([path.parent for path in found[kind]]))
    archives = relative_archives(root, found[kind])
    if kind == "lmdb":
        archives = [_name_lmdb(root, archive) for archive in archives]
    ignored = len(paths) - sum(map(len, found.values()))
    return _source(kind, archives, recipe, ignored)


def expand_braces(pattern: str) -> Iterator[str]:
    """The texts that a pattern with braces stands for.

    Raises
    ------
    UsageError
        If there are more than 100,000.
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _choices(piece) for number, piece in enumerate(pieces)]
    texts = ["".join(chosen) for chosen in islice(product(*choices), _EXPANDED_MAX + 1)]
    if len(texts) > _EXPANDED_MAX:
        raise UsageError(f"{shorten(pattern)}: expected at most {_EXPANDED_MAX} files, found more")
    yield from texts


def _choices(text: str) -> Sequence[str]:
    numbers = _RANGE.match(text)
    if numbers is None:
        return text.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, min(last, first + _EXPANDED_MAX) + 1)]


def _name_lmdb(root: Path, archive: Archive) -> Archive:
    """An LMDB is called as its folder is."""
    if archive.path.name != lmdb.DATA_NAME:
        return archive
    below = archive.path.parent.relative_to(root).as_posix()
    return Archive(root.name if below == "." else below, archive.path)


def _only_kind(where: Path | str, found: Mapping[str, Sequence[Path]]) -> str:
    if len(found) > 1:
        what = " and ".join(f"{len(paths)} {_KINDS[kind].name}" for kind, paths in found.items())
        raise UsageError(f"{where}: expected archives of one kind, found {what}: name some with a pattern ('*.tar')")
    return next(iter(found))


def _source(kind: str, archives: Sequence[Archive], recipe: Recipe, ignored: int) -> Source:
    keys = None if recipe.keys is None else KeyTable.read(Path(recipe.keys))
    return _KINDS[kind].source(archives, column_types(recipe), keys, ignored)


def _fail(error: OSError) -> None:
    raise BuildError(f"{shorten(str(error.filename))}: cannot be listed: {system_reason(error)}") from error
