"""Find groups of samples that occur in several datasets."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.assembly.groups import read_groups
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.plan import several_paths
from packer.workspace.hashing import in_several, number_all
from shardspec.errors import UsageError
from shardspec.layout import place_of
from shardspec.wording import counted, shorten


class Leak(NamedTuple):
    """A group that occurs in several datasets.

    Attributes
    ----------
    group : str
    samples : dict of str to int
        Samples of the group in each dataset that has any, by the path or URL of the dataset as given.
    """

    group: str
    samples: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the leaks as JSON."""
        return {"group": self.group, "samples": self.samples}


@dataclass(frozen=True, repr=False)
class Leaks(Result):
    """Result of a comparison of datasets.

    Attributes
    ----------
    by : str
        The field whose values were compared.
    datasets : tuple of str
        The paths or URLs of the datasets as given.
    found : tuple of Leak
        The groups in several datasets, by name.
    without : int
        Samples without a value, which were not compared.
    """

    by: str
    datasets: tuple[str, ...]
    found: tuple[Leak, ...]
    without: int

    def to_json(self) -> dict[str, Any]:
        """Return the leaks as JSON."""
        found = [leak.to_json() for leak in self.found]
        return {"by": self.by, "datasets": list(self.datasets), "leaks": found, "samples_without_value": self.without}

    def describe(self) -> str:
        """Describe the leaks."""
        together = ", ".join(self.datasets)
        rest = f" ({counted(self.without, 'sample')} without a value not compared)" if self.without else ""
        if not self.found:
            return f"{together}: no {self.by} occurs in more than one{rest}"
        lines = [
            f"  {shorten(leak.group)}: "
            + ", ".join(f"{counted(size, 'sample')} in {path}" for path, size in leak.samples.items())
            for leak in self.found
        ]
        many = counted(len(self.found), "value")
        return "\n".join([f"{together}: LEAK: {many} of {self.by} in more than one{rest}:", *lines])


def find_leaks(
    datasets: Sequence[str | os.PathLike[str]], *, by: str, progress: bool | ProgressListener = True
) -> Leaks:
    """Find the groups that occur in more than one of several datasets. Groups are compared by their value, as text.

    Parameters
    ----------
    datasets : sequence of path
        Two packed datasets or more.
    by : str
        The field whose values are groups: ``"source"``, or a column such as a person's name.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    Leaks

    Raises
    ------
    UsageError
        If there are fewer than two datasets, if one is given twice, or if one lacks the field.
    DatasetError
        If a dataset cannot be read.
    """
    paths = several_paths(datasets, f"to compare by {shorten(by)}")
    places: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in places:
            raise UsageError(
                expected="different datasets to compare", found="one twice", hint=f"{places[path.resolve()]}, {path}"
            )
        places[path.resolve()] = path
    several = []
    with Stage(listener_of(progress), "comparing", len(paths), "datasets") as stage:
        for path in paths:
            several.append(read_groups(path, by))
            stage.advance()
    names = [str(place_of(path)) for path in paths]
    numbers = [number_all(groups.names) for groups in several]
    shared = in_several(numbers)
    found: dict[str, dict[str, int]] = {}
    for name, groups, own in zip(names, several, numbers, strict=True):
        sizes = groups.sizes()
        for at in np.flatnonzero(np.isin(own, shared)).tolist():
            found.setdefault(groups.names[at], {})[name] = int(sizes[at])
    leaks = tuple(Leak(group, samples) for group, samples in sorted(found.items()) if len(samples) > 1)
    return Leaks(by, tuple(names), leaks, sum(groups.without for groups in several))
