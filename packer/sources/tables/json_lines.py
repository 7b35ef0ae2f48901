"""Tables of JSON lines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.sources.json_values import parse_json
from packer.sources.tables.base import Lines, Passes
from packer.sources.tables.chunks import Chunk, chunks_of
from shardspec.errors import UsageError


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
                place = f"{self._path}, line {number}"
                try:
                    row = parse_json(line)
                except ValueError as error:
                    raise UsageError(str(error), place=place) from error
                if not isinstance(row, dict):
                    raise UsageError(place=place, expected="a JSON object", found=type(row).__name__)
                if is_first:
                    self._lines.append(number)
                yield row

    def frame(self, texts: Collection[str] = ()) -> dict[str, list[Any]]:
        rows = list(self._rows())
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def where(self, row: int) -> str:
        return self._lines.where(row)
