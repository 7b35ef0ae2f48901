"""Clusters on this machine, started once for all tests that need them."""

from collections.abc import Iterator

import pytest
from support import slurm as slurm_cluster
from support.slurm import Slurm


@pytest.fixture(scope="session")
def _slurm() -> Iterator[Slurm]:
    lacking = slurm_cluster.missing()
    if lacking:
        pytest.skip(lacking)
    with slurm_cluster.cluster() as slurm:
        yield slurm


@pytest.fixture
def slurm(_slurm: Slurm) -> Iterator[Slurm]:
    """An idle cluster of three nodes with two cores each."""
    _slurm.rest()
    yield _slurm
    _slurm.rest()
