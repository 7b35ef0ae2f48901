"""``--audio``: the sound of an item, frame by frame."""

from typing import TYPE_CHECKING

import numpy as np

from packer.recipe import Recipe
from packer.sources.contents import opener
from packer.sources.item import Item
from packer.steps.chain import Sample
from packer.steps.encode import audio_length
from packer.steps.frames import FramesReader
from packer.steps.report import ItemReport
from packer.vision.decode.sampling import VideoFrame, check_span, sample_at
from shardspec.errors import ItemError
from shardspec.registry import import_target

if TYPE_CHECKING:
    from packer.steps.companion import Reader
    from packer.vision.decode.audio import AudioReader


def silence(recipe: Recipe) -> Sample:
    """Return the fields of an image, which has no sound; no fields if the recipe asks for none.

    Raises
    ------
    ItemError
        If the recipe requires sound.
    """
    if recipe.audio is None:
        return {}
    if recipe.require_audio:
        raise _no_sound("an image")
    return {"audio": np.zeros(audio_length(recipe) or 0, np.int16), "audio_valid": False}


class ItemSound:
    """The sound of one video. The file is opened with the first frame, and closed by `close`."""

    def __init__(self, recipe: Recipe, item: Item) -> None:
        self._rate = recipe.audio
        self._required = recipe.require_audio
        self._item = item
        self._reader: AudioReader | None = None
        self._heard = False

    def fields(self, video: "Reader", frame: VideoFrame) -> Sample:
        """Return the fields of a frame; frames are passed in order."""
        if self._rate is None:
            return {}
        check_span(frame.span[1] - frame.span[0])
        start, stop = (sample_at(time, self._rate) for time in frame.span)
        if self._reader is None and not isinstance(video, FramesReader):
            make: type[AudioReader] = import_target(
                "packer.vision.decode.audio:AudioReader", what="--audio", extra="pack"
            )
            self._reader = make(opener(self._item.file), self._rate, video.start)
        if self._reader is None or not self._reader.exists:
            if self._required:
                raise _no_sound("a folder of frames" if self._reader is None else "a video without a stream of sound")
            return {"audio": np.zeros(stop - start, np.int16), "audio_valid": False}
        samples, valid = self._reader.read(start, stop)
        self._heard |= valid
        return {"audio": samples, "audio_valid": valid}

    def finish(self, report: ItemReport) -> None:
        """Add damage in the sound to the report.

        Raises
        ------
        ItemError
            If the recipe requires sound, and none was found.
        """
        damage = None if self._reader is None else self._reader.damage
        if damage is not None:
            report.add_damage(damage)
        if self._rate is not None and self._required and not self._heard:
            raise _no_sound(damage or "less sound than one frame lasts")

    def close(self) -> None:
        """Free the decoder and the file."""
        if self._reader is not None:
            self._reader.close()


def _no_sound(found: str) -> ItemError:
    return ItemError(expected="sound, which --require-audio asks for", found=found)
