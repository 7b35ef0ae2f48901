"""The law of the packer: pieces that are packed apart and then merged are the dataset that one build makes."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.builds import QUIET
from support.command import file_of, read_jsonl
from support.fuzz import examples
from support.media import cut_file, scene, write_image
from support.packed_files import read_all
from support.sound import tone, write_sound
from support.written import sample

import packer
from packer import Progress
from packer.builds.planning import plan
from shardspec.formats import FORMATS
from shardspec.layout import Layout

FORMAT = st.sampled_from(sorted(FORMATS))
SIZES: list[dict[str, Any]] = [{}, {"size": 12}, {"size": 30}, {"size": 12, "resize": "exact"}]
ENCODINGS: list[dict[str, Any]] = [
    *({"encode": name} for name in ("jpeg", "png", "raw", "webp")),
    *({"encode": name, "sample": "item"} for name in ("ffv1", "h264")),
]
COLUMNS: dict[str, Callable[[random.Random], Any]] = {
    "weight": lambda draw: draw.random(),
    "count": lambda draw: draw.randrange(100),
    "sure": lambda draw: draw.random() < 0.5,
    "note": lambda draw: f"note {draw.randrange(100)} é",
    "point": lambda draw: [draw.random(), draw.random()],
    "tags": lambda draw: {"a": draw.randrange(9), "b": ["x"] * draw.randrange(3)},
}
"""Columns of the sources, one of each type of values."""
SCHEMAS = st.sets(st.sampled_from(sorted(COLUMNS))).map(sorted)
RECIPES = st.builds(
    lambda size, encoding, **more: {**size, **encoding, **more},
    st.sampled_from(SIZES),
    st.sampled_from(ENCODINGS),
    format=FORMAT,
    shard_size=st.sampled_from([1, 2_000, 10**6]),
)


class Interrupts:
    """A progress listener that ends a job at a given report, as Ctrl-C does; any later job runs to its end."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_progress(self, progress: Progress) -> None:
        """Count a report."""
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def on_message(self, line: str) -> None:
        """Ignore messages."""


def facts(out: Path) -> tuple[Any, ...]:
    """Everything that the law promises: data, index, items, rejects, names of files, counts."""
    layout = Layout(out)
    manifest = layout.load()
    reports = [
        path.read_bytes() if path.exists() else b""
        for path in (file_of(layout.root, "items.jsonl"), file_of(layout.root, "rejects.jsonl"))
    ]
    files = {entry.name: entry.sha256 for entry in manifest.entries}
    return manifest.digest, reports, files, [(g.kind, g.counts, len(g.shards)) for g in manifest.generations]


def rows_of(out: Path) -> tuple[Any, ...]:
    """The rows without their keys, and the items that are there: what an update and a build of the same source share."""
    values = {
        name: found.tolist() if isinstance(found, np.ndarray) else found
        for name, found in read_all(out).items()
        if name != "key"
    }
    items = [
        {name: value for name, value in item.items() if name != "generation"}
        for item in read_jsonl(file_of(out, "items.jsonl"))
        if item["state"] != "gone"
    ]
    return Layout(out).load().schema, values, items


def run(job: Callable[..., Any], *arguments: Any, interrupt: int, **options: Any) -> None:
    """Run a job, interrupted at a report if it has that many, and then to its end."""
    try:
        job(*arguments, **options, engine="inline", progress=Interrupts(interrupt) if interrupt else False)
    except KeyboardInterrupt:
        job(*arguments, **options, **QUIET)


def write_row(path: Path, number: int, size: tuple[int, int], columns: list[str]) -> dict[str, Any]:
    """A row of a table, with its image."""
    draw = random.Random(number)
    row = {"path": str(write_image(path, scene(number, size))), "label": draw.choice("abc")}
    return row | {name: COLUMNS[name](draw) for name in columns}


def write_rows(root: Path, count: int, seed: int, columns: list[str]) -> list[dict[str, Any]]:
    """A table of images of several sizes and kinds, one in seven of them damaged."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        suffix = draw.choice([".jpg", ".png", ".bmp"])
        size = (draw.choice([16, 24]), draw.choice([16, 20]))
        rows.append(write_row(root / f"{number:03d}{suffix}", number, size, columns))
        if draw.random() < 1 / 7:
            cut_file(Path(rows[-1]["path"]), 0.4)
    return rows


def cut(rows: list[dict[str, Any]], ends: set[int]) -> list[list[dict[str, Any]]]:
    """Cut rows into pieces at some of these places."""
    places = [0, *sorted(end % (len(rows) - 1) + 1 for end in ends), len(rows)]
    return [rows[start:stop] for start, stop in pairwise(places) if stop > start]


@examples(12)
@example(  # the first items of a piece are rejected, so that no two pieces have a key in common
    how={"format": "hdf5", "encode": "jpeg", "shard_size": 1},
    columns=["weight"],
    count=14,
    seed=395,
    ends={0},
    interrupts=[0] * 12,
    other="npy",
    shuffle=None,
)
@given(
    how=RECIPES,
    columns=SCHEMAS,
    count=st.integers(2, 24),
    seed=st.integers(0, 10**6),
    ends=st.sets(st.integers(0, 100), min_size=1, max_size=4),
    interrupts=st.lists(st.integers(0, 12), min_size=12, max_size=12),
    other=FORMAT,
    shuffle=st.none() | st.integers(0, 9),
)
def test_merged_pieces_are_the_dataset_of_one_build(
    how: dict[str, Any],
    columns: list[str],
    count: int,
    seed: int,
    ends: set[int],
    interrupts: list[int],
    other: str,
    shuffle: int | None,
) -> None:
    with TemporaryDirectory() as folder:
        at = Path(folder)
        rows = write_rows(at / "images", count, seed, columns)
        options: dict[str, Any] = {"root": at, "classes": ("a", "b", "c"), "max_rejects": 1.0, **how}
        pieces = cut(rows, ends)
        for piece in pieces:  # a build without samples is an error
            piece.append(write_row(at / "images" / "good.png", 1, (16, 16), columns))
        run(packer.build, [row for piece in pieces for row in piece], at / "whole", interrupt=interrupts[0], **options)
        made = [at / f"piece {number}" for number in range(len(pieces))]
        order = random.Random(seed).sample(range(len(pieces)), len(pieces))
        for number in order:  # pieces are packed in any order
            run(packer.build, pieces[number], made[number], interrupt=interrupts[1 + number % 5], **options)
        run(packer.merge, made, at / "merged", interrupt=interrupts[6])
        assert facts(at / "merged") == facts(at / "whole")
        if len(made) > 2:  # in two steps
            run(packer.merge, made[1:], at / "rest", interrupt=interrupts[7])
            run(packer.merge, [made[0], at / "rest"], at / "nested", interrupt=interrupts[8])
            assert facts(at / "nested") == facts(at / "whole")
        for name in ("merged", "whole"):
            run(packer.convert, at / name, at / f"{name} 2", format=other, shuffle=shuffle, interrupt=interrupts[9])
        assert facts(at / "merged 2") == facts(at / "whole 2")
        options |= {"format": other, "shuffle": shuffle}
        run(packer.build, [row for piece in pieces for row in piece], at / "other", interrupt=interrupts[10], **options)
        assert facts(at / "other")[0] == facts(at / "whole 2")[0]


@examples(6)
@given(
    how=st.fixed_dictionaries(
        {"format": FORMAT, "shard_size": st.sampled_from([1, 2_000, 10**6])},
        optional={"audio": st.sampled_from([4_000, 11_025]), "seconds": st.sampled_from([0.1, 0.25])},
    ),
    count=st.integers(2, 9),
    ends=st.sets(st.integers(0, 100), min_size=1, max_size=3),
    interrupts=st.lists(st.integers(0, 12), min_size=6, max_size=6),
)
def test_merged_pieces_of_sound_are_the_dataset_of_one_build(
    how: dict[str, Any], count: int, ends: set[int], interrupts: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        at = Path(folder)
        rows: list[dict[str, Any]] = []
        for number in range(count):
            suffix = (".wav", ".flac", ".mp3")[number % 3]
            path = write_sound(at / "sounds" / f"{number}{suffix}", tone(300 + number, 0.3 + number / 20, 8000), 8000)
            if number % 4 == 3:
                cut_file(path, 0.4)
            rows.append({"path": str(path), "label": "ab"[number % 2], "speaker": number})
        options: dict[str, Any] = {"root": at, "classes": ("a", "b"), "preset": "sound", "max_rejects": 1.0, **how}
        pieces = [[rows[0], *piece] for piece in cut(rows, ends)]  # a build without samples is an error
        run(packer.build, [row for piece in pieces for row in piece], at / "whole", interrupt=interrupts[0], **options)
        made = [at / f"piece {number}" for number in range(len(pieces))]
        for number, piece in enumerate(pieces):
            run(packer.build, piece, made[number], interrupt=interrupts[1 + number], **options)
        run(packer.merge, made, at / "merged", interrupt=interrupts[5])
        assert facts(at / "merged") == facts(at / "whole")


@examples(10)
@given(
    how=RECIPES,
    columns=SCHEMAS,
    count=st.integers(2, 24),
    seed=st.integers(0, 10**6),
    shares=st.integers(1, 4),
    task_items=st.integers(1, 9),
    apart=st.booleans(),
    interrupts=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    shuffle=st.none() | st.integers(0, 9),
)
def test_merged_shares_are_the_dataset_of_one_build(
    how: dict[str, Any],
    columns: list[str],
    count: int,
    seed: int,
    shares: int,
    task_items: int,
    apart: bool,
    interrupts: list[int],
    shuffle: int | None,
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "TASK_ITEMS", task_items)
        at = Path(folder)
        rows = write_rows(at / "images", count, seed, columns)
        rows.append(write_row(at / "good.png", 1, (16, 16), columns))
        options: dict[str, Any] = {"root": at, "classes": ("a", "b", "c"), "max_rejects": 1.0, "shuffle": shuffle}
        options |= how
        run(packer.build, rows, at / "whole", interrupt=interrupts[0], **options)
        order = random.Random(seed).sample(range(1, shares + 1), shares)
        pieces = [at / f"pieces {number if apart else ''}" for number in order]
        for number, path in zip(order, pieces, strict=True):
            run(packer.build, rows, path, share=f"{number}/{shares}", interrupt=interrupts[number], **options)
        run(packer.merge, sorted({*pieces}), at / "merged", interrupt=interrupts[5])
        assert facts(at / "merged") == facts(at / "whole")


@examples(8)
@given(
    how=RECIPES,
    columns=SCHEMAS,
    count=st.integers(3, 16),
    seed=st.integers(0, 10**6),
    place=st.integers(0, 100),
    drops=st.booleans(),
    interrupts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_an_updated_dataset_has_the_rows_and_items_of_one_build(
    how: dict[str, Any], columns: list[str], count: int, seed: int, place: int, drops: bool, interrupts: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        at, end = Path(folder), place % (count - 1) + 1
        rows = write_rows(at / "images", count, seed, columns)
        rows.insert(0, write_row(at / "good.png", 1, (16, 16), columns))
        gone = write_row(at / "gone.png", 2, (24, 20), columns)
        options: dict[str, Any] = {"root": at, "classes": ("a", "b", "c"), "max_rejects": 1.0, **how, "size": 12}
        options["resize"] = "exact"  # raw values of other shapes do not fit into a dataset
        run(packer.build, rows, at / "whole", interrupt=interrupts[0], **options)
        first = [*rows[: end + 1], gone] if drops else rows[: end + 1]
        run(packer.build, first, at / "grown", interrupt=interrupts[1], **options)
        run(packer.build, rows, at / "grown", interrupt=interrupts[2], update=True, gone="drop", **options)
        expected, found = (rows_of(at / name) for name in ("whole", "grown"))
        assert found == expected


@examples(15)
@given(
    format=FORMAT,
    count=st.integers(2, 20),
    place=st.integers(0, 100),
    shard_size=st.sampled_from([500, 10**6]),
)
def test_samples_that_writers_wrote_apart_are_those_of_one_writer(
    format: str, count: int, place: int, shard_size: int
) -> None:
    with TemporaryDirectory() as folder:
        at, end = Path(folder), place % (count - 1) + 1
        for name, numbers in {"whole": range(count), "first": range(end), "second": range(end, count)}.items():
            classes = ["cat", "dog", "über"]
            with packer.Writer(
                at / name, format=format, shard_size=shard_size, classes=classes, progress=False
            ) as writer:
                for number in numbers:
                    writer.write(**sample(number))
        packer.merge([at / "first", at / "second"], at / "merged", **QUIET)
        assert facts(at / "merged") == facts(at / "whole")
