"""Folders nested deeper than Python recurses, and paths longer than the system opens."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import file_of, read_jsonl, run_packer
from support.media import scene, write_image

from packer.assembly.samples import PackedSamples
from packer.steps.faces.boxes import digest_file_or_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no paths of that length")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by a program that does not recurse in Python."""
    (tmp_path / "in").mkdir()
    yield tmp_path / "in"
    subprocess.run(["rm", "-rf", tmp_path / "in"], check=True)


def nest(root: Path, levels: int, file: Path, name: str = "d") -> Path:
    """Put a file so many folders below, each of that name. It may lie too deep to be named by a path."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    copy = os.open(file.name, os.O_WRONLY | os.O_CREAT, dir_fd=at)
    with os.fdopen(copy, "wb") as target, file.open("rb") as source:
        shutil.copyfileobj(source, target)
    os.close(at)
    return root.joinpath(*[name] * levels, file.name)


def test_a_thousand_levels_are_listed(root: Path, tmp_path: Path) -> None:
    picture = write_image(tmp_path / "a.png", scene(0, (24, 16)))
    write_image(root / "b.png", scene(1, (24, 16)))
    levels = 1200
    path = nest(root, levels, picture)
    run_packer("build", root, tmp_path / "out", "--quiet")
    samples = PackedSamples(tmp_path / "out")
    assert [sample["source"] for sample in samples.read([0, 1])] == ["b.png", path.relative_to(root).as_posix()]
    samples.rows.close()


def test_a_file_whose_path_is_too_long_is_a_reject(root: Path, tmp_path: Path) -> None:
    write_image(root / "b.png", scene(1, (24, 16)))
    limit = os.pathconf(root, "PC_PATH_MAX")
    picture = write_image(tmp_path / f"{'a' * 200}.png", scene(0, (24, 16)))
    levels = (limit - len(os.fsencode(root)) - 100) // 2
    nest(root, levels, picture)
    run_packer("build", root, tmp_path / "out", "--quiet", "--max-rejects", "100%")
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["reason"] == "expected a file, found File name too long"
    assert line["item"].endswith("aaa.png")


def test_a_folder_whose_path_is_too_long_is_named_in_short(root: Path, tmp_path: Path) -> None:
    write_image(root / "b.png", scene(1, (24, 16)))
    nest(root, 2200, tmp_path / "in" / "b.png")
    done = run_packer("build", root, tmp_path / "out", expect=1)
    assert "cannot be listed: File name too long" in done.stderr
    assert len(done.stderr) < 600


def test_deep_folders_of_boxes_are_digested(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("{}")
    without = digest_file_or_folder(str(root))
    nest(root, 1200, file)
    assert digest_file_or_folder(str(root)) != without
