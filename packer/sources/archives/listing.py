"""Code shared by the sources of archives: the archives of a set, and the items of all of them as one listing."""

import os
import shlex
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from packer.sources.archives.keys import KeyTable
from packer.sources.archives.member import MEMBER_MARK
from packer.sources.base import Listing, count_listed
from packer.sources.folders.finding import Ignored
from packer.sources.item import Item, spool_items
from packer.sources.row_fields import read_columns
from packer.sources.tables.chunks import Chunk, chunks_of
from packer.vision.faults import may_pass
from packer.workspace.spool import Mapped, Spool
from readers.formats.machine import available_processors
from shardspec.errors import BuildError, UsageError, system_reason
from shardspec.fields import RESERVED
from shardspec.wording import list_some, shorten

FIELDS_MAX = 1000
"""Fields of all items of an archive: with names that are data, a column for each would fill the memory."""

PICKLES = (".pickle", ".pkl", ".pth", ".pt", ".pyd", ".p")
"""Suffixes of what may be, or contains, a pickle."""

PICKLED = "expected no pickle, which can run any code when it is read, found one"


_NO_FOLDER = (
    "expected a folder in the name within the archive to name the label (--label-from folder), found none: "
    "give the labels with --keys"
)


class Archive(NamedTuple):
    """One file of a set of archives.

    Attributes
    ----------
    name : str
        Its path relative to the source, in the names of its items.
    path : Path
    """

    name: str
    path: Path


@dataclass
class Found:
    """Content of one archive.

    Attributes
    ----------
    items : Spool of Item
        In order. Their columns are as they were found, their indices are not set, and `Item.files` has every further
        picture, by field.
    ignored : Ignored
        Members that are no items, nor fields of items.
    classes : dict of str to list of str
        Names of the classes of integer columns, if the archive gives them.
    numbers_people : bool
        Whether its labels are numbers of people, counted in this archive alone.
    """

    items: Spool[Item] = field(default_factory=spool_items)
    ignored: Ignored = field(default_factory=Ignored)
    classes: dict[str, list[str]] = field(default_factory=dict)
    numbers_people: bool = False


class Place(NamedTuple):
    """Where an archive lies, and what its items need to know of it."""

    archive: Archive
    bytes: int
    mtime_ns: int

    def item(self, name: str, size: int = 0, *, reject: str | None = None, **more: Any) -> Item:
        """An item for a member."""
        return Item(-1, self.name_of(name), str(self.archive.path), size, self.mtime_ns, reject=reject, **more)

    def name_of(self, name: str) -> str:
        """The name of a member with that of its archive."""
        return f"{self.archive.name}{MEMBER_MARK}{name}"

    def rest(self, reason: str) -> Item:
        """The reject that stands for the part of an archive that cannot be read."""
        return Item(-1, self.name_of("(rest)"), None, reject=reason)


ListOne = Callable[[Place], Found]


class ArchiveSource:
    """The items of a set of archives of one kind, in the order of the archives and of what lies in them.

    Attributes
    ----------
    prefix : str
        Stands before the name of a column whose field has a meaning of its own, such as ``key``.

    Parameters
    ----------
    archives : sequence of Archive
    types : dict of str to str
        Fields that become text, int or float.
    keys : KeyTable, optional
        Names the items to take, with labels or further columns.
    ignored : int
        Files beside the archives.
    """

    prefix: str

    def __init__(
        self,
        archives: Sequence[Archive],
        types: Mapping[str, str] | None = None,
        keys: KeyTable | None = None,
        ignored: int = 0,
    ) -> None:
        self.archives = archives
        self._types = types or {}
        self._keys = keys
        self._ignored = ignored

    def lister(self, path_column: str) -> "ListOne":
        """Return the function that lists one archive. If it raises an `OSError`, the archive becomes a reject.

        Raises
        ------
        UsageError
            If `path_column` is given where there is no column to name.
        """
        raise NotImplementedError

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """See `packer.sources.base.Source`."""
        return list_archives(
            self.archives,
            self.lister(path_column),
            label_from=label_from,
            types=self._types,
            keys=self._keys,
            prefix=self.prefix,
            ignored=self._ignored,
        )


def list_archives(
    archives: Sequence[Archive],
    list_one: ListOne,
    *,
    label_from: str,
    types: Mapping[str, str],
    keys: KeyTable | None,
    prefix: str,
    ignored: int = 0,
) -> Listing:
    """List the items of a set of archives, several at a time.

    Parameters
    ----------
    archives : sequence of Archive
    list_one : callable
        Lists one of them; an `OSError` makes it a reject.
    label_from : str
        See `packer.recipe.Recipe`.
    types : dict of str to str
        Columns that become text, int or float.
    keys : KeyTable or None
        Names the items to take, with further columns.
    prefix : str
        Stands before the name of a column whose field has a meaning of its own, such as ``key``.
    ignored : int
        Files beside the archives that are none.

    Raises
    ------
    UsageError
        If the columns cannot become fields.
    BuildError
        If an archive cannot be examined, for a reason that may pass.
    """
    classes: dict[str, list[str]] = {}
    entries = Ignored()
    people: list[str] = []

    def listed() -> Iterator[Item]:
        for archive, one in _list_each(archives, list_one):
            for column, names in one.classes.items():
                if classes.setdefault(column, names) != names:
                    raise UsageError(
                        f"{archive.path}: expected the class names of the archives before it in column {column!r}, "
                        "found others: pack them apart"
                    )
            entries.merge(one.ignored)
            people.extend([archive.name] if one.numbers_people else [])
            yield from one.items
            count_listed(len(one.items))

    raw, good, naming = spool_items(), array("q"), _Naming(prefix, label_from)
    members: Counter[str] = Counter()
    notes: list[str] = []
    for item in listed() if keys is None else keys.join(listed(), notes):
        if item is None:
            ignored += 1
            continue
        if item.reject is None:
            good.append(len(raw))
            naming.look_at(item.columns)
            members.update(item.files.keys())
        raw.append(item)
    if len(people) > 1 and keys is None and label_from != "none":
        notes.append(
            f"each of {list_some(people)} counts its people from 0, so one label means several of them: pack them apart, "
            "or give labels with --keys"
        )
    ignored += entries.count
    naming.settle()

    def chunks() -> Iterator[Chunk]:
        return chunks_of(naming.row(item) for item in raw if item.reject is None)

    chosen = "auto" if label_from == "folder" else label_from
    columns = read_columns(chunks, chosen, types, lambda row: shorten(raw[good[row]].name))
    if label_from == "auto" and "label" not in columns.fields.values():
        notes += _describe_dotted_labels(columns.fields)
    items, rows = spool_items(), columns.rows(chunks())
    fields: set[str] = set()
    for index, item in enumerate(raw):
        if item.reject is not None:
            items.append(Item(index, item.name, None, reject=item.reject))
            continue
        values, reject = next(rows)
        if reject is not None and label_from == "folder":
            reject = _NO_FOLDER
        fields |= values.keys()
        arrays = {
            f"npy_{name}" if name in values or name in RESERVED else name: member
            for name, member in item.arrays.items()
        }
        items.append(replace(item, index=index, columns=values, files={}, arrays=arrays, reject=reject))
    named = {
        "label" if name == label_from else columns.fields.get(name, name): names for name, names in classes.items()
    }
    named = {field: names for field, names in named.items() if field in fields}
    more = len(archives) - 1
    return Listing(
        items,
        ignored,
        {**named, **columns.classes},
        fields=columns.fields,
        arrays=columns.arrays,
        members=members,
        beside=Mapped(raw, lambda item: item.files),
        notes=[*columns.notes, *notes, *([entries.describe("ignored entries")] if entries.count else [])],
        sought=f"pictures and videos in {archives[0].path}{f' and {more} more' if more else ''}",
    )


def _list_each(archives: Sequence[Archive], list_one: ListOne) -> Iterator[tuple[Archive, Found]]:
    """Yield each archive and its content, in order. Some archives are listed ahead, in parallel."""
    count = available_processors()
    with ThreadPoolExecutor(count) as threads:
        left = iter(archives)
        waiting: deque[tuple[Archive, Future[Found]]] = deque()
        while True:
            for archive in islice(left, 2 * count - len(waiting)):
                waiting.append((archive, threads.submit(_list_one, archive, list_one)))
            if not waiting:
                return
            archive, found = waiting.popleft()
            yield archive, found.result()


def _list_one(archive: Archive, list_one: ListOne) -> Found:
    try:
        stat = archive.path.stat()
        return list_one(Place(archive, stat.st_size, stat.st_mtime_ns))
    except OSError as error:
        if may_pass(error):
            raise BuildError(f"{archive.path}: cannot be examined: {error}: run the same command again") from error
        reason = f"expected a readable archive, found: {system_reason(error)}"
        return Found(spool_items().extend([Item(-1, archive.name, None, reject=reason)]))


def _folder_of(name: str) -> str | None:
    """The first folder in the name of a member, None without one."""
    first, slash, _ = name.partition(MEMBER_MARK)[2].replace("\\", "/").partition("/")
    return first if slash else None


LABEL = "cls"
"""Column that is the label by the archive's own convention."""

_LABELS = frozenset((LABEL, "class", "label"))
_LABEL_VALUE = "value"
"""What that column becomes if it holds measurements and not classes."""


def _describe_dotted_labels(fields: Mapping[str, str]) -> Iterator[str]:
    """Describe the fields whose names say that they are labels, but have dots, such as ``shape.cls``."""
    for name, become in fields.items():
        if "." in name and not _LABELS.isdisjoint(name.lower().split(".")):
            yield (
                f"no labels: {shorten(name)} is packed as the field {become}; "
                f"--label-from {shlex.quote(name)} makes it the label"
            )


class _Naming:
    """Names the columns of items so that they can become fields: `LABEL` becomes ``label``, reserved ones get a prefix.

    Parameters
    ----------
    prefix, label_from : str
        See `list_archives`.
    """

    def __init__(self, prefix: str, label_from: str) -> None:
        self._prefix = prefix
        self._label_from = label_from
        self._names: dict[str, None] = {}
        self._kinds: set[type] = set()
        self._changed: dict[str, str] = {}

    def look_at(self, row: Mapping[str, Any]) -> None:
        """Take in the columns of the next item.

        Raises
        ------
        UsageError
            If there are too many different ones.
        """
        if not row.keys() <= self._names.keys():
            self._names |= dict.fromkeys(row)
            if len(self._names) > FIELDS_MAX:
                raise UsageError(
                    f"expected at most {FIELDS_MAX} fields in the archives, found more: names that differ from item "
                    "to item are data, not fields"
                )
        if LABEL in row:
            self._kinds.add(type(row[LABEL]))

    def settle(self) -> None:
        """Choose the names, after the last item."""
        names, label_from = self._names, self._label_from
        label = "label" if label_from == "auto" and "label" not in names else LABEL
        changed = {LABEL: _LABEL_VALUE if float in self._kinds else label} if LABEL in names else {}
        taken = {LABEL, *changed.values()}
        for name in names:
            if name in (LABEL, label_from):
                continue
            lower = str(name).lower()
            if lower in RESERVED or lower in taken or (label_from == "folder" and lower == "label"):
                changed[name] = f"{self._prefix}_{lower}"
        self._changed = changed

    def row(self, item: Item) -> dict[str, Any]:
        """The columns of an item by their new names."""
        row = {self._changed.get(name, name): value for name, value in item.columns.items()}
        if {int, str} <= self._kinds and type(item.columns.get(LABEL)) is int:  # 1 is a class beside cat
            row[self._changed.get(LABEL, LABEL)] = str(item.columns[LABEL])
        if self._label_from == "folder":
            row["label"] = _folder_of(item.name)
        return row


def relative_archives(root: Path, paths: Iterable[Path]) -> list[Archive]:
    """Archives named by their paths below a folder, in the order of the paths' bytes."""
    named = [Archive(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(named, key=lambda archive: os.fsencode(archive.name))
