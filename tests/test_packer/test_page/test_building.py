"""``packer view`` of a build that runs, or has died: read from its folder, without a change in it."""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.builds import parts_of
from support.command import environment, run_packer, start_packer
from support.media import scene, write_picture
from support.packed_files import write_faces
from support.pages import Page, assert_harmless

from packer.packed.shown.dataset import ShownDataset
from packer.page.building import Building
from packer.page.looking import Looking
from packer.page.serving.guard import Guard
from packer.page.serving.server import make_app
from packer.page.serving.shown import Shown
from packer.workspace import Workspace
from packer.workspace.lock import find_lock
from shardspec.layout import Layout

TOKEN = "token"
ITEMS = 100


@pytest.fixture
def build(tmp_path: Path, builds: list[Any]) -> tuple[Any, Path]:
    """A build that waits in its last task, all others done; one of a hundred items was rejected."""
    for number in range(ITEMS - 1):
        write_picture(tmp_path / "source" / "real" / f"{number:03d}.png", scene(number, (24, 18)))
    (tmp_path / "source" / "real" / "000<b>.jpg").write_bytes(b"no picture")
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


def open_with(path: Path, source: Path) -> Looking:
    return Looking(ShownDataset(path), source)


def files_of(root: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_a_build_is_shown_while_it_runs_and_after_it_died(build: tuple[Any, Path]) -> None:
    started, out = build
    building = Building(out)
    deadline = time.monotonic() + 60
    while not building.state().busy or building.state().workers[0].item != "real/098.png":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = files_of(out / ".build")
    state = building.state()
    assert (state.stage, state.items, state.done, state.rejected) == ("packing", ITEMS, 96, 1)
    assert state.samples == 95
    assert state.running is not False
    (worker,) = state.workers
    assert worker.item == "real/098.png"
    if sys.platform == "linux":
        assert worker.process is not None
        assert b"packer.jobs.worker" in Path(f"/proc/{worker.process}/cmdline").read_bytes()
        assert f"process {started.pid} on host" in state.held_by
    assert worker.since_s >= 0
    assert state.sessions == 1
    pages = TestClient(Guard(make_app(Shown([building]), TOKEN), TOKEN, ""), base_url="http://127.0.0.1")
    assert pages.get(f"/{TOKEN}/").url.path == f"/{TOKEN}/0/build"
    page = Page(pages.get(f"/{TOKEN}/0/build/state").text)
    assert_harmless(page)
    assert "000<b>.jpg" in page.text
    assert "found a file that begins with" in page.text
    pictures = [image.attributes["src"] for image in page.find("img")]
    answers = [pages.get(src) for src in pictures]
    kinds = {answer.headers["content-type"] for answer in answers}
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
    assert kinds == {"image/jpeg", "image/svg+xml"}
    assert pages.get(f"/{TOKEN}/0/build/samples/2/999").status_code == 404
    assert pages.get(f"/{TOKEN}/0/build/rejects/0/5.jpg").status_code == 404
    assert files_of(out / ".build") == before
    assert "real/098.png" in Page(pages.get(f"/{TOKEN}/0/build/state").text).text
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert "Not running" in pages.get(f"/{TOKEN}/0/build/state").text or building.state().running is None


def test_the_status_says_whether_anybody_is_at_work(build: tuple[Any, Path], tmp_path: Path) -> None:
    started, out = build
    if sys.platform == "linux":
        assert json.loads(run_packer("status", out, "--json").stdout)["running"] is True
        assert "nobody" not in run_packer("status", out).stdout
    started.send_signal(signal.SIGKILL)
    started.communicate()
    seen = json.loads(run_packer("status", out, "--json").stdout)
    if sys.platform == "linux":
        assert (seen["running"], seen["rate"], seen["left_s"]) == (False, None, None)
        shown = run_packer("status", out).stdout
        assert "nobody is at work: run the same command again to go on" in shown
        assert f"process {started.pid}" in shown
        assert "left" not in shown
    holder = Workspace(Layout(out).build).holder
    holder.write_text(json.dumps({**json.loads(holder.read_bytes()), "host": "another"}))
    assert "cannot be seen from host" in run_packer("status", out).stdout
    run_packer("submit", tmp_path / "source", tmp_path / "planned", "--size", 16)
    assert "packer work" in run_packer("status", tmp_path / "planned").stdout


def test_a_build_that_ends_becomes_its_dataset(build: tuple[Any, Path], tmp_path: Path) -> None:
    started, out = build
    opened = partial(open_with, source=tmp_path / "source")
    pages = TestClient(Guard(make_app(Shown([Building(out)], opened), TOKEN), TOKEN, ""), base_url="http://127.0.0.1")
    assert "Packing" in pages.get(f"/{TOKEN}/0/build/state").text
    started.send_signal(signal.SIGKILL)
    started.communicate()
    (tmp_path / "source" / "real" / "098.png").unlink()
    (tmp_path / "waiting.py").write_text("def wait(samples):\n    yield from samples\n")
    run_packer(
        *("build", tmp_path / "source", out, "--size", "16", "--label-from", "folder", "--quiet", "--overwrite"),
        *("--max-rejects", "100%"),
    )
    assert "Finished" in pages.get(f"/{TOKEN}/0/build/state").text
    answer = pages.get(f"/{TOKEN}/0/")
    assert answer.status_code == 200
    assert len(Page(answer.text).find("a", "card")) == 98
    assert pages.get(f"/{TOKEN}/0/row/0/original.jpg").headers["content-type"] == "image/jpeg"


def test_a_dataset_that_cannot_be_shown_as_asked_for_is_said_on_the_page_of_its_build(tmp_path: Path) -> None:
    Workspace(Layout(tmp_path / "d").build).root.mkdir(parents=True)
    (tmp_path / "predictions.csv").write_text("key,loss\nnothing,1\n")
    building = Building(tmp_path / "d")
    asked: list[Path] = []

    def opened(path: Path) -> Looking:
        asked.append(path)
        return Looking(ShownDataset(path, tmp_path / "predictions.csv"))

    pages = TestClient(Guard(make_app(Shown([building], opened), TOKEN), TOKEN, ""), base_url="http://127.0.0.1")
    assert "listing" in pages.get(f"/{TOKEN}/0/build/state").text
    write_faces(tmp_path / "d", 3)
    for _ in range(2):
        page = Page(pages.get(f"/{TOKEN}/0/build/state").text)
        assert "found none of them" in page.find("p", "error")[0].text
    assert len(asked) == 1  # the table is not read again and again


def test_a_dataset_leads_to_the_update_that_runs_on_it(tmp_path: Path) -> None:
    write_faces(tmp_path / "d", 3)
    looking = Looking(ShownDataset(tmp_path / "d"))
    pages = TestClient(Guard(make_app(Shown([looking]), TOKEN), TOKEN, ""), base_url="http://127.0.0.1")
    link = f'href="/{TOKEN}/0/build"'
    assert link not in pages.get(f"/{TOKEN}/0/").text
    Workspace(Layout(tmp_path / "d").build).root.mkdir()
    assert link in pages.get(f"/{TOKEN}/0/").text
    assert pages.get(f"/{TOKEN}/0/build/state").status_code == 200


def test_a_build_that_packed_nothing_says_why(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jpg").write_bytes(b"no picture")
    run_packer("build", tmp_path / "source", tmp_path / "out", "--quiet", expect=3)
    assert Building(tmp_path / "out").state().stage == "nothing was packed"
    assert "nothing was packed: packer rejects" in run_packer("status", tmp_path / "out").stdout


def test_only_logs_are_what_workers_said(tmp_path: Path) -> None:
    space = Workspace(Layout(tmp_path).build)
    space.logs.mkdir(parents=True)
    (space.logs / "worker-000.log").write_text("a warning\n")
    (space.logs / "worker-000.item").write_bytes(bytes(range(16)))
    assert Building(tmp_path).state().logs == [("worker-000.log", "a warning")]


def test_tasks_of_another_plan_are_forgotten(build: tuple[Any, Path]) -> None:
    started, out = build
    building = Building(out)
    assert building.state().done == 96
    started.send_signal(signal.SIGKILL)
    started.communicate()
    plan = building.space.plan
    plan.write_text(json.dumps({**json.loads(plan.read_bytes()), "fingerprint": "other"}))
    for part in parts_of(out):
        part.unlink()
    assert building.state().done == 0


def test_a_lock_of_an_inode_on_another_device_says_nothing() -> None:
    locks = "1: FLOCK  ADVISORY  WRITE 7 08:1a:131 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 9 08:1a:131 0 EOF\n"
    here = os.makedev(0x08, 0x1A)
    assert find_lock(locks, here, 131) is True
    assert find_lock(locks, os.makedev(0, 0x2B), 131) is None
    assert find_lock(locks, here, 31) is False
