"""The table of docs/howto/steps.md: what a sample contains before and after each step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.media import scene, write_image

import packer


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
