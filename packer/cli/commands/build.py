"""``packer build SOURCE OUT``."""

import argparse
import dataclasses
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
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
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder, a packed dataset, a table (.csv, .tsv, .jsonl, .parquet) with a path column, or archives (.tar, "
        ".tar.gz, .rec, LMDB, Parquet with embedded images) as a file, a folder or a quoted pattern",
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="output folder, or a URL that begins with s3://, gs:// or az://; must be new, empty, or hold an unfinished "
        "build to resume",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and an estimate of time and size, and write nothing"
    )
    add_output_arguments(parser)
    add_build_options(parser)


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add the recipe file, and every option of `Recipe` and `BuildOptions`."""
    parser.add_argument(
        "--config", metavar="FILE.toml", help="recipe file; options on the command line take precedence"
    )
    add_options(parser, OPTION_NAMES)


TOPICS: Mapping[str, tuple[str, ...]] = {
    "most used": (
        "preset",
        "format",
        "label_from",
        "every",
        "size",
        "choose",
        "align",
        "encode",
        "workers",
        "overwrite",
    ),
    "source and labels": (
        *("include", "exclude", "limit", "classes", "classes_from", "label_names", "fields_from_path", "sidecars"),
        *("frame_folders", "path_column", "root", "keys", "unquoted", "drop", "text", "int", "float", "intervals"),
    ),
    "frames and sound of videos": (
        *("fps", "resample_fps", "frames", "keyframes", "refill", "audio", "require_audio"),
    ),
    "faces": (
        *("min_face", "min_score", "margin", "crop", "align_as", "smooth", "fill", "crop_per", "keep_faceless"),
        *("boxes", "boxes_from", "boxes_scale", "also", "also_missing", "also_resample"),
    ),
    "detector and landmarks": ("detector", "device", "parity", "shared_detector", "landmarks", "landmark_model"),
    "storage": (
        *(
            "resize",
            "encode_field",
            "quality",
            "subsampling",
            "progressive",
            "restart_markers",
            "shard_size",
            "shuffle",
        ),
        "steps",
    ),
    "growing a dataset": ("update", "changed", "gone", "new_classes", "retry_rejects"),
    "about the dataset": ("title", "description", "license", "citation", "homepage"),
    "running": ("work", "item_timeout", "on_error", "max_rejects"),
    "clusters": ("engine", "workers_per_node", "ray_address"),
}
"""Options of a build by topic, as ``packer build --help`` groups them. Each option has one topic."""


def add_options(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add the named options of `Recipe` and `BuildOptions`, grouped by topic."""
    parser.usage = "%(prog)s SOURCE OUT [OPTIONS]"
    specs = {spec.name: spec for kind in (Recipe, BuildOptions) for spec in dataclasses.fields(kind)}
    for topic, options in TOPICS.items():
        chosen = [name for name in options if name in names]
        if chosen:
            group = parser.add_argument_group(topic)
            for name in chosen:
                add_option(group, specs[name])


def run(options: argparse.Namespace) -> int:
    name = "dry_run" if options.dry_run else "build"
    call = import_target(f"packer.builds.build:{name}", what="a build", extra="pack")
    config = {} if options.config is None else read_config(options.config)
    chosen = {"progress": not options.quiet, **config, **given_options(options)}
    if options.dry_run:
        print_result(options, call(options.source, options.out, **chosen))
        return 0
    return print_build(options, lambda: call(options.source, options.out, **chosen))


def print_build(options: argparse.Namespace, call: "Callable[[], BuildResult]") -> int:
    """Call a build and print its result, even if it has more rejects than allowed."""
    try:
        print_made(options, call(), options.out)
    except TooManyRejectsError as error:
        if error.result is not None:
            print_made(options, error.result, options.out)
        raise
    return 0


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the build options that were given on the command line."""
    return {name: value for name, value in vars(options).items() if name in OPTION_NAMES}


def read_config(path: str) -> dict[str, Any]:
    """Read a recipe file, whose keys may be spelled with ``-`` or ``_``.

    Its folder becomes importable, here and in worker processes, because the recipe may name steps of a module there.
    """
    if not path:
        raise UsageError(option="config", expected="the path of a recipe file", found="an empty text")
    folder, before = str(Path(path).absolute().parent), os.environ.get("PYTHONPATH", "")
    if sys.path[0] != folder or before.partition(os.pathsep)[0] != folder:
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before)))
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"expected a recipe file, found: {system_reason(error)}", place=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"expected TOML, {found_instead(error)}", place=path) from error
    chosen = {key.replace("-", "_"): value for key, value in document.items()}
    try:
        refuse_unknown(chosen, OPTION_NAMES)
    except UsageError as error:
        raise UsageError(error, place=path) from error
    return chosen
