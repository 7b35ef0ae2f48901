"""Mapped files: no descriptor, valid as long as any view, nothing to map in an empty file."""

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from support.errors import raises

from readers.formats.mapping import let_go_of_pages, map_file
from shardspec.errors import ShardMissingError


def test_views_keep_a_mapping_alive(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    data = map_file(path)
    assert not data.flags.writeable
    view = memoryview(data)[256:512]
    del data
    path.unlink()
    gc.collect()
    assert bytes(view) == bytes(range(256))


def test_a_mapping_ends_with_its_last_view(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    data = map_file(tmp_path / "file")
    owner = weakref.ref(data)
    del data
    gc.collect()
    assert owner() is None
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path) not in maps.read_text()


def _mapped_bytes() -> int:
    """The mapped files in the memory of this process."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "RssFile:")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_values_can_be_released_and_read_again(tmp_path: Path) -> None:
    size = 32 * 2**20
    values = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    (tmp_path / "file").write_bytes(values.tobytes())
    data, gone = map_file(tmp_path / "file"), map_file(tmp_path / "file")
    view = memoryview(data)[100:200]
    del gone
    before = _mapped_bytes()
    assert np.array_equal(data, values)
    assert _mapped_bytes() - before > size / 2
    let_go_of_pages()
    assert _mapped_bytes() - before < size / 2
    assert np.array_equal(data, values)
    assert bytes(view) == values[100:200].tobytes()


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert map_file(tmp_path / "empty").shape == (0,)
    with raises(ShardMissingError, expected="a file", found="none"):
        map_file(tmp_path / "none")
