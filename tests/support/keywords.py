"""The source of `packer.recipe.keywords`: the options of a build as keyword arguments, for type checkers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from packer.builds.detect import DETECT_OPTIONS
from packer.recipe import TEXT_LISTS
from packer.recipe.options import BuildOptions
from packer.recipe.recipe import Recipe
from support.command import REPOSITORY

PATH = REPOSITORY / "packer" / "recipe" / "keywords.py"

_HEAD = '''"""Options of a build as keyword arguments, so that type checkers find misspelt names and wrong values.

Made from `Recipe` and `BuildOptions` by ``UPDATE_KEYWORDS=1 pytest tests/test_types.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from packer.recipe.parsing import StepSpec

'''

_SPECIAL: Mapping[str, str] = {
    "classes": "str | Sequence[str]",
    "max_rejects": "float | str",
    "steps": "str | Sequence[str | Mapping[str, Any] | StepSpec | Callable[..., Any]]",
    "workers": 'int | Literal["auto"]',
}
"""Types of options that take more, or less, than the type of their attribute."""


def make_source() -> str:
    """Return the text of the module, before it is formatted."""
    specs = {spec.name: spec for kind in (Recipe, BuildOptions) for spec in dataclasses.fields(kind)}
    detecting = {name: specs.pop(name) for name in DETECT_OPTIONS}
    return (
        _HEAD
        + _class("DetectKeywords(TypedDict, total=False)", "Options of `packer.detect`.", detecting)
        + _class("BuildKeywords(DetectKeywords, total=False)", "Options of `packer.build`.", specs)
    )


def _class(head: str, text: str, specs: Mapping[str, "dataclasses.Field[Any]"]) -> str:
    # The names `int` and `float` hide the types after them, so they come last.
    names = sorted(specs, key=lambda name: name in ("int", "float"))
    lines = [f'class {head}:\n    """{text}"""\n', *(f"    {name}: {_type(specs[name])}" for name in names)]
    return "\n" + "\n".join(lines) + "\n"


def _type(spec: "dataclasses.Field[Any]") -> str:
    if spec.name in _SPECIAL:
        return _SPECIAL[spec.name]
    meta = spec.metadata
    if spec.name in TEXT_LISTS:
        return "str | PathLike[str] | Sequence[str | PathLike[str]]" if meta.get("path") else "str | Sequence[str]"
    kinds = getattr(spec.type, "__args__", (spec.type,))
    names = ["None" if kind is type(None) else kind.__name__ for kind in kinds]
    if "choices" in meta:
        numbers = [int(choice) for choice in meta["choices"] if choice.isdecimal()]
        names[0] = f"Literal[{', '.join(map(repr, [*meta['choices'], *numbers]))}]"
    if meta.get("bytes"):
        names.insert(0, "str")
    if meta.get("path"):
        names.insert(1, "PathLike[str]")
    return " | ".join(names)
