"""What this process may use of the machine: memory and processors, less what its cgroups forbid."""

import os
from pathlib import Path

import pytest

from packer.recipe import resources
from readers import Loader, machine, open_dataset
from readers.machine import available_processors, usable_memory


@pytest.fixture
def eight_processors(monkeypatch):
    """A machine with eight processors, whatever this one has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_the_memory_of_groups_of_both_versions(system):
    system()
    physical = usable_memory()
    assert physical is not None
    assert physical > 2**28
    system("0::/user/job\n", user__memory_DOT_max="max\n", user__job__memory_DOT_max="70000000\n")
    assert usable_memory() == 70_000_000
    system("0::/user/job\n", user__memory_DOT_max="60000000\n")
    assert usable_memory() == 60_000_000, "a group above has less"
    system("4:cpu,memory:/a\n0::/\n", memory__a__memory_DOT_limit_in_bytes="50000000\n")
    assert usable_memory() == 50_000_000
    system("4:memory:/docker/of-the-host\n", memory__memory_DOT_limit_in_bytes="40000000\n")
    assert usable_memory() == 40_000_000, "what is mounted begins at the container's own group"
    system(
        "4:memory:/b\n", memory__b__memory_DOT_limit_in_bytes=str(2**63 - 4096), memory__memory_DOT_limit_in_bytes=""
    )
    assert usable_memory() == physical


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("", {"cpu_DOT_max": "200000 100000\n"}, 8),
        ("0::/\n", {"cpu_DOT_max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu_DOT_max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu_DOT_max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu_DOT_max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu_DOT_max": "1600000 100000\n"}, 8),
        ("0::/user/job\n", {"user__job__cpu_DOT_max": "300000 100000\n"}, 3),
        ("0::/user/job\n", {"user__cpu_DOT_max": "200000 100000\n", "user__job__cpu_DOT_max": "max 100000\n"}, 2),
        ("0::/docker/of-the-host\n", {"cpu_DOT_max": "400000 100000\n"}, 4),
        (
            "3:cpu,cpuacct:/a\n",
            {"cpu__a__cpu_DOT_cfs_quota_us": "500000\n", "cpu__a__cpu_DOT_cfs_period_us": "100000\n"},
            5,
        ),
        (
            "3:cpu,cpuacct:/a\n",
            {"cpu__a__cpu_DOT_cfs_quota_us": "-1\n", "cpu__a__cpu_DOT_cfs_period_us": "100000\n"},
            8,
        ),
        ("3:cpuset:/a\n", {"cpu__a__cpu_DOT_cfs_quota_us": "100000\n"}, 8),
    ],
)
def test_the_processors_that_a_quota_of_either_version_allows(system, eight_processors, groups, limits, expected):
    system(groups, **limits)
    assert available_processors() == expected


@pytest.mark.parametrize("quota", ["", "max 100000\n", "200000 100000\n", "250000 100000\n", "20000 100000\n"])
def test_packer_and_readers_count_the_processors_of_a_container_alike(system, eight_processors, monkeypatch, quota):
    """There are two functions, since packer imports only the formats of readers, and shardspec is only the contract."""
    system("0::/\n", cpu_DOT_max=quota)
    monkeypatch.setattr(resources, "_CGROUP", machine._CGROUP)
    assert available_processors() == resources.usable_cores()


def test_a_loader_starts_as_many_threads_as_the_quota_allows(system, eight_processors, raw_path: Path):
    system("0::/\n", cpu_DOT_max="200000 100000\n")
    assert Loader(open_dataset(raw_path), 4).workers == 2
