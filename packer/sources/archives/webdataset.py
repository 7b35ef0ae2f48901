"""WebDataset: tar files whose members with the same key, side by side, are a sample.

The key is the path up to the first dot of the base name, and what follows is the name of the member's field. Pictures
and videos are read in place; texts, numbers and JSON are read when the items are listed, and arrays with their item.
"""

import json
import re
from array import array
from collections.abc import Collection
from typing import Any, NoReturn

import numpy as np

from packer.recipe import field_name
from packer.sources.archives.listing import LABEL, PICKLED, PICKLES, Found, Place
from packer.sources.archives.member import Member
from packer.sources.archives.tar import TarDamage, TarMember, is_compressed, walk_tar
from packer.sources.contents import MAX_UNPACKED_BYTES
from packer.sources.item import Item, ItemFile, spool_items
from packer.vision.media import FILE_TYPES, IMAGE, Medium, medium_of
from packer.workspace.matching import repeated
from shardspec.errors import ItemError
from shardspec.wording import found_instead, list_some, shorten

VALUE_BYTES_MAX = 1 << 20
"""Most bytes of a text or a JSON document, which is read when the items are listed."""

_MEMBERS_MAX = 1000
_HELD_BYTES_MAX = 16 * VALUE_BYTES_MAX
"""Of a sample, so that a crafted one does not fill the memory."""

_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_DOCUMENTS = ("json", "jsn")
_READ = dict.fromkeys((*_TEXTS, *_NUMBERS, *_DOCUMENTS), VALUE_BYTES_MAX)
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")


def list_tar(place: Place) -> Found:
    """The samples of one tar file. After damage, they end, and a reject stands for the rest."""
    samples = _collect(place, frozenset())
    scattered = samples.repeated()
    return (_collect(place, scattered) if scattered else samples).found


def _collect(place: Place, scattered: Collection[int]) -> "_Samples":
    """The samples of one tar file, those with keys of some numbers known to be scattered over it."""
    samples = _Samples(place, scattered)
    try:
        for member in walk_tar(place.archive.path, _READ):
            samples.add(member)
    except TarDamage as damage:
        samples.end(str(damage))
    else:
        samples.end()
    return samples


class _Samples:
    """Collects the members of one tar file into samples.

    Parameters
    ----------
    place : Place
    scattered : collection of int
        Numbers of the keys that come again later. They are known once a file was listed; only these keys are kept.
    """

    def __init__(self, place: Place, scattered: Collection[int]) -> None:
        self.found = Found()
        self._place = place
        self._compressed = is_compressed(place.archive.path)
        self._key: str | None = None
        self._members: list[tuple[str, TarMember]] = []
        self._scattered = scattered
        self._numbers = array("q")
        self._first: dict[str, int] = {}
        self._rejected: dict[int, Item] = {}
        self._fields: frozenset[str] = frozenset()
        self._held = 0
        self._crowded = False

    def repeated(self) -> Collection[int]:
        """The numbers of the keys that came more than once."""
        return frozenset(repeated(np.frombuffer(self._numbers, np.int64)).tolist())

    def add(self, member: TarMember) -> None:
        """Take the next member."""
        if member.kind == "folder":
            return
        name = member.name.removeprefix("./")
        folder, slash, base = name.rpartition("/")
        stem, dot, suffix = base.partition(".")
        if not stem or not dot or base.startswith("__"):  # hidden, without a suffix, or about the archive
            self.found.ignored.add(self._place.name_of(member.name))
            return
        key = folder + slash + stem
        if key != self._key:
            self._close()
            self._key = key
        self._held += len(member.data or b"")
        if len(self._members) < _MEMBERS_MAX and self._held <= _HELD_BYTES_MAX:
            self._members.append((suffix.lower(), member))
        else:
            self._crowded = True

    def end(self, damage: str | None = None) -> None:
        """Take note that there are no more members, because of damage or not."""
        fields = frozenset(suffix for suffix, _ in self._members)
        lacks = ""
        if not fields >= self._fields:
            lacks = f"{list_some(sorted(self._fields - fields))}, which others have"
        elif not any(map(_medium_of, fields)):
            lacks = "a picture or a video"
        if damage is not None and self._key is not None and lacks:
            self._reject(f"the archive is cut off or damaged behind it, and it lacks {lacks}")
        self._close()
        if damage is not None:
            self.found.items.append(self._place.rest(damage))
        if self._rejected:
            items = self.found.items
            self.found.items = spool_items().extend(self._rejected.get(n, item) for n, item in enumerate(items))

    def _close(self) -> None:
        """Make the collected members a sample."""
        if self._key is None or not self._members:
            self._key = None
            return
        key, members = self._key, self._members
        number, place = hash(key), len(self.found.items)
        self._numbers.append(number)
        before = self._first.get(key)
        if before is None and number in self._scattered:
            self._first[key] = place
        try:
            if self._crowded:
                raise ItemError(
                    f"expected at most {_MEMBERS_MAX} members in a sample, with {_HELD_BYTES_MAX} bytes of text, "
                    "found more"
                )
            if before is not None:
                scattered = (
                    "expected the members of a sample side by side, found some elsewhere in the archive: "
                    "write it in the order of their names (tar --sort=name)"
                )
                if before not in self._rejected and self.found.items[before].reject is None:
                    self._rejected[before] = self._place.item(key, reject=scattered)
                raise ItemError(scattered)
            self._make(key, members)
            self._fields = frozenset(suffix for suffix, _ in members)
        except ItemError as error:
            self._reject(str(error))
        self._forget()

    def _reject(self, reason: str) -> None:
        assert self._key is not None
        self.found.items.append(self._place.item(self._key, reject=reason))
        self._forget()

    def _forget(self) -> None:
        """Begin without a sample."""
        self._key, self._members, self._held, self._crowded = None, [], 0, False

    def _make(self, key: str, members: list[tuple[str, TarMember]]) -> None:
        _check_name(key)
        by_suffix: dict[str, TarMember] = {}
        for suffix, member in members:
            if member.kind != "file":
                raise ItemError(f"{shorten(member.name)}: expected a plain file in the archive, found {member.kind}")
            if by_suffix.setdefault(suffix, member) is not member:
                raise ItemError(f"expected every field once, found {shorten(suffix)} twice")
        shown = [suffix for suffix in by_suffix if _medium_of(suffix)]
        if not shown:
            raise ItemError(f"expected a picture or a video, found {list_some(list(by_suffix))} alone")
        main = min(shown, key=_rank)
        columns: dict[str, Any] = {}
        arrays: dict[str, Member] = {}
        files: dict[str, ItemFile] = {}
        documents: dict[str, Any] = {}
        for suffix, member in by_suffix.items():
            last = suffix.rpartition(".")[2]
            if f".{last}" in PICKLES:
                raise ItemError(f"{shorten(member.name)}: {PICKLED}")
            if suffix == main:
                continue
            if suffix in shown:
                files[field_name(suffix)] = self._file(member)
            elif last == "npy":
                arrays[field_name(suffix.removesuffix(".npy"))] = self._member(member)
            elif last in _DOCUMENTS:
                documents |= _values(suffix, last, member)
            elif last in _READ:
                columns |= _values(suffix, last, member)
            else:
                self.found.ignored.add(self._place.name_of(member.name))
        taken = {*columns, *(["label"] if LABEL in columns else [])}
        columns |= {f"json_{name}" if name in taken else name: value for name, value in documents.items()}
        whole = by_suffix[main]
        item = self._place.item(
            whole.name.removeprefix("./"),
            whole.size,
            columns=columns,
            files=files,
            member=self._member(whole),
            arrays=arrays,
        )
        self.found.items.append(item)

    def _file(self, member: TarMember) -> ItemFile:
        place = self._place
        name = place.name_of(member.name.removeprefix("./"))
        return ItemFile(name, str(place.archive.path), member.size, place.mtime_ns, self._member(member))

    def _member(self, member: TarMember) -> Member:
        if self._compressed and member.size > MAX_UNPACKED_BYTES:
            raise ItemError(
                f"{shorten(member.name)}: expected at most {MAX_UNPACKED_BYTES} bytes in a compressed archive, "
                f"found {member.size}: unpack it, and give the .tar"
            )
        return Member("gzip" if self._compressed else "stored", (member.offset, member.size), self._place.bytes)


def _check_name(key: str) -> None:
    """Refuse the name of a sample that leads out of the archive, though nothing is written by it."""
    if key.startswith("/") or ".." in key.split("/"):
        raise ItemError("expected a name inside the archive, found one that leads out of it")


def _rank(suffix: str) -> tuple[Any, ...]:
    """The order in which a sample's members are taken for its picture or video: the first one is."""
    return "." in suffix, _medium_of(suffix) is IMAGE, f".{suffix}" not in FILE_TYPES["JPEG"].suffixes, suffix


def _medium_of(suffix: str) -> Medium | None:
    """The medium of a member; None if it is no file of a sample's medium."""
    return medium_of(f"_.{suffix}")


def _values(suffix: str, last: str, member: TarMember) -> dict[str, Any]:
    """The columns that a member of text holds, by name."""
    if member.data is None:
        raise ItemError(
            f"{shorten(member.name)}: expected at most {VALUE_BYTES_MAX} bytes in a .{last}, found {member.size}"
        )
    try:
        text = member.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ItemError(f"{shorten(member.name)}: expected text in UTF-8, found other bytes") from error
    if last in _TEXTS:
        return {suffix: text}
    if last in _NUMBERS:
        text = text.strip()
        return {suffix: int(text) if _INTEGER.match(text) else text or None}
    document = parse_json(text, member.name)
    if not isinstance(document, dict):
        return {suffix: document}
    stem = suffix.rpartition(".")[0]
    return {f"{stem}_{name}" if stem else name: value for name, value in document.items()}


def parse_json(text: str, name: str) -> Any:
    """Parse JSON in which NaN means that a value is missing.

    Raises
    ------
    ItemError
        If it is no JSON, too deep, or has numbers that are not finite.
    """
    try:
        return json.loads(text, parse_constant=_parse_constant)
    except (ValueError, RecursionError) as error:
        raise ItemError(f"{shorten(name)}: expected JSON, {found_instead(error)}") from error


def _parse_constant(word: str) -> Any:
    return None if word == "NaN" else _refuse(word)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no finite number")
