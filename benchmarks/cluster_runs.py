"""Real builds with 1, 2 and 3 nodes on this host, for `cluster_model` to be compared with.

    PYTHONPATH=tests python -m benchmarks.cluster_runs --json runs.json [--ways array srun] [--items 3584] [--runs 1]

Method. The items of the build wait (`wait_step`), 50 ms each by default, so that three nodes with four workers each run
at full rate on two cores. *array*: ``packer submit``, and as many ``packer work`` as nodes, all started at once, timed
from their start to the end of the last. *srun*: ``packer build --engine srun`` in an allocation of so many nodes of a
Slurm cluster of three, which is started on this host (``tests/support/slurm.py``) and runs as root, timed from the
start of the command to its end. The document also has the time of an item and the start of a worker of this build.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.slurm import Slurm, cluster

from benchmarks.cluster_parts import OF_STEP, STEP, Bench, write_items
from benchmarks.measure import machine, versions

PYTHON = [sys.executable, "-m", "packer"]
RECIPE = [f"--{name}={OF_STEP[name]}" for name in ("preset", "encode", "format")] + ["--steps", STEP, "--quiet"]
ITEM_BYTES = 19_200


def run_array(table: Path, out: Path, nodes: int, workers: int) -> float:
    """Seconds of the agents of a submitted build."""
    _run(*PYTHON, "submit", str(table), str(out), *RECIPE)
    begin_s = time.perf_counter()
    work = [*PYTHON, "work", str(out), "--workers", str(workers), "--quiet"]
    agents = [subprocess.Popen(work, stdout=subprocess.DEVNULL) for _ in range(nodes)]
    failed = [agent.wait() for agent in agents]
    seconds = time.perf_counter() - begin_s
    if any(failed):
        raise RuntimeError(f"packer work: ended with {failed}")
    _run(*PYTHON, "build", str(table), str(out), *RECIPE)
    return seconds


def run_srun(slurm: Slurm, table: Path, out: Path, nodes: int, workers: int) -> float:
    """Seconds of a build in an allocation."""
    build = [*PYTHON, "build", str(table), str(out), *RECIPE, "--engine", "srun", "--workers-per-node", str(workers)]
    begin_s = time.perf_counter()
    slurm.run("salloc", "--quiet", f"--nodes={nodes}", *build)
    return time.perf_counter() - begin_s


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")


def samples(out: Path) -> int:
    """The samples of a dataset."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    return sum(shard["samples"] for one in manifest["generations"] for shard in one["shards"])


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=("array", "srun"), default=["array", "srun"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=4, help="on each node")
    parser.add_argument("--items", type=int, default=3_584)
    parser.add_argument("--wait-ms", type=float, default=50.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        bench = Bench(folder, 3, small=False)
        few, many = (
            bench.build(write_items(folder / "few.csv", count, wait_ms=options.wait_ms, alone=False), **OF_STEP)
            for count in (10, 70)
        )
        item_s = (many["tasks_wall"] - few["tasks_wall"]) / 60
        start_s = bench.starts()["images"]
        table = write_items(folder / "items.csv", options.items, wait_ms=options.wait_ms, alone=False)
        build = {
            "items": options.items,
            "item_s": item_s,
            "spread": 0.0,
            "source_bytes": 128.0,
            "part_bytes": float(ITEM_BYTES),
            "rows": 1.0,
            "weight": 1,
            "start_s": start_s,
            "workers": options.workers,
        }
        timed: dict[str, Callable[[Path, int], float]] = {
            "array": lambda out, nodes: run_array(table, out, nodes, options.workers)
        }
        if "srun" in options.ways:
            slurm = stack.enter_context(cluster())
            timed["srun"] = lambda out, nodes: run_srun(slurm, table, out, nodes, options.workers)
        runs: list[dict[str, Any]] = []
        for way in options.ways:
            for nodes in options.nodes:
                found = []
                for _ in range(options.runs):
                    out = folder / "out"
                    found.append(timed[way](out, nodes))
                    if samples(out) != options.items:
                        raise RuntimeError(f"{samples(out)} samples of {options.items} items")
                    shutil.rmtree(out)
                row = {"way": way, "nodes": nodes, "build": build, "s": statistics.median(found), "all_s": found}
                runs.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    document = {"benchmark": "cluster_runs", "machine": machine(), "versions": versions(("numpy",)), "runs": runs}
    options.json.write_text(json.dumps({**document, "parts": {}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
