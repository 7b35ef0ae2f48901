"""``rejects.jsonl``, ``items.jsonl`` and the counts."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.command import read_jsonl

from packer.builds.reports import BaseReports, ReportWriter
from packer.steps.report import ItemReport
from shardspec.entries import Counts

names = st.text(max_size=8) | st.binary(max_size=8).map(lambda b: b.decode("utf-8", "surrogateescape"))
reports = st.builds(
    ItemReport,
    names,
    samples=st.integers(0, 4),
    frames=st.integers(0, 9),
    faces=st.none() | st.integers(0, 9),
    skipped=st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=2),
    damage=st.none() | st.text(max_size=5),
    step=st.just("decode"),
    reason=st.text(max_size=9),
)


def write(folder: Path, given_reports: list[ItemReport], ignored: int = 0) -> Counts:
    """Write both files."""
    with ReportWriter(folder / "rejects.jsonl", folder / "items.jsonl") as writer:
        writer.add(given_reports)
        return writer.counts(ignored)


def test_every_kind_of_line(tmp_path: Path) -> None:
    counts = write(
        tmp_path,
        [
            ItemReport("good.jpg", samples=1, frames=1),
            ItemReport("bad.jpg", step="decode", reason="expected an image"),
            ItemReport("cut.mp4", samples=3, frames=5, faces=2, skipped={"no face": [1, 4]}, damage="cut at 2.0 s"),
            ItemReport("dark.mp4", frames=9, faces=0, step="faces", reason="no face (9 frames)"),
        ],
        ignored=6,
    )
    assert counts == Counts(
        items=4,
        packed_items=2,
        rejected_items=2,
        ignored_files=6,
        samples=4,
        frames_without_sample=2,
        damaged_items=1,
        progressive_jpegs=0,
    )
    assert read_jsonl(tmp_path / "items.jsonl") == [
        {"item": "good.jpg", "state": "packed", "samples": 1, "frames": 1},
        {"item": "bad.jpg", "state": "rejected", "samples": 0, "frames": 0},
        {"item": "cut.mp4", "state": "packed", "samples": 3, "frames": 5, "faces": 2},
        {"item": "dark.mp4", "state": "rejected", "samples": 0, "frames": 9, "faces": 0},
    ]
    assert read_jsonl(tmp_path / "rejects.jsonl") == [
        {"kind": "item", "item": "bad.jpg", "step": "decode", "reason": "expected an image"},
        {"kind": "frames", "item": "cut.mp4", "reason": "no face", "frames": [1, 4]},
        {"kind": "damage", "item": "cut.mp4", "reason": "cut at 2.0 s"},
        {"kind": "item", "item": "dark.mp4", "step": "faces", "reason": "no face (9 frames)"},
    ]


@given(st.lists(reports, max_size=6))
def test_counts_add_up_and_every_line_is_json_in_utf8(tmp_path: Path, given_reports: list[ItemReport]) -> None:
    counts = write(tmp_path, given_reports)
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_bytes().decode("utf-8").split("\n")[:-1]]
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_bytes().decode("utf-8").split("\n")[:-1]]
    assert [item["item"] for item in items] == [report.name for report in given_reports]
    assert counts.items == len(items) == counts.packed_items + counts.rejected_items
    assert counts.rejected_items == sum(line["kind"] == "item" for line in rejects)
    assert counts.damaged_items == sum(line["kind"] == "damage" for line in rejects)
    assert counts.frames_without_sample == sum(len(line["frames"]) for line in rejects if line["kind"] == "frames")
    assert counts.samples == sum(report.samples for report in given_reports)


def test_an_item_that_counts_no_remarks_takes_none_of_its_name(tmp_path: Path) -> None:
    items = [{"item": name, "state": "packed", "samples": 1, "source_digest": "x"} for name in ("a", "b", "a")]
    items[2]["remarks"] = 1
    for name, lines in (
        ("items.jsonl", items),
        ("rejects.jsonl", [{"kind": "damage", "item": "a", "reason": "cut"}]),
    ):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    layout: Any = SimpleNamespace(root=tmp_path, check_digest=lambda _: None, file=lambda name: tmp_path / name)
    manifest: Any = SimpleNamespace(find_file=lambda name: name)
    earlier = BaseReports(layout, manifest)
    found = [earlier.copy(number, io.BytesIO(), io.BytesIO()) for number in range(3)]
    assert [len(one.rejects) for one in found if one is not None] == [0, 0, 1]
