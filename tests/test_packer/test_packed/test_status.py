"""``packer status`` of a build that runs, or has died: read from its folder, without a change in it."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.builds import parts_of
from support.command import environment, run_packer, start_packer
from support.media import scene, write_image
from support.processes import wait_for

import packer
from packer.workspace import Workspace
from shardspec.layout import Layout

ITEMS = 100


@pytest.fixture
def build(tmp_path: Path, builds: list[Any]) -> tuple[Any, Path]:
    """A build that waits in its last task, with all other tasks done and one of a hundred items rejected."""
    for number in range(ITEMS - 1):
        write_image(tmp_path / "source" / "real" / f"{number:03d}.png", scene(number, (24, 18)))
    (tmp_path / "source" / "real" / "000<b>.jpg").write_bytes(b"no image")
    (tmp_path / "waiting.py").write_text(
        "import time\n\n\ndef wait(samples):\n    for sample in samples:\n"
        "        while '098' in sample['source']:\n            time.sleep(0.05)\n        yield sample\n"
    )
    started = start_packer(
        *("build", tmp_path / "source", tmp_path / "out", "--size", "16", "--steps", "decode,waiting:wait,resize"),
        *("--label-from", "folder", "--workers", "1", "--quiet"),
        env=environment(python_path=tmp_path),
    )
    builds.append(started)
    until = time.monotonic() + 120
    while len(parts_of(tmp_path / "out")) < 3:
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return started, tmp_path / "out"


def files_of(root: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_the_status_reports_whether_a_process_is_running(build: tuple[Any, Path]) -> None:
    started, out = build
    wait_for("the journal of the finished tasks", lambda: packer.status(out).samples == 95)
    before = files_of(out / ".build")
    seen = packer.status(out)
    assert (seen.stage, seen.items, seen.done, seen.rejected) == ("packing", ITEMS, 96, 1)
    assert files_of(out / ".build") == before
    if sys.platform == "linux":
        assert json.loads(run_packer("status", out, "--json").stdout)["running"] is True
        assert f"at work: process {started.pid}" in run_packer("status", out).stdout
    started.send_signal(signal.SIGKILL)
    started.communicate()
    for journal in (out / ".build").rglob("journal.*"):  # lines are written after the parts
        journal.unlink()
    seen = json.loads(run_packer("status", out, "--json").stdout)
    assert (seen["done"], seen["samples"], seen["rejected"]) == (96, 95, 1)
    if sys.platform == "linux":
        assert (seen["running"], seen["rate"], seen["left_s"]) == (False, None, None)
        shown = run_packer("status", out).stdout
        assert "no process is at work: run the same command again to continue" in shown
        assert f"process {started.pid}" in shown
        assert "left" not in shown
    holder = Workspace(Layout(out).build).holder
    holder.write_text(json.dumps({**json.loads(holder.read_bytes()), "host": "another", "process": "boot:1:2:3"}))
    assert "cannot tell whether a process is at work" in run_packer("status", out).stdout


def test_a_build_that_packed_nothing_says_why(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jpg").write_bytes(b"no image")
    run_packer("build", tmp_path / "source", tmp_path / "out", "--quiet", expect=3)
    assert packer.status(tmp_path / "out").stage == "nothing was packed"
    assert "nothing was packed: packer rejects" in run_packer("status", tmp_path / "out").stdout
