from pathlib import Path

import pytest
from support.stores import StoreServer


@pytest.fixture
def here(here: StoreServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StoreServer:
    """The server for a client in this process. The current folder is empty, and so is the cache."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    return here
