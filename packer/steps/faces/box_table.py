"""Boxes in a table: CSV, JSON lines or Parquet, one row for each face of each frame."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.rows import where_in
from packer.sources.table import read_csv, read_jsonl
from packer.steps.faces.boxes import FARTHEST, GIVEN_SCORE, NO_BOX, are_boxes, check_any
from packer.steps.faces.frame import NO_TRACK, FrameFaces
from shardspec.errors import ItemError, UsageError
from shardspec.points import get_layout
from shardspec.registry import import_target

EDGES = ("x0", "y0", "x1", "y1")
POINTS = tuple(f"{name}_{axis}" for name in get_layout("5").names for axis in ("x", "y"))
"""Columns of the five points: ``right_eye_x``, ``right_eye_y``, ... ``mouth_left_y``; the person's left and right."""

_LAST_FRAME = 2**53
_OPTIONAL = ("score", "track", *POINTS)
_LIKENESS = 0.9  # of names in lower case: "Scores" is similar to "score", "source" and "core" are not


class TableBoxes:
    """The rows of a table of boxes (`packer.steps.faces.boxes.Boxes`), held as arrays, about 100 bytes a row.

    The columns are ``path``, ``frame``, ``x0``, ``y0``, ``x1``, ``y1``, and optionally ``score``, ``track`` and those
    of `POINTS`. Any other column is ignored, unless its name is nearly that of one of these. The faces of a frame keep
    the order of the rows.

    Raises
    ------
    UsageError
        If a column is missing or seems to be misspelt, or if a value is not what its column should hold.
    """

    no_box = NO_BOX
    floors: Mapping[str, float] = {}

    def __init__(self, path: Path, scale: float) -> None:
        self._path = path
        self._scale = scale
        columns, lines = _read(path)
        self._where = where_in(lines)
        points = [name for name in POINTS if name in columns]
        missing = [name for name in ("path", "frame", *EDGES) if name not in columns]
        missing += [name for name in POINTS if points and name not in columns]
        if missing:
            raise UsageError(f"{path}: expected columns {', '.join(missing)}, found {', '.join(columns)}")
        count = len(columns["path"])
        self._boxes = np.stack([self._numbers(columns, name) for name in EDGES], axis=1)
        self._refuse(~are_boxes(self._boxes), f"a box with x0 < x1 and y0 < y1, within ±{FARTHEST}", self._boxes)
        self._frames = self._integers(columns, "frame", 0)
        scores = self._numbers(columns, "score") if "score" in columns else np.full(count, GIVEN_SCORE)
        self._refuse(~((scores >= 0) & (scores <= 1)), "a score from 0 to 1", scores)
        self._scores = scores.astype(np.float32)
        self._tracks = self._integers(columns, "track", NO_TRACK) if "track" in columns else None
        self._points = np.full((count, 5, 2), np.nan, np.float32)
        if points:
            values = np.stack([self._numbers(columns, name) for name in POINTS], axis=1)
            values[~(np.abs(values) < FARTHEST).all(axis=1)] = np.nan
            self._points[:] = values.reshape(count, 5, 2)
        self.has_points = bool(np.isfinite(self._points).any())
        self._rows = self._group([str(name) for name in columns["path"]])
        self._refuse_double_tracks()

    def _refuse_double_tracks(self) -> None:
        """Refuse a track with two faces in one frame: its clips would have two pictures at a time."""
        if self._tracks is None:
            return
        wrong = np.zeros(len(self._tracks), np.bool_)
        for rows in self._rows.values():
            tracked = rows[self._tracks[rows] != NO_TRACK]
            order = tracked[np.lexsort((self._tracks[tracked], self._frames[tracked]))]
            same = (np.diff(self._frames[order]) == 0) & (np.diff(self._tracks[order]) == 0)
            wrong[order[1:][same]] = True
        self._refuse(wrong, "each track once in a frame", self._tracks)

    def check(self, names: Sequence[str]) -> tuple[str, ...]:
        """See `packer.steps.faces.boxes.Boxes`."""
        return check_any(self._path, self._rows, names)

    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces]:
        """See `packer.steps.faces.boxes.Boxes`."""
        rows = self._rows.get(name)
        if rows is None:
            raise ItemError(f"boxes: expected rows with path {name!r} in {self._path.name}, found none")
        frames = self._frames[rows]
        cuts = np.flatnonzero(np.diff(frames)) + 1
        return {int(self._frames[some[0]]): self._faces(some) for some in np.split(rows, cuts)}

    def _faces(self, rows: npt.NDArray[np.int64]) -> FrameFaces:
        return FrameFaces(
            (self._boxes[rows] * self._scale).astype(np.float32),
            self._scores[rows],
            (self._points[rows] * self._scale).astype(np.float32),
            None if self._tracks is None else self._tracks[rows],
        )

    def _group(self, names: list[str]) -> dict[str, npt.NDArray[np.int64]]:
        """The rows of each path, by frame, else in their order."""
        if not names:
            return {}
        known, codes = np.unique(np.array(names), return_inverse=True)
        order = np.lexsort((self._frames, codes))
        cuts = np.flatnonzero(np.diff(codes[order])) + 1
        return dict(zip(known.tolist(), np.split(order, cuts), strict=True))

    def _numbers(self, columns: Mapping[str, Any], name: str) -> npt.NDArray[np.float64]:
        """A column as float64, NaN where a value is missing."""
        try:
            return np.array([np.nan if value is None else value for value in columns[name]], np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self._path}: expected numbers in column {name!r}, {error}") from error

    def _integers(self, columns: Mapping[str, Any], name: str, least: int) -> npt.NDArray[np.int64]:
        values = self._numbers(columns, name)
        whole = (values == np.floor(values)) & (values >= least) & (values < _LAST_FRAME)
        self._refuse(~whole, f"a whole number of {least} or more in column {name!r}", values)
        return values.astype(np.int64)

    def _refuse(self, wrong: npt.NDArray[np.bool_], expected: str, values: npt.NDArray[Any]) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UsageError(f"{self._path}, {self._where(row)}: expected {expected}, found {values[row].tolist()}")


def _refuse_misspelt(path: Path, names: Collection[str]) -> None:
    """Refuse names that are nearly an optional column's: nothing else would notice that the column is missing."""
    for name in sorted(set(names) - set(_OPTIONAL)):
        meant = get_close_matches(name.lower(), _OPTIONAL, n=1, cutoff=_LIKENESS)
        if meant and meant[0] not in names:
            raise UsageError(f"{path}: expected no column {name!r}, which nothing reads; did you mean {meant[0]!r}?")


def _read(path: Path) -> tuple[dict[str, Any], Sequence[int]]:
    """The columns of a table, and the lines of its rows."""
    if path.suffix.lower() == ".parquet":
        read = import_target("pyarrow.parquet:read_table", what=f"table {path.name}", extra="parquet")
        try:
            table = read(path)
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of both
            raise UsageError(f"{path}: expected a Parquet file, {error}") from error
        _refuse_misspelt(path, table.column_names)
        wanted = {"path", "frame", *_OPTIONAL, *EDGES}
        return {name: table.column(name).to_pylist() for name in table.column_names if name in wanted}, ()
    rows, lines = read_csv(path) if path.suffix.lower() == ".csv" else read_jsonl(path)
    names = dict.fromkeys(name for row in rows for name in row)
    _refuse_misspelt(path, names)
    return {name: [row.get(name) for row in rows] for name in names}, lines
