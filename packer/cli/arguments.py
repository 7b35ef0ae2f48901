"""Arguments shared by commands, and the call of a command's Python function."""

import argparse
import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from packer.cli.output import print_out
from packer.jobs.result import Result
from packer.recipe import TEXT_LISTS
from packer.recipe.engines import ENGINES
from packer.recipe.options import BuildOptions
from shardspec.layout import is_url

T = TypeVar("T")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that takes time."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of jobs over packed datasets."""
    add_output_arguments(parser)
    group = parser.add_argument_group("what is made")
    group.add_argument(
        "--shard-size", metavar="SIZE", help="bytes of encoded samples per shard (default: as in the dataset)"
    )
    group.add_argument("--shuffle", metavar="SEED", type=int, help="store the samples in a random order with this seed")
    group = parser.add_argument_group("how it runs")
    for spec in dataclasses.fields(BuildOptions):
        if spec.name == "engine":
            group.add_argument(
                "--engine",
                default=argparse.SUPPRESS,
                choices=[name for name, engine in ENGINES.items() if not engine.many_hosts],
                help=f"run the work in this process (inline) or in worker processes (default: {spec.default})",
            )
        elif spec.name in ("workers", "overwrite"):
            add_option(group, spec)


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(part.strip() for part in text.split(","))


def call(function: Callable[..., T], options: argparse.Namespace) -> T:
    """Call the Python function of a command with the options that are its parameters, and ``progress``.

    Options that were not given and have no default are not passed.
    """
    given = {"progress": not getattr(options, "quiet", False), **vars(options)}
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in names})


def print_result(options: argparse.Namespace, result: Result) -> None:
    """Print a result as text or JSON."""
    print_out(json.dumps(result.to_json()) if options.json else result.describe())


def print_made(options: argparse.Namespace, result: Any, path: str) -> None:
    """Print a result with its `path` as the user typed it, so that it fits the next command."""
    print_result(options, dataclasses.replace(result, path=path if is_url(path) else Path(path)))


def add_option(group: argparse._ArgumentGroup, spec: "dataclasses.Field[Any]") -> None:
    """Add one attribute as an option. Options that are not given are absent, so that the recipe file applies."""
    meta, flag = spec.metadata, "--" + spec.name.replace("_", "-")
    common: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS, "help": _help(spec)}
    kinds = getattr(spec.type, "__args__", (spec.type,))
    if meta.get("optional"):
        group.add_argument(flag, nargs="?", const=True, metavar=meta["metavar"], **common)
        return
    if bool in kinds:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        return
    if "choices" in meta:
        common["choices"] = meta["choices"]
    else:
        common["metavar"] = meta.get("metavar", spec.name.upper())
    if spec.name in TEXT_LISTS:
        common |= {"action": "append", "type": str}
    elif spec.name == "steps" or meta.get("commas"):
        common["type"] = split_names
    elif not meta.get("bytes") and "parse" not in meta:
        common["type"] = kinds[0] if kinds[0] in (int, float) else str
    group.add_argument(flag, **common)


def _help(spec: "dataclasses.Field[Any]") -> str:
    text = str(spec.metadata["help"]).replace("%", "%%")
    if spec.default in (None, (), False) or "default" in text:
        return text
    return f"{text} (default: {spec.default})"
