"""Result of `packer duplicates`."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packer.jobs.result import Result
from shardspec.wording import counted

_SHOWN = 20


class DuplicateSample(NamedTuple):
    """A sample that looks like another.

    Attributes
    ----------
    dataset : str
        Folder or URL as given.
    row : int
    key : str
    source : str or None
        Name of its file or video; None without such a field.
    label : str or None
        Name or number of its class; None without a label.
    across : str or None
        Its value of the field across which duplicates were searched.
    """

    dataset: str
    row: int
    key: str
    source: str | None
    label: str | None
    across: str | None


class DuplicatePair(NamedTuple):
    """Two samples that look the same.

    Attributes
    ----------
    one, other : DuplicateSample
    distance : float
        0 for equal pixels; otherwise 1 minus the correlation of their luma, or the cosine distance of their vectors.
    """

    one: DuplicateSample
    other: DuplicateSample
    distance: float

    @property
    def conflict(self) -> bool:
        """True if both samples have a label, and the labels differ."""
        return None not in (self.one.label, self.other.label) and self.one.label != self.other.label


@dataclass(frozen=True, repr=False)
class Duplicates(Result):
    """Samples that look the same.

    Attributes
    ----------
    datasets : tuple of str
        As given.
    samples : int
        Number of samples that were compared.
    across : str
        Name of the field across whose values duplicates were searched; ``"datasets"``, or empty for all pairs.
    pairs : tuple of DuplicatePair
        By distance.
    groups : tuple of tuple of DuplicateSample
        Samples that pairs connect, directly or through others; the largest groups first.
    leaks : bool
        Whether there are pairs between datasets, or between values of a field that the caller named.
    """

    datasets: tuple[str, ...]
    samples: int
    across: str
    pairs: tuple[DuplicatePair, ...]
    groups: tuple[tuple[DuplicateSample, ...], ...]
    leaks: bool

    @property
    def conflicts(self) -> tuple[DuplicatePair, ...]:
        """Pairs with different labels."""
        return tuple(pair for pair in self.pairs if pair.conflict)

    def describe(self) -> str:
        """Describe the numbers, then the closest pairs and the conflicts."""
        where = {"": "", "datasets": " between the datasets"}.get(self.across, f" across {self.across}")
        text = f"{', '.join(self.datasets)}: {counted(self.samples, 'sample')}"
        if not self.pairs:
            return f"{text}, no duplicates{where}"
        equal = sum(pair.distance == 0 for pair in self.pairs)
        alike = sum(map(len, self.groups))
        lines = [
            f"{text}, {alike} of them in {counted(len(self.groups), 'group')} of duplicates{where}: "
            f"{counted(len(self.pairs), 'pair')} ({equal} with distance 0), {len(self.conflicts)} with different labels"
        ]
        for title, pairs in (("pairs with different labels", self.conflicts), ("pairs", self.pairs)):
            if pairs:
                lines += [f"{title}, by distance:", *map(self._describe_pair, pairs[:_SHOWN])]
                lines += [f"  … and {len(pairs) - _SHOWN} more (-o FILE.csv lists all)"] if len(pairs) > _SHOWN else []
        return "\n".join(lines)

    def _describe_pair(self, pair: DuplicatePair) -> str:
        return f"  {pair.distance:.3f}  " + "  ".join(map(self._describe_sample, (pair.one, pair.other)))

    def _describe_sample(self, sample: DuplicateSample) -> str:
        across = sample.across if self.across != "source" else None
        facts = [fact for fact in (sample.source, across, sample.label) if fact is not None]
        place = f"{sample.dataset}: " if len(self.datasets) > 1 else ""
        return place + sample.key + (f" ({', '.join(facts)})" if facts else "")

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {
            "datasets": list(self.datasets),
            "samples": self.samples,
            "across": self.across,
            "leaks": self.leaks,
            "groups": [[sample._asdict() for sample in group] for group in self.groups],
            "pairs": [
                {
                    "one": pair.one._asdict(),
                    "other": pair.other._asdict(),
                    "distance": pair.distance,
                    "conflict": pair.conflict,
                }
                for pair in self.pairs
            ],
        }

    def write_csv(self, path: Path) -> None:
        """Write the pairs as CSV."""
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file)
            names = [f"{name}_{side}" for side in ("a", "b") for name in DuplicateSample._fields]
            writer.writerow(["distance", "different_labels", *names])
            writer.writerows(self._cells())

    def _cells(self) -> Iterator[list[Any]]:
        for pair in self.pairs:
            yield [f"{pair.distance:.6g}", int(pair.conflict), *pair.one, *pair.other]
