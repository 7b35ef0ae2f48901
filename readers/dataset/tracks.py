"""The frames of a dataset whose samples are tracks: one sample for each frame, for clips."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from readers.dataset.derived import DerivedDataset
from readers.decode.plans import Encoded
from readers.decode.values import BatchLayout, ValueLayout, allocate_values
from readers.formats.pool import RowsOfShards
from readers.order.order import SampledRows
from shardspec.codecs import codec_for
from shardspec.columns import Columns, IntArray, fill_missing
from shardspec.errors import CodecError, UsageError
from shardspec.fields import FRAME_KEY, image_name
from shardspec.schema import Field, Schema

if TYPE_CHECKING:
    from shardspec.codecs.video import VideoCodec

_LENGTHS = "audio_lengths"
_OF_TRACKS = ("frames", "seconds", _LENGTHS)
"""Fields that frames do not have."""


def _schemas(base: SampleDataset) -> tuple[Schema, Schema] | None:
    """Return the fields that are read of the packed dataset under a dataset, and all its fields; None if there is none."""
    while isinstance(base, DerivedDataset):
        base = base.base
    pool = getattr(base, "pool", None)
    return None if pool is None else (base.schema, pool.schema)  # type: ignore[attr-defined]  # a packed dataset


def holds_tracks(base: SampleDataset) -> bool:
    """Return whether the samples of a dataset are tracks, and not frames."""
    schemas = _schemas(base)
    return schemas is not None and schemas[1].holds_tracks


def _time_fields(schema: Schema) -> dict[str, Field]:
    return {f.name: f for f in schema if f.in_time and f.name != _LENGTHS}


class FramesOfTracks(DerivedDataset):
    """The frames of tracks: ``image`` for ``video``, and one value of each field that has one for every frame.

    Of each video, only the groups of frames that hold the wanted ones are decoded. The transform of `base` is for whole
    tracks and is not applied.
    """

    def __init__(self, base: SampleDataset) -> None:
        schemas = _schemas(base)
        assert schemas is not None
        schema, every = schemas
        super().__init__(base)
        self._videos = {image_name(field.name): field for field in schema if field.is_encoded_video}
        self._codecs = {name: cast("VideoCodec", codec_for(field)) for name, field in self._videos.items()}
        videos = {field.name: name for name, field in self._videos.items()}
        transforms = base
        while isinstance(transforms, DerivedDataset):
            transforms = transforms.base
            if transforms.has_transform:
                raise UsageError(
                    option="clips",
                    expected="a dataset of tracks without a transform, which would get whole tracks",
                    found="one with a transform",
                    hint="give it to clips(transform=…)",
                )
        self._encoded = base.with_decode({name: Encoded() for name in videos})
        self._in_time = _time_fields(every)
        self._tracked = "track" in every and not every["track"].in_time
        self._lengths = base.column(_LENGTHS) if _LENGTHS in every and "audio" in schema else None
        self._counts = np.asarray(base.column("frames"), np.int64)
        self._ends = np.cumsum(self._counts)
        left = [field.name for field in schema if field.name not in _OF_TRACKS]
        self._names = {videos.get(name, name): name for name in left}
        if FRAME_KEY in self._names:
            self._names["key"] = self._names.pop(FRAME_KEY)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return f"{len(self)} frames of {self.base!r}"

    @property
    def blocks(self) -> None:
        """None: frames of a track are read one after the other."""
        return None

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Fields with a number or a text for each frame or track."""
        in_time = [name for name, field in self._in_time.items() if len(field.shape) == 1 and name != FRAME_KEY]
        known = [name for name in self.base.small_fields if name not in (*_OF_TRACKS, FRAME_KEY)]
        return tuple(dict.fromkeys((*known, *in_time)))

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes of a stored frame."""
        return self.base.sample_bytes * len(self.base) / max(1, len(self))

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the values of a frame."""
        base = self.base.raw_layout
        layout: dict[str, ValueLayout] = {}
        for name, stored in self._names.items():
            if name in self._videos:
                sides = self._videos[name].shape[1:]
                layout[name] = _layout(sides, np.dtype(np.uint8), image=True)
            elif name == "audio":
                layout[name] = self._audio_layout()
            elif stored in self._in_time and self._in_time[stored].kind != "text":
                field = self._in_time[stored]
                layout[name] = _layout(field.shape[1:], field.numpy_dtype)
            else:
                layout[name] = base[stored]
        return layout

    def _audio_layout(self) -> ValueLayout:
        if self._lengths is not None or not len(self.base):
            return ValueLayout(None, None)
        samples = self._encoded.read_batch([0])["audio"][0]
        return ValueLayout((len(samples) // int(self._counts[0]),), samples.dtype)

    def rows_in_base(self) -> IntArray:
        """Return the row of each frame's track."""
        rows: IntArray = np.repeat(np.arange(len(self._counts)), self._counts)
        return rows

    def item_numbers(self) -> IntArray:
        """Return the number of each frame's item: int64, (N,).

        Samples that share frames of a track, such as overlapping segments, get different numbers: no clip joins them.
        """
        items = self.base.item_numbers()
        tracks = fill_missing(self.base.column("track")) if self._tracked else np.zeros_like(items)
        positions = self.base.column("frame_position")
        firsts, lasts = (np.array([values[end] for values in positions], np.int64) for end in (0, -1))
        order = np.lexsort((firsts, tracks, items))
        layers = np.zeros_like(items)
        for before, row in pairwise(order.tolist()):
            if items[row] == items[before] and tracks[row] == tracks[before]:
                layers[row] = layers[before] + (firsts[row] <= lasts[before])
        _, numbers = np.unique(np.stack([items, layers], axis=1), axis=0, return_inverse=True)
        found: IntArray = numbers.reshape(-1).astype(np.int64)[self.rows_in_base()]
        return found

    def in_base(self, picks: SampledRows) -> SampledRows:
        """Return the picks of the tracks of some frames, with the keys of the frames."""
        keys = picks.rows if picks.keys is None else picks.keys
        return SampledRows(self._tracks(picks.rows), picks.seeds, picks.epoch, keys)

    def origins(self, picks: SampledRows) -> SampledRows:
        """Return the rows and the seeds of frames, which together key random draws."""
        return SampleDataset.origins(self, picks)

    def _tracks(self, rows: IntArray) -> IntArray:
        found: IntArray = np.searchsorted(self._ends, rows, "right")
        return found

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of all frames."""
        stored = self._names.get(name, name)
        field = self._in_time.get(stored)
        if field is None:
            return super().column(name)
        values = self.base.column(stored)
        if field.kind == "text":
            return [value for track in values for value in track]
        empty = np.empty((0, *(axis or 0 for axis in field.shape[1:])), field.numpy_dtype)
        joined: npt.NDArray[Any] = np.concatenate([empty, *values])
        return joined

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows of packed datasets that a read of some frames touches."""
        tracks = np.unique(self._tracks(picks.rows))
        return self.base.locate(SampledRows(tracks, np.zeros(len(tracks), np.uint64), picks.epoch))

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read frames, frame i into place ``at[i]``; those of a track that follow each other are decoded together."""
        if not len(picks):
            return
        tracks = self._tracks(picks.rows)
        edges = np.flatnonzero(np.diff(tracks, prepend=-1, append=-1))
        firsts = edges[:-1]
        apart = SampledRows(tracks[firsts], picks.seeds[firsts], picks.epoch)
        columns = allocate_values(self._encoded.raw_layout, len(firsts))
        self._encoded.read_raw(apart, columns, np.arange(len(firsts)))
        for place, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            track = int(tracks[start])
            count = int(self._counts[track])
            numbers = picks.rows[start:stop] - (int(self._ends[track]) - count)
            places = at[start:stop]
            for name, stored in self._names.items():
                value = columns[stored][place]
                if name in self._videos:
                    self._decode(name, value, numbers, out[name], places, track)
                elif name == "audio":
                    lengths = None if self._lengths is None else self._lengths[track]
                    _put(out[name], places, _cut_audio(value, count, numbers, lengths))
                elif stored in self._in_time:
                    _put(out[name], places, [value[number] for number in numbers.tolist()])
                else:
                    _put(out[name], places, [value] * len(places))

    def _decode(self, name: str, data: Any, numbers: IntArray, out: Any, places: IntArray, track: int) -> None:
        codec = self._codecs[name]
        try:
            if isinstance(out, np.ndarray):
                codec.decode_frames(data, numbers.tolist(), out, places.tolist())
            else:
                _put(out, places, codec.decode_frames(data, numbers.tolist()))
        except CodecError as error:
            raise CodecError(f"{error}; {self.base.describe(track)}") from error


def _layout(shape: tuple[int | None, ...], dtype: np.dtype[Any], image: bool = False) -> ValueLayout:
    sizes = tuple(axis for axis in shape if axis is not None)
    return ValueLayout(sizes, dtype, image) if len(sizes) == len(shape) else ValueLayout(None, None, image)


def _put(column: Any, places: IntArray, values: Any) -> None:
    if isinstance(column, np.ndarray):
        column[places] = values
    else:
        for place, value in zip(places.tolist(), values, strict=True):
            column[place] = value


def _cut_audio(
    audio: npt.NDArray[Any], count: int, numbers: IntArray, lengths: IntArray | None
) -> list[npt.NDArray[Any]]:
    """Return the sound of some frames. Without `lengths`, all frames of the track have equally many values."""
    ends = np.cumsum(np.full(count, len(audio) // count) if lengths is None else lengths)
    return [audio[ends[number - 1] if number else 0 : ends[number]] for number in numbers.tolist()]
