"""``packer split``: cut a packed dataset into several, by shares, into folds, or by the values of a field."""

import hashlib
import math
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.assembly.plan import Piece, shuffled
from packer.assembly.rows import read_column
from packer.jobs.job import Job
from packer.jobs.progress import Progress, ProgressListener, Stage, listener_of
from packer.jobs.result import JobResult, Result
from packer.packed.export.export import safe_name
from packer.packed.plan import Input, Repack, join_generations, open_input, plan_of, shard_bytes
from packer.packed.reports import read_report, write_reports
from packer.recipe.options import BuildOptions
from packer.workspace.matching import TextSet
from shardspec.columns import IntArray
from shardspec.entries import Counts
from shardspec.errors import UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.schema import NAME, Schema
from shardspec.splits.assignment import SPLIT_NAMES, assign_rows, fold_ratios
from shardspec.splits.groups import NO_GROUP, Groups, count_pairs, join_groups, names_of
from shardspec.wording import counted, list_some, shorten

RATIOS: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Default shares."""

MAX_PARTS = 100
"""The most datasets that one call makes from a field's values; a field with more values likely names groups."""

_BARS_MAX = 5
"""The most datasets each of which shows its own progress; with more, the progress is that of the whole call."""

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class SplitPart:
    """One of the datasets that a split made.

    Attributes
    ----------
    name : str
        The name of its folder.
    ratio : float or None
        The share of the samples that was asked for; None for a part with one value of a field.
    groups : int
        Without `by` and `into`, the number of samples.
    result : JobResult
    value : str or None
        The value that all its samples have, if the part was made by `into`.
    strata : dict of str to int
        With `stratify`, the samples of each value of that field.
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
        """What the part holds, as JSON."""
        wanted = {"ratio": self.ratio} if self.value is None else {"value": self.value}
        strata = {"strata": dict(self.strata)} if self.strata else {}
        return {"samples": self.samples, "groups": self.groups, **wanted, **strata, "digest": self.digest}

    @property
    def digest(self) -> str:
        """The digest of the dataset."""
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
    """

    out: str
    by: tuple[str, ...]
    into: str | None
    stratify: str | None
    parts: tuple[SplitPart, ...]
    parted: int = 0

    def describe(self) -> str:
        """Where every sample went: a line for each part, and the sums."""
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
                f"warning: {', '.join(part.name for part in off)}: far from the ratio that was wanted, since few or "
                f"large {self._groups_are} stay whole: another field, other --ratios or another --seed may come nearer"
            )
        if self.parted:
            lines.append(
                f"warning: samples of {counted(self.parted, 'source')} are in several parts: "
                "--by source keeps the frames of a video together"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Where every sample went, as JSON."""
        splits = {part.name: part.to_json() for part in self.parts}
        how = {"into": self.into, "by": self.by[0] if len(self.by) == 1 else list(self.by), "stratify": self.stratify}
        return {"out": self.out, **{name: value for name, value in how.items() if value}, "splits": splits}

    @property
    def _fields(self) -> str:
        return self.into or ", ".join(self.by)

    @staticmethod
    def _is_far_off(part: SplitPart, samples: int) -> bool:
        """Whether a part misses its ratio by more than a tenth of all samples."""
        return part.ratio is not None and abs(part.samples / max(1, samples) - part.ratio) > 0.1

    @property
    def _groups_are(self) -> str:
        """What the groups of all parts are, in words."""
        return f"groups by {self._fields}" if len(self.by) > 1 else f"values of {self._fields}"

    def _describe_part(self, part: SplitPart) -> str:
        if part.value is not None:
            return f", {self.into} {part.value}"
        wanted = "" if part.ratio is None else f" (wanted {part.ratio:.2%})"
        if len(self.by) > 1:
            wanted += f", {counted(part.groups, 'group')} by {self._fields}"
        elif self.by:
            wanted += f", {counted(part.groups, 'value')} of {self._fields}"
        found = list_some([f"{count} {name}" for name, count in part.strata.items()])
        return wanted + (f", {self.stratify}: {found}" if found else "")

    def _headline(self) -> str:
        return f"{self.out}: {', '.join(f'{part.name} {part.samples}' for part in self.parts)} samples"


def split(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    by: str | Sequence[str] | None = None,
    ratios: Mapping[str, float] | str | None = None,
    folds: int | None = None,
    stratify: str | None = None,
    seed: int = 0,
    into: str | None = None,
    format: str | None = None,
    shard_size: str | int | None = None,
    shuffle: int | None = None,
    workers: str | int = "auto",
    engine: str = "processes",
    overwrite: bool = False,
    progress: bool | ProgressListener = True,
) -> SplitResult:
    """Write each split of a packed dataset to ``out/<name>``. Nothing is decoded; the same call again resumes.

    By shares, all samples with the same value of `by` go into one split (`shardspec.splits.assignment.assign_rows`
    chooses which). With `folds`, the splits are ``fold-0``, ``fold-1`` and so on, of equal shares, each sample in one
    of them. With `into`, each value of that field becomes a dataset of its own, named after the value. Keys do not
    change, so `packer.merge` restores the samples. Items are counted where they have samples; the dataset's rejects
    belong to no split.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path
        A folder in which each split gets its own folder, or the folder of a split to resume.
    by : str or sequence of str, optional
        A field of text, or of one value per sample: ``"source"`` keeps the frames of a video together. Of several
        fields, samples that share a value in any stay together, directly or through others.
    ratios : dict of str to float, or str
        Each split's share of the samples, above 0, adding up to 1 or to 100, also as ``"train=0.8,val=0.2"``. By
        default ``"train=0.8,val=0.1,test=0.1"``. It needs `by` or `stratify`.
    folds : int, optional
        Instead of `ratios`, the number of folds, 2 to 100.
    stratify : str, optional
        A field, such as ``"label"``, of whose values every split gets its share, as closely as whole groups allow.
    seed : int
        Seed of the splits.
    into : str
        Instead of all these, a field as for `by` that names each sample's dataset, such as an official split.
    format : str, optional
        A name in `shardspec.formats.FORMATS`; by default the dataset's format.
    shuffle : int, optional
        Seed of the stored order within each split, at least 0; by default the order of the dataset.
    shard_size, workers, engine, overwrite, progress
        See `packer.convert`.

    Returns
    -------
    SplitResult

    Raises
    ------
    UsageError
        If there is no such field, or if samples have no value in it; if it has fewer values than there are splits, or
        if its values are splits already; if a value of `stratify` is in fewer groups than there are splits; if `into`
        has too many values, or two that would name the same folder; if options exclude each other, or none says how
        to split.
    DatasetError, ResumeMismatchError, BuildLockedError, BuildError
        See `packer.convert`.
    """
    how = BuildOptions(workers=workers, engine=engine, overwrite=overwrite)
    listener = listener_of(progress)
    target = Path(out).absolute()
    fields = () if by is None else names_of(by)
    _check_options(fields, ratios, folds, stratify, seed, into)
    if folds is not None:
        shares = fold_ratios(folds)
    else:
        shares = parse_ratios(ratios) if isinstance(ratios, str) else check_ratios(RATIOS if ratios is None else ratios)
    one = open_input(Path(dataset), target)
    if Layout(target).manifest.exists():
        raise UsageError(f"{target}: expected a folder for the splits, found a packed dataset: choose another folder")
    several = [_read_whole_groups(one.path, field, dataset) for field in (fields if into is None else (into,))]
    groups = join_groups(several) if several else None
    strata = None if stratify is None else read_groups(one.path, stratify)
    options: dict[str, Any] = {"format": format or one.manifest.format, "shard_size": shard_size, "shuffle": shuffle}
    values: dict[str, str | None]
    if into is None:
        for field, found in zip(fields, several, strict=True):
            _refuse_splits(found.names, field, shares)
        classes = groups is not None and _has_classes(one.manifest.schema)
        labels = read_column(one.path, one.manifest, "label") if classes else None
        rows = one.manifest.samples
        places = assign_rows(rows, shares, seed, groups=groups, strata=strata, labels=labels)
        del labels
        options |= {"by": fields[0] if len(fields) == 1 else list(fields)} if fields else {}
        options |= {"ratios": shares} if folds is None else {"folds": folds}
        options |= {"seed": seed} | ({} if stratify is None else {"stratify": stratify})
        values = dict.fromkeys(shares)
    else:
        assert groups is not None
        places = groups.of_row
        options |= {"into": into}
        values = dict(zip(_folders_of(groups.names, into), groups.names, strict=True))
    items = _Items(one)
    parts = []
    shown = Stage(listener, "splitting", len(values), "parts") if len(values) > _BARS_MAX else nullcontext()
    with shown as whole:
        for place, (name, value) in enumerate(values.items()):
            rows_of = np.flatnonzero(places == place)
            repack = _arrange(one, {**options, "part": name}, rows_of, items)
            result = Job(repack, target / name, how, listener if whole is None else _OfPart(listener, whole)).run()
            ratio = shares[name] if value is None else None
            count = len(rows_of) if groups is None else len(np.unique(groups.of_row[rows_of]))
            parts.append(SplitPart(name, ratio, count, result, value, _count_strata(strata, rows_of)))
            if whole is not None:
                whole.advance()
    parted = _count_parted(one, places) if groups is None else 0
    return SplitResult(os.fspath(out), fields, into, stratify, tuple(parts), parted)


def _check_options(
    fields: Sequence[str], ratios: object, folds: object, stratify: object, seed: int, into: object
) -> None:
    """Check that the options say in one way how to split."""
    given = {"ratios": ratios, "folds": folds, "stratify": stratify, "seed": seed or None}
    besides = [name for name, value in given.items() if value is not None]
    if into is not None and fields:
        raise UsageError("expected either by (shares of whole groups) or into (a dataset for each value), found both")
    if into is not None and besides:
        raise UsageError(f"{besides[0]}: read only without into, found into {into!r}")
    if folds is not None and ratios is not None:
        raise UsageError("expected either ratios or folds, whose shares are equal, found both")
    if not fields and all(option is None for option in (into, folds, stratify)):
        raise UsageError(
            "expected by (what stays together), into (a dataset for each value), folds or stratify, found none of them"
        )


def _read_whole_groups(path: Path, field: str, dataset: str | os.PathLike[str]) -> Groups:
    """The groups by a field of which every sample has a value."""
    groups = read_groups(path, field)
    if groups.without:
        raise UsageError(
            f"{dataset}: expected a value of {field!r} in every sample, found none in {groups.without} "
            f"of {len(groups.of_row)}, so they belong to no split: "
            "fill the column (an original can name itself), or choose another field"
        )
    return groups


def _count_strata(strata: Groups | None, rows: IntArray) -> dict[str, int]:
    """The samples of each value among some rows, the values in alphabetical order."""
    if strata is None:
        return {}
    found, counts = np.unique(strata.of_row[rows], return_counts=True)
    names = ["no value" if number == NO_GROUP else strata.names[number] for number in found.tolist()]
    return dict(sorted(zip(names, counts.tolist(), strict=True)))


def _count_parted(one: Input, places: IntArray) -> int:
    """The sources whose samples are in several parts."""
    if "source" not in one.manifest.schema:
        return 0
    of_row = read_groups(one.path, "source").of_row
    sources, _, _ = count_pairs(of_row, places)
    _, parts = np.unique(sources[sources != NO_GROUP], return_counts=True)
    return int(np.count_nonzero(parts > 1))


def parse_ratios(text: str) -> dict[str, float]:
    """Ratios from ``"train=0.8,val=0.1,test=0.1"``; whole numbers that add up to 100 are percents.

    Raises
    ------
    UsageError
    """
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(f"ratios: expected train=0.8,val=0.1,test=0.1, found {part!r} in {text!r}") from None
        if name.strip() in ratios:
            raise UsageError(f"ratios: expected every split once, found {name.strip()!r} twice")
        ratios[name.strip()] = value
    return check_ratios(ratios)


def check_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """Check the ratios and scale them to add up to 1.

    Raises
    ------
    UsageError
        If a name is not a plain word, if a ratio is not above 0, or if they add up to neither 1 nor 100.
    """
    wrong = [name for name in ratios if not NAME.match(name)]
    if wrong or len(ratios) < 2:
        found = ", ".join(map(repr, wrong or ratios))
        raise UsageError(f"ratios: expected two splits or more, named in lower-case letters, found {found or 'none'}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values()):
        raise UsageError(f"ratios: expected numbers above 0, found {dict(ratios)}")
    total = sum(ratios.values())
    for whole in (1, 100):
        if abs(total - whole) <= whole * _TOLERANCE:
            return {name: ratio / whole for name, ratio in ratios.items()}
    raise UsageError(f"ratios: expected numbers that add up to 1 (or to 100), found {total:g}")


def _sum(counts: Sequence[int]) -> str:
    return f"{' + '.join(map(str, counts))} = {sum(counts)}"


def _refuse_splits(values: Sequence[str], by: str, shares: Mapping[str, float]) -> None:
    """Refuse a field that names the split of each sample: whole splits would be put into new ones by their sizes."""
    names = SPLIT_NAMES | set(shares)
    found = [value for value in values if value.lower() in names]
    if len(found) > 1:
        raise UsageError(
            f"by: expected groups, such as videos or persons, in the field {by!r}, "
            f"found splits ({list_some([*map(repr, found)])}), which would be put into others: "
            f"to make a dataset of each, give into={by!r} (--into {by})"
        )


def _folders_of(values: Sequence[str], into: str) -> list[str]:
    """The folder of each value's dataset."""
    if len(values) > MAX_PARTS:
        raise UsageError(
            f"into: expected a field of at most {MAX_PARTS} values, each of which becomes a dataset, "
            f"found {len(values)} in {into!r}: for shares of whole groups give by={into!r} (--by {into})"
        )
    folders: dict[str, str] = {}
    for value in values:
        folder = safe_name(value)
        # Many file systems treat names that differ only in case as the same.
        twin = next((other for other, taken in folders.items() if taken.casefold() == folder.casefold()), None)
        if twin is not None:
            raise UsageError(
                f"into: expected values that name different folders in {into!r}, "
                f"found {shorten(twin)} and {shorten(value)}: rename one in the table, and build again"
            )
        folders[value] = folder
    return [folders[value] for value in values]


def _has_classes(schema: Schema) -> bool:
    """Whether ``label`` numbers classes."""
    return "label" in schema and schema["label"].is_scalar and schema["label"].numpy_dtype.kind in "iu"


class _OfPart:
    """The listener of one of many parts: messages are passed on, and its progress becomes that of the whole call."""

    def __init__(self, listener: ProgressListener, whole: Stage) -> None:
        self._listener = listener
        self._whole = whole

    def on_progress(self, progress: Progress) -> None:
        """See `ProgressListener`."""
        self._whole.advance(0)

    def on_message(self, line: str) -> None:
        """See `ProgressListener`."""
        self._listener.on_message(line)


class _Items:
    """The items of the source's reports, by the names that the rows have for them."""

    def __init__(self, one: Input) -> None:
        self._one = one
        self._listed = next(iter(read_report(one, ITEMS_NAME)), None) is not None
        self._groups: Groups | None = None
        # If the dataset was built from a packed one, each sample was an item, named by its key.
        for name in ("source", "key"):
            if name in one.manifest.schema:
                groups = read_groups(one.path, name)
                if not self._listed or self._lists(TextSet(groups.names)):
                    self._groups = groups
                    break

    def _lists(self, names: Container[str]) -> bool:
        """Whether the reports have an item of one of the names."""
        return any(str(line.get("item")) in names for _, line in read_report(self._one, ITEMS_NAME))

    def of_rows(self, rows: IntArray) -> TextSet:
        """Names of the items that some rows came from."""
        if self._groups is None:
            return TextSet(())
        numbers = np.unique(self._groups.of_row[rows])
        names = self._groups.names
        return TextSet(names[number] for number in numbers[numbers != NO_GROUP].tolist())

    def counts(self, names: TextSet, samples: int) -> Counts:
        """What became of some items, all of which gave samples."""
        packed, frames, damaged, progressive = (0 if self._listed else len(names) or samples), 0, 0, 0
        for _, line in read_report(self._one, ITEMS_NAME):
            if _keeps(names, line):
                packed += 1
                progressive += line.get("progressive", 0)
        for _, line in read_report(self._one, REJECTS_NAME):
            if _keeps(names, line):
                frames += len(line.get("frames", ()))
                damaged += line.get("kind") == "damage"
        return Counts(packed, packed, 0, 0, samples, frames, damaged, progressive)


def _keeps(names: Container[str], line: Mapping[str, Any]) -> bool:
    """Whether a report's line is about an item that has samples in a split."""
    return str(line.get("item")) in names and line.get("kind") != "item" and line.get("state", "packed") == "packed"


def _arrange(one: Input, options: Mapping[str, Any], rows: IntArray, items: _Items) -> Repack:
    """The rows of one split."""
    digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    plan = plan_of("split", [one], {**options, "rows": digest})
    names = items.of_rows(rows)
    generations = one.manifest.generations
    generation = replace(join_generations(plan, generations), counts=items.counts(names, len(rows)))
    shuffle = plan.options["shuffle"]
    order = rows if shuffle is None else rows[shuffled(len(rows), shuffle)]
    write = partial(write_reports, inputs=[one], keep=partial(_keeps, names))
    return Repack(plan, order, (Piece(len(rows), shard_bytes(plan, generations[0])),), (generation,), write)
