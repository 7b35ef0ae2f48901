"""Folders of boxes: what counts as their contents, and names at the limit of what a file system holds."""

import json
from pathlib import Path
from typing import Any

from support.errors import raises
from support.media import scene, write_image
from support.packed import read_samples

import packer
from packer.steps.faces.boxes import digest_file_or_folder, open_boxes
from shardspec.errors import UsageError

NAME_BYTES = 255
"""What common file systems take."""


def write_json(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_the_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    digests = []
    for name, content in (("a.json", 1), ("a.json", 2), ("b.json", 2)):
        write_json(tmp_path / f"{len(digests)}" / name, content)
        digests.append(digest_file_or_folder(str(tmp_path / f"{len(digests)}")))
    assert len(set(digests)) == 3


def test_the_digest_follows_links_like_the_lookup(tmp_path: Path) -> None:
    kept = write_json(tmp_path / "kept" / "clip.json", {"0": [[0, 0, 30, 30]]})
    boxes = tmp_path / "boxes"
    (boxes / "folder.json").mkdir(parents=True)
    (boxes / "a").symlink_to(kept.parent)
    (kept.parent / "around").symlink_to(boxes)
    before = digest_file_or_folder(str(boxes))
    assert digest_file_or_folder(str(boxes)) == before
    write_json(kept, {"0": [[0, 0, 60, 60]]})
    assert open_boxes(str(boxes), 1.0).faces("a/clip.mp4")[0].boxes.tolist() == [[0, 0, 60, 60]]
    assert digest_file_or_folder(str(boxes)) != before


def test_an_item_with_the_longest_name_finds_its_boxes(tmp_path: Path) -> None:
    stem = "x" * (NAME_BYTES - len(".json"))
    write_image(tmp_path / "in" / f"{stem}.png", scene(0, (64, 48)))
    write_json(tmp_path / "boxes" / f"{stem}.json", {"0": [[4, 4, 44, 44]]})
    how: dict[str, Any] = {"preset": "faces", "size": 32, "engine": "inline", "progress": False}
    packer.build(tmp_path / "in", tmp_path / "out", boxes=str(tmp_path / "boxes"), **how)
    assert [sample["box"].tolist() for sample in read_samples(tmp_path / "out")] == [[4, 4, 44, 44]]
    with raises(UsageError, option="boxes", found="none for any item"):
        packer.build(tmp_path / "in", tmp_path / "none", boxes=str(tmp_path / "in"), **how)
