"""Tables of JSON lines."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.sources.tables.base import Lines, Passes
from packer.sources.tables.chunks import Chunk, chunks_of
from shardspec.errors import UsageError
from shardspec.wording import counted


class JsonLinesTable:
    """A JSON lines file: one object per line (`packer.sources.tables.base.Table`). A row has only its own keys."""

    is_text = False
    notes: Mapping[str, str] = {}
    classes: Mapping[str, Sequence[str]] = {}

    def __init__(self, path: Path) -> None:
        self.names: dict[str, None] = {}
        self._path = path
        self._passes = Passes(path)
        self._lines = Lines()

    def chunks(self, columns: Collection[str] | None = None, unread: Collection[str] = ()) -> Iterator[Chunk]:
        for chunk in chunks_of(self._rows()):
            self.names.update(dict.fromkeys(chunk.columns))
            yield chunk.select(columns)

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._passes.begin() as is_first, self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    row = json.loads(text, object_pairs_hook=without_doubles)
                except (ValueError, RecursionError) as error:
                    raise UsageError(
                        f"expected a JSON object, {error}", place=f"{self._path}, line {number}"
                    ) from error
                if not isinstance(row, dict):
                    found = type(row).__name__
                    raise UsageError(place=f"{self._path}, line {number}", expected="a JSON object", found=found)
                if is_first:
                    self._lines.append(number)
                yield row

    def frame(self, texts: Collection[str] = ()) -> list[dict[str, Any]]:
        return list(self._rows())

    def where(self, row: int) -> str:
        return self._lines.where(row)


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object from its pairs, for `json.loads`.

    Raises
    ------
    ValueError
        If a name occurs twice, since Python would take the last value and other parsers the first.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected every name once, found {counted(len(pairs) - len(found), 'name')} repeated")
    return found
