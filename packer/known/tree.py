"""A published dataset's folder: its files, its lists, and what is found in it."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packer.jobs.progress import ProgressListener, Stage
from packer.sources.item import is_picture, is_video
from packer.sources.walking import walk
from shardspec.errors import BuildError, UsageError, system_reason
from shardspec.wording import did_you_mean, found_instead, list_some, shorten

COLUMNS = (
    "path",
    "label",
    "split",
    "original",
    "mask",
    "method",
    "compression",
    "person",
    "donor",
    "group",
    "clip",
    "text",
    "duration",
)
"""The columns that a list may have, in this order. docs/datasets.md says what each holds."""

NO_LISTS = "none"
"""The value of the option `lists` that leaves out the official lists, and so the column ``split``."""

_LIST_BYTES = 64 * 2**20
_JSON_BYTES = 2**30
_SIDECAR_BYTES = 2**20

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """Selection of what to list. Empty: everything that the dataset's rules allow."""

    compression: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    lists: Path | None = None
    no_lists: bool = False

    def wants(self, split: str) -> bool:
        """Return whether a split is listed."""
        return not self.splits or split in self.splits


@dataclass
class Found:
    """Content of a dataset's folder.

    Attributes
    ----------
    rows : list of dict
        A row for each picture or video; None, or no key, where a value is missing.
    missing : list of str
        Files that the dataset's lists name, and that are not there. Paths here are relative to the root.
    unlisted : list of str
        Pictures and videos that are there, and that no list names.
    notes : list of str
        What the user has to know, a sentence each.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def forget_unlisted(self, absent: Sequence[str]) -> None:
        """Name no unlisted files if lists are absent that nobody asked for: they may name these files."""
        if absent:
            self.unlisted.clear()
            self.notes.append(f"files that no list names are not counted, since {list_some(absent)} is not there")


class Tree:
    """A dataset's folder. Paths given and returned are relative to its root, with ``/``; ``""`` is the root.

    Attributes
    ----------
    root : Path
    doubles : list of str
        Videos that `videos` left out, since another one beside them has the same name but for its suffix.
    """

    def __init__(self, root: Path, listener: ProgressListener) -> None:
        self.root = root
        self.doubles: list[str] = []
        self._listener = listener

    def locate(self, fits: Callable[[str], bool], expected: str, deeper: Sequence[str] = ()) -> str:
        """The folder that holds the dataset: the root, one of `deeper`, or the only folder in the root that fits.

        Raises
        ------
        UsageError
            If none fits, or several do.
        """
        inside = self.folders("")
        for folder in ("", *deeper):
            if fits(folder):
                return folder
        fitting = [name for name in inside if fits(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UsageError(f"{self.root}: expected one dataset, found several: give one of {list_some(fitting)}")
        found = list_some([f"{name}/" for name in inside] + self.files("", lambda _: True)) or "an empty folder"
        above = f": give the folder above, {self.root.parent}" if fits("..") else ""
        raise UsageError(f"{self.root}: expected {expected}, found {found}{above}")

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, sorted; none if there is no such folder."""
        return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def files(self, folder: str, wanted: Callable[[str], bool]) -> list[str]:
        """The names of some files in a folder, sorted; none if there is no such folder."""
        return sorted(entry.name for entry in self._entries(folder) if wanted(entry.name) and not entry.is_dir())

    def videos(self, folder: str) -> dict[str, str]:
        """The videos in a folder: paths by their names without suffix. Of two with one name, it is the .mp4 file."""
        found: dict[str, str] = {}
        for name in sorted(self.files(folder, is_video), key=lambda name: not name.lower().endswith(".mp4")):
            path = join(folder, name)
            if found.setdefault(PurePosixPath(name).stem, path) != path:
                self.doubles.append(path)
        return dict(sorted(found.items()))

    def walk(self, found: Found) -> Iterator[tuple[str, list[str]]]:
        """Every folder below the root, with the names of its files; links are not followed, and `found` says so."""
        links = []
        for folder, folders, files in walk(self.root, self._fail):
            relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
            relative = "" if relative == "." else relative
            links += [join(relative, name) for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield relative, sorted(name for name in files if not name.startswith("."))
        if links:
            found.notes.append(f"links to folders are not followed: {list_some(links)}")

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        path = self.root / folder
        try:
            with os.scandir(path) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._fail(error)
            raise

    def _fail(self, error: OSError) -> None:
        raise BuildError(f"{error.filename}: cannot be listed: {system_reason(error)}") from error

    def has(self, path: str) -> bool:
        """Return whether a file is there."""
        try:
            return (self.root / path).is_file()
        except (OSError, ValueError):
            return False

    def each(self, things: Sequence[T], unit: str) -> Iterator[T]:
        """Yield things, and report progress."""
        with Stage(self._listener, "listing", len(things), unit) as stage:
            for thing in things:
                yield thing
                stage.advance()

    def official_list(self, choice: Choice, name: str, places: Iterable[str] = ("",)) -> Path | None:
        """An official list by its name: the file that the option `lists` gives or that lies there, or in `places`."""
        if choice.lists is None:
            return next((self.root / place / name for place in places if self.has(join(place, name))), None)
        path = choice.lists / name if choice.lists.is_dir() else choice.lists
        return path if path.is_file() else None

    def read_sidecar(self, path: str) -> list[str]:
        """The lines of a small text file; none where there is none, or where it is too large to be one."""
        try:
            with (self.root / path).open("rb") as file:
                data = file.read(_SIDECAR_BYTES + 1)
        except (OSError, ValueError):
            return []
        return [] if len(data) > _SIDECAR_BYTES else data.decode("utf-8", "replace").splitlines()


def join(*parts: str) -> str:
    """Parts of a path, joined by ``/``; empty ones are left out."""
    return "/".join(part for part in parts if part)


def relative_path(name: str, where: object) -> str:
    r"""The path that a list names, with ``/`` for ``\``.

    Raises
    ------
    UsageError
        If it is absolute or leads upwards.
    """
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UsageError(f"{where}: expected paths below the dataset's folder, found {shorten(name)}")
    return path.as_posix()


def read_lines(path: Path) -> list[str]:
    """The lines of a list, without spaces around them.

    Raises
    ------
    UsageError
        If the file cannot be read, is too large, or is not UTF-8.
    """
    try:
        return [line.strip() for line in _read(path, _LIST_BYTES).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: expected text in UTF-8, found the byte 0x{error.object[error.start]:02x}") from error


def read_csv(path: Path) -> list[list[str]]:
    """The rows of a list with commas, its empty lines left out.

    Raises
    ------
    UsageError
        If the file cannot be read, is too large, or is not CSV in UTF-8.
    """
    try:
        return [row for row in csv.reader(read_lines(path)) if row]
    except csv.Error as error:
        raise UsageError(f"{path}: expected CSV, {error}") from error


def read_json(path: Path, kind: type[T]) -> T:
    """The document of a JSON file.

    Raises
    ------
    UsageError
        If the file cannot be read, is too large, is not JSON, or holds another kind of document.
    """
    try:
        document = json.loads(_read(path, _JSON_BYTES).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected JSON, {found_instead(error)}") from error
    if not isinstance(document, kind):
        expected = "an object" if kind is dict else "a list"
        raise UsageError(f"{path}: expected {expected}, found {type(document).__name__}")
    return document


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {system_reason(error)}") from error
    if len(data) > most:
        raise UsageError(f"{path}: expected a list of at most {most // 2**20} MiB, found a larger file")
    return data


def pick(option: str, wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the existing names that an option selects; all of them if it selects none.

    Raises
    ------
    UsageError
        If the option names something else.
    """
    for name in wanted:
        if name not in there:
            like = did_you_mean(name, there)
            raise UsageError(
                f"{option}: expected some of {list_some(list(there)) or 'none'}, found {shorten(name)}{like}"
            )
    return [name for name in there if not wanted or name in wanted]


def is_media(name: str) -> bool:
    """Return whether a file name has the suffix of a picture or a video."""
    return is_picture(name) or is_video(name)


def sort_by_original(found: Found) -> None:
    """Put forgeries right behind their original, so that a build that cuts them alike searches it only once."""
    found.rows.sort(key=lambda row: (row["original"] or row["path"], row["label"] == "fake", row["path"]))
