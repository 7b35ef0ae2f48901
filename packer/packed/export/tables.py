"""Tables that an export writes row by row: CSV and JSON lines."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shardspec.registry import ImportTarget

TABLES: Mapping[str, ImportTarget] = {
    "csv": ImportTarget("packer.packed.export.tables:CSVExport"),
    "jsonl": ImportTarget("packer.packed.export.tables:JSONLinesExport"),
    "parquet": ImportTarget("packer.packed.export.parquet:ParquetExport", "parquet"),
}

Row = Mapping[str, Any]


class ExportTable(Protocol):
    """Takes rows of Python values: text, integers, floats and booleans, or None for a missing value.

    Parameters
    ----------
    path : Path
        A new file.
    columns : dict of str to str
        Each column's name, and ``"text"``, ``"intervals"`` (lists of two floats) or a field's dtype.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None: ...

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class CSVExport:
    """CSV in UTF-8 with a header. Booleans are 0 and 1, lists JSON, None empty, and invalid UTF-8 is escaped."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._file = path.open("x", encoding="utf-8", errors="backslashreplace", newline="")
        self._writer = csv.DictWriter(self._file, list(columns))
        self._writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        for row in rows:
            self._writer.writerow({name: _as_cell(value) for name, value in row.items()})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _as_cell(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else json.dumps(value) if isinstance(value, list) else value


class JSONLinesExport:
    """One JSON object per line, in ASCII."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._file = path.open("x", encoding="ascii")

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        self._file.writelines(json.dumps(row) + "\n" for row in rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
