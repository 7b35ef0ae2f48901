"""The messages that users see: each file in `messages` holds wrong calls of a command and what it prints.

After a change of wording, write the files again with ``UPDATE_MESSAGES=1 pytest tests/test_packer/test_cli/test_messages.py``
and read their difference.
"""

import os
import shlex
from pathlib import Path

import pytest
from support.command import run_packer
from support.media import photograph, write_image

MESSAGES = Path(__file__).parent / "messages"
PROMPT = "$ packer "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a table of them, a packed dataset, and files that are none of these."""
    root = tmp_path_factory.mktemp("messages")
    for number in range(4):
        write_image(root / "photos" / ("ab"[number % 2]) / f"{number}.jpg", photograph("coffee"))
    (root / "table.csv").write_text("path,label,size\nphotos/a/0.jpg,cat,1\nphotos/b/1.jpg,dog,2\n")
    (root / "wrong.csv").write_text("file,label\nphotos/a/0.jpg,cat\n")
    (root / "wrong.toml").write_text("sise = 64\n")
    (root / "notes").mkdir()
    (root / "notes" / "todo.txt").write_text("nothing\n")
    run_packer("build", root / "photos", root / "packed", "--preset", "images", "--size", "32")
    return root


@pytest.mark.parametrize("path", sorted(MESSAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_messages(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    expected = path.read_text()
    shown = []
    for line in expected.splitlines():
        if line.startswith(PROMPT):
            done = run_packer(*shlex.split(line.removeprefix(PROMPT)), expect=None)
            assert done.returncode != 0, line
            shown.append(f"{line}\n{done.stderr.replace(str(folder), '/folder')}")
    written = "\n".join(shown)
    if os.environ.get("UPDATE_MESSAGES"):
        path.write_text(written)
        return
    assert written == expected
