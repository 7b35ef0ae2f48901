"""What this process may use of the machine: memory and processors, less what its cgroups forbid."""

import os
from pathlib import Path

import pytest

from packer.recipe.engines import count_workers
from readers import Loader, open_dataset
from readers.formats.machine import available_processors, usable_memory


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


def test_auto_uses_as_many_workers_as_nested_groups_allow(system, eight_processors):
    """As in a job of Slurm, whose limits stand in a group below the root."""
    limits = {"slurm__job__cpu_DOT_max": "300000 100000\n", "slurm__job__memory_DOT_max": "4000000000\n"}
    system("0::/slurm/job\n", **limits, slurm__job__memory_DOT_current="3500000000\n")
    assert count_workers("auto", "images", 99) == 1, "half a gigabyte is left"
    cache = "inactive_file 3000000000\nactive_file 1\n"
    system(
        "0::/slurm/job\n",
        **limits,
        slurm__job__memory_DOT_current="3500000000\n",
        slurm__job__memory_DOT_stat=cache,
    )
    assert count_workers("auto", "images", 99) == 3, "what lies idle in the page cache is free"
    assert available_processors() == 3
    assert count_workers("auto", "faces", 99) == 2, "a worker of faces is allowed 1.5 GB"


def test_a_loader_starts_as_many_threads_as_the_quota_allows(system, eight_processors, raw_path: Path):
    system("0::/\n", cpu_DOT_max="200000 100000\n")
    assert Loader(open_dataset(raw_path), 4).workers == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 6),
        ({"SLURM_CPUS_ON_NODE": "4"}, 4),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"SLURM_CPUS_ON_NODE": "64"}, 6),
        ({"SLURM_MEM_PER_NODE": "1300"}, 3),
        ({"SLURM_MEM_PER_CPU": "350", "SLURM_CPUS_ON_NODE": "5"}, 4),
        ({"SLURM_MEM_PER_NODE": "0", "SLURM_CPUS_ON_NODE": "2(x3)", "SLURM_CPUS_PER_TASK": "-1"}, 6),
        ({"SLURM_MEM_PER_NODE": "1" * 5000, "SLURM_CPUS_ON_NODE": "\u0664"}, 6),
    ],
)
def test_workers_within_the_allocation_of_slurm(system, eight_processors, monkeypatch, variables, expected):
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    groups = {"slurm__job_7__cpu_DOT_max": "600000 100000\n", "slurm__job_7__step_0__cpu_DOT_max": "max 100000\n"}
    system("0::/slurm/job_7/step_0\n", **groups)
    assert count_workers("auto", "images", 99) == expected
