"""Arguments that commands have in common."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer.cli.output import print_out
from packer.jobs.result import Result
from packer.recipe import TEXT_LISTS
from packer.recipe.engines import ENGINES
from packer.recipe.options import BuildOptions

_ROW_OPTIONS = ("workers", "engine", "overwrite")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that takes time."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_job_arguments(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Options of `BuildOptions` that other jobs have, too."""
    group = parser.add_argument_group("how it runs")
    for spec in dataclasses.fields(BuildOptions):
        if spec.name == "engine" and spec.name in names:
            group.add_argument(
                "--engine",
                default=argparse.SUPPRESS,
                choices=[name for name, engine in ENGINES.items() if not engine.many_hosts],
                help=f"where the work runs: in this process (inline) or in worker processes (default {spec.default})",
            )
        elif spec.name in names:
            add_option(group, spec)


def job_options(options: argparse.Namespace) -> dict[str, Any]:
    """The values of the options from `add_job_arguments`, as keyword arguments."""
    how = {name: getattr(options, name) for name in _ROW_OPTIONS if hasattr(options, name)}
    return {"progress": not options.quiet, **how}


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a job over packed datasets."""
    add_output_arguments(parser)
    made = parser.add_argument_group("what is made")
    made.add_argument(
        "--shard-size", metavar="SIZE", help="bytes of encoded samples per shard (default: as the dataset was packed)"
    )
    made.add_argument(
        "--shuffle", metavar="SEED", type=int, help="store the samples in a random order drawn from this seed"
    )
    add_job_arguments(parser, _ROW_OPTIONS)


def row_options(options: argparse.Namespace) -> dict[str, Any]:
    """The values of the options from `add_row_arguments`, as keyword arguments of `convert`, `merge` and `split`."""
    return {"shard_size": options.shard_size, "shuffle": options.shuffle, **job_options(options)}


def print_result(options: argparse.Namespace, result: Result) -> None:
    """Print what a call has found or made."""
    print_out(json.dumps(result.to_json()) if options.json else result.describe())


def print_made(options: argparse.Namespace, result: Any, place: str) -> None:
    """Print what a call has made, a dataclass with its `path`: that is shown as it was typed, for the next command."""
    print_result(options, dataclasses.replace(result, path=Path(place)))


def add_option(group: argparse._ArgumentGroup, spec: "dataclasses.Field[Any]") -> None:
    """Add one attribute as an option. If it is not given, the namespace lacks it, so that the recipe file counts."""
    meta, flag = spec.metadata, "--" + spec.name.replace("_", "-")
    common: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS, "help": _help(spec)}
    if meta.get("optional"):
        group.add_argument(flag, nargs="?", const=True, metavar=meta["metavar"], **common)
        return
    if bool in getattr(spec.type, "__args__", (spec.type,)):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        return
    if "choices" in meta:
        common["choices"] = meta["choices"]
    else:
        common["metavar"] = meta.get("metavar", spec.name.upper())
    if spec.name in TEXT_LISTS:
        common |= {"action": "append", "type": str}
    elif spec.name == "steps" or meta.get("commas"):
        common["type"] = lambda text: tuple(part.strip() for part in text.split(","))
    elif not meta.get("bytes") and "parse" not in meta:
        common["type"] = _number_type(spec)
    group.add_argument(flag, **common)


def _number_type(spec: "dataclasses.Field[Any]") -> Any:
    kinds = getattr(spec.type, "__args__", (spec.type,))
    return int if kinds[0] is int else float if kinds[0] is float else str


def _help(spec: "dataclasses.Field[Any]") -> str:
    text = str(spec.metadata["help"]).replace("%", "%%")
    if spec.default in (None, (), False) or "default" in text:
        return text
    return f"{text} (default {spec.default})"
