"""What reading and the detector should reach, and whether a run did.

A target is a line of `TARGETS`; the figures come from the JSON. If both rows are in one group, ratios are taken round
by round. If the other loader is in another group of the same run, each is first divided by the limit, which is in both.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A row that should reach something.

    Attributes
    ----------
    what : str
        Its name in the table.
    kind, ours : str
        Beginning of the group's name, and the row's name.
    limit : str
        The row it is measured by.
    of_limit : float or None
        Least share of the limit; None for no such target.
    times : float or None
        Least ratio to the other loader; None for no such target.
    other : str
        That loader; empty: the best of them all.
    """

    what: str
    kind: str
    ours: str
    limit: str = "gather, reused buffers"
    of_limit: float | None = None
    times: float | None = None
    other: str = ""

    def __str__(self) -> str:
        asked = [] if self.of_limit is None else [f"≥ {self.of_limit:g} of the limit"]
        asked += [] if self.times is None else [f"≥ {self.times:g} × {self.other or 'the best other'}"]
        return ", ".join(asked)


_PHOTO = "decode, smallest sufficient scale"
_REFERENCE = "DataLoader over files"
TARGETS = (
    Target("raw, npy", "raw", "Loader, npy", of_limit=0.9),
    Target("raw, npy, long epochs", "raw, epochs of", "Loader, npy", of_limit=0.9, times=1.15, other="FFCV"),
    Target("raw, npy, fresh memory", "raw", "Loader, npy, fresh", "gather, fresh memory", of_limit=0.9),
    Target("raw, LMDB", "raw", "Loader, lmdb", of_limit=0.6),
    Target("raw, TFRecord, checked", "raw", "Loader, tfrecord, blocks", of_limit=0.25),
    Target("raw, TFRecord, unchecked", "raw", "Loader, tfrecord, blocks, unchecked", of_limit=0.35),
    Target("raw, Parquet, checked", "raw", "Loader, parquet, blocks", of_limit=0.18),
    Target("raw, Parquet, unchecked", "raw", "Loader, parquet, blocks, unchecked", of_limit=0.35),
    Target("raw, HDF5, checked", "raw", "Loader, hdf5, blocks", of_limit=0.12),
    Target("raw, HDF5, unchecked", "raw", "Loader, hdf5, blocks, unchecked", of_limit=0.35),
    Target("raw, DataLoader over npy", "raw", "DataLoader over npy", times=1.0, other="DataLoader over a memmap"),
    Target("JPEG crops, npy", "jpeg", "Loader, npy", "decode", of_limit=0.95),
    Target("JPEG crops, LMDB", "jpeg", "Loader, lmdb", "decode", of_limit=0.95),
    Target("JPEG crops, npy, fast", "jpeg", "Loader, npy, fast", "decode, fast", 0.95, 1.1, "FFCV"),
    Target("photos of 256, npy", "photo", "Loader, npy", _PHOTO, times=1.3),
    Target("photos of 256, LMDB", "photo", "Loader, lmdb", _PHOTO, times=1.3),
    Target("photos, jitter, the reference", "photo, jitter", "Loader, npy", _PHOTO, times=3.0, other=_REFERENCE),
    Target("photos, jitter", "photo, jitter", "Loader, npy", _PHOTO, times=2.5),
    Target("photos, RandAugment", "photo, randaugment", "Loader, npy", _PHOTO, times=3.0, other=_REFERENCE),
    Target("photos of 500, npy", "photo500", "Loader, npy", _PHOTO, of_limit=0.9, times=2.0),
    Target("photos of 500, LMDB", "photo500", "Loader, lmdb", _PHOTO, of_limit=0.9, times=2.0),
    Target("photos of 500, npy, restart markers", "photo500", "Loader, npy, restart markers", _PHOTO, 0.9, 2.0),
)

DETECTOR = {"parity, openvino": 4.0, "parity, torch": 2.6, "dataset, openvino": 15.0}
"""Least ratios to facenet-pytorch."""
TWO_PROCESSES = 1.9
"""Least ratio of two processes to one, dataset mode."""


@dataclass(frozen=True)
class Ratio:
    """How much faster one row is than another, by the clock and by processor time."""

    clock: float
    cpu: float | None

    def __str__(self) -> str:
        return f"{self.clock:.2f}" + ("" if self.cpu is None else f" ({self.cpu:.2f})")

    def __truediv__(self, other: "Ratio") -> "Ratio":
        cpu = None if self.cpu is None or other.cpu is None else self.cpu / other.cpu
        return Ratio(self.clock / other.clock, cpu)


def ratio(row: Found, other: Found) -> Ratio:
    """The median of the ratios, round by round, of two rows of one group; by CPU, the ratio of their medians."""
    if len(row["rates"]) == len(other["rates"]):
        clock = statistics.median(a / b for a, b in zip(row["rates"], other["rates"], strict=True))
    else:  # one of them failed in mid-run
        clock = row["median"] / other["median"]
    cpu = other["cpu_ms"] / row["cpu_ms"] if row["cpu_ms"] and other["cpu_ms"] else None
    return Ratio(clock, cpu)


def kind_of(group: str) -> str:
    """A group's name without its number: groups of one kind are separate only to save memory."""
    return group.rsplit(" (", 1)[0] if group.endswith(")") else group


def is_of(group: Found, target: Target) -> bool:
    """Whether a group is of a target's kind; long epochs are a kind of their own, whatever their length."""
    kind = kind_of(group["name"])
    return kind == target.kind or (target.kind.endswith(" of") and kind.startswith(target.kind + " "))


def row_of(group: Found, name: str) -> Found | None:
    """A measured row by its name, None if there is none."""
    return next((row for row in group["rows"] if row["name"] == name and row["rates"]), None)


def others(groups: Sequence[Found], group: Found, mine: Found, name: str) -> Iterator[tuple[Ratio, Found]]:
    """How much faster ours is than each loader of another project (or the named one), in any of the groups."""
    for place in groups:
        for row in place["rows"]:
            if row["ours"] or row["is_limit"] or not row["rates"] or (name and row["name"] != name):
                continue
            if place is group:
                yield ratio(mine, row), row
            elif (here := row_of(group, group["limit"])) and (there := row_of(place, group["limit"])):
                yield ratio(mine, here) / ratio(row, there), row


def judge(target: Target, documents: Sequence[Found]) -> list[str]:
    """The cells of a target's row, of the first document that has it."""
    for found in documents:
        groups = [group for group in found["groups"] if is_of(group, target)]
        for group in groups:
            mine = row_of(group, target.ours)
            if mine is not None:
                return _cells(target, groups, group, mine)
    return [target.what, "", "", "", "", "", str(target), "not measured"]


def _cells(target: Target, groups: Sequence[Found], group: Found, mine: Found) -> list[str]:
    limit = row_of(group, target.limit)
    share = ratio(mine, limit) if limit else None
    beaten = min(others(groups, group, mine, target.other), key=lambda pair: pair[0].clock, default=None)
    asked = []
    if target.of_limit is not None:
        asked.append((share, target.of_limit))
    if target.times is not None:
        asked.append((beaten[0] if beaten else None, target.times))
    return [
        target.what,
        f"{mine['median']:,.0f}",
        f"{beaten[1]['name']} {beaten[1]['median']:,.0f}" if beaten else "",
        str(beaten[0]) if beaten else "",
        f"{limit['median']:,.0f}" if limit else "",
        str(share) if share else "",
        str(target),
        _verdict(asked),
    ]


def _verdict(asked: Sequence[tuple[Ratio | None, float]]) -> str:
    known = [(found, least) for found, least in asked if found is not None]
    if len(known) < len(asked):
        return "not measured"
    clock = all(found.clock >= least for found, least in known)
    cpu = all(found.cpu is None or found.cpu >= least for found, least in known)
    word = "yes" if clock else "**no**"
    return word if clock == cpu else f"{word}; by CPU {'yes' if cpu else 'no'}"


def targets_table(documents: Sequence[Found]) -> str:
    """All targets of reading as a Markdown table, ratios by the clock and in brackets by processor time."""
    lines = [
        "| what | ours | best other | ours over it (by CPU) | limit | of the limit (by CPU) | target | met |",
        "|---|--:|---|--:|--:|--:|---|---|",
    ]
    return "\n".join(lines + [f"| {' | '.join(judge(target, documents))} |" for target in TARGETS])


def detector_table(runs: Sequence[Found]) -> str:
    """Ratios to facenet-pytorch, runs side by side, beside the targets."""
    lines = ["| | CPU time | clock | target |", "|---|---|---|--:|"]
    for row in runs[0]["rows"][1:]:
        name = row["contender"]
        same = [r for run in runs for r in run["rows"] if r["contender"] == name]
        by_cpu, by_clock = (", ".join(f"{r[key]:.1f}" for r in same) for key in ("cpu_ratio", "ratio"))
        lines.append(f"| {name} | {by_cpu} | {by_clock} | {DETECTOR.get(name, ''):{'g' if name in DETECTOR else ''}} |")
    rates = [run["process_rates"] for run in runs]
    found = ", ".join(f"{rate['2'] / rate['1']:.2f}" for rate in rates)
    lines.append(f"| two processes over one, dataset mode | | {found} | {TWO_PROCESSES:g} |")
    return "\n".join(lines)
