"""The cluster that the other tests of Slurm run on."""

import pytest
from support.slurm import Slurm

pytestmark = pytest.mark.slurm


def test_every_node_runs_a_step_and_a_lost_one_comes_back(slurm: Slurm) -> None:
    hosts = slurm.run("srun", "--nodes=3", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(hosts.split()) == list(slurm.nodes)
    slurm.kill_node("n2")
    slurm.rest()
    assert slurm.run("srun", "--nodelist=n2", "sh", "-c", "echo $SLURMD_NODENAME") == "n2\n"
