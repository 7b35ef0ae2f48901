"""Digests of everything that a source says about an item. They identify the item in later calls."""

import hashlib
from collections.abc import Mapping
from typing import Any

from packer.sources.item import QUOTE, Item
from packer.sources.rows import digest_value
from packer.workspace.json_lines import line_encoder

DIGEST_BYTES = 8
"""Length of the first bytes of an item's digest that a dataset records."""

_PLAIN = frozenset((str, int, float, bool, type(None)))
_SORTED = line_encoder(sort_keys=True)


def item_digest(item: Item) -> str:
    """Return the SHA-256 of everything that the source says about an item, in hexadecimal digits."""
    return digest_item(item, digest_columns(item)).hex()


def digest_item(item: Item, columns: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of an item, given its columns from `digest_columns`."""
    # A JSON list, encoded piece by piece, in less than half of the time. In ASCII, since a name may be invalid UTF-8.
    given = _SORTED(columns) if columns else "{}"
    reject = "null" if item.reject is None else QUOTE(item.reject)
    files = _SORTED(_describe_files(item)) if item.files else "[]"
    member = "" if item.member is None else f", {_SORTED(item.member)}, {_SORTED(dict(item.arrays))}"
    text = f"[{QUOTE(item.name)}, {item.bytes}, {item.mtime_ns}, {given}, {reject}, {files}{member}]"
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_columns(item: Item) -> Mapping[str, Any]:
    """Return the columns of an item, with digests in the place of arrays and bytes."""
    columns = item.columns
    if not columns or all(type(value) in _PLAIN for value in columns.values()):
        return columns
    digested = {name: digest_value(value) for name, value in columns.items()}
    return columns if all(digested[name] is value for name, value in columns.items()) else digested


def _describe_files(item: Item) -> list[Any]:
    return sorted(
        [option, file.name, file.bytes, file.mtime_ns, *([] if file.member is None else [file.member])]
        for option, file in item.files.items()
    )


def is_storable(item: Item) -> bool:
    """Return whether all of an item's columns are JSON values, so that a worker process can read them from the plan."""
    return digest_columns(item) is item.columns


def live_columns(item: Item) -> list[str]:
    """The columns of an item that a plan cannot hold: arrays and bytes."""
    return [name for name, value in item.columns.items() if digest_value(value) is not value]
