"""A folder of pictures and videos, nested."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packer.sources.base import Listing, describe_path, refuse_path_column
from packer.sources.item import Item, is_picture, is_video
from packer.sources.walking import walk
from shardspec.errors import BuildError, UsageError
from shardspec.wording import LONG, cut


class FolderSource:
    """Every picture and video below a folder, by suffix, in the order of their paths' bytes.

    Hidden files, hidden folders and files with other suffixes are ignored and counted. Links to folders are not
    followed: one that leads out of the root is a reject, and others are ignored, since their files are listed where
    they lie.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._ignored = 0

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, labelled by the first folder of their paths if `label_from` is ``"folder"``."""
        if label_from not in ("auto", "none", "folder"):
            raise UsageError(f"label_from: expected 'folder' or 'none' for a folder, found {label_from!r}")
        refuse_path_column(path_column, "a folder")
        self._ignored = 0
        names = sorted(self._names(), key=lambda name: os.fsencode(name))
        items = [describe_path(i, name, self.root / name, (self.root,), {}) for i, name in enumerate(names)]
        if label_from != "folder":
            return Listing(items, self._ignored)
        folders = sorted({_first_level(item.name) for item in items} - {""}, key=os.fsencode)
        numbers = {name: number for number, name in enumerate(folders)}
        labelled = [_label(item, numbers) for item in items]
        # A manifest is UTF-8: if a name is not, the bytes that are invalid are escaped.
        classes = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in folders]
        return Listing(labelled, self._ignored, {"label": classes})

    def _names(self) -> Iterator[str]:
        """Paths of all items relative to the root, with ``/``."""

        def fail(error: OSError) -> None:
            raise BuildError(f"{cut(str(error.filename), LONG)}: cannot be listed: {error.strerror}") from error

        for folder, folders, files in walk(self.root, fail):
            relative = Path(folder).relative_to(self.root)
            hidden = [name for name in folders if name.startswith(".")]
            links = [
                name
                for name in folders
                # Path.is_symlink raises where a path is too long.
                if name not in hidden and os.path.islink(Path(folder) / name)  # noqa: PTH114
            ]
            self._ignored += len(hidden)
            folders[:] = [name for name in folders if name not in hidden and name not in links]
            for name in links:
                if (Path(folder) / name).resolve().is_relative_to(self.root):
                    self._ignored += 1
                else:
                    yield (relative / name).as_posix()
            for name in files:
                if not name.startswith(".") and (is_picture(name) or is_video(name)):
                    yield (relative / name).as_posix()
                else:
                    self._ignored += 1


def _first_level(name: str) -> str:
    first, separator, _ = name.partition("/")
    return first if separator else ""


def _label(item: Item, numbers: dict[str, int]) -> Item:
    first = _first_level(item.name)
    if first:
        return replace(item, columns={"label": numbers[first]})
    reason = "expected a folder to name the label (--label-from folder), found a file directly in the source"
    return replace(item, reject=item.reject or reason)
