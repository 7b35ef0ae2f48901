"""Boxes from a packed dataset of face crops, or from a result of ``packer detect``."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.groups import read_groups
from packer.assembly.packed_rows import PackedRows, read_column
from packer.steps.faces.boxes import Boxes, repeated_tracks, split_frames
from packer.steps.faces.frame import NO_TRACK, FrameFaces
from packer.vision.detect.interface import FARTHEST, are_boxes
from packer.vision.geometry.affine import apply, invert
from packer.vision.landmarks.shape import five_points
from shardspec.columns import Columns
from shardspec.errors import ItemError, UsageError
from shardspec.layout import REJECTS_NAME, Layout
from shardspec.points import LAYOUTS
from shardspec.schema import Field, Schema
from shardspec.wording import program

_Shape = tuple[int | None, ...]

_FIELDS: Mapping[str, tuple[str, _Shape]] = {
    "frame": ("iu", ()),
    "box": ("f", (4,)),
    "box_valid": ("b", ()),
    "score": ("f", ()),
    "track": ("i", ()),
    "time": ("f", ()),
    "frame_position": ("iu", ()),
    "landmarks": ("f", (None, 2)),
    "landmarks_valid": ("b", ()),
    "interpolated": ("b", ()),
    "matrix": ("f", (2, 3)),
    "frame_size": ("iu", (2,)),
    "source_bytes": ("iu", ()),
}
"""The fields to read, with the kinds of their dtypes and their shapes. None is an axis of any size."""

_REQUIRED = ("source", "frame", "box")


class PackedBoxes(Boxes):
    """The faces of a packed dataset, read item by item.

    If the dataset has a field ``matrix``, landmarks are in pixels of the crop, and the matrix maps them back to the
    frame. In a dataset without images, they are in pixels of the frame. Dense landmarks are reduced to five points.
    It holds 16 bytes per sample, the items' names, and the dataset's rejects in memory. If `scale` is not 1, the sizes
    of frames and files are not compared.

    Raises
    ------
    UsageError
        If the dataset lacks a required field, or a field has an unexpected kind.
    """

    def __init__(self, path: Path, scale: float) -> None:
        super().__init__(path, scale)
        self._layout = Layout(path)
        self._manifest = self._layout.load()
        schema = self._manifest.schema
        self._fields = list(_check_fields(path, schema))
        self._in_crop = "matrix" in self._fields
        count = schema["landmarks"].fixed_shape[0] if "landmarks" in self._fields else 0
        known = str(count) in LAYOUTS and (self._in_crop or not any(field.is_image for field in schema))
        self._points = str(count) if known else None
        recipes = [g.recipe for g in self._manifest.generations if g.recipe.get("preset") == "faces"]
        self._keeps_faceless = any(recipe.get("keep_faceless") is True for recipe in recipes)
        self.floors = {
            name: least for name in ("min_face", "min_score") if (least := _floor(recipes, name)) is not None
        }
        self.no_box = f"{path.name} has no entry for it: it was not among the frames searched for faces"
        groups = read_groups(path, "source")
        order = np.argsort(groups.of_row, kind="stable")
        starts = np.searchsorted(groups.of_row[order], np.arange(len(groups.names) + 1))
        self._order = order
        self._rows = {name: slice(*starts[at : at + 2].tolist()) for at, name in enumerate(groups.names)}
        self._rejects = self._read_rejects()

    @cached_property
    def has_points(self) -> bool:
        if self._points is None:
            return False
        if "landmarks_valid" not in self._fields:
            return True
        return bool(np.any(read_column(self.path, self._manifest, "landmarks_valid")))

    def names(self) -> Iterable[str]:
        return self._rows

    def faces(self, name: str, file_bytes: int = 0) -> Mapping[int, FrameFaces | str]:
        reports = self._rejects.get(name, [])
        place = self._rows.get(name)
        if place is None:
            for report in reports:
                if report.get("kind") == "item":
                    raise ItemError(f"boxes: rejected in {self.path.name} ({report.get('step')}: {report['reason']})")
            raise ItemError(place="boxes", expected=f"samples with source {name!r} in {self.path.name}", found="none")
        rows = np.sort(self._order[place])
        with closing(PackedRows.of(self.path, check="size", manifest=self._manifest)) as packed:
            keys = ["key"] if "key" in packed.schema else []
            columns = packed.read(rows, [*self._fields, *keys])
        columns = self._check(name, _without_repeats(_sorted(columns)), file_bytes)
        known: dict[int, FrameFaces | str] = {
            frame: f"no face of it in {self.path.name}: {report['reason']}"
            for report in reports
            if report.get("kind") == "frames"
            for frame in report["frames"]
        }
        for some in split_frames(columns["frame"]):
            known[int(columns["frame"][some[0]])] = self._faces(
                {field: column[some] for field, column in columns.items()}
            )
        return known

    def _faces(self, columns: Columns) -> FrameFaces:
        real = columns["box_valid"]
        shape = None
        if "frame_size" in columns and self.scale == 1:
            width, height = columns["frame_size"][0].tolist()
            shape = (height, width, 3)
        return FrameFaces(
            (columns["box"][real] * self.scale).astype(np.float32),
            columns["score"][real].astype(np.float32),
            self._points_of(columns)[real] * self.scale,
            columns["track"][real].astype(np.int64) if "track" in columns else None,
            shape,
            float(columns["time"][0]) if "time" in columns else None,
            columns["matrix"][real] if self._in_crop and self.scale == 1 else None,
        )

    def _points_of(self, columns: Columns) -> npt.NDArray[np.floating]:
        """Return the five points of each row in frame pixels, (rows, 5, 2); NaN for rows without points."""
        count = len(columns["box"])
        points = np.full((count, 5, 2), np.nan, np.float32 if self._points == "5" and not self._in_crop else np.float64)
        if self._points is None:
            return points
        valid = columns["landmarks_valid"] if "landmarks_valid" in columns else np.ones(count, np.bool_)
        for row in np.flatnonzero(valid).tolist():
            found = columns["landmarks"][row]
            if not np.isfinite(found).all():
                continue
            five = found if self._points == "5" else five_points(found, self._points)
            points[row] = _in_frame(columns["matrix"][row], five) if self._in_crop else five
        points[~(np.abs(points) < FARTHEST).all(axis=(1, 2))] = np.nan
        return points

    def _check(self, name: str, columns: Columns, file_bytes: int) -> Columns:
        """Return the columns of one item with ``box_valid`` and ``score``; an `ItemError` if a value is impossible."""
        count = len(columns["box"])
        columns.setdefault("box_valid", np.ones(count, np.bool_))
        real: npt.NDArray[np.bool_] = columns["box_valid"]
        score = columns.setdefault("score", np.ones(count, np.float32))
        if self._keeps_faceless:  # an item without faces is stored as whole frames
            placed: npt.NDArray[np.bool_] = columns.get("landmarks_valid", real)
            columns["box_valid"] = real = real & (placed | (score != 0))
        if "interpolated" in columns:  # these faces were not detected; `fill` computes them again
            columns["box_valid"] = real = real & ~(columns["interpolated"] & (score == 0))

        def refuse(wrong: npt.NDArray[np.bool_], field: str, expected: str) -> None:
            if wrong.any():
                found = columns[field][int(np.flatnonzero(wrong)[0])].tolist()
                raise ItemError(f"boxes: {self.path.name}, {name!r}: expected {expected}, found {found}")

        refuse(columns["frame"] < 0, "frame", "frames of 0 and more")
        refuse(real & ~are_boxes(columns["box"].astype(np.float64)), "box", "boxes with an area")
        refuse(real & ~((score >= 0) & (score <= 1)), "score", "scores from 0 to 1")
        if "track" in columns:
            refuse(columns["track"] < NO_TRACK, "track", f"tracks of {NO_TRACK} and more")
            refuse(real & repeated_tracks(columns["track"], columns["frame"]), "track", "each track once in a frame")
        if "source_bytes" in columns and self.scale == 1 and file_bytes:
            before = columns["source_bytes"]
            if (before[before > 0] != file_bytes).any():
                raise ItemError(
                    place="boxes",
                    expected=(
                        f"{name!r} as it was when {self.path.name} was packed, with {int(before[before > 0][0]):,} "
                        "bytes"
                    ),
                    found=f"{file_bytes:,}",
                )
        return columns

    def _read_rejects(self) -> dict[str, list[dict[str, Any]]]:
        """Return the reports of each item that was rejected or has frames without a sample."""
        found: dict[str, list[dict[str, Any]]] = {}
        entry = self._manifest.find_file(REJECTS_NAME)
        if entry is not None:
            with self._layout.file(entry).open("rb") as file:
                for report in filter(None, map(_read_report, file)):
                    found.setdefault(report["item"], []).append(report)
        return found


def _read_report(line: bytes) -> dict[str, Any] | None:
    """Parse a line of ``rejects.jsonl``; None if it does not report a rejected item or frames without a sample."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not all(isinstance(report.get(name), str) for name in ("item", "reason")):
        return None
    frames = report.get("frames")
    if report.get("kind") == "frames" and isinstance(frames, list) and all(type(frame) is int for frame in frames):
        return report
    return report if report.get("kind") == "item" else None


def _check_fields(path: Path, schema: Schema) -> Iterator[str]:
    """Yield the names of the fields to read, except ``source``."""
    missing = [name for name in _REQUIRED if name not in schema]
    if missing:
        raise UsageError(
            place=path,
            expected=f"a packed dataset of faces, with the fields {', '.join(_REQUIRED)}",
            found=f"none called {' or '.join(missing)}",
            hint=f"pack one with --preset faces, or with {program()} detect",
        )
    if schema["source"].kind != "text":
        raise UsageError(place=path, expected="text in field 'source'", found=schema["source"].kind)
    for name, (kinds, shape) in _FIELDS.items():
        if name not in schema:
            continue
        field = schema[name]
        if not _fits(field, kinds, shape):
            shown = f"{field.dtype} of shape {list(field.shape)}"
            raise UsageError(f"field {name!r} is not that of faces: found {shown}", place=path)
        yield name


def _fits(field: Field, kinds: str, shape: _Shape) -> bool:
    if not field.is_fixed or field.dtype[1] not in kinds or len(field.fixed_shape) != len(shape):
        return False
    return all(axis in (None, found) for axis, found in zip(shape, field.fixed_shape, strict=True))


def _floor(recipes: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the largest value of an option in the recipes of all generations; None if no recipe has it."""
    values = [value for recipe in recipes if isinstance(value := recipe.get(name), int | float)]
    return max(values, default=None)


def _sorted(columns: Columns) -> Columns:
    """Sort the rows of one item by frame, and within a frame by key: a dataset may be shuffled."""
    frames = columns["frame"]
    keys = [bytes(key) for key in columns.pop("key", [b""] * len(frames))]
    order = sorted(range(len(frames)), key=lambda row: (int(frames[row]), len(keys[row]), keys[row]))
    return {name: column[order] for name, column in columns.items()}


def _without_repeats(columns: Columns) -> Columns:
    """Keep only the first copy of frames that ``resample_fps`` repeated. Rows must be sorted."""
    if "frame_position" not in columns:
        return columns
    frames, positions = columns["frame"], columns["frame_position"]
    first = positions == positions[np.searchsorted(frames, frames)]
    return {name: column[first] for name, column in columns.items()}


def _in_frame(matrix: npt.NDArray[np.floating], points: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Map points of a crop into its frame; NaN if the matrix has no inverse."""
    try:
        return apply(invert(matrix), points)
    except ValueError:
        return np.full((5, 2), np.nan)
