"""``packer compute --engine ray``: the same bytes as on one host, also after a kill."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import measured
from support.builds import TESTS
from support.command import arguments, environment
from support.packed import fingerprints
from support.packed_files import write_faces
from support.processes import wait_for
from support.ray_cluster import Ray

import packer
from packer.analysis.compute import run
from shardspec.layout import BUILD_FOLDER

pytestmark = pytest.mark.ray

ROWS = 24
BLOCK_ROWS = 3


def test_a_killed_command_resumes_on_the_nodes(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, gate = tmp_path / "calls", tmp_path / "gate"
    calls.touch()
    files = {measured.CALLS: str(calls), measured.GATE: str(gate), "RAY_ADDRESS": ray.address}
    env = {**environment(python_path=TESTS, **files), **ray.environment}
    for name in ("ray", "one"):
        write_faces(tmp_path / name, ROWS, "npy")
    faces = tmp_path / "ray"
    code = (
        f"import packer; from packer.analysis.compute import run; run.BLOCK_ROWS = {BLOCK_ROWS}; packer.compute("
        f"{str(faces)!r}, 'support.measured:held', engine='ray', batch_size={BLOCK_ROWS}, progress=False)"
    )
    command = ray.command(sys.executable, "-c", code)
    with subprocess.Popen(command, env=env) as first:
        wait_for("blocks in the first half", lambda: len(list((faces / BUILD_FOLDER).rglob("block-*.npz"))) >= 4)
        os.kill(first.pid, signal.SIGKILL)
    gate.touch()
    subprocess.run(command, env=env, check=True, timeout=600)
    counts = Counter(map(int, calls.read_text().split()))
    assert [counts[10 * row] for row in range(ROWS // 2)] == [1] * (ROWS // 2)
    monkeypatch.setattr(run, "BLOCK_ROWS", BLOCK_ROWS)
    for name, value in files.items():
        monkeypatch.setenv(name, value)
    packer.compute(tmp_path / "one", "support.measured:held", workers=0, batch_size=BLOCK_ROWS, progress=False)
    assert fingerprints(faces) == fingerprints(tmp_path / "one")


def test_an_error_of_a_function_is_the_same_line(ray: Ray, tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", ROWS, "npy")
    words = arguments("compute", tmp_path / "faces", "support.measured:raises_at_one", "--engine", "ray")
    env = environment(python_path=TESTS, RAY_ADDRESS=ray.address)
    printed = ray.run("bash", "-c", '"$@" || echo "status $?"', "bash", *words, env=env)
    assert "ValueError: no such thing" in printed
    assert "row 3 of the dataset" in printed
    assert "Traceback" not in printed
    assert "status 1" in printed
    assert not (tmp_path / "faces" / BUILD_FOLDER).exists()
