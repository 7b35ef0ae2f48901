"""``packer report``: describe datasets in one HTML file."""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.browse.columns import spread_over
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.remote import browsed_folder
from packer.packed.rejects import rejects
from packer.page.cards import cards
from packer.page.counts import spread
from packer.page.rendering import inline, render
from packer.page.summary import describe, find_faults, find_shared
from packer.recipe.checks import checked
from packer.workspace.output import check_output, write_output
from shardspec.columns import evenly
from shardspec.errors import CodecError, DatasetError, UsageError
from shardspec.layout import given_path
from shardspec.wording import counted

DEFAULT_COUNT = 200
"""Default number of samples in a report."""

_IMAGE_BYTES = 32 * 10**6
"""Maximum total size of the images in a report, in bytes."""
_NOT_SPREAD = ("key",)


@dataclass(frozen=True, repr=False)
class ReportResult(Result):
    """A report that was written.

    Attributes
    ----------
    path : Path
    bytes : int
    samples : int
        Number of samples in the report.
    warnings : tuple of str
        Warnings in the report.
    """

    path: Path
    bytes: int
    samples: int
    warnings: tuple[str, ...]

    def describe(self) -> str:
        """Describe the file in one line, then list the warnings."""
        head = f"{self.path}: {counted(self.samples, 'sample')} shown, {self.bytes / 1e6:.1f} MB; open it in a browser"
        return "\n".join([head, *(f"  {line}" for line in self.warnings)])

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {"out": str(self.path), "bytes": self.bytes, "samples": self.samples, "warnings": list(self.warnings)}


def report(
    datasets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    count: int = DEFAULT_COUNT,
    progress: bool | ProgressListener = True,
) -> ReportResult:
    """Describe packed datasets in one self-contained HTML file. An existing file is replaced.

    The report shows what was packed and how, with counts, rejects by reason, the distribution of every small field,
    sizes and warnings. Samples are shown with their stored images, and landmarks, outline and regions drawn over them.

    Parameters
    ----------
    datasets : path or sequence of path
        One packed dataset or several, such as the splits of one.
    out : path
        File of the report, ``.html``, in an existing folder outside the datasets.
    count : int
        Samples of each dataset to show, at least 0, drawn evenly over the classes. Fewer are shown if a class is smaller
        than its share, or if their images exceed 32 MB. Of a dataset in a store, fields that are not in the index are
        counted in these samples only.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    ReportResult

    Raises
    ------
    UsageError
        If an argument is invalid, or the folder of the file cannot be written.
    BuildError
        If the disk is full.
    DatasetError
        If a dataset cannot be read.
    """
    target = given_path("out", out)
    given = [datasets] if isinstance(datasets, str | os.PathLike) else datasets
    paths = [browsed_folder(path, "datasets") for path in given]
    check_output(target, ".html", ".htm", datasets=paths)
    count = checked("count", count, int, minimum=0)
    if not paths:
        raise UsageError(expected="a packed dataset or several", found="none")
    opened = list(map(BrowsedDataset, paths))
    with Stage(listener_of(progress), "reporting", len(opened), "datasets") as stage:
        shown = []
        for dataset in opened:
            shown.append(_show(dataset, count, _IMAGE_BYTES // len(opened)))
            stage.advance()
    shared = list(find_shared(opened))
    style, style_hash = inline("page.css")
    script, script_hash = inline("page.js")
    layers = dict.fromkeys(layer for one in shown for card, _ in one["cards"] for layer in card.layers)
    page = render(
        "report.html",
        title=", ".join(one["about"]["name"] for one in shown),
        datasets=shown,
        shared=shared,
        style=style,
        style_hash=style_hash,
        script=script,
        script_hash=script_hash,
        layer_names=[name for name in ("points", "outline", "regions") if name in layers],
        live=False,
    ).encode("utf-8", "replace")
    write_output(target, page)
    found = [*shared, *(line for one in shown for line in one["warnings"])]
    return ReportResult(target, len(page), sum(len(one["cards"]) for one in shown), tuple(found))


def _show(dataset: BrowsedDataset, count: int, most_bytes: int) -> dict[str, Any]:
    if dataset.is_remote:
        dataset.sample = evenly(len(dataset), max(1, count))
    rows = _choose(dataset, count)
    if dataset.sample is not None and rows:  # downloaded in any case
        dataset.sample = np.array(sorted(rows), np.int64)
    names = [name for name in dataset.small_fields if name not in _NOT_SPREAD]
    spreads = [one for one in (spread(dataset, name) for name in names) if one.bars or one.note]
    spreads.sort(key=lambda one: (one.name != "label", one.is_constant))
    try:
        rejected = rejects(dataset.path, progress=False)
    except DatasetError:  # a dataset without reports, written by the user's own program
        rejected = None
    chosen, left_out = _embed(dataset, rows, most_bytes)
    made = cards(dataset, [row for row, _ in chosen]) if chosen else []
    return {
        "about": {**describe(dataset), "classes": dataset.classes},
        "warnings": list(find_faults(dataset)),
        "rejects": rejected,
        "spreads": spreads,
        "cards": [(card, src) for card, (_, src) in zip(made, chosen, strict=True)],
        "left_out": left_out,
    }


def _choose(dataset: BrowsedDataset, count: int) -> list[int]:
    """Choose rows from all over the dataset, taking turns between the classes."""
    if dataset.picture is None or not len(dataset):
        return []
    return spread_over(dataset.labels(), count)


def _embed(dataset: BrowsedDataset, rows: Sequence[int], most_bytes: int) -> tuple[list[tuple[int, str]], str]:
    """Return images as data URLs, ordered by class and row, and a note on images that were left out."""
    chosen, used, left = [], 0, 0
    for row in rows:
        try:
            image = dataset.stored(row)
        except CodecError:
            left += 1
            continue
        if used + len(image.data) > most_bytes:
            left += 1
            continue
        used += len(image.data)
        chosen.append((row, f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"))
    labels = dataset.labels()
    chosen.sort(key=lambda pair: (labels[pair[0]], pair[0]))
    return chosen, f"{counted(left, 'sample')} left out: images that are too large, or do not decode" if left else ""
