"""The law of the packer: pieces that are packed apart and then merged are the dataset that one build makes."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.builds import QUIET
from support.fuzz import examples
from support.media import cut_file, scene, write_image
from support.written import sample

import packer
from packer import Progress
from shardspec.formats import FORMATS
from shardspec.layout import Layout

FORMAT = st.sampled_from(sorted(FORMATS))
SIZES: list[dict[str, Any]] = [{}, {"size": 12}, {"size": 30}, {"size": 12, "resize": "exact"}]
RECIPES = st.builds(
    lambda size, **more: {**size, **more},
    st.sampled_from(SIZES),
    format=FORMAT,
    encode=st.sampled_from(["jpeg", "png", "raw", "webp"]),
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
    """Everything that the law promises: data, index, items, rejects, counts."""
    layout = Layout(out)
    manifest = layout.load()
    reports = [path.read_bytes() if path.exists() else b"" for path in (layout.items, layout.rejects)]
    index = {entry.own_name: entry.sha256 for entry in manifest.files if entry.name.startswith("index")}
    return manifest.digest, reports, index, [(g.kind, g.counts, len(g.shards)) for g in manifest.generations]


def run(job: Callable[..., Any], *arguments: Any, interrupt: int, **options: Any) -> None:
    """Run a job, interrupted at a report if it has that many, and then to its end."""
    try:
        job(*arguments, **options, engine="inline", progress=Interrupts(interrupt) if interrupt else False)
    except KeyboardInterrupt:
        job(*arguments, **options, **QUIET)


def write_rows(root: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """A table of images of several sizes and kinds, one in seven of them damaged; never the first of a piece."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        suffix = draw.choice([".jpg", ".png", ".bmp"])
        path = write_image(
            root / f"{number:03d}{suffix}", scene(number, (draw.choice([16, 24]), draw.choice([16, 20])))
        )
        row: dict[str, Any] = {"path": str(path), "label": draw.choice("abc"), "weight": draw.random()}
        if draw.random() < 1 / 7:
            cut_file(path, 0.4)
        rows.append(row)
    return rows


def cut(rows: list[dict[str, Any]], ends: set[int]) -> list[list[dict[str, Any]]]:
    """Cut rows into pieces at some of these places."""
    places = [0, *sorted(end % (len(rows) - 1) + 1 for end in ends), len(rows)]
    return [rows[start:stop] for start, stop in pairwise(places) if stop > start]


@examples(12)
@example(  # the first items of a piece are rejected, so that no two pieces have a key in common
    how={"format": "hdf5", "encode": "jpeg", "shard_size": 1},
    count=14,
    seed=969,
    ends={0},
    interrupts=[0] * 12,
    other="npy",
    shuffle=None,
)
@given(
    how=RECIPES,
    count=st.integers(2, 24),
    seed=st.integers(0, 10**6),
    ends=st.sets(st.integers(0, 100), min_size=1, max_size=4),
    interrupts=st.lists(st.integers(0, 12), min_size=12, max_size=12),
    other=FORMAT,
    shuffle=st.none() | st.integers(0, 9),
)
def test_merged_pieces_are_the_dataset_of_one_build(
    how: dict[str, Any],
    count: int,
    seed: int,
    ends: set[int],
    interrupts: list[int],
    other: str,
    shuffle: int | None,
) -> None:
    with TemporaryDirectory() as folder:
        at = Path(folder)
        rows = write_rows(at / "images", count, seed)
        options: dict[str, Any] = {"root": at, "classes": ("a", "b", "c"), "max_rejects": 1.0, **how}
        pieces = cut(rows, ends)
        good = write_image(at / "images" / "good.png", scene(1, (16, 16)))
        for piece in pieces:  # a build without samples is an error
            piece.append({"path": str(good), "label": "a", "weight": 0.5})
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
