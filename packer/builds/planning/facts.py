"""The facts of an item: all that a source says of it, by which it is known again."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from packer.sources.item import QUOTE, Item
from packer.sources.rows import digest_value
from packer.workspace.lines import line_encoder

FACTS_BYTES = 8
"""First bytes of an item's facts, by which a dataset knows it again."""

_PLAIN = frozenset((str, int, float, bool, type(None)))
_SORTED = line_encoder(sort_keys=True)


def item_facts(item: Item) -> str:
    """SHA-256 of all that the source says of an item: by its facts an item is known again."""
    return digest_facts(item, digest_columns(item)).hex()


def digest_facts(item: Item, columns: Mapping[str, Any]) -> bytes:
    """SHA-256 of an item's facts, given its columns as `digest_columns` has them."""
    # A list of the facts as JSON, encoded piece by piece, in less than half of the time. In ASCII: a name may be invalid
    # UTF-8.
    given = _SORTED(columns) if columns else "{}"
    reject = "null" if item.reject is None else QUOTE(item.reject)
    files = _SORTED(_facts_of_files(item)) if item.files else "[]"
    member = "" if item.member is None else f", {_SORTED(item.member)}, {_SORTED(dict(item.arrays))}"
    facts = f"[{QUOTE(item.name)}, {item.bytes}, {item.mtime_ns}, {given}, {reject}, {files}{member}]"
    return hashlib.sha256(facts.encode("ascii")).digest()


def digest_columns(item: Item) -> Mapping[str, Any]:
    """The columns with digests in the place of arrays and bytes."""
    columns = item.columns
    if not columns or all(type(value) in _PLAIN for value in columns.values()):
        return columns
    digested = {name: digest_value(value) for name, value in columns.items()}
    return columns if all(digested[name] is value for name, value in columns.items()) else digested


def _facts_of_files(item: Item) -> list[Any]:
    return sorted(
        [option, file.name, file.bytes, file.mtime_ns, *([] if file.member is None else [file.member])]
        for option, file in item.files.items()
    )


def facts_of(lines: Iterable[str]) -> bytearray:
    """The first bytes of the facts of each item in some lines, `FACTS_BYTES` each."""
    facts = bytearray()
    for item in map(Item.from_line, lines):
        facts += digest_facts(item, item.columns)[:FACTS_BYTES]
    return facts


def is_storable(item: Item) -> bool:
    """Return whether all of an item's columns are JSON values, so that a worker process can read them from the plan."""
    return digest_columns(item) is item.columns


def live_columns(item: Item) -> list[str]:
    """The columns of an item that a plan cannot hold: arrays and bytes."""
    return [name for name, value in item.columns.items() if digest_value(value) is not value]
