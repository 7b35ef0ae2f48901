"""Every job in every format on one, two and three nodes of a Ray cluster: the bytes of one host, written by the nodes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import places, ray_cluster
from support.builds import TESTS
from support.command import environment
from support.ray_cluster import Ray

from shardspec.formats import FORMATS

pytestmark = pytest.mark.ray

JOBS = ("build", "retry", "update", "merge", "convert", "split")
NODES = (1, 2, 3)

CASES = [
    pytest.param(nodes, format, marks=[] if nodes == NODES[at % len(NODES)] else pytest.mark.slow)
    for nodes in NODES
    for at, format in enumerate(FORMATS)
]
"""All pairs; those that run by default have every format once, and every number of nodes twice."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Callable[[int], Ray]]:
    """Let a cluster grow to a number of nodes."""
    lacking = ray_cluster.missing()
    if lacking:
        pytest.skip(lacking)
    with ray_cluster.cluster(0) as ray:

        def grow(count: int) -> Ray:
            while (there := len(ray.raylets()) - 1) < count:
                ray.start_node(**{places.NODE: str(there)})
            return ray

        yield grow


@pytest.fixture(scope="module")
def run_all(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Run all jobs in one folder, on a cluster or on this host; the fingerprints of what each makes."""
    folder = tmp_path_factory.mktemp("jobs") / "all"

    @cache
    def run(format: str, ray: Ray | None = None, nodes: int = 1, logs: Path | None = None) -> dict[str, Any]:
        env = environment(python_path=[TESTS / "support" / "ray_hooks", TESTS])
        command = [sys.executable, "-m", "support.ray_jobs", str(folder), format, "inline", "1"]
        if ray is not None:
            env |= {**ray.environment, "RAY_ADDRESS": ray.address, places.PLACES: str(logs)}
            command = ray.command(*command[:-2], "ray", str(nodes))
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


@pytest.mark.parametrize(("count", "format"), CASES)
def test_every_job_makes_the_bytes_of_one_host(
    nodes: Callable[[int], Ray], run_all: Callable[..., dict[str, Any]], tmp_path: Path, count: int, format: str
) -> None:
    ray = nodes(count)
    assert run_all(format, ray, count, tmp_path / "logs") == run_all(format)
    for number, job in enumerate(JOBS):
        found = places.read_places(tmp_path / str(number))
        assert set(found) == {"tasks", "shards"}, job
        for stage, where in found.items():
            assert places.COORDINATOR not in where, (job, stage)
            assert len(where) == count or (job == "retry" and where), (job, stage, where)
