"""Groups of samples that look the same, and the worst samples of each measure, for the pages."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.analysis.duplicates.result import Duplicates, DuplicateSample
from packer.jobs.progress import ProgressListener
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.cards import SampleCard
from readers.drawing.values import printable
from shardspec.registry import import_target

MOST_SAMPLES = 24
"""Samples of a group to show."""

WORST: Mapping[str, Mapping[str, str]] = {
    "quality": {"sharpness": "", "brightness": "light or dark", "contrast": "", "clipped": "-"},
    "face": {"yaw": "±", "pitch": "±", "roll": "±", "eye_distance": "", "outside": "-"},
}
"""Columns of built-in functions, with the order of the worst samples: ascending, descending, by absolute value, or from the middle."""

_MIDDLE = 127.5
"""Luma that is neither light nor dark."""


@dataclass(frozen=True)
class GroupSample:
    """A sample of a group.

    Attributes
    ----------
    dataset : int
        The number of its dataset.
    distance : float or None
        To the nearest sample of the group.
    across : str
        Its value of the field across which duplicates were searched, or the name of its dataset.
    """

    dataset: int
    row: int
    distance: float | None
    across: str


@dataclass(frozen=True)
class Group:
    """Samples that look the same.

    Attributes
    ----------
    distance : float
        The smallest of the group.
    labels : tuple of str
        All labels of the group.
    samples : tuple of GroupSample
    """

    distance: float
    labels: tuple[str, ...]
    samples: tuple[GroupSample, ...]

    @property
    def conflict(self) -> bool:
        """True if samples have different labels."""
        return len(self.labels) > 1


def find_duplicates(datasets: Sequence[str | os.PathLike[str]], listener: ProgressListener) -> Duplicates:
    """Search for samples that look the same (`packer.duplicates`)."""
    search = import_target("packer.analysis.duplicates.find:duplicates", what="duplicates", extra="torch")
    found: Duplicates = search(datasets, progress=listener)
    return found


def arrange_groups(found: Duplicates) -> list[Group]:
    """Return the groups, those with the smallest distance first."""
    numbers = {name: number for number, name in enumerate(found.datasets)}
    nearest: dict[tuple[str, int], float] = {}
    for pair in found.pairs:
        for sample in (pair.one, pair.other):
            place = sample.dataset, sample.row
            nearest[place] = min(pair.distance, nearest.get(place, pair.distance))

    def shown(sample: DuplicateSample) -> GroupSample:
        across = sample.across if found.across not in ("", "datasets", "source") else None
        name = across if across is not None or len(numbers) == 1 else sample.dataset
        distance = nearest.get((sample.dataset, sample.row))
        return GroupSample(numbers[sample.dataset], sample.row, distance, printable(name or ""))

    groups = []
    for members in found.groups:
        samples = sorted(map(shown, members), key=lambda one: (one.distance, one.dataset, one.row))
        labels = tuple(dict.fromkeys(printable(one.label) for one in members if one.label is not None))
        groups.append(Group(min(one.distance or 0.0 for one in samples), labels, tuple(samples)))
    return sorted(groups, key=lambda one: (one.distance, -len(one.samples)))


def show_groups(
    groups: Sequence[Group], cards: Callable[[int, list[int]], list[SampleCard]]
) -> Iterator[tuple[Group, list[tuple[GroupSample, SampleCard]]]]:
    """Yield groups with the cards of their first samples.

    Parameters
    ----------
    cards : callable
        Called with the number of a dataset and some of its rows.
    """
    for group in groups:
        some = group.samples[:MOST_SAMPLES]
        made: dict[tuple[int, int], SampleCard] = {}
        for number in {sample.dataset for sample in some}:
            rows = [sample.row for sample in some if sample.dataset == number]
            made |= {(number, row): card for row, card in zip(rows, cards(number, rows), strict=True)}
        yield group, [(sample, made[sample.dataset, sample.row]) for sample in some]


def worst_rows(dataset: BrowsedDataset, count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the measures that a dataset has, each with the rows of its worst samples, the worst first."""
    for column in dataset.manifest.columns:
        order = WORST.get(str(column.computed.get("function")), {}).get(column.field)
        if order is None or column.field not in dataset.small_fields:
            continue
        values: Any = np.ma.masked_invalid(np.ma.asarray(dataset.column(column.field), np.float64))
        ranks = {
            "": values,
            "-": -values,
            "±": -np.ma.abs(values),
            "light or dark": -np.ma.abs(values - _MIDDLE),
        }[order]
        known = np.ma.count(values)
        yield column.field, np.argsort(np.ma.filled(ranks, np.inf), kind="stable")[: min(count, known)].tolist()
