"""Every format holds the same promises. A format is tested here the moment its line stands in the table."""

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import (
    assert_same,
    encode,
    every_kind_schema,
    face_schema,
    fixed,
    open_shard,
    picture,
    ragged,
    read_rows,
    size_of,
    slice_rows,
    text,
    values_for,
    write_encoded,
)
from support.errors import raises

from packer.assembly.writers.base import ShardSize
from shardspec.columns import Columns
from shardspec.errors import BuildError, SchemaError, ShardCorruptError, ShardMissingError
from shardspec.formats import FORMATS, get_format
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.registry import resolve
from shardspec.schema import Field, Schema

FORMAT = pytest.mark.parametrize("format", sorted(FORMATS))


def packed(root: Path, format: str, schema: Schema, rows: int) -> tuple[Manifest, Columns]:
    encoded = encode(schema, values_for(schema, rows))
    return write_encoded(root, format, schema, encoded), encoded


@FORMAT
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 23])
def test_every_kind_of_field_round_trips_bit_for_bit(tmp_path: Path, format: str, rows: int, checksums: bool) -> None:
    schema = every_kind_schema()
    manifest, encoded = packed(tmp_path, format, schema, rows)
    reader = open_shard(tmp_path, manifest, checksums=checksums)
    assert len(reader) == rows
    assert_same(schema, read_rows(reader, schema, range(rows)), encoded)
    reader.close()


@FORMAT
def test_rows_in_any_order_and_more_than_once_go_to_their_places(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    manifest, encoded = packed(tmp_path, format, schema, 12)
    reader = open_shard(tmp_path, manifest)
    rows, at = np.array([11, 0, 3, 3, 7]), np.array([9, 1, 4, 0, 6])
    out = {f.name: np.zeros((10, *f.fixed_shape), f.numpy_dtype) if f.is_fixed else [b"-"] * 10 for f in schema}
    buffers = {name: column.__array_interface__["data"] for name, column in out.items() if hasattr(column, "dtype")}
    reader.read(rows, schema.names, out, at)
    picked = {f.name: out[f.name][at] if f.is_fixed else [out[f.name][place] for place in at] for f in schema}
    assert_same(schema, picked, encoded, rows.tolist())
    assert buffers == {name: out[name].__array_interface__["data"] for name in buffers}
    for field in schema:
        for place in {*range(10)} - {*at.tolist()}:
            untouched = out[field.name][place]
            assert not untouched.any() if field.is_fixed else untouched == b"-"
    reader.close()


@FORMAT
def test_rows_are_found_over_many_blocks(tmp_path: Path, format: str) -> None:
    schema = Schema(
        (text("key"), fixed("image", "|u1", 64, 64, 3), ragged("points", "<f4", 2), fixed("flags", "|b1", 3))
    )
    manifest, encoded = packed(tmp_path, format, schema, 800)
    assert manifest.shards[0].block_rows < 400
    reader = open_shard(tmp_path, manifest)
    rows = np.random.default_rng(0).permutation(800)
    for start in range(0, 800, 100):
        batch = rows[start : start + 100].tolist()
        assert_same(schema, read_rows(reader, schema, batch), encoded, batch)
    assert_same(schema, read_rows(reader, schema, range(800)), encoded)
    reader.close()


@FORMAT
def test_a_sample_may_be_larger_than_a_block(tmp_path: Path, format: str) -> None:
    schema = Schema((text("key"), fixed("image", "|u1", 1300, 1300, 3), Field("blob", "bytes", "|u1", (None,))))
    rng = np.random.default_rng(0)
    columns = {
        "key": ["a", "b", "c"],
        "image": rng.integers(0, 256, (3, 1300, 1300, 3), np.uint8),
        "blob": [rng.bytes(700_000), b"", rng.bytes(5_000_000)],
    }
    encoded = encode(schema, columns)
    manifest = write_encoded(tmp_path, format, schema, encoded)
    assert manifest.shards[0].block_rows == 1
    reader = open_shard(tmp_path, manifest)
    assert_same(schema, read_rows(reader, schema, [2, 0, 1]), encoded, [2, 0, 1])
    reader.close()


@FORMAT
def test_only_the_fields_asked_for_are_read(tmp_path: Path, format: str) -> None:
    schema = every_kind_schema()
    manifest, encoded = packed(tmp_path, format, schema, 9)
    reader = open_shard(tmp_path, manifest)
    for names in (["label"], ["photo", "pair_f2"], ["ragged_i2"], ["nothing"], ["note", "scalar_b1", "blob"]):
        found = read_rows(reader, schema, [4, 0, 8], names)
        assert list(found) == names
        assert_same(schema, found, encoded, [4, 0, 8])
    reader.read(np.array([1]), [], {}, np.array([0]))
    nothing = {f.name: np.empty((0, *f.fixed_shape), f.numpy_dtype) if f.is_fixed else [] for f in schema}
    reader.read(np.empty(0, np.int64), schema.names, nothing, np.empty(0, np.int64))
    reader.close()


@FORMAT
def test_the_bytes_depend_on_the_rows_alone(tmp_path: Path, format: str) -> None:
    schema = every_kind_schema()
    encoded = encode(schema, values_for(schema, 23))
    digests = {
        write_encoded(tmp_path / str(batch), format, schema, encoded, batch_rows=batch).digest for batch in (1, 4, 100)
    }
    # Another process, whose memory is filled with something else before it is used.
    code = (
        "import sys; from pathlib import Path; from support.datasets import *; s = every_kind_schema(); "
        "print(write_encoded(Path(sys.argv[1]), sys.argv[2], s, encode(s, values_for(s, 23))).digest)"
    )
    environment = {
        **os.environ,
        "MALLOC_PERTURB_": "165",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "other"), format],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert digests == {done.stdout.strip()}


@FORMAT
def test_encoded_values_outlive_the_reader(tmp_path: Path, format: str) -> None:
    schema = every_kind_schema()
    manifest, encoded = packed(tmp_path, format, schema, 9)
    reader = open_shard(tmp_path, manifest)
    names = [f.name for f in schema if not f.is_fixed]
    out: Columns = {name: [b""] * 9 for name in names}
    reader.read(np.arange(9), names, out, np.arange(9))
    reader.close()
    del reader
    for entry in manifest.shards[0].files:
        (tmp_path / entry.name).unlink()
    assert_same(schema, out, encoded)


@FORMAT
def test_two_readers_and_several_threads_at_once(tmp_path: Path, format: str) -> None:
    schema = every_kind_schema()
    manifest, encoded = packed(tmp_path, format, schema, 23)
    readers = [open_shard(tmp_path, manifest) for _ in range(2)]
    failures: list[BaseException] = []

    def work(reader: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(10):
                rows = rng.integers(0, 23, 12).tolist()
                assert_same(schema, read_rows(reader, schema, rows), encoded, rows)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(readers[n % 2], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    readers[0].close()
    assert_same(schema, read_rows(readers[1], schema, range(23)), encoded)
    readers[1].close()


def _read_in_child(root: str, rows: list[int], queue: Any) -> None:
    manifest = Layout(Path(root)).load()
    reader = open_shard(Path(root), manifest)
    found = read_rows(reader, manifest.schema, rows)
    reader.close()
    queue.put({name: column.tobytes() if hasattr(column, "dtype") else column for name, column in found.items()})


@FORMAT
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_started_in_any_way_read_the_same(tmp_path: Path, format: str, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    schema = every_kind_schema()
    manifest, encoded = packed(tmp_path, format, schema, 9)
    reader = open_shard(tmp_path, manifest)  # open in the parent, and in use, when the child starts
    read_rows(reader, schema, range(9))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    orders = [[0, 8, 3], [7, 7, 1]]
    children = [
        context.Process(target=_read_in_child, args=(str(tmp_path), rows, queue), daemon=True) for rows in orders
    ]
    for child in children:
        child.start()
    answers = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    expected = []
    for rows in orders:
        found = read_rows(reader, schema, rows)
        assert_same(schema, found, encoded, rows)
        expected.append({n: c.tobytes() if hasattr(c, "dtype") else c for n, c in found.items()})
    assert sorted(answers, key=str) == sorted(expected, key=str)
    reader.close()
    queue.close()
    queue.join_thread()


@FORMAT
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_during_reads_can_read(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    manifest, encoded = packed(tmp_path, format, schema, 50)
    reader = open_shard(tmp_path, manifest)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            read_rows(reader, schema, range(50))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            child = os.fork()
            if not child:
                status = 1
                try:
                    other = open_shard(tmp_path, manifest)
                    assert_same(schema, read_rows(other, schema, range(50)), encoded)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    reader.close()


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@FORMAT
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_reader_holds_no_descriptor(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    manifest, _ = packed(tmp_path, format, schema, 3)
    warm = open_shard(tmp_path, manifest)
    read_rows(warm, schema, [0])
    warm.close()
    before = open_descriptors()
    readers = [open_shard(tmp_path, manifest) for _ in range(20)]
    for reader in readers:
        read_rows(reader, schema, [0, 2])
    assert open_descriptors() == before
    for reader in readers:
        reader.close()
    del readers, reader
    assert open_descriptors() == before


@FORMAT
def test_a_shard_opens_without_any_other_file(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    encoded = encode(schema, values_for(schema, 6))
    manifest = write_encoded(tmp_path, format, schema, encoded, shard_rows=3)
    assert len(manifest.shards) == 2
    own = {entry.name for entry in manifest.shards[1].files}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.relative_to(tmp_path).as_posix() not in own:
            path.unlink()
    reader = open_shard(tmp_path, manifest, 1)
    assert_same(schema, read_rows(reader, schema, range(3)), slice_rows(schema, encoded, 3, 6))
    reader.close()


@FORMAT
def test_the_suffixes_are_those_of_the_table(tmp_path: Path, format: str) -> None:
    manifest, _ = packed(tmp_path, format, face_schema(), 2)
    entry = get_format(format)
    names = [e.name for e in manifest.shards[0].files]
    if entry.suffix:
        expected = [f"shard-00000{suffix}" for suffix in (entry.suffix, *entry.sidecars)]
        assert names == sorted(expected)
    else:
        assert all(name.startswith("shard-00000/") for name in names)
    for e in manifest.shards[0].files:
        Layout(tmp_path).check_digest(e)


@FORMAT
@pytest.mark.parametrize("claimed", [2, 4])
def test_a_writer_refuses_more_or_fewer_rows_than_announced(tmp_path: Path, format: str, claimed: int) -> None:
    schema = Schema((fixed("label", "<i8"),))
    encoded = encode(schema, values_for(schema, 3))
    announced = size_of(schema, encoded)
    writer_class = resolve("format", format, {format: get_format(format).writer})
    writer = writer_class(tmp_path, "shard-00000", schema, ShardSize(claimed, announced.field_bytes))

    def write() -> None:
        writer.write(encoded)
        writer.close()

    with pytest.raises((BuildError, ValueError, TypeError)):
        write()


@FORMAT
def test_a_writer_refuses_values_that_do_not_fit_the_schema(tmp_path: Path, format: str) -> None:
    schema = Schema((fixed("label", "<i8"), text("key")))
    good = {"label": np.arange(2), "key": [b"a", b"b"]}
    bad: list[Columns] = [
        {**good, "label": np.arange(2.0)},
        {**good, "label": np.arange(2, dtype=np.int32)},
        {**good, "label": np.zeros((2, 1), np.int64)},
        {**good, "key": [b"a"]},
    ]
    writer_class = resolve("format", format, {format: get_format(format).writer})
    for number, rows in enumerate(bad):
        (tmp_path / str(number)).mkdir()
        writer = writer_class(tmp_path / str(number), "shard-00000", schema, size_of(schema, good))
        with pytest.raises(SchemaError):
            writer.write(rows)
        writer.write(good)
        writer.close()


def _with_shard(manifest: Manifest, **changes: Any) -> Manifest:
    shard = manifest.shards[0]
    generation = manifest.generations[0]
    changed = type(shard)(**{**vars(shard), **changes})
    return Manifest(manifest.format, manifest.schema, (type(generation)(**{**vars(generation), "shards": (changed,)}),))


@FORMAT
def test_a_manifest_that_does_not_fit_is_an_error_not_wrong_data(tmp_path: Path, format: str) -> None:
    schema = Schema((text("key"), fixed("box", "<f4", 4), fixed("image", "|u1", 8, 8, 3), picture("photo", "png")))
    manifest, _ = packed(tmp_path, format, schema, 7)

    def read(changed: Manifest, rows: list[int]) -> None:
        reader = open_shard(tmp_path, changed)
        read_rows(reader, changed.schema, rows)

    for samples in (6, 8):
        with pytest.raises(ShardCorruptError):
            read(_with_shard(manifest, samples=samples), [0, 5])
    for fields in (
        (text("key"), fixed("box", "<f4", 5), *schema.fields[2:]),
        (text("key"), fixed("box", "<f8", 4), *schema.fields[2:]),
        (text("key"), fixed("box", "<f4", 4), fixed("image", "|u1", 8, 9, 3), schema.fields[3]),
        (text("kez"), *schema.fields[1:]),
        (*schema.fields, fixed("more", "<i8")),
    ):
        with pytest.raises((ShardCorruptError, ShardMissingError)):
            read(Manifest(format, Schema(fields), manifest.generations), [0, 5])


@FORMAT
def test_files_that_are_missing_empty_or_something_else(tmp_path: Path, format: str) -> None:
    schema = face_schema()
    manifest, _ = packed(tmp_path, format, schema, 3)
    for entry in manifest.shards[0].files:
        path = tmp_path / entry.name
        if path.suffix == ".idx":
            continue  # for other tools: our readers do not look at it
        whole = path.read_bytes()
        for data in (b"", b"\0" * entry.bytes, b"what is this?" * 400, whole[:-1]):
            if path.suffix == ".bin" and len(data) == len(whole):
                continue  # plain values: any bytes will do
            path.write_bytes(data)
            with pytest.raises(ShardCorruptError, match=r"expected .*, found "):
                read_rows(open_shard(tmp_path, manifest), schema, range(3))
        path.unlink()
        with raises(ShardMissingError, expected="a file", found="none"):
            read_rows(open_shard(tmp_path, manifest), schema, range(3))
        path.write_bytes(whole)
    read_rows(open_shard(tmp_path, manifest), schema, range(3))
