"""List WebDatasets: tar files in which consecutive members with the same key form a sample.

The key is the path up to the first dot of the file name; the rest is the name of the field. Images and videos are read
without unpacking. Texts, numbers and JSON are read when the items are listed; arrays are read when the item is packed.
"""

import re
from array import array
from collections import defaultdict
from typing import Any

import numpy as np

from packer.recipe import field_name
from packer.sources.archives.listing import LABEL, PICKLED, PICKLES, ArchiveListing, ListedArchive
from packer.sources.archives.member import Member
from packer.sources.archives.tar import TarDamage, TarMember, is_compressed, walk_tar
from packer.sources.item import Item, ItemFile, item_list
from packer.sources.json_values import parse_json
from packer.sources.member_bytes import MAX_UNPACKED_BYTES
from packer.vision.media import FILE_TYPES, IMAGE, Medium, describe_media, medium_of
from packer.workspace.hashing import repeated
from shardspec.errors import ItemError
from shardspec.wording import list_some, shorten

VALUE_BYTES_MAX = 1 << 20
"""Largest text or JSON document, in bytes. They are read when the items are listed."""

_MEMBERS_MAX = 1000
_HELD_BYTES_MAX = 16 * VALUE_BYTES_MAX
"""Limits per sample, so that a crafted archive cannot fill the memory."""

_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_DOCUMENTS = ("json", "jsn")
_READ = dict.fromkeys((*_TEXTS, *_NUMBERS, *_DOCUMENTS), VALUE_BYTES_MAX)
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_SCATTERED = (
    "expected the members of a sample next to each other, found some elsewhere in the archive: "
    "write it in the order of their names (tar --sort=name)"
)


def list_tar(place: ListedArchive) -> ArchiveListing:
    """List the samples of one tar file. A damaged file ends with one reject for the rest."""
    samples = _Samples(place)
    try:
        for member in walk_tar(place.archive.path, _READ):
            samples.add(member)
    except TarDamage as damage:
        samples.end(str(damage))
    else:
        samples.end()
    return samples.found


class _Samples:
    """Collects the members of one tar file into samples."""

    def __init__(self, place: ListedArchive) -> None:
        self.found = ArchiveListing()
        self._place = place
        self._compressed = is_compressed(place.archive.path)
        self._key: str | None = None
        self._members: list[tuple[str, TarMember]] = []
        self._numbers = array("q")
        self._fields: frozenset[str] = frozenset()
        self._held = 0
        self._crowded = False

    def add(self, member: TarMember) -> None:
        if member.kind == "folder":
            return
        name = member.name.removeprefix("./")
        key, dot, suffix = _split(name)
        stem = key.rpartition("/")[2]
        if not stem or not dot or stem.startswith("__"):  # hidden, without a suffix, or metadata of the archive
            self.found.ignored.add(self._place.name_of(member.name))
            return
        if key != self._key:
            self._close()
            self._key = key
        self._held += len(member.data or b"")
        if len(self._members) < _MEMBERS_MAX and self._held <= _HELD_BYTES_MAX:
            self._members.append((suffix.lower(), member))
        else:
            self._crowded = True

    def end(self, damage: str | None = None) -> None:
        """Finish the last sample; `damage` says why the rest of the file cannot be read."""
        fields = frozenset(suffix for suffix, _ in self._members)
        lacks = ""
        if not fields >= self._fields:
            lacks = f"{list_some(sorted(self._fields - fields))}, which others have"
        elif not any(map(self._medium_of, fields)):
            lacks = describe_media(self._place.media)
        if damage is not None and self._key is not None and lacks:
            self._reject(f"the archive is cut off or damaged after this sample, which lacks {lacks}")
        self._close()
        self._reject_scattered()
        if damage is not None:
            self.found.items.append(self._place.rest(damage))

    def _reject_scattered(self) -> None:
        """Reject all samples with the same key, since their members are not next to each other."""
        numbers = np.frombuffer(self._numbers, np.int64)
        again = np.flatnonzero(np.isin(numbers, repeated(numbers))).tolist()
        if not again:
            return
        items, by_key = self.found.items, defaultdict[str, list[int]](list)
        for place in again:  # two keys may have the same hash
            by_key[_split(items[place].name.removeprefix(self._place.name_of("")))[0]].append(place)
        scattered = {place: key for key, places in by_key.items() if len(places) > 1 for place in places}
        self.found.items = item_list().extend(
            self._place.item(scattered[place], reject=item.reject or _SCATTERED) if place in scattered else item
            for place, item in enumerate(items)
        )

    def _close(self) -> None:
        if self._key is None or not self._members:
            self._key = None
            return
        key, members = self._key, self._members
        try:
            if self._crowded:
                raise ItemError(
                    expected=f"at most {_MEMBERS_MAX} members in a sample, with {_HELD_BYTES_MAX} bytes of text",
                    found="more",
                )
            self._append(self._make(key, members))
            self._fields = frozenset(suffix for suffix, _ in members)
        except ItemError as error:
            self._reject(str(error))

    def _reject(self, reason: str) -> None:
        assert self._key is not None
        self._append(self._place.item(self._key, reject=reason))

    def _append(self, item: Item) -> None:
        self.found.items.append(item)
        self._numbers.append(hash(self._key))
        self._key, self._members, self._held, self._crowded = None, [], 0, False

    def _make(self, key: str, members: list[tuple[str, TarMember]]) -> Item:
        if key.startswith("/") or ".." in key.split("/"):  # although no file with this name is ever written
            raise ItemError(expected="a name inside the archive", found="one that leads out of it")
        by_suffix: dict[str, TarMember] = {}
        for suffix, member in members:
            if member.kind != "file":
                raise ItemError(place=shorten(member.name), expected="a plain file in the archive", found=member.kind)
            if by_suffix.setdefault(suffix, member) is not member:
                raise ItemError(expected="every field once", found=f"{shorten(suffix)} twice")
        shown = [suffix for suffix in by_suffix if self._medium_of(suffix)]
        if not shown:
            raise ItemError(expected=describe_media(self._place.media), found=f"{list_some(list(by_suffix))} alone")
        main = min(shown, key=_rank)
        columns: dict[str, Any] = {}
        arrays: dict[str, Member] = {}
        files: dict[str, ItemFile] = {}
        documents: dict[str, Any] = {}
        for suffix, member in by_suffix.items():
            last = suffix.rpartition(".")[2]
            if f".{last}" in PICKLES:
                raise ItemError(PICKLED, place=shorten(member.name))
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
        return self._place.item(
            whole.name.removeprefix("./"),
            whole.size,
            columns=columns,
            files=files,
            member=self._member(whole),
            arrays=arrays,
        )

    def _medium_of(self, suffix: str) -> Medium | None:
        return medium_of(f"_.{suffix}", self._place.media)

    def _file(self, member: TarMember) -> ItemFile:
        place = self._place
        name = place.name_of(member.name.removeprefix("./"))
        return ItemFile(name, str(place.archive.path), member.size, place.mtime_ns, self._member(member))

    def _member(self, member: TarMember) -> Member:
        if self._compressed and member.size > MAX_UNPACKED_BYTES:
            raise ItemError(
                place=shorten(member.name),
                expected=f"at most {MAX_UNPACKED_BYTES} bytes in a compressed archive",
                found=member.size,
                hint="unpack it, and give the .tar",
            )
        return Member("gzip" if self._compressed else "stored", (member.offset, member.size), self._place.bytes)


def _split(name: str) -> tuple[str, str, str]:
    """Split the name of a member at the first dot of its last part into the key, the dot if any, and the suffix."""
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return folder + slash + stem, dot, suffix


def _rank(suffix: str) -> tuple[Any, ...]:
    """Return a sort key that puts the sample's image or video first."""
    return "." in suffix, medium_of(f"_.{suffix}") is IMAGE, f".{suffix}" not in FILE_TYPES["JPEG"].suffixes, suffix


def _values(suffix: str, last: str, member: TarMember) -> dict[str, Any]:
    if member.data is None:
        raise ItemError(
            place=shorten(member.name), expected=f"at most {VALUE_BYTES_MAX} bytes in a .{last}", found=member.size
        )
    try:
        text = "" if last in _DOCUMENTS else member.data.decode("utf-8-sig")
        document = parse_json(member.data) if last in _DOCUMENTS else None
    except UnicodeDecodeError as error:
        raise ItemError(place=shorten(member.name), expected="text in UTF-8", found="other bytes") from error
    except ValueError as error:
        raise ItemError(str(error), place=shorten(member.name)) from error
    if last in _TEXTS:
        return {suffix: text}
    if last in _NUMBERS:
        text = text.strip()
        return {suffix: int(text) if _INTEGER.match(text) else text or None}
    if not isinstance(document, dict):
        return {suffix: document}
    stem = suffix.rpartition(".")[0]
    return {f"{stem}_{name}" if stem else name: value for name, value in document.items()}
