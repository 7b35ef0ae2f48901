"""The image of the docs: samples per second of every loader, made of the JSON files of the reading benchmarks.

    python -m benchmarks.plots peers.json --to docs/images/readers.svg
    python -m benchmarks.plots peers.json readers.json --kinds raw jpeg --to docs/raw.svg

One panel for each kind of samples of each file. A bar is the median of all rounds, its whisker goes from the slowest to
the fastest; a loader that is in several groups of a kind (limits and our Loader are in all) counts with the rounds of
all of them. Dashed lines are limits. Loaders that were not measured are named below their panel. The same files give
the same bytes with the same matplotlib, and the colours are distinct on light and on dark pages.
"""

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.tables import READING, kind_of, read_document

TITLES: Mapping[str, str] = {
    "raw": "Raw crops of 224 × 224",
    "jpeg": "JPEG crops of 224 × 224, decoded",
    "photo": "JPEG photos of 256 × 341, decoded, random crop of 224",
    "photo500": "JPEG photos of 500 × 667, decoded, random crop of 224",
}
_INK, _OURS, _OTHERS = "#7d8590", "#d9730d", "#5b8fc7"
"""Text and frames, bars of this project, bars of others: each has a contrast of 3 and more to white and to GitHub's
dark page.
"""
_DASHES = ((0, (5, 2)), (0, (2, 2)), (0, (1, 3)))
_WIDTH, _NAMES, _ROW, _TITLE, _AXIS, _LINE = 8.9, 2.75, 0.24, 0.35, 0.25, 0.17
"""Inches: the image's width, the names' width, heights of a bar with its gap, of a title, of an axis' numbers, of a
line of text.
"""
_STYLE = {
    "svg.hashsalt": "facepack",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


@dataclass(frozen=True)
class PanelBar:
    """A row of a panel: its name and samples per second of every round."""

    name: str
    ours: bool
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """Samples per second."""
        return statistics.median(self.rates)


@dataclass(frozen=True)
class Panel:
    """One kind of samples: bars from the fastest to the slowest, limits, and the names of what was not measured."""

    title: str
    bars: tuple[PanelBar, ...]
    limits: tuple[PanelBar, ...]
    missing: tuple[str, ...]

    @property
    def lines(self) -> int:
        """Lines of text below it: two limits in one, and what is missing."""
        return -(-len(self.limits) // 2) + bool(self.missing)

    @property
    def inches(self) -> float:
        """Its height with everything around it."""
        return _TITLE + _ROW * len(self.bars) + _AXIS + _LINE * self.lines


def panels_of(found: Mapping[str, Any], kinds: Sequence[str] | None = None) -> list[Panel]:
    """The panels of a document, in the order of its groups; those of some kinds, or all."""
    rows: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for group in found["groups"]:
        kind = kind_of(group["name"])
        if kinds is None or kind in kinds:
            for row in group["rows"]:
                rows.setdefault(kind, {}).setdefault(row["name"], []).append(row)
    return [_panel(kind, names) for kind, names in rows.items()]


def _panel(kind: str, names: Mapping[str, Sequence[Mapping[str, Any]]]) -> Panel:
    bars, limits, missing = [], [], []
    for name, rows in names.items():
        rates = tuple(rate for row in rows for rate in row["rates"])
        if rates:
            (limits if rows[0]["is_limit"] else bars).append(PanelBar(name, rows[0]["ours"], rates))
        else:
            missing.append(name)
    bars.sort(key=lambda bar: -bar.median)
    samples, comma, more = kind.partition(",")
    title = TITLES.get(samples, samples) + comma + more
    return Panel(title, tuple(bars), tuple(limits), tuple(missing))


def draw(axes: Axes, panel: Panel) -> None:
    """Draw a panel."""
    for place, bar in enumerate(panel.bars):
        colour = _OURS if bar.ours else _OTHERS
        spread = [[bar.median - min(bar.rates)], [max(bar.rates) - bar.median]]
        axes.barh(place, bar.median, 0.66, color=colour, alpha=0.45)  # so that its whisker is visible on it
        axes.errorbar(bar.median, place, xerr=spread, fmt="none", ecolor=colour, elinewidth=1.4, capsize=2.5)
        axes.annotate(f"{bar.median:,.0f}", (max(bar.rates), place), (4, 0), textcoords="offset points", va="center")
    for limit, dashes in zip(panel.limits, itertools.cycle(_DASHES), strict=False):
        name = f"limit: {limit.name} {limit.median:,.0f}"
        axes.axvline(limit.median, color=_INK, linestyle=dashes, linewidth=1.2, label=name)
    axes.set_yticks(range(len(panel.bars)), [bar.name for bar in panel.bars])
    for label, bar in zip(axes.get_yticklabels(), panel.bars, strict=True):
        label.set_color(_OURS if bar.ours else _INK)
        label.set_fontweight("bold" if bar.ours else "normal")
    axes.set_ylim(len(panel.bars) - 0.5, -0.5)
    axes.set_title(f"{panel.title}, samples/s", loc="left", fontweight="bold")
    most = [max(bar.rates) for bar in panel.bars] + [limit.median for limit in panel.limits]
    axes.set_xlim(0, 1.13 * max(most))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2)
    below = -_AXIS / (_ROW * len(panel.bars))
    if panel.missing:
        line = -_LINE * (panel.lines - 1) / (_ROW * len(panel.bars))
        axes.text(
            0, below + line, f"not measured: {', '.join(panel.missing)}", transform=axes.transAxes, va="top", fontsize=8
        )
    if panel.limits:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, below),
            ncols=2,
            frameon=False,
            fontsize=8,
            borderpad=0,
            borderaxespad=0,
            labelspacing=0.3,
        )


def plot(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels, one below the other, as SVG on no background."""
    height = sum(panel.inches for panel in panels)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height))
        top = height
        for panel in panels:
            bars = _ROW * len(panel.bars)
            place = (_NAMES / _WIDTH, (top - _TITLE - bars) / height, 1 - (_NAMES + 0.1) / _WIDTH, bars / height)
            axes = figure.add_axes(place)
            axes.patch.set_visible(False)
            draw(axes, panel)
            top -= panel.inches
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON files of the reading benchmarks")
    parser.add_argument("--kinds", nargs="*", help="names of the groups, without their number (default: all)")
    parser.add_argument("--to", type=Path, required=True, metavar="IMAGE.svg")
    options = parser.parse_args()
    panels: list[Panel] = []
    for path in options.results:
        found = read_document(path)
        if found["benchmark"] not in READING:
            raise SystemExit(f"{path}: expected the JSON of one of {', '.join(READING)}; found {found['benchmark']!r}")
        panels += panels_of(found, options.kinds)
    panels = [panel for panel in panels if panel.bars]
    if not panels:
        raise SystemExit("expected a group with a measured loader, found none")
    plot(panels, options.to)


if __name__ == "__main__":
    main()
