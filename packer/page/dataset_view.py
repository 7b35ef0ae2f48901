"""A dataset as the pages show it, with its rejects and the frames that its samples were cut from."""

import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.packed.browse.dataset import WRONG, BrowsedDataset
from packer.packed.rejects import RejectsReport, parse_report, rejects
from packer.page.cards import SampleCard, cards, text_of
from packer.page.counts import condition_of
from packer.page.summary import describe, find_faults
from readers.drawing.values import printable
from shardspec.columns import IntArray
from shardspec.errors import DatasetError, ItemError
from shardspec.layout import REJECTS_NAME
from shardspec.registry import import_target
from shardspec.schema import Field
from shardspec.wording import program

LINES = 60
"""Rejects per page."""

_LONGEST = 1600
"""Longest side of a whole frame in pixels, as shown."""
_KEPT = 8
_FRAMES = 6
"""Maximum number of frames to draw for a line of the report."""
_LOSS = "loss"


class Original(NamedTuple):
    """A frame that a sample was cut from.

    Attributes
    ----------
    jpeg : bytes
        The frame, reduced if it is very large.
    size : (int, int)
        Width and height of the frame itself.
    box, cut : str
        The box of the face, and the outline of the crop, as data of SVG paths in pixels of the frame; empty if unknown.
    """

    jpeg: bytes
    size: tuple[int, int]
    box: str
    cut: str
    caption: str


@dataclass(frozen=True)
class RejectLine:
    """One line of ``rejects.jsonl``.

    Attributes
    ----------
    frames : tuple of (int or None)
        Frames to draw; None is the first frame of the item.
    count : int
        Number of frames that the line is about; 0 if it is about the item.
    """

    number: int
    item: str
    reason: str
    step: str
    frames: tuple[int | None, ...]
    count: int = 0


class DatasetView:
    """A dataset with its source and its rejects.

    Parameters
    ----------
    source : Path, optional
        The folder or archive that the dataset was packed from.
    """

    def __init__(self, dataset: BrowsedDataset, source: Path | None = None) -> None:
        self.dataset = dataset
        self.name = printable(dataset.name)
        self.originals: Any = None
        if source is not None:
            # Imported here, because without a source the libraries for packing need not be installed.
            originals = import_target("packer.packed.browse.originals:Originals", what="source", extra="pack")
            recipe = dataset.manifest.newest.recipe if dataset.manifest.generations else {}
            self.originals = originals(source, recipe)
        self._drawn: dict[tuple[str, int | None], tuple[bytes, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    @property
    def sort(self) -> str:
        """Default order: the worst samples first if there is a joined table of losses or predictions."""
        if _LOSS in self.dataset.joined:
            return f"-{_LOSS}"
        return f"-{WRONG}" if WRONG in self.dataset.small_fields else ""

    @cached_property
    def about(self) -> dict[str, Any]:
        """Facts of the dataset (`packer.page.summary.describe`)."""
        return describe(self.dataset)

    @cached_property
    def faults(self) -> list[str]:
        """Warnings about the dataset."""
        return list(find_faults(self.dataset))

    @cached_property
    def layers(self) -> list[str]:
        """The layers of geometry that samples may have."""
        named = (("points", "landmarks"), ("outline", "hull"), ("regions", "regions"))
        return [layer for layer, field in named if field in self.dataset.schema]

    @cached_property
    def example(self) -> str:
        """An example of a condition, on fields of the dataset."""
        fields, classes = self.dataset.small_fields, self.dataset.classes
        parts = [f"label == {printable(classes[0])!r}"] if classes and "label" in fields else []
        parts += [f"{name} > {value}" for name, value in (("score", 0.9), ("frame", 10)) if name in fields]
        return " and ".join(parts[:2])

    def cards(self, rows: Sequence[int] | IntArray, first: str = "") -> list[SampleCard]:
        """Return the cards of some rows, with the field `first` before other facts."""
        return cards(self.dataset, [int(row) for row in rows], [first] if first else ())

    def values(self, row: int) -> list[tuple[str, str, str]]:
        """Return name, text, and condition for equal samples, for each field of a sample except images."""
        sample = self.dataset.read([row])[0]
        found = []
        for name, value in sample.items():
            field = self.dataset.schema[name]
            where = ""
            if field.is_small and name != "key":
                where = _like(field, value)
            found.append((name, text_of(field, value), where))
        return found

    def beside(self, row: int, where: str, sort: str) -> tuple[int | None, int | None]:
        """Return the rows before and after a row in a selection, or in the dataset if it is not selected."""
        selection = self.dataset.select(where, sort)
        place = selection.place(row)
        if place is None:
            return (row - 1 if row else None), (row + 1 if row + 1 < len(self.dataset) else None)
        before = int(selection.rows(place - 1, place)[0]) if place else None
        return before, int(selection.rows(place + 1, place + 2)[0]) if place + 1 < len(selection) else None

    def original(self, row: int) -> Original:
        """Return the frame that a sample was cut from.

        Raises
        ------
        ItemError
            If the frame is not in the source.
        """
        names = [name for name in ("source", "frame", "box", "matrix") if name in self.dataset.schema]
        sample = self.dataset.read([row], names)[0]
        source, number = str(sample.get("source") or ""), np.asarray(sample.get("frame"))
        frame = int(number) if number.ndim == 0 and number.dtype.kind in "iu" else None
        if self.originals is None:
            raise ItemError(expected=f"the source, which {program()} view takes as --source")
        jpeg, size = self._draw(source, frame)
        box, path = np.asarray(sample.get("box", ())), ""
        if box.shape == (4,) and box.dtype.kind in "iuf" and np.isfinite(box).all() and (np.abs(box) < 1e6).all():
            left, top, right, bottom = box.tolist()
            path = f"M{left:.2f} {top:.2f}H{right:.2f}V{bottom:.2f}H{left:.2f}Z"
        caption = source if frame is None else f"{source}, frame {frame}"
        cut = _outline_of_crop(np.asarray(sample.get("matrix", ())), self.dataset.sizes([row])[0])
        return Original(jpeg, size, path, cut, printable(caption))

    @property
    def has_rejects(self) -> bool:
        """True if the report of rejects exists and is not empty."""
        entry = self.dataset.manifest.find_file(REJECTS_NAME)
        return entry is not None and entry.bytes > 0

    @cached_property
    def rejects(self) -> RejectsReport | None:
        """The rejects by reason; None if the dataset has no report."""
        try:
            return rejects(self.dataset.path, progress=False)
        except DatasetError:
            return None

    def reject_lines(self, kind: str, page: int) -> tuple[list[RejectLine], bool]:
        """Return the lines of one kind on a page, and whether there are more."""
        found: list[RejectLine] = []
        skip = (page - 1) * LINES
        for number, line in enumerate(self._lines()):
            if line.get("kind") != kind:
                continue
            if skip:
                skip -= 1
                continue
            if len(found) == LINES:
                return found, True
            frames = _frames_of(line)
            shown = frames[:: max(1, len(frames) // _FRAMES)][:_FRAMES] if frames else (None,)
            item, reason, step = (printable(str(line.get(name, ""))) for name in ("item", "reason", "step"))
            found.append(RejectLine(number, item, reason, step, tuple(shown), len(frames)))
        return found, False

    def reject_frame(self, number: int, frame: int | None) -> bytes | None:
        """Return a frame, as JPEG, of the item in a line of the report; None if the line or the source is missing.

        Without a number, it is the first frame of the item.

        Raises
        ------
        ItemError
            If the frame does not decode.
        """
        if self.originals is None:
            return None
        line = next((line for at, line in enumerate(self._lines()) if at == number), None)
        return None if line is None else self._draw(str(line.get("item", "")), frame)[0]

    def _lines(self) -> Iterator[dict[str, Any]]:
        entry = self.dataset.manifest.find_file(REJECTS_NAME)
        if entry is None:
            return iter(())
        self.dataset.pool.layout.check_sizes([entry])  # the file's digest was compared for the summary
        return parse_report(self.dataset.pool.layout.file(entry))

    def _draw(self, item: str, frame: int | None) -> tuple[bytes, tuple[int, int]]:
        """Draw a frame of an item as JPEG, and cache the last few."""
        key = (item, frame)
        with self._lock:
            if key not in self._drawn:
                drawn = _draw_jpeg(self.originals.frame(item, frame))
                while len(self._drawn) >= _KEPT:
                    self._drawn.pop(next(iter(self._drawn)))
                self._drawn[key] = drawn
            return self._drawn[key]


def _outline_of_crop(matrix: npt.NDArray[Any], size: tuple[int, int] | None) -> str:
    """Return the outline of a crop in its frame as the data of an SVG path, from the matrix frame → crop."""
    if matrix.shape != (2, 3) or matrix.dtype.kind != "f" or size is None or not np.isfinite(matrix).all():
        return ""
    width, height = size
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float64)
    try:
        found = np.linalg.solve(matrix[:, :2].astype(np.float64), (corners - matrix[:, 2]).T).T
    except np.linalg.LinAlgError:
        return ""
    if not (np.abs(found) < 1e6).all():
        return ""
    return f"M{'L'.join(f'{x:.2f} {y:.2f}' for x, y in found)}Z"


def _draw_jpeg(found: npt.NDArray[np.uint8]) -> tuple[bytes, tuple[int, int]]:
    """Return a frame as JPEG, reduced if it is very large, and its original width and height."""
    height, width = found.shape[:2]
    image = Image.fromarray(found)
    image.thumbnail((_LONGEST, _LONGEST))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=88)
    return file.getvalue(), (width, height)


def _like(field: Field, value: Any) -> str:
    """Return the condition that selects samples with the same value; empty for fractions, which rarely equal others."""
    if value is None:
        return f"{field.name} is missing"
    plain: Any = printable(value) if isinstance(value, str) else np.asarray(value).item()
    return "" if isinstance(plain, float) else condition_of(field, plain)


def _frames_of(line: dict[str, Any]) -> list[int]:
    frames = line.get("frames")
    if not isinstance(frames, list):
        return []
    return [frame for frame in frames if isinstance(frame, int) and 0 <= frame < 2**31]
