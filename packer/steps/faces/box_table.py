"""Boxes in a table file, one row for each face of each frame."""

from array import array
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.tables.base import open_table
from packer.sources.tables.chunks import Chunk
from packer.steps.faces.boxes import GIVEN_SCORE, Boxes, repeated_tracks, split_frames
from packer.steps.faces.frame import NO_TRACK, FrameFaces
from packer.vision.detect.interface import FARTHEST, are_boxes
from shardspec.errors import ItemError, UsageError
from shardspec.points import get_layout
from shardspec.typing.cells import keep_cells
from shardspec.wording import counted

EDGES = ("x0", "y0", "x1", "y1")
POINTS = tuple(f"{name}_{axis}" for name in get_layout("5").names for axis in ("x", "y"))
"""Columns of the five points: ``right_eye_x``, ``right_eye_y``, ... ``mouth_left_y``; the person's left and right."""

_LAST_FRAME = 2**53
_REQUIRED = ("path", "frame", *EDGES)
_OPTIONAL = ("score", "track", *POINTS)
_LIKENESS = 0.9  # of names in lower case: "Scores" is similar to "score", "source" and "core" are not


class TableBoxes(Boxes):
    """The rows of a table of boxes, held as arrays, about 100 bytes a row.

    The columns are ``path``, ``frame``, ``x0``, ``y0``, ``x1``, ``y1``, and optionally ``score``, ``track`` and those
    of `POINTS`. Any other column is ignored, unless its name is nearly that of one of these. The faces of a frame keep
    the order of the rows.

    Raises
    ------
    UsageError
        If a column is missing or seems to be misspelt, a value does not fit its column, or the boxes are shares of the
        frame instead of pixels.
    """

    def __init__(self, path: Path, scale: float) -> None:
        super().__init__(path, scale)
        self._table = open_table(path)
        paths, of_rows, columns = self._read()
        count = len(of_rows)
        self._boxes = np.stack([columns[name] for name in EDGES], axis=1)
        self._refuse(~are_boxes(self._boxes), f"a box with x0 < x1 and y0 < y1, within ±{FARTHEST}", self._boxes)
        if count and (np.abs(self._boxes) * scale).max() <= 1:
            raise UsageError(
                place=path,
                expected="boxes in pixels of the frame",
                found="all of them within 0 and 1",
                hint="multiply x by the frame's width and y by its height",
            )
        self._frames = self._integers(columns, "frame", 0)
        scores = columns.get("score", np.full(count, GIVEN_SCORE))
        self._refuse(~((scores >= 0) & (scores <= 1)), "a score from 0 to 1", scores)
        self._scores = scores.astype(np.float32)
        self._tracks = self._integers(columns, "track", NO_TRACK) if "track" in columns else None
        self._points = np.full((count, 5, 2), np.nan, np.float32)
        if POINTS[0] in columns:
            values = np.stack([columns[name] for name in POINTS], axis=1)
            values[~(np.abs(values) < FARTHEST).all(axis=1)] = np.nan
            self._points[:] = values.reshape(count, 5, 2)
        self._rows = self._group(paths, of_rows)
        if self._tracks is not None:  # clips of a track with two faces in a frame would have two images at a time
            wrong = repeated_tracks(self._tracks, self._frames, of_rows)
            self._refuse(wrong, "each track once in a frame", self._tracks)

    @property
    def has_points(self) -> bool:
        return bool(np.isfinite(self._points).any())

    def names(self) -> Iterable[str]:
        return self._rows

    def _read(self) -> tuple[dict[str, int], npt.NDArray[np.int64], dict[str, npt.NDArray[np.float64]]]:
        """Return a number for each path, the path number of each row, and the other columns, with NaN if missing."""
        paths: dict[str, int] = {}
        of_rows = array("q")
        numbers: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in (*_REQUIRED[1:], *_OPTIONAL)}
        for chunk in self._table.chunks((*_REQUIRED, *_OPTIONAL)):
            names = ("" if path is None else str(path) for path in chunk.column("path"))
            of_rows.extend(paths.setdefault(name, len(paths)) for name in names)
            for name, parts in numbers.items():
                parts.append(self._numbers(chunk, name))
        known = dict.fromkeys(self._table.names).keys()
        self._check_names(known)
        columns = {name: np.concatenate([np.empty(0), *parts]) for name, parts in numbers.items() if name in known}
        return paths, np.frombuffer(of_rows, np.int64), columns

    def _check_names(self, names: KeysView[str]) -> None:
        """Refuse a table that lacks a column, or whose optional column seems to be misspelt."""
        for name in sorted(names - set(_OPTIONAL)):
            meant = get_close_matches(name.lower(), _OPTIONAL, n=1, cutoff=_LIKENESS)
            if meant and meant[0] not in names:
                raise UsageError(
                    place=self.path, expected=f"no column {name!r}, which nothing reads; did you mean {meant[0]!r}?"
                )
        missing = [name for name in _REQUIRED if name not in names]
        if not names.isdisjoint(POINTS):
            missing += [name for name in POINTS if name not in names]
        if missing:
            raise UsageError(place=self.path, expected=f"columns {', '.join(missing)}", found=", ".join(names))

    def check(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*super().check(names), *self._describe_mirrored())

    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces]:
        rows = self._rows.get(name)
        if rows is None:
            raise ItemError(place="boxes", expected=f"rows with path {name!r} in {self.path.name}", found="none")
        return {int(self._frames[rows[some[0]]]): self._faces(rows[some]) for some in split_frames(self._frames[rows])}

    def _faces(self, rows: npt.NDArray[np.int64]) -> FrameFaces:
        return FrameFaces(
            (self._boxes[rows] * self.scale).astype(np.float32),
            self._scores[rows],
            (self._points[rows] * self.scale).astype(np.float32),
            None if self._tracks is None else self._tracks[rows],
        )

    def _describe_mirrored(self) -> Iterator[str]:
        """Warn if most faces have left and right exchanged: aligned crops would be turned upside down.

        Seen from the right eye, the mouth is clockwise of the left eye, for any turn of the head in the image.
        """
        right, left, _, *mouth = np.moveaxis(self._points, 1, 0)
        across, down = left - right, (mouth[0] + mouth[1]) / 2 - right
        turn = across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]
        mirrored, faces = int((turn < 0).sum()), int(np.isfinite(turn).sum())
        if 2 * mirrored > faces:
            yield (
                f"{self.path.name}: left and right seem to be exchanged in {mirrored} of {counted(faces, 'face')} with "
                "points: right_eye is the person's, on the left of the image, and so is mouth_right"
            )

    def _group(self, paths: Mapping[str, int], of_rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the rows of each path, sorted by frame and otherwise in their order."""
        if not paths:
            return {}
        order = np.lexsort((self._frames, of_rows))
        cuts = np.flatnonzero(np.diff(of_rows[order])) + 1
        return dict(zip(paths, np.split(order, cuts), strict=True))

    def _numbers(self, chunk: Chunk, name: str) -> npt.NDArray[np.float64]:
        """Return the numbers of a column in a chunk of rows, with NaN for missing values."""
        if name not in chunk.columns:
            return np.full(chunk.rows, np.nan)
        values = keep_cells(chunk.columns[name]) if self._table.is_text else chunk.columns[name]
        try:
            return np.fromiter((np.nan if value is None else value for value in values), np.float64, chunk.rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"expected numbers in column {name!r}, {error}", place=self.path) from error

    def _integers(self, columns: Mapping[str, npt.NDArray[np.float64]], name: str, least: int) -> npt.NDArray[np.int64]:
        values = columns[name]
        whole = (values == np.floor(values)) & (values >= least) & (values < _LAST_FRAME)
        self._refuse(~whole, f"a whole number of {least} or more in column {name!r}", values)
        return values.astype(np.int64)

    def _refuse(self, wrong: npt.NDArray[np.bool_], expected: str, values: npt.NDArray[Any]) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UsageError(
                place=f"{self.path}, {self._table.where(row)}", expected=expected, found=values[row].tolist()
            )
