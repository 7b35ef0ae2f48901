"""``packer build SOURCE OUT``."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.cli.arguments import add_option, add_output_arguments, print_made, print_result
from packer.recipe import Recipe, refuse_unknown
from packer.recipe.options import OPTION_NAMES, BuildOptions
from shardspec.errors import TooManyRejectsError, UsageError, system_reason
from shardspec.registry import import_target
from shardspec.wording import found_instead

if TYPE_CHECKING:
    from packer.builds.result import BuildResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every option of `Recipe` and `BuildOptions`, and those that only the command line has."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder, a packed dataset, a table (.csv, .tsv, .jsonl, .parquet) with a path column, or archives (.tar, "
        ".tar.gz, .rec, LMDB, Parquet with pictures inside) as a file, a folder or a pattern in quotes",
    )
    parser.add_argument("out", metavar="OUT", help="folder of the dataset: new, empty, or with the build to resume")
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and an estimate of time and size; write nothing"
    )
    add_output_arguments(parser)
    add_build_options(parser)


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add the recipe file, and every option of `Recipe` and `BuildOptions`."""
    parser.add_argument(
        "--config", metavar="FILE.toml", help="recipe file; options on the command line take precedence"
    )
    for title, kind in (("what is made", Recipe), ("how it runs", BuildOptions)):
        group = parser.add_argument_group(title)
        for spec in dataclasses.fields(kind):
            add_option(group, spec)


def run(options: argparse.Namespace) -> int:
    """Build, and print the result."""
    name = "dry_run" if options.dry_run else "build"
    call = import_target(f"packer.builds.build:{name}", what="a build", extra="pack")
    chosen = {"progress": not options.quiet, **_chosen(options)}
    if options.dry_run:
        print_result(options, call(options.source, options.out, **chosen))
        return 0
    return print_build(options, lambda: call(options.source, options.out, **chosen))


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the build: those of the recipe file, and those that were given on the command line."""
    return {**(read_config(options.config) if options.config is not None else {}), **given_options(options)}


def print_build(options: argparse.Namespace, call: "Callable[[], BuildResult]") -> int:
    """Call a build, and print what was made, also if it has more rejects than allowed."""
    too_many: TooManyRejectsError | None = None
    try:
        result = call()
    except TooManyRejectsError as error:
        if error.result is None:
            raise
        result, too_many = error.result, error
    print_made(options, result, options.out)
    if too_many is not None:
        raise too_many
    return 0


def _let_import(folder: Path) -> None:
    """Make modules beside a recipe file importable, here and in the worker processes: the file may name their steps."""
    before = os.environ.get("PYTHONPATH", "")
    if sys.path[0] != str(folder) or before.partition(os.pathsep)[0] != str(folder):  # it may have been read before
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a build that were given on the command line."""
    return {name: value for name, value in vars(options).items() if name in OPTION_NAMES}


def read_config(path: str) -> dict[str, Any]:
    """Read the keys of a recipe file, in which ``-`` and ``_`` are the same. Modules beside it can be imported then."""
    import tomllib

    if not path:
        raise UsageError("config: expected the path of a recipe file, found an empty text")
    _let_import(Path(path).absolute().parent)
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: expected a recipe file, found: {system_reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected TOML, {found_instead(error)}") from error
    chosen = {key.replace("-", "_"): value for key, value in document.items()}
    try:
        refuse_unknown(chosen, OPTION_NAMES)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return chosen
