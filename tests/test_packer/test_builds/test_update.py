"""Datasets that grow: ``--update``, ``--new-classes``, ``--retry-rejects``."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import cv2
import pytest
from support.builds import write_images
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.media import photograph, scene, write_image
from support.packed import check_whole, fingerprints, read_samples

import packer
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

SMALL = {"size": 16, "engine": "inline", "progress": False, "shard_size": 4000, "max_rejects": 1.0}


def build(source: Any, out: Path, **options: Any) -> packer.BuildResult:
    return packer.build(source, out, **{**SMALL, **options})


def shard_files(out: Path) -> dict[str, tuple[str, int, int]]:
    """Every file of every shard: digest, inode, time."""
    paths = [p for p in out.rglob("*") if p.is_file() and p.relative_to(out).parts[0].startswith("shard-")]
    return {
        path.relative_to(out).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_ino,
            path.stat().st_mtime_ns,
        )
        for path in paths
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes; two images cannot be read."""
    root = write_images(tmp_path / "source", [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(10)])
    (root / "a" / "00.png").write_bytes(b"nothing")
    (root / "b" / "01.png").write_bytes(b"")
    return root


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_new_items_become_a_generation_and_no_shard_is_rewritten(source: Path, tmp_path: Path, format: str) -> None:
    out, how = tmp_path / "out", {"format": format, "label_from": "folder"}
    build(source, out, **how)
    before, first = shard_files(out), Layout(out).load()
    open_before = open_dataset(out)
    write_images(source, [f"{'ab'[n % 2]}/0x{n}.png" for n in range(5)])
    write_image(source / "a" / "wide.png", scene(3, (40, 18)))  # of another shape than all others
    result = build(source, out, update=True, **how)
    assert result.growth is not None
    assert (result.growth.new, result.growth.kept, result.growth.gone) == (6, 10, 0)
    assert before.items() <= shard_files(out).items()
    manifest = check_whole(out)
    assert [generation.kind for generation in manifest.generations] == ["build", "update"]
    assert manifest.generations[0] == first.generations[0]
    assert packer.verify(out, deep=True, progress=False).problems == ()
    samples = read_samples(out)
    assert [sample["key"] for sample in samples] == [f"{n:08d}-000000" for n in (1, 2, 3, 4, *range(6, 16))]
    assert [sample["source"] for sample in samples[8:]] == [
        *("a/0x0.png", "a/0x2.png", "a/0x4.png", "a/wide.png", "b/0x1.png", "b/0x3.png")
    ]
    assert [len(open_before), len(open_dataset(out))] == [8, 14]
    assert [open_before[row]["source"] for row in range(8)] == [sample["source"] for sample in samples[:8]]
    again = shard_files(out)
    assert build(source, out, update=True, **how).found_finished
    assert shard_files(out) == again
    packer.convert(out, tmp_path / "converted", format="npy", workers=1, engine="inline", progress=False)
    packer.merge([out, out.parent / "converted"], tmp_path / "merged", workers=1, engine="inline", progress=False)
    assert not any("generation" in line for line in read_jsonl(file_of(tmp_path / "merged", "items.jsonl")))


def test_classes_keep_their_numbers(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out, label_from="folder")
    write_images(source, ["A/new.png", "b/new.png"])
    with pytest.raises(UsageError, match=r"\(a, b\), found also 'A': append them with --new-classes"):
        build(source, out, label_from="folder", update=True)
    assert not (out / ".build").exists()
    result = build(source, out, label_from="folder", update=True, new_classes=True)
    assert result.manifest.schema["label"].classes == ("a", "b", "A")
    labels = {sample["source"]: int(sample["label"]) for sample in read_samples(out)}
    assert (labels["a/02.png"], labels["b/03.png"], labels["A/new.png"], labels["b/new.png"]) == (0, 1, 2, 1)
    assert open_dataset(out)[-2]["label"] == 2
    result = build(source, out, label_from="folder", update=True)
    assert result.found_finished
    assert result.growth is not None
    assert (result.growth.kept, result.growth.changed) == (12, 0)


@pytest.mark.parametrize("named_by", [{"label_names": "name"}, {"classes": ["cat", "dog"]}])
def test_no_class_stays_no_class(tmp_path: Path, named_by: dict[str, Any]) -> None:
    lines = ["path,label,name", "0.png,0,cat", "1.png,-1,", "2.png,1,dog", "3.png,-1,", "4.png,1,dog"]
    write_images(tmp_path, [f"{n}.png" for n in range(5)])
    table, out = tmp_path / "table.csv", tmp_path / "out"
    table.write_text("\n".join(lines[:4]) + "\n")
    build(table, out, **named_by)
    table.write_text("\n".join(lines) + "\n")
    result = build(table, out, update=True, changed="replace", **named_by)
    assert result.growth is not None
    assert (result.growth.new, result.growth.kept) == (2, 3)
    assert [int(sample["label"]) for sample in read_samples(out)] == [0, -1, 1, -1, 1]
    assert build(table, out, update=True, **named_by).found_finished


def test_what_changed_and_what_is_gone_is_reported_and_stays(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    write_image(source / "a" / "02.png", scene(77, (24, 18)))
    write_image(source / "a" / "00.png", scene(78, (24, 18)))
    (source / "b" / "03.png").unlink()
    before = fingerprints(out)
    done = run_packer("build", source, out, "--size", 16, "--shard-size", 4000, "--update", "--max-rejects", "50%")
    assert "0 new, 7 kept, 2 changed" in done.stdout
    assert "1 of them rejected: --retry-rejects" in done.stdout
    assert "1 gone" in done.stdout
    assert fingerprints(out) == before


def test_rejects_that_now_work_become_a_generation(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    before = shard_files(out)
    write_image(source / "a" / "00.png", scene(1, (24, 18)))
    write_image(source / "b" / "01.png", scene(2, (24, 18)))
    result = build(source, out, retry_rejects="EMPTY file")
    assert result.growth is not None
    assert (result.growth.retried, result.growth.mended) == (1, 1)
    counts = [(g.kind, g.counts.items, g.counts.rejected_items) for g in check_whole(out).generations]
    assert counts == [("build", 9, 1), ("retry", 1, 0)]
    assert read_samples(out)[-1]["key"] == "00000005-000000"
    write_image(source / "c.png", scene(3, (24, 18)))
    result = build(source, out, retry_rejects=True, update=True)
    assert result.growth is not None
    assert (result.growth.new, result.growth.retried, result.growth.mended) == (1, 1, 1)
    counts = [(g.kind, g.counts.items, g.counts.rejected_items) for g in check_whole(out).generations]
    assert counts == [("build", 8, 0), ("retry", 1, 0), ("update", 2, 0)]
    assert read_jsonl(file_of(out, "rejects.jsonl")) == []
    assert before.items() <= shard_files(out).items()
    assert packer.verify(out, deep=True, progress=False).problems == ()
    assert build(source, out, retry_rejects=True).found_finished


def test_a_text_that_no_reject_has_is_reported(source: Path, tmp_path: Path) -> None:
    out, how = tmp_path / "out", {"label_from": "none"}
    build(source, out, **how)
    note = "--retry-rejects: no reject has 'emptied' in its step or reason (see 'packer rejects')"
    result = build(source, out, retry_rejects="emptied", **how)
    assert result.found_finished
    assert result.notes == (note,)
    more = {"size": 16, "shard_size": 4000, "progress": False}
    assert packer.dry_run(source, out, retry_rejects="emptied", **more, **how).notes == (note,)
    assert build(source, out, retry_rejects="empty", **how).notes == ()


def test_rejects_that_fail_again_say_why_now(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    (source / "a" / "00.png").write_bytes(b"")
    result = build(source, out, retry_rejects=True)
    assert result.growth is not None
    assert (result.growth.retried, result.growth.mended) == (2, 0)
    assert len(check_whole(out).generations) == 1
    assert [kind.items for kind in packer.rejects(out).kinds] == [2]
    result = build(source, out, update=True)
    assert result.growth is not None
    assert result.growth.changed == 0


def test_new_items_that_are_all_rejected_are_accounted_for(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    (source / "z.png").write_bytes(b"")
    build(source, out, update=True)
    manifest = check_whole(out)
    assert [(g.counts.items, len(g.shards) > 0) for g in manifest.generations] == [(10, True), (1, False)]
    assert len(open_dataset(out)) == 8
    assert build(source, out, update=True).found_finished
    assert packer.verify(out, deep=True, progress=False).problems == ()


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_table_grows(source: Path, tmp_path: Path) -> None:
    """By rows, also of files that other rows name; a column without missing values keeps its field that says so."""
    out, table = tmp_path / "out", source / "table.csv"
    rows: list[dict[str, Any]] = [
        {"path": f"{'ab'[n % 2]}/{n:02d}.png", "label": "xy"[n % 2], "age": n or ""} for n in range(2, 6)
    ]
    rows[0]["age"] = ""
    build(write_table(table, rows), out)
    more = [{"path": "a/06.png", "label": "y", "age": 7}, {**rows[1], "age": 9}]
    result = build(write_table(table, [more[0], *rows, more[1]]), out, update=True)
    assert result.growth is not None
    assert (result.growth.new, result.growth.kept, result.growth.changed) == (2, 4, 0)
    assert [int(sample["age"]) for sample in read_samples(out)] == [0, 3, 4, 5, 7, 9]
    result = build(write_table(source / "batch.csv", [{**more[0], "path": "b/07.png"}]), out, update=True)
    assert result.growth is not None
    assert (result.growth.new, result.growth.gone) == (1, 6)
    assert [bool(sample["age_valid"]) for sample in read_samples(out)] == [False, *[True] * 6]
    for odd, found in (
        ([{"path": "b/09.png", "label": "x", "age": 0.5}], "'age' has another type"),
        ([{"path": "b/09.png", "label": "x"}], "'age' is missing"),
        ([{"path": "b/09.png", "label": "x", "age": 1, "more": 1}], "'more' is new"),
        ([{"path": "b/09.png", "label": "x", "age": 1, "more_valid": 1}], "'more_valid' is new"),
        ([{"path": "b/09.png", "label": 1, "age": 1}], "expected class names in 'label'"),
    ):
        with pytest.raises(UsageError, match=found):
            build(write_table(table, odd), out, update=True)
    assert check_whole(out).samples == 7


def test_a_column_that_is_new_is_named_with_the_ways_out(source: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out", source / "table.csv"
    rows: list[dict[str, Any]] = [{"path": f"a/{n:02d}.png", "label": "x"} for n in (2, 4)]
    build(write_table(table, rows), out)
    grown = write_table(table, [{**row, "age": 7} for row in [*rows, {"path": "a/06.png", "label": "x"}]])
    with pytest.raises(
        UsageError, match=r"'age' is new.* and add them to the packed samples with 'packer add'.*overwrite"
    ):
        build(grown, out, update=True)
    added = write_table(tmp_path / "age.csv", [{"source": row["path"], "age": 7} for row in rows])
    run_packer("add", out, added, "--on", "source", "--allow-missing", "--quiet")
    with raises(
        UsageError,
        expected="the same columns as in the shards of the dataset",
        found="others ('age' is not in the shards, since 'packer add' added it)",
    ):
        build(grown, out, update=True)
    build(write_table(table, [*rows, {"path": "a/06.png", "label": "x"}]), out, update=True)
    assert open_dataset(out).column("age_valid").tolist() == [True, True, False]


def test_arrays_of_rows_grow(tmp_path: Path) -> None:
    rows = [{"image": scene(n, (24, 18)), "points": [n, 1.5]} for n in range(3)]
    build(rows[:2], tmp_path / "out")
    result = build(rows, tmp_path / "out", update=True)
    assert result.growth is not None
    assert (result.growth.new, result.growth.kept) == (1, 2)
    assert check_whole(tmp_path / "out").samples == 3
    with pytest.raises(UsageError, match=r"field 'points': .*\(2,\).*\(3,\)"):
        build([*rows, {"image": rows[0]["image"], "points": [1, 2, 3.5]}], tmp_path / "out", update=True)
    assert build(rows, tmp_path / "out", update=True).found_finished


def test_wrong_calls(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with raises(UsageError, expected="a packed dataset whose rejects can be tried again", found="none"):
        build(source, out, retry_rejects=True)
    assert build(source, out, update=True).growth is None  # the first batch
    for options, message in (
        ({"size": 8}, "option size: was 16, now 8"),
        ({"format": "npy"}, "option format: was 'lmdb', now 'npy'"),
        ({"overwrite": True}, "found both"),
    ):
        with pytest.raises(UsageError, match=message):
            build(source, out, update=True, **options)
    with pytest.raises(UsageError, match="read only with update"):
        build(source, out, new_classes=True)
    with raises(UsageError, option="update", found="a packed dataset"):
        build(out, tmp_path / "other", update=True) and build(out, tmp_path / "other", update=True)
    write_images(source, ["z.png"])
    with pytest.raises(UsageError, match=r"'z\.png' new.*or --update to add the new items"):
        build(source, out)
    with pytest.raises(UsageError, match=r"option size: was 16, now 8.*or --overwrite\Z"):
        build(source, out, size=8)
    packer.convert(out, tmp_path / "npy", format="npy", workers=1, engine="inline", progress=False)
    with raises(UsageError, found="a convert"):
        build(source, tmp_path / "npy", format="npy", update=True)
    with raises(UsageError, found="others (option shard_size: was 4000, now None)"):
        packer.dry_run(source, out, size=16, update=True, progress=False)
    assert not (out / ".build").exists()


def test_what_was_built_from_a_packed_dataset_takes_no_files(source: Path, tmp_path: Path) -> None:
    """Their samples would stand in it twice."""
    first, out, how = tmp_path / "first", tmp_path / "out", {"size": None, "label_from": "auto"}
    build(source, first, **how)
    build(first, out, **how)
    before = fingerprints(out)
    for changes in ({"update": True}, {"retry_rejects": True}):
        with pytest.raises(
            UsageError, match="found one that was built from a packed dataset: add to the original dataset"
        ):
            build(source, out, **how, **changes)
    build(source, tmp_path / "again", **{**how, "limit": 5})
    for other in (source, tmp_path / "again"):
        with pytest.raises(UsageError, match=r"new.*: choose another folder, or --overwrite\Z"):
            build(other, out, **how)
    assert fingerprints(out) == before


def test_added_fields_come_off_before_a_dataset_grows_and_on_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    keys = [row["key"] for row in read_samples(out)]
    packer.add(out, {"key": keys, "guess": [0.5] * len(keys)}, progress=False)
    write_images(source, ["a/new.png"])
    with raises(
        UsageError,
        expected="added fields in which values may be missing, since new samples have none",
        found="fields without missing values (guess)",
    ):
        build(source, out, update=True)
    assert check_whole(out).samples == len(keys)
    packer.drop_field(out, "guess", progress=False)
    build(source, out, update=True)
    keys = [row["key"] for row in read_samples(out)]
    packer.add(out, {"key": keys, "guess": list(map(float, range(len(keys))))}, progress=False)
    assert open_dataset(out).column("guess").tolist() == list(range(len(keys)))


def test_the_history_says_when_what_and_by_which_version(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    for number in range(2):
        write_images(source, [f"z{number}.png"])
        build(source, out, update=True)
    kinds = [generation.kind for generation in Layout(out).load().generations]
    assert kinds == ["build", "update"], "the manifest does not grow with them"
    notes = packer.inspect(out).history
    assert [(note.kind, note.items) for note in notes] == [("build", 10), ("update", 1), ("update", 1)]
    assert all(note.finished and note.version for note in notes)
    assert "--history: read only without" in run_packer("inspect", out, "--history", "--by", "key", expect=2).stderr
    shown = run_packer("inspect", out, "--history").stdout
    assert f"  {notes[2].finished}, update by version {notes[2].version}: 1 item (0 rejected), 1 sample" in shown
    assert json.loads(run_packer("inspect", out, "--json").stdout)["history"][1]["kind"] == "update"


def test_a_retry_may_change_what_decides_on_rejects(tmp_path: Path) -> None:
    """Each retry records its own recipe, and new items follow the recipe of the build."""
    write_image(tmp_path / "in" / "near.png", photograph("astronaut"))
    write_image(tmp_path / "in" / "far.png", cv2.resize(photograph("astronaut"), (256, 256)))
    out = tmp_path / "out"
    how: dict[str, Any] = {"preset": "faces", "size": 32, "progress": False, "max_rejects": "100%"}

    def call(**more: Any) -> packer.BuildResult:
        return packer.build(tmp_path / "in", out, **{**how, "min_face": 80, "engine": "inline", **more})

    assert call().manifest.samples == 1
    before = shard_files(out)
    with raises(UsageError, found="others (option min_face: was 80, now 40)"):
        call(retry_rejects=True, update=True, min_face=40)
    with raises(UsageError, found="others (option size: was 32, now 48)"):
        call(retry_rejects=True, size=48)
    result = call(retry_rejects=True, min_face=40, engine="processes", workers=1, item_timeout=900)
    assert result.growth is not None
    assert result.growth.mended == 1
    write_image(tmp_path / "in" / "small.png", cv2.resize(photograph("astronaut"), (200, 200)))
    call(update=True)
    assert call(retry_rejects=True, min_score=0.9, min_face=30).manifest.samples == 3
    made = check_whole(out).generations
    recipes = [(g.kind, g.recipe["min_face"], g.recipe["min_score"], g.recipe.get("item_timeout")) for g in made]
    assert recipes == [
        ("build", 80, 0.95, None),
        ("retry", 40, 0.95, 900),
        ("update", 80, 0.95, None),
        ("retry", 30, 0.9, None),
    ]
    assert before.items() <= shard_files(out).items()
    assert packer.verify(out, deep=True, progress=False).problems == ()
