"""The messages of wrong calls in Python (see `support.messages`). A wrong call changes no file.

After a change of wording, write the files again with ``UPDATE_MESSAGES=1 pytest tests/test_packer/test_packer_messages.py``
and read their difference.
"""

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import write_images
from support.messages import check_messages

import packer
from packer.recipe.checks import parse_bytes
from packer.recipe.options import parse_share
from packer.vision.decode.sampling import Sampling

MESSAGES = Path(__file__).parent / "messages"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an image, and two datasets that it is packed into."""
    root = tmp_path_factory.mktemp("messages")
    for name in "ab":
        source = write_images(root / "in", ["x/a.jpg"])
        packer.build(source, root / name, label_from="folder", engine="inline", progress=False)
    return root


@pytest.mark.parametrize("path", sorted(MESSAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_messages(path: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (tmp_path / "out").mkdir()
    public = {name: getattr(packer, name) for name in packer.__all__}
    names: dict[str, Any] = {"packer": packer, "np": np, "math": math, "datetime": datetime, "out": tmp_path / "out"}
    names |= {"parse_bytes": parse_bytes, "parse_share": parse_share, "Sampling": Sampling}
    before = sorted(folder.rglob("*"))
    check_messages(path, {**public, **names}, {str(tmp_path): "/tmp", str(folder): "/folder"})
    assert not list((tmp_path / "out").iterdir())
    assert sorted(folder.rglob("*")) == before
