"""What a build reaches on a cluster: a simulation of measured parts, checked against real runs on this machine.

    python -m benchmarks.cluster_parts --video VIDEO --json parts.json    # what the parts cost (some minutes)
    python -m benchmarks.cluster_runs --parts parts.json --json runs.json # real runs with 1, 2 and 3 nodes on this host
    python -m benchmarks.cluster_model --parts parts.json [--runs runs.json] [--json FILE]

A simulation of discrete events: each worker of each node takes a task, reads its source, computes, publishes its part
and reports it; the coordinator, the server of the metadata and the disks serve one request after another. What a
computer does (the work on an item, a message, the plan, the cut, a shard) takes what `cluster_parts` has measured;
how many operations each step asks of the file system was counted by strace; what such an operation takes on a shared
file system, and how much that serves in all, is assumed (`Shared`). Tasks and shards are cut as the planner cuts them.

*Of linear* is the time on one node, divided by the number of nodes and by the time. What the limit is, `limit` says;
what no design could exceed on such a cluster, `possible`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster_simulation import (
    CORES,
    LOCAL,
    WAYS,
    Build,
    Cluster,
    Shared,
    limit,
    possible,
    simulate,
)
from benchmarks.measure import machine
from packer.builds.planning.plan import VIDEO_WEIGHT

NODES = (1, 4, 16, 64, 256)
SHOWN = 64
"""The number of nodes whose stages are shown, and whose sensitivity."""

SENSITIVITY: Mapping[str, Mapping[str, Any]] = {
    "as assumed": {},
    "2 ms": {"shared": Shared(latency_s=2e-3)},
    "0.1 ms": {"shared": Shared(latency_s=0.1e-3)},
    "5,000 operations/s": {"shared": Shared(operations_per_s=5_000)},
    "100,000 operations/s": {"shared": Shared(operations_per_s=100_000)},
    "2 GB/s": {"shared": Shared(bytes_per_s=2e9)},
    "50 GB/s": {"shared": Shared(bytes_per_s=50e9)},
    "200,000 operations/s, 100 GB/s": {"shared": Shared(operations_per_s=200_000, bytes_per_s=100e9)},
}
"""Two values, or more, of each assumption that matters."""


def builds(found: Mapping[str, Any]) -> dict[str, Build]:
    """The builds of the table, from the measured parts."""
    units, starts = found["units"], found["starts"]
    faces, kept, resized = units["faces"], units["kept"], units["resized"]
    frames = 300

    def videos(every: int) -> Build:
        sampled = frames / every
        return Build(
            100_000,
            frames * faces["decode_s"] + sampled * faces["frame_s"],
            0.25,
            4e6,
            sampled * faces["bytes_a_frame"],
            sampled * faces["rows_a_frame"],
            VIDEO_WEIGHT,
            starts["faces"],
        )

    def pictures(unit: Mapping[str, float]) -> Build:
        return Build(1_281_167, unit["item_s"], 0.5, 110e3, unit["bytes"], 1.0, 1, starts["images"])

    return {
        "faces, every 10th frame": videos(10),
        "faces, every frame": videos(1),
        "ImageNet, size 256": pictures(resized),
        "ImageNet, bytes kept": pictures({**kept, "bytes": 110e3}),
    }


def _row(asked: tuple[str, Build, str, Cluster, Sequence[int], Mapping[str, Any], bool]) -> list[dict[str, Any]]:
    name, build, way, cluster, nodes, found, limits = asked
    made = []
    alone = simulate(build, replace(cluster, nodes=1), way, found)
    for count in nodes:
        here = replace(cluster, nodes=count)
        times = alone if count == 1 else simulate(build, here, way, found)
        row = {"build": name, "way": way, "nodes": count, **times}
        row["linear"] = alone["s"] / (count * times["s"])
        row["possible"] = possible(build, here, alone["s"])
        if limits:
            row["limit"] = "" if count == 1 else limit(build, here, way, found, alone, times)
        made.append(row)
    return made


def rows(
    found: Mapping[str, Any],
    cluster: Cluster,
    nodes: Sequence[int],
    *,
    limits: bool = True,
    only: tuple[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The rows of the table: every build, in both ways, with so many nodes."""
    asked = [
        (name, build, way, cluster, nodes, found, limits)
        for name, build in builds(found).items()
        for way in WAYS
        if only in (None, (name, way))
    ]
    if len(asked) == 1:
        return _row(asked[0])
    with ProcessPoolExecutor(2) as pool:
        return [row for made in pool.map(_row, asked) for row in made]


def _share(asked: tuple[Build, Cluster, str, Mapping[str, Any]]) -> float:
    build, cluster, way, found = asked
    alone, many = (simulate(build, replace(cluster, nodes=count), way, found)["s"] for count in (1, cluster.nodes))
    return alone / (cluster.nodes * many)


def sensitivity(
    found: Mapping[str, Any], cluster: Cluster, nodes: int, only: str | None = None
) -> list[dict[str, Any]]:
    """How the share of linear depends on what is assumed."""
    chosen = [(name, build, way) for name, build in builds(found).items() for way in WAYS if only in (None, name)]
    asked = [
        (build, replace(cluster, nodes=nodes, **change), way, found)
        for _, build, way in chosen
        for change in SENSITIVITY.values()
    ]
    with ProcessPoolExecutor(2) as pool:
        shares = iter(list(map(_share, asked)) if only else list(pool.map(_share, asked)))
    return [
        {"build": name, "way": way, "nodes": nodes, "linear": {said: next(shares) for said in SENSITIVITY}}
        for name, _, way in chosen
    ]


def checks(found: Mapping[str, Any], runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The real runs beside what the simulation says of them."""
    made = []
    for run in runs["runs"]:
        build = Build(**run["build"])
        cluster = Cluster(run["nodes"], LOCAL, cores=runs["machine"]["cores"])
        foreseen = simulate(build, cluster, run["way"], {**found, **runs["parts"]})
        begins = foreseen["plan_s"] if run["way"] == "srun" else 0.0
        ends = foreseen["commit_s"] if run["way"] == "srun" else 0.0
        model_s = begins + foreseen["tasks_s"] + foreseen["cut_s"] + foreseen["shards_s"] + ends
        made.append({**run, "tasks": foreseen["tasks"], "model_s": model_s, "deviation": model_s / run["s"] - 1})
    return made


def table(found: Mapping[str, Any]) -> list[str]:
    """The tables of a document."""
    return [
        _model_table(found["rows"]),
        _stages_table(found["rows"], SHOWN),
        _sensitivity_table(found["sensitivity"]),
        _check_table(found["checks"]),
    ]


def _model_table(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each build and way of working: seconds in all and share of linear by the number of nodes."""
    nodes = sorted({row["nodes"] for row in found})
    lines = [f"| build | way | {' | '.join(map(str, nodes))} |", "|---|---|" + "---|" * len(nodes)]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["build"], row["way"]), []).append(row)
    for key, made in groups.items():
        cells = [
            f"{_seconds(row['s'])} s" + (f", {row['linear']:.2f}, {row['limit']}" if row["limit"] else "")
            for row in made
        ]
        lines.append(f"| {' | '.join((*key, *cells))} |")
    return "\n".join(lines)


def _stages_table(found: Sequence[Mapping[str, Any]], nodes: int) -> str:
    lines = [
        "| build | way | plan | tasks | cut | shards, commit | in all | of linear | at most |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found:
        if row["nodes"] == nodes:
            times = [row["plan_s"], row["tasks_s"], row["cut_s"], row["shards_s"] + row["commit_s"], row["s"]]
            shares = [f"{row[name]:.2f}" for name in ("linear", "possible")]
            lines.append(f"| {' | '.join((row['build'], row['way'], *map(_seconds, times), *shares))} |")
    return "\n".join(lines)


def _sensitivity_table(found: Sequence[Mapping[str, Any]]) -> str:
    names = list(SENSITIVITY)
    lines = [f"| build | way | {' | '.join(names)} |", "|---|---|" + "--:|" * len(names)]
    for row in found:
        shares = [f"{row['linear'][name]:.2f}" for name in names]
        lines.append(f"| {row['build']} | {row['way']} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _check_table(found: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| way | nodes × workers | tasks | measured, s | model, s | deviation |", "|---|--:|--:|--:|--:|--:|"]
    for row in found:
        size = f"{row['nodes']} × {row['build']['workers']}"
        times = f"{row['s']:.1f} | {row['model_s']:.1f} | {row['deviation']:+.0%}"
        lines.append(f"| {row['way']} | {size} | {row['tasks']:.0f} | {times} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=Path, required=True, help="the JSON of benchmarks.cluster_parts")
    parser.add_argument("--runs", type=Path, help="the JSON of benchmarks.cluster_runs")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--steps-per-s", type=float, default=100.0, help="steps that Slurm starts in a second")
    parser.add_argument("--json", type=Path, help="write everything here")
    options = parser.parse_args()
    measured = json.loads(options.parts.read_text())
    found, cluster = measured["parts"], Cluster(1, steps_per_s=options.steps_per_s)
    runs = json.loads(options.runs.read_text()) if options.runs else {"runs": [], "parts": {}}
    document = {
        "benchmark": "cluster_model",
        "machine": measured.get("machine", machine()),
        "versions": measured.get("versions", {}),
        "settings": {"shared": asdict(Shared()), "steps_per_s": options.steps_per_s, "cores": CORES},
        "parts": found,
        "rows": rows(found, cluster, options.nodes),
        "sensitivity": sensitivity(found, cluster, SHOWN),
        "checks": checks(found, runs),
        "runs": runs,
    }
    print("\n\n".join(table(document)))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
