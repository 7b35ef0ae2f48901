"""Datasets of many samples: pages in bounded memory, which say what they wait for."""

import http.client
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.command import start_packer
from support.datasets import fixed, text, write_encoded
from support.packed_files import write_faces
from support.pages import Page

from packer.packed.shown import columns
from packer.packed.shown.background import Job
from packer.packed.shown.dataset import ShownDataset
from packer.page.looking import Looking
from packer.page.serving.guard import Guard
from packer.page.serving.server import make_app
from packer.page.serving.shown import Shown
from readers import open_dataset
from readers.formats.pool import ShardPool
from shardspec.errors import ShardCorruptError
from shardspec.schema import Schema

TOKEN = "token"
ROWS = 1_000_000
MOST_MB = 100


def impatient(root: Path) -> tuple[TestClient, ShownDataset, list[Job[Any]]]:
    """Pages that wait for nothing, and the jobs that they leave to be run."""
    jobs: list[Job[Any]] = []
    dataset = ShownDataset(root, patience_s=0)
    dataset._opening = True  # nothing is to be opened beforehand
    dataset._background.run = jobs.append  # type: ignore[method-assign]
    guard = Guard(make_app(Shown([Looking(dataset)]), TOKEN), TOKEN, "127.0.0.1")
    return TestClient(guard, base_url="http://127.0.0.1"), dataset, jobs


def test_what_takes_long_is_said_and_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "FEW_TEXTS", 10)
    write_faces(tmp_path / "d", 60, shard_rows=25)
    pages, dataset, jobs = impatient(tmp_path / "d")
    assert pages.get(f"/{TOKEN}/0/").status_code == 200  # the grid needs no column
    assert pages.get(f"/{TOKEN}/0/field/score").status_code == 200
    for part in ("field/source", "field/box_side", "row/3/track", "faults"):
        answer = pages.get(f"/{TOKEN}/0/{part}")
        assert (answer.status_code, "…" in answer.text) == (202, True), part
        assert "<html" not in answer.text
    for page in ("?sort=source", "?where=source+%3D%3D+%27x%27", "row/3?sort=box_side"):
        answer = pages.get(f"/{TOKEN}/0/{page}")
        assert answer.status_code == 202
        assert [e.attributes.get("content") for e in Page(answer.text).find("meta")][-1] == "1"  # comes by itself
    assert len(jobs) == 2  # one pass for all fields, one for what is compared
    assert "waiting" in pages.get(f"/{TOKEN}/0/field/source").text  # for its turn
    jobs[0].begun = True
    assert "0 %" in pages.get(f"/{TOKEN}/0/field/source").text
    for job in jobs:
        job.run()
    for path in ("field/source", "row/3/track", "faults", "?sort=source", "row/3?sort=box_side"):
        assert pages.get(f"/{TOKEN}/0/{path}").status_code == 200, path
    # Keys are too many to be counted: they are compared, and sorted, by reading them.
    jobs.clear()
    whole = open_dataset(tmp_path / "d")
    keys = whole.column("key")
    condition = f"key >= {keys[20]!r}"
    paths = [f"/{TOKEN}/0/{path}" for path in (f"?where={quote(condition)}", "?sort=key", "?sort=-key")]
    for path in paths * 2:
        while pages.get(path).status_code == 202:
            assert len(jobs) == 1
            jobs.pop().run()
        assert not jobs
    assert dataset.select(condition).rows().tolist() == whole.where(condition).rows.tolist()
    assert dataset.select("", "key").rows().tolist() == sorted(range(60), key=lambda row: keys[row])
    assert dataset.select("", "-key").rows().tolist() == sorted(range(60), key=lambda row: keys[row], reverse=True)
    for key in keys[:10]:  # nobody comes back for these
        assert pages.get(f"/{TOKEN}/0/?where={quote(f'key > {key!r}')}").status_code == 202
        jobs.pop().run()
    assert sum(name == "where" for name, *_ in dataset._jobs) <= 6
    assert "too many" in pages.get(f"/{TOKEN}/0/field/key").text


def test_datasets_are_compared_in_the_background_and_once(tmp_path: Path) -> None:
    for name in "ab":
        write_faces(tmp_path / name, 30)
    shown = Shown([Looking(ShownDataset(tmp_path / name, patience_s=0)) for name in "ab"])
    jobs: list[Job[Any]] = []
    shown._background.run = jobs.append  # type: ignore[method-assign]
    pages = TestClient(Guard(make_app(shown, TOKEN), TOKEN, "127.0.0.1"), base_url="http://127.0.0.1")
    assert [pages.get(f"/{TOKEN}/{path}").status_code for path in ("faults", "0/faults")] == [202, 202]
    jobs.pop().run()
    assert not jobs
    assert "in more than one of these datasets" in pages.get(f"/{TOKEN}/faults").text


def test_a_field_that_cannot_be_read_is_said_each_time_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema((text("a"), text("b"), fixed("box", "<f4", 4)))
    values = {"a": [b"x", b"y"], "b": [b"x", b"y"], "box": np.zeros((2, 4), np.float32)}
    write_encoded(tmp_path / "d", "npy", schema, values)
    read = ShardPool.read

    def failing(pool: ShardPool, rows: Any, fields: Any, out: Any, at: Any) -> None:
        if "b" in fields:
            raise ShardCorruptError("b is damaged")
        read(pool, rows, fields, out, at)

    monkeypatch.setattr(ShardPool, "read", failing)
    pages, dataset, jobs = impatient(tmp_path / "d")
    for _ in range(2):
        for part, status in (("a", 200), ("b", 422), ("box_side", 200)):
            while (answer := pages.get(f"/{TOKEN}/0/field/{part}")).status_code == 202:
                jobs.pop().run()
            assert answer.status_code == status, part
    dataset.patience_s = None
    dataset._background.run = Job.run  # type: ignore[method-assign]
    with pytest.raises(ShardCorruptError, match="b is damaged"):
        dataset.texts("b")


def test_keys_that_repeat_are_found(tmp_path: Path) -> None:
    write_encoded(tmp_path / "d", "npy", Schema((text("key"),)), {"key": [b"a", b"b", b"a", b"c", b"a"]})
    assert ShownDataset(tmp_path / "d").repeats("key") == (2, "a")
    write_encoded(tmp_path / "e", "npy", Schema((text("key"),)), {"key": [b"a", b"b"]})
    assert ShownDataset(tmp_path / "e").repeats("key") == (0, "")


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
            status = 202
            while status == 202:
                connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=120)
                connection.request("GET", f"{where.path}0/{path}")
                answer = connection.getresponse()
                status, _ = answer.status, answer.read()
                connection.close()
                if status == 202:
                    time.sleep(0.1)
            assert status == 200, path
        memory = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{started.pid}/status").read_text())
        assert memory is not None
        assert int(memory[1]) / 1024 < MOST_MB
    finally:
        started.kill()
        started.communicate()
