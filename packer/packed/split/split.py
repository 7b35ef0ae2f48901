"""``packer split``: split a packed dataset by shares, into folds, or by the values of a field."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.assembly.packed_rows import read_column
from packer.jobs.job import Job
from packer.jobs.progress import Progress, ProgressListener, Stage, listener_of
from packer.jobs.upload import output_place, output_store
from packer.packed.export.names import safe_name
from packer.packed.plan import PackedInput, open_input
from packer.packed.split.part import ItemsOfRows, plan_part
from packer.packed.split.result import SplitPart, SplitResult
from packer.recipe.checks import plain_value
from packer.recipe.options import BuildOptions
from packer.sources.stores.packed import partial_folder
from packer.workspace.folder import output_folder
from readers.seeding import check_seed
from shardspec.columns import IntArray, fill_missing, mark_missing
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import MANIFEST_NAME, Layout
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.schema import NAME, Schema
from shardspec.splits.assignment import SPLIT_NAMES, assign_rows, fold_ratios
from shardspec.splits.groups import NO_GROUP, Groups, count_pairs, join_groups, names_of
from shardspec.stores import Store
from shardspec.wording import list_some, shorten

RATIOS: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Default shares."""

MAX_PARTS = 100
"""Most datasets that one call makes from a field's values. A field with more values probably names groups."""

_TOLERANCE = 1e-6


def check_options(
    fields: Sequence[str], ratios: object, folds: object, stratify: object, seed: int, into: object
) -> None:
    """Check that the options choose exactly one way to split."""
    given = {"ratios": ratios, "folds": folds, "stratify": stratify, "seed": seed or None}
    besides = [name for name, value in given.items() if value is not None]
    if into is not None and fields:
        raise UsageError("read only without `by`, which keeps groups whole in shares, found both", option="into")
    if into is not None and besides:
        raise UsageError(f"read only without `into`, found {shorten(into)}", option=besides[0])
    if folds is not None and ratios is not None:
        raise UsageError("read only without `ratios`, since the shares of folds are equal, found both", option="folds")
    if not fields and all(option is None for option in (into, folds, stratify)):
        raise UsageError(
            expected="`by` (what stays together), `into` (a dataset for each value), `folds` or `stratify`",
            found="none of them",
        )


def parse_ratios(text: str) -> dict[str, float]:
    """Parse ratios such as ``"train=0.8,val=0.1,test=0.1"``. Numbers that add up to 100 are percentages.

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
            raise UsageError(
                option="ratios", expected="train=0.8,val=0.1,test=0.1", found=f"{shorten(part)} in {shorten(text)}"
            ) from None
        if name.strip() in ratios:
            raise UsageError(option="ratios", expected="every split once", found=f"{shorten(name.strip())} twice")
        ratios[name.strip()] = value
    return check_ratios(ratios)


def check_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """Check the ratios and scale them to add up to 1.

    Raises
    ------
    UsageError
        If they have no names, a name is not a plain word, a ratio is not a number above 0, or they add up to neither 1
        nor 100.
    """
    if not isinstance(ratios, Mapping):
        raise UsageError(
            option="ratios",
            expected=(
                "a name for each share, since each split has a folder of that name, as in {'train': 0.8, "
                "'val': 0.2} or 'train=0.8,val=0.2'"
            ),
            found=shorten(ratios),
        )
    wrong = [name for name in ratios if not (isinstance(name, str) and NAME.match(name))]
    if wrong or len(ratios) < 2:
        found = list_some(list(map(shorten, wrong or ratios)))
        raise UsageError(
            option="ratios", expected="two splits or more, named in lower-case letters", found=found or "none"
        )
    ratios = {name: plain_value(ratio) for name, ratio in ratios.items()}
    if not all(type(ratio) in (int, float) and math.isfinite(ratio) and ratio > 0 for ratio in ratios.values()):
        raise UsageError(option="ratios", expected="numbers above 0", found=shorten(ratios))
    total = sum(ratios.values())
    for whole in (1, 100):
        if abs(total - whole) <= whole * _TOLERANCE:
            return {name: ratio / whole for name, ratio in ratios.items()}
    raise UsageError(option="ratios", expected="numbers that add up to 1 (or to 100)", found=f"{total:g}")


def refuse_splits(values: Sequence[str], by: str, shares: Mapping[str, float]) -> None:
    """Refuse a field that names the split of each sample, because whole splits would move into other ones."""
    names = SPLIT_NAMES | set(shares)
    found = [value for value in values if value.lower() in names]
    if len(found) > 1:
        raise UsageError(
            option="by",
            expected=f"groups, such as videos or persons, in the field {by!r}",
            found=f"splits ({list_some([*map(repr, found)])}), which would be put into others",
            hint=f"to make a dataset of each, give into={by!r} (--into {by})",
        )


def folders_of(values: Sequence[str], into: str) -> list[str]:
    """Return the folder of each value's dataset."""
    if len(values) > MAX_PARTS:
        raise UsageError(
            option="into",
            expected=f"a field of at most {MAX_PARTS} values, each of which becomes a dataset",
            found=f"{len(values)} in {into!r}",
            hint=f"for shares of whole groups give by={into!r} (--by {into})",
        )
    folders: dict[str, str] = {}
    for value in values:
        folder = safe_name(value)
        # Many file systems treat names that differ only in case as the same.
        twin = next((other for other, taken in folders.items() if taken.casefold() == folder.casefold()), None)
        if twin is not None:
            raise UsageError(
                option="into",
                expected=f"values that name different folders in {into!r}",
                found=f"{shorten(twin)} and {shorten(value)}",
                hint="rename one in the table, and build again",
            )
        folders[value] = folder
    return [folders[value] for value in values]


_BARS_MAX = 5
"""With more parts than this, show one progress bar for the whole call instead of one for each part."""


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

    By shares, all samples with the same value of `by` go into one split, which
    `shardspec.splits.assignment.assign_rows` chooses. With `folds`, the splits are ``fold-0``, ``fold-1`` and so on, of
    equal shares, with each sample in one of them. With `into`, each value of that field becomes a separate dataset,
    named after the value. Keys do not change, so `packer.merge` restores the samples. Items are counted where they have
    samples. The dataset's rejects belong to no split.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path or str
        A folder or URL below which each split gets its own place, or that of a split to resume.
    by : str or sequence of str, optional
        A field of text, or of one value per sample: samples of the same value stay together. ``"source"`` keeps the
        frames of a video together. With several
        fields, samples that share a value in any of them stay together, directly or through other samples.
    ratios : dict of str to float, or str
        Each split's share of the samples, above 0, adding up to 1 or 100, also as ``"train=0.8,val=0.2"``. By default
        ``"train=0.8,val=0.1,test=0.1"``. Requires `by` or `stratify`.
    folds : int, optional
        Instead of `ratios`, the number of folds, 2 to 100.
    stratify : str, optional
        A field, such as ``label``, of each of whose values every split gets its share, as closely as whole groups allow.
    seed : int
        Seed of the splits, 0 to 2**64 - 1.
    into : str
        Instead of all these options, a field that names each sample's dataset, such as an official split.
    format : str, optional
        Format of the shards, by default the dataset's. A name in `shardspec.formats.FORMATS`.
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
        If a field does not exist, has samples without a value, has fewer values than there are splits, or names splits
        itself; if a value of `stratify` is in fewer groups than there are splits; if `into` has too many values, or two
        values for the same folder; if options exclude each other, or none says how to split.
    DatasetError, ResumeMismatchError, BuildLockedError, BuildError
        See `packer.convert`.
    """
    how = BuildOptions(workers=workers, engine=engine, overwrite=overwrite)
    listener = listener_of(progress)
    store = output_store(out)
    place: Path | str = output_folder(out) if store is None else store.url
    fields = () if by is None else names_of(by)
    seed, folds = check_seed(seed), plain_value(folds)
    check_options(fields, ratios, folds, stratify, seed, into)
    if folds is not None:
        shares = fold_ratios(folds)
    else:
        shares = parse_ratios(ratios) if isinstance(ratios, str) else check_ratios(RATIOS if ratios is None else ratios)
    one = open_input(partial_folder(dataset, whole_shards=True), place)
    if _read_manifest(place, store) is not None:
        raise UsageError(
            place=place, expected="a folder for the splits", found="a packed dataset", hint="choose another folder"
        )
    several = [_read_whole_groups(one.path, field, dataset) for field in (fields if into is None else (into,))]
    groups = join_groups(several) if several else None
    strata = None if stratify is None else read_groups(one.path, stratify)
    options: dict[str, Any] = {"format": one.manifest.format if format is None else format}
    options |= {"shard_size": shard_size, "shuffle": shuffle}
    values: dict[str, str | None]
    if into is None:
        for number, field in enumerate(fields):
            refuse_splits(several[number].names, field, shares)
        classes = groups is not None and _has_classes(one.manifest.schema)
        labels = _read_labels(one) if classes else None
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
        values = dict(zip(folders_of(groups.names, into), groups.names, strict=True))
    group_of = None if groups is None else groups.of_row
    del groups, several  # the names of a million groups are needed no more
    items = ItemsOfRows(one)
    parts = []
    shown = Stage(listener, "splitting", len(values), "parts") if len(values) > _BARS_MAX else nullcontext()
    with shown as whole:
        for number, (name, value) in enumerate(values.items()):
            rows_of = np.flatnonzero(places == number)
            target, upload = output_place(place / name if isinstance(place, Path) else f"{place}/{name}")
            plan = plan_part("split", one, {**options, "part": name}, rows_of, items)
            result = Job(plan, target, how, listener if whole is None else _OfPart(listener, whole), upload).run()
            ratio = shares[name] if value is None else None
            count = len(rows_of) if group_of is None else _count_different(group_of[rows_of])
            parts.append(SplitPart(name, ratio, count, result, value, _count_strata(strata, rows_of)))
            if whole is not None:
                whole.advance()
    parted = _count_parted(one, places) if group_of is None else 0
    others = _find_others(place, store, values)
    return SplitResult(os.fspath(out), fields, into, stratify, tuple(parts), parted, others)


def _count_different(numbers: IntArray) -> int:
    # `numpy.unique` would sort copies of the numbers.
    there = np.zeros(int(numbers.max(initial=-1)) + 1, np.bool_)
    there[numbers] = True
    return int(np.count_nonzero(there))


def _find_others(place: Path | str, store: Store | None, parts: Collection[str]) -> tuple[str, ...]:
    """Return the names of the datasets next to the parts that are parts of other splits."""
    if store is None:
        names = {path.name for path in Path(place).iterdir()}
    else:
        names = {
            folder for one in store.list() for folder, _, name in [one.name.partition("/")] if name == MANIFEST_NAME
        }
    found = []
    for name in sorted(names - {*parts}):
        with suppress(DatasetError, PermissionError):
            manifest = _read_manifest(place, store, name)
            job = None if manifest is None else manifest.wall_clock.get("job")
            if isinstance(job, Mapping) and job.get("kind") == "split":
                found.append(name)
    return tuple(found)


def _read_manifest(place: Path | str, store: Store | None, below: str = "") -> Manifest | None:
    """Return the manifest of the dataset below the place of a split, if there is one."""
    if store is None:
        layout = Layout(Path(place, below))
        return layout.load() if layout.manifest.exists() else None
    name = f"{below}/{MANIFEST_NAME}".lstrip("/")
    with suppress(FileNotFoundError):
        return Manifest.loads(store.read(name, MANIFEST_BYTES_MAX), store.place(name))
    return None


def _read_whole_groups(path: Path, field: str, dataset: str | os.PathLike[str]) -> Groups:
    groups = read_groups(path, field)
    if groups.without:
        raise UsageError(
            place=dataset,
            expected=f"a value of {field!r} in every sample",
            found=f"none in {groups.without} of {len(groups.of_row)}, so they belong to no split",
            hint="fill the column (an original can name itself), or choose another field",
        )
    return groups


def _count_strata(strata: Groups | None, rows: IntArray) -> dict[str, int]:
    if strata is None:
        return {}
    found, counts = np.unique(strata.of_row[rows], return_counts=True)
    names = ["no value" if number == NO_GROUP else strata.names[number] for number in found.tolist()]
    return dict(sorted(zip(names, counts.tolist(), strict=True)))


def _count_parted(one: PackedInput, places: IntArray) -> int:
    if "source" not in one.manifest.schema:
        return 0
    of_row = read_groups(one.path, "source").of_row
    sources, _, _ = count_pairs(of_row, places)
    _, parts = np.unique(sources[sources != NO_GROUP], return_counts=True)
    return int(np.count_nonzero(parts > 1))


def _has_classes(schema: Schema) -> bool:
    return "label" in schema and schema["label"].is_scalar and schema["label"].numpy_dtype.kind in "iu"


def _read_labels(one: PackedInput) -> IntArray:
    """Return the label of each sample, `NO_CLASS` where it is missing."""
    labels, validity = read_column(one.path, one.manifest, "label"), one.manifest.schema.validity("label")
    known = None if validity is None else read_column(one.path, one.manifest, validity)
    return fill_missing(mark_missing(labels, known))


class _OfPart:
    """Listener of one of many parts: passes messages on, and shows the progress of the whole call."""

    def __init__(self, listener: ProgressListener, whole: Stage) -> None:
        self._listener = listener
        self._whole = whole

    def on_progress(self, progress: Progress) -> None:
        self._whole.advance(0)

    def on_message(self, line: str) -> None:
        self._listener.on_message(line)
