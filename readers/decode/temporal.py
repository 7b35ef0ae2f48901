"""Decode plans of videos: which frames are decoded. Only the groups of frames that hold them are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from readers.arguments import as_choice, as_count
from readers.decode.plans import Image
from readers.decode.values import ValueLayout
from shardspec.codecs.base import Codec
from shardspec.errors import UsageError
from shardspec.schema import Field
from shardspec.wording import shorten

if TYPE_CHECKING:
    from shardspec.codecs.video import VideoCodec


class _FramesPlan:
    """Base of the plans in this module."""

    random: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    of_videos: ClassVar[bool] = True

    def numbers(self, count: int, rng: np.random.Generator | None) -> Sequence[int]:
        """Return the numbers of the frames to decode, of a video of `count` frames."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Number of frames of the result."""
        raise NotImplementedError

    def layout(self, field: Field) -> ValueLayout:
        """Return (T, height, width, 3) uint8; a list if the sides of the videos vary."""
        height, width = field.shape[1:3]
        if not field.is_encoded_video:
            raise UsageError(
                option="decode", expected=f"a field of videos for {self}", found=f"{shorten(field.name)}, no video"
            )
        if height is None or width is None:
            return ValueLayout(None, None, image=True)
        return ValueLayout((self.length, height, width, 3), field.numpy_dtype, image=True)

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """Decode the frames (`readers.decode.plans.DecodePlan.decode`)."""
        video = cast("VideoCodec", codec)
        return video.decode_frames(data, partial(self.numbers, rng=rng), out)


@dataclass(frozen=True)
class TemporalCrop(_FramesPlan):
    """A run of frames of a video, at a random place.

    Other fields with a value for each frame cannot be read then; `readers.PackedDataset.clips` cuts all fields.

    A video that is too short is played forwards and backwards in turn: 0 1 2 1 0 1 …

    Attributes
    ----------
    size : int
        Number of frames, T.
    stride : int
        Frames from one frame to the next.
    start : {"random", "middle", "first"}
        Where the run begins.
    """

    size: int
    stride: int = 1
    start: str = "random"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_count("size", self.size, unit="frame"))
        object.__setattr__(self, "stride", as_count("stride", self.stride, unit="frame"))
        as_choice("start", self.start, ("random", "middle", "first"))

    @property
    def random(self) -> bool:  # type: ignore[override]  # of an instance
        """True if the place is random."""
        return self.start == "random"

    @property
    def length(self) -> int:
        """Number of frames of the result."""
        return self.size

    def numbers(self, count: int, rng: np.random.Generator | None) -> Sequence[int]:
        """Return the numbers of the frames."""
        room = count - ((self.size - 1) * self.stride + 1)
        first = 0
        if room > 0 and self.start == "middle":
            first = room // 2
        elif room > 0 and self.start == "random":
            rng = np.random.default_rng() if rng is None else rng
            first = int(rng.random() * (room + 1))
        wanted = first + np.arange(self.size) * self.stride
        if room < 0:
            turns = max(2 * count - 2, 1)
            wanted = wanted % turns
            wanted = np.minimum(wanted, turns - wanted)
        numbers: list[int] = wanted.tolist()
        return numbers


@dataclass(frozen=True)
class Frames(_FramesPlan):
    """Some frames of every video, by number; negative numbers count from the end.

    Other fields with a value for each frame cannot be read then.

    Attributes
    ----------
    chosen : sequence of int
        A frame that a video does not have is an error.
    """

    chosen: Sequence[int]

    def __post_init__(self) -> None:
        try:
            numbers = tuple(int(number) for number in self.chosen)
        except (TypeError, ValueError) as error:
            raise UsageError(option="decode", expected="numbers for Frames([…])", found=shorten(self.chosen)) from error
        if not numbers:
            raise UsageError(option="decode", expected="one frame or more for Frames([…])", found="none")
        object.__setattr__(self, "chosen", numbers)

    @property
    def length(self) -> int:
        """Number of frames of the result."""
        return len(self.chosen)

    def numbers(self, count: int, rng: np.random.Generator | None) -> Sequence[int]:
        """Return the numbers of the frames."""
        return [number + count if number < 0 else number for number in self.chosen]
