"""An S3 server with a dataset in each format."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import run_packer
from support.crops import write_crops
from support.staged import COUNT, FORMATS, SHARD_ROWS
from support.stores import StoreServer, serving


@pytest.fixture(scope="package")
def server() -> Iterator[StoreServer]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults_left(server: StoreServer) -> Iterator[None]:
    yield
    server.fail()


@pytest.fixture(scope="package")
def datasets(server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of 12 shards in each format; its copy is in the bucket under the format's name."""
    root = tmp_path_factory.mktemp("remote")
    made = {}
    for format in FORMATS:
        made[format] = write_crops(root / format, format, None, COUNT, 24, SHARD_ROWS)
        run_packer("copy", made[format], server.url(format), "--quiet", env=server.env)
    return made
