"""The structures of HDF5 files, read by our own code, against the library that wrote them."""

import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.datasets import write_encoded

from readers.formats.hdf5.chunks import read_chunks
from readers.formats.hdf5.file import HDF5Error, HDF5File
from readers.formats.mapping import map_file
from shardspec.errors import BuildError
from shardspec.formats.hdf5 import HDF5Array
from shardspec.schema import Field, Schema


def create(path: Path, libver: str = "v110") -> h5py.File:
    return h5py.File(path, "x", libver=(libver, libver), rdcc_nbytes=0)


@pytest.mark.parametrize("count", [1, 8, 9, 40, 1100, 9000])
def test_any_number_of_datasets_is_found(tmp_path: Path, count: int) -> None:
    """Up to 8 links are in the header; for 1,100 the B-tree has two levels, for 9,000 the heap has nested tables."""
    names = [f"field_{number:04d}_{'x' * (number % 50)}" for number in range(count)]
    with create(tmp_path / "a.h5") as file:
        for number, name in enumerate(names):
            file.create_dataset(name, shape=(0, number), dtype="u1", track_times=False)
    found = HDF5File(map_file(tmp_path / "a.h5"), names)
    for number, name in enumerate(names):
        assert found.dataset(name).dataspace[4:20] == np.array([0, number], "<i8").tobytes()


@pytest.mark.parametrize(("rows", "chunk_rows"), [(1, 1), (7, 7), (1024, 1), (1025, 1), (2048, 1), (2500, 2)])
def test_chunks_lie_where_the_library_says(tmp_path: Path, rows: int, chunk_rows: int) -> None:
    """A fixed array has pages of 1,024 entries."""
    shape = (rows, 64, 64)
    places = {}
    with create(tmp_path / "a.h5") as file:
        dataset = file.create_dataset("a", shape, "u1", chunks=(chunk_rows, 64, 64), fletcher32=True)
        for row in range(0, rows, chunk_rows):
            dataset[row : row + chunk_rows] = row % 256
        dataset.id.chunk_iter(lambda chunk: places.update({chunk.chunk_offset[0]: chunk.byte_offset}))
    found = read_chunks(HDF5File(map_file(tmp_path / "a.h5"), ["a"]), HDF5Array("a", "|u1", shape, chunk_rows))
    assert found.rows == chunk_rows
    assert found.starts.tolist() == [places[row] for row in range(0, rows, chunk_rows)]


@pytest.mark.parametrize(
    "options",
    [
        {"maxshape": (None, 64, 64)},
        {"compression": "gzip"},
        {"shuffle": True},
        {"fletcher32": False},
        {"chunks": (1, 64, 32)},
        {"chunks": None, "fletcher32": False},
        {"dtype": ">u2"},
        {"shape": (4, 64, 64)},
    ],
    ids=str,
)
def test_what_the_contract_does_not_have_is_an_error(tmp_path: Path, options: dict[str, object]) -> None:
    values: dict[str, object] = {
        "shape": (5, 64, 64),
        "dtype": "<u2",
        "chunks": (1, 64, 64),
        "fletcher32": True,
        **options,
    }
    with create(tmp_path / "a.h5") as file:
        file.create_dataset("a", **values)[...] = 1
    expected = HDF5Array("a", "<u2", (5, 64, 64), 1)
    with pytest.raises(HDF5Error, match=r"dataset 'a': expected|chunk index"):
        read_chunks(HDF5File(map_file(tmp_path / "a.h5"), ["a"]), expected)


def test_other_bounds_other_names_and_trailing_bytes_are_errors(tmp_path: Path) -> None:
    for libver in ("v108", "v110"):
        with create(tmp_path / f"{libver}.h5", libver) as file:
            file["a"] = np.zeros(3, "u1")
    sound = map_file(tmp_path / "v110.h5")
    HDF5File(sound, ["a"])
    for data, names in (
        (map_file(tmp_path / "v108.h5"), ["a"]),
        (sound, ["b"]),
        (sound, ["a", "b"]),
        (sound, []),
        (np.append(sound, np.uint8(0)), ["a"]),
        (sound[:-1], ["a"]),
        (sound[:20], ["a"]),
        (sound[:0], ["a"]),
    ):
        with pytest.raises(HDF5Error):
            HDF5File(data, names)


@pytest.mark.parametrize("limit", [0, 4_000, 20_000, -1])
def test_a_file_that_cannot_be_written_is_reported_with_the_reason(tmp_path: Path, limit: int) -> None:
    """A limit of the size of files does as a full disk does: at once, while values are written, and at the end."""
    schema = Schema((Field("a", "bytes", "|u1", (None,)),))
    encoded = {"a": [bytes(1000)] * 40}
    size = write_encoded(tmp_path / "whole", "hdf5", schema, encoded).shards[0].bytes
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit % size, before[1]))
    try:
        with pytest.raises(BuildError, match=r"shard-00000\.h5: cannot be written: File too large\Z"):
            write_encoded(tmp_path / "short", "hdf5", schema, encoded)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
