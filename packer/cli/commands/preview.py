"""``packer preview DATASET -o SHEET.png``, or ``-o TRACK.webp --track ROW``."""

import argparse

from packer.cli.arguments import add_output_arguments, call, print_result
from packer.packed.preview import DEFAULT_CELL, DEFAULT_COUNT, preview


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="folder of a packed dataset")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        required=True,
        help="sheet to write (.png), or animation (.webp, with --track); replaced if it exists",
    )
    parser.add_argument(
        "--count", metavar="N", type=int, default=DEFAULT_COUNT, help=f"samples to show (default: {DEFAULT_COUNT})"
    )
    parser.add_argument("--all", action="store_true", help="show all samples from --start on")
    parser.add_argument("--start", metavar="ROW", type=int, default=0, help="first row to show (default: 0)")
    parser.add_argument("--seed", metavar="N", type=int, help="show random rows, drawn with this seed")
    parser.add_argument("--columns", metavar="N", type=int, help="images per row of the sheet")
    parser.add_argument(
        "--cell",
        metavar="PX",
        type=int,
        default=DEFAULT_CELL,
        help=f"side of an image in pixels (default: {DEFAULT_CELL})",
    )
    parser.add_argument("--plain", action="store_true", help="do not draw landmarks, hull and regions")
    parser.add_argument(
        "--where",
        metavar="EXPRESSION",
        help="show only samples that match, such as \"label == 'fake' and score < 0.97\"",
    )
    parser.add_argument(
        "--one-per", metavar="FIELD", help="show the middle sample of each value of this field, such as source"
    )
    parser.add_argument(
        "--track",
        metavar="ROW",
        type=int,
        help="write an animated WebP of the track of this row, with the waveform of its sound",
    )
    parser.add_argument(
        "--masks",
        choices=("beside", "over"),
        help="show masks and other extra images next to the image, or as a tint over it (default: hide them)",
    )
    parser.add_argument("--rejects", action="store_true", help="show rejected items instead, read from --source")
    parser.add_argument("--source", metavar="FOLDER", help="folder or archive that the dataset was packed from")
    parser.add_argument(
        "--transform",
        metavar="MODULE:NAME",
        help="apply a transform of readers first, seeded by --seed, such as my_aug:train for a file my_aug.py in the "
        "current folder",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    print_result(options, call(preview, options))
    return 0
