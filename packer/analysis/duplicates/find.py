"""``packer duplicates``: find samples that look the same."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.analysis.compute.function import open_function
from packer.analysis.compute.job import ComputeJob, has_computed
from packer.analysis.duplicates.candidates import equal_rows, near_rows, united
from packer.analysis.duplicates.pixels import SIDE, WITHIN, keep_alike, thumbnails
from packer.analysis.duplicates.result import DuplicatePair, Duplicates, DuplicateSample
from packer.analysis.duplicates.search import Pairs, connect, near_vectors
from packer.analysis.measures.hash import WHOLE
from packer.assembly.columns import change_columns
from packer.jobs.progress import ProgressListener, listener_of
from packer.recipe.checks import checked
from packer.recipe.engines import usable_processors
from packer.workspace.durable import writing
from packer.workspace.folder import changing, output_folder
from packer.workspace.scratch import TemporaryFiles
from shardspec.columns import IntArray, missing_in
from shardspec.errors import DatasetChangedError, UsageError
from shardspec.layout import given_path
from shardspec.registry import import_target
from shardspec.schema import NAME, Field
from shardspec.stores import local_path, names_store
from shardspec.wording import list_some, shorten

_FUNCTIONS = ("hash", "digest")
_VERSION = "1"
_ALL = "none"
_TRACK = ("source", "track")


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
    open_dataset = import_target("readers:open_dataset", what="duplicates", extra="torch")
    opened = [_Opened(os.fspath(one), open_dataset(local_path(one), storage_options=storage_options)) for one in given]
    if column is not None:
        for one in opened:
            _check_column(one, column)
    if by is not None:
        _check_vectors(opened, by)
        within = _within_of(opened[0], by) if within is None else within
    compared = _Compared.of(opened, across, by=by)
    if by is None:
        count = usable_processors() if workers is None else workers
        pairs = _by_pixels(
            opened, compared.group, WITHIN if within is None else within, count, storage_options, listener_of(progress)
        )
        links = pairs.ones, pairs.others
    else:
        pairs, first = _by_vectors(opened, by, compared.group, within or 0.0)
        links = united((pairs.ones, pairs.others), (first, np.arange(len(first))))
    numbers = connect(len(compared.group), *links)
    result = _describe(opened, compared, pairs, numbers)
    if target is not None:
        with writing(target.parent):
            result.write_csv(target)
    if column is not None:
        options = {"by": by, "within": within, "across": compared.field}
        stops = np.cumsum([len(one.dataset) for one in opened])[:-1]
        for one, own in zip(opened, np.split(numbers, stops), strict=True):
            _store(one, column, own, options)
    return result


def _place(dataset: str | os.PathLike[str]) -> str:
    return os.fspath(dataset) if names_store(dataset) else os.path.realpath(local_path(dataset))


@dataclass(frozen=True)
class _Opened:
    """A dataset, as given and as opened."""

    given: str
    dataset: Any

    @property
    def schema(self) -> Any:
        return self.dataset.pool.schema


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
    def of(cls, opened: Sequence[_Opened], across: str | None, by: str | None) -> "_Compared":
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


def _texts_of(opened: Sequence[_Opened], across: str) -> list[str | None]:
    """Return the values of the field `across` of all datasets as texts."""
    texts: list[str | None] = []
    for one in opened:
        if across not in one.schema or not one.schema[across].is_small:
            small = [field.name for field in one.schema if field.is_small]
            raise UsageError(
                option="across",
                place=one.given,
                expected=f"a field of single values ({list_some(small)})",
                found=across,
            )
        texts += _texts(one, across)
    return texts


def _texts(one: _Opened, name: str) -> list[str | None]:
    """Return a field as texts, classes by their names; None where a value is missing."""
    column, field = one.dataset.column(name), one.schema[name]
    missing = missing_in(column)
    values = np.ma.getdata(column).tolist() if isinstance(column, np.ndarray) else column
    if field.classes is not None:
        missing = missing | (np.array(values) < 0)
        values = [field.classes[value] if value >= 0 else None for value in values]
    return [None if gone or value == "" else str(value) for value, gone in zip(values, missing.tolist(), strict=True)]


def _by_pixels(
    opened: Sequence[_Opened],
    group: IntArray,
    within: float,
    workers: int,
    storage_options: Mapping[str, Any] | None,
    listener: ProgressListener,
) -> Pairs:
    """Find pairs of images with equal pixels, or with near hashes and correlated pixels."""
    hashes, has_hash, digests = [], [], []
    for one in opened:
        found = _computed(one, workers, storage_options, listener)
        hashes.append(found["hash"][0])
        has_hash.append(found["hash"][1])
        digests.append(found["digest"][0])
    digest = np.ascontiguousarray(np.concatenate(digests)).view("V32").ravel()
    rows = np.flatnonzero(np.concatenate(has_hash))
    equal = equal_rows(digest, group)
    known = np.concatenate(hashes)[rows]
    parts = [known[:, :WHOLE], *np.hsplit(known[:, WHOLE:], known.shape[1] - WHOLE)]  # each compared with its like
    ones, others = united(equal, *(near_rows(part, rows, group) for part in parts))
    same = digest[ones] == digest[others]
    involved = np.unique(np.concatenate([ones[~same], others[~same]]))
    luma, start = np.empty((0, SIDE, SIDE), np.uint8), 0
    for one in opened:
        own = involved[(involved >= start) & (involved < start + len(one.dataset))] - start
        images = import_target("readers:open_dataset", what="duplicates", extra="torch")(
            local_path(one.given), ["image"], storage_options=storage_options
        )
        luma = np.concatenate([luma, thumbnails(images, own)])
        start += len(one.dataset)
    alike = keep_alike((ones[~same], others[~same]), luma, involved, within)
    zero = np.zeros(np.count_nonzero(same), np.float32)
    return Pairs(
        np.concatenate([ones[same], alike.ones]),
        np.concatenate([others[same], alike.others]),
        np.concatenate([zero, alike.distance]),
    )


def _by_vectors(opened: Sequence[_Opened], by: str, group: IntArray, within: float) -> tuple[Pairs, IntArray]:
    """Find pairs by vectors. Samples of one track with the same vector count as one, by the first, which is returned."""
    vectors = np.concatenate([np.asarray(one.dataset.column(by), np.float32) for one in opened])
    known = np.concatenate([_known(one, by) for one in opened]) & (np.abs(vectors).max(axis=1, initial=0) > 0)
    tracks = [
        [(number, *track) for track in zip(*(_texts(one, name) for name in _TRACK if name in one.schema), strict=True)]
        for number, one in enumerate(opened)
    ]
    first: IntArray = np.arange(len(group))
    apart = len(np.unique(group)) == len(group)  # all samples are compared with each other
    seen: dict[Any, int] = {}
    for row, track in enumerate(track for of_dataset in tracks for track in of_dataset):
        if known[row] and len(track) == len(_TRACK) + 1 and None not in track:
            first[row] = seen.setdefault((track, vectors[row].tobytes(), None if apart else group[row]), row)
    rows = np.flatnonzero(known & (first == np.arange(len(first))))
    found = near_vectors(vectors[rows], group[rows], within)
    return Pairs(rows[found.ones], rows[found.others], found.distance), first


def _within_of(one: _Opened, by: str) -> float:
    """Return the largest distance of duplicates by a column, if its function has one."""
    records = {column.field: column.computed for column in one.dataset.manifest.columns}
    if records.get(by, {}).get("function") != "identity":
        raise UsageError(option="within", expected="the largest cosine distance of duplicates by `by`", found="none")
    found: float = import_target("packer.analysis.measures.identity:WITHIN", what="by", extra="dlib")
    return found


def _computed(
    one: _Opened, workers: int, storage_options: Mapping[str, Any] | None, listener: ProgressListener
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]:
    """Return hashes and digests with their validity: stored ones, or else computed in a temporary folder."""
    missing = [name for name in _FUNCTIONS if not has_computed(one.dataset.manifest, open_function(name))]
    found = {name: (one.dataset.column(name), _known(one, name)) for name in _FUNCTIONS if name not in missing}
    if missing:
        functions = tuple(map(open_function, missing))
        job = ComputeJob(
            local_path(one.given), tuple(missing), functions, workers=workers, storage_options=storage_options
        )
        with ExitStack() as stack:
            files = TemporaryFiles()
            stack.callback(files.close)
            for name, (_, values) in job.values(files.path, listener, lambda name, function: None).items():
                found[name] = np.array(values.data), values.valid
    return found


def _check_vectors(opened: Sequence[_Opened], by: str) -> None:
    for one in opened:
        if by not in one.schema or not one.schema[by].is_fixed or len(one.schema[by].fixed_shape) != 1:
            fit = [field.name for field in one.schema if field.is_fixed and len(field.fixed_shape) == 1]
            raise UsageError(
                option="by",
                place=one.given,
                expected=f"a field of vectors ({list_some(fit) or 'there is none'})",
                found=by,
            )
        length, other = opened[0].schema[by].fixed_shape[0], one.schema[by].fixed_shape[0]
        if other != length:
            raise UsageError(
                option="by",
                place=one.given,
                expected=f"vectors of {length} numbers as in {opened[0].given}",
                found=other,
            )


def _known(one: _Opened, name: str) -> npt.NDArray[np.bool_]:
    """Return which samples have a value of a field."""
    validity = one.schema.validity(name)
    return np.ones(len(one.dataset), np.bool_) if validity is None else np.asarray(one.dataset.column(validity))


def _describe(opened: Sequence[_Opened], compared: _Compared, pairs: Pairs, numbers: IntArray) -> Duplicates:
    keys = [key for one in opened for key in one.dataset.column("key")]
    labels: list[str | None] = []
    for one in opened:
        labels += (
            _texts(one, "label")
            if "label" in one.schema and one.schema["label"].is_small
            else [None] * len(one.dataset)
        )
    sources: list[str | None] = []
    for one in opened:
        sources += _texts(one, "source") if "source" in one.schema else [None] * len(one.dataset)
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


def _check_column(one: _Opened, column: str) -> None:
    """Check, before the search, that the column can be stored: it is new, or of an earlier search."""
    output_folder(one.given, "datasets")
    records = {known.field: known.computed for known in one.dataset.manifest.columns}
    if column in one.schema and records.get(column, {}).get("function") != "duplicates":
        raise UsageError(
            f"the dataset has a field {column!r} already", option="column", place=one.given, hint="choose another name"
        )


def _store(one: _Opened, column: str, numbers: IntArray, options: Mapping[str, Any]) -> None:
    record = {"function": "duplicates", "version": _VERSION, "options": dict(options)}
    with changing(output_folder(one.given, "datasets")) as (workspace, manifest):
        if manifest.digest != one.dataset.manifest.digest:
            raise DatasetChangedError(
                place=one.given, expected="the dataset as it was", found="another", hint="run the same command again"
            )
        field = Field(column, "fixed", "<i8", ())
        change_columns(workspace, manifest, {column}, (field,), {column: numbers}, {column: record})
