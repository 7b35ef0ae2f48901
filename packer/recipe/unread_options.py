"""Options of a recipe that nothing would read. Given all the same, they were meant for another call, so that is a wrong one."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

SAMPLING = ("every", "fps", "frames", "keyframes")
"""Options that choose a video's frames; at most one of them is given."""

_STEPS: Mapping[str, tuple[str, ...]] = {
    "decode": SAMPLING,
    "faces": (
        *("margin", "choose", "min_face", "min_score", "detector", "device", "parity", "keep_faceless", "landmarks"),
        *("landmark_model", "align", "boxes_from", "boxes", "boxes_scale", "also"),
    ),
    "faces|resize": ("size", "also_resample"),
    "resize": ("resize",),
}
"""The built-in steps that read an option, where not every recipe does."""


class _Condition(NamedTuple):
    """When an option is read: by another option, in words, and as a function of all options and the steps' names."""

    other: str
    words: str
    holds: Callable[[Mapping[str, Any], Collection[str]], bool]


_CONDITIONS: Mapping[str, _Condition] = {
    "also_resample": _Condition(
        "also",
        "with also, or where the step 'resize' has a size",
        lambda options, steps: options["also"] is not None or ("resize" in steps and options["size"] is not None),
    ),
    "boxes_scale": _Condition("boxes", "with boxes", lambda options, _: options["boxes"] is not None),
    "detector": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "device": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "landmark_model": _Condition("landmarks", "with landmarks mesh", lambda options, _: options["landmarks"] == "mesh"),
    "parity": _Condition("boxes", "without boxes", lambda options, _: options["boxes"] is None),
    "progressive": _Condition("encode", "with encode jpeg", lambda options, _: options["encode"] == "jpeg"),
    "quality": _Condition(
        "encode", "with encode jpeg or webp", lambda options, _: options["encode"] in ("jpeg", "webp")
    ),
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


def unread_options(
    options: Mapping[str, Any], given: Collection[str], steps: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Each given option that nothing would read, and what would have to be otherwise.

    Parameters
    ----------
    options : mapping
        Every option of the recipe, by name.
    given : collection of str
        Those that are not what they are by default.
    steps : collection of str
        Names of the steps that run.
    """
    left = list(given)
    for readers, names in _STEPS.items():
        if set(readers.split("|")).isdisjoint(steps):
            remedy = ": choose --preset faces" if "faces" in readers else ""
            wanted = " or ".join(map(repr, readers.split("|")))
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
