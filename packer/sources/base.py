"""The interface of a source, the listing that it returns, and checks of paths."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from packer.recipe import Recipe
from packer.sources.archives.zipped import ZippedFiles
from packer.sources.files import LOCAL, FileState, LocalFiles
from packer.sources.folders.frame_folders import frames_item, images_in
from packer.sources.folders.frames import FramesError
from packer.sources.item import Item, ItemFile
from packer.vision.faults import stop_if_passing
from packer.workspace.shared_files import map_threaded
from shardspec.entries import UNSAID, About
from shardspec.errors import UsageError, system_reason
from shardspec.layout import is_url
from shardspec.wording import LONG, counted, shorten

if TYPE_CHECKING:
    from packer.sources.stores.files import StoredFiles


@dataclass(frozen=True)
class Listing:
    """The items of a source.

    Attributes
    ----------
    items : sequence of Item
        Sorted, with ``items[i].index == i``. The sequence may be on the disk (`packer.workspace.disk_list`).
    ignored : int
        Number of files that are not items.
    classes : dict of str to list of str
        Class names by column, for integer columns with class names.
    roots : AllowedFolders or None
        Root folders of further paths in the items' columns, which must not lead outside them; None if no column holds
        paths.
    fields : dict of str to str
        The name of the sample's field for each column of a table.
    further : tuple of str
        Fields with images, other than ``image``.
    arrays : dict of str to tuple
        For each column whose lists of numbers become arrays, the dtype and the sizes of all axes except the first.
    members : dict of str to int
        Number of items that have a further image in their archive, by field of that image.
    further_files : sequence of dict
        Further images of each item in its archive, as `ItemFile` by field.
    outside : sequence of int
        Indices of items whose paths lead outside `roots`, ascending.
    outside_example : str
        Description of the row of the first such item.
    notes : sequence of str
        Notes for the user about the source, one line each.
    sought : str
        Description of what was searched for and where, for the message if there are no items.
    about : About
        Title, licence and citation of a packed dataset.
    stored : StoredFiles or None
        If files are in stores, what has the paths that stand for their URLs.
    """

    items: Sequence[Item]
    ignored: int = 0
    classes: dict[str, list[str]] = field(default_factory=dict)
    roots: "AllowedFolders | None" = None
    fields: dict[str, str] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    further_files: Sequence[Mapping[str, ItemFile]] = ()
    outside: Sequence[int] = ()
    outside_example: str = ""
    notes: Sequence[str] = ()
    sought: str = ""
    about: About = UNSAID
    stored: "StoredFiles | None" = None


@dataclass(frozen=True)
class AllowedFolders:
    """The folders to which the paths of a table are relative. No path may lead outside them.

    Attributes
    ----------
    folders : tuple of Path
        Absolute paths. Symbolic links are not resolved.
    files : LocalFiles
        What is in the folders.
    """

    folders: tuple[Path, ...]
    files: LocalFiles = LOCAL

    @classmethod
    def of(cls, *folders: str | Path, files: LocalFiles = LOCAL) -> "AllowedFolders":
        """Make the roots from some folders.

        Raises
        ------
        UsageError
            If a path is not a folder, if a folder is inside another one, or if two folders have the same name, which
            would make the names of their items ambiguous.
        """
        roots = cls(tuple(Path(folder).absolute() for folder in folders), files)
        for number, folder in enumerate(roots.folders):
            if not files.is_folder(folder) and not ZippedFiles(folder, files).by_path:
                raise UsageError(
                    option="root",
                    expected="a folder",
                    found=f"{'a file' if files.exists(folder) else 'none'} at {folders[number]}",
                )
            for other in roots.folders[:number]:
                nested = folder.resolve().is_relative_to(other.resolve()) or other.resolve().is_relative_to(
                    folder.resolve()
                )
                if nested or folder.name == other.name:  # the names of files begin with the folder's
                    raise UsageError(
                        option="root",
                        expected="folders that are not inside each other, with different names",
                        found=f"{other} and {folder}",
                        hint="use the folder above both, or a link with another name",
                    )
        return roots

    @cached_property
    def resolved(self) -> tuple[Path, ...]:
        return tuple(folder.resolve() for folder in self.folders)

    def describe(
        self, index: int, path: str | Path, columns: Mapping[str, Any], frame_rate: float | None = None
    ) -> Item:
        """Return the item for a path in a table (`describe_path`).

        The item's name is its path below the root. With several roots, the name starts with the root's name. A relative
        path that exists below several roots is a reject.
        """
        found = [folder for folder in self.resolved if self.files.lexists(folder / path)]
        location = (found or self.resolved)[0] / path
        if len(found) > 1 and not Path(path).is_absolute():
            reason = f"expected a path below a single root, found it below {len(found)}: make it absolute in the table"
            return Item(index, str(path), str(location), columns=columns, reject=reason)
        name = self._name(location) or str(path)
        return describe_path(index, name, location, self.resolved, columns, frame_rate, self.files)

    def leads_out(self, path: str | Path) -> bool:
        """Return whether an absolute or relative path, or a URL, leads outside all roots. Links are followed."""
        path = self.files.local(str(path))
        if is_url(path):
            return True
        for folder in self.resolved:
            try:
                resolved = (folder / path).resolve()
            except (OSError, RuntimeError, ValueError):
                return False
            if any(resolved.is_relative_to(root) for root in self.resolved):
                return False
        return True

    def _name(self, location: Path) -> str | None:
        """Return the name of a file below a root; None if it is outside all roots."""
        # Try the path as written, then with resolved links: it may contain `..`, or a link may lead to the root.
        for see in (Path, _resolve):
            place = see(location)
            for given, real in zip(self.folders, self.resolved, strict=True):
                for root in (real, given):
                    if place.is_relative_to(root) and ".." not in place.parts:
                        name = place.relative_to(root).as_posix()
                        return f"{given.name}/{name}" if len(self.folders) > 1 else name
        return None


class FileChecker:
    """Examines the files of one listing, and caches folders and recent files.

    Parameters
    ----------
    roots : AllowedFolders
        Folders that the files must not leave.
    frame_rate : float, optional
        Frame rate of folders of frames (`packer.recipe.Recipe.frame_folders`).
    """

    def __init__(self, roots: AllowedFolders, frame_rate: float | None = None) -> None:
        self._roots, self._files = roots, roots.files
        self._resolved = roots.resolved
        self._prefix = os.path.join(self._resolved[0], "")  # noqa: PTH118 -- as a text
        self._frame_rate = frame_rate
        self._known: dict[str, Item] = {}
        self._inside: dict[str, bool] = {}
        self._examined = 0
        self._stripped, self._first_stripped = 0, ""

    def describe(self, index: int, path: str, columns: Mapping[str, Any], reject: str | None = None) -> Item:
        """Return the item for a path in a table, like `AllowedFolders.describe`. If the file is valid, use `reject` as the reason.

        If the path does not exist but would without surrounding blanks, the blanks are ignored.
        """
        self._count()
        path, stripped = self._files.local(path), self._files.local(path.strip())
        known = self._look_up(path)
        if known.reject is not None and stripped and stripped != path:
            without = self._look_up(stripped)
            if without.reject is None:
                known = without
                self._stripped += 1
                self._first_stripped = self._first_stripped or path
        if known.reject is not None and is_url(stripped):
            found = shorten(stripped, LONG)
            reason = f"expected a path inside the source, found the URL {found}: name its folder with --root"
            return Item(index, stripped, stripped, columns=columns, reject=reason)
        reject = known.reject or reject
        if known.reject is not None and "\\" in path:
            reject = f"{known.reject}: the path has backslashes; write / between folders"
        size, time = known.bytes, known.mtime_ns
        return Item(index, known.name, known.path, size, time, columns, reject, member=known.member)

    def ask(self, paths: Iterable[Any]) -> None:
        """Prepare to describe some paths on web servers, which takes long if they are asked for one at a time."""
        texts = [path for path in paths if isinstance(path, str)]
        self._files.ask({*texts, *map(str.strip, texts)})

    def notes(self) -> list[str]:
        """Describe the paths whose surrounding blanks were ignored."""
        if not self._stripped:
            return []
        return [
            f"ignored blanks around {counted(self._stripped, 'path')}, such as "
            f"{shorten(self._first_stripped, LONG)}: the file exists without them"
        ]

    def _look_up(self, path: str) -> Item:
        known = self._known.get(path)
        if known is None:
            known = self._examine(path) or self._roots.describe(0, path, {}, self._frame_rate)
            if known.reject is not None and known.path is not None and not self._files.lexists(known.path):
                known = self._look_into_zips(known) or known
            if len(self._known) == _KNOWN_MAX:
                self._known.clear()
            if known.member is None:  # items with many frame names take too much memory
                self._known[path] = known
        return known

    @cached_property
    def _zipped(self) -> list[ZippedFiles]:
        return [ZippedFiles(folder, self._files) for folder in self._resolved]

    def _look_into_zips(self, item: Item) -> Item | None:
        """Return the item for a file that does not exist but is in a zip file of its root."""
        path = os.path.normpath(str(item.path))
        for folder, zipped in zip(self._resolved, self._zipped, strict=True):
            found = zipped.by_path.get(os.path.relpath(path, folder).replace(os.sep, "/"))
            if found is not None:
                return found.item(item.index, item.name)
        return None

    def file(self, index: int, name: str) -> Item:
        """Return the item for a file below the first root, given its relative path (`describe_path`)."""
        path = self._prefix + name
        return self._item(index, name, path, self._stat(path))

    def files(self, names: Iterable[str]) -> Iterator[Item]:
        """Yield the items for files below the first root, in order (`file`).

        On a network file system, many files are examined in parallel.
        """
        if not self._files.is_slow(self._resolved[0]):
            yield from map(self.file, count(), names)
            return
        remaining = iter(names)
        some = iter(lambda: list(islice(remaining, _ASKED)), [])
        found = map_threaded(lambda names: [(name, self._stat(self._prefix + name)) for name in names], some)
        for index, (name, state) in enumerate(chain.from_iterable(found)):
            yield self._item(index, name, self._prefix + name, state)

    def frames(self, index: int, name: str, images: Sequence[str]) -> Item:
        """Return the item for a folder of frames below the first root (`frames_item`)."""
        assert self._frame_rate is not None
        self._count()
        return frames_item(
            index, name, self._prefix + name, images, self._frame_rate, self._resolved, files=self._files
        )

    def _item(self, index: int, name: str, path: str, found: FileState | None) -> Item:
        self._count()
        if found is None:
            return describe_path(index, name, Path(path), self._resolved, {}, files=self._files)
        return Item(index, name, path, found.st_size, found.st_mtime_ns)

    def _count(self) -> None:
        self._examined += 1
        if not self._examined % _COUNTED:
            count_listed(_COUNTED)

    def _examine(self, path: str) -> Item | None:
        """Return the item of a regular file below the only root; None if the path needs a closer look."""
        if len(self._resolved) > 1 or os.path.normpath(path) != path or path.startswith(".."):
            return None
        location = path if path.startswith("/") else self._prefix + path
        if os.sep != "/" or not location.startswith(self._prefix):
            return None
        found = self._stat(location)
        if found is None:
            return None
        return Item(0, location[len(self._prefix) :], location, found.st_size, found.st_mtime_ns)

    def _stat(self, path: str) -> FileState | None:
        """Return the status of a regular file inside the roots; None if any part of the path is a link."""
        try:
            folder = path.rpartition("/")[0]
            inside = self._inside.get(folder)
            if inside is None:
                inside = self._files.resolve(folder) == folder and self._contains(folder)
                if len(self._inside) == _KNOWN_MAX:
                    self._inside.clear()
                self._inside[folder] = inside
            found = self._files.lstat(path) if inside else None
        except (OSError, ValueError):
            return None
        return found if found is not None and stat.S_ISREG(found.st_mode) else None

    def _contains(self, folder: str) -> bool:
        return any(Path(folder).is_relative_to(root) for root in self._resolved)


_KNOWN_MAX = 4096
_COUNTED = 500
_ASKED = 16
"""Files per request to a thread. Passing them one by one would take as long as examining them."""


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


_REPORT: ContextVar[Callable[[int], None] | None] = ContextVar("_REPORT", default=None)


@contextmanager
def counting(report: Callable[[int], None]) -> Iterator[None]:
    """Call `report` with the number of items that sources list inside the block. Enclosing blocks get the same calls."""
    before = _REPORT.get()

    def both(count: int) -> None:
        report(count)
        if before is not None:
            before(count)

    token = _REPORT.set(both)
    try:
        yield
    finally:
        _REPORT.reset(token)


def count_listed(count: int) -> None:
    """Report that a source has listed this number of further items."""
    report = _REPORT.get()
    if report is not None:
        report(count)


class Source(Protocol):
    """Interface of a source. If it puts arrays into the columns of items, the build needs the inline engine."""

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List all items, in a fixed order, with labels in a column ``label`` chosen by `label_from`."""
        ...


def refuse_path_column(path_column: str, found: str) -> None:
    """Refuse the option `path_column` for a source that has no columns.

    Raises
    ------
    UsageError
        If the option differs from its default.
    """
    if path_column != Recipe.path_column:
        raise UsageError(f"applies only to tables, found {found}", option="path_column")


def describe_path(
    index: int,
    name: str,
    path: Path,
    roots: Sequence[Path],
    columns: Mapping[str, Any],
    frame_rate: float | None = None,
    files: LocalFiles = LOCAL,
) -> Item:
    """Return an item for a file. If it is not a regular file inside one of `roots`, the item is a reject.

    If a `frame_rate` is given, a folder is an item too: its images are the frames of a video.

    Raises
    ------
    BuildError
        If the file cannot be examined because of a temporary fault.
    """
    columns = dict(columns)

    def reject(reason: str) -> Item:
        return Item(index, name, str(path), columns=columns, reject=reason)

    try:
        resolved, found = Path(files.resolve(path)), files.stat(path)
    except (OSError, RuntimeError, ValueError) as error:
        stop_if_passing(error, path)
        link = os.path.islink(path)  # noqa: PTH114 -- Path.is_symlink raises where a name is too long
        broken = "a symbolic link to nothing" if link else system_reason(error)
        return reject(f"expected a file{'' if frame_rate is None else ' or a folder'}, found {broken}")
    if not any(resolved.is_relative_to(root) for root in roots):
        kind = "a symbolic link that leaves" if path.is_symlink() or _through_link(path, roots) else "a path outside"
        return reject(
            f"expected a file inside the source, found {kind} it: name the folder it leads to with --root DIR"
        )
    if stat.S_ISDIR(found.st_mode):
        if frame_rate is not None:
            try:
                images = images_in(path, files)
            except FramesError as error:
                return reject(str(error))
            return frames_item(index, name, str(path), images, frame_rate, roots, columns, files)
        return reject("expected a file, found a folder (--frame-folders FPS takes its images as frames of a video)")
    if not stat.S_ISREG(found.st_mode):
        return reject("expected a regular file, found something else")
    return Item(index, name, str(path), found.st_size, found.st_mtime_ns, columns)


def _through_link(path: Path, roots: Sequence[Path]) -> bool:
    """Return whether the path as written is inside a root, so that only a link can lead outside."""
    return any(Path(os.path.normpath(path)).is_relative_to(root) for root in roots)
