"""Derive the schema of a dataset from its parts, and choose the columns of its rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from packer.builds.parts.part import Part, PartColumns, describe_difference
from packer.steps.encode import LOSSLESS_CODEC, ColumnSpec
from packer.steps.report import ItemReport
from shardspec.errors import SchemaError
from shardspec.fields import FIELD_ORDER
from shardspec.schema import Field, NamedConfig, Schema
from shardspec.typing.field_types import FieldType, Shape, common_shape
from shardspec.wording import LISTED


class SchemaSettler:
    """Derives the schema from the parts, one after another. The varying axes are known only after the last part.

    Parameters
    ----------
    classes : dict of str to list of str
        Class names by field.
    layouts : dict of int to str
        The point layout of a ``landmarks`` field, by its number of points.
    declared : dict of str to FieldType, optional
        Declared fields, with their codecs and varying axes.
    """

    def __init__(
        self,
        image_codec: NamedConfig,
        classes: Mapping[str, list[str]],
        layouts: Mapping[int, str],
        declared: Mapping[str, FieldType] | None = None,
    ) -> None:
        self._columns: PartColumns = {}
        self._image_codec = image_codec
        self._classes = classes
        self._layouts = layouts
        self._declared = declared or {}
        self._class_names: dict[str, set[bytes]] = {}
        self._shapes: dict[str, Shape] = {}

    def begin(self, columns: PartColumns) -> None:
        """Set the columns of the rows to use."""
        self._columns = columns
        self._class_names = {name: set() for name in columns if columns[name].kind == "class"}

    def add(self, part: Part) -> int:
        """Add one part, and return the number of its rows that have the chosen columns."""
        rows = part.group(self._columns)
        if rows is None:
            return 0
        # Handle all columns in one call, since there may be as many parts as items.
        low, high = tuple(rows.shapes.min(axis=0).tolist()), tuple(rows.shapes.max(axis=0).tolist())
        first = 0
        for name, spec in rows.columns.items():
            axes = slice(first, first + spec.ndim)
            first += spec.ndim
            known = self._shapes.setdefault(name, low[axes])
            if known != low[axes] or known != high[axes]:
                self._shapes[name] = common_shape((known, low[axes], high[axes]))
        for name, names in self._class_names.items():
            names.update(map(bytes, rows.values(name, np.arange(len(rows)))))
        return len(rows)

    def settle(self) -> Schema:
        """Return the schema of all parts that were added."""
        columns = self._columns
        first = [name for name in FIELD_ORDER if name in columns]
        names = first + sorted(set(columns) - set(first))
        return Schema(tuple(self._field(name, columns[name], self._shapes[name]) for name in names))

    def settle_into(self, schema: Schema) -> Schema:
        """Return the schema of a dataset extended by the rows. Only the sizes of images may become variable.

        Raises
        ------
        SchemaError
            If the rows do not fit into the dataset.
        """
        found = self.settle() if self._columns else schema
        wrong = [f"field {name!r} is missing" for name in schema.names if name not in found]
        wrong += [f"field {name!r} is new" for name in found.names if name not in schema]
        fields = []
        for field in schema:
            fitted = _fit(field, found[field.name]) if field.name in found else None
            if fitted is None and field.name in found:
                wrong.append(f"field {field.name!r}: expected {_describe(field)}, found {_describe(found[field.name])}")
            fields.append(fitted or field)
        if wrong:
            raise SchemaError("; ".join(wrong[:LISTED]) + (f"; and {len(wrong) - LISTED} more" * (len(wrong) > LISTED)))
        return Schema(tuple(fields))

    def fits(self, columns: PartColumns, schema: Schema) -> bool:
        """Return whether rows with these columns may fit into a schema, apart from their shapes."""
        if columns.keys() != set(schema.names):
            return False
        return all(self.fits_field(spec, schema[name]) for name, spec in columns.items())

    def fits_field(self, spec: ColumnSpec, field: Field) -> bool:
        """Return whether values of a column may fit into a field, apart from their shapes."""
        if len(field.shape) != spec.ndim:
            return False
        own = self._field(field.name, spec, field.shape)
        return (own.kind, own.dtype, own.codec) == (field.kind, field.dtype, field.codec)

    def _field(self, name: str, spec: ColumnSpec, shape: Shape) -> Field:
        declared = self._declared.get(name, FieldType("image", codec=self._image_codec))
        shape = declared.shape if declared.settled else shape
        if spec.kind == "image":
            kind = FieldType("image", codec=declared.codec or self._image_codec)
        elif spec.kind == "lossless":
            kind = FieldType("image", codec=LOSSLESS_CODEC)
        else:
            kind = FieldType(spec.kind, spec.dtype)
        classes: Sequence[str] | None = self._classes.get(name)
        if spec.kind == "class":
            classes = sorted(value.decode() for value in self._class_names[name])
        layout = self._layouts.get(shape[0] or 0) if name == "landmarks" and len(shape) == 2 else None
        return kind.to_field(name, shape, classes, layout)


def _fit(field: Field, found: Field) -> Field | None:
    """Return a dataset's field extended to hold further values, or None if it cannot hold them."""
    if field.dtype != found.dtype or field.codec != found.codec or len(field.shape) != len(found.shape):
        return None
    if (field.classes is None) != (found.classes is None) or field.layout != found.layout:
        return None
    field = replace(field, classes=found.classes)
    if all(axis in (None, new) for axis, new in zip(field.shape, found.shape, strict=True)):
        return field
    if field.codec.name == "raw":  # raw values are stored differently if their shape varies
        return None
    return replace(field, shape=common_shape((field.shape, found.shape)))


def _describe(field: Field) -> str:
    shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
    names = "" if field.classes is None else ", class names"
    return f"{field.kind} {field.dtype} of {shape} ({field.codec.name}{names})"


def count_columns(part: Part) -> Counter[tuple[tuple[str, ColumnSpec], ...]]:
    """Return the number of the part's items that have samples with the same columns, by columns."""
    kinds = [tuple(group.columns.items()) for group in part.groups]
    return Counter(kinds[item.group] for item in part.items if item.group is not None)


def settled_reports(part: Part, columns: PartColumns) -> Iterator[ItemReport]:
    """Yield the reports of a part's items. Items whose samples have other columns become rejects."""
    for item in part.items:
        report = item.to_report()
        if item.group is not None and part.groups[item.group].columns != columns:
            reason = (
                "expected the same fields as in most items, found others: "
                f"{describe_difference(columns, part.groups[item.group].columns)}"
            )
            report = ItemReport(report.name, frames=report.frames, faces=report.faces, step="encode", reason=reason)
        yield report
