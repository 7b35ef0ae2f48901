"""Write the index of a shard (`shardspec.formats.index`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from readers.formats.indexed import Section, has_no_bytes, storage_of
from readers.formats.mapping import map_file
from shardspec.formats.index import NO_PLACES, Places, Stored, index_path, pack_index, with_sums
from shardspec.schema import Schema

RECORDS = ""
"""Used in place of a field's name for records that hold all fields of a row."""


class IndexWriter:
    """Collects the positions of a shard's values, and writes the index.

    Parameters
    ----------
    format : str
    schema : Schema
    rows : int
    summed : sequence of str
        Fields whose values get a checksum, in formats that have checksums of their own.
    """

    def __init__(self, format: str, schema: Schema, rows: int, summed: Sequence[str] = ()) -> None:
        self._format, self._schema, self._rows, self._summed = format, schema, rows, summed
        self._arrays: dict[str, dict[str, list[Any]]] = {}

    def add(self, field: str, **arrays: Any) -> None:
        """Append to the arrays of a field's `Places`."""
        for name, numbers in arrays.items():
            self._arrays.setdefault(field, {}).setdefault(name, []).append(np.asarray(numbers).reshape(-1))

    def write(self, path: Path, block_rows: int) -> None:
        """Write the index of a shard whose file is finished."""
        data, storage = map_file(path), storage_of(self._format)
        names = [*self._schema.names, *([RECORDS] if RECORDS in self._summed else [])]
        sections = []
        for name in names:
            if name != RECORDS and has_no_bytes(self._schema[name]):
                sections.append(NO_PLACES)
                continue
            found = self._arrays.get(name, {})
            places = Places(**{key: np.concatenate(parts).astype(np.uint64) for key, parts in found.items()})
            stored = Stored(None) if name == RECORDS else storage.stored(self._schema[name], block_rows)
            section = Section(stored, places, self._rows, data, storage.checksum)
            if name in self._summed:
                places = with_sums(places, section.sums_of(np.arange(section.units)))
            sections.append(places)
        with index_path(path).open("xb") as file:
            file.write(pack_index(self._format, self._schema, self._rows, data, sections))
