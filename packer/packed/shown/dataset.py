"""A packed dataset that is looked at: small fields as columns, values of samples, stored pictures."""

import ast
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from packer.packed.shown.background import Background, Job, NotReadyError
from packer.packed.shown.columns import (
    BLOCK,
    Column,
    NumberTaker,
    Taker,
    Texts,
    TextTaker,
    as_text,
    find_repeats,
    rank_texts,
    read_blocks,
    scan,
)
from packer.packed.shown.pictures import MEDIA_TYPES, StoredPicture, as_png
from packer.packed.shown.selection import Selection
from packer.sources.tables.opening import read_frame
from readers.conditions import rows_where
from readers.formats.pool import ShardPool
from shardspec.codecs import codec_for
from shardspec.codecs.base import PictureCodec
from shardspec.columns import IntArray, allocate, mark_missing
from shardspec.errors import CodecError, UsageError
from shardspec.frames import DatasetKeys, join_frame, key_fields
from shardspec.layout import Layout
from shardspec.schema import Field, Schema
from shardspec.wording import did_you_mean, list_some, shorten

T = TypeVar("T")

BOX_SIDE = "box_side"
"""The longer side of ``box`` in pixels: a field that is only looked at."""

WRONG = "wrong"
"""Whether ``prediction``, of a joined table, differs from ``label``: a field that is only looked at."""

_PREDICTIONS = ("prediction", "predicted", "pred")
_CHUNK = 8192
_OPENED = 64
"""Shards that are opened before they are asked for."""
_KEPT = 6
"""The most selections that are kept. Columns are kept, in temporary files, as long as the dataset is shown."""


class ShownDataset:
    """Reads what a page shows of one packed dataset. Safe to use from several threads.

    Columns of single numbers are mapped from the index. Other small fields are read from the shards when they are first
    needed, all in one pass, by a thread of their own. Memory hardly grows with the dataset.

    Parameters
    ----------
    path : Path
        The dataset's folder.
    table : Path, optional
        A table whose columns are joined as further fields, by ``key``; samples may be without a value.
    patience_s : float, optional
        How long `column`, `texts`, `select` and the like wait for such a pass; by default until its end.

    Raises
    ------
    DatasetError, UsageError
        If the dataset or the table cannot be read.
    NotReadyError
        By the methods that wait, if a pass takes longer than `patience_s`.
    """

    def __init__(self, path: Path, table: Path | None = None, *, patience_s: float | None = None) -> None:
        self.path = path
        self.patience_s = patience_s
        self.pool = ShardPool(Layout(path.absolute()), "size", checksums=True)
        self.manifest = self.pool.manifest
        self._lock = threading.RLock()
        self._background = Background()
        self._columns: dict[str, Column] = {}
        self._texts: dict[str, Texts | None] = {}
        self._scans: dict[str, Job[None]] = {}
        self._opening = False
        self._alone: set[str] = set()
        self._named: tuple[str, Column] = ("", np.empty(0, np.dtypes.StringDType()))
        self._jobs: dict[tuple[str, ...], Job[Any]] = {}
        self._selections: OrderedDict[tuple[str, str], Selection] = OrderedDict()
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

    @cached_property
    def small_fields(self) -> tuple[str, ...]:
        """The fields with a number or a text for each sample, and those that only pages have."""
        own = [field.name for field in self.schema if field.is_small]
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

    def numbers(self, name: str) -> Column:
        """A small field of numbers, of all rows."""
        with self._lock:
            found = self._columns.get(name)
            if found is None and name in self.schema:
                found = self.pool.map_index(self.schema[name]) if name not in self.joined else None
            if found is not None:
                self._columns[name] = found
                return found
        if name == WRONG:
            wrong = np.concatenate([np.empty(0, np.bool_), *(self._wrong(start) for start in self.blocks())])
            return self._columns.setdefault(name, wrong)
        self._scanned(name)
        return self._columns[name]

    def texts(self, name: str) -> Texts | None:
        """A text field by number; None if there are too many different values to be counted."""
        if name not in self._texts:
            self._scanned(name)
        return self._texts[name]

    def known(self, name: str, rows: slice | IntArray = slice(None)) -> Column | None:
        """Return which rows have a value of a small field: bool, (n,); None if all have one."""
        of = {BOX_SIDE: ("box",), WRONG: ("label", self._prediction or "")}.get(name, (name,))
        fields = [field for one in of if (field := self.schema.validity(one)) is not None]
        return np.logical_and.reduce([self.numbers(field)[rows] for field in fields]) if fields else None

    def values(self, name: str, start: int) -> Column:
        """The values of a small field in the block from row `start` on: numbers, or texts as ``StringDType``.

        Missing ones are not marked (`known`).
        """
        if self.field(name).kind != "text":
            return self.numbers(name)[start : start + BLOCK]
        texts = self.texts(name)
        if texts is not None:
            with self._lock:
                if self._named[0] != name:
                    self._named = name, np.array(texts.names or [""], np.dtypes.StringDType())
                names = self._named[1]
            return names[texts.codes[start : start + BLOCK]]
        rows = np.arange(start, min(start + BLOCK, len(self)))
        return self.take(name, rows)

    def column(self, name: str) -> Column:
        """A small field of all rows: numbers, or texts as an array of `numpy.dtypes.StringDType`. All are in memory.

        Missing values are masked.
        """
        if self.field(name).kind != "text":
            column = self.numbers(name)
        else:
            nothing = np.empty(0, np.dtypes.StringDType())
            column = np.concatenate([nothing, *(self.values(name, at) for at in self.blocks())])
        marked: Column = mark_missing(column, self.known(name))
        return marked

    def take(self, name: str, rows: IntArray) -> Column:
        """A small field of some rows. Missing values are not marked (`known`)."""
        if self.field(name).kind != "text":
            return self.numbers(name)[rows]
        texts = np.empty(len(rows), np.dtypes.StringDType())
        for start in range(0, len(rows), _CHUNK):
            out = allocate([self.schema[name]], len(rows[start : start + _CHUNK]))
            self.pool.read(rows[start : start + _CHUNK], [name], out, np.arange(len(out[name])))
            texts[start : start + _CHUNK] = [as_text(value) for value in out[name]]
        return texts

    def blocks(self) -> range:
        """The first rows of the blocks in which all rows are gone through."""
        return range(0, len(self), BLOCK)

    def repeats(self, name: str) -> tuple[int, str]:
        """See `packer.packed.shown.columns.find_repeats`."""
        return self._made(("repeats", name), f"comparing {name}", lambda job: find_repeats(self.pool, name, job.report))

    def select(self, where: str = "", sort: str = "") -> Selection:
        """The rows that meet a condition, in an order.

        Parameters
        ----------
        where : str
            An expression, as `readers.PackedDataset.where` takes it; empty for all rows.
        sort : str
            A small field, with ``-`` before it for descending; empty for the order of the dataset. Missing values, and
            those that are not numbers, come last.

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
        chosen = None
        if sort and key[0]:
            chosen = self.select(where).chosen
        elif key[0]:
            chosen = self._choose(key[0])
        values = self._sort_values(sort.removeprefix("-")) if sort else None
        selection = Selection(len(self), chosen, values, sort.startswith("-"))
        with self._lock:
            self._selections[key] = selection
            if len(self._selections) > _KEPT:
                self._selections.popitem(last=False)
        return selection

    def open_shards(self) -> None:
        """Begin to open shards, at the first call, so that no page has to: those of a sorted page lie in many."""
        with self._lock:
            begun, self._opening = self._opening, True
        if begun or self.patience_s is None:  # who waits anyway need not have more work done than asked for
            return
        starts = (np.cumsum([shard.samples for shard in self.manifest.shards]) - 1)[:_OPENED]
        names = [field.name for field in self.manifest.shard_schema][:1]

        def read(job: Job[None]) -> None:
            for row in starts[starts >= 0]:
                self.read([int(row)], names)

        self._background.run(Job("opening shards", read))

    def read(self, rows: Sequence[int] | IntArray, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The decoded values of some rows; without `names`, of all fields but pictures.

        A missing value of a small field is None. A value that cannot be decoded is the error's text.
        """
        if names is None:
            names = [name for name in self.schema.names if name not in self.pictures]
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
        wanted = key.encode("utf-8", "surrogateescape")
        for first, columns in read_blocks(self.pool, ["key"]):
            for at, value in enumerate(columns["key"]):
                if value == wanted:
                    return first + at
        return None

    def keys(self, selection: Selection) -> Iterator[list[str]]:
        """The keys of selected rows, some at a time; their numbers, if the dataset has no keys."""
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
            if field.codec.name in MEDIA_TYPES:
                height, width = cast("PictureCodec", codec).sides(value)
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
        frame = read_frame(table)
        found = join_frame(frame, [keys], taken=taken, allow_missing=True, allow_unknown=True, what=str(table))
        if not found.rows:
            raise UsageError(f"{table}: expected keys of the dataset's samples in its column 'key', found none of them")
        self.pool = self.pool.join(found.fields, found.columns)
        self.joined = tuple(field.name for field in found.fields)

    def _wrong(self, start: int) -> Column:
        """Return whether predictions are not the labels, in the block from a row on."""
        assert self._prediction is not None
        field = self.schema[self._prediction]
        labels, predicted = self.values("label", start), self.values(field.name, start)
        if (field.kind == "text") != (self.schema["label"].kind == "text") and self.classes is None:
            right = np.zeros(len(labels), np.bool_)
        elif field.kind == "text" and self.schema["label"].kind != "text":
            names = np.array([*(self.classes or ()), ""], np.dtypes.StringDType())
            known = (labels >= 0) & (labels < len(names) - 1)
            right = predicted == names[np.where(known, labels, len(names) - 1)]
        else:
            right = predicted == labels
        wrong: Column = ~right
        return wrong

    def _choose(self, where: str) -> npt.NDArray[np.uint8]:
        """Return which rows meet an expression, eight to a byte. In a job, if texts must be read for it."""
        fields = [name for name in names_in(where) if name in self.small_fields]
        read = []
        for name in fields:
            self.known(name)
            if self.field(name).kind != "text":
                self.numbers(name)
            elif self.texts(name) is None:
                read.append(name)

        def choose(job: Job[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
            parts = [np.empty(0, np.uint8)]
            for start in self.blocks():
                part = _Block(self, start)
                mask = np.zeros(len(part), np.bool_)
                mask[rows_where(part, where)] = True
                parts.append(np.packbits(mask))
                job.share = start / len(self)
            if len(parts) == 1:  # no rows, yet an expression that may be wrong
                rows_where(_Block(self, 0), where)
            return np.concatenate(parts)

        if not read:
            return choose(Job("", choose))
        return self._made(("where", where), f"reading {', '.join(read)}", choose, keep=False)

    def _sort_values(self, name: str) -> Column:
        """Numbers that are in the order of a field's values."""
        if name not in self.small_fields:
            raise UsageError(
                f"sort: expected one of {list_some(self.small_fields)}, found {shorten(name)}"
                f"{did_you_mean(name, self.small_fields)}"
            )
        if self.field(name).kind != "text":
            values = self.numbers(name)
        elif (texts := self.texts(name)) is not None:
            values = texts.codes
        else:
            what = f"sorting by {name}"
            values = self._made(("rank", name), what, lambda job: rank_texts(self.pool, name, job.report))
        marked: Column = mark_missing(values, self.known(name))
        return marked

    def _made(self, key: tuple[str, ...], what: str, work: Callable[[Job[T]], T], *, keep: bool = True) -> T:
        """Return the result of a job that runs once.

        Unless it is cached, it is kept until read, or until several others are requested.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                ended = [one for one, other in self._jobs.items() if one[0] == key[0] and other.has_ended]
                for one in () if keep else ended[: 1 - _KEPT]:
                    del self._jobs[one]
                job = self._jobs[key] = Job(what, work)
                self._background.run(job)
        try:
            found: T = job.result(self.patience_s)
        except NotReadyError:
            raise
        except Exception:
            self._jobs.pop(key, None)
            raise
        if not keep:
            self._jobs.pop(key, None)
        return found

    def _scanned(self, name: str) -> None:
        """See that a field was read, together with all others that pages need."""
        with self._lock:
            job = self._scans.get(name)
            if job is None:
                self._alone.discard(name)
                names = {name, *(other for other in self.small_fields if other != "key" and self._needs_scan(other))}
                job = self._begin_scan(sorted(names))
        try:
            job.result(self.patience_s)
        except NotReadyError:
            raise
        except Exception:
            with self._lock:
                if self._scans.get(name) is job:
                    del self._scans[name]
                    if name not in self._alone:  # perhaps another field was the reason
                        self._alone.add(name)
                        job = self._begin_scan([name])
            job.result(self.patience_s)

    def _needs_scan(self, name: str) -> bool:
        if name in self._scans or name in self._columns or name == WRONG:
            return False
        return name == BOX_SIDE or self.schema[name].kind == "text" or self.pool.map_index(self.schema[name]) is None

    def _begin_scan(self, names: Sequence[str]) -> "Job[None]":
        def read(job: Job[None]) -> None:
            takers: dict[str, tuple[str, Taker]] = {}
            for name in names:
                if name == BOX_SIDE:
                    takers[name] = ("box", NumberTaker("<f4", _longer_side))
                elif self.schema[name].kind == "text":
                    takers[name] = (name, TextTaker())
                else:
                    takers[name] = (name, NumberTaker(self.schema[name].numpy_dtype))
            scan(self.pool, takers, job.report)
            for name, (_, taker) in takers.items():
                if isinstance(taker, TextTaker):
                    self._texts[name] = taker.result()
                else:
                    self._columns[name] = taker.result()

        job = Job(f"reading {list_some(names, 3)}", read)
        self._scans |= dict.fromkeys(names, job)
        self._background.run(job)
        return job


class _Block:
    """Some rows of a dataset, as conditions see them (`readers.conditions.SmallFields`)."""

    def __init__(self, dataset: ShownDataset, start: int) -> None:
        self._dataset, self._start = dataset, start
        self.small_fields, self.classes = dataset.small_fields, dataset.classes

    def __len__(self) -> int:
        return min(BLOCK, len(self._dataset) - self._start)

    def column(self, name: str) -> Column:
        """See `SmallFields`."""
        known = self._dataset.known(name, slice(self._start, self._start + BLOCK))
        column: Column = mark_missing(self._dataset.values(name, self._start), known)
        return column


def names_in(where: str) -> list[str]:
    """The names in an expression; none if it is no expression."""
    try:
        tree = ast.parse(where.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    return list(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def _longer_side(boxes: Column) -> npt.NDArray[np.float32]:
    sides: npt.NDArray[np.float32] = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, initial=0).astype(np.float32)
    return sides
