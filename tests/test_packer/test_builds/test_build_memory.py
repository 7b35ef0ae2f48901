"""What a build keeps in memory while it works."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.builds import write_pictures

import packer
from packer.sources.item import Item

ITEMS = 100
TASK_ITEMS = 32


def test_the_items_of_the_plan_are_not_kept(tmp_path: Path) -> None:
    """They lie in the plan's file; only those of the task under way are read."""
    source = write_pictures(tmp_path / "source", [f"{number:03d}.png" for number in range(ITEMS)])
    kept: list[int] = []
    lists: list[int] = []

    def look(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if sample["source"] in ("040.png", "099.png"):
                objects = gc.get_objects()  # of any library: asking some for their class raises
                kept.append(sum(type(one) is Item for one in objects))
                lists.extend(len(one) for one in objects if type(one) is list and one and _is_line(one[0]))
            yield sample

    gc.collect()  # the items of other tests, in the frames of their exceptions
    packer.build(source, tmp_path / "out", steps=["decode", look], engine="inline", progress=False)
    assert len(kept) == 2
    assert max(kept) <= TASK_ITEMS
    assert lists == []


def _is_line(value: object) -> bool:
    """Whether it is the first line of a plan's file."""
    return type(value) is str and value.startswith('[0,"000.png",')
