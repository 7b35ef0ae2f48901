"""Boxes from the user in place of a detector: JSON as the DFDC tools write it, a table, or a packed dataset.

The boxes of an item are looked up by its name, which is its path relative to the source (``docs/howto/boxes.md``).
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.files import is_packed
from packer.sources.packed import check_digests
from packer.sources.tables.base import TABLES, is_table
from packer.steps.faces.frame import NO_TRACK, FrameFaces
from packer.vision.detect.interface import are_boxes
from packer.workspace.shared_files import walk
from shardspec.errors import ItemError, UsageError, system_reason
from shardspec.layout import REJECTS_NAME, Layout
from shardspec.manifest import sha256_json
from shardspec.registry import ImportTarget, resolve
from shardspec.wording import counted, found_instead, shorten

GIVEN_SCORE = 1.0
"""Score of a box that has none in its file."""

_FRAME = re.compile(r"[0-9]{1,15}\Z", re.ASCII)


_KINDS: Mapping[str, ImportTarget] = {
    "packed dataset": ImportTarget("packer.steps.faces.packed_boxes:PackedBoxes"),
    "table": ImportTarget("packer.steps.faces.box_table:TableBoxes"),
}


class Boxes(ABC):
    """Boxes of many items.

    Attributes
    ----------
    path : Path
        File or folder of the boxes.
    no_box : str
        The reason for frames without an entry.
    floors : dict of str to float
        Options with which the boxes were selected, and their values. Faces below these values are missing.
    """

    no_box = "the boxes have no entry for it"
    floors: Mapping[str, float] = {}

    def __init__(self, path: Path, scale: float) -> None:
        self.path = path
        self.scale = scale

    @property
    def has_points(self) -> bool:
        """True if any face has points."""
        return False

    def names(self) -> Iterable[str]:
        """Return the names of the items that have boxes."""
        raise NotImplementedError

    def check(self, names: Sequence[str]) -> tuple[str, ...]:
        """Compare the boxes with the names of all items, and describe boxes that belong to no item.

        Raises
        ------
        UsageError
            If the boxes belong to no item at all, or two items would get the same boxes.
        """
        entries = set(self.names())
        if names and not entries.intersection(names):
            example = next(iter(self.names()), None)
            found = "found none" if example is None else f"found others, such as {example!r}"
            raise UsageError(f"expected boxes under the items' paths, such as {names[0]!r}, {found}", place=self.path)
        others = sorted(entries.difference(names))
        if not others:
            return ()
        count = counted(len(others), "item")
        return (f"{self.path.name}: boxes of {count} that are not in the source, such as {shorten(others[0])}",)

    @abstractmethod
    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces | str]:
        """Return the faces of an item by frame index, or the reason why a frame has none. Other frames have no face.

        Parameters
        ----------
        file_bytes : int
            Size of the item's file, 0 if there is none.

        Raises
        ------
        ItemError
            If there are no boxes under that name, they cannot be read, or they belong to another file.
        """


def open_boxes(path: str, scale: float) -> Boxes:
    """Open a file or folder of boxes, whose coordinates are multiplied by `scale`.

    Raises
    ------
    UsageError
        If the path does not exist, is of an unknown kind, or its content does not fit its kind.
    DatasetError
        If the path is a packed dataset that is unfinished or cannot be read.
    MissingDependencyError
        If the library for a table of that kind is not installed.
    """
    place = Path(path)
    if is_packed(place) or Layout(place).build.is_dir():  # opening an unfinished dataset reports that
        packed: Boxes = resolve("boxes", "packed dataset", _KINDS)(place, scale)
        return packed
    if place.is_dir():
        return JsonFolder(place, scale)
    if not place.is_file():
        raise UsageError(option="boxes", expected="a file or folder of boxes", found=f"nothing at {path}")
    if place.suffix.lower() == ".json":
        return JsonFile(place, scale)
    if not is_table(place):
        raise UsageError(
            option="boxes", expected=f"a folder, .json, {', '.join(sorted(TABLES))}", found=f"{place.name!r}"
        )
    table: Boxes = resolve("boxes", "table", _KINDS)(place, scale)
    return table


def digest_file_or_folder(path: str) -> str:
    """Return the SHA-256 of a file, or of the names and contents of all ``.json`` files below a folder.

    The digest of a packed dataset covers its samples, rejects and recipes; the shards are compared with the manifest.

    Raises
    ------
    UsageError
        If the file or folder cannot be read.
    DatasetError
        If a packed dataset differs from its manifest.
    """
    place = Path(path)
    if is_packed(place):
        return _digest_packed(Layout(place))
    try:
        if not place.is_dir():
            with place.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for name in sorted(_json_files(place)):
            content = hashlib.sha256((place / name).read_bytes()).hexdigest()
            digest.update(json.dumps([name, content]).encode("ascii"))
        return digest.hexdigest()
    except OSError as error:
        raise UsageError(f"cannot be read: {system_reason(error)}", place=path) from error


def _digest_packed(layout: Layout) -> str:
    manifest = layout.load()
    check_digests(layout, manifest)
    rejects = manifest.find_file(REJECTS_NAME)
    if rejects is not None:
        layout.check_digest(rejects)
    recipes = [dict(generation.recipe) for generation in manifest.generations]
    return sha256_json([manifest.digest, None if rejects is None else rejects.sha256, recipes])


def _json_files(root: Path) -> Iterator[str]:
    """Yield the names of the ``.json`` files below a folder. Follow links, but enter no folder twice."""
    entered: set[tuple[int, int]] = set()
    for folder, below, files in walk(root, followlinks=True):
        below.sort()  # if two links lead to a folder, always follow the same one
        status = os.stat(folder)  # not realpath, which looks at every parent of every folder
        if (status.st_dev, status.st_ino) in entered:
            below.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        yield from ((Path(folder) / name).relative_to(root).as_posix() for name in files if name.endswith(".json"))


class JsonFolder(Boxes):
    """One JSON file per item: for ``a/clip.mp4`` the first of ``a/clip.mp4.json``, ``a/clip.json``, ``clip.json``."""

    def check(self, names: Sequence[str]) -> tuple[str, ...]:
        taken: dict[Path, str] = {}
        for name in names:
            path = self._find(name)
            if path is not None and taken.setdefault(path, name) != name:
                raise UsageError(
                    (
                        f"{path} would be for {taken[path]!r} and for {name!r}: expected one file for each, such "
                        f"as {PurePosixPath(name).with_suffix('.json')}"
                    ),
                    option="boxes",
                )
        if names and not taken:
            raise UsageError(
                option="boxes", expected=f"files such as {self._candidates(names[0])[1]}", found="none for any item"
            )
        return ()

    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces]:
        path = self._find(name)
        if path is None:
            raise ItemError(place="boxes", expected=self._candidates(name)[1], found="no such file")
        return _parse_frames(_read_json(path, f"boxes: {path.name}", ItemError), path.name, self.scale)

    def _find(self, name: str) -> Path | None:
        # Path.is_file raises over a long name.
        found = (path for path in self._candidates(name) if os.path.isfile(path))  # noqa: PTH113
        return next(found, None)

    def _candidates(self, name: str) -> list[Path]:
        item = PurePosixPath(name.lstrip("/"))
        return [self.path / f"{item}.json", self.path / item.with_suffix(".json"), self.path / f"{item.stem}.json"]


class JsonFile(Boxes):
    """One JSON object with an entry for each item, by the item's name."""

    def __init__(self, path: Path, scale: float) -> None:
        super().__init__(path, scale)
        document = _read_json(path, str(path), UsageError)
        if not isinstance(document, dict):
            raise UsageError(place=path, expected="an object of items", found=type(document).__name__)
        self._items: dict[str, Any] = document

    def names(self) -> Iterable[str]:
        return self._items

    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces]:
        if name not in self._items:
            raise ItemError(place="boxes", expected=f"an entry {name!r} in {self.path.name}", found="none")
        return _parse_frames(self._items[name], f"{self.path.name}, {name!r}", self.scale)


def _read_json(path: Path, where: str, kind: type[ItemError | UsageError]) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise kind(f"{where}: expected JSON, found: {system_reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise kind(f"{where}: expected JSON, {found_instead(error)}") from error


def _parse_frames(document: Any, where: str, scale: float) -> dict[int, FrameFaces]:
    """Read the boxes by frame from ``{"0": [[x0, y0, x1, y1], ...], "10": null}``."""
    if not isinstance(document, dict):
        raise ItemError(f"boxes: {where}: expected an object of frames, found {type(document).__name__}")
    out = {}
    for key, value in document.items():
        if not _FRAME.match(key):
            raise ItemError(f"boxes: {where}: expected the number of a frame, found {key!r}")
        if int(key) in out:
            raise ItemError(f"boxes: {where}: expected each frame once, found {key!r} again")
        boxes = _read_boxes(value)
        if boxes is None:
            raise ItemError(
                f"boxes: {where}, frame {key}: expected null or boxes [x0, y0, x1, y1] with x0 < x1 and y0 < y1, "
                f"found {str(value)[:100]}"
            )
        count = len(boxes)
        out[int(key)] = FrameFaces(
            (boxes * scale).astype(np.float32),
            np.full(count, GIVEN_SCORE, np.float32),
            np.full((count, 5, 2), np.nan, np.float32),
        )
    return out


def _read_boxes(value: Any) -> npt.NDArray[np.float64] | None:
    """Return the boxes of one frame, (N, 4); None if the value is not a list of boxes."""
    if value is None or value == []:
        return np.zeros((0, 4))
    try:
        boxes = np.array(value)
    except ValueError:  # rows of different lengths
        return None
    if boxes.dtype.kind not in "iuf":
        return None
    boxes = boxes.astype(np.float64)
    return boxes if boxes.ndim == 2 and boxes.shape[1] == 4 and are_boxes(boxes).all() else None


def split_frames(frames: npt.NDArray[Any]) -> list[npt.NDArray[np.intp]]:
    """Return the row numbers of each frame, given the frames of rows in ascending order."""
    return np.split(np.arange(len(frames)), np.flatnonzero(np.diff(frames)) + 1) if len(frames) else []


def repeated_tracks(tracks: npt.NDArray[Any], *frame: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows repeat a track within a frame. `frame` holds the columns that identify the frame."""
    order = np.lexsort((tracks, *frame))
    same = tracks[order][1:] != NO_TRACK
    for column in (tracks, *frame):
        same &= np.diff(column[order]) == 0
    out = np.zeros(len(tracks), np.bool_)
    out[order[1:][same]] = True
    return out
