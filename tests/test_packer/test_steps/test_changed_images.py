"""Small images whose files change, that must not be tried again, or whose names are no text."""

import json
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.builds import write_images
from support.command import file_of, read_jsonl, run_packer
from support.media import photograph

import packer
from packer.builds.work import BuildWork
from packer.jobs.schedule import Schedule
from packer.sources.item import Item


def jpeg(image: np.ndarray) -> bytes:
    """An image as JPEG, saved by Pillow."""
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=90)
    return file.getvalue()


def build(source: Path, out: Path) -> None:
    """Build in this process."""
    packer.build(source, out, engine="inline", progress=False, max_rejects="100%", format="npy")


@pytest.mark.parametrize("change", ["longer", "shorter", "same size", "newer", "gone"])
def test_an_image_that_has_changed_since_it_was_listed_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    data = jpeg(photograph("coffee")[:40, :40])
    for name in ("a.jpg", "b.jpg"):
        tmp_path.joinpath("in").mkdir(exist_ok=True)
        tmp_path.joinpath("in", name).write_bytes(data)
    pack = BuildWork._item

    def change_and_pack(self: BuildWork, item: Item, *more: Any) -> Any:
        path = Path(str(item.path))
        if item.name == "a.jpg" and change == "gone":
            path.unlink()
        elif item.name == "a.jpg":
            new = {"longer": data + b"\0", "shorter": data[:-1], "same size": data[:-1] + b"\0"}.get(change, data)
            path.write_bytes(new)
            os.utime(path, ns=(item.mtime_ns, item.mtime_ns + 10**9 * (change in ("newer", "same size"))))
        return pack(self, item, *more)

    monkeypatch.setattr(BuildWork, "_item", change_and_pack)
    build(tmp_path / "in", tmp_path / "out")
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["item"] == "a.jpg"
    assert ("existed when" if change == "gone" else "has changed since the build was planned") in line["reason"]


def test_an_item_that_must_not_be_retried_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "in", ["a.jpg", "b.jpg"])
    monkeypatch.setattr(Schedule, "_verdicts_of", lambda *_: {0: ("worker", "brought down a worker")})
    build(tmp_path / "in", tmp_path / "out")
    (reject,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert (reject["item"], reject["step"], reject["reason"]) == ("a.jpg", "worker", "brought down a worker")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_text_is_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"odd \xff.jpg")
    tmp_path.joinpath("in").mkdir()
    tmp_path.joinpath("in", name).write_bytes(jpeg(photograph("coffee")[:40, :40]))
    done = run_packer("build", tmp_path / "in", tmp_path / "out", "--quiet", "--json")
    assert json.loads(done.stdout)["samples"] == 1
    (line,) = read_jsonl(file_of(tmp_path / "out", "items.jsonl"))
    assert line["item"] == name
