"""Find images, videos or sound files, and their sidecars, below a folder, and count the files that are ignored."""

import os
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePath
from typing import NamedTuple

from packer.sources.files import LOCAL, LocalFiles
from packer.sources.folders.frame_folders import refuse_images_in_root
from packer.sources.folders.patterns import Globs
from packer.sources.folders.sidecars import sidecar_suffix
from packer.vision.media import IMAGE, PICTURES, Medium, medium_of
from packer.workspace.disk_list import sorted_texts
from packer.workspace.shared_files import THREADS, Entry, listing_folders
from shardspec.wording import counted, cut, shorten

_KINDS_SHOWN = 6
_KINDS_MAX = 1000
"""Most kinds of ignored files to count separately, since suffixes may be arbitrary numbers."""

_SCANNED_AHEAD = 20_000
"""Folders with more entries are not listed ahead."""

_EXCLUDED = "left out by --include or --exclude"
_LINKS = "behind links to folders that are listed anyway"


class Ignored:
    """Counts files and folders that are not items, by kind, with an example of each kind."""

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, tuple[int, str]] = {}

    def add(self, path: str, kind: str | None = None, number: int = 1) -> None:
        """Count `number` paths of a kind, of which `path` is an example. By default, the kind is the suffix."""
        kind = kind or _suffix(path)
        if kind not in self._kinds and len(self._kinds) == _KINDS_MAX:
            kind = "with other suffixes"
        count, example = self._kinds.get(kind, (0, path))
        self._kinds[kind] = count + number, min(example, path)
        self.count += number

    def merge(self, other: "Ignored") -> None:
        for kind, (count, example) in other._kinds.items():
            self.add(example, kind, count)

    def describe(self, what: str = "ignored") -> str:
        """List the kinds, the most frequent first."""
        kinds = sorted(self._kinds.items(), key=lambda entry: (-entry[1][0], entry[0]))
        shown = [f"{count} {kind} (such as {shorten(path)})" for kind, (count, path) in kinds[:_KINDS_SHOWN]]
        rest = sum(count for _, (count, _) in kinds[_KINDS_SHOWN:])
        more = f" and {rest} of {counted(len(kinds) - _KINDS_SHOWN, 'other kind')}" if rest else ""
        return f"{what}: {', '.join(shown)}{more}{''.join(self._remedies())}"

    def _remedies(self) -> Iterator[str]:
        """Name the presets that pack ignored files."""
        presets = defaultdict[str, list[str]](list)
        for kind in self._kinds:
            medium = medium_of(f"_{kind}")
            if medium is not None:
                presets[medium.preset].append(kind)
        for preset, kinds in presets.items():
            yield f"; --preset {preset} packs {', '.join(sorted(kinds))}"


def _suffix(path: str) -> str:
    return cut(repr(PurePath(path).suffix.lower())[1:-1], 20) or "without suffix"


class FoundFile(NamedTuple):
    """An image or video, or a folder of frames, with its path relative to the root.

    An image or video also has the paths of its sidecars, and a folder of frames the names of its images.
    """

    name: str
    sidecars: Sequence[str] = ()
    frames: Sequence[str] = ()


class FoundFiles:
    """Iterates once over the images and videos below a folder, in the byte order of their paths.

    A folder of frames comes before the items below it. At most one folder is in memory. On a network file system,
    threads list the next few dozen folders ahead.

    Parameters
    ----------
    root : Path
        The folder, with resolved links.
    links_to : sequence of Path
        Folders outside `root`, with resolved links. Links into these folders are followed.
    joins_frames : bool
        Whether the images in a folder are the frames of one video.
    media : sequence of Medium
        Media of the items.

    Attributes
    ----------
    folders : set of str
        Searched folders directly in the root.
    folders_of_items : set of str
        Those of `folders` that contain items.
    videos : set of str
        Those of `folders` that are items themselves, because their images are frames.

    Raises
    ------
    BuildError
        If a folder cannot be listed.
    UsageError
        If frames are directly in the root.
    """

    def __init__(
        self,
        root: Path,
        links_to: Sequence[Path],
        include: Globs,
        exclude: Globs,
        *,
        keeps_sidecars: bool = False,
        joins_frames: bool = False,
        media: Sequence[Medium] = PICTURES,
        files: LocalFiles = LOCAL,
    ) -> None:
        self.folders: set[str] = set()
        self.folders_of_items: set[str] = set()
        self.videos: set[str] = set()
        self.ignored = Ignored()
        self._root = root
        self._links_to = links_to
        self._include = include
        self._exclude = exclude
        self._includes, self._excludes = bool(include), bool(exclude)
        self._keeps_sidecars = keeps_sidecars
        self._joins_frames = joins_frames
        self._media = media
        self._files = files
        self._threads: ThreadPoolExecutor | None = None
        self._scans: dict[str, Future[list[Entry] | None]] = {}

    def __iter__(self) -> Iterator[FoundFile]:
        if self._files.is_slow(self._root) and not self._links_to:
            self._threads = ThreadPoolExecutor(THREADS, "listing")
        try:
            with listing_folders():
                yield from self._walk()
        finally:
            if self._threads is not None:
                self._threads.shutdown(cancel_futures=True)

    def _walk(self) -> Iterator[FoundFile]:
        entered: set[str] = set()
        waiting = [iter((FoundFile("/"),))]
        while waiting:
            found = next(waiting[-1], None)
            if found is None:
                waiting.pop()
            elif not found.name.endswith("/"):
                yield found
            elif self._enters(found.name.strip("/"), entered):
                waiting.append(self._list(found.name.strip("/")))

    def _enters(self, path: str, entered: set[str]) -> bool:
        """Return whether to enter a folder. If links are followed, each folder is entered only once."""
        if self._links_to:
            folder = os.path.realpath(os.path.join(self._root, path))  # noqa: PTH118 -- many
            if folder in entered:
                self.ignored.add(path, _LINKS)
                return False
            entered.add(folder)
        return True

    def _list(self, path: str) -> Iterator[FoundFile]:
        """Yield the items and folders in a folder, in the byte order of all paths. Folders end with ``/``."""
        parts = tuple(path.split("/")) if path else ()
        folder, above = Path(self._root, path), f"{path}/" if path else ""
        # Compare all patterns, since one that matches nothing is reported.
        depths = range(1, len(parts) + 1) if self._include else ()
        chosen = True in [self._include.match(parts[:depth], folder=True) for depth in depths]
        folders: list[str] = []
        links: set[str] = set()
        ahead: deque[str] = deque()
        sidecars: dict[str, list[str]] = defaultdict(list)
        stems: set[str] = set()
        frames: list[str] = []

        def names() -> Iterator[str]:
            for name, is_folder, is_link in self._scan(path):
                if is_folder:
                    folders.append(name)
                    links.update([name] if is_link else [])
                elif self._is_item(parts, name, chosen, sidecars):
                    if self._joins_frames and medium_of(name) is IMAGE:
                        frames.append(name)
                        continue
                    if self._keeps_sidecars:
                        stems.add(_stem(name))
                    yield name
            entered, out = self._choose_folders(folder, parts, folders, links)
            if not parts:
                self.folders.update(entered)
            yield from out
            below = [f"{name}/" for name in entered]
            ahead.extend(sorted(below, key=os.fsencode))
            yield from below

        found, have_items = sorted_texts(names()), False
        for stem in sidecars.keys() - stems:
            for name in sidecars[stem]:
                self.ignored.add(above + name)
        if frames:
            if not path:
                refuse_images_in_root(self._root, min(frames))
            self.folders_of_items.update(parts[:-1][:1])
            if len(parts) == 1:
                self.videos.add(path)
            yield FoundFile(path, frames=frames)
        for name in found:
            sidecar_paths: Sequence[str] = ()
            if name.endswith("/"):
                self._scan_ahead(above, ahead)
            elif not have_items:
                have_items = True
                self.folders_of_items.update(parts[:1])
            if self._keeps_sidecars and not name.endswith("/"):
                sidecar_paths = [above + other for other in sorted(sidecars.get(_stem(name), ()), key=os.fsencode)]
            yield FoundFile(above + name, sidecar_paths)

    def _scan(self, path: str) -> Iterable[Entry]:
        """Return the entries of a folder, from a thread that listed them ahead if there is one."""
        scanned = self._scans.pop(path).result() if path in self._scans else None
        return self._files.scan(Path(self._root, path)) if scanned is None else scanned

    def _scan_ahead(self, above: str, names: deque[str]) -> None:
        """Start to list the next folders in threads, except the first of `names`, which is entered now."""
        if self._threads is None:
            return
        for name in islice(names, THREADS):
            path = above + name.strip("/")
            if path not in self._scans:
                self._scans[path] = self._threads.submit(self._scan_small, self._root / path)
        names.popleft()

    def _scan_small(self, folder: Path) -> list[Entry] | None:
        """Return the entries of a folder, or None if there are too many to keep in memory."""
        found = list(islice(self._files.scan(folder), _SCANNED_AHEAD + 1))
        return found if len(found) <= _SCANNED_AHEAD else None

    def _choose_folders(
        self, folder: Path, parts: tuple[str, ...], folders: Sequence[str], links: Container[str]
    ) -> tuple[list[str], list[str]]:
        """Return the folders to enter, sorted, and the links that leave the source."""
        entered, out = [], []
        for name in sorted(folders, key=os.fsencode):
            path = "/".join((*parts, name))
            if name.startswith("."):
                self.ignored.add(path, "hidden")
            elif self._exclude.match((*parts, name), folder=True):
                self.ignored.add(path, _EXCLUDED)
            elif name not in links:
                entered.append(name)
            else:
                target = (folder / name).resolve()
                if target.is_relative_to(self._root):
                    self.ignored.add(path, _LINKS)
                elif any(target.is_relative_to(other) for other in self._links_to):
                    entered.append(name)
                else:
                    out.append(name)
        return entered, out

    def _is_item(self, above: tuple[str, ...], name: str, chosen: bool, sidecars: Mapping[str, list[str]]) -> bool:
        """Return whether a file is an item, and count it as ignored if not.

        `chosen` says whether a pattern has chosen a folder above the file.
        """
        if name.startswith("."):
            self.ignored.add("/".join((*above, name)), "hidden")
        elif self._excludes and self._exclude.match((*above, name), folder=False):
            self.ignored.add("/".join((*above, name)), _EXCLUDED)
        elif medium_of(name, self._media) is not None:
            if not self._includes or self._include.match((*above, name), folder=False) or chosen:
                return True
            self.ignored.add("/".join((*above, name)), _EXCLUDED)
        elif self._keeps_sidecars and sidecar_suffix(name):
            sidecars[_stem(name)].append(name)
        else:
            self.ignored.add("/".join((*above, name)))
        return False


def _stem(path: str) -> str:
    return path.removesuffix(PurePath(path).suffix)
