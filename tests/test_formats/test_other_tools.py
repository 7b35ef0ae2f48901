"""Shards open in the libraries that people already use. Our readers are not used here."""

import importlib.util
import io
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import data
from support.datasets import encode, fixed, picture, ragged, text, write_encoded
from support.media import write_video
from support.packed import read_samples
from support.tar_streams import stream_tars

import packer
from shardspec.columns import Columns
from shardspec.schema import Schema

ROWS, SIZE = 6, 48


@pytest.fixture(scope="module")
def values() -> Columns:
    """Crops of a portrait, their points and boxes, one label per two rows."""
    portrait = data.astronaut()
    crops = [portrait[40 * n : 40 * n + SIZE, 100:148] for n in range(ROWS)]
    rng = np.random.default_rng(0)
    return {
        "key": [f"{row:08d}-000000" for row in range(ROWS)],
        "source": [f"ünï/{row} 人.png" for row in range(ROWS)],
        "image": np.stack(crops),
        "label": np.arange(ROWS) // 2 % 2,
        "landmarks": rng.uniform(0, SIZE, (ROWS, 5, 2)).astype(np.float32),
        "landmarks_valid": np.arange(ROWS) % 2 == 0,
        "box": np.tile(np.float32([100, 50, 124, 98]), (ROWS, 1)),
        "matrix": np.tile(np.float32([[1, 0, -100], [0, 0.5, -25]]), (ROWS, 1, 1)),
        "time": rng.random(ROWS),
        "track": np.array([-1, 0, 1, 300, 2**40, -(2**63)]),
        "contour": [rng.random((n, 2)).astype(np.float32) for n in range(ROWS)],
        "ids": [np.arange(-n, n, dtype=np.int16) for n in range(ROWS)],
    }


def schema(codec: str | None) -> Schema:
    return Schema(
        (
            text("key"),
            text("source"),
            fixed("image", "|u1", SIZE, SIZE, 3) if codec is None else picture("image", codec, SIZE),
            fixed("label", "<i8", classes=("real", "fäke")),
            fixed("landmarks", "<f4", 5, 2),
            fixed("landmarks_valid", "|b1"),
            fixed("box", "<f4", 4),
            fixed("matrix", "<f4", 2, 3),
            fixed("time", "<f8"),
            fixed("track", "<i8"),
            ragged("contour", "<f4", 2),
            ragged("ids", "<i2"),
        )
    )


@pytest.fixture
def pack(tmp_path: Path, values: Columns) -> Any:
    def write(format: str, codec: str | None) -> Path:
        write_encoded(tmp_path, format, schema(codec), encode(schema(codec), values))
        return tmp_path

    return write


def decoded(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_lmdb_in_five_lines(pack: Any, values: Columns) -> None:
    root = pack("lmdb", None)
    import lmdb

    path = str(root / "shard-00000.lmdb")
    with lmdb.open(path, subdir=False, readonly=True, lock=False) as environment, environment.begin() as transaction:
        image = np.frombuffer(transaction.get(b"00000003/image"), np.uint8).reshape(SIZE, SIZE, 3)
        keys = [key for key, _ in transaction.cursor()]
    assert np.array_equal(image, values["image"][3])
    assert keys == sorted(f"{row:08d}/{name}".encode() for row in range(ROWS) for name in schema(None).names)
    assert {path.suffix for path in root.glob("shard*")} == {".lmdb", ".index"}  # no lock file


@pytest.mark.skipif(importlib.util.find_spec("lmdb.verify") is None, reason="py-lmdb 3 has a verifier")
def test_lmdb_files_pass_py_lmdbs_own_verifier(pack: Any) -> None:
    from lmdb.verify import verify

    assert not verify(str(pack("lmdb", None) / "shard-00000.lmdb"), subdir=False)


def test_npy_with_plain_numpy(pack: Any, values: Columns) -> None:
    folder = pack("npy", "png") / "shard-00000"
    assert np.array_equal(np.load(folder / "landmarks.npy", mmap_mode="r"), values["landmarks"])
    offsets, data = np.load(folder / "image.offsets.npy"), (folder / "image.bin").read_bytes()
    assert np.array_equal(decoded(data[offsets[2] : offsets[3]]), values["image"][2])
    offsets, points = np.load(folder / "contour.offsets.npy"), np.load(folder / "contour.npy", mmap_mode="r")
    assert np.array_equal(points[offsets[5] : offsets[6]], values["contour"][5])


@pytest.mark.parametrize("codec", [None, "png"])
def test_hdf5_with_plain_h5py(pack: Any, values: Columns, codec: str | None) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(pack("hdf5", codec) / "shard-00000.h5", "r") as file:
        for name in ("label", "landmarks", "landmarks_valid", "time", "track"):
            assert np.array_equal(file[name][:], values[name])
            assert file[name].dtype == values[name].dtype
        if codec is None:
            assert np.array_equal(file["image"][4], values["image"][4])
        else:
            offsets = file["image_offsets"]
            assert np.array_equal(decoded(file["image_bytes"][offsets[4] : offsets[5]].tobytes()), values["image"][4])
        start, end = file["contour_offsets"][3:5]
        assert np.array_equal(file["contour"][start:end], values["contour"][3])
        start, end = file["source_offsets"][1:3]
        assert file["source_bytes"][start:end].tobytes().decode() == values["source"][1]


@pytest.mark.parametrize("codec", [None, "png"])
def test_parquet_with_plain_pyarrow(pack: Any, values: Columns, codec: str | None) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(pack("parquet", codec) / "shard-00000.parquet", page_checksum_verification=True)
    rows = table.to_pylist()
    for number, row in enumerate(rows):
        image = row["image"] if codec is None else row["image"]["bytes"]
        picture = np.frombuffer(image, np.uint8).reshape(SIZE, SIZE, 3) if codec is None else decoded(image)
        assert np.array_equal(picture, values["image"][number])
        assert row["source"] == values["source"][number]
        assert np.array_equal(np.float32(row["landmarks"]), values["landmarks"][number])
        assert row["ids"] == values["ids"][number].tolist()
        assert row["track"] == values["track"][number]
        assert row["landmarks_valid"] is bool(values["landmarks_valid"][number])
        assert np.array_equal(np.float32(row["contour"]).reshape(-1, 2), values["contour"][number])
    column = pq.ParquetFile(pack("parquet", codec) / "shard-00000.parquet").metadata.row_group(0).column(0)
    assert column.has_offset_index
    assert column.has_column_index


@pytest.mark.external
def test_parquet_with_pandas_and_duckdb(pack: Any, values: Columns) -> None:
    path = pack("parquet", None) / "shard-00000.parquet"
    pandas, duckdb = pytest.importorskip("pandas"), pytest.importorskip("duckdb")
    frame = pandas.read_parquet(path)
    assert frame["label"].tolist() == values["label"].tolist()
    assert np.array_equal(np.stack([np.stack(points) for points in frame["landmarks"]]), values["landmarks"])
    query = f"select key, label, landmarks[2][1], image, ids from '{path}' where track = 300"
    ((key, label, x, image, ids),) = duckdb.sql(query).fetchall()
    assert (key, label, np.float32(x)) == (values["key"][3], values["label"][3], values["landmarks"][3, 1, 0])
    assert image == values["image"][3].tobytes()
    assert ids == values["ids"][3].tolist()


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("codec", [None, "png"])
def test_parquet_with_hugging_face_datasets(pack: Any, values: Columns, codec: str | None) -> None:
    datasets = pytest.importorskip("datasets")
    root = pack("parquet", codec)
    files = str(root / "shard-00000.parquet")
    found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(root / "cache"))
    assert found.features["label"].names == ["real", "fäke"]
    assert found.features["label"].int2str(found[3]["label"]) == "fäke"
    if codec is None:
        assert found[2]["image"] == values["image"][2].tobytes()
    else:
        assert isinstance(found[2]["image"], Image.Image)
        assert np.array_equal(np.asarray(found[2]["image"]), values["image"][2])
    assert np.array_equal(np.float32(found[2]["landmarks"]), values["landmarks"][2])
    assert found[1]["source"] == values["source"][1]


@pytest.mark.external
@pytest.mark.filterwarnings("default")
def test_videos_in_parquet_with_hugging_face_datasets(tmp_path: Path) -> None:
    """Its feature `Video` decodes them with torchcodec."""
    datasets, _ = pytest.importorskip("datasets"), pytest.importorskip("torchcodec")
    for number in range(2):
        write_video(tmp_path / "in" / f"{number}.mp4", frames=8 + number, number=number)
    how: dict[str, Any] = {"sample": "item", "size": 32, "resize": "exact", "label_from": "none", "engine": "inline"}
    packer.build(tmp_path / "in", tmp_path / "out", format="parquet", progress=False, **how)
    (file,) = tmp_path.glob("out/shard-*.parquet")
    cache = str(tmp_path / "cache")
    found = datasets.load_dataset("parquet", data_files=str(file), split="train", cache_dir=cache)
    assert isinstance(found.features["video"], datasets.Video)
    for number, expected in enumerate(read_samples(tmp_path / "out")):
        row = found[number]
        frames = row["video"].get_frames_in_range(0, row["frames"]).data.permute(0, 2, 3, 1).numpy()
        assert frames.shape == (8 + number, 32, 32, 3)
        assert np.abs(frames.astype(int) - expected["video"]).mean() < 4  # another library converts the colours


@pytest.mark.external
@pytest.mark.filterwarnings("default")
def test_tfrecord_with_tensorflow(pack: Any, values: Columns) -> None:
    tf = pytest.importorskip("tensorflow")
    record = tf.data.TFRecordDataset(str(pack("tfrecord", "png") / "shard-00000.tfrecord"))
    one = {"image/encoded": tf.string, "image/format": tf.string, "image/class/text": tf.string, "key": tf.string}
    one |= dict.fromkeys(("image/height", "image/width", "image/channels", "image/class/label", "track"), tf.int64)
    one |= {"landmarks_valid": tf.int64, "time": tf.string}
    spec = {name: tf.io.FixedLenFeature([], kind) for name, kind in one.items()}
    spec["landmarks"] = tf.io.FixedLenFeature([5, 2], tf.float32)
    sides = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    spec |= {name: tf.io.VarLenFeature(tf.float32) for name in [*sides, "contour"]}
    spec["ids"] = tf.io.VarLenFeature(tf.int64)
    rows = [tf.io.parse_single_example(serialised, spec) for serialised in record]
    batch = tf.io.parse_example(list(record), spec)
    assert len(rows) == ROWS
    assert batch["track"].numpy().tolist() == values["track"].tolist()
    for number, row in enumerate(rows):
        assert np.array_equal(tf.io.decode_image(row["image/encoded"]).numpy(), values["image"][number])
        assert row["image/class/label"].numpy() == values["label"][number]
        assert row["image/class/text"].numpy().decode() == ("real", "fäke")[values["label"][number]]
        assert row["image/format"].numpy() == b"png"
        assert [row[f"image/{name}"].numpy() for name in ("height", "width", "channels")] == [SIZE, SIZE, 3]
        assert row["track"].numpy() == values["track"][number]
        assert row["landmarks_valid"].numpy() == values["landmarks_valid"][number]
        assert np.frombuffer(row["time"].numpy(), "<f8")[0] == values["time"][number]
        assert np.array_equal(row["landmarks"].numpy(), values["landmarks"][number])
        assert np.array_equal(row["contour"].values.numpy().reshape(-1, 2), values["contour"][number])
        assert row["ids"].values.numpy().tolist() == values["ids"][number].tolist()
        # The box (100, 50, 124, 98) moves by the matrix to (0, 0, 24, 24) in an image of 48 pixels.
        assert [float(row[side].values.numpy()[0]) for side in sides] == [0, 0, 0.5, 0.5]


@pytest.mark.external
@pytest.mark.filterwarnings("default")
def test_tfrecord_with_the_tfrecord_package(pack: Any, values: Columns) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    path = pack("tfrecord", "png") / "shard-00000.tfrecord"
    kinds = {"image/encoded": "byte", "image/class/label": "int", "landmarks": "float", "track": "int"}
    rows = list(reader.tfrecord_loader(str(path), str(path.with_suffix(".idx")), kinds))
    assert len(rows) == ROWS
    # With an index that package begins at a random record, and goes round.
    photos = [decoded(bytes(row["image/encoded"])) for row in rows]
    first = next(number for number in range(ROWS) if np.array_equal(photos[0], values["image"][number]))
    for place, row in enumerate(rows):
        number = (first + place) % ROWS
        assert np.array_equal(photos[place], values["image"][number])
        assert np.ravel(row["image/class/label"])[0] == values["label"][number]
        assert np.ravel(row["track"])[0] == values["track"][number]
        assert np.array_equal(np.float32(row["landmarks"]).reshape(5, 2), values["landmarks"][number])
    # One part of two, by the index: how that package splits a shard among workers.
    half = list(reader.tfrecord_loader(str(path), str(path.with_suffix(".idx")), kinds, shard=(1, 2)))
    assert len(half) == ROWS // 2


@pytest.mark.external
@pytest.mark.filterwarnings("default")
def test_tfrecord_with_dali(pack: Any, values: Columns) -> None:
    dali = pytest.importorskip("nvidia.dali")
    import nvidia.dali.tfrecord as tfrec

    path = pack("tfrecord", "png") / "shard-00000.tfrecord"
    features = {
        "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image/class/label": tfrec.FixedLenFeature([], tfrec.int64, -1),
        "landmarks": tfrec.FixedLenFeature([5, 2], tfrec.float32, 0.0),
    }

    @dali.pipeline_def(batch_size=ROWS, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline() -> Any:
        read = dali.fn.readers.tfrecord(path=str(path), index_path=str(path.with_suffix(".idx")), features=features)
        return dali.fn.decoders.image(read["image/encoded"], device="cpu"), read["image/class/label"], read["landmarks"]

    running = pipeline()
    running.build()
    images, labels, landmarks = running.run()
    for number in range(ROWS):
        assert np.array_equal(np.asarray(images[number]), values["image"][number])
        assert np.asarray(labels[number]).item() == values["label"][number]
        assert np.array_equal(np.asarray(landmarks[number]), values["landmarks"][number])


def test_tfrecord_index_names_every_record(pack: Any) -> None:
    path = pack("tfrecord", None) / "shard-00000.tfrecord"
    records, place = path.read_bytes(), 0
    for line in path.with_suffix(".idx").read_text().splitlines():
        offset, size = map(int, line.split(" "))
        assert offset == place
        assert struct.unpack_from("<Q", records, offset)[0] == size - 16
        place += size
    assert place == len(records)


ARRAYS = ("landmarks", "landmarks_valid", "box", "matrix", "time", "track", "contour", "ids")


@pytest.mark.parametrize("codec", [None, "png"])
def test_webdataset_with_the_webdataset_package(pack: Any, values: Columns, codec: str | None) -> None:
    rows = stream_tars([pack("webdataset", codec) / "shard-00000.tar"])
    assert len(rows) == ROWS
    for number, row in enumerate(rows):
        assert row["__key__"] == row["key.txt"] == values["key"][number]
        assert np.array_equal(row["image.npy" if codec is None else "png"], values["image"][number])
        assert row["cls"] == values["label"][number]
        assert row["source.txt"] == values["source"][number]
        for name in ARRAYS:
            assert np.array_equal(row[f"{name}.npy"], values[name][number])
            assert row[f"{name}.npy"].dtype == values[name][number].dtype


def test_webdataset_with_plain_tarfile(pack: Any, values: Columns) -> None:
    with tarfile.open(pack("webdataset", "png") / "shard-00000.tar") as tar:
        members = tar.getmembers()
        assert {(m.mode, m.uid, m.gid, m.mtime, m.isreg(), m.pax_headers == {}) for m in members} == {
            (0o444, 0, 0, 0, True, True)
        }
        assert len(members) == ROWS * len(schema("png"))
        image = tar.extractfile("00000003-000000.png")
        assert image is not None
        assert np.array_equal(decoded(image.read()), values["image"][3])


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_webdataset_with_the_tar_command(pack: Any, values: Columns, tmp_path: Path) -> None:
    path, out = pack("webdataset", "png") / "shard-00000.tar", tmp_path / "extracted"
    out.mkdir()
    done = subprocess.run(["tar", "-xvf", path, "-C", out], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == ROWS * len(schema("png"))
    assert np.array_equal(np.load(out / "00000002-000000.landmarks.npy"), values["landmarks"][2])
    assert (out / "00000002-000000.cls").read_text() == str(values["label"][2])
    # The offsets of the index are those of the contents.
    data, image = path.read_bytes(), (out / "00000004-000000.png").read_bytes()
    words = path.with_suffix(".idx").read_text().splitlines()[5].split()
    place = words.index("png")
    assert words[place + 3] == "00000004-000000.png"
    assert data[int(words[place + 1]) :][: int(words[place + 2])] == image


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("indexed", [True, False])
def test_webdataset_with_dali(pack: Any, values: Columns, indexed: bool) -> None:
    dali = pytest.importorskip("nvidia.dali")
    path = pack("webdataset", "png") / "shard-00000.tar"
    files: dict[str, Any] = {"paths": [str(path)]}
    if indexed:
        files["index_paths"] = [str(path.with_suffix(".idx"))]

    @dali.pipeline_def(batch_size=ROWS, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline() -> Any:
        image, label, landmarks = dali.fn.readers.webdataset(
            **files, ext=["png", "cls", "landmarks.npy"], missing_component_behavior="error"
        )
        return dali.fn.decoders.image(image, device="cpu"), label, landmarks

    running = pipeline()
    running.build()
    images, labels, landmarks = running.run()
    for number in range(ROWS):
        assert np.array_equal(np.asarray(images[number]), values["image"][number])
        assert np.asarray(labels[number]).tobytes() == str(values["label"][number]).encode()
        points = np.load(io.BytesIO(np.asarray(landmarks[number]).tobytes()))
        assert np.array_equal(points, values["landmarks"][number])


@pytest.mark.external
@pytest.mark.filterwarnings("default")
def test_webdataset_with_hugging_face_datasets(pack: Any, values: Columns) -> None:
    datasets = pytest.importorskip("datasets")
    root = pack("webdataset", "png")
    files = str(root / "shard-00000.tar")
    rows = list(datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True))
    assert len(rows) == ROWS
    for number, row in enumerate(rows):
        assert row["__key__"] == values["key"][number]
        assert np.array_equal(np.asarray(row["png"]), values["image"][number])
        assert row["cls"] == values["label"][number]
