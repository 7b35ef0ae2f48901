"""Options: how an option is declared, and how its value is converted to a plain Python type and checked."""

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, field, fields
from inspect import cleandoc
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar, get_origin

import numpy as np

from shardspec.errors import UsageError
from shardspec.problems import Problems
from shardspec.wording import did_you_mean, is_utf8, shorten

Options = TypeVar("Options")

SAMPLING = ("every", "fps", "frames", "keyframes")
"""Options that choose the frames of a video; at most one of them may be given."""

_STEPS: Mapping[str, tuple[str, ...]] = {
    "decode": SAMPLING,
    "decode|faces": ("also", "also_missing"),
    "detect|faces": ("min_face", "min_score", "detector", "device", "parity"),
    "faces": (
        *("margin", "choose", "keep_faceless", "landmarks", "landmark_model", "align", "align_as"),
        *("boxes_from", "boxes", "boxes_scale", "refill"),
    ),
    "faces|resize": ("size", "also_resample"),
    "resize": ("resize",),
}
"""The built-in steps that read an option, for the options that not every recipe reads."""

SMALLEST_SIZE = 2**16
"""The fewest bytes that a size may have: a smaller one lacks its unit."""

_KINDS: Mapping[type, str] = {bool: "true or false", float: "a number", int: "an integer", str: "text"}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_MEANT: Mapping[str, str] = {"kib": "MiB", "mb": "GB", "mib": "GiB"}
"""The unit that was probably meant where a size is far too small; ``MB`` for all others."""
_BYTES = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*\Z", re.IGNORECASE)


def option(default: Any, help: str, **meta: Any) -> Any:
    """An option as a field of a dataclass.

    Parameters
    ----------
    default : object
    help : str
        For ``--help``.
    **meta
        What the command line and `check_value` read: ``choices``, ``metavar``, ``minimum`` and the like. With ``late``,
        a recipe says nothing of the option while it has its default.
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
    """Convert a value to the plain Python type that JSON and the plan's fingerprint hold.

    Numpy's numbers become Python's, and a number that names a choice becomes text.

    Parameters
    ----------
    value : object
        The value as given.
    choices : collection
        The choices of the option; empty if any value of its type is valid.
    """
    if isinstance(value, np.bool_ | np.str_):
        return value.item()
    if isinstance(value, bool):  # a bool is an Integral, too, but is not meant as a number
        return value
    if isinstance(value, Integral):
        number = int(value)
        return str(number) if str(number) in choices else number
    if isinstance(value, Real):
        return float(value)
    return value


def kinds_of(spec: "Field[Any]") -> tuple[type, ...]:
    """The types that the value of an option may have; none if they are checked elsewhere."""
    if get_origin(spec.type) is tuple:
        return ()
    return tuple(getattr(spec.type, "__args__", (spec.type,)))


def check_value(name: str, value: Any, kinds: Collection[type], meta: Mapping[str, Any], problems: Problems) -> None:
    """Check one plain value against its types, choices and range.

    Parameters
    ----------
    name : str
        The name of the option.
    value : object
    kinds : collection of type
        Types that the option may have; empty if the type is checked elsewhere.
    meta : mapping
        The option's ``choices``, ``minimum``, ``maximum`` and ``above``, where it has them.
    problems : Problems
        Receives every problem found.
    """
    if value is None:
        if type(None) not in kinds:
            problems.add(name, "expected a value, found none")
        return
    if float in kinds and type(value) is int:
        value = float(value)
    if kinds and type(value) not in kinds:
        if "choices" in meta:
            expected = f"one of {', '.join(meta['choices'])}"
        else:
            expected = " or ".join(_KINDS[kind] for kind in kinds if kind is not type(None))
        problems.add(name, f"expected {expected}, found {shorten(value)}")
        return
    if isinstance(value, float) and not math.isfinite(value):
        problems.add(name, f"expected a finite number, found {shorten(value)}")
        return
    if isinstance(value, str) and not value.isascii() and not is_utf8(value):
        problems.add(name, f"expected text that can be encoded as UTF-8, found {shorten(value)}")
    if "choices" in meta and value not in meta["choices"]:
        like = did_you_mean(str(value), meta["choices"])
        problems.add(name, f"expected one of {', '.join(meta['choices'])}, found {shorten(value)}{like}")
    if meta.get("bytes") and (problem := describe_small_size(value, str(value))) is not None:
        problems.add(name, problem)
    low, high, above = meta.get("minimum"), meta.get("maximum"), meta.get("above")
    if low is not None and not value >= low:
        problems.add(name, f"expected {low} or more, found {shorten(value)}")
    if high is not None and not value <= high:
        problems.add(name, f"expected {high} or less, found {shorten(value)}")
    if above is not None and not value > above:
        problems.add(name, f"expected more than {above}, found {shorten(value)}")


def checked(name: str, value: Any, kind: Any, **meta: Any) -> Any:
    """One argument of a call, as a plain Python value.

    Parameters
    ----------
    name : str
        The name of the argument.
    value : object
    kind : type, or union of types
        The types that it may have, such as ``int | None``.
    **meta
        See `check_value`.

    Raises
    ------
    UsageError
        If it has another type, or is out of its range.
    """
    value, problems = plain_value(value, meta.get("choices", ())), Problems()
    check_value(name, value, getattr(kind, "__args__", (kind,)), meta, problems)
    if problems:
        raise UsageError("; ".join(problems.found))
    return value


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Read a number of bytes such as ``"256MB"``, ``"64 MiB"``, ``1000000``.

    Parameters
    ----------
    text : str or int
    name : str
        The name of the option, for messages.

    Raises
    ------
    UsageError
        If it is no size, or one below `SMALLEST_SIZE`.
    """
    match = _BYTES.match(str(text))
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(f"{name}: expected a size such as 256MB, 64MiB or a number of bytes, found {shorten(text)}")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    problem = describe_small_size(size, match[1], match[2])
    if problem is not None:
        raise UsageError(f"{name}: {problem}")
    return size


def describe_small_size(size: int, number: str, unit: str = "") -> str | None:
    """Describe the problem with a size that is too small, as it was typed; None if it is large enough.

    ``PACKER_SMALLEST_SIZE`` in the environment, the fewest bytes, is for tests.
    """
    if size >= int(os.environ.get("PACKER_SMALLEST_SIZE", SMALLEST_SIZE)):
        return None
    meant = _MEANT.get(unit.lower(), "MB")
    advice = f": write {number}{meant} if that is meant" if size > 0 else ""
    return f"expected {SMALLEST_SIZE // 2**10}KiB or more, found {number}{unit or ' (bytes)'}{advice}"


def unread_options(
    options: Mapping[str, Any], given: Collection[str], steps: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield each given option that no step of the recipe reads, and what would have to change for it to be read.

    Parameters
    ----------
    options : mapping
        Every option of the recipe, by name.
    given : collection of str
        The options whose value is not the default.
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
                remedy = ": choose --preset faces" if "faces" in readers else ""
            for name in names:
                if name in left:
                    left.remove(name)
                    yield name, f"read only by the step {wanted}, found the steps {', '.join(steps)}{remedy}"
    for name in left:
        condition = _CONDITIONS.get(name)
        if condition is not None and not condition.holds(options, steps):
            value = options[condition.other]
            found = f"no {condition.other}" if value is None else f"{condition.other} {value}"
            yield name, f"read only {condition.words}, found {found}"


class _Condition(NamedTuple):
    """When an option is read: the other option that decides it, in words, and as a function of options and steps."""

    other: str
    words: str
    holds: Callable[[Mapping[str, Any], Collection[str]], bool]


_CONDITIONS: Mapping[str, _Condition] = {
    "align": _Condition("align_as", "without align_as", lambda options, _: options["align_as"] is None),
    "also_missing": _Condition("also", "with also", lambda options, _: options["also"] is not None),
    "also_resample": _Condition(
        "also",
        "with also, or where the step 'resize' has a size",
        lambda options, steps: options["also"] is not None or ("resize" in steps and options["size"] is not None),
    ),
    "boxes_scale": _Condition("boxes", "with boxes", lambda options, _: options["boxes"] is not None),
    "detector": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "device": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "landmark_model": _Condition("landmarks", "with landmarks mesh", lambda options, _: options["landmarks"] == "mesh"),
    "margin": _Condition("align_as", "without align_as", lambda options, _: options["align_as"] is None),
    "parity": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "progressive": _Condition("encode", "with encode jpeg", lambda options, _: options["encode"] == "jpeg"),
    "quality": _Condition(
        "encode", "with encode jpeg or webp", lambda options, _: options["encode"] in ("jpeg", "webp")
    ),
    "refill": _Condition("frames", "with frames", lambda options, _: options["frames"] is not None),
    "resize": _Condition(
        "size",
        "with size",
        lambda options, steps: options["size"] is not None or options["resize"] == "none" or "faces" in steps,
    ),
    "restart_markers": _Condition("encode", "with encode jpeg", lambda options, _: options["encode"] == "jpeg"),
    "size": _Condition(
        "resize",
        "with resize shorter or exact",
        lambda options, steps: options["resize"] != "none" or "faces" in steps,
    ),
    "subsampling": _Condition("encode", "with encode jpeg", lambda options, _: options["encode"] == "jpeg"),
}
