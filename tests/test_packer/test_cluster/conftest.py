"""Clusters on this machine, started once for all tests that need them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ray_cluster
from support import slurm as slurm_cluster
from support.builds import write_images
from support.cluster_builds import NAMES, made_on_one_host
from support.ray_cluster import Ray
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


@pytest.fixture(scope="session")
def ray() -> Iterator[Ray]:
    """A cluster of a head without cores and two nodes with two cores each. A test that ends a node starts another."""
    lacking = ray_cluster.missing()
    if lacking:
        pytest.skip(lacking)
    with ray_cluster.cluster() as ray:
        yield ray


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of builds that are disturbed."""
    return write_images(tmp_path_factory.mktemp("source") / "images", NAMES)


@pytest.fixture(scope="session")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What it becomes on one host."""
    return made_on_one_host(images, tmp_path_factory.mktemp("expected") / "one")
