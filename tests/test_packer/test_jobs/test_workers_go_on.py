"""The workers that packed items write the shards, too: starting a process takes longer than a small shard."""

from pathlib import Path

import pytest
from support.builds import write_images

from packer import build
from packer.jobs.engines.processes import ProcessesEngine


def test_no_worker_is_started_for_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_images(tmp_path / "source", [f"{number:02d}.jpg" for number in range(70)])
    started: list[int] = []
    start = ProcessesEngine._start_worker
    monkeypatch.setattr(
        ProcessesEngine, "_start_worker", lambda engine, place: started.append(place) or start(engine, place)
    )
    done = build(source, tmp_path / "out", workers=2, shard_size="4kB", progress=False)
    assert len(done.manifest.shards) > 2
    assert sorted(started) == [0, 1]
