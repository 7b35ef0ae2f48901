"""A packed dataset as a source: further steps, another size, another encoding, and geometry that stays true."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.builds import QUIET
from support.command import environment, file_of, run_packer
from support.datasets import assert_same, encode, face_schema, fixed, text, write_dataset
from support.errors import raises
from support.media import scene
from support.packed_files import face_columns, read_all, samples_of, write_faces
from support.steps_over_packed import blacken, mean_level, mirror_twice

from packer import add, build, split, verify
from packer.vision.geometry.resize import resize_exact, scale_geometry
from shardspec.codecs import codec_for
from shardspec.errors import ShardCorruptError, TooManyRejectsError, UsageError
from shardspec.formats import FORMATS
from shardspec.schema import Schema


@pytest.mark.parametrize("codec", ["jpeg", "png", "webp", None])
def test_without_further_steps_every_encoded_byte_stays(tmp_path: Path, codec: str | None) -> None:
    """The images' configuration in the schema is the recipe's, so that bytes of a lossy codec may be kept."""
    write_faces(tmp_path / "raw", codec=codec)
    first = build(tmp_path / "raw", tmp_path / "first", encode=codec or "raw", **QUIET)
    second = build(tmp_path / "first", tmp_path / "second", encode=codec or "raw", **QUIET)
    assert second.counts.items == second.counts.samples == 12
    columns = read_all(tmp_path / "second")
    assert_same(second.manifest.schema, columns, read_all(tmp_path / "first"))
    assert second.manifest.schema == first.manifest.schema
    assert second.manifest.digest == first.manifest.digest
    expected = encode(face_schema(32, codec), face_columns(12, codec=codec))
    if codec in (None, "png"):
        images = [bytes(value) for value in columns["image"]]
        assert images == [bytes(value) for value in expected.pop("image")]
    else:
        columns.pop("image")
    assert_same(
        second.manifest.schema, {name: values for name, values in columns.items() if name in expected}, expected
    )
    assert second.manifest.schema["label"].classes == ("real", "fake")
    assert second.manifest.schema["landmarks"].layout == "5"
    assert verify(tmp_path / "second", deep=True).problems == ()


@pytest.mark.parametrize("shapes", [[(4, 5)], [(4, 5), (6, 5)], [(4, 5), (4, 7)], [(4, 5), (6, 7)]])
def test_raw_images_of_any_shapes_stay(tmp_path: Path, shapes: list[tuple[int, int]]) -> None:
    """Of a fixed shape, ragged, and each with its shape in front of its bytes."""
    images = [np.full((*shape, 3), level, np.uint8) for level, shape in enumerate(shapes * 2)]
    rows = [{"image": picture} for picture in images]
    first = build(rows, tmp_path / "first", encode="raw", **QUIET)
    second = build(tmp_path / "first", tmp_path / "second", encode="raw", **QUIET)
    assert second.manifest.digest == first.manifest.digest
    for found, picture in zip(samples_of(tmp_path / "second"), images, strict=True):
        np.testing.assert_array_equal(found["image"], picture)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_is_a_source(tmp_path: Path, format: str) -> None:
    write_faces(tmp_path / "in", 12, format, codec="png")
    made = build(tmp_path / "in", tmp_path / "out", encode="png", format=format, **QUIET).manifest
    expected = encode(face_schema(32, "png"), face_columns(12, codec="png"))
    columns = read_all(tmp_path / "out")
    assert_same(made.schema, {name: columns[name] for name in expected}, expected)


def test_another_quality_encodes_again(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", codec="jpeg")
    build(tmp_path / "in", tmp_path / "a", quality=95, **QUIET)
    made = build(tmp_path / "a", tmp_path / "b", quality=40, **QUIET).manifest
    field = made.schema["image"]
    assert field.codec.configuration["quality"] == 40
    for sample, data in zip(samples_of(tmp_path / "a"), read_all(tmp_path / "b")["image"], strict=True):
        assert data == bytes(codec_for(field).encode(sample["image"]))


@pytest.mark.parametrize("size", [16, 48])
def test_a_resize_takes_the_geometry_with_it(tmp_path: Path, size: int) -> None:
    write_faces(tmp_path / "in")
    build(tmp_path / "in", tmp_path / "out", size=size, encode="raw", **QUIET)
    columns, ratio = face_columns(12), size / 32
    for row, sample in enumerate(samples_of(tmp_path / "out")):
        assert np.array_equal(sample["image"], resize_exact(columns["image"][row], size))
        for name in ("landmarks", "hull", "regions", "matrix"):
            assert sample[name].dtype == np.float32
            assert np.allclose(sample[name], columns[name][row] * ratio, rtol=1e-6), name
        for name in ("box", "score", "frame", "time", "track"):
            assert np.array_equal(sample[name], columns[name][row]), name
        # A point of the frame is mapped to where the matrix said before, in the new image's pixels.
        point = np.array([40.0, 50.0, 1.0])
        assert np.allclose(sample["matrix"] @ point, columns["matrix"][row] @ point * ratio, rtol=1e-5)


def test_sides_scale_by_themselves() -> None:
    sample = {
        "landmarks": np.array([[10, 20]], np.float32),
        "regions": np.array([[1, 2, 3, 4]], np.float64),
        "matrix": np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        "hull": np.array([[1, 2]]),
        "box": np.array([1, 2, 3, 4], np.float32),
    }
    changed = scale_geometry(sample, (10, 20), (20, 10))
    assert set(changed) == {"landmarks", "regions", "matrix"}  # whole numbers are a user's own
    assert changed["landmarks"].tolist() == [[5, 40]]
    assert changed["regions"].tolist() == [[0.5, 4, 1.5, 8]]
    assert changed["matrix"].tolist() == [[0.5, 1, 1.5], [8, 10, 12]]
    assert scale_geometry(sample, (10, 20), (10, 20)) == {}


def test_steps_of_a_user_see_the_fields_and_keys_stay_one_of_a_kind(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", codec="png")
    twice = build(tmp_path / "in", tmp_path / "twice", steps=["decode", mirror_twice], encode="png", **QUIET)
    assert (twice.counts.items, twice.counts.samples) == (12, 24)
    columns = face_columns(12)
    samples = samples_of(tmp_path / "twice")
    for row in range(12):
        assert samples[2 * row]["key"] == columns["key"][row]
        assert samples[2 * row + 1]["key"] == f"{columns['key'][row]}-000001"
        assert np.array_equal(samples[2 * row]["image"], columns["image"][row])
        assert np.array_equal(samples[2 * row + 1]["image"], columns["image"][row][::-1])
    assert verify(tmp_path / "twice", deep=True).problems == ()
    again = build(tmp_path / "twice", tmp_path / "again", steps=["decode", mirror_twice], encode="png", **QUIET)
    assert verify(tmp_path / "again", deep=True).problems == ()
    key = columns["key"][0]
    ends = ["", "-000002", "-000001", "-000001-000001"]  # of a key whose own -000001 there is, the next free one
    assert [sample["key"] for sample in samples_of(tmp_path / "again")[:4]] == [f"{key}{end}" for end in ends]
    assert again.counts.samples == 48
    some = build(tmp_path / "in", tmp_path / "some", steps=["decode", mean_level], max_rejects=1, **QUIET)
    assert (some.counts.packed_items, some.counts.rejected_items) == (6, 6)
    assert [s["level"] for s in samples_of(tmp_path / "some")] == [
        columns["image"][row].mean() for row in range(0, 12, 2)
    ]
    rejects = [json.loads(line) for line in file_of(tmp_path / "some", "rejects.jsonl").read_text().splitlines()]
    assert [line["item"] for line in rejects] == columns["key"][1::2]


@pytest.mark.parametrize("codec", ["jpeg", "png", None])
def test_a_step_that_writes_into_the_image_is_never_lost(tmp_path: Path, codec: str | None) -> None:
    """Kept bytes would still show the old image: such a step is refused there, and works where no bytes are kept."""
    write_faces(tmp_path / "raw", codec=codec)
    build(tmp_path / "raw", tmp_path / "in", encode=codec or "raw", **QUIET)  # as the recipe would store it
    how = {"steps": ["decode", blacken], "encode": codec or "raw", "max_rejects": 1, **QUIET}
    if codec is None:
        assert build(tmp_path / "in", tmp_path / "out", **how).counts.samples == 12
        assert not any(sample["image"].any() for sample in samples_of(tmp_path / "out"))
    else:
        with pytest.raises(TooManyRejectsError, match=r"none of the 12 items yielded a sample.*read-only"):
            build(tmp_path / "in", tmp_path / "out", **how)


@pytest.mark.parametrize("encode", ["png", "raw"])
def test_a_mask_stays_without_loss(tmp_path: Path, encode: str) -> None:
    """Whatever becomes of the images that it belongs to."""
    rng = np.random.default_rng(0)
    rows = [{"image": scene(n, (24, 18)), "mask_image": rng.integers(0, 256, (18, 24, 3), np.uint8)} for n in range(3)]
    build(rows, tmp_path / "in", encode=encode, **QUIET)
    made = build(tmp_path / "in", tmp_path / "out", encode="jpeg", **QUIET).manifest
    assert (made.schema["image"].codec.name, made.schema["mask_image"].codec.name) == ("jpeg", "png")
    found = [sample["mask_image"] for sample in samples_of(tmp_path / "out")]
    assert all(np.array_equal(mask, row["mask_image"]) for mask, row in zip(found, rows, strict=True))
    again = build(tmp_path / "out", tmp_path / "again", encode="jpeg", **QUIET).manifest
    assert again.digest == made.digest


@pytest.mark.parametrize("how", ["area", "nearest"])
def test_a_resize_takes_masks_with_it(tmp_path: Path, how: str) -> None:
    rng = np.random.default_rng(0)
    masks = [np.repeat(rng.choice([0, 90, 255], (18, 24, 1)).astype(np.uint8), 3, axis=2) for _ in range(3)]
    others = {"own_image": np.zeros((5, 5, 3), np.uint8), "deep_image": np.zeros((18, 24, 3), np.float32)}
    rows = [{"image": scene(n, (24, 18)), "mask_image": mask, **others} for n, mask in enumerate(masks)]
    build(rows, tmp_path / "in", encode="png", **QUIET)
    options = ("--size", 9, "--encode", "png", "--also-resample", how, "--engine", "inline", "--quiet")
    run_packer("build", tmp_path / "in", tmp_path / "out", *options)
    for sample, mask in zip(samples_of(tmp_path / "out"), masks, strict=True):
        assert sample["image"].shape == (9, 12, 3)
        expected = mask[1::2, 1::2] if how == "nearest" else resize_exact(mask, (9, 12))
        assert np.array_equal(sample["mask_image"], expected)
        assert sample["own_image"].shape == (5, 5, 3)
        assert sample["deep_image"].shape == (9, 12, 3)
    assert how == "area" or not set(np.unique(expected)) - {0, 90, 255}


def test_label_maps_are_not_averaged_without_also_resample(tmp_path: Path) -> None:
    rows = [{"image": scene(n, (24, 18)), "mask_image": scene(n, (24, 18))} for n in range(4)]
    build(rows, tmp_path / "in", encode="png", **QUIET)
    done = run_packer("build", tmp_path / "in", tmp_path / "out", "--size", 6, expect=2)
    assert "--also-resample: expected area or nearest, for resizing 'mask_image' of the source" in done.stderr
    assert not (tmp_path / "out").exists()
    for how in ("area", "nearest"):
        build(tmp_path / "in", tmp_path / how, size=6, also_resample=how, **QUIET)
    build(tmp_path / "in", tmp_path / "other codec", encode="webp", **QUIET)


def test_worker_processes_make_a_dataset_that_the_same_command_finds(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", 40, "tfrecord", codec="jpeg", shard_rows=9)
    steps = "decode,support.steps_over_packed:mirror_twice,resize"
    options = ("--size", "24", "--steps", steps, "--quiet")
    env = environment(python_path=Path(__file__).parents[2])
    done = run_packer("build", tmp_path / "in", tmp_path / "out", *options, "--workers", "2", env=env)
    assert "80 samples in 1 lmdb shard (" in done.stdout
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    run_packer("build", tmp_path / "in", tmp_path / "out", *options)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    write_faces(tmp_path / "in", 39, "tfrecord", codec="jpeg", shard_rows=9)
    refused = run_packer("build", tmp_path / "in", tmp_path / "out", *options, expect=2)
    assert "--overwrite" in refused.stderr


def test_labels_can_be_kept_dropped_or_taken_from_another_field(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", 6, groups=2)
    columns = face_columns(6, groups=2)
    none = build(tmp_path / "in", tmp_path / "none", label_from="none", **QUIET).manifest
    assert "label" not in none.schema
    source = build(tmp_path / "in", tmp_path / "source", label_from="source", **QUIET).manifest
    assert source.schema["label"].classes == ("person0/vidéo 0.mp4", "person1/vidéo 1.mp4")
    assert read_all(tmp_path / "source")["label"].tolist() == [0, 1, 0, 1, 0, 1]
    frame = build(tmp_path / "in", tmp_path / "frame", label_from="frame", **QUIET).manifest
    assert frame.schema["label"].classes is None
    assert read_all(tmp_path / "frame")["label"].tolist() == columns["frame"].tolist()
    for label_from in ("folder", "score", "hull"):
        with pytest.raises(UsageError):
            build(tmp_path / "in", tmp_path / "bad", label_from=label_from, **QUIET)


def test_the_validity_of_labels_is_dropped_with_the_labels(tmp_path: Path) -> None:
    rows = [{"image": np.full((8, 8, 3), level, np.uint8), "who": "ab"[level % 2]} for level in range(4)]
    build(rows, tmp_path / "in", **QUIET)
    keys = [sample["key"] for sample in samples_of(tmp_path / "in")]
    add(tmp_path / "in", {"key": keys[:3], "label": ["x", "y", "x"]}, allow_missing=True, progress=False)
    kept = build(tmp_path / "in", tmp_path / "kept", **QUIET).manifest
    assert kept.schema["label"].classes == ("x", "y")
    assert read_all(tmp_path / "kept")["label_valid"].tolist() == [True, True, True, False]
    made = build(tmp_path / "in", tmp_path / "who", label_from="who", **QUIET).manifest
    assert made.schema["label"].classes == ("a", "b")
    assert "label_valid" not in made.schema
    assert not {"label", "label_valid"} & set(
        build(tmp_path / "in", tmp_path / "none", label_from="none", **QUIET).manifest.schema.names
    )
    halves = split(tmp_path / "who", tmp_path / "halves", stratify="label", ratios="a=0.5,b=0.5", **QUIET)
    assert [part.samples for part in halves.parts] == [2, 2]


@pytest.mark.parametrize(("column", "labels"), [("who", [1, 0]), ("age", [30, 40])])
def test_a_row_without_a_label_is_a_reject(tmp_path: Path, column: str, labels: list[int]) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    rows = [{"image": picture, "who": who, "age": age} for who, age in (("b", 30), (None, None), ("a", 40))]
    build(rows, tmp_path / "in", **QUIET)
    result = build(tmp_path / "in", tmp_path / "out", label_from=column, **{**QUIET, "max_rejects": 1.0})
    assert read_all(tmp_path / "out")["label"].tolist() == labels
    assert (result.counts.items, result.counts.rejected_items) == (3, 1)
    (line,) = file_of(tmp_path / "out", "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == f"expected a label in field {column!r}, found none"


def test_damage_is_found_before_anything_is_packed(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path / "in", 12, "npy")
    path = tmp_path / "in" / next(e.name for e in manifest.shards[1].files if e.name.endswith("image.npy"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with raises(ShardCorruptError, found="59262980747d29b4760ea28a082009f308447e290d59b82ee5dc4b775f7c08f4"):
        build(tmp_path / "in", tmp_path / "out", **QUIET)
    assert not (tmp_path / "out").exists()


def test_a_dataset_without_keys_or_images_can_be_packed_on(tmp_path: Path) -> None:
    schema = Schema((text("note"), fixed("pair", "<f4", 2), fixed("flag", "|b1")))
    columns = {"note": ["a", "ü"], "pair": np.array([[1, 2], [3, 4]], "<f4"), "flag": np.array([True, False])}
    write_dataset(tmp_path / "in", "npy", schema, columns)
    build(tmp_path / "in", tmp_path / "out", steps=["decode"], **QUIET)
    found = samples_of(tmp_path / "out")
    assert [(s["key"], s["source"], s["note"], s["pair"].tolist(), bool(s["flag"])) for s in found] == [
        ("00000000-000000", "row-00000000", "a", [1, 2], True),
        ("00000001-000000", "row-00000001", "ü", [3, 4], False),
    ]


def test_a_folder_of_images_with_an_unrelated_manifest_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(UsageError, match="expected items to pack, found none"):
        build(tmp_path / "in", tmp_path / "out", **QUIET)
