"""An unfinished build whose files lie elsewhere when it goes on: their names, sizes and times are the same, so it is the same build."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.media import scene, write_image
from support.packed import check_whole, fingerprints

import packer
from packer.builds.planning.plan import TASK_ITEMS
from packer.sources.folders.folder import FolderSource
from shardspec.layout import Layout

ITEMS = TASK_ITEMS + 4


class Stop(KeyboardInterrupt):
    """Ends a build in the middle, as Ctrl-C does."""


def build(source: Path, out: Path, **options: Any) -> Any:
    """Build with two worker processes."""
    return packer.build(source, out, **{"size": 16, "workers": 2, "progress": False, **options})


def begin(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Leave a build unfinished: planned, and no task done."""

    def stop(*_: object) -> Iterator[Any]:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr("packer.builds.work.BuildWork.run", stop)
        with pytest.raises(Stop):
            build(source, out, engine="inline", workers="auto", **options)
    assert (out / ".build" / "plan.json").exists()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "first mount" / "images", [f"{n:02d}.png" for n in range(ITEMS)])


def test_the_source_has_moved(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    moved = source.rename(tmp_path / "the place where they lie now")
    result = build(moved, out)
    assert (result.resumed, result.counts.packed_items) == (True, ITEMS)
    check_whole(out)
    build(moved, tmp_path / "whole")
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_a_packed_source_has_moved(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(source, tmp_path / "packed")
    begin(tmp_path / "packed", tmp_path / "out", monkeypatch, encode="png")
    moved = (tmp_path / "packed").rename(tmp_path / "moved")
    assert build(moved, tmp_path / "out", encode="png").counts.packed_items == ITEMS


def test_a_file_that_the_recipe_names_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "in" / "face.png", scene(0, (64, 48)))
    names = [item.name for item in FolderSource(tmp_path / "in").list_items("auto", "path").items]
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({name: {"0": [[4, 4, 46, 46]]} for name in names}))
    begin(tmp_path / "in", tmp_path / "out", monkeypatch, preset="faces", boxes=str(boxes))
    (tmp_path / "elsewhere").mkdir()
    moved = boxes.rename(tmp_path / "elsewhere" / "boxes.json")
    assert build(tmp_path / "in", tmp_path / "out", preset="faces", boxes=str(moved)).counts.packed_items == 1
    assert Layout(tmp_path / "out").load().samples == 1
