"""Parse the steps of a recipe, and the encodings of its images.

An encoding is for all fields, or for one field (``ir_image=jpeg:90``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardspec.codecs import CODECS, image_types, video_types
from shardspec.errors import UsageError
from shardspec.schema import NAME, NamedConfig
from shardspec.wording import did_you_mean, shorten


@dataclass(frozen=True)
class StepSpec:
    """A step and its options.

    Attributes
    ----------
    use : str
        A built-in step, or ``"module:function"``: a generator function from samples to samples.
    options : dict
        Keyword arguments of the function. Built-in steps use the options of the recipe.
    """

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Any:
        """Return the step as in a recipe file."""
        return {"use": self.use, **self.options} if self.options else self.use

    @classmethod
    def parse(cls, value: Any) -> "StepSpec":
        """Read a step from a recipe: a name, or a table with ``use`` and the options."""
        if isinstance(value, StepSpec):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("use"), str):
            return cls(value["use"], {key: option for key, option in value.items() if key != "use"})
        raise UsageError(option="steps", expected="a name, or a table with 'use'", found=shorten(value))

    @classmethod
    def parse_all(cls, value: Any) -> "tuple[StepSpec, ...]":
        """Read the steps of a recipe: a list, or names in one text with commas."""
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        if not isinstance(value, Sequence):
            raise UsageError(option="steps", expected="a list of names", found=shorten(value))
        steps = tuple(cls.parse(step) for step in value)
        try:
            json.dumps([step.to_json() for step in steps], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"expected options that can be written as JSON, {error}", option="steps") from error
        return steps


ENCODINGS = (*image_types(), "raw")


VIDEO_ENCODINGS = tuple(video_types())


def encodings_with(option: str) -> tuple[str, ...]:
    """Return the encodings of images that read an option of a recipe, ``quality`` or ``subsampling``."""
    return tuple(name for name, image in image_types().items() if option in image.options)


def video_encodings_with(option: str) -> tuple[str, ...]:
    """Return the encodings of videos that read an option of a recipe, ``quality``, ``gop`` or ``subsampling``."""
    return tuple(name for name, video in video_types().items() if option in video.options)


def codec_of_encoding(encoding: str, **options: Any) -> NamedConfig:
    """Return the codec of an encoding, with the options that it reads."""
    file = CODECS[encoding].image or CODECS[encoding].video
    read = () if file is None else file.options
    return NamedConfig(encoding, {name: value for name, value in options.items() if name in read})


def parse_field_encoding(text: str, options: Mapping[str, Any]) -> tuple[str, NamedConfig]:
    """Parse ``FIELD=ENCODING`` or ``FIELD=ENCODING:QUALITY`` as a field and its codec.

    Parameters
    ----------
    options : mapping
        Options of the codec, such as ``gop``; ``quality``, if the text has none, for images and for videos with the
        encoding ``encode``; and ``videos``, whether the fields are videos.

    Raises
    ------
    UsageError
        If the text has another form.
    """
    videos = options["videos"]
    known, reads, main = (
        (VIDEO_ENCODINGS, video_encodings_with("quality"), "video")
        if videos
        else (ENCODINGS, encodings_with("quality"), "image")
    )
    name, separator, how = text.partition("=")
    encoding, colon, given = how.partition(":")
    if not separator or not NAME.match(name):
        form = "ir_video=av1:30" if videos else "ir_image=jpeg:90"
        raise UsageError(expected=f"FIELD=ENCODING, such as {form}", found=shorten(text))
    if name == main:
        raise UsageError(
            expected=f"a field other than {main}", found=shorten(text), hint=f"encode and quality are for {main}"
        )
    if encoding not in known:
        like = did_you_mean(encoding, known)
        raise UsageError(place=name, expected=f"one of {', '.join(known)}", found=f"{shorten(encoding)}{like}")
    quality = options["quality"]
    low, high = 1, 100
    if videos and encoding in reads:
        low, high, usual = video_types()[encoding].quality or (low, high, quality)
        quality = quality if encoding == options["encode"] else usual
    if colon:
        if encoding not in reads:
            raise UsageError(place=name, expected=f"a quality only with {' or '.join(reads)}", found=shorten(how))
        if not given.isdecimal() or not given.isascii() or len(given) > 3 or not low <= int(given) <= high:
            raise UsageError(place=name, expected=f"a quality of {low} to {high}", found=shorten(given))
        quality = int(given)
    return name, codec_of_encoding(encoding, quality=quality, subsampling=options["subsampling"], gop=options["gop"])
