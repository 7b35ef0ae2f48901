"""Archives as sources: every member is packed as its file would be, and every one is accounted for."""

import io
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import (
    REC_MAGIC,
    encoded,
    npy,
    rec_header,
    samples,
    write_faces,
    write_lmdb,
    write_parquet,
    write_rec,
    write_tar,
)
from support.command import file_of, run_packer
from support.media import FAST_START, write_video

import packer
from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import TASK_ITEMS, make_plan
from packer.recipe import Recipe
from packer.sources.opening import open_source
from readers import open_dataset
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout


def build(source: Any, out: Path, **options: Any) -> Any:
    """Build in this process, and open what was made."""
    packer.build(source, out, progress=False, **{"engine": "inline", **options})
    return open_dataset(out)


def rejects(out: Path) -> dict[str, str]:
    lines = map(json.loads, file_of(out, "rejects.jsonl").read_text("utf-8").splitlines())
    return {line["item"]: line["reason"] for line in lines}


def digest(out: Path) -> str:
    return Layout(out).load().digest


def kept(out: Path) -> "Counter[bytes]":
    """The files of a dataset's images, as they are stored."""
    plain = out.with_name(f"{out.name}-plain")
    packer.export(out, plain, progress=False)
    return Counter(path.read_bytes() for path in plain.rglob("*.jpg"))


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tars with 75 samples."""
    root = tmp_path_factory.mktemp("tars")
    for number in range(3):
        write_tar(root / f"train-{number:03d}.tar", samples(25 * number, 25 * number + 25, f"{number % 2}/"))
    return root


@pytest.fixture(scope="module")
def packed(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tars as a user packs them."""
    out = tmp_path_factory.mktemp("packed") / "out"
    run_packer("build", tars, out, "--quiet", "--workers", "2", "--shard-size", "20kB")
    return out


def test_the_fields_of_samples_in_tars(packed: Path) -> None:
    dataset = open_dataset(packed)
    assert len(dataset) == 75
    sample = dataset[30]
    assert sample["source"] == "train-001.tar!1/0030.jpg"
    assert (sample["label"], sample["caption"], sample["json_key"], sample["width"]) == (0, "scene 30", "k30", 32)
    assert (sample["txt"], sample["tags"]) == ("text 30 é", ["a", 30])
    assert np.array_equal(sample["emb"], np.full(4, 30, np.float32))


def test_bytes_are_kept(packed: Path) -> None:
    assert kept(packed) == Counter(encoded(number) for number in range(75))


def test_the_bytes_are_the_same_at_any_number_of_workers_and_for_a_pattern(
    packed: Path, tars: Path, tmp_path: Path
) -> None:
    for number, name in enumerate(("", "train-{000..002}.tar", "*.tar")):
        build(tars / name, tmp_path / f"out{number}", shard_size="20kB")
        assert digest(tmp_path / f"out{number}") == digest(packed)


def test_a_compressed_tar_is_one_task_and_gives_the_same_samples(tars: Path, packed: Path, tmp_path: Path) -> None:
    for tar in tars.iterdir():
        with tarfile.open(tar) as old:
            members = [(member.name, old.extractfile(member).read()) for member in old]  # type: ignore[union-attr]
        write_tar(tmp_path / "gz" / f"{tar.name}.gz", members * 1)
    write_tar(tmp_path / "gz" / "z.tgz", samples(100, 140))
    recipe = Recipe()
    plan, _ = make_plan(recipe, {}, list_items(open_source(tmp_path / "gz", tmp_path / "x", recipe), recipe))
    assert max(task.stop - task.start for task in plan.tasks) > TASK_ITEMS
    assert {task.start for task in plan.tasks} <= {0, 25, 50, 75}
    build(tmp_path / "gz", tmp_path / "out")
    ours, plain = open_dataset(tmp_path / "out"), open_dataset(packed)
    for row in (0, 40, 74):
        assert all(np.array_equal(ours[row][name], plain[row][name]) for name in ("image", "label", "emb", "txt"))


def test_a_killed_build_of_compressed_tars_resumes(tmp_path: Path) -> None:
    """A step ends the process in the middle of the second tar; the same command then finishes."""
    for number in range(2):
        write_tar(tmp_path / "gz" / f"{number}.tgz", samples(20 * number, 20 * number + 20))
    (tmp_path / "killing.py").write_text(
        "import os, pathlib\n"
        "def kill(samples):\n"
        "    for sample in samples:\n"
        "        mark = pathlib.Path(__file__).with_name('once')\n"
        "        if sample['source'].startswith('1.tgz!0030') and not mark.exists():\n"
        "            mark.touch()\n"
        "            os._exit(9)\n"
        "        yield sample\n"
    )
    options = ("--quiet", "--steps", "decode,killing:kill")
    run_packer("build", "gz", "out", *options, "--engine", "inline", cwd=tmp_path, expect=9, process=True)
    run_packer("build", "gz", "out", *options, "--workers", "2", cwd=tmp_path)
    run_packer("build", "gz", "other", *options, "--engine", "inline", cwd=tmp_path)
    assert digest(tmp_path / "out") == digest(tmp_path / "other")


def test_an_archive_that_changes_during_the_build_rejects_its_items(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(0, 4))

    def touch(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if "0002" in sample["source"]:
                os.utime(path, ns=(1, 1))
            yield sample

    found = build(path, tmp_path / "out", steps=["decode", touch], max_rejects=0.9)
    assert len(found) == 2
    assert rejects(tmp_path / "out") == {
        f"a.tar!{number:04d}.jpg": "'a.tar' has changed since the build was planned" for number in (2, 3)
    }


def test_another_archive_of_the_same_names_is_another_plan(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(0, 4))
    build(path, tmp_path / "out")
    write_tar(path, [*samples(0, 4)[5:], *samples(0, 4)[:5]])
    with pytest.raises(UsageError):
        build(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["v.tar", "v.tgz"])
def test_a_video_in_an_archive_gives_the_frames_of_its_file(name: str, tmp_path: Path) -> None:
    names = ["a.mp4", "b.webm", "c.mov", "d.avi", "e.mkv"]
    codecs = ["libx264", "libvpx-vp9", "libx264", "mpeg4", "libx264"]
    for number, (file, codec) in enumerate(zip(names, codecs, strict=True)):
        container = FAST_START if file == "c.mov" else None
        write_video(tmp_path / "files" / file, frames=9, codec=codec, container=container, number=number)
    write_tar(tmp_path / name, [(file, (tmp_path / "files" / file).read_bytes()) for file in names])
    plain = build(tmp_path / "files", tmp_path / "plain", every=2, encode="png")
    ours = build(tmp_path / name, tmp_path / "out", every=2, encode="png")
    assert len(ours) == len(plain) == 5 * 5
    for one, other in zip(ours, plain, strict=True):
        assert one["source"] == f"{name}!{other['source']}"
        assert all(np.array_equal(one[field], other[field]) for field in ("image", "frame", "time"))


def test_a_damaged_video_in_an_archive_is_reported_as_its_file(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "files" / "a.mp4", frames=40, container=FAST_START).read_bytes()
    cut = whole[: int(0.7 * len(whole))]
    (tmp_path / "files" / "a.mp4").write_bytes(cut)
    write_tar(tmp_path / "v.tar", [("a.mp4", cut), ("b.mp4", b"no video"), ("c.mp4", b"")])
    build(tmp_path / "files", tmp_path / "plain")
    build(tmp_path / "v.tar", tmp_path / "out", max_rejects=0.9)
    ours, plain = rejects(tmp_path / "out"), rejects(tmp_path / "plain")
    assert ours["v.tar!a.mp4"] == plain["a.mp4"]
    assert "does not open" in ours["v.tar!b.mp4"]
    assert "empty" in ours["v.tar!c.mp4"]


def test_a_second_image_and_boxes_of_a_sample(tmp_path: Path) -> None:
    members = []
    for number in range(3):
        members.append((f"{number}.jpg", encoded(number, (96, 96))))
        if number != 1:
            members.append((f"{number}.mask.png", encoded(number + 5, (96, 96), "PNG")))
    path = write_tar(tmp_path / "a.tar", members)
    rows = [f"a.tar!{number}.jpg,0,10,10,70,70\n" for number in range(3)]
    (tmp_path / "boxes.csv").write_text("path,frame,x0,y0,x1,y1\n" + "".join(rows))
    options = {"preset": "faces", "boxes": str(tmp_path / "boxes.csv"), "size": 48}
    found = build(path, tmp_path / "out", also="mask.png", **options)
    assert [sample["mask_png_image_valid"] for sample in found] == [True, False, True]
    assert found[0]["mask_png_image"].shape == (48, 48, 3)
    assert found[0]["mask_png_image"].any()
    done = run_packer("build", path, tmp_path / "plain", "--engine", "inline")
    assert "ignored: mask_png (2)" in done.stdout
    with pytest.raises(UsageError, match="mask_png"):
        build(path, tmp_path / "none", also="masks.png", **options)


@pytest.mark.parametrize(
    ("classes", "label_from", "expected", "names"),
    [
        (["3", "1"], "auto", [3, 1], None),
        (["dog", " cat\n"], "auto", [1, 0], ["cat", "dog"]),
        (["dog", "7"], "auto", [1, 0], ["7", "dog"]),
        (["3", "1"], "none", None, None),
        (["3", "1"], "kind", [0, 0], ["x"]),
        (["3", "1"], "folder", [1, 0], ["a", "b"]),
    ],
)
def test_labels_of_tars(tmp_path: Path, classes: list[str], label_from: str, expected: Any, names: Any) -> None:
    members = []
    for key, label in zip(("b/0", "a/1"), classes, strict=True):
        members += [(f"{key}.cls", label.encode()), (f"{key}.jpg", encoded(0)), (f"{key}.json", b'{"kind": "x"}')]
    found = build(write_tar(tmp_path / "a.tar", members), tmp_path / "out", label_from=label_from)
    assert ([sample["label"] for sample in found] if "label" in found.schema else None) == expected
    if expected is not None:
        assert found.schema["label"].classes == (None if names is None else tuple(names))


def test_fields_of_the_same_name(tmp_path: Path) -> None:
    """An array called as a key of the JSON is, or as a field of ours, gets a prefix; none is lost."""
    facts = b'{"emb": 1, "source": "x", "txt": "y", "label": 5}'
    arrays = [(f"0.{name}.npy", npy(np.arange(3))) for name in ("emb", "matrix", "label")]
    path = write_tar(
        tmp_path / "a.tar", [("0.cls", b"4"), *arrays, ("0.jpg", encoded(0)), ("0.json", facts), ("0.txt", b"z")]
    )
    (sample,) = build(path, tmp_path / "out")
    assert (sample["emb"], sample["json_source"], sample["txt"], sample["json_txt"]) == (1, "x", "z", "y")
    assert all(sample[f"npy_{name}"].tolist() == [0, 1, 2] for name in ("emb", "matrix", "label"))
    assert (sample["label"], sample["json_label"]) == (4, 5)


def test_labels_under_a_name_with_dots_are_pointed_out(tmp_path: Path) -> None:
    members = [(f"{n}.{suffix}", data) for n in range(2) for suffix, data in (("jpg", encoded(n)), ("x.cls", b"cat"))]
    source = write_tar(tmp_path / "a.tar", members)
    made = packer.build(source, tmp_path / "out", engine="inline", progress=False)
    assert [note for note in made.notes if "--label-from x.cls" in note]
    assert open_dataset(tmp_path / "out")[0]["x_cls"] == "cat"
    made = packer.build(source, tmp_path / "named", label_from="x.cls", engine="inline", progress=False)
    assert open_dataset(tmp_path / "named").classes == ("cat",)
    assert not [note for note in made.notes if "label" in note]


def test_a_sample_without_a_label_is_a_reject(tmp_path: Path) -> None:
    members = [member for member in samples(0, 4) if member[0] != "0002.cls"]
    assert len(build(write_tar(tmp_path / "a.tar", members), tmp_path / "out", max_rejects=0.5)) == 3
    assert "expected a label" in rejects(tmp_path / "out")["a.tar!0002.jpg"]


PAIRS = {f"x\\{number % 2}\\{number:03d}.png".encode(): encoded(number, kind="PNG") for number in range(12)}


def test_an_lmdb(tmp_path: Path) -> None:
    more = {b"num-samples": b"12", b"x\\0\\000.npy": bytes(600), b"plain": encoded(50), b"__keys__": b"\x80\x04]\x94."}
    write_lmdb(tmp_path / "faces_lmdb", PAIRS | more)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "faces_lmdb").iterdir())
    found = build(tmp_path / "faces_lmdb", tmp_path / "out", max_rejects=0.2)
    done = packer.build(tmp_path / "faces_lmdb", tmp_path / "out", max_rejects=0.2, engine="inline", progress=False)
    entries = "1 .npy (such as 'faces_lmdb!x/0/000.npy'), 1 without suffix (such as 'faces_lmdb!num-samples')"
    assert f"ignored entries: {entries}" in done.describe()
    names = ["plain", *sorted(key.decode().replace("\\", "/") for key in PAIRS)]
    assert [sample["source"] for sample in found] == [f"faces_lmdb!{name}" for name in names]
    assert "no pickle" in rejects(tmp_path / "out")["faces_lmdb!__keys__"]
    counts = Layout(tmp_path / "out").load().generations[0].counts
    assert (counts.items, counts.packed_items, counts.ignored_files) == (14, 13, 2)
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "faces_lmdb").iterdir())


def test_the_error_for_keys_of_another_archive_names_an_existing_key(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "a.lmdb", PAIRS, folder=False)
    (tmp_path / "k.txt").write_text("data/x/1/001.png 5\n")
    with pytest.raises(TooManyRejectsError, match=r"found others, such as 'x/0/000\.png'"):
        build(tmp_path / "a.lmdb", tmp_path / "out", keys=str(tmp_path / "k.txt"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("k.json", json.dumps({"x\\1\\001.png": 5, "x/0/002": 7, "gone.png": 1})),
        ("k.json", json.dumps([["x/1/001.png", 5], ["x/0/002.png", 7], ["gone.png", 1]])),
        (
            "k.json",
            json.dumps(
                [{"key": "x/1/001", "label": 5}, {"key": "x/0/002", "label": 7}, {"key": "gone.png", "label": 1}]
            ),
        ),
        ("k.txt", "x/1/001.png 5\nx/0/002.png 7\n\ngone.png 1\n"),
        ("k.txt", "x/1/001.png\t5\nx/0/002.png\t7\ngone.png\t1"),
        ("k.csv", "key,label\nx/1/001.png,5\nx/0/002.png,7\ngone.png,1\n"),
        (
            "k.jsonl",
            '{"path": "x/1/001.png", "label": 5}\n{"path": "x/0/002.png", "label": 7}\n{"path": "gone.png", "label": 1}',
        ),
    ],
)
def test_labels_by_keys(tmp_path: Path, name: str, text: str) -> None:
    write_lmdb(tmp_path / "a.lmdb", PAIRS, folder=False)
    (tmp_path / name).write_text(text)
    found = build(tmp_path / "a.lmdb", tmp_path / "out", keys=str(tmp_path / name), max_rejects=0.9)
    assert [(s["source"], s["label"]) for s in found] == [("a.lmdb!x/0/002.png", 7), ("a.lmdb!x/1/001.png", 5)]
    assert "found none" in rejects(tmp_path / "out")["gone.png"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("k.json", "{", "expected JSON, found a syntax error: "),
        ("k.json", "7", "an object or a list"),
        ("k.json", "[7]", "expected keys"),
        ("k.json", '["a", "a"]', "'a' twice"),
        ("k.txt", "a\nb 1\n", "found both"),
        ("k.txt", "", "expected keys"),
        ("k.csv", "name,label\na,1\n", "column 'key'"),
        ("k.xml", "", "expected a file"),
        ("none.json", None, "cannot be read"),
    ],
)
def test_keys_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    write_lmdb(tmp_path / "a.lmdb", PAIRS, folder=False)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        build(tmp_path / "a.lmdb", tmp_path / "out", keys=str(tmp_path / name))


def test_archives_of_one_class_each_are_distinguished_by_keys_with_their_names(tmp_path: Path) -> None:
    """As ImageNet's class archives may be: each has a file of the same name."""
    for name in ("cat", "dog"):
        write_tar(tmp_path / f"in/{name}.tar", [("0.png", encoded(0, kind="PNG")), ("1.png", encoded(1, kind="PNG"))])
    with pytest.raises(TooManyRejectsError, match=r"expected a folder in the name within the archive .* use --keys"):
        build(tmp_path / "in", tmp_path / "folders", label_from="folder")
    keys = tmp_path / "k.csv"
    keys.write_text("key,label\ncat.tar!0.png,cat\ncat.tar!1,cat\ndog.tar!0,dog\ndog.tar!1.png,dog\n")
    found = build(tmp_path / "in", tmp_path / "out", keys=str(keys))
    assert [(sample["source"], sample["label"]) for sample in found] == [
        ("cat.tar!0.png", 0),
        ("cat.tar!1.png", 0),
        ("dog.tar!0.png", 1),
        ("dog.tar!1.png", 1),
    ]
    keys.write_text("key,label\n0,cat\ncat.tar!1,dog\n")
    done = packer.build(tmp_path / "in", tmp_path / "both", keys=str(keys), engine="inline", progress=False)
    assert "1 key of k.csv with several items, such as '0' ('dog.tar!0.png' as well)" in done.describe()
    assert [s["source"] for s in open_dataset(tmp_path / "both")] == ["cat.tar!0.png", "cat.tar!1.png", "dog.tar!0.png"]


def test_large_trees_of_lmdb_are_walked_in_order(tmp_path: Path) -> None:
    """More keys than fit a page, deleted ones and large values, as LMDB's own library has them."""
    import lmdb

    write_lmdb(tmp_path / "a", {b"%06d.jpg" % n: bytes([n % 256]) * (1 + 37 * n % 6000) for n in range(3000)})
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 27) as env, env.begin(write=True) as transaction:
        for number in range(0, 3000, 3):
            transaction.delete(b"%06d.jpg" % number)
    recipe = Recipe()
    found = list_items(open_source(tmp_path / "a", tmp_path / "out", recipe), recipe).items
    with lmdb.open(str(tmp_path / "a"), readonly=True, lock=False) as env, env.begin() as transaction:
        expected = [(key.decode(), len(value)) for key, value in transaction.cursor()]
    assert [(item.name.partition("!")[2], item.bytes) for item in found] == expected


def test_faces_of_insightface(tmp_path: Path) -> None:
    write_faces(tmp_path / "ms1m", 5, 4)
    (tmp_path / "ms1m" / "lfw.bin").write_bytes(b"\x80\x03pickle")
    found = build(tmp_path / "ms1m", tmp_path / "out")
    assert [sample["label"] for sample in found] == [person for person in range(5) for _ in range(4)]
    assert [sample["source"] for sample in found] == [f"train.rec!{number}" for number in range(1, 21)]
    assert "labels" not in found.schema
    assert kept(tmp_path / "out") == Counter(encoded(number) for number in range(1, 21))
    write_faces(tmp_path / "both/ms1m", 5, 4)
    write_faces(tmp_path / "both/other", 3, 2)
    done = packer.build(tmp_path / "both", tmp_path / "mixed", engine="inline", progress=False)
    (note,) = done.notes
    assert note.startswith("each of ms1m/train.rec, other/train.rec numbers its people from 0, so a label stands for")


def test_records_in_pieces_and_labels_of_all_kinds(tmp_path: Path) -> None:
    """The magic number inside an image cuts its record; without an index, records are counted."""
    picture = encoded(3)
    inside = picture[:2] + b"\xff\xfe" + (2 + 64).to_bytes(2, "big") + b"xx" * 1 + REC_MAGIC * 15 + b"yy" + picture[2:]
    records = {0: rec_header(2, 0, encoded(0)), 1: rec_header(1, 1, inside), 2: rec_header(2, 2, b"\x80\x04pickled")}
    write_rec(tmp_path / "a.rec", records, index=False)
    found = build(tmp_path / "a.rec", tmp_path / "out", max_rejects=0.5)
    assert [(sample["source"], sample["label"]) for sample in found] == [("a.rec!0", 2), ("a.rec!1", 1)]
    assert rejects(tmp_path / "out").keys() == {"a.rec!2"}
    assert inside in kept(tmp_path / "out")
    write_rec(tmp_path / "b.rec", {n: rec_header([n, 0.5, 1e30], n, encoded(n)) for n in range(2)})
    boxes = build(tmp_path / "b.rec", tmp_path / "boxes")
    assert np.allclose(boxes[1]["labels"], [1, 0.5, 1e30])
    assert "label" not in boxes.schema
    write_rec(tmp_path / "c.rec", {n: rec_header(n + 0.5 * n, n, encoded(n)) for n in range(2)})
    assert [sample["value"] for sample in build(tmp_path / "c.rec", tmp_path / "values")] == [0.0, 1.5]


def test_an_index_of_another_file_is_refused_record_by_record(tmp_path: Path) -> None:
    write_rec(tmp_path / "a.rec", {n: rec_header(n, n, encoded(n)) for n in range(3)})
    (tmp_path / "a.idx").write_text("0\t0\n7\t12\nno index\n9\t99999999\n")
    found = build(tmp_path / "a.rec", tmp_path / "out", max_rejects=0.9)
    assert len(found) == 3
    reasons = rejects(tmp_path / "out")
    assert reasons.keys() == {"a.rec!7", "a.rec!9"}
    assert "at byte 12 according to the index, found no complete one" in reasons["a.rec!7"]
    assert "at byte 99999999 according to the index, found the end of the file at byte" in reasons["a.rec!9"]


def test_parquet_with_images(tmp_path: Path) -> None:
    columns = {
        "source": [f"s{n}" for n in range(30)],
        "rating": [n / 2 for n in range(30)],
        "bbox": [[n, 1, 2, 3] for n in range(30)],
    }
    write_parquet(tmp_path / "hf" / "data" / "train-00000-of-00001.parquet", 30, names=["cat", "dog"], **columns)
    write_parquet(
        tmp_path / "hf" / "data" / "test-00000-of-00001.parquet",
        5,
        names=["cat", "dog"],
        **{name: values[:5] for name, values in columns.items()},
    )
    (tmp_path / "hf" / "README.md").write_text("a card")
    found = build(tmp_path / "hf", tmp_path / "out")
    assert found.schema["label"].classes == ("cat", "dog")
    assert Counter(sample["split"] for sample in found) == {"train": 30, "test": 5}
    sample = found[5 + 20]
    assert sample["source"] == "data/train-00000-of-00001.parquet!20"
    assert (sample["label"], sample["column_source"], sample["rating"]) == (0, "s20", 10.0)
    assert sample["bbox"].tolist() == [20, 1, 2, 3]
    assert set(kept(tmp_path / "out")) == {encoded(number) for number in range(30)}


def test_parquet_columns_of_many_kinds(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "photo": pa.array([encoded(0), None, encoded(2)], pa.large_binary()),
            "mask": pa.array([{"bytes": encoded(n, kind="PNG"), "path": None} for n in range(3)]),
            "taken": pa.array([datetime.date(2026, 1, 1 + n) for n in range(3)]),
            "label": [0, 1, -1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = build(tmp_path / "a.parquet", tmp_path / "out", path_column="photo", label_from="none", max_rejects=0.5)
    assert [sample["taken"] for sample in found] == ["2026-01-01", "2026-01-03"]
    assert "found none" in rejects(tmp_path / "out")["a.parquet!1"]
    assert len(build(tmp_path / "a.parquet", tmp_path / "masks")) == 3
    with pytest.raises(UsageError, match=r"a column 'photos' of images .*, found photo, .*; did you mean 'photo'\?"):
        build(tmp_path / "a.parquet", tmp_path / "none", path_column="photos")


def test_a_parquet_table_of_paths_is_a_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "0.jpg").write_bytes(encoded(0))
    pq.write_table(pa.table({"path": ["0.jpg"], "thumbnail": [b"x"]}), tmp_path / "t.parquet")
    assert [sample["source"] for sample in build(tmp_path / "t.parquet", tmp_path / "out")] == ["0.jpg"]


def test_missing_labels_of_hugging_face_are_rejects(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 4, names=["cat", "dog"], label=[0, 1, -1, 1])
    assert [sample["label"] for sample in build(tmp_path / "a.parquet", tmp_path / "out", max_rejects=0.5)] == [0, 1, 1]


@pytest.mark.parametrize(
    "metadata",
    ["{", "[1]", '{"info": {"features": {"label": 3}}}', '{"info": {"features": {"label": {"names": ["a", "a"]}}}}'],
)
def test_class_names_of_hugging_face_that_are_malformed_are_ignored(metadata: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write_parquet(tmp_path / "a.parquet", 2)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"huggingface": metadata}), path)
    assert build(path, tmp_path / "out").classes == ()


@pytest.mark.parametrize("kind", ["tar", "lmdb", "rec", "parquet"])
def test_a_dry_run_tries_members(kind: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[], Path]] = {
        "tar": lambda: write_tar(tmp_path / "a.tgz", samples(0, 9)),
        "lmdb": lambda: write_lmdb(tmp_path / "a.lmdb", PAIRS, folder=False),
        "rec": lambda: write_faces(tmp_path / "ms1m", 3, 3),
        "parquet": lambda: write_parquet(tmp_path / "a.parquet", 12),
    }
    found = packer.dry_run(makers[kind](), tmp_path / "out", progress=False)
    assert (found.tried_rejects, found.tried_samples) == (0, found.plan.items)


def test_a_folder_of_files_stays_a_folder(tmp_path: Path) -> None:
    (tmp_path / "set" / "real").mkdir(parents=True)
    (tmp_path / "set" / "real" / "0.jpg").write_bytes(encoded(0))
    write_tar(tmp_path / "set" / "all.tar", samples(0, 3))
    assert [sample["source"] for sample in build(tmp_path / "set", tmp_path / "out")] == ["real/0.jpg"]
    assert len(build(tmp_path / "set" / "*.tar", tmp_path / "tars")) == 3


def test_packed_datasets_in_a_folder_are_not_archives(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "sets" / "one")
    with pytest.raises(UsageError, match="expected items to pack, found none"):
        build(tmp_path / "sets", tmp_path / "out")
    write_tar(tmp_path / "sets" / "a.tar", samples(0, 2))
    assert len(build(tmp_path / "sets", tmp_path / "out")) == 2


def test_names_that_are_not_text(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", encoding="latin-1") as tar:
        for name in ("\xe4\xf6.jpg", "line\nbreak.jpg", "\u00e9" * 60 + ".jpg"):
            info = tarfile.TarInfo(name)
            info.size = len(encoded(0))
            tar.addfile(info, io.BytesIO(encoded(0)))
    (tmp_path / "a.tar").rename(tmp_path / "b.tar")
    write_tar(tmp_path / "a.tar", [("\u00fc b.jpg", encoded(1))])
    found = build(tmp_path / "*.tar", tmp_path / "out")
    assert len(found) == 4
    assert found[0]["source"] == "a.tar!\u00fc b.jpg"


def test_a_compressed_tar_is_known_by_its_bytes(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tgz", samples(0, 3)).rename(tmp_path / "a.tar")
    write_tar(tmp_path / "b.tar", samples(3, 6)).rename(tmp_path / "b.tgz")
    assert [sample["label"] for sample in build(tmp_path / "[ab].t*", tmp_path / "out")] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("two", {}, "archives of one kind, found 1 tar files and 1 RecordIO files"),
        ("two/*.rar", {}, "expected the names of archives"),
        ("two/{a,none}.tar", {}, "found none at"),
        ("two/{0..999999}.tar", {}, "at most 100000 files"),
        ("two/a.tar", {"root": "."}, "root: applies only to tables"),
        ("two/a.tar", {"path_column": "x"}, "path_column: applies only to tables"),
        ("two/a.tar", {"label_from": "capton"}, "did you mean 'caption'"),
        ("plain", {"keys": "k.txt"}, "keys: applies only to archives"),
        ("two/a.rar", {}, "or an archive"),
        ("two/none.tar", {}, "a table or an archive, found nothing at this path"),
    ],
)
def test_usage_errors(tmp_path: Path, source: str, options: dict[str, Any], message: str) -> None:
    write_tar(tmp_path / "two" / "a.tar", samples(0, 2))
    write_rec(tmp_path / "two" / "a.rec", {0: rec_header(1, 0, encoded(0))})
    (tmp_path / "two" / "a.rar").write_bytes(b"PK")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "0.jpg").write_bytes(encoded(0))
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        build(tmp_path / source, tmp_path / "out", **options)
    assert len(str(error.value)) < 1500
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_first_sample_that_is_cut_off_is_rejected(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).bytes(100_000)
    path = write_tar(tmp_path / f"a.{suffix}", [("0.cls", b"1"), ("0.jpg", noise)])
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(
        TooManyRejectsError, match="cut off or damaged after this sample, which lacks an image or a video"
    ):
        build(path, tmp_path / "out")


def test_links_to_archives_are_followed(tmp_path: Path) -> None:
    """The cache of Hugging Face's hub consists of them."""
    write_parquet(tmp_path / "blobs" / "abc", 3)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "train.parquet").symlink_to(tmp_path / "blobs" / "abc")
    assert len(build(tmp_path / "snapshot", tmp_path / "out")) == 3
    shutil.rmtree(tmp_path / "blobs")
    with pytest.raises(TooManyRejectsError, match="expected a readable archive"):
        build(tmp_path / "snapshot", tmp_path / "none")


@pytest.mark.external
def test_tars_by_webdataset(tmp_path: Path) -> None:
    """Its writer makes a sample from an image, a class, JSON and an array."""
    wds = pytest.importorskip("webdataset")
    for name in ("a.tar", "b.tar.gz"):
        with wds.TarWriter(str(tmp_path / name)) as sink:
            for number in range(4):
                facts = {"caption": f"scene {number}"}
                array = np.full((2, 3), number, np.float32)
                sample = {"jpg": encoded(number), "cls": number, "json": facts, "emb.npy": array}
                sink.write({"__key__": f"{number:04d}", **sample})
        found = build(tmp_path / name, tmp_path / f"{name}-out")
        assert [(s["label"], s["caption"], s["emb"].tolist()) for s in found] == [
            (number, f"scene {number}", np.full((2, 3), number).tolist()) for number in range(4)
        ]
        assert kept(tmp_path / f"{name}-out") == Counter(encoded(number) for number in range(4))


@pytest.mark.external
def test_parquet_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "caption": datasets.Value("string"),
    }
    rows = {
        "image": [{"bytes": encoded(number), "path": f"{number}.jpg"} for number in range(6)],
        "label": [number % 2 for number in range(6)],
        "caption": [f"scene {number}" for number in range(6)],
    }
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    (tmp_path / "data").mkdir()
    made.to_parquet(str(tmp_path / "data" / "train-00000-of-00001.parquet"))
    found = build(tmp_path / "data", tmp_path / "out")
    assert [(s["label"], s["caption"], s["split"]) for s in found] == [
        (number % 2, f"scene {number}", "train") for number in range(6)
    ]
    assert found.schema["label"].classes == ("cat", "dog")
    assert kept(tmp_path / "out") == Counter(encoded(number) for number in range(6))
