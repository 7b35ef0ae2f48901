"""``packer doctor``, and ``facepack``, the second name of the command."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import packer
from packer import environment
from packer.cli import main
from readers.formats import machine
from shardspec.errors import UsageError


def make_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of Slurm in a cgroup of version 2, whose temporary folder lies on NFS."""
    mounts = f"root / ext4 rw 0 0\nserver:/a {tmp_path}/far nfs4 rw 0 0\n"
    proc = {"self/mounts": mounts, "self/cgroup": "0::/job\n", "meminfo": "MemAvailable: 4000000 kB\n"}
    groups = {"job/cpu.max": "500000 100000\n", "job/memory.max": "3000000000\n", "job/memory.current": "1000000000\n"}
    monkeypatch.setattr(machine, "_PROC", make_files(tmp_path / "proc", proc))
    monkeypatch.setattr(machine, "_CGROUP", make_files(tmp_path / "cgroup", groups))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, value in {"CPUS_ON_NODE": "6", "CPUS_PER_TASK": "4", "MEM_PER_NODE": "1500"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("far", "near"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "far"))
    monkeypatch.chdir(tmp_path / "near")
    return tmp_path


def test_doctor_reports_the_limits_and_folders_of_a_job(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(job), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {**found["processors"], "machine": 0} == {
        "usable": 4,
        "machine": 0,
        "affinity": 8,
        "cgroup": 5,
        "slurm": 4,
    }
    assert found["memory_bytes"] == {"usable": 3 * 10**9, "free": 1500 * 2**20, "slurm": 1500 * 2**20}
    assert [(note["path"], note["kind"], note["is_network"]) for note in found["folders"]] == [
        (str(job / "near"), "ext4", False),
        (str(job / "far"), "nfs4", True),
        (str(job), "ext4", False),
    ]
    assert any("TMPDIR" in line for line in found["warnings"])
    assert found["versions"]["facepack"] == packer.__version__
    assert main(["doctor"]) == 0
    assert f"{job / 'far'}: nfs4 at {job / 'far'}, a network file system" in capsys.readouterr().out
    with pytest.raises(UsageError, match="expected a folder, found none"):
        packer.doctor([job / "nowhere"])


def test_extras_and_known_bad_combinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {
        "facepack": "0.1.0",
        "numpy": "2.4.6",
        "av": "18.1.0",
        "opencv-python-headless": "4.12.0.88",
        "h5py": "3.14.0",
        "albumentations": "2.0.9",
        "torch": "2.4",
        "pyarrow": "18.0.0rc1",
        "opencv-python": "4.12.0.88",
        "mediapipe": "0.10.31",
    }
    monkeypatch.setattr(environment, "library_version", lambda name: installed.get(name, environment.MISSING))
    monkeypatch.setattr(environment, "gpu_name", lambda device: "A GPU" if device in ("cuda:0", "cuda:1") else None)
    monkeypatch.setattr(environment, "_read_cuda_of_torch", lambda: None)
    other = tmp_path / "packer"
    other.write_bytes(b"\x7fELF")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = packer.doctor()
    assert report.extras["pack"] == ()
    assert report.extras["faces-light"] == report.extras["faces"] == ("lz4", "mtcnn", "openvino")
    assert set(report.extras["dlib"]) > set(report.extras["faces"])
    assert report.extras["torch"] == report.extras["parquet"] == ()
    assert not {"all", "dev", "peers"} & report.extras.keys()
    assert report.gpus == ("A GPU", "A GPU")
    named = ("albumentations 2.0.9", "h5py 3.14.0", "opencv-python-headless 4.12", "opencv-python and", "mediapipe")
    expected = [*named, *([] if sys.platform == "win32" else [str(other)]), "torch was built without CUDA"]
    assert len(report.warnings) == len(expected)
    assert all(line.startswith(start) for line, start in zip(report.warnings, expected, strict=True))


def test_doctor_finds_no_problem_in_this_environment() -> None:
    assert not [line for line in packer.doctor().warnings if "expected" in line]


@pytest.mark.parametrize("name", ["packer", "facepack", "facepack.exe"])
def test_messages_use_the_name_that_was_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = name.removesuffix(".exe")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "packer build" / name)])
    folder = tmp_path / "a packer build"
    folder.mkdir()
    assert main(["inspect", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{called} inspect: {folder}: ")
    assert f"'{called} build'" in said
    for words in (["-V"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        assert capsys.readouterr().out == f"{called} {packer.__version__}\n"
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {called} bench")
    assert f"that {called} build made" in shown
