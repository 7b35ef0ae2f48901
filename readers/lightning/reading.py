"""Datasets that are given open, or as paths with how they are read."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

from readers.dataset.base import SampleDataset
from readers.dataset.packed import open_dataset
from readers.decode.plans import DecodePlan
from readers.formats.pool import Verify
from readers.seeding import AnyTransform
from shardspec.errors import UsageError

Source = SampleDataset | str | PathLike[str]


class Reading(NamedTuple):
    """How datasets that are given as paths are opened (`readers.PackedDataset`)."""

    fields: Sequence[str] | None
    verify: Verify | bool
    checksums: bool

    def open(
        self, source: Source, transform: AnyTransform | None, decode: Mapping[str, DecodePlan] | None
    ) -> SampleDataset:
        """A dataset with a transform, opened where it is given as a path.

        Raises
        ------
        UsageError
            It is open already, so that `fields` and `decode` come too late.
        """
        if not isinstance(source, SampleDataset):
            return open_dataset(source, self.fields, transform, self.verify, self.checksums, decode)
        if self.fields is not None or decode:
            raise UsageError(
                "fields, decode: expected none with a dataset that is open already: give them to open_dataset, or a path here"
            )
        return source.with_transform(transform)
