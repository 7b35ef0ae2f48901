"""The frames of an item whose rows are in a packed dataset: of frames one sample each, of tracks their decoded frames."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packer.assembly.samples import PackedSamples
from shardspec.columns import Columns, IntArray
from shardspec.errors import ItemError
from shardspec.fields import FRAME_KEY, OF_VIDEOS, image_name, is_video_field

if TYPE_CHECKING:
    from shardspec.codecs.video import VideoCodec

_DECODED_TOGETHER = 32
"""Frames of a track that are decoded at a time, so that memory does not grow with its length."""


def track_frames(samples: PackedSamples, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the frames of the tracks in some rows of one item, by their positions.

    A frame has the key that it had before its track was made, or none. Frames of one position are sorted by these keys,
    or by their tracks.

    Raises
    ------
    ItemError
        If samples overlap.
    """
    names = [name for name in ("frame_position", "track", FRAME_KEY) if name in samples.schema]
    places: list[tuple[int, str, int, int, int]] = []
    seen: set[tuple[int, int]] = set()
    for row in rows:
        found = samples.small(row, names)
        positions = np.asarray(found["frame_position"]).tolist()
        keys = found.get(FRAME_KEY) or [""] * len(positions)
        faces = np.broadcast_to(found.get("track", 0), len(positions)).tolist()
        places += [(at, keys[number], faces[number], row, number) for number, at in enumerate(positions)]
        known = len(seen)
        seen.update((at, track) for at, track in zip(positions, faces, strict=True) if track >= 0)
        if min(faces, default=0) >= 0 and len(seen) < known + len(positions):
            raise ItemError(expected="each frame in one sample", found="samples that overlap (--hop below --seconds)")
    tracks: dict[int, _Track] = {}
    for *_, row, number in sorted(places):
        if row not in tracks:
            tracks[row] = _Track(samples, row)
        yield tracks[row].frame(number)
        if number + 1 == tracks[row].count:
            del tracks[row]


class _Track:
    """The frames of one row, which are taken in their order."""

    def __init__(self, samples: PackedSamples, row: int) -> None:
        schema = samples.schema
        self._videos = {field.name for field in schema if field.is_encoded_video}
        self._in_time = {field.name for field in schema if field.in_time}
        self._codecs = samples.codecs
        self._encoded: Columns = samples.read_encoded([row])
        self._values = samples.small(row, [name for name in schema.names if name not in self._videos])
        self._chunk = range(0)
        self._images: dict[str, Any] = {}
        self.count = int(self._values["frames"])
        audio = self._values.get("audio")
        if audio is not None:
            lengths: IntArray = self._values.get("audio_lengths", np.full(self.count, len(audio) // self.count))
            self._values["audio"] = np.split(audio, np.cumsum(lengths)[:-1])

    def frame(self, number: int) -> dict[str, Any]:
        """Return a frame as a sample."""
        if number not in self._chunk:
            self._chunk = range(number, min(number + _DECODED_TOGETHER, self.count))
            for name in self._videos:
                codec = cast("VideoCodec", self._codecs[name])
                self._images[name] = codec.decode_frames(self._encoded[name][0], self._chunk)
        found = {image_name(name): images[number - self._chunk.start] for name, images in self._images.items()}
        for name, value in self._values.items():
            if name in OF_VIDEOS or name == "key":
                continue
            target = image_name(name) if name in self._in_time and is_video_field(name) else name
            found[target] = value[number] if name in self._in_time or name == "audio" else value
        if FRAME_KEY in found:
            found["key"] = found.pop(FRAME_KEY)
        return found
