"""Unite the schemas of several packed datasets, and adapt encoded values to the common schema without decoding them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardspec.codecs import codec_for
from shardspec.errors import SchemaError
from shardspec.schema import NO_CLASS, Field, Schema, class_name
from shardspec.typing.field_types import common_shape
from shardspec.wording import LENGTH, LISTED, cut, shorten

Adapt = Callable[[Any], Any]
"""Adapts a column of one dataset (`shardspec.columns`) to the common field."""


def unite_schemas(schemas: Sequence[Schema]) -> Schema:
    """Return the common schema of all datasets.

    Different class lists are united into one list of all names, in NFC. If all lists are sorted, the united list is
    sorted too, as if everything had been built together. Otherwise it starts with the names of the first list, followed
    by the names that each further list adds. Axes of different lengths become varying axes.

    Raises
    ------
    SchemaError
        If the schemas differ in anything else. The message lists all differences.
    """
    first = schemas[0]
    differences = list(dict.fromkeys(text for other in schemas[1:] for text in _differences(first, other)))
    if differences:
        more = f"; and {len(differences) - LISTED} more differences" if len(differences) > LISTED else ""
        raise SchemaError("; ".join(differences[:LISTED]) + more)
    return Schema(tuple(_unite([schema[name] for schema in schemas]) for name in first.names))


def adapter(found: Field, united: Field) -> Adapt | None:
    """Return a function that adapts encoded values to the common field, or None if the bytes stay the same.

    The function raises a `SchemaError` for a number that is not a class of the field.
    """
    if found.classes != united.classes:
        return _renumber(found, united)
    if found.kind != united.kind:
        read, write = codec_for(found), codec_for(united)
        return lambda column: [write.encode(value if found.is_fixed else read.decode(value)) for value in column]
    return None


def _renumber(found: Field, united: Field) -> Adapt:
    """Renumber classes by the common list. Keep -1 (no class), and refuse other numbers outside the list."""
    names = list(map(class_name, united.classes or ()))
    table = np.array([names.index(class_name(name)) for name in found.classes or ()], united.numpy_dtype)

    def renumber(column: Any) -> Any:
        known = (column >= 0) & (column < len(table))
        strange = column[~known & (column != NO_CLASS)]
        if strange.size:
            raise SchemaError(
                place=f"field {found.name!r}",
                expected=f"a class of 0 to {len(table) - 1}, or {NO_CLASS} for none",
                found=f"{strange[0]}, which would be another class in the united list",
                hint="pack that dataset again with correct labels",
            )
        column[known] = table[column[known]]
        return column

    return renumber


def _unite(fields: Sequence[Field]) -> Field:
    first = fields[0]
    if all(field == first for field in fields):
        return first
    if first.classes is not None:
        lists = [list(map(class_name, field.classes or ())) for field in fields]
        names = list(dict.fromkeys(name for classes in lists for name in classes))
        if all(classes == sorted(classes) for classes in lists):
            names.sort()
        if len(names) - 1 > np.iinfo(first.numpy_dtype).max:
            raise SchemaError(
                f"{len(names)} classes together, more than {first.dtype} can number", place=f"field {first.name!r}"
            )
        return replace(first, classes=tuple(names))
    shape = common_shape(field.shape for field in fields)
    kind = first.kind
    if first.codec.name == "raw":
        kind = "bytes" if None in shape[1:] or any(field.kind == "bytes" for field in fields) else "ragged"
    return replace(first, kind=kind, shape=shape)


def _differences(expected: Schema, found: Schema) -> Iterator[str]:
    names = [f"field {name!r} is missing" for name in expected.names if name not in found]
    names += [f"field {name!r} is not in the first" for name in found.names if name not in expected]
    yield from names
    if not names and expected.names != found.names:
        yield f"the fields are in another order: expected {', '.join(expected.names)}"
    for field in expected:
        if field.name in found:
            yield from _field_differences(field, found[field.name])


def _field_differences(expected: Field, found: Field) -> Iterator[str]:
    a, b = expected.to_json(), found.to_json()
    free = {"classes"} if "classes" in a and "classes" in b else set()
    if expected.codec == found.codec and len(expected.shape) == len(found.shape):
        free |= {"shape", "kind"} if expected.codec.name == "raw" else {"shape"}
    for key in dict.fromkeys((*a, *b)):
        if key not in free and a.get(key) != b.get(key):
            yield f"field {expected.name!r}, {key}: expected {_show(a.get(key))}, found {_show(b.get(key))}"


def _show(value: Any) -> str:
    return cut(str(value), LENGTH) if not isinstance(value, list) else shorten(value)
