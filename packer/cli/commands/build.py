"""``packer build SOURCE OUT``."""

import argparse
import dataclasses
import os
import shlex
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import packer
from packer.cli.arguments import add_option, add_parameters, print_job, print_result
from packer.cli.line import CommandParser
from packer.known.listing import recognise
from packer.recipe import Recipe, refuse_unknown
from packer.recipe.options import OPTION_NAMES, BuildOptions
from shardspec.errors import UsageError, system_reason
from shardspec.wording import found_instead, program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_parameters(parser, packer.build, left_out=("recipe",))
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and an estimate of time and size, and write nothing"
    )
    add_build_options(parser)


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add the recipe file, and every option of `Recipe` and `BuildOptions`."""
    parser.add_argument(
        "--config", metavar="FILE.toml", help="recipe file; options on the command line take precedence"
    )
    add_options(parser, OPTION_NAMES)


EXAMPLES: Mapping[str, str] = {
    "build": """\
packer build photos/ images/ --size 256 --resize exact --label-from folder
packer build videos/ faces/ --preset faces --every 10 --label-from folder
packer build table.csv crops/ --preset faces --frames 32 --choose largest --root videos/""",
    "detect": """\
packer detect videos/ boxes/ --every 10
packer build videos/ faces/ --preset faces --every 10 --boxes boxes/""",
}
"""Examples in the short help of the commands that take the options of a build."""

COMMON = (
    "preset",
    "format",
    "label_from",
    "every",
    "size",
    "resize",
    "choose",
    "align",
    "encode",
    "workers",
    "overwrite",
)
"""The most used options, which ``packer build --help`` shows before the topics."""

_MOST_USED = "most used"


class Topic(NamedTuple):
    """Options of a build that belong together.

    Attributes
    ----------
    title : str
        Heading in ``packer build --help``: what its options decide, in a few words.
    text : str
        What to know before the options, in a few sentences.
    page : str
        Page of the documentation.
    options : tuple of str
        Names of options of `Recipe` and `BuildOptions`.
    """

    title: str
    text: str
    page: str
    options: tuple[str, ...]


TOPICS: Mapping[str, Topic] = {
    "source": Topic(
        "what is packed, with which labels and fields",
        "SOURCE is a folder, a packed dataset, a table or an archive. By default every image and video in it is packed "
        "(with --preset sound, every sound file), and the label is the first folder level or the column `label`. Other columns of a table become fields.",
        "docs/howto/sources.md",
        (
            *("label_from", "include", "exclude", "limit", "classes", "classes_from", "label_names"),
            *("fields_from_path", "sidecars", "frame_folders", "path_column", "path_suffix", "root", "keys"),
            "unquoted",
            *("drop", "text", "int", "float", "intervals"),
        ),
    ),
    "video": Topic(
        "which frames of a video are packed, and its sound",
        "By default every frame of a video is packed. Choose fewer by their number (--every), by time (--fps) or by how "
        "many there are (--frames). Frames are counted in the order in which they are shown. A sample is a frame, or with "
        "--sample a video: a track, an item, or a segment.",
        "docs/howto/frames.md",
        (
            *("every", "fps", "resample_fps", "frames", "keyframes", "audio", "require_audio"),
            *("sample", "seconds", "hop", "most_seconds"),
        ),
    ),
    "sound": Topic(
        "sound files, whole or in pieces",
        "With --preset sound, every sound file is packed (.wav, .flac, .mp3, .m4a, .ogg, .opus and others), whole or in "
        "pieces of --seconds. --audio sets the rate of the samples.",
        "docs/howto/sound.md",
        ("channels", "rest"),
    ),
    "faces": Topic(
        "which faces are packed, and how they are cut",
        "With --preset faces, MTCNN finds the faces of each image or frame, and each face is cut as a square and scaled "
        "to --size. --boxes takes boxes that were found before, so that nothing is detected again.",
        "docs/howto/faces.md",
        (
            *("choose", "align", "min_face", "min_score", "margin", "crop", "align_as", "smooth", "fill", "crop_per"),
            *("keep_faceless", "boxes", "boxes_from", "boxes_scale", "also", "also_missing", "also_resample"),
        ),
    ),
    "landmarks": Topic(
        "which detector runs where, and which landmarks are added",
        "The detector finds boxes and 5 points, on the CPU (openvino) or with torch. --landmarks adds 68 points or a "
        "face mesh, with the outline and regions of the face.",
        "docs/howto/landmarks.md",
        ("detector", "device", "parity", "shared_detector", "landmarks", "landmark_model"),
    ),
    "images": Topic(
        "presets, sizes, and steps of your own",
        "A preset is a list of steps that each image or frame goes through. --size scales the shorter side, and --resize "
        "chooses other rules. --steps replaces the list, also by functions of your own.",
        "docs/howto/images.md",
        ("preset", "size", "resize", "buckets", "steps"),
    ),
    "storage": Topic(
        "format and size of shards, and encoding of images",
        "All formats hold the same samples, and `packer convert` makes one from another without decoding. JPEG is the "
        "smallest, and png and raw keep every bit.",
        "docs/background/formats.md",
        (
            *("format", "encode", "encode_field", "quality", "gop", "subsampling", "progressive", "restart_markers"),
            *("shard_size", "shuffle"),
        ),
    ),
    "growing": Topic(
        "add new items later, and try rejected ones again",
        "--update adds the new items of SOURCE to a packed dataset. By default the samples of changed and gone items stay. "
        "--retry-rejects tries rejected items again.",
        "docs/howto/growing.md",
        ("update", "changed", "gone", "new_classes", "retry_rejects"),
    ),
    "metadata": Topic(
        "title, licence and citation",
        "Stored in the manifest, kept by every command, and shown on the dataset's card. `packer describe` changes them "
        "later.",
        "docs/howto/publish.md",
        ("title", "description", "license", "citation", "homepage"),
    ),
    "running": Topic(
        "workers, limits, errors, and replacing a dataset",
        "Repeat a command to resume it: finished work is kept, and the bytes of the dataset do not depend on these options. "
        "`packer rejects` lists the items that cannot be packed.",
        "docs/howto/build.md",
        ("workers", "overwrite", "work", "item_timeout", "on_error", "max_rejects"),
    ),
    "cluster": Topic(
        "one build on many nodes, with Ray or a job array",
        "With --engine ray, a build uses all nodes of a Ray cluster. In a job array of Slurm or another scheduler, each "
        "job packs a part with `packer build --share K/N`, and `packer merge` makes the dataset.",
        "docs/howto/cluster.md",
        ("engine", "workers_per_node", "ray_address", "ray_gpus"),
    ),
}
"""Topics of ``packer help``. Each option has one topic."""


def add_options(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add the named options of `Recipe` and `BuildOptions`, the most used first and the others by topic."""
    parser.usage = "%(prog)s SOURCE OUT [OPTIONS]"
    parser.epilog = f"packer help TOPIC explains one topic: {', '.join(TOPICS)}"
    if isinstance(parser, CommandParser):
        parser.add_argument("-h", action=_ShortHelp, nargs=0, help="show the most used options and examples, and exit")
    add_group(parser, _MOST_USED, [name for name in COMMON if name in names])
    for topic in TOPICS.values():
        add_group(parser, topic.title, [name for name in topic.options if name in names and name not in COMMON])


class _ShortHelp(argparse.Action):
    """Prints the most used options and examples, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print them and exit."""
        assert isinstance(parser, CommandParser)
        shown = {group.title or "": group._group_actions for group in parser._action_groups}
        sections = {title: shown[title] for title in ("positional arguments", _MOST_USED, "options")}
        epilog = f"{parser.prog} --help lists all options, and packer help TOPIC explains one topic."
        help = parser.format_sections(sections, EXAMPLES[parser.prog.split()[-1]], epilog)
        parser._print_message(help, sys.stdout)
        parser.exit()


def add_group(parser: argparse.ArgumentParser, title: str, names: Sequence[str]) -> None:
    """Add a group of options of `Recipe` and `BuildOptions`, or none if there are no names."""
    specs = {spec.name: spec for kind in (Recipe, BuildOptions) for spec in dataclasses.fields(kind)}
    if names:
        group = parser.add_argument_group(title)
        for name in names:
            add_option(group, specs[name])


def run(options: argparse.Namespace) -> int:
    config = {} if options.config is None else read_config(options.config)
    chosen = {"progress": not options.quiet, **config, **given_options(options)}
    share = getattr(options, "share", None)
    if options.dry_run and share is not None:
        raise UsageError("cannot be used together with --dry-run, which is about the whole build", option="share")
    if options.dry_run:
        print_result(options, packer.dry_run(options.source, options.out, **chosen))
        return 0
    note_known_dataset(options.source)
    print_job(options, lambda: packer.build(options.source, options.out, share=share, **chosen), options.out)
    return 0


def note_known_dataset(source: str) -> None:
    """Note on standard error that a folder holds a dataset that ``packer list`` knows."""
    try:
        known = recognise(Path(source))
    except (OSError, ValueError):
        return
    if known is not None:
        command = f"{program()} list {known} {shlex.quote(source)} -o {known}.csv"
        print(
            f"{program()} build: {source} looks like a dataset with labels and splits of its own: {command} lists them "
            "in a table, and says how to pack it",
            file=sys.stderr,
        )


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"expected TOML, {found_instead(error)}", place=path) from error
    chosen = {key.replace("-", "_"): value for key, value in document.items()}
    try:
        refuse_unknown(chosen, OPTION_NAMES)
    except UsageError as error:
        raise UsageError(error, place=path) from error
    return chosen
