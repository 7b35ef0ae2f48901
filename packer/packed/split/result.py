"""Result of a split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer.jobs.result import JobResult, Result
from shardspec.wording import counted, list_some, one_line


@dataclass(frozen=True)
class SplitPart:
    """One of the datasets that a split made.

    Attributes
    ----------
    name : str
        The name of its folder.
    ratio : float or None
        The requested share of the samples; None for a part with one value of a field.
    groups : int
        Without `by` and `into`, the number of samples.
    result : JobResult
    value : str or None
        With `into`, the value that all its samples have.
    strata : dict of str to int
        With `stratify`, the number of samples of each value of that field.
    """

    name: str
    ratio: float | None
    groups: int
    result: JobResult
    value: str | None = None
    strata: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.result.manifest.samples

    def to_json(self) -> dict[str, Any]:
        """Return the part, or the whole split, as JSON."""
        wanted = {"ratio": self.ratio} if self.value is None else {"value": self.value}
        strata = {"strata": dict(self.strata)} if self.strata else {}
        return {"samples": self.samples, "groups": self.groups, **wanted, **strata, "digest": self.digest}

    @property
    def digest(self) -> str:
        """Digest of the dataset."""
        return self.result.manifest.digest


@dataclass(frozen=True, repr=False)
class SplitResult(Result):
    """The datasets that a split made.

    Attributes
    ----------
    out : str
        The folder that holds the folders of the parts, as given.
    by : tuple of str
        The fields whose values were kept together.
    into : str or None
        The field whose values became parts.
    stratify : str or None
        The field whose values were spread evenly.
    parts : tuple of SplitPart
    parted : int
        Without `by`, the number of sources, such as videos, whose samples are in several parts.
    others : tuple of str
        Folders next to the parts that are parts of other splits, such as an earlier split into more folds.
    """

    out: str
    by: tuple[str, ...]
    into: str | None
    stratify: str | None
    parts: tuple[SplitPart, ...]
    parted: int = 0
    others: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe each part in a line, then the sums and warnings."""
        samples, groups = [part.samples for part in self.parts], [part.groups for part in self.parts]
        lines = [
            f"{part.result.describe()}, {part.samples / max(1, sum(samples)):.2%}{self._describe_part(part)}"
            for part in self.parts
        ]
        lines.append(f"samples: {_sum(samples)}")
        if self._fields:
            lines.append(f"{self._groups_are}: {_sum(groups)}")
        off = [part for part in self.parts if self._is_far_off(part, sum(samples))]
        if off:
            lines.append(
                f"warning: {', '.join(part.name for part in off)}: far from the requested ratio, because few or "
                f"large {self._groups_are} stay whole: try another field, other --ratios or another --seed"
            )
        if self.parted:
            lines.append(
                f"warning: samples of {counted(self.parted, 'source')} are in several parts: "
                "--by source keeps the frames of a video together"
            )
        if self.others:
            lines.append(
                f"warning: {self.out} also holds parts of another split, which may have the same samples "
                f"({list_some(self.others)}): delete them, or choose another folder"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the part, or the whole split, as JSON."""
        splits = {part.name: part.to_json() for part in self.parts}
        how = {"into": self.into, "by": self.by[0] if len(self.by) == 1 else list(self.by), "stratify": self.stratify}
        given = {name: value for name, value in {**how, "others": list(self.others)}.items() if value}
        return {"out": self.out, **given, "splits": splits}

    @property
    def _fields(self) -> str:
        return self.into or ", ".join(self.by)

    @staticmethod
    def _is_far_off(part: SplitPart, samples: int) -> bool:
        """Return whether a part misses its ratio by more than a tenth of all samples."""
        return part.ratio is not None and abs(part.samples / max(1, samples) - part.ratio) > 0.1

    @property
    def _groups_are(self) -> str:
        return f"groups by {self._fields}" if len(self.by) > 1 else f"values of {self._fields}"

    def _describe_part(self, part: SplitPart) -> str:
        if part.value is not None:
            return f", {self.into} {one_line(part.value)}"
        wanted = "" if part.ratio is None else f" (wanted {part.ratio:.2%})"
        if len(self.by) > 1:
            wanted += f", {counted(part.groups, 'group')} by {self._fields}"
        elif self.by:
            wanted += f", {counted(part.groups, 'value')} of {self._fields}"
        found = list_some([f"{count} {name}" for name, count in part.strata.items()])
        return wanted + (f", {self.stratify}: {found}" if found else "")

    def _headline(self) -> str:
        return f"{self.out}: {', '.join(f'{part.name} {part.samples}' for part in self.parts)} samples"


def _sum(counts: Sequence[int]) -> str:
    return f"{' + '.join(map(str, counts))} = {sum(counts)}"
