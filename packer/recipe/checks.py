"""Declaration of options, and the conversion and check of their values."""

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import Field, field, fields
from inspect import cleandoc
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import numpy as np

from packer.recipe.parsing import encodings_with, video_encodings_with
from shardspec.errors import Problems, UsageError
from shardspec.layout import parse_size
from shardspec.schema import is_utf8
from shardspec.wording import did_you_mean, shorten

if TYPE_CHECKING:
    from packer.recipe.recipe import Recipe

Options = TypeVar("Options")

SAMPLING = ("every", "fps", "resample_fps", "frames", "keyframes")
"""Options that choose the frames of a video; at most one may be given."""

DROP = "drop"
TYPES = ("text", "int", "float", "intervals", DROP)
"""Options that name columns, to set their type or to drop them."""

_STEPS: Mapping[str, tuple[str, ...]] = {
    "decode": (*SAMPLING, "intervals", "require_audio"),
    "decode|sound": ("audio",),
    "sound": ("channels", "rest"),
    "decode|faces": ("also", "also_missing"),
    "detect|faces": ("min_face", "min_score", "fill", "detector", "device", "parity"),
    "faces": (
        *("margin", "choose", "keep_faceless", "landmarks", "landmark_model", "align", "align_as"),
        *("smooth", "crop", "crop_per"),
        *("boxes_from", "boxes", "boxes_scale"),
    ),
    "faces|resize": ("size", "also_resample"),
    "resize": ("resize", "buckets"),
}
"""Built-in steps, separated by ``|``, and the options that are read only by them."""

_READ_WITH: Mapping[str, tuple[str, ...]] = {
    "align": ("crop", "face"),
    "also_missing": ("also",),
    "buckets": ("resize", "bucket"),
    "boxes_scale": ("boxes",),
    "landmark_model": ("landmarks", "mesh"),
    "margin": ("crop", "face"),
    "progressive": ("encode", "jpeg"),
    "gop": ("encode", *video_encodings_with("gop")),
    "hop": ("sample", "segment"),
    "most_seconds": ("sample", "track", "item"),
    "quality": ("encode", *encodings_with("quality"), *video_encodings_with("quality")),
    "require_audio": ("audio",),
    "restart_markers": ("encode", "jpeg"),
    "seconds": ("sample", "segment"),
    "subsampling": ("encode", *encodings_with("subsampling"), *video_encodings_with("subsampling")),
}
"""Options that are read only if another option is set, or has one of the listed values."""

_READ_WITH_OF_SOUND: Mapping[str, tuple[str, ...]] = {
    **{name: needed for name, needed in _READ_WITH.items() if name != "seconds"},
    "hop": ("seconds",),
    "rest": ("seconds",),
}
"""The same for sound files, which are always cut into pieces of `seconds`."""

_READ_WITHOUT: Mapping[str, str] = {
    "align": "align_as",
    "detector": "boxes",
    "device": "boxes",
    "margin": "align_as",
    "parity": "boxes",
}
"""Options that are read only if another option is not set."""

_OF_PICTURES = (
    *("encode", "encode_field", "quality", "subsampling", "progressive", "restart_markers", "gop"),
    *("sample", "most_seconds"),
)
"""Options about images and videos, which custom steps may make too."""

SMALLEST_SIZE = 2**16
"""Smallest size in bytes; a smaller one probably lacks its unit."""

_KINDS: Mapping[type, str] = {bool: "true or false", float: "a number", int: "an integer", str: "text"}
_MEANT: Mapping[str, str] = {"kib": "MiB", "mb": "GB", "mib": "GiB"}
"""Unit that was probably meant if a size is far too small; ``MB`` for all others."""


def option(default: Any, help: str, **meta: Any) -> Any:
    """Declare an option as a field of a dataclass.

    Parameters
    ----------
    help : str
        Text for ``--help``.
    **meta
        Settings for the command line and `check_value`, such as ``choices``, ``metavar`` and ``minimum``.
    """
    return field(default=default, metadata={"help": help, **meta})


def documented(kind: type[Options]) -> type[Options]:
    """Add a section of attributes to the docstring of a dataclass, from the help text of each option."""
    lines = [cleandoc(kind.__doc__ or ""), "", "Attributes", "----------"]
    for spec in fields(kind):  # type: ignore[arg-type]  # a dataclass
        meta = spec.metadata
        choices = ", ".join(map(repr, meta.get("choices", ())))
        name = spec.type.__name__ if isinstance(spec.type, type) else str(spec.type)
        what = f"{{{choices}}}" if choices else re.sub(r"\b\w+\.", "", name)
        lines += [
            f"{spec.name} : {what}, default {spec.default!r}",
            f"    {meta['help'][0].upper()}{meta['help'][1:]}.",
        ]
    kind.__doc__ = "\n".join(lines) + "\n"
    return kind


def plain_value(value: Any, choices: Collection[Any] = ()) -> Any:
    """Convert NumPy scalars to Python values, which JSON can hold, and numbers among `choices` to text."""
    if isinstance(value, np.bool_ | np.str_):
        return value.item()
    if isinstance(value, bool):  # a bool is an Integral too
        return value
    if isinstance(value, Integral):
        number = int(value)
        return str(number) if str(number) in choices else number
    if isinstance(value, Real):
        return float(value)
    return value


def kinds_of(spec: "Field[Any]") -> tuple[type, ...]:
    """Return the types that an option may have; none if they are checked elsewhere."""
    if get_origin(spec.type) is tuple:
        return ()
    return tuple(getattr(spec.type, "__args__", (spec.type,)))


def check_value(name: str, value: Any, kinds: Collection[type], meta: Mapping[str, Any], problems: Problems) -> None:
    """Check one plain value against its types, choices and range.

    Parameters
    ----------
    kinds : collection of type
        Allowed types; empty if the type is checked elsewhere.
    meta : mapping
        ``choices``, ``minimum``, ``maximum``, ``above`` (exclusive minimum) and ``bytes`` (a size); all optional.
    problems : Problems
        Receives every problem found.
    """
    if value is None:
        if type(None) not in kinds:
            problems.add(name, expected="a value", found="none")
        return
    if float in kinds and type(value) is int:
        value = float(value)
    if kinds and type(value) not in kinds:
        if "choices" in meta:
            expected = f"one of {', '.join(meta['choices'])}"
        else:
            expected = " or ".join(_KINDS[kind] for kind in kinds if kind is not type(None))
        problems.add(name, expected=expected, found=shorten(value))
        return
    if isinstance(value, float) and not math.isfinite(value):
        problems.add(name, expected="a finite number", found=shorten(value))
        return
    if isinstance(value, str) and not value.isascii() and not is_utf8(value):
        problems.add(name, expected="text that can be encoded as UTF-8", found=shorten(value))
    if "choices" in meta and value not in meta["choices"]:
        like = did_you_mean(str(value), meta["choices"])
        problems.add(name, expected=f"one of {', '.join(meta['choices'])}", found=f"{shorten(value)}{like}")
    if meta.get("bytes") and (problem := describe_small_size(value, str(value))) is not None:
        problems.add(name, problem)
    low, high, above = meta.get("minimum"), meta.get("maximum"), meta.get("above")
    if low is not None and not value >= low:
        problems.add(name, expected=f"{low} or more", found=shorten(value))
    if high is not None and not value <= high:
        problems.add(name, expected=f"{high} or less", found=shorten(value))
    if above is not None and not value > above:
        problems.add(name, expected=f"more than {above}", found=shorten(value))


def checked(name: str, value: Any, kind: Any, **meta: Any) -> Any:
    """Return one argument as a plain Python value, or raise `UsageError` if its type or range is wrong.

    Parameters
    ----------
    kind : type, or union of types
        Allowed types, such as ``int | None``.
    **meta
        See `check_value`.
    """
    value, problems = plain_value(value, meta.get("choices", ())), Problems(of_options=True)
    check_value(name, value, getattr(kind, "__args__", (kind,)), meta, problems)
    problems.raise_as(UsageError)
    return value


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Read a number of bytes such as ``"256MB"``, ``"64 MiB"``, ``1000000``.

    Parameters
    ----------
    name : str
        Name of the option, for messages.

    Raises
    ------
    UsageError
        If the text is not a size, or the size is below `SMALLEST_SIZE`.
    """
    size, number, unit = parse_size(text, name)
    problem = describe_small_size(size, number, unit)
    if problem is not None:
        raise UsageError(problem, option=name)
    return size


def describe_small_size(size: int, number: str, unit: str = "") -> str | None:
    """Describe the problem with a size that is too small, as it was typed; None if it is large enough.

    Tests lower the limit with the environment variable ``PACKER_SMALLEST_SIZE``.
    """
    if size >= int(os.environ.get("PACKER_SMALLEST_SIZE", SMALLEST_SIZE)):
        return None
    meant = _MEANT.get(unit.lower(), "MB")
    advice = f": write {number}{meant} if that is meant" if size > 0 else ""
    return f"expected {SMALLEST_SIZE // 2**10}KiB or more, found {number}{unit or ' (bytes)'}{advice}"


def unread_options(
    options: Mapping[str, Any], given: Collection[str], steps: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield each given option that no step of the recipe reads, with the reason.

    Parameters
    ----------
    options : mapping
        All options of the recipe.
    given : collection of str
        Options whose value is not the default.
    steps : collection of str
        Names of the steps that run.
    """
    left = list(given)
    for readers, names in _STEPS.items():
        if set(readers.split("|")).isdisjoint(steps):
            wanted = " or ".join(map(repr, readers.split("|")))
            if options["steps"]:
                remedy = f": add {wanted} to --steps"
            else:
                preset = next((name for name in ("faces", "sound") if name in readers), None)
                remedy = f": choose --preset {preset}" if preset is not None else ""
            for name in names:
                if name in left:
                    left.remove(name)
                    yield name, f"read only by the step {wanted}, found the steps {', '.join(steps)}{remedy}"
    read_with = _READ_WITH_OF_SOUND if "sound" in steps else _READ_WITH
    for name in left:
        other, *values = read_with.get(name, (None,))
        if other is not None and (options[other] is None if not values else options[other] not in values):
            with_value = " ".join(filter(None, (other, " or ".join(values))))
            yield name, f"read only with {with_value}, found {_describe_option(options, other)}"
            continue
        other = _READ_WITHOUT.get(name)
        if other is not None and options[other] is not None:
            yield name, f"read only without {other}, found {_describe_option(options, other)}"
    if steps == ["sound"]:
        for name in _OF_PICTURES:
            if name in left:
                yield name, "read only for images and videos, found the step sound alone"
    yield from _unread_sizes(options, left, steps)


def _unread_sizes(
    options: Mapping[str, Any], given: Collection[str], steps: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the options about sizes that are not read. The step 'faces' always has a size."""
    if "faces" not in steps and "size" in given and options["resize"] in ("bucket", "none"):
        yield "size", f"read only with resize shorter or exact, found resize {options['resize']}"
    if (
        "faces" not in steps
        and options["resize"] in ("shorter", "exact")
        and "resize" in given
        and options["size"] is None
    ):
        yield "resize", "read only with size, found no size"
    resizes = "resize" in steps and (options["size"] is not None or options["resize"] == "bucket")
    if "also_resample" in given and options["also"] is None and not resizes:
        yield "also_resample", "read only with also, or where the step 'resize' has a size, found no also"


def _describe_option(options: Mapping[str, Any], name: str) -> str:
    return f"no {name}" if options[name] is None else f"{name} {options[name]}"


def column_types(recipe: "Recipe") -> dict[str, str]:
    """Return the requested type of each column that a recipe names, or `DROP`.

    Raises
    ------
    UsageError
        If two options name the same column.
    """
    types: dict[str, str] = {}
    for kind in TYPES:
        for column in getattr(recipe, kind):
            if types.setdefault(column, kind) != kind:
                raise UsageError(
                    option=kind, expected=f"one option for column {shorten(column)}", found=f"{types[column]} as well"
                )
    return types
