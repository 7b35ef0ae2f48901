"""The chart of `packer bench`."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from packer.packed.bench.report import BenchReport
from shardspec.errors import UsageError
from shardspec.wording import counted

_RAW, _PACKED = "#b0413e", "#2f6690"
_LEAST_EPOCHS = 5


class Plot:
    """Draws a comparison: samples per second, and the time spent on data, packing included, over the epochs.

    Parameters
    ----------
    path : Path
        The file of the chart; replaced if it exists.

    Raises
    ------
    UsageError
        If no chart can be written there, because of its suffix or its folder.
    """

    def __init__(self, path: Path) -> None:
        suffixes = Figure().canvas.get_supported_filetypes()
        if path.suffix.lower().lstrip(".") not in suffixes:
            raise UsageError(
                f"{path}: expected a name that ends in one of {', '.join(f'.{name}' for name in suffixes)}"
            )
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: expected a file in an existing folder, found no folder {path.parent}")
        self._path = path

    def __call__(self, report: BenchReport) -> None:
        """Write the chart of a report.

        Raises
        ------
        UsageError
            If it cannot be written.
        """
        _draw(report, self._path)


def _draw(report: BenchReport, path: Path) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    bars, lines = figure.subplots(1, 2)
    for name, side, colour in (("raw", report.raw, _RAW), (f"packed ({report.format})", report.reading, _PACKED)):
        spread = [[side.samples_per_s - min(side.rates)], [max(side.rates) - side.samples_per_s]]
        label = f"{name}: {side.samples_per_s:,.0f}"
        bars.bar([label], [side.samples_per_s], yerr=spread, color=colour, capsize=6)
    bars.set_yscale("log")
    bars.set_ylabel(f"samples/s, {counted(report.workers, 'worker')}")
    paid = report.paid_after_epochs or 0
    epochs = np.linspace(0, max(_LEAST_EPOCHS, 2 * paid), 50)
    lines.plot(epochs, epochs * report.raw.epoch_s, color=_RAW, label="raw")
    lines.plot(
        epochs, report.pack.seconds + epochs * report.reading.epoch_s, color=_PACKED, label="packing, then packed"
    )
    lines.set_xlabel("epochs")
    lines.set_ylabel("seconds of reading")
    lines.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: expected a name that a picture can be written to: {error}") from error
