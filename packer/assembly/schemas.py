"""Settle the schema of pieces, unite the schemas of several datasets, and adapt encoded values to the common schema.

Encoded images are not decoded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from typing import Any

import numpy as np

from packer.assembly.piece import ColumnSpec, PieceColumns
from shardspec.codecs import codec_for
from shardspec.errors import SchemaError
from shardspec.points import LAYOUTS
from shardspec.schema import NO_CLASS, Field, NamedConfig, Schema, class_name
from shardspec.typing.field_types import FieldType, Shape, common_shape
from shardspec.wording import LENGTH, LISTED, cut, shorten

Adapt = Callable[[Any], Any]
"""Adapts a column of one dataset (`shardspec.columns`) to the common field."""

LOSSLESS_CODEC = NamedConfig("png")
"""Codec of image fields named like masks, regardless of the recipe, because they may be label maps."""

LOSSLESS_VIDEO_CODEC = NamedConfig("ffv1")
"""Codec of video fields named like masks."""

_LAYOUTS = {len(layout.names): name for name, layout in LAYOUTS.items()}
"""The point layout of a field ``landmarks``, by its number of points."""


@dataclass(frozen=True)
class FieldRules:
    """Rules by which the columns of pieces become fields.

    Attributes
    ----------
    image_codec : NamedConfig
        Codec of images that are not declared.
    classes : dict of str to list of str
        Class names by field.
    declared : dict of str to FieldType, optional
        Declared fields, with their codecs and varying axes.
    """

    image_codec: NamedConfig
    classes: Mapping[str, Sequence[str]] = attribute(default_factory=dict)
    declared: Mapping[str, FieldType] | None = None

    def fits(self, columns: PieceColumns, schema: Schema) -> bool:
        """Return whether rows with these columns may fit into a schema, apart from their shapes."""
        if columns.keys() != set(schema.names):
            return False
        return all(self.fits_field(spec, schema[name]) for name, spec in columns.items())

    def fits_field(self, spec: ColumnSpec, field: Field) -> bool:
        """Return whether values of a column may fit into a field, apart from their shapes."""
        if len(field.shape) != spec.ndim:
            return False
        own = self.make_field(field.name, spec, field.shape)
        return (own.kind, own.dtype, own.codec) == (field.kind, field.dtype, field.codec)

    def make_field(self, name: str, spec: ColumnSpec, shape: Shape, names: Iterable[str] = ()) -> Field:
        """Return the field that a column becomes.

        Parameters
        ----------
        shape : tuple
            The common shape of the values (`common_shape`).
        names : iterable of str
            All values of a column of class names.
        """
        declared = (self.declared or {}).get(name, FieldType("image", codec=self.image_codec))
        shape = declared.shape if declared.settled else shape
        if spec.kind == "sequence" or (spec.ndim == 4 and spec.kind in ("image", "lossless")):
            shape = (None, *shape[1:])
        if spec.kind == "image":
            kind = FieldType("image", codec=declared.codec or self.image_codec)
        elif spec.kind == "lossless":
            kind = FieldType("image", codec=LOSSLESS_CODEC if spec.ndim == 3 else LOSSLESS_VIDEO_CODEC)
        elif spec.kind == "sequence":
            kind = FieldType("array", spec.dtype, in_time=True)
        elif spec.kind == "json_sequence":
            kind = FieldType("json", in_time=True)
        else:
            kind = FieldType(spec.kind, spec.dtype)
        classes = sorted(names) if spec.kind == "class" else self.classes.get(name)
        layout = _LAYOUTS.get(shape[0] or 0) if name == "landmarks" and len(shape) == 2 else None
        return kind.to_field(name, shape, classes, layout)


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


def extend_schema(base: Schema, found: Schema) -> Schema:
    """Return the common schema of a dataset and rows that are added to it.

    Raises
    ------
    SchemaError
        If the schemas cannot be united, or if the values of the dataset would be stored in another way.
    """
    united = unite_schemas([base, found])
    for known in base:
        field, names = united[known.name], [class_name(name) for name in known.classes or ()]
        stays = field.codec.name != "raw" or (field.kind, field.shape) == (known.kind, known.shape)
        if not stays or names != [class_name(name) for name in field.classes or ()][: len(names)]:
            raise SchemaError(
                place=f"field {known.name!r}",
                expected=f"values of shape {known.shape}, as in the dataset",
                found=f"{found[known.name].shape}",
            )
    return united


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
