"""The base of the reading benchmarks: contenders measured in turn, statistics, the machine, and the JSON.

The method is in ``benchmarks/README.md``.
"""

import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, ContenderError

LIBRARIES = ("numpy", "torch", "simplejpeg", "lmdb", "pyarrow", "h5py", "opencv-python-headless")

_NUMBERS = ("median", "low", "high", "of_limit", "cpu_ms", "memory_mb", "disk_mb", "pack_s", "order_correlation")


@dataclass
class Entry:
    """One row of a group: a contender's name and how its process is started.

    Attributes
    ----------
    arm : str
        ``module:function`` that makes the arm (`benchmarks.contender`).
    options : dict
        Its arguments.
    is_limit : bool
        Whether it is not a loader, but shows what the machine can do.
    checked : bool
        Whether the warm-up epoch compares every sample with the source.
    facts : dict
        Figures that are known already: ``pack_s``, ``disk_mb``.
    """

    name: str
    arm: str
    options: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    is_limit: bool = False
    checked: bool = True
    facts: dict[str, float] = field(default_factory=dict)


def measure_group(
    name: str, entries: Sequence[Entry], rounds: int, settle: int = 0, timeout_s: float = 180.0
) -> dict[str, Any]:
    """Start every contender, warm each up for a checked epoch, then measure them in turn, round after round.

    Before each measured epoch, `settle` others are run, for machines that reclaim memory which was idle during the
    turns of the other contenders. All rates are also given as fractions of the first entry that is a limit, round by
    round.

    Returns
    -------
    dict
        A group of the document. A contender that fails keeps its error and no rates.
    """
    rows = [_empty_row(entry) for entry in entries]
    contenders: list[Contender | None] = [None] * len(entries)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Contender(entry.arm, entry.options, timeout_s)) for entry in entries]
        for i, (entry, contender) in enumerate(zip(entries, started, strict=True)):
            try:
                warm = contender.epoch(0, check=entry.checked)
                rows[i]["order_correlation"] = warm.get("order_correlation")
                contenders[i] = contender
            except ContenderError as error:
                rows[i]["error"] = str(error)
                print(f"{entry.name}: {error}", flush=True)
        cpu: list[list[float]] = [[] for _ in entries]
        for number in range(1, rounds + 1):
            for i, contender in enumerate(contenders):
                if contender is None:
                    continue
                try:
                    for _ in range(settle):
                        contender.epoch(number)
                    found = contender.epoch(number)
                except ContenderError as error:
                    rows[i]["error"], contenders[i] = str(error), None
                    continue
                rows[i]["rates"].append(found["samples"] / found["seconds"])
                rows[i]["memory_mb"] = max(rows[i]["memory_mb"] or 0.0, found["memory_mb"])
                cpu[i].append(1e3 * found["cpu_s"] / found["samples"])
    limit = next((row for row in rows if row["is_limit"] and row["rates"]), None)
    for row, spent in zip(rows, cpu, strict=True):
        summarise(row, limit)
        row["cpu_ms"] = statistics.median(spent) if spent else None
    return {"name": name, "limit": "" if limit is None else limit["name"], "rows": rows}


def _empty_row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "ours": entry.ours, "is_limit": entry.is_limit, "rates": [], "error": ""}
    return row | dict.fromkeys(_NUMBERS) | entry.facts


def summarise(row: dict[str, Any], limit: dict[str, Any] | None) -> None:
    """Median, lowest and highest of a row's rates, and the median of its ratios to the limit in the same round."""
    rates = row["rates"]
    if not rates:
        return
    row["median"], row["low"], row["high"] = statistics.median(rates), min(rates), max(rates)
    if limit is not None and len(limit["rates"]) == len(rates):
        row["of_limit"] = statistics.median(a / b for a, b in zip(rates, limit["rates"], strict=True))


def document(benchmark: str, settings: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything that a run found, with the machine and versions."""
    return {
        "benchmark": benchmark,
        "time_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(LIBRARIES),
        "settings": settings,
        "groups": list(groups),
    }


def artefact(path: Path | None, benchmark: str) -> Path | None:
    """Where a run's JSON goes: the path, or, if that is a folder, a new file in it, named by commit and time."""
    if path is None or not path.is_dir():
        return path
    now = datetime.datetime.now(datetime.UTC)
    return path / f"{benchmark}-{_commit()[:12]}-{now:%Y%m%dT%H%M%S}.json"


def write(found: dict[str, Any], path: Path | None) -> None:
    """Write a document as JSON."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Versions and hardware that the figures depend on."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "load": os.getloadavg()[0],
    }


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """The installed versions; libraries that are not installed are left out."""
    found = {}
    for name in libraries:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def disk_mb(path: Path) -> float:
    """Bytes of a file or folder, in MB."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files) / 1e6


def _commit() -> str:
    """The commit that ran, followed by ``-dirty`` if files differ from it."""
    root = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Median, least and largest; None if a run gave no figure."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return {"median": statistics.median(known), "low": min(known), "high": max(known)}


def without_start(run: Mapping[str, Any]) -> float | None:
    """Seconds of a run beyond its start, which was timed separately; None if that took as long as the whole run."""
    seconds: float = run["s"] - run["start_s"]
    return seconds if seconds > 0 else None


def per(value: float | None, of: float | None) -> float | None:
    """A ratio; None without one of its figures."""
    return None if value is None or of is None else value / of
