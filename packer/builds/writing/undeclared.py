"""Infer the types of undeclared fields from the first samples of a writer."""

import copy
from collections.abc import Mapping
from typing import Any

from packer.recipe.fields import Declaration, check_label, check_name
from packer.steps.encode_sample import SampleEncoder
from shardspec.errors import SchemaError, UsageError
from shardspec.schema import NO_CLASS
from shardspec.typing.field_types import LABEL, FieldType, infer, join, settle_empty
from shardspec.wording import shorten

FIRST_SAMPLES = 100
FIRST_BYTES = 64 * 10**6
"""Number of samples from which the types are inferred, and the most bytes of them to keep in memory."""

_CLASS = FieldType("class")


class FirstSamples:
    """Keeps the first samples in memory until the types of the fields are settled.

    Parameters
    ----------
    declaration : Declaration
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._samples: list[tuple[str, dict[str, Any]]] = []
        self._types: dict[str, FieldType] = {}
        self._bytes = 0

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self._samples)

    @property
    def full(self) -> bool:
        """True if there are enough samples to settle the types."""
        return len(self._samples) >= FIRST_SAMPLES or self._bytes >= FIRST_BYTES

    def add(self, key: str, sample: Mapping[str, Any], types: dict[str, FieldType]) -> None:
        """Add a copy of a sample, because the caller may reuse its arrays. `types` is the result of `join`."""
        self._types = types
        self._samples.append((key, {name: _copy(value) for name, value in sample.items()}))
        self._bytes += sum(getattr(value, "nbytes", 0) or _length(value) for value in sample.values())

    def join(self, sample: Mapping[str, Any]) -> dict[str, FieldType]:
        """Return the types of the fields, given the earlier samples and this one.

        Raises
        ------
        SchemaError
            If the sample does not fit the earlier ones.
        """
        types: dict[str, FieldType] = {}
        for name, value in sample.items():
            try:
                check_name(name, "sample")
            except UsageError as error:
                raise SchemaError(str(error)) from error
            try:
                found = infer(name, value, self._declaration.image)
                known = self._types.get(name)
                if name == LABEL and self._declaration.classes is not None and value is not None:
                    found = _CLASS  # a name or its number
                joined = found if known is None else join(known, found)
            except SchemaError as error:
                raise SchemaError(error, place=f"field {name!r}") from error
            if joined is None or not self._holds(name, joined):
                assert known is not None
                raise SchemaError(
                    place=f"field {name!r}",
                    expected=f"{known.describe()}, as in the samples before",
                    found=f"{shorten(value)} ({type(value).__name__})",
                )
            types[name] = joined
        if self._samples and types.keys() != self._types.keys():
            SampleEncoder(Declaration(self._types)).encode(sample)  # names the fields
        SampleEncoder(self._declare(types)).encode(sample)
        return types

    def _holds(self, name: str, kind: FieldType) -> bool:
        """Return whether the earlier samples fit another type of a field. For example, JSON has no NaN."""
        if self._types.get(name, kind) == kind:
            return True
        encoder = SampleEncoder(Declaration({name: settle_empty(kind)}, self._declaration.classes))
        try:
            for _, sample in self._samples:
                encoder.encode({name: sample[name]})
        except SchemaError:
            return False
        return True

    def settle(self) -> Declaration:
        """Return the declaration with the types of all samples."""
        return self._declare(self._types)

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the keys and samples, and forget them."""
        samples, self._samples = self._samples, []
        return samples

    def _declare(self, types: Mapping[str, FieldType]) -> Declaration:
        fields = {name: settle_empty(kind) for name, kind in types.items()}
        classes = self._declaration.classes
        if classes is not None and LABEL not in fields:
            raise SchemaError(expected=f"a field {LABEL!r}, whose classes were given", found="none")
        try:
            check_label(fields.get(LABEL, _CLASS))
        except UsageError as error:
            raise SchemaError(str(error)) from error
        for name, kind in fields.items():
            if kind.optional and (kind.kind in ("image", "class") or (name == LABEL and classes is not None)):
                instead = f": {NO_CLASS} stands for no class" if name == LABEL and classes is not None else ""
                raise SchemaError(place=f"field {name!r}", expected="a value in every sample", found=f"None{instead}")
            if kind.optional and f"{name}_valid" in fields:
                raise SchemaError(
                    place=f"field {name!r}", expected=f"a value, since there is a field '{name}_valid'", found="None"
                )
        return Declaration(fields, classes, self._declaration.image)


def _copy(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else copy.deepcopy(value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 0
