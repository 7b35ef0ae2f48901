"""``packer preview DATASET -o SHEET.png``."""

import argparse

from packer.cli.arguments import add_output_arguments, print_result
from packer.packed.preview import DEFAULT_CELL, DEFAULT_COUNT, preview


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, the sheet, and the choice of what is shown."""
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "-o", "--out", metavar="SHEET.png", required=True, help="file of the sheet; replaced if it exists"
    )
    parser.add_argument(
        "--count", metavar="N", type=int, default=DEFAULT_COUNT, help=f"samples to show (default {DEFAULT_COUNT})"
    )
    parser.add_argument("--all", action="store_true", help="show all samples from --start on")
    parser.add_argument("--start", metavar="ROW", type=int, default=0, help="first row to show (default 0)")
    parser.add_argument("--seed", metavar="N", type=int, help="show rows drawn at random from this seed")
    parser.add_argument("--columns", metavar="N", type=int, help="pictures per row of the sheet")
    parser.add_argument(
        "--cell",
        metavar="PX",
        type=int,
        default=DEFAULT_CELL,
        help=f"side of a picture, in pixels (default {DEFAULT_CELL})",
    )
    parser.add_argument("--plain", action="store_true", help="do not draw landmarks, hull and regions")
    parser.add_argument(
        "--where",
        metavar="EXPRESSION",
        help="show only the samples that meet it, such as \"label == 'fake' and score < 0.97\"",
    )
    parser.add_argument(
        "--one-per",
        metavar="FIELD",
        help="show one sample for each value of this field, such as source: the middle one",
    )
    parser.add_argument(
        "--masks",
        choices=("beside", "over"),
        help="show masks and other further pictures, beside the picture, or tinting it (default: they are not shown)",
    )
    parser.add_argument("--rejects", action="store_true", help="show rejected items instead, drawn from --source")
    parser.add_argument(
        "--source", metavar="FOLDER", help="the folder, or the archive, that the dataset was packed from"
    )
    parser.add_argument(
        "--transform",
        metavar="MODULE:NAME",
        help="show the samples as this transform of readers leaves them, seeded by --seed: my_aug:train of a file "
        "my_aug.py in the current folder",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the sheet."""
    result = preview(
        options.dataset,
        options.out,
        count=options.count,
        all=options.all,
        start=options.start,
        seed=options.seed,
        columns=options.columns,
        cell=options.cell,
        plain=options.plain,
        where=options.where,
        one_per=options.one_per,
        masks=options.masks,
        rejects=options.rejects,
        source=options.source,
        transform=options.transform,
        progress=not options.quiet,
    )
    print_result(options, result)
    return 0
