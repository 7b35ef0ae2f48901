"""Updates that replace and drop (``--changed replace``, ``--gone drop``): what stays is copied into new shards."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import write_images
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.media import FAST_START, cut_file, scene, write_image, write_video
from support.packed import check_whole, fingerprints, read_samples

import packer
from readers import open_dataset
from shardspec.errors import DatasetChangedError, DatasetError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

HOW: dict[str, Any] = {
    "label_from": "folder",
    "size": 16,
    "every": 1,
    "encode": "png",
    "shard_size": 9_000,
    "engine": "inline",
    "progress": False,
    "max_rejects": 1.0,
}
MIRROR: dict[str, Any] = {"update": True, "changed": "replace", "gone": "drop"}


def write_source(root: Path) -> Path:
    """Images and videos of two classes."""
    for number in range(3):
        write_video(root / "ab"[number % 2] / f"{number}.mp4", size=(48, 36), frames=6, number=number)
    return write_images(root, [f"{'ab'[n % 2]}/{n}.png" for n in range(6)])


def change_source(root: Path) -> None:
    """Another video, another image, one of each gone, one new."""
    write_video(root / "b" / "1.mp4", size=(48, 36), frames=5, number=7)
    write_image(root / "a" / "0.png", scene(9, (24, 18)))
    (root / "a" / "2.mp4").unlink()
    (root / "b" / "3.png").unlink()
    write_image(root / "a" / "new.png", scene(11, (24, 18)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source before and after."""
    before = write_source(tmp_path_factory.mktemp("source") / "before")
    after = Path(shutil.copytree(before, before.parent / "after"))
    change_source(after)
    return {"before": before, "after": after}


@pytest.fixture(scope="module", params=sorted(FORMATS))
def datasets(
    sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Path]:
    """A dataset that was updated, and one that was packed at once."""
    root = tmp_path_factory.mktemp(request.param)
    how = {**HOW, "format": request.param}
    packer.build(sources["before"], root / "live", **how)
    standing = fingerprints(root / "live")
    result = packer.build(sources["after"], root / "live", **how, **MIRROR)
    assert result.growth is not None
    growth = result.growth.to_json()
    assert (growth["new"], growth["kept"], growth["changed"], growth["gone"]) == (1, 5, 2, 2)
    assert (growth["replaced"], growth["dropped"], growth["removed"]) == (2, 2, 14)
    assert not {name for name in fingerprints(root / "live") if name.startswith("shard")} & standing.keys()
    packer.build(sources["after"], root / "rebuilt", **how)
    return {name: root / name for name in ("live", "rebuilt")}


def test_the_samples_are_those_of_a_build_of_the_source_as_it_is(datasets: dict[str, Path]) -> None:
    def contents(path: Path) -> dict[Any, Any]:
        return {
            (s["source"], int(s["frame"])): (int(s["label"]), s["image"].tobytes(), float(s["time"]))
            for s in read_samples(path)
        }

    assert contents(datasets["live"]) == contents(datasets["rebuilt"])
    live, rebuilt = check_whole(datasets["live"]), check_whole(datasets["rebuilt"])
    assert live.samples == rebuilt.samples == len(read_samples(datasets["live"]))
    totals = [packer.inspect(datasets[name]).to_json() for name in ("live", "rebuilt")]
    for name in ("items", "packed_items", "rejected_items", "samples", "frames_without_sample"):
        assert totals[0][name] == totals[1][name]
    assert packer.verify(datasets["live"], deep=True, progress=False).problems == ()
    keys = [sample["key"] for sample in read_samples(datasets["live"])]
    assert len(set(keys)) == len(keys)


def test_open_readers_and_further_updates(datasets: dict[str, Path], sources: dict[str, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(datasets["live"], tmp_path / "out"))
    keys = open_dataset(out).column("key")
    packer.add(out, {"key": keys, "score": np.arange(len(keys))}, allow_missing=True, progress=False)
    opened = open_dataset(out)
    first = opened[0]["key"]
    write = {**HOW, "format": Layout(out).load().format, **MIRROR}
    assert packer.build(sources["after"], out, **write).found_finished
    result = packer.build(sources["before"], out, **write)
    assert result.growth is not None
    assert result.growth.new == 2  # they have returned
    assert opened[0]["key"] == first
    with pytest.raises(DatasetChangedError):
        opened.read_batch(range(len(opened)))
    ds = open_dataset(out)
    found = dict(zip(ds.column("key"), ds.column("source"), strict=True))
    assert (len(found), found["00000002-000000"]) == (3 * 6 + 6, "a/2.mp4")
    score = dict(zip(keys, range(len(keys)), strict=True))
    for row, key in enumerate(ds.column("key")):
        sample = ds[row]
        assert not sample["score_valid"] or sample["score"] == score[key]
    check_whole(out)
    assert packer.verify(out, deep=True, progress=False).problems == ()
    assert [note.kind for note in packer.inspect(out).history] == ["build", "update", "update"]


def test_the_command(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "source", [f"{n}.png" for n in range(5)]), tmp_path / "out"
    build = ("build", source, out, "--size", 16, "--quiet")
    run_packer(*build)
    write_image(source / "1.png", scene(8, (24, 18)))
    (source / "2.png").unlink()
    before = fingerprints(out)
    for wrong in ({"changed": "replace"}, {"update": True, "gone": "some"}, {"gone": "drop", "retry_rejects": True}):
        with pytest.raises(UsageError, match=r"changed|gone"):
            packer.build(source, out, size=16, progress=False, **wrong)
    tried = run_packer(*build, "--update", "--changed", "replace", "--gone", "drop", "--dry-run").stdout
    assert "0 new, 3 kept, 1 changed (replaced), 1 gone (dropped); 2 samples removed" in tried
    assert "tried 1 item: 1 sample" in tried
    assert fingerprints(out) == before
    done = run_packer(*build, "--update", "--changed", "replace", "--gone", "drop", "--json")
    found = json.loads(done.stdout)["update"]
    assert (found["replaced"], found["dropped"], found["removed"]) == (1, 1, 2)
    history = run_packer("inspect", out, "--history").stdout
    assert "update by version" in history
    assert "1 replaced, 1 gone (2 samples removed)" in history
    assert check_whole(out).samples == 4
    refused = run_packer(*build, expect=2).stderr  # what was dropped is not named: the source lacks it, and the dataset
    assert "(made by another plan: it has been updated since it was first packed): choose another folder" in refused
    shutil.rmtree(source)
    write_images(source, ["another.png"])
    assert "use the source" in run_packer(*build, "--update", "--gone", "drop", expect=2).stderr
    assert check_whole(out).samples == 4


def test_a_reject_takes_the_place_of_what_was_packed(tmp_path: Path) -> None:
    source, out = write_source(tmp_path / "source"), tmp_path / "out"
    (source / "b" / "5.png").write_bytes(b"")
    packer.build(source, out, **HOW)
    (source / "a" / "0.png").write_bytes(b"nothing")
    (source / "b" / "5.png").write_bytes(b"nothing either")
    packer.build(source, out, **HOW, **MIRROR)
    lines = {line["item"]: line for line in read_jsonl(file_of(out, "items.jsonl"))}
    assert [lines[name]["state"] for name in ("a/0.png", "b/5.png", "b/1.png")] == ["rejected", "rejected", "packed"]
    manifest = check_whole(out)
    counts = [(g.counts.items, g.counts.packed_items, g.counts.rejected_items) for g in manifest.generations]
    assert counts == [(8, 7, 1), (1, 0, 1)]
    (source / "b" / "5.png").unlink()
    packer.build(source, out, **HOW, **MIRROR)
    assert {line["item"] for line in read_jsonl(file_of(out, "rejects.jsonl"))} == {"a/0.png"}
    write_image(source / "a" / "0.png", scene(1, (24, 18)))
    result = packer.build(source, out, **HOW, **MIRROR)
    assert result.growth is not None
    assert (result.growth.retried, result.growth.mended) == (1, 1)
    assert check_whole(out).samples == 3 * 6 + 5


def test_lines_about_frames_follow_their_item(tmp_path: Path) -> None:
    """Rows of one name, whose lines stand one after another in ``rejects.jsonl``."""
    table, out = tmp_path / "table.jsonl", tmp_path / "out"
    cut_file(write_video(tmp_path / "v.mp4", size=(48, 36), frames=24, container=FAST_START), 0.6)
    rows = [{"path": "v.mp4", "take": take} for take in (1, 2, 3)]

    def write(chosen: list[dict[str, Any]]) -> None:
        table.write_text("".join(json.dumps(row) + "\n" for row in chosen))

    how = {**HOW, "label_from": "none"}
    write(rows)
    packer.build(table, out, **how)
    before = read_jsonl(file_of(out, "rejects.jsonl"))
    assert [line["kind"] for line in before] == ["damage"] * 3
    write([rows[0], {"path": "v.mp4", "take": 7}, rows[2]])
    packer.build(table, out, **how, **MIRROR)
    write([rows[0]])
    packer.build(table, out, **how, **MIRROR)
    shutil.rmtree(tmp_path / "rebuilt", ignore_errors=True)
    packer.build(table, tmp_path / "rebuilt", **how)
    assert read_jsonl(file_of(out, "rejects.jsonl")) == read_jsonl(file_of(tmp_path / "rebuilt", "rejects.jsonl"))
    ours, rebuilt = packer.inspect(out).to_json(), packer.inspect(tmp_path / "rebuilt").to_json()
    assert [ours[name] for name in ("items", "samples", "damaged_items")] == [
        rebuilt[name] for name in ("items", "samples", "damaged_items")
    ]


def test_the_same_history_gives_the_same_bytes_at_any_number_of_workers(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    found = []
    for engine, workers in (("inline", 1), ("processes", 2)):
        out, how = tmp_path / f"{workers}", {**HOW, "engine": engine, "workers": workers, "shuffle": 3}
        packer.build(sources["before"], out, **how)
        packer.build(sources["after"], out, **how, **MIRROR)
        found.append(fingerprints(out))
    assert found[0] == found[1]


def test_added_fields(sources: dict[str, Path], tmp_path: Path) -> None:
    out, how = tmp_path / "out", {**HOW, "format": "npy"}
    packer.build(sources["before"], out, **how)
    keys = open_dataset(out).column("key")
    table = {"key": keys, "score": np.arange(len(keys)) / 8, "note": [f"of {key}" for key in keys]}
    packer.add(out, table, progress=False)
    standing = fingerprints(out)
    with pytest.raises(UsageError, match=r"note, score.*packer add --replace --allow-missing"):
        packer.build(sources["after"], out, **how, **MIRROR)
    assert fingerprints(out) == standing
    score = dict(zip(keys, table["score"], strict=True))
    gone = tmp_path / "gone"
    shutil.copytree(sources["before"], gone)
    (gone / "a" / "2.mp4").unlink()
    packer.build(gone, out, **how, update=True, gone="drop")  # no sample without a value
    ds = open_dataset(out)
    assert ds.column("score").tolist() == [score[key] for key in ds.column("key")]
    kept = [row for row, key in enumerate(keys) if key in set(ds.column("key"))]
    table = {name: [values[row] for row in kept] for name, values in table.items()}
    packer.add(out, table, replace=True, allow_missing=True, progress=False)
    packer.build(sources["after"], out, **how, **MIRROR)
    ds = open_dataset(out)
    assert not all(ds.column("score_valid"))
    for row, key in enumerate(ds.column("key")):
        sample = ds[row]
        if sample["score_valid"]:
            assert (sample["score"], sample["note"]) == (score[key], f"of {key}")
        else:
            assert sample["source"] in {"a/0.png", "b/1.mp4", "a/new.png"}
            assert (sample["score"], sample["note"], bool(sample["note_valid"])) == (0, "", False)
    assert packer.verify(out, deep=True, progress=False).problems == ()
    check_whole(out)


def test_an_update_that_goes_on_with_another_gone_names_it(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "source", [f"{n}.png" for n in range(4)]), tmp_path / "out"
    build = ("build", source, out, "--size", 16, "--engine", "inline", "--update")
    run_packer(*build)
    (source / "1.png").unlink()
    write_image(source / "broken.png", scene(0, (24, 18))).write_bytes(b"")
    run_packer(*build, "--gone", "drop", "--on-error", "fail", expect=1)
    done = run_packer(*build, "--max-rejects", "100%").stderr
    assert "the source or --gone has changed since the build was started (the items that are dropped)" in done
    assert check_whole(out).samples == 4


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_damage_in_an_old_shard_is_not_copied(sources: dict[str, Path], tmp_path: Path, format: str) -> None:
    out, how = tmp_path / "out", {**HOW, "format": format}
    packer.build(sources["before"], out, **how)
    entry = Layout(out).load().shards[-1].files[0]
    data = bytearray((out / entry.name).read_bytes())
    data[len(data) // 2] ^= 1
    (out / entry.name).write_bytes(data)
    before = Layout(out).load()
    with pytest.raises(DatasetError, match="SHA-256"):
        packer.build(sources["after"], out, **how, **MIRROR)
    assert Layout(out).load() == before
    data[len(data) // 2] ^= 1
    (out / entry.name).write_bytes(data)
    packer.build(sources["after"], out, **how, **MIRROR)
    check_whole(out)


def test_an_update_that_would_leave_no_sample_is_refused(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "source", ["0.png"]), tmp_path / "out"
    how = {**HOW, "label_from": "none"}
    packer.build(source, out, **how)
    before = fingerprints(out)
    (source / "0.png").write_bytes(b"nothing")
    with raises(
        UsageError,
        expected="an update that leaves samples",
        found="one that removes all 1 and adds none",
    ):
        packer.build(source, out, **how, **MIRROR)
    shutil.rmtree(out / ".build", ignore_errors=True)
    assert fingerprints(out) == before


def test_a_dry_run_counts_the_room_for_copies(sources: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    packer.build(sources["before"], out, **HOW)
    shards = sum(shard.bytes for shard in Layout(out).load().shards)
    how = {name: value for name, value in HOW.items() if name != "engine"}
    assert packer.dry_run(sources["after"], out, **how, **MIRROR).copied_bytes == shards
    assert packer.dry_run(sources["after"], out, **how, update=True).copied_bytes == 0
