"""Find and decode the raw images and videos that a packed dataset was made from."""

import os
import threading
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.archives.member import MEMBER_MARK
from packer.sources.folders.frame_folders import frames_item, images_in
from packer.sources.folders.patterns import Globs, is_chosen
from packer.sources.item import Item, ItemFile
from packer.sources.member_bytes import opener
from packer.sources.opening import DATA_NAME, kind_of, list_archive
from packer.steps.sequences import open_reader
from packer.vision.decode.image import decode_image, read_image
from packer.vision.decode.sampling import Sampling
from packer.vision.media import is_picture
from packer.workspace.disk_list import DiskList, sorted_texts, text_list
from shardspec.errors import ItemError, MissingDependencyError, ShardspecError, UsageError, system_reason
from shardspec.wording import LONG, cut, shorten

MAX_PIXELS = 100 * 10**6


class Originals:
    """Decodes frames of items, which are named relative to their source. Opens nothing outside the source.

    Safe to use from several threads.

    Parameters
    ----------
    root : path
        The source: its folder, or its one archive.
    recipe : mapping, optional
        The recipe of the dataset (`packer.recipe.Recipe.to_json`), for the column of an archive's images and for
        folders of frames.

    Raises
    ------
    UsageError
        If the source is neither a folder nor an archive.
    """

    def __init__(self, root: str | os.PathLike[str], recipe: Mapping[str, Any] | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        recipe = recipe or {}
        self._path_column = str(recipe.get("path_column", "path"))
        self._frame_rate = recipe.get("frame_folders")
        self._include, self._exclude = recipe.get("include", ()), recipe.get("exclude", ())
        self._lock = threading.Lock()
        self._listed: tuple[Path, DiskList[str]] | None = None
        self._folder: tuple[str, ItemFile] | None = None
        if not self.root.is_dir() and (not self.root.is_file() or kind_of(self.root.name) is None):
            raise UsageError(
                place=root, expected="the folder that the dataset was packed from, or its archive", found="none"
            )

    def find(self, item: str) -> Path | None:
        """Return the file of an item; None if there is none, or it is outside the source."""
        path = self._inside(item)
        return path if path is not None and path.is_file() else None

    def _inside(self, item: str) -> Path | None:
        """Return an item's path inside the source, if there is one."""
        # A report may hold any name, even one that the system rejects.
        try:
            path = Path(os.path.realpath(self.root / item))
            return path if path.is_relative_to(self.root) and path.exists() else None
        except (OSError, ValueError):
            return None

    def frame(self, item: str, frame: int | None = None) -> npt.NDArray[np.uint8]:
        """Decode a frame of an item as a build does: (H, W, 3) uint8 RGB, upright.

        Parameters
        ----------
        item : str
        frame : int, optional
            See `read_frame`.

        Raises
        ------
        ItemError
            If there is no such file or member of an archive, or it does not decode.
        """
        path = self.find(item)
        if path is not None and path != self.root:
            return read_frame(ItemFile(path.name, str(path), 0, 0), frame)
        folder = None if self._frame_rate is None else self._inside(item)
        if folder is not None and folder.is_dir() and folder != self.root:
            return read_frame(self._frames(folder, item), frame)
        container = item.partition(MEMBER_MARK)[0]
        archive = self._find_archive(container) if container != item else None
        if archive is None:
            raise ItemError(place=shorten(item), expected="a file in the source", found="none")
        return read_frame(self._member(archive, container, item), frame)

    def _frames(self, folder: Path, item: str) -> ItemFile:
        """List a folder of frames, and cache the last one."""
        assert self._frame_rate is not None
        known = self._folder
        if known is not None and known[0] == item:
            return known[1]
        include, exclude, parts = Globs(self._include), Globs(self._exclude), item.split("/")
        names = [name for name in images_in(folder) if is_chosen((*parts, name), include, exclude)]
        found = frames_item(0, item, str(folder), names, self._frame_rate, [self.root])
        if found.reject is not None:
            raise ItemError(found.reject, place=shorten(item))
        self._folder = item, found.file
        return found.file

    def _find_archive(self, name: str) -> Path | None:
        """Find the archive with a name, which may be the name of the folder of an LMDB; None if there is none."""
        if self.root.is_file():
            own = self.root.parent.name if self.root.name == DATA_NAME else self.root.name
            return self.root if name == own else None
        candidates = [name, f"{name}/{DATA_NAME}", *([DATA_NAME] if name == self.root.name else [])]
        found = (self.find(candidate) for candidate in candidates)
        return next((path for path in found if path is not None and kind_of(path.name) is not None), None)

    def _member(self, archive: Path, container: str, item: str) -> ItemFile:
        """Find an item in an archive. The members of the last archive are cached on the disk."""
        missing = f"{shorten(item)}: expected a member of the archive, found none"
        try:
            wanted = os.fsencode(f"{item}\0")
        except UnicodeEncodeError as error:  # no archive has such a name
            raise ItemError(missing) from error
        with self._lock:
            if self._listed is None or self._listed[0] != archive:
                try:
                    items = list_archive(archive, container, self._path_column).items
                except (ShardspecError, OSError, ValueError) as error:
                    raise ItemError(f"cannot be listed: {cut(str(error), LONG)}", place=shorten(container)) from error
                lines = (f"{one.name}\0{_place_of(one)}" for one in items if one.path is not None)
                self._listed = archive, text_list().extend(sorted_texts(lines))
            known = self._listed[1]
            place = bisect_left(known, wanted, key=os.fsencode)
            line = known[place] if place < len(known) else ""
        name, _, document = line.partition("\0")
        if name != item:
            raise ItemError(missing)
        return Item.from_line(document).file


def _place_of(item: Item) -> str:
    return Item(-1, item.name, item.path, item.bytes, item.mtime_ns, member=item.member).to_line()


def read_frame(file: ItemFile, frame: int | None = None) -> npt.NDArray[np.uint8]:
    """Decode a frame of an image or a video: (H, W, 3) uint8 RGB.

    Parameters
    ----------
    file : ItemFile
    frame : int, optional
        Number of the frame, as in samples and rejects; by default the first frame that decodes. An image has one frame.

    Raises
    ------
    ItemError
        If the file does not decode, or is neither an image nor a video.
    """
    name = shorten(file.name.rpartition("/")[2])
    sampling = Sampling(every=1) if frame is None else Sampling(at=(max(0, frame),))
    try:
        if file.medium.is_sequence:
            with closing(open_reader(file, sampling, max_pixels=MAX_PIXELS)) as reader:
                for found in reader:
                    return found.image
            raise ItemError(place=name, expected=f"a frame{'' if frame is None else f' {frame}'}", found="none")
        if file.member is None and not is_picture(file.name):
            raise ItemError(place=name, expected="an image or a video by its suffix")
        return decode_image(read_image(opener(file), max_pixels=MAX_PIXELS), max_pixels=MAX_PIXELS).image
    except MissingDependencyError as error:
        raise ItemError(error, place=name) from error
    except OSError as error:
        raise ItemError(f"cannot be read: {system_reason(error)}", place=name) from error
