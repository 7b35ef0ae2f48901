"""What the tests of the steps share."""

from pathlib import Path

import pytest
from support.face_source import write_faces


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and a video with faces, read by several modules and changed by none."""
    return write_faces(tmp_path_factory.mktemp("source") / "faces")
