"""``packer duplicates``: find samples that look the same."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.analysis.duplicates.by_pixels import pairs_by_pixels
from packer.analysis.duplicates.by_vectors import check_vectors, pairs_by_vectors, usual_distance
from packer.analysis.duplicates.candidates import united
from packer.analysis.duplicates.opened import OpenedDataset
from packer.analysis.duplicates.pixels import WITHIN
from packer.analysis.duplicates.result import DuplicatePair, Duplicates, DuplicateSample
from packer.analysis.duplicates.search import Pairs, connect
from packer.assembly.columns import change_columns
from packer.jobs.progress import ProgressListener, listener_of
from packer.recipe.checks import checked
from packer.recipe.engines import usable_processors
from packer.workspace.durable import writing
from packer.workspace.folder import changing, output_folder
from shardspec.columns import IntArray
from shardspec.errors import DatasetChangedError, UsageError
from shardspec.layout import given_path
from shardspec.schema import NAME, Field
from shardspec.stores import local_path, names_store
from shardspec.wording import did_you_mean, list_some, shorten

_VERSION = "1"
_ALL = "none"


def duplicates(
    datasets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    by: str | None = None,
    within: float | None = None,
    across: str | None = None,
    out: str | os.PathLike[str] | None = None,
    column: str | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
) -> Duplicates:
    """Find samples that look the same, in a dataset or between datasets.

    By default, images are compared: those with equal pixels, and those with near perceptual hashes whose pixels, at a
    side of 64, correlate by 1 - `within` or more. Copies that were compressed again, resized, brightened or cropped by
    up to a tenth of their sides are found. Hashes and digests that `packer.compute` has stored are used.

    Parameters
    ----------
    datasets : sequence of path or str
        Packed datasets: folders, or URLs. Of several, only samples of different datasets are compared, unless
        `across` says otherwise.
    by : str, optional
        A column of vectors to compare instead of images, such as an embedding.
    within : float, optional
        Largest distance: for images 1 minus their correlation, 0.06 by default; for vectors the cosine distance,
        0.052 by default for ``identity`` of `packer.compute`.
    across : str, optional
        Compare only samples with different values of this field, such as ``"split"``; ``"none"`` compares all. By default
        ``"source"`` for images of a dataset with that field, since frames of one video resemble each other.
    out : path, optional
        Write the pairs to this CSV file.
    column : str, optional
        Store the number of each sample's group in a column of this name. Samples without a duplicate get numbers of their
        own, so that `packer.split` can keep groups together.
    workers : int, optional
        Worker processes for hashes that are not stored (`packer.compute`).
    storage_options : mapping, optional
        See `readers.open_dataset`.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    Duplicates
        Its `leaks` is true if there are duplicates between datasets, or between values of the field `across`.

    Raises
    ------
    UsageError
        If a dataset lacks a field, or an option is invalid.
    DatasetError
        If a dataset cannot be read.
    BuildLockedError, BuildError
        If the column cannot be written.
    """
    given = [datasets] if isinstance(datasets, str | os.PathLike) else list(datasets)
    if not given or len({_place(one) for one in given}) < len(given):
        raise UsageError(
            option="datasets", expected="packed datasets, each once", found=list_some(list(map(str, given))) or "none"
        )
    within = checked("within", within, float | None, minimum=0, maximum=2)
    workers = checked("workers", workers, int | None, minimum=0)
    column = checked("column", column, str | None)
    if column is not None and not NAME.match(column):
        raise UsageError(
            option="column", expected="a name of lower-case letters, digits and '_'", found=shorten(column)
        )
    target = None if out is None else given_path("out", out).absolute()
    if target is not None and target.suffix != ".csv":
        raise UsageError(option="out", expected="a file FILE.csv", found=shorten(target.name))
    opened = [OpenedDataset.of(one, storage_options) for one in given]
    if column is not None:
        for one in opened:
            _check_column(one, column)
    if by is not None:
        check_vectors(opened, by)
        within = usual_distance(opened[0], by) if within is None else within
    compared = _Compared.of(opened, across, by=by)
    if by is None:
        count = usable_processors() if workers is None else workers
        pairs = pairs_by_pixels(
            opened, compared.group, WITHIN if within is None else within, count, listener_of(progress)
        )
        links = pairs.ones, pairs.others
    else:
        pairs, first = pairs_by_vectors(opened, by, compared.group, within or 0.0)
        links = united((pairs.ones, pairs.others), (first, np.arange(len(first))))
    numbers = connect(len(compared.group), *links)
    result = _describe(opened, compared, pairs, numbers)
    if target is not None:
        with writing(target.parent):
            result.write_csv(target)
    if column is not None:
        options = {"by": by, "within": within, "across": across if len(opened) > 1 else compared.field or _ALL}
        stops = np.cumsum([len(one.dataset) for one in opened])[:-1]
        for one, own in zip(opened, np.split(numbers, stops), strict=True):
            others = [_place_from(one, other) for other in opened if other is not one]
            _store(one, column, own, options | ({"datasets": others} if others else {}))
    return result


def _place(dataset: str | os.PathLike[str]) -> str:
    return os.fspath(dataset) if names_store(dataset) else os.path.realpath(local_path(dataset))


def _place_from(one: OpenedDataset, other: OpenedDataset) -> str:
    """Return the place of another dataset, a folder relative to that of the first: both may be moved together."""
    place = _place(other.given)
    return place if names_store(place) else os.path.relpath(place, _place(one.given))


@dataclass(frozen=True)
class _Compared:
    """The choice of samples that are compared with each other.

    Attributes
    ----------
    group : (n,) int64
        A number for each sample of all datasets, equal for samples that are not compared.
    field : str or None
        The field across whose values samples are compared.
    texts : list of (str or None), or None
        Its values.
    shown : str
        The name of the field, ``"datasets"``, or empty if all samples are compared.
    is_asked : bool
        Whether the caller named the field, so that each pair is a leak.
    """

    group: IntArray
    field: str | None
    texts: list[str | None] | None
    shown: str
    is_asked: bool

    @classmethod
    def of(cls, opened: Sequence[OpenedDataset], across: str | None, by: str | None) -> "_Compared":
        """Choose by the option `across`. By default, images of one dataset are compared across their sources.

        Parameters
        ----------
        by : str or None
            The option `by`.
        """
        sizes = [len(one.dataset) for one in opened]
        if across == _ALL:
            return cls(np.arange(sum(sizes)), None, None, "", is_asked=False)
        field = across
        if across is None and len(opened) == 1 and by is None and "source" in opened[0].schema:
            field = "source"
        if field is not None:
            texts = _texts_of(opened, field)
            # A sample without a value is compared with all others.
            keys = [f"={text}" if text is not None else f"#{row}" for row, text in enumerate(texts)]
            group = np.unique(np.array(keys), return_inverse=True)[1]
            return cls(group, field, texts, field, is_asked=across is not None)
        if len(opened) == 1:
            return cls(np.arange(sizes[0]), None, None, "", is_asked=False)
        return cls(np.repeat(np.arange(len(sizes)), sizes), None, None, "datasets", is_asked=False)


def _texts_of(opened: Sequence[OpenedDataset], across: str) -> list[str | None]:
    """Return the values of the field `across` of all datasets as texts."""
    texts: list[str | None] = []
    for one in opened:
        if across not in one.schema or not one.schema[across].is_small:
            small = [field.name for field in one.schema if field.is_small]
            raise UsageError(
                option="across",
                place=one.given,
                expected=f"a field of single values ({list_some(small)})",
                found=f"{shorten(across)}{did_you_mean(across, small)}",
            )
        texts += one.texts(across)
    return texts


def _describe(opened: Sequence[OpenedDataset], compared: _Compared, pairs: Pairs, numbers: IntArray) -> Duplicates:
    keys = [key for one in opened for key in one.dataset.column("key")]
    labels: list[str | None] = []
    for one in opened:
        labels += (
            one.texts("label") if "label" in one.schema and one.schema["label"].is_small else [None] * len(one.dataset)
        )
    sources: list[str | None] = []
    for one in opened:
        sources += one.texts("source") if "source" in one.schema else [None] * len(one.dataset)
    starts = np.cumsum([0, *(len(one.dataset) for one in opened)])

    def sample(row: int) -> DuplicateSample:
        place = int(np.searchsorted(starts, row, side="right")) - 1
        value = None if compared.texts is None else compared.texts[row]
        return DuplicateSample(
            opened[place].given, row - int(starts[place]), keys[row], sources[row], labels[row], value
        )

    order = np.lexsort((pairs.others, pairs.ones, pairs.distance))
    described = [
        DuplicatePair(sample(one), sample(other), round(float(distance), 6))
        for one, other, distance in zip(
            pairs.ones[order].tolist(), pairs.others[order].tolist(), pairs.distance[order].tolist(), strict=True
        )
    ]
    involved = np.unique(np.concatenate([pairs.ones, pairs.others]))
    members: dict[int, list[DuplicateSample]] = {}
    for row in involved.tolist():
        members.setdefault(int(numbers[row]), []).append(sample(row))
    groups = sorted(map(tuple, members.values()), key=len, reverse=True)
    names = tuple(one.given for one in opened)
    owner = np.repeat(np.arange(len(opened)), np.diff(starts))
    leaks = len(pairs.ones) > 0 and bool(compared.is_asked or (owner[pairs.ones] != owner[pairs.others]).any())
    return Duplicates(names, len(numbers), compared.shown, tuple(described), tuple(groups), leaks)


def _check_column(one: OpenedDataset, column: str) -> None:
    """Check, before the search, that the column can be stored: it is new, or of an earlier search."""
    output_folder(one.given, "datasets")
    records = {known.field: known.computed for known in one.dataset.manifest.columns}
    if column in one.schema and records.get(column, {}).get("function") != "duplicates":
        raise UsageError(
            f"the dataset has a field {column!r} already", option="column", place=one.given, hint="choose another name"
        )


def _store(one: OpenedDataset, column: str, numbers: IntArray, options: Mapping[str, Any]) -> None:
    record = {"function": "duplicates", "version": _VERSION, "options": dict(options)}
    with changing(output_folder(one.given, "datasets")) as (workspace, manifest):
        if manifest.digest != one.dataset.manifest.digest:
            raise DatasetChangedError(
                place=one.given, expected="the dataset as it was", found="another", hint="run the same command again"
            )
        field = Field(column, "fixed", "<i8", ())
        change_columns(workspace, manifest, {column}, (field,), {column: numbers}, {column: record})
