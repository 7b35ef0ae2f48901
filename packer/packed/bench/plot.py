"""The chart of `packer bench`."""

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from packer.packed.bench.report import BenchReport
from packer.workspace.output import write_output
from shardspec.wording import counted

_RAW, _PACKED = "#b0413e", "#2f6690"
_LEAST_EPOCHS = 5


def plot(report: BenchReport, path: Path) -> None:
    """Draw samples per second, and the time spent on data, packing included, over the epochs.

    Raises
    ------
    BuildError
        If the file cannot be written.
    """
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
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix.lower().removeprefix("."))
    write_output(path, file.getvalue())
