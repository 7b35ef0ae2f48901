"""A packed dataset that is looked at: small fields as columns, values of samples, stored pictures."""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from packer.sources.table import read_table
from readers.conditions import rows_where
from readers.formats.pool import ShardPool
from shardspec.codecs import codec_for
from shardspec.columns import IntArray, allocate
from shardspec.errors import CodecError, DatasetError, UsageError
from shardspec.frames import DatasetKeys, join_frame, key_field
from shardspec.layout import Layout
from shardspec.schema import Field, Schema
from shardspec.wording import did_you_mean, list_some

Column = npt.NDArray[Any]

MEDIA_TYPES: Mapping[str, str] = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
"""By codec: the stored bytes go to the browser as they are."""

BOX_SIDE = "box_side"
"""The longer side of ``box`` in pixels: a field that is only looked at."""

WRONG = "wrong"
"""Whether ``prediction``, of a joined table, differs from ``label``: a field that is only looked at."""

_PREDICTIONS = ("prediction", "predicted", "pred")
_CHUNK = 8192
_FEW_TEXTS = 50_000
"""A text field with more different values is kept value by value, and is not counted."""
_KEPT = 4
"""The most selections, each in its order, that are kept. Columns are kept as long as the dataset is shown."""


class StoredPicture(NamedTuple):
    """A picture as the browser gets it.

    Attributes
    ----------
    data : bytes
    media_type : str
    """

    data: bytes
    media_type: str


class Texts(NamedTuple):
    """A text field of all rows, by number.

    Attributes
    ----------
    names : list of str
        The different values, in the order of their first rows.
    codes : (rows,) int32
    """

    names: list[str]
    codes: npt.NDArray[np.int32]


class ShownDataset:
    """Reads what a page shows of one packed dataset. Safe to use from several threads.

    Columns of single numbers are mapped from the index; others are read once, when they are first needed. Memory grows
    by some bytes a row for each column that is not in the index, and for each selection that is kept.

    Parameters
    ----------
    path : Path
        The dataset's folder.
    table : Path, optional
        A table whose columns are joined as further fields, by ``key``; samples may be without a value.

    Raises
    ------
    DatasetError, UsageError
        If the dataset or the table cannot be read.
    """

    def __init__(self, path: Path, table: Path | None = None) -> None:
        self.path = path
        self.pool = ShardPool(Layout(path.absolute()), "size", checksums=True)
        self.manifest = self.pool.manifest
        self._lock = threading.RLock()
        self._columns: dict[str, Column] = {}
        self._texts: dict[str, Texts | None] = {}
        self._selections: OrderedDict[tuple[str, str], npt.NDArray[np.int32]] = OrderedDict()
        self.joined: tuple[str, ...] = ()
        if table is not None:
            self._join(table)
        pictures = [field for field in self.schema if field.is_image]
        self.picture = next((field for field in pictures if field.name == "image"), pictures[0] if pictures else None)
        self.pictures = tuple(field.name for field in pictures)
        self._codecs = {field.name: codec_for(field) for field in self.schema if not field.is_fixed}
        self._prediction = next((name for name in _PREDICTIONS if name in self.joined), None)

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def schema(self) -> Schema:
        """All fields, those of the joined table last."""
        return self.pool.schema

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of ``label``."""
        return self.schema["label"].classes if "label" in self.schema else None

    @property
    def small_fields(self) -> tuple[str, ...]:
        """The fields with a number or a text for each sample, and those that only pages have."""
        own = [field.name for field in self.schema if is_small(field)]
        box = self.schema["box"] if "box" in self.schema and BOX_SIDE not in self.schema else None
        if box is not None and box.is_fixed and box.shape == (4,) and box.dtype[1] in "iuf":
            own.append(BOX_SIDE)
        if self._prediction is not None and "label" in own and WRONG not in self.schema:
            own.append(WRONG)
        return tuple(own)

    def field(self, name: str) -> Field:
        """A field, also one that only pages have."""
        if name in self.schema:
            return self.schema[name]
        return Field(name, "fixed", {BOX_SIDE: "<f4", WRONG: "|b1"}[name], ())

    def column(self, name: str) -> Column:
        """A small field of all rows: numbers, or texts as an array of `numpy.dtypes.StringDType`."""
        with self._lock:
            if name in self._columns:
                return self._columns[name]
            if name in self.schema and self.schema[name].kind == "text":
                texts = self.texts(name)
                if texts is not None:
                    return np.array(texts.names or [""], np.dtypes.StringDType())[texts.codes]
                values: Column = self._read_texts(name)
            elif name in self.schema:
                found = self.pool.map_index(self.schema[name]) if name not in self.joined else None
                values = np.concatenate(list(self._read_chunks(name))) if found is None else found
            elif name == BOX_SIDE:
                values = np.concatenate([_longer_side(boxes) for boxes in self._read_chunks("box")])
            else:
                values = self._wrong()
            self._columns[name] = values
            return values

    def texts(self, name: str) -> Texts | None:
        """A text field by number; None if there are too many different values to be counted."""
        with self._lock:
            if name not in self._texts:
                self._texts[name] = self._number_texts(name)
            return self._texts[name]

    def select(self, where: str = "", sort: str = "") -> npt.NDArray[np.int32]:
        """The rows that meet a condition, in an order.

        Parameters
        ----------
        where : str
            An expression, as `readers.PackedDataset.where` takes it; empty for all rows.
        sort : str
            A small field, with ``-`` before it for descending; empty for the order of the dataset. Values that are not
            numbers come last.

        Raises
        ------
        UsageError
            If there is no such field, or the expression is invalid.
        """
        key = (where.strip(), sort)
        with self._lock:
            if key in self._selections:
                self._selections.move_to_end(key)
                return self._selections[key]
            rows = rows_where(self, key[0]) if key[0] else np.arange(len(self))
            if sort:
                rows = self._sorted(rows, sort)
            self._selections[key] = rows.astype(np.int32)
            if len(self._selections) > _KEPT:
                self._selections.popitem(last=False)
            return self._selections[key]

    def read(self, rows: Sequence[int] | IntArray, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The decoded values of some rows; without `names`, of all fields but pictures.

        A value that cannot be decoded is the error's text.
        """
        if names is None:
            names = [name for name in self.schema.names if name not in self.pictures]
        numbers = np.asarray(rows, np.int64)
        fields = [self.schema[name] for name in names]
        out = allocate(fields, len(numbers))
        self.pool.read(numbers, list(names), out, np.arange(len(numbers)))
        return [
            {field.name: self._decode(field, out[field.name][at]) for field in fields} for at in range(len(numbers))
        ]

    def stored(self, row: int, name: str | None = None) -> StoredPicture:
        """A picture as it is stored; if it is stored without compression, as PNG.

        Raises
        ------
        DatasetError, CodecError
            If it cannot be read.
        """
        field = self.picture if name is None else self.schema[name]
        assert field is not None
        out = allocate([field], 1)
        self.pool.read(np.array([row], np.int64), [field.name], out, np.zeros(1, np.int64))
        value = out[field.name][0]
        if field.codec.name in MEDIA_TYPES:
            return StoredPicture(bytes(value), MEDIA_TYPES[field.codec.name])
        return as_png(value if field.is_fixed else self._codecs[field.name].decode(value))

    def sizes(self, rows: Sequence[int] | IntArray) -> list[tuple[int, int] | None]:
        """Width and height of the pictures of some rows; None where a picture's header cannot be read."""
        field = self.picture
        if field is None:
            return [None] * len(rows)
        height, width = field.shape[:2]
        if height is not None and width is not None:
            return [(width, height)] * len(rows)
        out = allocate([field], len(rows))
        self.pool.read(np.asarray(rows, np.int64), [field.name], out, np.arange(len(rows)))
        return [self._size(field, value) for value in out[field.name]]

    def find(self, key: str) -> int | None:
        """The first row with a key."""
        if "key" not in self.schema:
            return None
        wanted, first = key.encode("utf-8", "surrogateescape"), 0
        for values in self._read_encoded("key"):
            for at, value in enumerate(values):
                if value == wanted:
                    return first + at
            first += len(values)
        return None

    def keys(self, rows: npt.NDArray[np.int32]) -> Iterator[str]:
        """The keys of some rows; their numbers, if the dataset has no keys."""
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            if "key" not in self.schema:
                yield from map(str, some.tolist())
            else:
                yield from (sample["key"] for sample in self.read(some.astype(np.int64), ["key"]))

    def _decode(self, field: Field, value: Any) -> Any:
        if field.is_fixed:
            return value
        try:
            return self._codecs[field.name].decode(value)
        except CodecError as error:
            return str(error)

    def _size(self, field: Field, value: Any) -> tuple[int, int] | None:
        try:
            if field.codec.name in MEDIA_TYPES:
                with Image.open(io.BytesIO(value), formats=(field.codec.name.upper(),)) as picture:
                    return picture.size
            height, width = self._codecs[field.name].decode(value).shape[:2]
        except (CodecError, UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError):
            return None
        return width, height

    def _join(self, table: Path) -> None:
        field = key_field(self.schema, "key")
        values = [text for texts in self._read_encoded("key") for text in map(_as_text, texts)]
        keys = DatasetKeys(field, values, np.array([value != "" for value in values], np.bool_))
        taken = {*self.schema.names, BOX_SIDE, WRONG}
        found = join_frame(read_table(table), keys, taken=taken, allow_missing=True, what=str(table))
        self.pool = self.pool.join(found.fields, found.columns)
        self.joined = tuple(field.name for field in found.fields)

    def _wrong(self) -> Column:
        assert self._prediction is not None
        labels, field = self.column("label"), self.schema[self._prediction]
        if (field.kind == "text") != (self.schema["label"].kind == "text") and self.classes is None:
            right = np.zeros(len(self), np.bool_)
        elif field.kind == "text" and self.schema["label"].kind != "text":
            names = np.array([*(self.classes or ()), ""], np.dtypes.StringDType())
            known = (labels >= 0) & (labels < len(names) - 1)
            right = self.column(field.name) == names[np.where(known, labels, len(names) - 1)]
        else:
            right = self.column(field.name) == labels
        valid = f"{field.name}_valid"
        wrong: Column = ~right & self.column(valid) if valid in self.joined else ~right
        return wrong

    def _sorted(self, rows: IntArray, sort: str) -> IntArray:
        name = sort.removeprefix("-")
        if name not in self.small_fields:
            raise UsageError(
                f"sort: expected one of {list_some(self.small_fields)}, found {name!r}"
                f"{did_you_mean(name, self.small_fields)}"
            )
        texts = self.texts(name) if self.field(name).kind == "text" else None
        if texts is None:
            values = self.column(name)[rows]
        else:
            rank = np.empty(len(texts.names), np.int32)
            rank[sorted(range(len(texts.names)), key=texts.names.__getitem__)] = np.arange(len(texts.names))
            values = rank[texts.codes[rows]]
        if not sort.startswith("-"):
            return rows[np.argsort(values, kind="stable")]
        last = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(rows), np.bool_)
        descending = np.argsort(values[::-1], kind="stable")[::-1]  # stable: equal values stay in the dataset's order
        order = len(rows) - 1 - descending
        descending_rows: IntArray = rows[np.concatenate([order[~last[order]], order[last[order]]])]
        return descending_rows

    def _read_encoded(self, name: str) -> Iterator[Any]:
        """A field's encoded values, chunk by chunk."""
        field = self.schema[name]
        for start in range(0, len(self), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(self)))
            out = allocate([field], len(rows))
            self.pool.read(rows, [name], out, np.arange(len(rows)))
            yield out[name]

    def _read_chunks(self, name: str) -> Iterator[Column]:
        yield np.empty((0, *self.schema[name].fixed_shape), self.schema[name].numpy_dtype)
        yield from self._read_encoded(name)

    def _number_texts(self, name: str) -> Texts | None:
        numbers: dict[bytes, int] = {}
        codes = np.empty(len(self), np.int32)
        at = 0
        for values in self._read_encoded(name):
            codes[at : at + len(values)] = [numbers.setdefault(bytes(value), len(numbers)) for value in values]
            at += len(values)
            if len(numbers) > _FEW_TEXTS:
                return None
        return Texts([_as_text(value) for value in numbers], codes)

    def _read_texts(self, name: str) -> Column:
        texts = np.empty(len(self), np.dtypes.StringDType())
        at = 0
        for values in self._read_encoded(name):
            texts[at : at + len(values)] = [_as_text(value) for value in values]
            at += len(values)
        return texts


def is_small(field: Field) -> bool:
    """Whether a field has a number or a text for each sample."""
    return (field.kind == "text" and field.codec.name == "utf8") or (field.is_fixed and not field.shape)


def as_png(value: npt.NDArray[Any]) -> StoredPicture:
    """An array as PNG.

    Raises
    ------
    CodecError
        If it is no picture that PNG can hold.
    """
    file = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(value)).save(file, "PNG", compress_level=1)
    except (OSError, ValueError, TypeError, SystemError, KeyError) as error:
        raise CodecError(f"expected a picture, found an array of shape {value.shape}: {error}") from error
    return StoredPicture(file.getvalue(), MEDIA_TYPES["png"])


def check_pictures(dataset: ShownDataset) -> Field:
    """The field whose pictures are shown.

    Raises
    ------
    DatasetError
        If the dataset has none.
    """
    if dataset.picture is None:
        raise DatasetError(f"{dataset.path}: expected a field with pictures, found {list_some(dataset.schema.names)}")
    return dataset.picture


def _as_text(value: Any) -> str:
    """A text as it can be shown: bytes that are not UTF-8 are replaced."""
    return bytes(value).decode("utf-8", "replace")


def _longer_side(boxes: Column) -> npt.NDArray[np.float32]:
    sides: npt.NDArray[np.float32] = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, initial=0).astype(np.float32)
    return sides
