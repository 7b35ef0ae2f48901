"""Relabelling: labels are mapped to other classes while reading."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from shardspec.columns import IntArray, missing_in
from shardspec.errors import UsageError
from shardspec.schema import NO_CLASS, describe_wrong_classes
from shardspec.wording import counted, did_you_mean, list_some, shorten

Classes = tuple[str, ...]


class LabelMap:
    """A mapping from labels to new labels.

    Parameters
    ----------
    numbers : dict of int to int
        The new label of every label that samples have, except `NO_CLASS`.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        known = sorted({NO_CLASS: NO_CLASS} | dict(numbers))
        self._old: IntArray = np.array(known, np.int64)
        self._new: IntArray = np.array([numbers.get(old, old) for old in known], np.int64)
        self._least, self._most = min(numbers.values(), default=0), max(numbers.values(), default=0)

    def fits(self, dtype: np.dtype[Any]) -> bool:
        """Return whether a dtype can hold the new labels."""
        return dtype.kind in "iu" and np.iinfo(dtype).min <= self._least and self._most <= np.iinfo(dtype).max

    def __call__(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Map labels to new labels of the same dtype and shape."""
        places = np.minimum(np.searchsorted(self._old, labels), len(self._old) - 1)
        strange = self._old[places] != labels
        if strange.any():
            raise UsageError(
                option="label",
                expected="one of the labels that are stored",
                found=labels[strange].flat[0],
                hint="relabel a dataset before a transform that changes labels",
            )
        return self._new[places].astype(labels.dtype)


def name_classes(dataset: SampleDataset, classes: Sequence[str]) -> tuple[LabelMap, Classes]:
    """Number labels by a list that has every class of the samples."""
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise UsageError(option="classes", expected="a list of names", found=shorten(classes))
    wrong = describe_wrong_classes(classes)
    if wrong is not None:
        raise UsageError(wrong, option="classes")
    found, counts = _labels_of(dataset)
    if not dataset.classes:
        strange = [label for label in found if label >= len(classes)]
        if strange or min(found, default=0) < 0:
            raise UsageError(
                option="classes",
                expected="a name for every label, since these are numbers without names",
                found=f"{len(classes)} names and label {(strange or found)[0]}",
                hint="list all names in the order of the numbers",
            )
        return LabelMap({label: label for label in found}), tuple(classes)
    numbers = {name: number for number, name in enumerate(classes)}
    others = [(dataset.classes[label], counts[label]) for label in found if dataset.classes[label] not in numbers]
    if others:
        name, count = others[0]
        more = f" (and of {len(others) - 1} more)" if len(others) > 1 else ""
        raise UsageError(
            option="classes",
            expected="every class that samples have",
            found=(
                f"{counted(count, 'sample')} of {shorten(name)}{more}, which is not in "
                f"{list_some(list(map(repr, classes)))}{did_you_mean(name, classes)}"
            ),
            hint="add it, rename it with map_labels, or leave its samples out with where",
        )
    return LabelMap({label: numbers[dataset.classes[label]] for label in found}), tuple(classes)


def map_classes(dataset: SampleDataset, mapping: Mapping[Any, Any]) -> tuple[LabelMap, Classes]:
    """Change labels by a mapping from class to class, or from number to number or class, of all classes in use."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise UsageError(option="mapping", expected="a dict such as {'deepfakes': 'fake'}", found=shorten(mapping))
    found, counts = _labels_of(dataset)
    old = _numbers_of(dataset, mapping)
    classes: Classes = ()
    if all(isinstance(new, str) for new in mapping.values()):
        classes = tuple(dict.fromkeys(mapping.values()))
        places = {name: number for number, name in enumerate(classes)}
        new = {label: places[value] for label, value in old.items()}
    elif not dataset.classes and all(_is_number(value) for value in mapping.values()):
        new = {label: int(value) for label, value in old.items()}
        if min(new.values()) < NO_CLASS:
            raise UsageError(option="mapping", expected=f"labels of {NO_CLASS} or more", found=min(new.values()))
    else:
        wanted = "names of classes" if dataset.classes else "numbers or names"
        strange = next(value for value in mapping.values() if not isinstance(value, str))
        raise UsageError(
            option="mapping",
            expected=f"{wanted} as values",
            found=shorten(strange),
            hint="names are numbered in the order in which they first appear",
        )
    missing = [label for label in found if label not in new]
    if missing:
        name = dataset.classes[missing[0]] if dataset.classes else missing[0]
        more = f" (and of {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UsageError(
            option="mapping",
            expected="every class that samples have",
            found=f"none for {counted(counts[missing[0]], 'sample')} of {shorten(name)}{more}",
            hint="map it too, to itself if it is to stay, or leave its samples out with where",
        )
    return LabelMap(new), classes


def _numbers_of(dataset: SampleDataset, mapping: Mapping[Any, Any]) -> dict[int, Any]:
    """Return the values of a mapping by the numbers of its keys."""
    if not dataset.classes:
        strange = [key for key in mapping if not _is_number(key)]
        if strange:
            raise UsageError(
                option="mapping",
                expected="numbers as keys, since the labels have no names",
                found=shorten(strange[0]),
                hint="name them first with with_classes",
            )
        return {int(key): value for key, value in mapping.items()}
    numbers = {name: number for number, name in enumerate(dataset.classes)}
    for key in mapping:
        if key not in numbers:
            raise UsageError(
                option="mapping",
                expected=f"classes as keys, of {list_some(list(map(repr, dataset.classes)))}",
                found=f"{shorten(key)}{did_you_mean(key, numbers) if isinstance(key, str) else ''}",
            )
    return {numbers[key]: value for key, value in mapping.items()}


def _labels_of(dataset: SampleDataset) -> tuple[list[int], dict[int, int]]:
    """Return the labels of the samples, ascending and without `NO_CLASS`, and the number of samples of each."""
    column = dataset.column("label")
    labels = np.asarray(column)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(
            option="label", expected="an integer for each sample", found=f"{labels.dtype} {labels.shape[1:]}"
        )
    found, counts = np.unique(labels[~missing_in(column)].astype(np.int64), return_counts=True)
    many = {label: count for label, count in zip(found.tolist(), counts.tolist(), strict=True) if label != NO_CLASS}
    if dataset.classes and many and not 0 <= min(many) <= max(many) < len(dataset.classes):
        raise UsageError(
            option="label",
            expected=f"0 to {len(dataset.classes) - 1}, the numbers of the classes",
            found=f"{min(many)} to {max(many)}",
        )
    return list(many), many


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
