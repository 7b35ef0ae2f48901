"""Cards: samples on a page, with image size, geometry and facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.packed.browse.dataset import BrowsedDataset
from readers.drawing.geometry import Shape, is_valid, shapes_of
from readers.drawing.values import describe_value, printable
from shardspec.columns import IntArray
from shardspec.schema import Field

GEOMETRY = ("landmarks", "landmarks_valid", "hull", "regions")
_FACTS = ("source", "frame", "track", "score")


@dataclass(frozen=True)
class SampleCard:
    """A sample in a grid.

    Attributes
    ----------
    title : str
        The sample's key, or its row if there is no key.
    label : str
        The sample's class; empty if it has none.
    facts : tuple of (str, str)
        Names of some fields and their values as text.
    size : tuple of int, or None
        Width and height of the image in pixels.
    valid : bool
        Whether the landmarks are valid.
    """

    row: int
    title: str
    label: str
    facts: tuple[tuple[str, str], ...]
    size: tuple[int, int] | None
    shapes: list[Shape]
    valid: bool

    @property
    def short(self) -> str:
        """The facts without the source, in one line."""
        return " · ".join(f"{name} {value}" for name, value in self.facts if name != "source")

    @property
    def layers(self) -> list[str]:
        """The layers of the sample, in drawing order."""
        return list(dict.fromkeys(shape.layer for shape in self.shapes))


def cards(dataset: BrowsedDataset, rows: Sequence[int] | IntArray, more: Sequence[str] = ()) -> list[SampleCard]:
    """Return the cards of some rows. Their facts begin with the fields `more` and the fields of a joined table."""
    named = [name for name in dict.fromkeys((*more, *dataset.joined, *_FACTS)) if name in dataset.small_fields]
    stored = [name for name in named if name in dataset.schema]
    wanted = dict.fromkeys([*stored, *(name for name in ("key", "label", *GEOMETRY) if name in dataset.schema)])
    samples = dataset.read(rows, list(wanted)) if wanted else [{} for _ in rows]
    in_time = [name for name in GEOMETRY if name in dataset.schema and dataset.schema[name].in_time]
    for sample in samples:  # the picture of a video is its middle frame
        sample.update({name: sample[name][len(sample[name]) // 2] for name in in_time})
    for name in named:
        if name not in wanted:
            values = dataset.column(name)[np.asarray(rows, np.int64)]
            for sample, value in zip(samples, values, strict=True):
                sample[name] = None if value is np.ma.masked else value
    sizes = dataset.sizes(rows)
    return [
        _card(dataset, int(row), sample, size, named) for row, sample, size in zip(rows, samples, sizes, strict=True)
    ]


def _card(
    dataset: BrowsedDataset, row: int, sample: Mapping[str, Any], size: tuple[int, int] | None, named: Sequence[str]
) -> SampleCard:
    facts = [
        (name, text_of(dataset.field(name), sample[name]))
        for name in named
        if name not in ("key", "label")
        and sample[name] is not None
        and not (name == "track" and _is_none(sample[name]))
    ]
    label = text_of(dataset.field("label"), sample["label"]) if sample.get("label") is not None else ""
    title = printable(str(sample["key"])) if "key" in sample else f"row {row}"
    return SampleCard(row, title, label, tuple(facts), size, shapes_of(sample), is_valid(sample))


def _is_none(track: Any) -> bool:
    return not isinstance(track, str) and bool(np.all(np.asarray(track) < 0))


def text_of(field: Field, value: Any) -> str:
    """Describe a value of a field."""
    return "missing" if value is None else describe_value(value, field.classes)
