"""The model of a build on a cluster: it does every unit once, follows a formula where there is one, and is repeatable."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster_model import checks, rows, sensitivity, table
from benchmarks.cluster_parts import count_operations
from benchmarks.cluster_simulation import (
    LIMITS,
    LOCAL,
    WAYS,
    Build,
    Cluster,
    FileSystem,
    Parts,
    Pool,
    Shared,
    limit,
    simulate,
)
from packer import Recipe
from packer.builds.planning.plan import make_plan
from packer.sources.base import Listing
from packer.sources.item import Item

ROOT = Path(__file__).parents[2]
NAMES = [
    "agent_look_operations",
    "agent_start_s",
    "claim_operations",
    "claim_s",
    "commit_s",
    "commit_shard_operations",
    "commit_shard_s",
    "coordinator_shard_operations",
    "coordinator_task_operations",
    "cut_part_operations",
    "cut_part_s",
    "cut_row_s",
    "cut_s",
    "delete_part_operations",
    "early_shard_operations",
    "early_shard_s",
    "launch_s",
    "list_item_operations",
    "look_task_operations",
    "plan_item_s",
    "publish_s",
    "shard_byte_s",
    "shard_operations",
    "shard_part_operations",
    "shard_s",
    "shard_start_s",
    "source_operations",
    "take_part_s",
    "take_row_s",
    "task_begin_operations",
    "task_end_operations",
]
NOTHING: dict[str, Any] = {
    **dict.fromkeys(NAMES, 0.0),
    "coordinator": [{"workers": 1, "task_s": 0.0}, {"workers": 2, "task_s": 0.0}],
}
SOME: dict[str, Any] = {
    **{name: 2.0 if name.endswith("operations") else 1e-3 for name in NAMES},
    "shard_byte_s": 1e-9,
    "coordinator": [{"workers": 1, "task_s": 1e-4}, {"workers": 100, "task_s": 2e-3}],
    "units": {
        "faces": {"decode_s": 0.005, "frame_s": 0.07, "bytes_a_frame": 2e4, "rows_a_frame": 1.0},
        "kept": {"item_s": 1e-3, "bytes": 1e5},
        "resized": {"item_s": 8e-3, "bytes": 3e4},
    },
    "starts": {"faces": 1.0, "images": 0.5},
}
BUILD = Build(960, 0.5, 0.0, 1e5, 2e4, 1.0, 1, 3.0, workers=4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_a_build_whose_parts_cost_nothing_follows_the_formula(way: str, nodes: int) -> None:
    found = simulate(BUILD, Cluster(nodes, LOCAL), way, NOTHING)
    rounds = math.ceil(960 / 32 / (4 * nodes))
    assert found["tasks_s"] == pytest.approx(3.0 + rounds * 32 * 0.5)
    assert found["s"] == pytest.approx(found["tasks_s"] + found["cut_s"])
    assert found["cut_s"] == (0.5 if way == "array" else 0.0)  # an agent looks once a second


@given(
    items=st.integers(1, 3000),
    nodes=st.integers(1, 9),
    way=st.sampled_from(WAYS),
    spread=st.floats(0, 0.5),
)
@settings(max_examples=40, deadline=None)
def test_every_unit_is_done_once_and_no_worker_does_two_at_a_time(
    items: int, nodes: int, way: str, spread: float
) -> None:
    build = replace(BUILD, items=items, spread=spread)
    found = simulate(build, Cluster(nodes, steps_per_s=50.0), way, SOME)
    assert found["tasks"] == len(build.tasks())
    assert sum(build.tasks()) == items
    assert found["worked_s"] <= found["tasks_s"] * nodes * build.workers
    assert found["s"] == pytest.approx(sum(found[f"{name}_s"] for name in ("plan", "tasks", "cut", "shards", "commit")))
    again = simulate(build, Cluster(nodes, steps_per_s=50.0), way, SOME)
    assert again == found


def test_more_nodes_are_not_slower_where_nothing_is_shared() -> None:
    build = replace(BUILD, items=20_000, task_items=8)
    times = [simulate(build, Cluster(nodes, LOCAL), "array", NOTHING)["s"] for nodes in (1, 2, 3, 5, 8, 13)]
    assert times == sorted(times, reverse=True)
    assert times[0] / (8 * times[4]) > 0.95


@pytest.mark.parametrize("way", WAYS)
def test_a_part_that_costs_nothing_never_slows_a_build(way: str) -> None:
    cluster = Cluster(8, Shared(operations_per_s=500.0, bytes_per_s=1e8), steps_per_s=20.0)
    whole = simulate(BUILD, cluster, way, SOME)["s"]
    without = {name: simulate(BUILD, cluster, way, SOME, name)["s"] for name in LIMITS}
    assert all(seconds <= whole * 1.001 for seconds in without.values())
    slow_coordinator = {**SOME, "coordinator": [{"workers": 1, "task_s": 5.0}, {"workers": 100, "task_s": 5.0}]}
    for slow, expected in (
        (slow_coordinator, "coordinator"),
        ({**SOME, "cut_part_s": 50.0}, "cut"),
        (NOTHING, "start"),
    ):
        alone, here = (simulate(BUILD, replace(cluster, nodes=n), way, slow) for n in (1, 8))
        assert limit(BUILD, cluster, way, slow, alone, here) == expected


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), max_size=60), st.floats(1, 1e5))
@settings(max_examples=60, deadline=None)
def test_a_server_serves_no_more_than_it_can_in_whatever_order_it_is_asked(
    requests: list[tuple[float, float]], rate: float
) -> None:
    pool = Pool(rate)
    ends = [(pool.use(now_s, units), now_s, units) for now_s, units in requests]
    for end_s, now_s, units in ends:
        assert end_s >= now_s + units / rate - Pool.SLOT_S - 1e-6
    if ends:
        first, last, all_ = (
            min(now_s for _, now_s, _ in ends),
            max(end_s for end_s, _, _ in ends),
            sum(u for *_, u in ends),
        )
        assert all_ <= (last - first + 2 * Pool.SLOT_S) * rate * (1 + 1e-6)


def test_operations_take_their_latency_and_wait_for_the_server() -> None:
    files = FileSystem(Cluster(1, Shared(latency_s=0.1, operations_per_s=1000.0)))
    assert files.operate(0.0, 4) == pytest.approx(0.4, abs=0.02)
    assert files.operate(0.0, 4, ahead=4) == pytest.approx(0.1, abs=0.03)
    assert files.operate(0.0, 2000) > 200


def test_the_coordinator_is_read_between_what_was_measured_and_beyond() -> None:
    assert Parts(SOME).coordinator_s(100) == pytest.approx(2e-3)
    assert Parts(SOME).coordinator_s(199) == pytest.approx(3.9e-3)
    assert Parts(SOME, "coordinator").coordinator_s(199) == 0


@pytest.mark.parametrize(("items", "size"), [(40, 1000), (9000, 1000), (200, 500_000), (50, 3 * 10**7), (20_000, 10)])
def test_tasks_are_those_of_the_planner(items: int, size: int) -> None:
    listed = [Item(n, f"{n:06d}.jpg", f"{n:06d}.jpg", size, 0) for n in range(items)]
    plan, _ = make_plan(Recipe(preset="images", size=256), {}, Listing(listed))
    build = Build(items, 1.0, 0.0, size, 1.0, 1.0, 1, 0.0)
    assert [task.stop - task.start for task in plan.tasks] == build.tasks()


def test_the_tables_of_the_docs_are_those_of_the_result() -> None:
    (path,) = (ROOT / "benchmarks" / "results").glob("cluster_model-*.json")
    found = json.loads(path.read_text())
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for text in table(found):
        assert text in page
    settings_ = found["settings"]
    row = next(
        row for row in found["rows"] if (row["way"], row["nodes"]) == ("array", 4) and "ImageNet" in row["build"]
    )
    cluster = Cluster(1, Shared(**settings_["shared"]), steps_per_s=settings_["steps_per_s"])
    again = next(
        one
        for one in rows(found["parts"], cluster, [4], limits=False, only=(row["build"], row["way"]))
        if one["nodes"] == 4
    )
    assert {name: row[name] for name in again} == pytest.approx(again)


def test_real_runs_stand_beside_what_the_model_says() -> None:
    run = {"way": "array", "nodes": 2, "build": vars(BUILD), "s": 63.5}
    (row,) = checks(SOME, {"machine": {"cores": 2}, "parts": {}, "runs": [run]})
    assert row["deviation"] == row["model_s"] / 63.5 - 1
    assert row["model_s"] > 4 * 16.0
    assert sensitivity({**SOME, "units": SOME["units"]}, Cluster(1), 2, only="ImageNet, size 256")[0]["linear"]


def test_operations_are_counted_by_who_asks_and_when(tmp_path: Path) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    part = f"{out}/.build/parts/part-000000"
    (tmp_path / "t.10").write_text(
        f'1.0 newfstatat(AT_FDCWD, "{part}", 0x7f, 0) = -1 ENOENT\n'
        "2.0 clone3({flags=CLONE_VM|CLONE_VFORK}, 88) = 11\n"
        f'4.0 openat(AT_FDCWD</tmp>, "{out}/.build/journal.jsonl", O_RDWR|O_CREAT, 0666) = 3<{out}/.build/journal.jsonl>\n'
        f'4.1 newfstatat(3<{out}/.build/journal.jsonl>, "", 0x7f, AT_EMPTY_PATH) = 0\n'
        f'5.0 openat(AT_FDCWD</tmp>, "{part}", O_RDONLY|O_CLOEXEC) = 3<{part}>\n'
        f'5.5 rename("{out}/.build/assembly.json.1.partial", "{out}/.build/assembly.json") = 0\n'
        f'9.0 rename("{out}/a", "{out}/b") = 0\n'
    )
    (tmp_path / "t.11").write_text(
        '2.1 execve("/usr/bin/python", ["python", "-P", "-m", "packer.jobs.worker"], 0x7f) = 0\n'
        f'3.0 openat(AT_FDCWD</tmp>, "{source}/a.jpg", O_RDONLY|O_CLOEXEC) = 4<{source}/a.jpg>\n'
        f'3.1 openat(AT_FDCWD</tmp>, "{part}.partial", O_WRONLY|O_CREAT|O_EXCL, 0666) = 5<{part}.partial>\n'
        f'3.2 rename("{part}.partial", "{part}") = 0\n'
        f'8.0 openat(AT_FDCWD</tmp>, "{part}", O_RDONLY|O_CLOEXEC) = 5<{part}>\n'
    )
    counts = count_operations(tmp_path, out, source)
    expected = {"look": 1, "coordinator": 2, "cut": 3, "commit": 1, "source": 2, "worker": 3, "shard": 2}
    assert {name: counts[name] for name in expected} == expected
