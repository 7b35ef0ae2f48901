"""The source for archives of any kind, which lists the members of a set of archives as items."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packer.recipe.checks import DROP
from packer.sources.archives.keys import KeyTable
from packer.sources.archives.member import MEMBER_MARK
from packer.sources.base import Listing, count_listed, refuse_path_column
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.folders.patterns import PathPattern
from packer.sources.folders.walk import Ignored
from packer.sources.item import Item, item_list
from packer.sources.row_fields import read_item_columns
from packer.vision.faults import stop_if_passing
from packer.vision.media import PICTURES, Medium, describe_sought, file_type
from packer.workspace.disk_list import DiskList, LazyMap
from packer.workspace.shared_files import map_threaded
from readers.formats.machine import available_processors
from shardspec.errors import ObjectDeniedError, UsageError, system_reason
from shardspec.fields import RESERVED
from shardspec.wording import LONG, list_some, shorten

FIELDS_MAX = 1000
"""Most fields of all items together. With more, the names are probably data, and the columns would fill the memory."""

PICKLES = (".pickle", ".pkl", ".pth", ".pt", ".pyd", ".p")
"""Suffixes of files that may be or contain a pickle."""

PICKLED = "expected no pickle, which can run any code when it is read, found one"

SNIFFED_BYTES = 16
"""Number of first bytes by which the type of a member without a suffix is recognised."""

_NO_FOLDER = (
    "expected a folder in the name within the archive to name the label (--label-from folder), found none: "
    "list the labels in a file and use --keys"
)


class ArchiveFile(NamedTuple):
    """One file of a set of archives.

    Attributes
    ----------
    name : str
        Path relative to the source; the names of the items begin with it.
    """

    name: str
    path: Path


@dataclass
class ArchiveListing:
    """Content of one archive.

    Attributes
    ----------
    items : DiskList of Item
        The items in order, with their columns as found and without indices. `Item.files` has all further images by
        field.
    ignored : Ignored
        Members that belong to no item.
    classes : dict of str to list of str
        Class names of integer columns, if the archive has any.
    numbers_people : bool
        Whether the labels number people from 0 in each archive.
    """

    items: DiskList[Item] = field(default_factory=item_list)
    ignored: Ignored = field(default_factory=Ignored)
    classes: dict[str, list[str]] = field(default_factory=dict)
    numbers_people: bool = False


class ListedArchive(NamedTuple):
    """An archive, its state when it was listed, and the media of the items to list."""

    archive: ArchiveFile
    bytes: int
    mtime_ns: int
    media: Sequence[Medium] = PICTURES

    def item(self, name: str, size: int = 0, *, reject: str | None = None, **more: Any) -> Item:
        """Return the item for a member."""
        return Item(-1, self.name_of(name), str(self.archive.path), size, self.mtime_ns, reject=reject, **more)

    def name_of(self, name: str) -> str:
        """Return the name of an item: the name of the archive followed by that of the member."""
        return f"{self.archive.name}{MEMBER_MARK}{name}"

    def rest(self, reason: str) -> Item:
        """Return the reject that represents the unreadable rest of an archive."""
        return Item(-1, self.name_of("(rest)"), None, reject=reason)


class ArchiveKind(NamedTuple):
    """A kind of archive.

    Attributes
    ----------
    title : str
        Its name in messages, in the plural.
    suffixes : tuple of str
        In lower case.
    prefix : str
        Prefix for columns whose field name is reserved, such as ``key``.
    list_one : callable
        Lists one archive, given its `ListedArchive`. If it raises an `OSError`, the archive becomes a reject.
    has_columns : bool
        Whether `list_one` also takes the arguments ``path_column``, and ``dropped`` with the columns to skip.
    """

    title: str
    suffixes: tuple[str, ...]
    prefix: str
    list_one: Callable[..., ArchiveListing]
    has_columns: bool = False

    def lister(self, path_column: str, types: Mapping[str, str]) -> Callable[[ListedArchive], ArchiveListing]:
        """Return `list_one` with its options; `path_column` is refused if there are no columns."""
        if not self.has_columns:
            refuse_path_column(path_column, self.title)
            return self.list_one
        dropped = {name for name, kind in types.items() if kind == DROP}
        return partial(self.list_one, path_column=path_column, dropped=dropped)


class ArchiveSource:
    """The items of a set of archives of one kind, in the order of the archives and their members.

    Parameters
    ----------
    types : dict of str to str
        Columns that become text, int or float.
    keys : KeyTable, optional
        The items to take, with labels or further columns.
    pattern : PathPattern, optional
        Makes columns from the names within the archives.
    ignored : int
        Number of files that are not archives.
    files : LocalFiles
        Contain the archives.
    media : sequence of Medium
        Media of the items.
    """

    def __init__(
        self,
        kind: ArchiveKind,
        archives: Sequence[ArchiveFile],
        types: Mapping[str, str],
        keys: KeyTable | None,
        pattern: PathPattern | None,
        ignored: int,
        files: LocalFiles = LOCAL,
        media: Sequence[Medium] = PICTURES,
    ) -> None:
        self._kind = kind
        self._archives = archives
        self._types = types
        self._keys = keys
        self._pattern = pattern
        self._ignored = ignored
        self._files = files
        self._media = media

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items. Several archives are listed in parallel.

        Raises
        ------
        UsageError
            If the columns cannot become fields.
        BuildError
            If an archive cannot be examined because of a temporary fault.
        """
        list_one = self._kind.lister(path_column, self._types)
        entries = Ignored()
        people: list[str] = []
        classes: dict[str, list[str]] = {}

        def listed() -> Iterator[Item]:
            ask = partial(_list_one, files=self._files, list_one=list_one, media=self._media)
            found = map_threaded(ask, self._archives, available_processors())
            for archive, one in zip(self._archives, found, strict=True):
                for column, names in one.classes.items():
                    if classes.setdefault(column, names) != names:
                        raise UsageError(
                            place=archive.path,
                            expected=f"the same class names in column {column!r} as in the archives before",
                            found="others",
                            hint="pack the archives into separate datasets",
                        )
                entries.merge(one.ignored)
                people.extend([archive.name] if one.numbers_people else [])
                yield from one.items
                count_listed(len(one.items))

        raw, naming = item_list(), _Naming(self._kind.prefix, label_from)
        members: Counter[str] = Counter()
        notes: list[str] = []
        ignored = self._ignored
        for item in listed() if self._keys is None else self._keys.join(listed(), notes):
            if item is None:
                ignored += 1
                continue
            if self._pattern is not None:
                item = _with_columns_of_path(item, self._pattern)
            if item.reject is None:
                naming.look_at(item.columns)
                members.update(item.files.keys())
            raw.append(item)
        if len(people) > 1 and self._keys is None and label_from != "none":
            notes.append(
                f"each of {list_some(people)} numbers its people from 0, so a label stands for several people: pack the "
                "archives into separate datasets, or set labels with --keys"
            )
        naming.settle()
        cells = () if self._pattern is None else self._pattern.names
        listing = _with_columns(raw, naming, label_from, self._types, classes, cells)
        more = len(self._archives) - 1
        ignored_entries = [entries.describe("ignored entries")] if entries.count else []
        return replace(
            listing,
            ignored=ignored + entries.count,
            members=members,
            further_files=LazyMap(raw, lambda item: item.files),
            notes=[*listing.notes, *notes, *ignored_entries],
            sought=f"{describe_sought(self._media)}, in {self._archives[0].path}{f' and {more} more' if more else ''}",
        )


def _with_columns(
    raw: Sequence[Item],
    naming: "_Naming",
    label_from: str,
    types: Mapping[str, str],
    classes: Mapping[str, list[str]],
    cells: Collection[str],
) -> Listing:
    """Settle the columns of items, and list the items with their values by field. The columns `cells` hold texts."""
    chosen = "auto" if label_from == "folder" else label_from
    columns, converted = read_item_columns(
        raw, naming.row, chosen, types, lambda name: name in cells and name not in types
    )
    items = item_list()
    fields: set[str] = set()
    for index, (found, item) in enumerate(zip(raw, converted, strict=True)):
        if found.reject is not None:
            items.append(Item(index, item.name, None, reject=item.reject))
            continue
        fields |= item.columns.keys()
        reject = _NO_FOLDER if item.reject is not None and label_from == "folder" else item.reject
        arrays = {
            f"npy_{name}" if name in item.columns or name in RESERVED else name: member
            for name, member in item.arrays.items()
        }
        items.append(item._replace(index=index, files={}, arrays=arrays, reject=reject))
    named = {
        "label" if name == label_from else columns.fields.get(name, name): names for name, names in classes.items()
    }
    return Listing(
        items,
        classes={**{field: names for field, names in named.items() if field in fields}, **columns.classes},
        fields=columns.fields,
        arrays=columns.arrays,
        notes=[*columns.notes, *(_describe_dotted_labels(columns.fields) if label_from == "auto" else [])],
    )


def _with_columns_of_path(item: Item, pattern: PathPattern) -> Item:
    if item.reject is not None:
        return item
    values = pattern.match(item.name.partition(MEMBER_MARK)[2])
    if values is None:
        expected = f"expected a name like {shorten(pattern.text, LONG)} in the archive (--fields-from-path)"
        return item._replace(reject=expected)
    return item._replace(columns={**item.columns, **values})


def _list_one(
    archive: ArchiveFile,
    files: LocalFiles,
    list_one: Callable[[ListedArchive], ArchiveListing],
    media: Sequence[Medium],
) -> ArchiveListing:
    try:
        with files.reading(archive.path):
            stat = archive.path.stat()
            return list_one(ListedArchive(archive, stat.st_size, stat.st_mtime_ns, media))
    except ObjectDeniedError:
        reason = "expected a readable archive, found one that the store refuses to send"
        return ArchiveListing(item_list().extend([Item(-1, archive.name, None, reject=reason)]))
    except OSError as error:
        stop_if_passing(error, archive.path)
        reason = f"expected a readable archive, found: {system_reason(error)}"
        return ArchiveListing(item_list().extend([Item(-1, archive.name, None, reject=reason)]))


def is_pickle(data: bytes) -> bool:
    """Return whether bytes begin like a pickle of protocol 2 or later."""
    return len(data) >= 2 and data[0] == 0x80 and 2 <= data[1] < 6


def seems_image(data: bytes) -> bool:
    """Return whether bytes begin like an image."""
    return file_type(data) not in (None, "Netpbm")  # a text such as "P1 left" may begin like Netpbm


def _folder_of(name: str) -> str | None:
    first, slash, _ = name.partition(MEMBER_MARK)[2].replace("\\", "/").partition("/")
    return first if slash else None


LABEL = "cls"
"""Column for the label according to the convention of the archive's kind."""

_LABEL_VALUE = "value"
"""New name of that column if it holds measurements instead of classes."""

_LABELS = frozenset((LABEL, "class", "label"))


def _describe_dotted_labels(fields: Mapping[str, str]) -> Iterator[str]:
    """Suggest columns whose dotted names look like labels, such as ``shape.cls``, if no column is the label."""
    for name, become in fields.items() if "label" not in fields.values() else ():
        if "." in name and not _LABELS.isdisjoint(name.lower().split(".")):
            yield (
                f"no labels: {shorten(name)} is packed as the field {become}; "
                f"--label-from {shlex.quote(name)} makes it the label"
            )


class _Naming:
    """Maps the columns of items to fields. `LABEL` becomes ``label``, and reserved names get a prefix."""

    def __init__(self, prefix: str, label_from: str) -> None:
        self._prefix = prefix
        self._label_from = label_from
        self._names: dict[str, None] = {}
        self._kinds: set[type] = set()
        self._changed: dict[str, str] = {}

    def look_at(self, row: Mapping[str, Any]) -> None:
        if not row.keys() <= self._names.keys():
            self._names |= dict.fromkeys(row)
            if len(self._names) > FIELDS_MAX:
                raise UsageError(
                    expected=f"at most {FIELDS_MAX} fields in the archives",
                    found="more",
                    hint="names that differ from item to item are data, not fields",
                )
        if LABEL in row:
            self._kinds.add(type(row[LABEL]))

    def settle(self) -> None:
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
        """Return the columns of an item by their new names."""
        row = {self._changed.get(name, name): value for name, value in item.columns.items()}
        if {int, str} <= self._kinds and type(
            item.columns.get(LABEL)
        ) is int:  # with names such as cat, 1 is a name too
            row[self._changed.get(LABEL, LABEL)] = str(item.columns[LABEL])
        if self._label_from == "folder":
            row["label"] = _folder_of(item.name)
        return row
