"""Features of WebDataset shards alone: headers and names of tar files, numbers in decimal digits, an index for DALI."""

import io
import tarfile
import tempfile
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crafted import CraftedIndex
from support.datasets import (
    assert_same,
    encode,
    every_kind_schema,
    fixed,
    open_shard,
    picture,
    ragged,
    read_rows,
    text,
    values_for,
    write_encoded,
)
from support.errors import raises
from support.strategies import schemas

from packer.assembly.writers import webdataset as writer
from shardspec.columns import Columns
from shardspec.errors import BuildError, ShardCorruptError
from shardspec.schema import Field, Schema

TAR, INDEX = "shard-00000.tar", "shard-00000.idx"
SCHEMA = Schema(
    (text("key"), picture("image"), fixed("label", "<i8"), fixed("box", "<f4", 4), ragged("points", "<f4", 2))
)
ROWS: Columns = {
    "key": [b"00000000-000000", b"00000001-000000"],
    "image": [b"\xff\xd8 no image, but bytes", b"\xff\xd8"],
    "label": np.array([-5, 300]),
    "box": np.arange(8, dtype=np.float32).reshape(2, 4),
    "points": [np.arange(6, dtype=np.float32).tobytes(), b""],
}
Files = list[tuple[str, bytes]]


def files_of(path: Path) -> Files:
    with tarfile.open(path, "r:") as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def index_of(path: Path) -> bytes:
    """The index of a tar file, as DALI's ``wds2idx`` makes it."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            base, _, extension = member.name.partition(".")
            samples.setdefault(base, []).append(f"{extension} {member.offset_data} {member.size} {member.name}")
    return "\n".join([f"v1.2 {len(samples)}", *map(" ".join, samples.values()), ""]).encode()


def tar_of(files: Files) -> bytes:
    """A tar file that Python writes, as far as the two blocks of zeros at its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o444
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    return out.getvalue()[: end + 1024]


def test_the_bytes_are_those_of_pythons_tarfile_and_the_index_is_dalis(tmp_path: Path) -> None:
    for number, schema in enumerate((SCHEMA, every_kind_schema())):
        root = tmp_path / str(number)
        write_encoded(root, "webdataset", schema, ROWS if schema is SCHEMA else encode(schema, values_for(schema, 9)))
        data = (root / TAR).read_bytes()
        assert data == tar_of(files_of(root / TAR))
        assert (root / INDEX).read_bytes() == index_of(root / TAR)


def test_members_are_named_by_key_and_field(tmp_path: Path) -> None:
    write_encoded(tmp_path, "webdataset", SCHEMA, ROWS)
    found = dict(files_of(tmp_path / TAR)[:5])
    assert list(found) == [f"00000000-000000.{e}" for e in ("box.npy", "key.txt", "jpg", "cls", "points.npy")]
    contents = list(found.values())
    assert np.array_equal(np.load(io.BytesIO(contents[0]), allow_pickle=False), ROWS["box"][0])
    assert contents[1:4] == [ROWS["key"][0], ROWS["image"][0], b"-5"]
    assert np.array_equal(np.load(io.BytesIO(contents[4])), np.arange(6, dtype=np.float32).reshape(3, 2))


def test_names_of_every_kind(tmp_path: Path) -> None:
    schema = every_kind_schema()
    write_encoded(tmp_path, "webdataset", schema, encode(schema, values_for(schema, 1)))
    found = {name.partition(".")[2] for name, _ in files_of(tmp_path / TAR)}
    others = {"key.txt", "note.txt", "document.json", "cls", "blob.bin", "photo.png"}
    arrays = set(schema.names) - {name.partition(".")[0] for name in others} - {"label"}
    assert found == others | {f"{name}.npy" for name in arrays}


KEYS = [
    b"a.b.c",
    b"n01440764/n01440764_10026.JPEG",
    b"../../etc/passwd",
    b"/absolute",
    b"two words\nand a line",
    "ünï/人".encode(),
    b"100%25",
    b"\xff\xfe no utf-8",
    b"-rf",
    b"@00000009",
]
LONG = [b"", b"x" * 92, b"x" * 93, b"." * 40, b"y" * 5000]


def test_keys_of_any_kind_round_trip_and_appear_in_member_names(tmp_path: Path) -> None:
    schema = Schema((text("key"), fixed("label", "|u1")))
    keys = KEYS + LONG
    columns = {"key": keys, "label": np.arange(len(keys), dtype=np.uint8)}
    manifest = write_encoded(tmp_path, "webdataset", schema, columns)
    assert_same(schema, read_rows(open_shard(tmp_path, manifest), schema, range(len(keys))), columns)
    with tarfile.open(tmp_path / TAR) as tar:
        names = [name for name in tar.getnames() if name.endswith(".cls")]
        tar.extractall(tmp_path / "extracted", filter="data")
    bases = [name.removesuffix(".cls") for name in names]
    assert [unquote_to_bytes(base) for base in bases[: len(KEYS)]] == KEYS
    # A name has 100 bytes, and the longest extension here is `key.txt`.
    assert bases[len(KEYS) :] == ["@00000010", "x" * 92, "@00000012", "@00000013", "@00000014"]
    assert len(set(bases)) == len(bases)
    assert sorted(path.name for path in (tmp_path / "extracted").iterdir() if path.suffix == ".cls") == sorted(names)
    assert (tmp_path / INDEX).read_bytes() == index_of(tmp_path / TAR)


def test_samples_without_a_key_are_named_by_their_row(tmp_path: Path) -> None:
    schema = Schema((fixed("label", "|u1"),))
    write_encoded(tmp_path, "webdataset", schema, {"label": np.array([7, 8], np.uint8)}, shard_rows=1)
    assert files_of(tmp_path / "shard-00001.tar") == [("@00000000.cls", b"8")]


@st.composite
def shards(draw: st.DrawFn) -> tuple[Schema, Columns]:
    """A schema and encoded values, of any bytes that a field may have."""
    schema, rows = draw(schemas()), draw(st.integers(0, 3))
    columns: Columns = {}
    for field in schema:
        sizes = st.just(field.row_bytes) if field.is_fixed else st.integers(0, 600)
        values = [_encoded(draw, field, draw(sizes)) for _ in range(rows)]
        if field.is_fixed:
            whole = np.frombuffer(b"".join(values), np.uint8)
            columns[field.name] = whole.view(field.numpy_dtype).reshape(rows, *field.fixed_shape)
        else:
            columns[field.name] = values
    return schema, columns


def _encoded(draw: st.DrawFn, field: Field, size: int) -> bytes:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if field.kind == "ragged":
        return rng.bytes(int(rng.integers(0, 4)) * field.row_bytes)
    if field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        shape = [int(rng.integers(0, 5)) if axis is None else axis for axis in field.shape]
        body = int(np.prod(shape, dtype=int)) * field.numpy_dtype.itemsize
        return np.array(shape, "<u4").tobytes() + rng.bytes(body)
    return rng.bytes(size)


@settings(max_examples=60, deadline=None)
@given(shards(), st.booleans())
def test_values_of_any_schema_round_trip_and_tarfile_reads_them(shard: tuple[Schema, Columns], checksums: bool) -> None:
    schema, columns = shard
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = write_encoded(root, "webdataset", schema, columns)
        rows = len(columns[schema.names[0]])
        reader = open_shard(root, manifest, checksums=checksums)
        assert_same(schema, read_rows(reader, schema, range(rows)), columns)
        assert len(files_of(root / TAR)) == rows * len(schema)
        for name, data in files_of(root / TAR):
            if name.endswith(".npy"):
                np.load(io.BytesIO(data), allow_pickle=False)


WRONG = [
    b"",
    b"+5",
    b"05",
    b" 5",
    b"5 ",
    b"5\n",
    b"5\0",
    b"1_0",
    b"-0",
    b"0x5",
    b"5.0",
    b"128",
    b"-129",
    b"9" * 30,
    b"\xff",
]


@pytest.mark.parametrize("digits", WRONG)
def test_labels_that_are_not_canonical_numbers_of_the_dtype_are_an_error(tmp_path: Path, digits: bytes) -> None:
    schema = Schema((fixed("label", "|i1"),))
    manifest = write_encoded(tmp_path, "webdataset", schema, {"label": np.array([1, 2], np.int8)})
    path, index = tmp_path / TAR, CraftedIndex(tmp_path / "shard-00000.tar.index")
    start, data = index.get(0, "starts", 1), bytearray(path.read_bytes())
    data[start : start + len(digits)] = digits
    path.write_bytes(data)
    index.set(0, "sizes", 1, len(digits))
    (tmp_path / "shard-00000.tar.index").write_bytes(bytes.fromhex(index.sealed().edits[0][2]))
    reader = open_shard(tmp_path, manifest)
    assert read_rows(reader, schema, [0])["label"].tolist() == [1]
    with raises(ShardCorruptError, expected="integers of |i1 in decimal digits in field 'label'", found="others"):
        read_rows(reader, schema, [0, 1])


def test_an_index_without_the_shapes_of_arrays_is_an_error(tmp_path: Path) -> None:
    schema = Schema((Field("array", "bytes", "<f4", (None, None)),))
    value = np.array([2, 3], "<u4").tobytes() + bytes(24)
    manifest = write_encoded(tmp_path, "webdataset", schema, {"array": [value, value]})
    assert read_rows(open_shard(tmp_path, manifest), schema, [1, 0])["array"] == [value, value]
    path = tmp_path / "shard-00000.tar.index"
    index = CraftedIndex(path)
    shapes = index.entry_place(0) + 16 + 3 * 8
    index.data[shapes : shapes + 8] = (2).to_bytes(8, "little")
    del index.data[-8:]  # two numbers of four
    path.write_bytes(bytes.fromhex(index.sealed().edits[0][2]))
    with raises(ShardCorruptError, expected="the places of 2 values", found="others"):
        read_rows(open_shard(tmp_path, manifest), schema, [0])


def test_a_writer_refuses_invalid_arrays_and_values_that_no_tar_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = Schema((Field("array", "bytes", "<f4", (None, None)),))
    for number, value in enumerate([b"", b"123", bytes(9), np.array([2, 3], "<u4").tobytes() + bytes(23)]):
        with pytest.raises(BuildError, match="field 'array': expected the bytes of an array of <f4"):
            write_encoded(tmp_path / str(number), "webdataset", array, {"array": [value]})
    with pytest.raises(BuildError, match="field 'points'"):
        write_encoded(tmp_path / "ragged", "webdataset", Schema((ragged("points", "<f4", 2),)), {"points": [bytes(7)]})
    monkeypatch.setattr(writer, "MEMBER_BYTES_MAX", 20)
    with pytest.raises(
        BuildError, match=r"field 'key': expected values of at most 20 bytes.*found 21: use another format"
    ):
        write_encoded(tmp_path / "large", "webdataset", Schema((text("key"),)), {"key": [b"short", b"k" * 21]})
