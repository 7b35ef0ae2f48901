"""Items whose samples have other fields than those of most items: plain rejects, wherever they stand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS, write_images
from support.command import environment, file_of, read_jsonl, run_packer
from support.packed import check_whole

NAMES = [f"{number:02d}.png" for number in range(70)]
"""Three tasks: of 32 items, 32 and 6."""

REASON = "expected the same fields as in most items, found others: field 'extra' is new"


def build(source: Path, out: Path, *more: object, step: str = "add_field", expect: int = 0) -> Any:
    """Build with a step of `support.steps`; the result as JSON, or the messages where there is none."""
    steps = ("--steps", f"decode,support.steps:{step}", "--max-rejects", "100%", "--quiet", "--json")
    env = environment(python_path=TESTS) if "--workers" in more else None
    done = run_packer("build", source, out, *steps, *more, env=env, expect=expect)
    return json.loads(done.stdout) if done.stdout else done.stderr


def source_with(folder: Path, *odd: int, names: Sequence[str] = NAMES) -> Path:
    """Images, of which those at some places are odd."""
    return write_images(folder, [f"{name[:2]}-bad.png" if place in odd else name for place, name in enumerate(names)])


@pytest.mark.parametrize("places", [(31,), (0, 32, 33, 69), tuple(range(32))])
def test_odd_items_are_rejects_wherever_they_stand(tmp_path: Path, places: tuple[int, ...]) -> None:
    source = source_with(tmp_path / "source", *places)
    one = build(source, tmp_path / "one")
    assert (one["items"], one["packed_items"], one["rejected_items"]) == (70, 70 - len(places), len(places))
    lines = read_jsonl(file_of(tmp_path / "one", "rejects.jsonl"))
    assert [line["item"] for line in lines] == [f"{place:02d}-bad.png" for place in places]
    assert {(line["kind"], line["step"], line["reason"]) for line in lines} == {("item", "encode", REASON)}
    check_whole(tmp_path / "one")


def test_of_two_kinds_that_are_equally_many_the_first_counts(tmp_path: Path) -> None:
    source = source_with(tmp_path / "source", 0, 3, names=NAMES[:4])
    found = build(source, tmp_path / "out")
    assert (found["packed_items"], found["rejected_items"]) == (2, 2)
    lines = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert [line["item"] for line in lines] == ["01.png", "02.png"]
    assert "field 'extra' is missing" in lines[0]["reason"]


def test_odd_items_end_a_build_that_allows_no_reject(tmp_path: Path) -> None:
    source = source_with(tmp_path / "source", 0)
    reported = build(source, tmp_path / "out", "--on-error", "fail", expect=1)
    assert f"item '00-bad.png' gave no sample, and --on-error is fail: encode: {REASON}" in reported
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert build(source, tmp_path / "out")["rejected_items"] == 1


def test_odd_items_are_rejects_in_a_shuffled_dataset_of_many_shards(tmp_path: Path) -> None:
    source = source_with(tmp_path / "source", 0, 40)
    found = build(source, tmp_path / "out", "--shuffle", 3, "--shard-size", "20kB", "--format", "npy")
    assert (found["packed_items"], found["rejected_items"]) == (68, 2)
    check_whole(tmp_path / "out")


def test_a_dry_run_counts_odd_items_as_rejects(tmp_path: Path) -> None:
    source = source_with(tmp_path / "source", 0, names=NAMES[:3])
    found = build(source, tmp_path / "out", "--dry-run")
    assert (found["tried_samples"], found["tried_rejects"]) == (2, 1)
    assert REASON in found["tried_reason"]


def test_an_item_whose_samples_differ_among_themselves_is_a_reject(tmp_path: Path) -> None:
    source = source_with(tmp_path / "source", 0, names=NAMES[:3])
    assert build(source, tmp_path / "out", step="change_fields")["rejected_items"] == 1
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["reason"] == "the sample differs from those before it: field 'extra' is new"
