"""Machines that work on one plan must be alike, and what one has made is waited for by the others."""

import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.command import file_of, run_packer
from support.listeners import StopError, stop_when
from support.packed import check_whole

import packer
from packer.workspace import Workspace, shared_files
from packer.workspace.durable import read_record, write_record
from packer.workspace.machines import MADE_ON, enter_plan
from packer.workspace.shared_files import reading, wait_for
from shardspec.errors import BuildError


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Path, Path]:
    """A source, and the folder of its build, which was interrupted after the first of two tasks."""
    source, out = write_images(tmp_path / "source", [f"{n:03d}.png" for n in range(40)]), tmp_path / "out"
    with pytest.raises(StopError):
        packer.build(source, out, size=16, engine="inline", progress=stop_when(lambda progress: progress.done))
    return source, out


def change(path: Path, **changes: Any) -> None:
    write_record(path, {**read_record(path), **changes})


def test_another_kind_of_machine_is_refused_with_the_difference(begun: tuple[Path, Path]) -> None:
    source, out = begun
    (noted,) = (out / ".build" / "parts").glob("*/machine.json")
    first = read_record(noted)
    assert set(first) == {"host", "instructions", "page size", "processor"}
    change(noted, **{"page size": "65536", "host": "arm-7"})
    said = run_packer("build", source, out, "--size", "16", "--workers", "1", "--quiet", expect=None)
    assert said.returncode
    assert f"host {socket.gethostname()}: expected a machine of the same kind as host arm-7" in said.stderr
    assert f"page size 65536 (here {first['page size']})" in said.stderr
    assert "instructions" not in said.stderr.replace("instructions that", "")
    noted.write_bytes(b"")  # it was lost when the machine went down
    packer.build(source, out, size=16, engine="inline", progress=False)
    check_whole(out)


def test_other_libraries_are_refused_with_the_difference(begun: tuple[Path, Path]) -> None:
    _, out = begun
    space = Workspace(out / ".build", owner="n2")
    _, document = enter_plan(space)
    runtime = document["runtime"]
    change(space.plan, runtime={**runtime, "numpy": "1.0.0", "pillow": "9", "boxes": "1" * 64, "detector": "onnx"})
    with pytest.raises(BuildError) as caught:
        enter_plan(space)
    text = str(caught.value)
    assert f"numpy 1.0.0 (here {version('numpy')}), pillow 9 (here {version('pillow')})" in text
    assert "boxes" not in text
    assert "detector" not in text
    enter_plan(Workspace(out / ".build"))  # the coordinating process's own machine and environment
    change(space.plan, **{MADE_ON: {"host": "n1", "python": "/other"}})
    with pytest.raises(BuildError, match=r"on host n1: numpy 1.0.0 .*, pillow 9"):
        enter_plan(Workspace(out / ".build"))


def test_what_never_comes_is_named_with_host_and_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "_PAUSE_S", 0.01)
    looks = iter([False, False, False, True])
    wait_for(tmp_path / "late", there=lambda: next(looks))
    with pytest.raises(BuildError, match=rf"never: another process .* host {socket.gethostname()} .*mount /") as caught:
        wait_for(tmp_path / "never", limit_s=0.05)
    assert "same command again" in str(caught.value)
    with pytest.raises(BuildError, match=r"items\.jsonl: cannot be read on host"), reading():
        file_of(tmp_path, "items.jsonl").read_bytes()
