"""What a build keeps in memory while it works."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images

import packer
from benchmarks.pack_scale import make_files, run, write_scores, write_table
from packer.sources.item import Item

ITEMS = 100
TASK_ITEMS = 32


def test_the_items_of_the_plan_are_not_kept(tmp_path: Path) -> None:
    """They lie in the plan's file; only those of the task under way are read."""
    source = write_images(tmp_path / "source", [f"{number:03d}.png" for number in range(ITEMS)])
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
    others = sum(type(one) is Item for one in gc.get_objects())
    packer.build(source, tmp_path / "out", steps=["decode", look], engine="inline", progress=False)
    assert len(kept) == 2
    assert max(kept) - others <= TASK_ITEMS
    assert lists == []


def _is_line(value: object) -> bool:
    """Whether it is the first line of a plan's file."""
    return type(value) is str and value.startswith('[0,"000.png",')


FEW, MANY = 200_000, 1_000_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_million_items_take_as_much_memory_as_some_thousands(tmp_path: Path) -> None:
    """The memory of the coordinating process, without libraries and mapped files, which the system takes back."""
    names = make_files(tmp_path, 3)
    found: dict[str, list[int]] = {}
    for items in (FEW, MANY):
        table, out, parts = tmp_path / f"{items}.csv", tmp_path / f"out-{items}", tmp_path / f"parts-{items}"
        write_table(table, names, items)
        workers = ("--workers", "2", "--quiet")
        build = ("build", str(table), str(out), "--format", "npy", *workers)
        commands = {
            "build": build,
            "found finished": build,
            "update": (*build, "--update"),
            "verify": ("verify", str(out), "--quiet"),
            "split": ("split", str(out), str(parts), "--by", "source", "--ratios", "train=0.9,val=0.1", *workers),
            "merge": ("merge", str(parts / "train"), str(parts / "val"), str(tmp_path / f"merged-{items}"), *workers),
            "convert": ("convert", str(out), str(tmp_path / f"other-{items}"), "--format", "lmdb", *workers),
            "add": ("add", str(out), str(tmp_path / "scores.csv"), "--quiet"),
        }
        for name, command in commands.items():
            if name == "add":
                write_scores(tmp_path / "scores.csv", out)
            found.setdefault(name, []).append(int(run(command)["own_bytes"]))
    # An update holds digests, names and their sorted orders for a moment, which the polling of memory sees or misses.
    limits = {name: 130 if name == "update" else 100 for name in commands}
    grown = {name: (more - less) / (MANY - FEW) for name, (less, more) in found.items()}
    assert {name: size for name, size in grown.items() if size >= limits[name]} == {}, found
    assert max(more for _, more in found.values()) < 400 * 10**6
