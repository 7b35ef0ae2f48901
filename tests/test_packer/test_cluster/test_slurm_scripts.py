"""The scripts of docs/howto/cluster.md on a real Slurm: each gives the bytes of an undisturbed build on one host."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.builds import TESTS
from support.cluster_builds import OPTIONS, STEPS
from support.command import environment
from support.packed import check_whole, fingerprints
from support.processes import wait_for, workers_in
from support.slurm import Slurm
from support.steps import GATE, LOG

pytestmark = pytest.mark.slurm

PAGE = Path(__file__).parents[3] / "docs/howto/cluster.md"
LIMIT_S = 400.0
"""It takes two minutes until Slurm starts a job again whose node was lost."""


class Scripts:
    """The scripts of the page, for three nodes of two cores and a small build.

    Attributes
    ----------
    ray, share, merge : Path
    out : Path
        Dataset of all scripts.
    pieces : Path
    gate : Path
        Workers wait at an item of each task until this file exists.
    """

    def __init__(self, slurm: Slurm, images: Path, folder: Path) -> None:
        folder.chmod(0o755)
        self._slurm = slurm
        self._folder = folder
        self.out, self.pieces, self.gate = folder / "out", folder / "pieces", folder / "gate"
        self.environment = {
            **environment(python_path=TESTS, **{LOG: str(folder / "log"), GATE: str(self.gate)}),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_TMPDIR": "/mnt",
            "RAY_AUTH_MODE": "disabled",
        }
        words = {
            "source /shared/me/.venv/bin/activate": "",
            "--preset faces --every 10": " ".join((*OPTIONS, *STEPS, "--quiet")),
            "/shared/videos": str(images),
            "/shared/faces": str(self.out),
            "/shared/pieces": str(self.pieces),
            "pack.sh": str(folder / "share.sh"),
            "--nodes=4": "--nodes=3",
            "1-8": "1-3",
            "/8": "/3",
            "--cpus-per-task=16": "--cpus-per-task=2",
        }
        blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        chosen = {"ray.sh": "symmetric-run", "share.sh": "--share", "merge.sh": "afterany"}
        for name, word in chosen.items():
            (script,) = [block for block in blocks if word in block]
            for old, new in words.items():
                script = script.replace(old, new)
            (folder / name).write_text(script)

    def submit(self, script: str, *options: str) -> str:
        """Submit a script; the number of its job."""
        log = f"--output={self._folder}/%j.out"
        path = str(self._folder / script)
        printed = self._slurm.run("sbatch", "--parsable", log, *options, path, env=self.environment)
        return printed.strip()

    def run(self, script: str) -> None:
        """Run a script in a shell, as a person would."""
        self._slurm.run("env", f"--chdir={self._folder}", "bash", script, env=self.environment)

    def workers(self, folder: Path) -> list[int]:
        return workers_in(folder)

    def wait(self, folder: Path, most: int) -> None:
        """Wait until this number of workers is at an item."""
        wait_for("workers at an item", lambda: len(self.workers(folder)) >= most, 0.05, LIMIT_S)

    def wait_for_jobs(self) -> None:
        """Wait until the queue is empty."""
        wait_for("an empty queue", lambda: not self._slurm.jobs(), 0.2, LIMIT_S)

    def check(self, expected: dict[str, str]) -> None:
        """Wait for the dataset, and compare it."""
        try:
            wait_for("the dataset", (self.out / "manifest.json").exists, 0.1, LIMIT_S)
            self.wait_for_jobs()
        except AssertionError as error:
            said = "\n".join(path.read_text() for path in sorted(self._folder.glob("*.out")))
            raise AssertionError(f"{error}\n{self._slurm.jobs()}\n{said}") from error
        check_whole(self.out)
        assert fingerprints(self.out) == expected


@pytest.fixture
def scripts(slurm: Slurm, images: Path, tmp_path: Path) -> Scripts:
    return Scripts(slurm, images, tmp_path)


def test_the_script_of_an_array_packs_and_merges(scripts: Scripts, expected: dict[str, str]) -> None:
    scripts.gate.touch()
    scripts.run("merge.sh")
    scripts.check(expected)


def test_the_script_of_an_array_loses_an_element_and_a_node(
    scripts: Scripts, slurm: Slurm, expected: dict[str, str]
) -> None:
    array = scripts.submit("share.sh")
    scripts.wait(scripts.pieces, 3)
    slurm.run("scancel", f"{array}_2")
    slurm.kill_node("n1")
    scripts.gate.touch()
    wait_for("the end of the others", lambda: "RUNNING" not in slurm.jobs().values(), 0.2, LIMIT_S)
    slurm.rest()
    for element in ("2", "1,3"):
        scripts.submit("share.sh", f"--array={element}")
    scripts.wait_for_jobs()
    slurm.run("packer", "merge", str(scripts.pieces), str(scripts.out), "--quiet", env=scripts.environment)
    scripts.check(expected)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_the_script_of_a_ray_cluster_loses_a_node(scripts: Scripts, slurm: Slurm, expected: dict[str, str]) -> None:
    scripts.submit("ray.sh")
    scripts.wait(scripts.out, 5)
    slurm.kill_node("n3")
    scripts.gate.touch()
    scripts.check(expected)
