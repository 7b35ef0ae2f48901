"""List LMDB files whose values are the bytes of images or videos.

The type of a value is known from the suffix of its key, or without a suffix from its first bytes. A text ``label-X``
belongs to the image ``image-X``, as in datasets for text recognition.
"""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np

from packer.sources.archives.listing import PICKLED, PICKLES, SNIFFED_BYTES, Found, Place, is_pickle, seems_image
from packer.sources.archives.lmdb_tree import Entry, TreeDamage, walk_lmdb
from packer.sources.archives.member import Member
from packer.sources.item import Item, item_list
from packer.vision.media import medium_of
from packer.workspace.disk_list import plain_list
from packer.workspace.hashing import match
from shardspec.columns import IntArray
from shardspec.wording import shorten

_IMAGE, _LABEL = "image-", "label-"
_TEXT_BYTES_MAX = 1 << 16


def list_keys(place: Place) -> Found:
    """List the images and videos of one file. A damaged file ends with one reject for the rest."""
    found = Found()
    images, places, named = array("q"), array("q"), array("q")
    texts = plain_list()
    with place.archive.path.open("rb") as file:
        try:
            for entry in walk_lmdb(place.archive.path):
                name = entry.key.decode("utf-8", "surrogateescape").replace("\\", "/")
                if name.startswith(_LABEL) and not PurePosixPath(name).suffix and entry.size <= _TEXT_BYTES_MAX:
                    file.seek(entry.offset)
                    named.append(hash(name.removeprefix(_LABEL)))
                    texts.append((name, file.read(entry.size).decode("utf-8", "replace")))
                    continue
                file.seek(entry.offset)
                item = _item(place, name, entry, file.read(min(entry.size, SNIFFED_BYTES)))
                if item is None:
                    found.ignored.add(place.name_of(name))
                    continue
                if name.startswith(_IMAGE):
                    images.append(hash(name.removeprefix(_IMAGE)))
                    places.append(len(found.items))
                found.items.append(item)
        except TreeDamage as damage:
            found.items.append(place.rest(str(damage)))
    if texts:
        at = match(np.frombuffer(images, np.int64), np.frombuffer(named, np.int64))
        for number in np.flatnonzero(at < 0).tolist():
            found.ignored.add(place.name_of(texts[number][0]))
        text_of = np.full(len(found.items), -1, np.int64)
        text_of[np.frombuffer(places, np.int64)[at[at >= 0]]] = np.flatnonzero(at >= 0)
        found.items = item_list().extend(_with_texts(place, found, text_of, texts))
    return found


def _with_texts(place: Place, found: Found, text_of: IntArray, texts: Sequence[tuple[str, str]]) -> Iterator[Item]:
    """Yield the items with their texts; `text_of` has the number of each item's text, or -1."""
    for item, number in zip(found.items, text_of, strict=True):
        if number < 0 or item.reject is not None:
            yield item
            continue
        name, text = texts[int(number)]
        if item.name == place.name_of(_IMAGE + name.removeprefix(_LABEL)):
            yield item._replace(columns={"text": text})
        else:  # a hash collision of two names
            found.ignored.add(place.name_of(name))
            yield item


def _item(place: Place, name: str, entry: Entry, head: bytes) -> Item | None:
    """Return the item for an entry; None if the value is neither an image, a video nor a pickle."""
    suffix = PurePosixPath(name).suffix.lower()
    shown = medium_of(name) is not None
    if entry.problem is not None:
        return place.item(name, reject=entry.problem)
    if suffix in PICKLES or (not shown and is_pickle(head)):
        return place.item(name, reject=f"{shorten(name)}: {PICKLED}")
    if not shown and not seems_image(head):
        return None
    return place.item(name, entry.size, member=Member("stored", (entry.offset, entry.size), place.bytes))
