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


def parse_field_encoding(text: str, quality: int, subsampling: str) -> tuple[str, NamedConfig]:
    """Parse ``FIELD=ENCODING`` or ``FIELD=ENCODING:QUALITY`` as a field and its codec.

    Parameters
    ----------
    quality : int
        Quality if the text has none.

    Raises
    ------
    UsageError
        If the text has another form.
    """
    name, separator, how = text.partition("=")
    encoding, colon, given = how.partition(":")
    if not separator or not NAME.match(name):
        raise UsageError(expected="FIELD=ENCODING, such as ir_image=jpeg:90", found=shorten(text))
    if name == "image":
        raise UsageError(
            expected="a field other than image", found=shorten(text), hint="encode and quality are for image"
        )
    if encoding not in ENCODINGS:
        like = did_you_mean(encoding, ENCODINGS)
        raise UsageError(place=name, expected=f"one of {', '.join(ENCODINGS)}", found=f"{shorten(encoding)}{like}")
    if colon:
        if encoding not in encodings_with("quality"):
            known = " or ".join(encodings_with("quality"))
            raise UsageError(place=name, expected=f"a quality only with {known}", found=shorten(how))
        if not given.isdecimal() or not given.isascii() or len(given) > 3 or not 1 <= int(given) <= 100:
            raise UsageError(place=name, expected="a quality of 1 to 100", found=shorten(given))
        quality = int(given)
    return name, codec_of_encoding(encoding, quality=quality, subsampling=subsampling)
