"""``packer report``: describe datasets in one HTML file."""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.analysis.duplicates.result import Duplicates
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.browse.columns import spread_over
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.tracks import sound_of_sample
from packer.packed.rejects import rejects
from packer.page.cards import SampleCard, cards
from packer.page.counts import spread
from packer.page.groups import arrange_groups, find_duplicates, show_groups, worst_rows
from packer.page.rendering import inline, render
from packer.page.summary import describe, find_faults, find_shared
from packer.recipe.checks import checked
from packer.sources.stores.packed import partial_folder
from packer.workspace.output import check_output, write_output
from readers.drawing.values import printable
from shardspec.columns import evenly
from shardspec.errors import CodecError, DatasetError, UsageError
from shardspec.layout import given_path
from shardspec.wording import counted

DEFAULT_COUNT = 200
"""Default number of samples in a report."""

_IMAGE_BYTES = 32 * 10**6
"""Maximum size of the images and sounds in each of the report's sections (samples, worst samples, duplicates)."""
_NOT_SPREAD = ("key",)
_GROUPS = 20
"""Groups of duplicates in a report."""
_WORST = 10
"""Samples of each measure in a report."""


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
    duplicates: bool = False,
    progress: bool | ProgressListener = True,
) -> ReportResult:
    """Describe packed datasets in one self-contained HTML file. An existing file is replaced.

    The report shows what was packed and how, with counts, rejects by reason, the distribution of every small field,
    sizes and warnings, and the worst samples of each measure of `packer.compute`. Samples are shown with their stored
    images, and landmarks, outline and regions drawn over them.

    Parameters
    ----------
    datasets : path or sequence of path
        One packed dataset or several, such as the splits of one.
    out : path
        File of the report, ``.html``, in an existing folder outside the datasets.
    count : int
        Samples of each dataset to show, at least 0, drawn evenly over the classes; a class that is smaller than its
        share leaves the rest to the others. Fewer are shown if their images exceed 32 MB. Of a dataset in a store,
        fields that are not in the index are counted in these samples only.
    duplicates : bool
        Whether to search for samples that look the same (`packer.duplicates`), and show the first groups.
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
    paths = [partial_folder(path, "datasets") for path in given]
    check_output(target, ".html", ".htm", datasets=paths)
    count = checked("count", count, int, minimum=0)
    if not paths:
        raise UsageError(expected="a packed dataset or several", found="none")
    opened = list(map(BrowsedDataset, paths))
    listener = listener_of(progress)
    found = find_duplicates(given, listener) if checked("duplicates", duplicates, bool) else None
    with Stage(listener, "reporting", len(opened), "datasets") as stage:
        shown = []
        for dataset in opened:
            shown.append(_show(dataset, count, _IMAGE_BYTES // len(opened)))
            stage.advance()
    shared = list(find_shared(opened))
    style, style_hash = inline("page.css")
    script, script_hash = inline("page.js")
    layers = dict.fromkeys(layer for one in shown for card, *_ in one["cards"] for layer in card.layers)
    page = render(
        "report.html",
        title=", ".join(one["about"]["name"] for one in shown),
        datasets=shown,
        duplicates=None if found is None else _show_duplicates(opened, found),
        shared=shared,
        style=style,
        style_hash=style_hash,
        script=script,
        script_hash=script_hash,
        layer_names=[name for name in ("points", "outline", "regions") if name in layers],
        live=False,
    ).encode("utf-8", "replace")
    write_output(target, page)
    lines = [*shared, *(line for one in shown for line in one["warnings"])]
    return ReportResult(target, len(page), sum(len(one["cards"]) for one in shown), tuple(lines))


def _show_duplicates(opened: Sequence[BrowsedDataset], found: Duplicates) -> dict[str, Any]:
    """Return the first groups, those with different labels before others, with images as data URLs."""
    groups = sorted(arrange_groups(found), key=lambda one: not one.conflict)
    shown = []
    budget = _Budget(_IMAGE_BYTES)
    for group, samples in show_groups(groups[:_GROUPS], lambda number, rows: cards(opened[number], rows)):
        images = [budget.data_url(opened[sample.dataset], sample.row) for sample, _ in samples]
        shown.append((group, [(*both, src, "") for both, src in zip(samples, images, strict=True)]))
    summary = printable(found.describe().partition("\n")[0].rstrip(":"))
    return {"summary": summary, "leaks": found.leaks, "groups": shown, "left": len(groups) - len(shown)}


class _Budget:
    """Bytes of images that a section of the report may still hold."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def data_url(self, dataset: BrowsedDataset, row: int) -> str:
        """Return a stored image as a URL; an empty text if it does not decode, or takes too many bytes."""
        src = _data_url(dataset, row) or ""
        size = len(src) * 3 // 4
        if size > self._left:
            return ""
        self._left -= size
        return src


def _show_worst(dataset: BrowsedDataset, most_bytes: int) -> list[tuple[str, list[tuple[SampleCard, str]]]]:
    """Return the cards of the worst samples of each measure, with images as data URLs."""
    if dataset.picture is None or dataset.is_remote:
        return []
    budget = _Budget(most_bytes)
    return [
        (name, [(card, budget.data_url(dataset, card.row)) for card in cards(dataset, rows, [name])])
        for name, rows in worst_rows(dataset, _WORST)
    ]


def _data_url(dataset: BrowsedDataset, row: int) -> str | None:
    """Return a stored image, or a video that browsers play, as a URL; None if it does not decode."""
    shown = "" if dataset.picture is None else dataset.picture.name
    try:
        image = (dataset.played(row, shown) if shown in dataset.videos else None) or dataset.stored(row)
    except CodecError:
        return None
    return _as_url(image.data, image.media_type)


def _as_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


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
    made = cards(dataset, [row for row, *_ in chosen]) if chosen else []
    return {
        "about": {**describe(dataset), "classes": dataset.classes},
        "warnings": list(find_faults(dataset)),
        "rejects": rejected,
        "spreads": spreads,
        "worst": _show_worst(dataset, most_bytes),
        "cards": [(card, src, sound) for card, (_, src, sound) in zip(made, chosen, strict=True)],
        "left_out": left_out,
    }


def _choose(dataset: BrowsedDataset, count: int) -> list[int]:
    """Choose rows from all over the dataset, taking turns between the classes."""
    if dataset.picture is None or not len(dataset):
        return []
    return spread_over(dataset.labels(), count)


def _embed(dataset: BrowsedDataset, rows: Sequence[int], most_bytes: int) -> tuple[list[tuple[int, str, str]], str]:
    """Return images and sounds as data URLs, ordered by class and row, and a note on samples that were left out."""
    chosen, used, left = [], 0, 0
    for row in rows:
        src, found = _data_url(dataset, row), sound_of_sample(dataset, row)
        sound = "" if found is None else _as_url(found.wav(), "audio/wav")
        size = 0 if src is None else (len(src) + len(sound)) * 3 // 4
        if src is None or used + size > most_bytes:
            left += 1
            continue
        used += size
        chosen.append((row, src, sound))
    labels = dataset.labels()
    chosen.sort(key=lambda pair: (labels[pair[0]], pair[0]))
    return (
        chosen,
        f"{counted(left, 'sample')} left out: images or sounds that are too large, or do not decode" if left else "",
    )
