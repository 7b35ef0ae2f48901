"""What lies below a folder: the pictures and videos, their sidecars, and what is ignored."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from packer.sources.item import is_picture, is_video
from packer.sources.patterns import Globs
from packer.sources.sidecars import sidecar_suffix
from packer.sources.walking import walk
from shardspec.errors import BuildError
from shardspec.wording import LONG, counted, cut, shorten

_KINDS_SHOWN = 6
_KINDS_MAX = 1000
"""Kinds of ignored files that are counted apart: some people's suffixes are numbers."""

_EXCLUDED = "left out by --include or --exclude"
_LINKS = "behind links to folders that are listed where they lie"


class Ignored:
    """Files and folders that are no items, counted by kind, each kind with an example.

    Attributes
    ----------
    count : int
    """

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, path: str, kind: str | None = None, number: int = 1) -> None:
        """Count a path, or a number of which it is an example; without a kind it is a file, whose kind is its suffix."""
        kind = kind or _suffix(path)
        if kind not in self._kinds and len(self._kinds) == _KINDS_MAX:
            kind = "with other suffixes"
        count, example = self._kinds.get(kind, (0, path))
        self._kinds[kind] = count + number, min(example, path)
        self.count += number

    def merge(self, other: "Ignored") -> None:
        """Count what another one has counted."""
        for kind, (count, example) in other._kinds.items():
            self.add(example, kind, count)

    def describe(self, what: str = "ignored") -> str:
        """The kinds, the most frequent first."""
        kinds = sorted(self._kinds.items(), key=lambda entry: (-entry[1][0], entry[0]))
        shown = [f"{count} {kind} (such as {shorten(path)})" for kind, (count, path) in kinds[:_KINDS_SHOWN]]
        rest = sum(count for _, (count, _) in kinds[_KINDS_SHOWN:])
        more = f" and {rest} of {counted(len(kinds) - _KINDS_SHOWN, 'other kind')}" if rest else ""
        return f"{what}: {', '.join(shown)}{more}"


def _suffix(path: str) -> str:
    return cut(repr(PurePath(path).suffix.lower())[1:-1], 20) or "without suffix"


class FoundFiles:
    """What a walk through a folder finds.

    Parameters
    ----------
    root : Path
        Without links.
    links_to : sequence of Path
        Folders outside `root`, without links; links into them are followed.
    include, exclude : Globs
    keeps_sidecars : bool

    Attributes
    ----------
    names : list of str
        Paths of all items relative to the root, with ``/``, in the order of their bytes.
    folders : set of str
        The folders directly in the root that were searched.
    ignored : Ignored

    Raises
    ------
    BuildError
        If a folder cannot be listed.
    """

    def __init__(
        self, root: Path, links_to: Sequence[Path], include: Globs, exclude: Globs, keeps_sidecars: bool
    ) -> None:
        self.folders: set[str] = set()
        self.ignored = Ignored()
        self._root = root
        self._links_to = links_to
        self._include = include
        self._exclude = exclude
        self._keeps_sidecars = keeps_sidecars
        self._sidecars: dict[str, list[str]] = defaultdict(list)
        self._entered: set[str] = set()
        self.names = sorted(self._walk(), key=os.fsencode)
        items = set(map(_stem, self.names)) if self._sidecars else ()
        for stem in [stem for stem in self._sidecars if stem not in items]:
            for path in self._sidecars.pop(stem):
                self.ignored.add(path)

    def sidecars_of(self, name: str) -> list[str]:
        """The paths of an item's sidecars, sorted."""
        return sorted(self._sidecars.get(_stem(name), ()), key=os.fsencode)

    def _walk(self) -> Iterator[str]:
        def fail(error: OSError) -> None:
            raise BuildError(f"{cut(str(error.filename), LONG)}: cannot be listed: {error.strerror}") from error

        for folder, folders, files in walk(self._root, fail, followlinks=True):
            parts = Path(folder).relative_to(self._root).parts
            if self._links_to and not self._enter(folder, parts):
                folders.clear()
                continue
            yield from self._choose_folders(Path(folder), parts, folders)
            if not parts:
                self.folders.update(folders)
            # All of them are compared, since a pattern that matches nothing is reported.
            depths = range(1, len(parts) + 1) if self._include else ()
            above = [self._include.match(parts[:depth], folder=True) for depth in depths]
            for name in files:
                if self._is_item((*parts, name), any(above)):
                    yield "/".join((*parts, name))

    def _enter(self, folder: str, parts: Sequence[str]) -> bool:
        """Whether a folder is seen for the first time, whatever links lead to it."""
        real = os.path.realpath(folder)
        if real in self._entered:
            self.ignored.add("/".join(parts), _LINKS)
            return False
        self._entered.add(real)
        return True

    def _choose_folders(self, folder: Path, parts: tuple[str, ...], folders: list[str]) -> Iterator[str]:
        """Leave in a list the folders to enter, sorted; yield the paths of links that leave the source."""
        entered = []
        for name in sorted(folders, key=os.fsencode):
            path = "/".join((*parts, name))
            if name.startswith("."):
                self.ignored.add(path, "hidden")
            elif self._exclude.match((*parts, name), folder=True):
                self.ignored.add(path, _EXCLUDED)
            elif not os.path.islink(folder / name):  # noqa: PTH114 -- Path.is_symlink raises where a path is too long
                entered.append(name)
            else:
                target = (folder / name).resolve()
                if target.is_relative_to(self._root):
                    self.ignored.add(path, _LINKS)
                elif any(target.is_relative_to(other) for other in self._links_to):
                    entered.append(name)
                else:
                    yield path
        folders[:] = entered

    def _is_item(self, parts: tuple[str, ...], chosen: bool) -> bool:
        """Whether a file is an item; if not, it is counted. `chosen`: whether a pattern has chosen a folder above it."""
        name, path = parts[-1], "/".join(parts)
        if name.startswith("."):
            self.ignored.add(path, "hidden")
        elif self._exclude.match(parts, folder=False):
            self.ignored.add(path, _EXCLUDED)
        elif is_picture(name) or is_video(name):
            if self._include.match(parts, folder=False) or chosen or not self._include:
                return True
            self.ignored.add(path, _EXCLUDED)
        elif self._keeps_sidecars and sidecar_suffix(name):
            self._sidecars[_stem(path)].append(path)
        else:
            self.ignored.add(path)
        return False


def _stem(path: str) -> str:
    """A path without its suffix."""
    return path.removesuffix(PurePath(path).suffix)
