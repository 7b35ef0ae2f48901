"""Options of a build as words of its command line."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from packer.recipe.options import BuildOptions
from packer.recipe.parsing import StepSpec
from packer.recipe.recipe import TEXT_LISTS, Recipe
from shardspec.errors import UsageError
from shardspec.wording import shorten


def changed_options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a manifest's recipe that are not at their defaults."""
    defaults = {spec.name: spec.metadata.get("usual", spec.default) for spec in fields(Recipe)}
    return {
        name: value
        for name, value in recipe.items()
        if name != "inputs" and value not in (None, False, [], (), defaults.get(name))
    }


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of the command line.

    Raises
    ------
    UsageError
        If only a recipe file can hold one of them.
    """
    specs = {spec.name: spec for kind in (Recipe, BuildOptions) for spec in fields(kind)}
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        several = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable) else value
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif name in TEXT_LISTS:
            words += [f"{flag}={one}" for one in several]
        elif name == "steps" or (name in specs and specs[name].metadata.get("commas")):
            names = [value] if isinstance(value, str) else [_plain(name, one) for one in several]
            words += [f"{flag}={','.join(names)}"] if names else []
        elif value is not None:
            words.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def _plain(name: str, one: Any) -> str:
    """Return a step or class of a list that commas separate."""
    found = StepSpec.parse(one) if name == "steps" else one
    text = found.use if isinstance(found, StepSpec) and not found.options else found
    if not isinstance(text, str) or "," in text:
        raise UsageError(
            option=name,
            expected="names without commas and options",
            found=shorten(one),
            hint="use a recipe file (--config)",
        )
    return text
