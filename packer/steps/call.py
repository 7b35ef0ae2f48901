"""Run a user's function, which turns an input into samples, as the only step of a chain."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from packer.assembly.piece import EncodedValue
from packer.recipe.fields import Declaration
from packer.sources.inputs import read_input
from packer.steps.chain import ITEM, REPORT, Sample, Step
from packer.steps.encode import encode_text
from packer.steps.encode_sample import SampleEncoder
from shardspec.errors import ItemError, SchemaError

Function = Callable[[Any], Mapping[str, Any] | Iterable[Mapping[str, Any]] | None]
"""Turns an input into one sample, several samples, or none."""

MADE = "_made"
"""Key under which a sample carries the mapping that the function returned."""


def step_of(function: Function) -> Step:
    """Return the step that calls a function once for each item, with the input that the item represents.

    An input for which the function returns no sample does not count as rejected.
    """

    def step(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            report, count = sample[REPORT], 0
            for made in _samples_of(function(read_input(sample[ITEM]))):
                count += 1
                yield {"source": sample["source"], MADE: made}
            report.empty = not count

    return functools.update_wrapper(step, function)


class MadeEncoder:
    """Encodes the samples of a function, with the name of the input as ``source`` unless the function sets it."""

    def __init__(self, declaration: Declaration) -> None:
        self._encoder = SampleEncoder(declaration)

    def encode(self, sample: Mapping[str, Any]) -> dict[str, EncodedValue]:
        """Encode all values of a sample.

        Raises
        ------
        SchemaError
            If the function sets a key, or a value does not fit its field.
        """
        made = sample[MADE]
        if "key" in made:
            raise SchemaError(
                place="field 'key'", expected="samples without it, since it is made from the input's number"
            )
        row = self._encoder.encode(made)
        row["key"] = encode_text(sample["key"])
        if "source" not in row:
            row["source"] = encode_text(sample["source"])
        return row


def _samples_of(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the samples among the values that a function returned."""
    if given is None:
        return
    if isinstance(given, Mapping):
        yield dict(given)
        return
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise ItemError(expected="a dict, dicts, or None from the function", found=type(given).__name__)
    for sample in given:
        if not isinstance(sample, Mapping):
            raise ItemError(expected="samples as dicts from the function", found=type(sample).__name__)
        yield dict(sample)
