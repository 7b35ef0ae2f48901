"""The messages that users see: each file in `messages` holds wrong calls of a command and the line that it prints.

A wrong call has the exit status 2, prints nothing else, and changes no file.

After a change of wording, write the files again with ``UPDATE_MESSAGES=1 pytest tests/test_packer/test_cli/test_messages.py``
and read their difference.
"""

import os
import shlex
from pathlib import Path

import pytest
from support.archives import write_tar
from support.command import run_packer
from support.media import photograph, write_image

MESSAGES = Path(__file__).parent / "messages"
PROMPT = "$ packer "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a table of them, a packed dataset, empty sources, and files that are none of these."""
    root = tmp_path_factory.mktemp("messages")
    for number in range(4):
        write_image(root / "photos" / ("ab"[number % 2]) / f"{number}.jpg", photograph("coffee"))
    (root / "table.csv").write_text("path,label,size\nphotos/a/0.jpg,cat,1\nphotos/b/1.jpg,dog,2\n")
    (root / "wrong.csv").write_text("file,label\nphotos/a/0.jpg,cat\n")
    (root / "types.csv").write_text("path,x,y,z\nphotos/a/0.jpg,1,2,inf\nphotos/b/1.jpg,1.5,1e30,1\n")
    (root / "far.csv").write_text("path\n" + "".join(f"elsewhere/{number}.jpg\n" for number in range(200)))
    (root / "ids.csv").write_text("path\n" + "0\n2\n" * 60)
    (root / "empty.csv").write_text("path\n")
    (root / "nothing.csv").touch()
    (root / "latin.csv").write_bytes(b"key\n\xff\n")
    (root / "wrong.parquet").write_bytes(b"PAR1")
    (root / "wrong.jsonl").write_text("[1]\n")
    (root / "zero.toml").write_text("size = 0\n")
    (root / "empty").mkdir()
    (root / "link").symlink_to(root / "elsewhere")
    write_tar(root / "empty.tar", [])
    (root / "notes").mkdir()
    (root / "notes" / "todo.txt").write_text("nothing\n")
    run_packer("build", root / "photos", root / "packed", "--size", "32", "--label-from", "folder")
    return root


def files_of(folder: Path) -> dict[Path, int]:
    """The paths below a folder, with the time of each file."""
    return {path: path.is_file() and path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.skipif(os.name == "nt", reason="links need rights, and paths are written in another way")
@pytest.mark.parametrize("path", sorted(MESSAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_messages(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = files_of(folder)
    expected = path.read_text()
    shown = []
    for line in expected.splitlines():
        if line.startswith(PROMPT):
            done = run_packer(*shlex.split(line.removeprefix(PROMPT)), expect=None)
            assert done.returncode == 2, line
            assert (done.stdout, done.stderr.count("\n")) == ("", 1), line
            shown.append(f"{line}\n{done.stderr.replace(str(folder), '/folder')}")
    assert files_of(folder) == before
    written = "\n".join(shown)
    if os.environ.get("UPDATE_MESSAGES"):
        path.write_text(written)
        return
    assert written == expected
