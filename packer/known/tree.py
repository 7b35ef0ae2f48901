"""The folder of a published dataset: its files, its lists, and the rows found in it.

Functions that read a list raise `UsageError` if the file cannot be read, is too large, or has another format.
"""

import csv
import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packer.jobs.progress import ProgressListener, Stage
from packer.sources.archives.zipped import ZippedFile, ZippedFiles
from packer.sources.column_types import parse_intervals
from packer.vision.media import VIDEO
from packer.workspace.shared_files import listing_folders
from shardspec.errors import UsageError, system_reason
from shardspec.wording import counted, did_you_mean, found_instead, list_some, shorten

INTERVALS = ("fake_periods", "fake_segments", "visual_fake_segments", "audio_fake_segments")
"""Columns of intervals in seconds, ``[[start, end], …]``, for ``--intervals``."""

COLUMNS = (
    "path",
    "label",
    "split",
    "original",
    "mask",
    "method",
    "modified",
    *INTERVALS,
    "compression",
    "person",
    "donor",
    "group",
    "gender",
    "race",
    "clip",
    "text",
    "duration",
)
"""The columns that a list may have, in this order. docs/howto/datasets.md describes them."""

NO_LISTS = "none"
"""Value of the option `lists` that ignores the official lists, so that rows have no split."""

_LIST_BYTES = 64 * 2**20
_JSON_BYTES = 2**30
_SIDECAR_BYTES = 2**20

T = TypeVar("T")

ListFile = Path | ZippedFile
"""A list of a dataset, in its folder or in a zip file there."""


@dataclass(frozen=True)
class DatasetFilter:
    """Selection of files to list; an empty tuple selects all."""

    compression: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    lists: Path | None = None
    no_lists: bool = False

    def wants(self, split: str) -> bool:
        """Return whether a split is selected."""
        return not self.splits or split in self.splits

    def pick(self, option: str, known: Sequence[str]) -> list[str]:
        """Return the names that the option `methods` or `compression` selects; `UsageError` for unknown ones."""
        wanted = getattr(self, option)
        for name in wanted:
            if name not in known:
                like = did_you_mean(name, known)
                raise UsageError(
                    option=option,
                    expected=f"some of {list_some(list(known)) or 'none'}",
                    found=f"{shorten(name)}{like}",
                )
        return [name for name in known if not wanted or name in wanted]

    def pick_compressions(self, known: Sequence[str], place: str) -> list[str]:
        """Return the compressions to list. If there are several, the user must choose."""
        if len(known) > 1 and not self.compression:
            raise UsageError(
                option="compression",
                expected=f"a choice, since {', '.join(known)} are {place}",
                hint=f"--compression {known[0]}, or --compression {','.join(known)} for all",
            )
        return self.pick("compression", known)


@dataclass
class TreeContents:
    """Content of a dataset's folder. Paths are relative to the root.

    Attributes
    ----------
    rows : list of dict
        A row for each image or video. Missing values are None or absent.
    missing : list of str
        Files that the dataset's lists name but that do not exist.
    unlisted : list of str
        Images and videos that no list names.
    repeated : list of str
        Files that a list names again; the first entry counts.
    malformed : list of str
        Files whose intervals are malformed.
    notes : list of str
        Sentences for the user.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def forget_unlisted(self, absent: Sequence[str]) -> None:
        """Report no unlisted files if lists are absent, because these may name the files."""
        if absent:
            self.unlisted.clear()
            self.notes.append(f"files that no list names are not counted, since {list_some(absent)} does not exist")

    def read_intervals(self, value: object, name: str) -> list[list[float]] | None:
        """Return intervals ``[[start, end], …]``; None, with the file's name recorded, if they are malformed."""
        try:
            return None if value is None else parse_intervals(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            self.malformed.append(name)
            return None

    def note_leaks(self, where: str, what: str, splits: Collection[Collection[str]]) -> None:
        """Note how many things are in two splits, given the splits of each."""
        for one, two in combinations(("train", "val", "test"), 2):
            if both := sum({one, two} <= {*of} for of in splits):
                self.notes.append(f"LEAK: {where} {counted(both, what)} of {one} in {two} as well")

    def drop_missing_originals(self, there: Collection[str]) -> None:
        """Forget the originals that do not exist."""
        for row in self.rows:
            if row.get("original") not in there:
                row["original"] = None

    def note_new_classes(self, split: str, classes: set[str], train: set[str]) -> None:
        """Note the classes of a split that train, if it has any classes, lacks."""
        if train and classes - train:
            self.notes.append(f"classes of {split} that train lacks: {list_some(sorted(classes - train))}")

    def sort_by_original(self) -> None:
        """Put forgeries after their original, so that a build with --boxes-from original searches it only once."""
        self.rows.sort(key=lambda row: (row.get("original") or row["path"], row.get("label") == "fake", row["path"]))


class Tree:
    """A dataset's folder. Paths passed and returned are relative to its root, with ``/``; ``""`` is the root.

    Files in zip files directly in the folder count as if these were unpacked there.

    Attributes
    ----------
    root : Path
    doubles : list of str
        Videos left out by `videos` because another one has the same name with a different suffix.
    """

    def __init__(self, root: Path, listener: ProgressListener) -> None:
        self.root = root
        self.doubles: list[str] = []
        self._listener = listener
        self._zipped = ZippedFiles(root).by_path
        self._zipped_in: dict[str, dict[str, bool]] = defaultdict(dict)
        """Names in each folder of zip files; True for a folder."""
        for path in self._zipped:
            above, is_folder = path, False
            while above and above.rpartition("/")[2] not in self._zipped_in[above.rpartition("/")[0]]:
                folder, _, name = above.rpartition("/")
                self._zipped_in[folder][name] = is_folder
                above, is_folder = folder, True

    def locate(self, fits: Callable[[str], bool], expected: str, deeper: Sequence[str] = ()) -> str:
        """Find the folder that holds the dataset: the root, one of `deeper`, or the only folder in the root that fits.

        Raises
        ------
        UsageError
            If none or several fit.
        """
        inside = self.folders("")
        for folder in ("", *deeper):
            if fits(folder):
                return folder
        fitting = [name for name in inside if fits(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UsageError(
                place=self.root, expected="one dataset", found="several", hint=f"give one of {list_some(fitting)}"
            )
        found = list_some([f"{name}/" for name in inside] + self.files("", lambda _: True)) or "an empty folder"
        above = f": give the folder above, {self.root.parent}" if fits("..") else ""
        raise UsageError(place=self.root, expected=expected, found=f"{found}{above}")

    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders in a folder, which need not exist."""
        return sorted(name for name, is_folder in self._entries(folder).items() if is_folder)

    def all_videos(self, found: TreeContents, top: str = "") -> set[str]:
        """Return the paths of all videos below a folder, which need not exist."""
        return {join(folder, name) for folder, names in self.walk(found, top) for name in names if VIDEO.holds(name)}

    def files(self, folder: str, wanted: Callable[[str], object]) -> list[str]:
        """Return the sorted names of the wanted files in a folder, which need not exist."""
        return sorted(name for name, is_folder in self._entries(folder).items() if wanted(name) and not is_folder)

    def paths(self, folder: str, wanted: Callable[[str], object]) -> list[str]:
        """Return the sorted paths of the wanted files in a folder, which need not exist."""
        return [join(folder, name) for name in self.files(folder, wanted)]

    def videos(self, folder: str) -> dict[str, str]:
        """Return the paths of the videos in a folder by name without suffix. An .mp4 file takes precedence."""
        found: dict[str, str] = {}
        for name in sorted(self.files(folder, VIDEO.holds), key=lambda name: not name.lower().endswith(".mp4")):
            path = join(folder, name)
            if found.setdefault(PurePosixPath(name).stem, path) != path:
                self.doubles.append(path)
        return dict(sorted(found.items()))

    def walk(self, found: TreeContents, top: str = "") -> Iterator[tuple[str, list[str]]]:
        """Yield every folder below `top`, and itself, with the names of its files. Links are not followed, but noted.

        `top` need not exist.
        """
        links = []
        waiting = [top.strip("/")]
        while waiting:
            folder = waiting.pop()
            entries = self._entries(folder)
            below = sorted(join(folder, name) for name, is_folder in entries.items() if is_folder)
            links += [path for path in below if (self.root / path).is_symlink()]
            if entries or (self.root / folder).is_dir():
                yield folder, sorted(name for name, is_folder in entries.items() if not is_folder)
            waiting += [path for path in reversed(below) if path not in links]
        if links:
            found.notes.append(f"links to folders are not followed: {list_some(links)}")

    def _entries(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, which need not exist, without hidden ones; True for a folder."""
        names = dict(self._zipped_in.get(folder, {}))
        with (
            listing_folders(),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.root / folder) as entries,
        ):
            names |= {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
        return names

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        try:
            return path in self._zipped or (self.root / path).is_file()
        except (OSError, ValueError):
            return False

    def file(self, path: str) -> ListFile:
        """Return a file, for the functions that read lists. It need not exist."""
        whole = self.root / path
        return whole if whole.exists() else self._zipped.get(path, whole)

    def each(self, things: Sequence[T], unit: str) -> Iterator[T]:
        """Yield things, and report progress."""
        with Stage(self._listener, "listing", len(things), unit) as stage:
            for thing in things:
                yield thing
                stage.advance()

    def official_list(self, choice: DatasetFilter, name: str, places: Iterable[str] = ("",)) -> ListFile | None:
        """Find an official list in the option `lists`, or by its name in `places`."""
        if choice.lists is None:
            return next((self.file(join(place, name)) for place in places if self.has(join(place, name))), None)
        path = choice.lists / name if choice.lists.is_dir() else choice.lists
        return path if path.is_file() else None

    def missing_list(self, choice: DatasetFilter, name: str, advice: str) -> UsageError:
        """Return the error for an official list that does not exist."""
        return UsageError(
            place=choice.lists or self.root,
            expected=f"the official list {name}",
            found="none",
            hint=f"{advice}; give it with --lists, or --lists none to list without splits",
        )

    def read_sidecar(self, path: str, key: str) -> str | None:
        """Return the value of the first line ``Key: value`` in a small text file; None if there is no such line."""
        with suppress(UsageError):
            for line in _read(self.file(path), _SIDECAR_BYTES).decode("utf-8", "replace").splitlines():
                name, separator, value = line.partition(":")
                if separator and name.strip().lower() == key:
                    return value.strip()
        return None


def join(*parts: str) -> str:
    """Join the parts of a path that are not empty."""
    return "/".join(part for part in parts if part)


def relative_path(name: str, where: object) -> str:
    r"""Return a path from a list with ``/`` for ``\``; `UsageError` if it is absolute or leads upwards."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UsageError(place=where, expected="paths below the dataset's folder", found=shorten(name))
    return path.as_posix()


def read_lines(path: ListFile) -> list[str]:
    """Read the lines of a list, without surrounding spaces. Empty lines are kept."""
    try:
        return [line.strip() for line in _read(path, _LIST_BYTES).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(
            place=path, expected="text in UTF-8", found=f"the byte 0x{error.object[error.start]:02x}"
        ) from error


def read_rows(path: ListFile, columns: Sequence[str], expected: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table with a header. Names are in lower case without spaces; cells have none around them.

    Cells are separated by tabs, semicolons or commas, whichever the header has first in this order.
    """
    lines = read_lines(path)
    mark = next((mark for mark in "\t;" if lines and mark in lines[0]), ",")
    try:
        header, *rows = [row for row in csv.reader(lines, delimiter=mark) if row] or [[]]
    except csv.Error as error:
        raise UsageError(f"expected CSV, {error}", place=path) from error
    names = [name.replace(" ", "").lower() for name in header]
    if not set(columns) <= set(names):
        raise UsageError(place=path, expected=f"the columns {expected}", found=list_some(header) or "none")
    for cells in rows:
        yield dict.fromkeys(names, "") | dict(zip(names, map(str.strip, cells), strict=False))


def read_entries(tree: Tree, path: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list, with progress."""
    document: Sequence[Any] = read_json(tree.file(path), list)
    for entry in tree.each(document, "videos"):
        if not isinstance(entry, dict):
            raise UsageError(place=path, expected="an object for each video", found=shorten(entry))
        yield entry


def read_json(path: ListFile, kind: type[T]) -> T:
    """Read a JSON file that holds a ``dict`` or a ``list``."""
    try:
        document = json.loads(_read(path, _JSON_BYTES).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"expected JSON, {found_instead(error)}", place=path) from error
    if not isinstance(document, kind):
        expected = "an object" if kind is dict else "a list"
        raise UsageError(place=path, expected=expected, found=type(document).__name__)
    return document


def _read(path: ListFile, most: int) -> bytes:
    try:
        if isinstance(path, ZippedFile):
            data = path.read() if path.entry.size <= most else bytes(most + 1)
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {system_reason(error)}", place=path) from error
    if len(data) > most:
        raise UsageError(place=path, expected=f"a list of at most {most // 2**20} MiB", found="a larger file")
    return data


def text_of(value: object) -> str | None:
    """Return a text or an integer of a list as text; None for anything else, and for an empty text."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
