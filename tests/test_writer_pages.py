"""The examples of docs/howto/writer.md and docs/howto/steps.md, run as they are, and the table of steps."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.command import REPOSITORY, run_packer
from support.media import scene, write_image
from support.ranks import run_script

import packer
from readers import open_dataset


def blocks(page: str) -> list[str]:
    """The fenced Python of a page."""
    return re.findall(
        r"^```python\n(.*?)^```$", (REPOSITORY / "docs" / "howto" / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def test_the_writer_and_the_function_make_what_they_name(tmp_path: Path) -> None:
    loop, script = blocks("writer.md")
    run_script("-c", loop, cwd=tmp_path)
    (tmp_path / "my_pack.py").write_text(script, "utf-8")
    run_script("my_pack.py", cwd=tmp_path)
    own, packed = open_dataset(tmp_path / "own"), open_dataset(tmp_path / "packed")
    assert (len(own), own[3]["key"], own[3]["image"].shape) == (10, "image 3", (64, 64, 3))
    assert (len(packed), packed.schema["label"].classes) == (200, ("even", "odd"))
    for name in ("own", "packed"):
        assert not packer.verify(tmp_path / name, deep=True, progress=False).problems


def test_the_step_packs_what_it_keeps(tmp_path: Path) -> None:
    (code,) = blocks("steps.md")
    (tmp_path / "my_steps.py").write_text(code, "utf-8")
    write_image(tmp_path / "photos" / "bright.png", scene(0, (80, 80)) // 4 + 190)
    write_image(tmp_path / "photos" / "dark.png", scene(0, (80, 80)) // 4)
    (command,) = re.findall(
        r"^ {4}packer (.*)$", (REPOSITORY / "docs" / "howto" / "steps.md").read_text("utf-8"), re.MULTILINE
    )
    run_packer(*command.split(), "--max-rejects", "100%", cwd=tmp_path)
    (sample,) = open_dataset(tmp_path / "bright")
    assert sample["image"].shape == (64, 64, 3)
    assert sample["file"] == str(tmp_path / "photos" / "bright.png")


def test_the_table_of_steps_says_what_is_in_a_sample(tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg", scene(0, (40, 30)))
    seen: dict[str, set[str]] = {}
    arrays: dict[str, Any] = {}

    def watch(samples: Iterator[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
        for sample in samples:
            seen[where] = set(sample)
            arrays[where] = sample.get("image"), (sample.get("_kept_jpeg") or (None,))[0]
            yield sample

    def before(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return watch(samples, "before")

    def after_decode(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return watch(samples, "decode")

    def after_resize(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return watch(samples, "resize")

    rows = [{"path": str(tmp_path / "a.jpg"), "label": "cat", "age": 3}]
    steps = [before, "decode", after_decode, "resize", after_resize]
    packer.build(rows, tmp_path / "out", steps=steps, size=16, root=str(tmp_path), progress=False)
    assert seen["before"] == {"source", "label", "age", "_item", "_report"}
    assert seen["decode"] == seen["before"] | {"image", "frame", "time", "frame_position", "_kept_jpeg"}
    assert seen["resize"] == seen["decode"]
    assert arrays["decode"][0] is arrays["decode"][1]
    assert not arrays["decode"][0].flags.writeable
    assert arrays["resize"][0].shape == (16, 21, 3)
