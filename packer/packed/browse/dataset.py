"""A packed dataset for browsing: small fields as columns, values of samples, stored images."""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.packed.browse.columns import ColumnArray, Selection, Texts, as_text, read_blocks, read_numbers, read_texts
from packer.sources.tables.base import open_table
from readers.conditions import rows_where
from readers.drawing.sound import SOUND_SIDE, draw_sound, sound_field
from readers.formats.pool import ShardPool, Verify
from shardspec.codecs import codec_for, image_types, video_types
from shardspec.codecs.base import ImageCodec
from shardspec.columns import IntArray, allocate, mark_missing
from shardspec.errors import CodecError, UsageError
from shardspec.layout import layout_at, place_of
from shardspec.schema import Field, Schema
from shardspec.typing.join import DatasetKeys, join_frame, key_fields
from shardspec.wording import did_you_mean, list_some, shorten

if TYPE_CHECKING:
    from shardspec.codecs.video import VideoCodec

BOX_SIDE = "box_side"
"""Field that only pages have: the longer side of ``box`` in pixels."""

WRONG = "wrong"
"""Field that only pages have: whether ``prediction`` of a joined table differs from ``label``."""

RANDOM = "*"
"""Value of `sort` for a random order, which is the same every time."""

_PREDICTIONS = ("prediction", "predicted", "pred")
_CHUNK = 8192
_KEPT = 6
"""Number of cached selections."""

_MEDIA_TYPES: Mapping[str, str] = {
    name: image.media_type for name, image in image_types().items() if image.media_type is not None
}
"""Media types of the codecs whose bytes a browser can show."""


_PLAYED: Mapping[str, str] = {name: video.media_type for name, video in video_types().items() if video.suffix == ".mp4"}
"""Media types of the codecs whose bytes a browser can play."""


class StoredImage(NamedTuple):
    """An image or a video in a format that browsers show."""

    data: bytes
    media_type: str


class BrowsedDataset:
    """Reads a packed dataset for pages. Safe to use from several threads.

    Columns of single numbers are mapped from the index. Other small fields are read from the shards at first use, and
    stay in memory.

    Parameters
    ----------
    path : Path
        The dataset's folder.
    table : Path, optional
        Table whose columns are joined as further fields, by ``key``. Samples may have no value.
    verify : {"off", "size", "digest"}
        See `ShardPool`.

    Attributes
    ----------
    place : Path or str
        The folder, or the URL of a remote dataset.
    sound : Field or None
        The field of a dataset of sound, whose drawing takes the place of an image.
    sample : int array or None
        If given, the only rows of which fields are read that are not in the index (`is_sampled`): in a store, their
        values lie between the images.

    Raises
    ------
    DatasetError, UsageError
        If the dataset or the table cannot be read.
    """

    def __init__(self, path: Path, table: Path | None = None, *, verify: Verify = "size") -> None:
        self.path, self.place = path, place_of(path)
        self.pool = ShardPool(layout_at(path.absolute()), verify, checksums=True)
        self.manifest = self.pool.manifest
        self.sample: IntArray | None = None
        self._lock = threading.RLock()
        self._numbers: dict[str, ColumnArray] = {}
        self._texts: dict[str, Texts] = {}
        self._selections: OrderedDict[tuple[str, str], Selection] = OrderedDict()
        self.joined: tuple[str, ...] = ()
        if table is not None:
            self._join(table)
        images = [field for field in self.schema if field.is_image]
        videos = [field for field in self.schema if field.is_encoded_video]
        self.videos = tuple(field.name for field in videos)
        self.sound = sound_field(self.schema)
        images += videos + ([] if self.sound is None else [self.sound])
        first = (field for field in images if field.name in ("image", "video"))
        self.picture = next(first, images[0] if images else None)
        self.images = tuple(field.name for field in images)
        self._codecs = {field.name: codec_for(field) for field in self.schema if not field.is_fixed}
        self._prediction = next((name for name in _PREDICTIONS if name in self.joined), None)

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def name(self) -> str:
        """The last part of the dataset's path or URL."""
        return Path(self.place).absolute().name

    @property
    def schema(self) -> Schema:
        """All fields; the fields of the joined table come last."""
        return self.pool.schema

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of ``label``; empty if it has none."""
        return (self.schema["label"].classes or ()) if "label" in self.schema else ()

    @cached_property
    def small_fields(self) -> tuple[str, ...]:
        """Names of the fields with one number or text per sample, including those that only pages have."""
        own = [field.name for field in self.schema if field.is_small]
        box = self.schema["box"] if "box" in self.schema and BOX_SIDE not in self.schema else None
        if box is not None and box.is_fixed and box.shape == (4,) and box.dtype[1] in "iuf":
            own.append(BOX_SIDE)
        if self._prediction is not None and "label" in own and WRONG not in self.schema:
            own.append(WRONG)
        return tuple(own)

    def field(self, name: str) -> Field:
        """Return a field, which may be one that only pages have."""
        if name in self.schema:
            return self.schema[name]
        return Field(name, "fixed", {BOX_SIDE: "<f4", WRONG: "|b1"}[name], ())

    @property
    def is_remote(self) -> bool:
        """True if shards are in a store only, and are downloaded in part."""
        layout = self.pool.layout
        files = [layout.root / entry.name for part in self.manifest.parts for entry in part.files]
        return layout.reads_parts and not all(path.exists() for path in files)

    def is_sampled(self, name: str) -> bool:
        """Return whether columns of a small field have the rows of `sample` only."""
        return self.sample is not None and self._is_in_shards(name)

    def needs_download(self, name: str) -> bool:
        """Return whether a small field of all samples has to be read from shards that are in a store only."""
        in_memory = name in self._numbers or name in self._texts
        return self.sample is None and not in_memory and self._is_in_shards(name) and self.is_remote

    def _is_in_shards(self, name: str) -> bool:
        field = self.field(name)
        return name in (BOX_SIDE, WRONG) or field.kind == "text" or self.pool.map_index(field) is None

    def numbers(self, name: str) -> ColumnArray:
        """Return a small field of numbers of all samples. Missing values are not marked (`known`)."""
        with self._lock:
            if name not in self._numbers:
                self._numbers[name] = self._read_numbers(name)
            return self._numbers[name]

    def texts(self, name: str) -> Texts:
        """Return a text field of all samples.

        Raises
        ------
        UsageError
            If there are too many samples.
        """
        with self._lock:
            if name not in self._texts:
                self._texts[name] = read_texts(self.pool, name, self.sample)
            return self._texts[name]

    def known(self, name: str) -> npt.NDArray[np.bool_] | None:
        """Return which samples have a value of a small field: (rows,); None if all have one."""
        of = {BOX_SIDE: ("box",), WRONG: ("label", self._prediction or "")}.get(name, (name,))
        fields = [field for one in of if (field := self.schema.validity(one)) is not None]
        if not fields:
            return None
        known: npt.NDArray[np.bool_] = np.logical_and.reduce([self.numbers(field) for field in fields])
        return known[self.sample] if self.is_sampled(name) and len(known) == len(self) else known

    def column(self, name: str) -> ColumnArray:
        """Return a small field of all samples: numbers, or texts as ``StringDType``. Missing values are masked."""
        if self.field(name).kind == "text":
            texts = self.texts(name)
            column = texts.names[texts.codes]
        else:
            column = self.numbers(name)
        marked: ColumnArray = mark_missing(column, self.known(name))
        return marked

    def labels(self) -> ColumnArray:
        """Return the labels of all samples; zeros if they have none, or if whole shards would be read for them."""
        if "label" not in self.small_fields or self.is_sampled("label") or self.needs_download("label"):
            return np.zeros(len(self))
        labels: ColumnArray = np.ma.getdata(self.column("label"))
        return labels

    def select(self, where: str = "", sort: str = "") -> Selection:
        """Select the samples that meet a condition, and sort them.

        Parameters
        ----------
        where : str
            An expression, as `readers.PackedDataset.where` takes it; empty for all samples.
        sort : str
            A small field, with the prefix ``-`` for descending order; `RANDOM`; empty for the order of the dataset.
            Missing values and NaN come last.

        Raises
        ------
        UsageError
            If there is no such field, or the expression is invalid.
        """
        key = (where.strip(), sort)
        with self._lock:
            if key not in self._selections:
                chosen = rows_where(self, key[0]) if key[0] else None
                values: ColumnArray | None
                if sort == RANDOM:
                    values = np.random.Generator(np.random.PCG64(0)).permutation(len(self))
                else:
                    values = self._sort_values(sort.removeprefix("-")) if sort else None
                self._selections[key] = Selection(len(self), chosen, values, sort.startswith("-"))
                if len(self._selections) > _KEPT:
                    self._selections.popitem(last=False)
            self._selections.move_to_end(key)
            return self._selections[key]

    def read(self, rows: Sequence[int] | IntArray, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Read and decode values of some rows; by default of all fields except images.

        A missing value of a small field is None. If a value cannot be decoded, its place has the text of the error.
        """
        if names is None:
            names = [name for name in self.schema.names if name not in self.images]
        numbers = np.asarray(rows, np.int64)
        fields = [self.schema[name] for name in names]
        marks = {field.name: self.schema.validity(field.name) for field in fields if field.is_small}
        every = self.schema.select(list(dict.fromkeys([*names, *(mark for mark in marks.values() if mark)])))
        out = allocate(every, len(numbers))
        self.pool.read(numbers, every.names, out, np.arange(len(numbers)))

        def value(field: Field, at: int) -> Any:
            mark = marks.get(field.name)
            return None if mark and not out[mark][at] else self._decode(field, out[field.name][at])

        return [{field.name: value(field, at) for field in fields} for at in range(len(numbers))]

    def stored(self, row: int, name: str | None = None) -> StoredImage:
        """Return an image as it is stored, or as PNG if browsers do not show the stored codec.

        Of a video, return its middle frame; of a sound, a drawing.

        Raises
        ------
        DatasetError, CodecError
            If the image cannot be read.
        """
        field = self.picture if name is None else self.schema[name]
        assert field is not None
        out = allocate([field], 1)
        self.pool.read(np.array([row], np.int64), [field.name], out, np.zeros(1, np.int64))
        value = out[field.name][0]
        if field.is_encoded_video:
            codec = cast("VideoCodec", self._codecs[field.name])
            return _as_png(codec.decode_frames(value, lambda count: [count // 2])[0])
        if field is self.sound:
            return _as_png(draw_sound(self._decode(field, value)))
        if field.codec.name in _MEDIA_TYPES:
            return StoredImage(bytes(value), _MEDIA_TYPES[field.codec.name])
        return _as_png(value if field.is_fixed else self._codecs[field.name].decode(value))

    @property
    def playable(self) -> tuple[str, ...]:
        """Names of the videos that browsers play."""
        return tuple(name for name in self.videos if self.schema[name].codec.name in _PLAYED)

    def played(self, row: int, name: str) -> StoredImage | None:
        """Return a video as it is stored; None if browsers do not play the stored codec."""
        field = self.schema[name]
        if field.codec.name not in _PLAYED:
            return None
        out = allocate([field], 1)
        self.pool.read(np.array([row], np.int64), [name], out, np.zeros(1, np.int64))
        return StoredImage(bytes(out[name][0]), _PLAYED[field.codec.name])

    def sizes(self, rows: Sequence[int] | IntArray) -> list[tuple[int, int] | None]:
        """Return width and height of the images of some rows; None if the header of an image cannot be read."""
        field = self.picture
        if field is None:
            return [None] * len(rows)
        if field is self.sound:
            return [(SOUND_SIDE, SOUND_SIDE)] * len(rows)
        height, width = field.shape[-3:-1]
        if height is not None and width is not None:
            return [(width, height)] * len(rows)
        out = allocate([field], len(rows))
        self.pool.read(np.asarray(rows, np.int64), [field.name], out, np.arange(len(rows)))
        return [self._size(field, value) for value in out[field.name]]

    def find(self, key: str) -> int | None:
        """Return the first row with a key."""
        if "key" not in self.schema:
            return None
        wanted = key.encode("utf-8", "surrogateescape")
        for first, columns in read_blocks(self.pool, ["key"]):
            for at, value in enumerate(columns["key"]):
                if value == wanted:
                    return first + at
        return None

    def keys(self, selection: Selection) -> Iterator[list[str]]:
        """Yield the keys of selected rows in batches, or their numbers if the dataset has no keys."""
        for start in range(0, len(selection), _CHUNK):
            rows = selection.rows(start, start + _CHUNK)
            if "key" not in self.schema:
                yield [str(row) for row in rows.tolist()]
            else:
                yield [sample["key"] for sample in self.read(rows, ["key"])]

    def _decode(self, field: Field, value: Any) -> Any:
        if field.is_fixed:
            return value
        try:
            return self._codecs[field.name].decode(value)
        except CodecError as error:
            return str(error)

    def _size(self, field: Field, value: Any) -> tuple[int, int] | None:
        codec = self._codecs[field.name]
        try:
            if field.is_encoded_video:
                height, width = cast("VideoCodec", codec).shape(value)[1:3]
            elif field.is_encoded_image:
                height, width = cast("ImageCodec", codec).sides(value)
            else:
                height, width = codec.decode(value).shape[:2]
        except CodecError:
            return None
        return width, height

    def _join(self, table: Path) -> None:
        (field,) = key_fields(self.schema, "key")
        values = [as_text(value) for _, columns in read_blocks(self.pool, ["key"]) for value in columns["key"]]
        keys = DatasetKeys(field, values, np.array([value != "" for value in values], np.bool_))
        taken = {*self.schema.names, BOX_SIDE, WRONG}
        frame = open_table(table).frame()
        found = join_frame(frame, [keys], taken=taken, allow_missing=True, allow_unknown=True, what=str(table))
        if not found.rows:
            raise UsageError(
                place=table, expected="keys of the dataset's samples in its column 'key'", found="none of them"
            )
        self.pool = self.pool.join(found.fields, found.columns)
        self.joined = tuple(field.name for field in found.fields)

    def _read_numbers(self, name: str) -> ColumnArray:
        if name == WRONG:
            return self._compare_predictions()
        if name == BOX_SIDE:
            boxes = read_numbers(self.pool, self.schema["box"], self.sample)
            sides: ColumnArray = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, initial=0).astype(np.float32)
            return sides
        field = self.schema[name]
        mapped = self.pool.map_index(field) if name not in self.joined else None
        return read_numbers(self.pool, field, self.sample) if mapped is None else mapped

    def _compare_predictions(self) -> ColumnArray:
        """Return which predictions are not the labels."""
        assert self._prediction is not None
        field = self.schema[self._prediction]
        labels, predicted = (np.ma.getdata(self.column(name)) for name in ("label", field.name))
        if (field.kind == "text") != (self.schema["label"].kind == "text") and not self.classes:
            right = np.zeros(len(labels), np.bool_)
        elif field.kind == "text" and self.schema["label"].kind != "text":
            names = np.array([*self.classes, ""], np.dtypes.StringDType())
            known = (labels >= 0) & (labels < len(names) - 1)
            right = predicted == names[np.where(known, labels, len(names) - 1)]
        else:
            right = predicted == labels
        wrong: ColumnArray = ~right
        return wrong

    def _sort_values(self, name: str) -> ColumnArray:
        """Return numbers that sort like the values of a field."""
        if name not in self.small_fields:
            raise UsageError(
                option="sort",
                expected=f"one of {list_some(self.small_fields)}",
                found=f"{shorten(name)}{did_you_mean(name, self.small_fields)}",
            )
        values = self.texts(name).codes if self.field(name).kind == "text" else self.numbers(name)
        marked: ColumnArray = mark_missing(values, self.known(name))
        return marked


def _as_png(value: npt.NDArray[Any]) -> StoredImage:
    """Encode an array as PNG.

    Raises
    ------
    CodecError
        If PNG cannot hold the array.
    """
    file = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(value)).save(file, "PNG", compress_level=1)
    except (OSError, ValueError, TypeError, SystemError, KeyError) as error:
        raise CodecError(expected="an image", found=f"an array of shape {value.shape}", hint=error) from error
    return StoredImage(file.getvalue(), _MEDIA_TYPES["png"])
