"""The results of `packer bench`, as JSON and for people."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from packer.jobs.result import Result
from shardspec.wording import counted


class Run(NamedTuple):
    """Sums over the processes of one side in one run."""

    samples: int
    samples_per_s: float
    cpu_s: float
    bytes: float
    memory_bytes: int

    @classmethod
    def of(cls, answers: Sequence[Mapping[str, Any]]) -> Self:
        """Add up the answers of the processes."""
        # Rates are added, because the time of the slowest process would include the idle time of the others.
        rate = sum(answer["samples"] / answer["seconds"] for answer in answers)
        samples, cpu_s, size, memory = (
            sum(answer[name] for answer in answers) for name in ("samples", "cpu_s", "bytes", "memory_bytes")
        )
        return cls(samples, rate, cpu_s, size, memory)


@dataclass(frozen=True)
class Side:
    """One side of the comparison. Rates and CPU times are medians of the runs.

    Attributes
    ----------
    rates : tuple of float
        Samples per second of each run.
    memory_bytes : int
        Most after a run, without mapped page cache; 0 if the system does not report it.
    file_bytes_per_sample : float
        Bytes of the files that hold a sample, including bytes from the page cache.
    epoch_s, epoch_cpu_s : float
        Times for all samples of the dataset, at these rates.
    """

    samples_per_s: float
    rates: tuple[float, ...]
    cpu_s_per_sample: float
    memory_bytes: int
    file_bytes_per_sample: float
    epoch_s: float
    epoch_cpu_s: float

    @classmethod
    def of_runs(cls, runs: Sequence[Run], samples: int) -> Self:
        """Make a side from its runs, and the number of samples in an epoch."""
        rate = statistics.median(run.samples_per_s for run in runs)
        cpu_s = statistics.median(run.cpu_s / max(1, run.samples) for run in runs)
        return cls(
            samples_per_s=rate,
            rates=tuple(run.samples_per_s for run in runs),
            cpu_s_per_sample=cpu_s,
            memory_bytes=max(run.memory_bytes for run in runs),
            file_bytes_per_sample=sum(run.bytes for run in runs) / max(1, sum(run.samples for run in runs)),
            epoch_s=samples / rate if rate else 0.0,
            epoch_cpu_s=samples * cpu_s,
        )


@dataclass(frozen=True, repr=False)
class BenchReport(Result):
    """Cost of a training epoch with raw files and with the packed dataset.

    Attributes
    ----------
    source, packed, format : str
    same_source : bool
        Whether the source is, file by file, what the dataset was built from.
    workers, batch_size : int
    seconds : float
        Length of a run.
    items, measured_items : int
        Number of items of the source, and of the items that the raw runs used.
    samples : int
        Samples of the dataset: one epoch.
    raw, reading : Side
    recorded_pack_s : float or None
        The time that packing took; None if the manifest does not record it.
    """

    source: str
    packed: str
    format: str
    same_source: bool
    workers: int
    batch_size: int
    seconds: float
    items: int
    measured_items: int
    samples: int
    raw: Side
    reading: Side
    recorded_pack_s: float | None

    @property
    def pack_s(self) -> float:
        """The time that packing took. If it is not recorded, one raw epoch, which does the same work."""
        return self.raw.epoch_s if self.recorded_pack_s is None else self.recorded_pack_s

    @property
    def paid_after_epochs(self) -> float | None:
        """Number of epochs after which packing has cost less than it saved, or None if a raw epoch is no slower."""
        saved_s = self.raw.epoch_s - self.reading.epoch_s
        return self.pack_s / saved_s if saved_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        document = {
            name: value for name, value in vars(self).items() if name not in ("raw", "reading", "recorded_pack_s")
        }
        return {
            **document,
            "runs": len(self.raw.rates),
            "raw": {**vars(self.raw), "rates": list(self.raw.rates)},
            "read": {**vars(self.reading), "rates": list(self.reading.rates)},
            "times_faster": self.reading.samples_per_s / self.raw.samples_per_s,
            "pack_s": self.pack_s,
            "pack_s_recorded": self.recorded_pack_s is not None,
            "paid_after_epochs": self.paid_after_epochs,
        }

    def describe(self) -> str:
        """Return the table, and remarks on it."""
        sides = (self.raw, self.reading)
        rows = [
            ("", "raw", f"packed ({self.format})"),
            ("samples/s", *(_rate(side) for side in sides)),
            ("CPU ms per sample", *(f"{side.cpu_s_per_sample * 1e3:.3g}" for side in sides)),
            ("memory, MB", *(f"{side.memory_bytes / 1e6:,.0f}" if side.memory_bytes else "?" for side in sides)),
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
            if self.recorded_pack_s is not None
            else "estimated as one raw epoch: only a build in one session records it"
        )
        paid = self.paid_after_epochs
        lines = [
            f"Packing took {_figure(self.pack_s)} s ({how}) "
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
