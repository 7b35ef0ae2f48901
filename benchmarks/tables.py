"""The Markdown tables of the docs, made of the JSON files that the benchmarks write.

    python -m benchmarks.tables peers.json readers.json cold.json       # every group of every file
    python -m benchmarks.tables detector-1.json detector-2.json         # runs of the detector come side by side
    python -m benchmarks.tables peers-raw.json peers-jpeg.json          # and one table of the loaders in both files

Limits are set in italics, this project's rows in bold. The scripts print their tables by the same functions.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]

READING = ("readers", "peers", "cold", "larger", "limits")
"""Benchmarks whose document is that of `benchmarks.measure`."""
COLUMNS = ("of the limit", "CPU ms/sample", "of the limit by CPU", "memory MB", "disk MB", "pack s", "order")


def reading_table(group: Found) -> str:
    """A group of a reading benchmark: rates, ratios to the group's limit, memory, packing."""
    limit = next((row for row in group["rows"] if row["name"] == group["limit"]), None)
    lines = [f"| loader | samples/s | {' | '.join(COLUMNS)} |", "|---|---" + "|--:" * len(COLUMNS) + "|"]
    for row in group["rows"]:
        name = f"*{row['name']}*" if row["is_limit"] else f"**{row['name']}**" if row["ours"] else row["name"]
        if not row["rates"]:
            lines.append(f"| {name} | {_failure(row)} |" + " |" * len(COLUMNS))
            continue
        by_cpu = limit["cpu_ms"] / row["cpu_ms"] if limit and limit["cpu_ms"] and row["cpu_ms"] else None
        cells = [
            f"{row['median']:,.0f} ({row['low']:,.0f}–{row['high']:,.0f})",
            _number(row["of_limit"], 2),
            _number(row["cpu_ms"], 3),
            _number(by_cpu, 2),
            _number(row["memory_mb"], 0),
            _number(row["disk_mb"], 0),
            _number(row["pack_s"], 1),
            _number(row["order_correlation"], 2),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _failure(row: Found) -> str:
    """The last line of a row's error, as a cell."""
    text: str = (row["error"].strip().splitlines() or ["failed"])[-1]
    return _cell(text)


def _cell(text: str) -> str:
    return text[:120].replace("|", "/")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"  # no minus before a rounded zero


def faces_table(found: Found) -> str:
    """Table of the faces that each contender of the detector's benchmark found, compared with the first."""
    lines = [
        "| | ms/frame: median, best | faces ≥ 40 px: missing, extra of | p > .95: missing of "
        "| shorter side ≥ 40 px: missing of | IoU mean, least | points, px at most |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        "| {contender} | {ms:.1f}, {best_ms:.1f} | {missing}, {extra} of {faces} | {sure_missing} of {sure_faces} "
        "| {sure_square_missing} of {sure_square_faces} "
        "| {iou_mean:.5f}, {iou_min:.3f} | {points_max:.4f} |".format(**row)
        for row in found["rows"]
    ]
    return "\n".join(lines)


def detector_table(runs: Sequence[Found]) -> str:
    """Ratios to facenet-pytorch, runs side by side."""
    lines = ["| | CPU time | clock |", "|---|---|---|"]
    for row in runs[0]["rows"][1:]:
        same = [r for run in runs for r in run["rows"] if r["contender"] == row["contender"]]
        by_cpu, by_clock = (", ".join(f"{r[key]:.1f}" for r in same) for key in ("cpu_ratio", "ratio"))
        lines.append(f"| {row['contender']} | {by_cpu} | {by_clock} |")
    rates = ", ".join(f"{run['process_rates']['2'] / run['process_rates']['1']:.2f}" for run in runs)
    return "\n".join([*lines, f"| two processes over one, dataset mode | | {rates} |"])


def images_table(group: Found) -> str:
    """A way of packing images; ratios without the start are in brackets, CPU and memory are of both kinds of process."""
    lines = [
        f"**{group['kind']}**, {group['samples']:,} samples",
        "",
        "| | workers | samples/s | of the first row | by CPU | of one worker | start, s | CPU s | peak MB |",
        "|---|" + "--:|" * 8,
    ]
    for row in group["rows"]:
        if "rates" not in row:
            lines.append(f"| {row['name']} | {row['workers']} | {_cell(row['runs'][0].get('error', ''))} |" + " |" * 6)
            continue
        cells = [f"{row['rates']['median']:,.0f} ({row['rates']['low']:,.0f}–{row['rates']['high']:,.0f})"]
        for name in ("ratio", "cpu_ratio", "scaling"):
            found = row.get(f"{name}_without_start")
            bare = "" if found is None else f" ({found['median']:.2f})"
            cells.append(f"{row[name]['median']:.2f}{bare}" if name in row else "")
        cells.append(f"{row['start_s']:.1f}")
        cells.append(f"{row['own_cpu_s']:.1f} + {row['workers_cpu_s']:.1f}")
        cells.append(f"{row['own_peak_mb']:.0f}, {row['workers_peak_mb']:.0f}")
        lines.append(f"| {row['name']} | {row['workers']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def clips_table(group: Found) -> str:
    """Ways of reading clips; ratios are to the first row, round by round."""
    columns = ("frames/s", "CPU ms per frame", "of the first row", "MB")
    lines = [f"| way of reading | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    first = group["rows"][0]
    for row in group["rows"]:
        name = f"**{row['name']}**" if row["ours"] else row["name"]
        if not row["rates"]:
            lines.append(f"| {name} | {_failure(row)} |" + " |" * (len(columns) - 1))
            continue
        ratios = [a / b for a, b in zip(row["rates"], first["rates"], strict=False)]
        cells = [
            f"{row['median']:,.0f} ({row['low']:,.0f}–{row['high']:,.0f})",
            _number(row["cpu_ms"], 3),
            _median(ratios, 2),
            _number(row["disk_mb"], 1),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates_table(found: Found) -> str:
    """The build of faces beside the loop."""
    lines = ["| workers | | frames/s | without the start | start, s | CPU ms per frame |", "|---|---|" + "--:|" * 4]
    for group in found["groups"]:
        for name in ("loop", "build"):
            row = group[name]
            cells = [
                f"{row['frames_per_s']:.2f}", _number(row["frames_per_s_without_start"], 2), f"{row['start_s']:.1f}",
                f"{row['cpu_ms_per_frame']:.0f}",
            ]  # fmt: skip
            lines.append(f"| {group['workers']} | {name} | {' | '.join(cells)} |")
        ratios = [_ratio(group[name]) for name in ("ratio", "ratio_without_start", "cpu_ratio")]
        lines.append(f"| {group['workers']} | **ratio** | {ratios[0]} | {ratios[1]} | | {ratios[2]} |")
    return "\n".join(lines)


def stages_table(found: Found) -> str:
    """Where the build of faces and the loop spend their time."""
    names = list(found["stages"]["loop"])
    lines = [f"| CPU ms per sampled frame | {' | '.join(names)} | all |", "|---|" + "--:|" * (len(names) + 1)]
    for name, row in found["stages"].items():
        numbers = " | ".join(f"{row[stage]:.1f}" for stage in names)
        lines.append(f"| {name} | {numbers} | {sum(row.values()):.1f} |")
    return "\n".join(lines)


def remote_tables(groups: Sequence[Found]) -> list[str]:
    """The loaders over a dataset on a server: with an empty and a full cache, and with one that is too small."""
    columns = ("of the link", "first batch, s", "in shards", "full cache, samples/s", "of local")
    lines = [f"| data | loader | {' | '.join(columns)} |", "|---|---" + "|--:" * len(columns) + "|"]
    small = ["| data | loader | shards | downloads of each in an epoch, and in the next |", "|---|---|--:|--:|"]
    for group in groups:
        for row in group["rows"]:
            name = f"{group['name']} | **{row['name']}**" if row["ours"] else f"{group['name']} | {row['name']}"
            if "epochs" in row:
                small.append(f"| {name} | {row['shards']} | {', '.join(f'{one:.1f}' for one in row['epochs'])} |")
            elif not row["of_link"]:
                lines.append(f"| {name} | {_failure(row)} |" + " |" * (len(columns) - 1))
            else:
                digits = {"of_link": 2, "first_s": 2, "first_shards": 1, "warm": 0, "of_local": 2}
                lines.append(f"| {name} | {' | '.join(_median(row[key], many) for key, many in digits.items())} |")
    return ["\n".join(table) for table in (lines, small) if len(table) > 2]


def _median(values: Sequence[float], digits: int) -> str:
    """The median, with the least and the largest value; nothing of no values."""
    if not values:
        return ""
    low, middle, high = (f"{f(values):,.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low}–{high})"


def _ratio(found: Mapping[str, float] | None) -> str:
    return "" if found is None else f"{found['median']:.1f} ({found['low']:.1f} to {found['high']:.1f})"


def augment_table(rows: Sequence[Found], head: str) -> str:
    """Table of the cost of transforms."""
    lines = [f"| {head} | CPU µs a sample | by the clock, median (10 % to 90 %) |", "|---|--:|--:|"]
    for row in rows:
        clock = f"{row['us_median']:.0f} ({row['us_p10']:.0f} to {row['us_p90']:.0f})"
        lines.append(f"| {row['transform']} | {row['cpu_us_median']:.0f} | {clock} |")
    return "\n".join(lines)


def augment_tables(found: Found) -> list[str]:
    """Tables of the cost of transforms of one sample, and of batches."""
    size, device = found["size"], "one CPU thread" if found["device"] == "cpu" else found["device"]
    return [
        augment_table(found["samples"], f"one sample, {size} px"),
        augment_table(found["batches"], f"batches of {found['batch']}, {size} px, on {device}"),
    ]


def scale_tables(groups: Sequence[Found]) -> list[str]:
    """The tables of the groups of a document: commands, and what readers do."""
    steps = list(itertools.pairwise(groups))
    last = groups[-1]
    many = f"{last['items']:,}"
    spans = [f"µs of CPU an item, {one['items']:,} to {other['items']:,}" for one, other in steps]
    head = [
        "command",
        *spans,
        "of these the coordinator",
        "own bytes an item",
        f"{many}: seconds",
        "peak MB",
        "own MB",
        "own MB of a worker",
    ]
    commands = [_row(*head), "|---|" + (len(spans) + 6) * "--:|"]
    for name, spent in last["commands"].items():
        costs = [_each(one, other, "commands", name, "cpu_s", 1e6) for one, other in steps]
        for key, factor in (("coordinator_cpu_s", 1e6), ("own_bytes", 1)):
            costs += [_each(*step, "commands", name, key, factor) for step in steps[-1:]] or [""]
        sizes = [spent[key] for key in ("coordinator_bytes", "own_bytes", "worker_own_bytes")]
        shown = [f"{size / 1e6:.0f}" if size else "" for size in sizes]
        commands.append(_row(f"`{name}`", *costs, f"{spent['seconds']:.0f}", *shown))
    times = [f"ms, {group['items']:,}" for group in groups]
    head = ["readers", *times, "own bytes an item", f"{many}: own MB", "kept MB"]
    readers = [_row(*head), "|---|" + (len(groups) + 3) * "--:|"]
    for name, spent in last["readers"].items():
        found = [group["readers"].get(name) for group in groups]
        costs = ["" if one is None else f"{1e3 * one['seconds']:.0f}" for one in found]
        costs += [_each(*step, "readers", name, "own_bytes", 1) for step in steps[-1:]] or [""]
        sizes = [f"{spent[key] / 1e6:.0f}" for key in ("own_bytes", "kept_bytes")]
        readers.append(_row(f"`{name}`", *costs, *sizes))
    return ["\n".join(commands), *(["\n".join(readers)] if last["readers"] else [])]


def _each(one: Found, other: Found, what: str, name: str, key: str, factor: float) -> str:
    """Growth of a figure per item, from one number of items to another."""
    if name not in one[what] or name not in other[what]:
        return ""
    return str(round(factor * (other[what][name][key] - one[what][name][key]) / (other["items"] - one["items"])))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def kind_of(group: str) -> str:
    """A group's name without its number: groups of one kind are separate only to save memory."""
    return group.rsplit(" (", 1)[0] if group.endswith(")") else group


def group_text(group: Found) -> str:
    """A group's name and table."""
    return f"**{group['name']}**\n\n{reading_table(group)}"


def compared_table(documents: Sequence[Found]) -> str:
    """Table of loaders by kinds of samples: the median of all rounds, and of the ratios to the limit."""
    rows: dict[str, dict[str, list[Found]]] = {}
    for group in (group for found in documents for group in found["groups"]):
        for row in group["rows"]:
            rows.setdefault(row["name"], {}).setdefault(kind_of(group["name"]), []).append(row)
    kinds = list(dict.fromkeys(kind for by_kind in rows.values() for kind in by_kind))
    lines = [f"| samples/s (of the limit) | {' | '.join(kinds)} |", "|---" + "|--:" * len(kinds) + "|"]
    for name, by_kind in rows.items():
        row = next(iter(by_kind.values()))[0]
        styled = f"*{name}*" if row["is_limit"] else f"**{name}**" if row["ours"] else name
        lines.append(f"| {styled} | {' | '.join(_rate(by_kind.get(kind, ())) for kind in kinds)} |")
    return "\n".join(lines)


def _rate(rows: Sequence[Found]) -> str:
    rates = [rate for row in rows for rate in row["rates"]]
    if not rates:
        return ""
    shares = [row["of_limit"] for row in rows if row["of_limit"] is not None]
    return f"{statistics.median(rates):,.0f} ({statistics.median(shares):.2f})"


TABLES: Mapping[str, Callable[[Found], list[str]]] = {
    "augment": augment_tables,
    "clips": lambda found: [clips_table(group) for group in found["groups"]],
    "detector": lambda found: [faces_table(found)],
    "pack_faces": lambda found: [rates_table(found), stages_table(found)],
    "pack_pictures": lambda found: [images_table(group) for group in found["groups"]],
    "remote": lambda found: remote_tables(found["groups"]),
    "pack_scale": lambda found: scale_tables(found["groups"]),
    **dict.fromkeys(READING, lambda found: [group_text(group) for group in found["groups"]]),
}
"""The tables of a document, by the name of its benchmark."""


def conditions(found: Found) -> str:
    """When and where a document was measured, and with which versions; empty if it does not say."""
    machine, settings = found.get("machine", {}), found.get("settings", {})
    versions = {**found.get("versions", {}), **settings.get("peers", {})}
    parts = [
        str(found.get("time_utc", ""))[:10],
        f"{machine['cores']} cores of {machine['processor']}" if "cores" in machine else "",
        f"load average {machine['load']:.1f} at the end" if "load" in machine else "",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "; ".join(filter(None, parts))


def read_document(path: Path) -> dict[str, Any]:
    """A document of one of the benchmarks.

    Raises
    ------
    SystemExit
        If the file is not one; the message says why.
    """
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: expected the JSON of a benchmark: {error}") from error
    name = found.get("benchmark") if isinstance(found, dict) else None
    if name not in TABLES:
        raise SystemExit(f"{path}: expected the JSON of one of {', '.join(sorted(TABLES))}; found {name!r}")
    return dict(found)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON files")
    options = parser.parse_args()
    documents = {path: read_document(path) for path in options.results}
    detector = [found for found in documents.values() if found["benchmark"] == "detector"]
    reading = [found for found in documents.values() if found["benchmark"] in READING]
    for path, found in documents.items():
        texts = [f"<!-- {path.name} -->", conditions(found), *TABLES[found["benchmark"]](found)]
        print("\n\n".join(filter(None, texts)) + "\n")
    if detector:
        print(detector_table(detector) + "\n")
    if len(reading) > 1:
        print(compared_table(reading) + "\n")


if __name__ == "__main__":
    main()
