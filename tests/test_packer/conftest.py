"""What the tests of the pack stage share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import OPTIONS, write_source
from support.command import run_packer
from support.packed import check_whole


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images and videos, read by many tests and changed by none."""
    return write_source(tmp_path_factory.mktemp("source") / "mixed")


@pytest.fixture(scope="session")
def reference(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What that folder becomes under `OPTIONS`, built in one process without interruption."""
    out = tmp_path_factory.mktemp("reference") / "out"
    run_packer("build", mixed, out, *OPTIONS, "--engine", "inline")
    check_whole(out)
    return out


@pytest.fixture
def builds() -> Iterator[list[Any]]:
    """Builds that a test started; what is left of them is ended."""
    started: list[Any] = []
    yield started
    for build in started:
        if build.poll() is None:
            build.kill()
        build.communicate()
