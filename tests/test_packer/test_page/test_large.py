"""Datasets of many samples: pages read few columns, hold them in memory, and say which ones are too large."""

import http.client
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.command import start_packer
from support.datasets import fixed, text, write_encoded
from support.packed_files import write_faces

from packer.packed.browse import columns
from packer.packed.browse.dataset import BrowsedDataset
from packer.page import summary
from packer.page.dataset_view import DatasetView
from packer.page.summary import find_faults
from packer.page.view import make_app
from readers.formats.pool import ShardPool
from shardspec.errors import ShardCorruptError
from shardspec.schema import Schema

TOKEN = "token"
ROWS = 1_000_000
MOST_MB = 300


def pages_of(*datasets: BrowsedDataset) -> TestClient:
    guard = make_app([DatasetView(one) for one in datasets], TOKEN, "127.0.0.1")
    return TestClient(guard, base_url="http://127.0.0.1")


def test_the_grid_reads_no_column(tmp_path: Path) -> None:
    write_faces(tmp_path / "d", 60, shard_rows=25)
    dataset = BrowsedDataset(tmp_path / "d")
    assert pages_of(dataset).get(f"/{TOKEN}/0/").status_code == 200
    assert not dataset._texts
    assert not dataset._numbers


def test_texts_of_too_many_samples_are_refused_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_TEXTS", 50)
    monkeypatch.setattr(summary, "MAX_TEXTS", 50)
    write_faces(tmp_path / "d", 60, shard_rows=25)
    pages = pages_of(BrowsedDataset(tmp_path / "d"))
    for path in ("", "?sort=-score", "?where=score+%3E+0", "field/score", "field/box_side", "row/3", "faults"):
        assert pages.get(f"/{TOKEN}/0/{path}").status_code == 200, path
    assert "of up to 50 samples" in pages.get(f"/{TOKEN}/0/field/source").text
    for path, status in (("?where=source+%3D%3D+%27x%27", 400), ("?sort=key", 400), ("row/3/track", 422)):
        answer = pages.get(f"/{TOKEN}/0/{path}")
        assert (answer.status_code, "of up to 50 samples" in answer.text) == (status, True), path


def test_datasets_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write_faces(tmp_path / name, 30)
    pages = pages_of(*(BrowsedDataset(tmp_path / name) for name in "ab"))
    for path in ("faults", "0/faults"):
        assert "in more than one of these datasets" in pages.get(f"/{TOKEN}/{path}").text
        monkeypatch.setattr(summary, "find_leaks", None)


def test_an_unreadable_field_is_reported_and_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema((text("a"), text("b"), fixed("box", "<f4", 4)))
    values = {"a": [b"x", b"y"], "b": [b"x", b"y"], "box": np.zeros((2, 4), np.float32)}
    write_encoded(tmp_path / "d", "npy", schema, values)
    read = ShardPool.read

    def failing(pool: ShardPool, rows: Any, fields: Any, out: Any, at: Any) -> None:
        if "b" in fields:
            raise ShardCorruptError("b is damaged")
        read(pool, rows, fields, out, at)

    monkeypatch.setattr(ShardPool, "read", failing)
    pages = pages_of(BrowsedDataset(tmp_path / "d"))
    for _ in range(2):
        for part, status in (("a", 200), ("b", 422), ("box_side", 200)):
            answer = pages.get(f"/{TOKEN}/0/field/{part}")
            assert (answer.status_code, "b is damaged" in answer.text) == (status, part == "b"), part


def test_keys_that_repeat_are_found(tmp_path: Path) -> None:
    write_encoded(tmp_path / "d", "npy", Schema((text("key"),)), {"key": [b"c", b"b", b"a", b"c", b"c"]})
    assert list(find_faults(BrowsedDataset(tmp_path / "d"))) == [
        "2 samples with the key of an earlier one, such as 'c'"
    ]
    write_encoded(tmp_path / "e", "npy", Schema((text("key"),)), {"key": [b"a", b"b"]})
    assert list(find_faults(BrowsedDataset(tmp_path / "e"))) == []


@pytest.mark.slow
def test_a_million_samples_are_shown_in_little_memory(tmp_path: Path) -> None:
    names = [f"person {number % 97}/video {number:05d}.mp4".encode() for number in range(ROWS // 50)]
    values = {
        "key": [b"%08d-%06d" % divmod(row, 50) for row in range(ROWS)],
        "source": [names[row // 50] for row in range(ROWS)],
        "label": np.arange(ROWS) // 50 % 2,
        "score": np.random.default_rng(0).random(ROWS, np.float32),
        "box": np.random.default_rng(0).random((ROWS, 4), np.float32),
    }
    schema = Schema((text("key"), text("source"), fixed("label", "<i8"), fixed("score", "<f4"), fixed("box", "<f4", 4)))
    write_encoded(tmp_path / "d", "npy", schema, values, shard_rows=ROWS // 4, batch_rows=50_000)
    del values
    started = start_packer("view", tmp_path / "d", "--port", "0")
    try:
        where = urlsplit(re.findall(r"http://\S+", started.stdout.readline())[0])
        for path in (
            *("", "?page=9000", "field/label", "field/score", "field/source", "field/box_side", "?sort=-score&page=70"),
            *("?sort=source", "?sort=-box_side", "?sort=key&page=3", f"?where={quote('label == 1 and score > 0.5')}"),
            *(f"?where={quote('source == ')}%27person%205/video%2000005.mp4%27", "field/source?where=label+%3D%3D+1"),
            *("row/500000?sort=score", "row/500000/track", f"?where={quote('key > ')}%2700019000%27", "faults"),
        ):
            connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=120)
            connection.request("GET", f"{where.path}0/{path}")
            answer = connection.getresponse()
            status, _ = answer.status, answer.read()
            connection.close()
            assert status == 200, path
        memory = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{started.pid}/status").read_text())
        assert memory is not None
        assert int(memory[1]) / 1024 < MOST_MB
    finally:
        started.kill()
        started.communicate()
