"""The results of `packer bench`, as JSON and for people."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from packer.jobs.result import Result
from shardspec.wording import counted

_MB = 1e6


@dataclass(frozen=True)
class Side:
    """One side of the comparison. Rates and CPU times are medians of the runs.

    Attributes
    ----------
    rates : tuple of float
        Samples per second of each run.
    peak_bytes : int
        Sum over the processes of the side, without mapped page cache; 0 if the system does not report it.
    file_bytes_per_sample : float
        Bytes of the files that hold a sample, including bytes from the page cache.
    epoch_s, epoch_cpu_s : float
        Times for all samples of the dataset, at these rates.
    """

    samples_per_s: float
    rates: tuple[float, ...]
    cpu_s_per_sample: float
    peak_bytes: int
    file_bytes_per_sample: float
    epoch_s: float
    epoch_cpu_s: float

    @classmethod
    def of_runs(cls, found: Mapping[str, Any], samples: int) -> Self:
        """Make a side from the sums of its runs, and the number of samples in an epoch."""
        rate, cpu_s = statistics.median(found["rates"]), statistics.median(found["cpu_s"])
        measured = max(1, found["samples"])
        return cls(
            samples_per_s=rate,
            rates=tuple(found["rates"]),
            cpu_s_per_sample=cpu_s,
            peak_bytes=found["peak_bytes"],
            file_bytes_per_sample=found["file_bytes"] / measured,
            epoch_s=samples / rate if rate else 0.0,
            epoch_cpu_s=samples * cpu_s,
        )


@dataclass(frozen=True)
class Packing:
    """The time that packing took.

    Attributes
    ----------
    recorded : bool
        Whether the manifest records the time. Otherwise it is estimated as one raw epoch, which does the same work.
    """

    seconds: float
    recorded: bool


@dataclass(frozen=True, repr=False)
class BenchReport(Result):
    """Cost of a training epoch with raw files and with the packed dataset.

    Attributes
    ----------
    source, packed, format : str
    same_source : bool
        Whether the source is, file by file, what the dataset was built from.
    machine : dict
    workers, batch_size : int
    seconds : float
        Length of a run.
    items, measured_items : int
        Number of items of the source, and of the items that the raw runs used.
    samples : int
        Samples of the dataset: one epoch.
    raw, reading : Side
    packing : Packing or None
        None if the manifest does not record it.
    """

    source: str
    packed: str
    format: str
    same_source: bool
    machine: Mapping[str, Any]
    workers: int
    batch_size: int
    seconds: float
    items: int
    measured_items: int
    samples: int
    raw: Side
    reading: Side
    packing: Packing | None

    @property
    def pack(self) -> Packing:
        """The time that packing took, estimated if it is not recorded."""
        return self.packing or Packing(self.raw.epoch_s, recorded=False)

    @property
    def paid_after_epochs(self) -> float | None:
        """Number of epochs after which packing has cost less than it saved, or None if a raw epoch is no slower."""
        saved_s = self.raw.epoch_s - self.reading.epoch_s
        return self.pack.seconds / saved_s if saved_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        document = {name: value for name, value in vars(self).items() if name not in ("raw", "reading", "packing")}
        return {
            **document,
            "machine": dict(self.machine),
            "runs": len(self.raw.rates),
            "raw": {**vars(self.raw), "rates": list(self.raw.rates)},
            "read": {**vars(self.reading), "rates": list(self.reading.rates)},
            "times_faster": self.reading.samples_per_s / self.raw.samples_per_s,
            "pack_s": self.pack.seconds,
            "pack_s_recorded": self.pack.recorded,
            "paid_after_epochs": self.paid_after_epochs,
        }

    def describe(self) -> str:
        """Return the table, and remarks on it."""
        sides = (self.raw, self.reading)
        rows = [
            ("", "raw", f"packed ({self.format})"),
            ("samples/s", *(_rate(side) for side in sides)),
            ("CPU ms per sample", *(f"{side.cpu_s_per_sample * 1e3:.3g}" for side in sides)),
            ("peak memory, MB", *(f"{side.peak_bytes / _MB:,.0f}" if side.peak_bytes else "?" for side in sides)),
            ("file bytes per sample", *(f"{side.file_bytes_per_sample:,.0f}" for side in sides)),
            (f"epoch of {self.samples:,}, s", *(_figure(side.epoch_s) for side in sides)),
            ("its CPU time, s", *(_figure(side.epoch_cpu_s) for side in sides)),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        table = [f"{a:<{widths[0]}}   {b:>{widths[1]}}   {c:>{widths[2]}}" for a, b, c in rows]
        return "\n".join([*table, "", *self._remarks()])

    def _headline(self) -> str:
        raw, packed = (f"{_figure(side.samples_per_s)} samples/s" for side in (self.raw, self.reading))
        return f"{self.source} {raw}, {self.packed} ({self.format}) {packed}"

    def _remarks(self) -> list[str]:
        how = (
            "as the manifest says"
            if self.pack.recorded
            else "estimated as one raw epoch: only a build in one session records it"
        )
        paid = self.paid_after_epochs
        lines = [
            f"Packing took {_figure(self.pack.seconds)} s ({how}) "
            + (
                "and never pays off: reading raw is as fast."
                if paid is None
                else f"and pays off after {paid:.2g} epochs."
            ),
            f"Medians of {counted(len(self.raw.rates), 'run')} of each side in turn (least to most), "
            f"{self.seconds:g} s a run, {counted(self.workers, 'worker')}. "
            f"Raw: {self.measured_items} of {self.items} items, drawn at random, "
            "the recipe's steps in as many processes; "
            "a video's frames are decoded in one pass, which favours the raw side. "
            f"Packed: readers.Loader, all fields, shuffled, batches of {self.batch_size}. "
            "Each side was warmed up before.",
        ]
        if not self.same_source:
            lines.append("The source is not, file by file, what the dataset was built from.")
        return lines


def _rate(side: Side) -> str:
    least, most = _figure(min(side.rates)), _figure(max(side.rates))
    return f"{_figure(side.samples_per_s)} ({least} to {most})"


def _figure(value: float) -> str:
    """Format a number with three or more digits, and without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
