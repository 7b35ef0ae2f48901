"""Type checkers read our annotations: they find wrong options, and accept the code of the README and the tutorials."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import REPOSITORY
from support.keywords import PATH, make_source

PAGES = ("README.md", *(f"docs/start/{name}.md" for name in ("deepfakes", "first_training", "lips")))
WRONG = """\
import packer

packer.build("in", "out", preset="faces", every=10, size=224, shard_size="1GB", workers="auto", steps=["decode", print])
packer.detect("in", "out", min_face=30, include=["*.mp4"])
packer.build("in", "out", sise=256)  # wrong
packer.build("in", "out", preset="imagess")  # wrong
packer.dry_run("in", "out", every="10")  # wrong
packer.detect("in", "out", size=224)  # wrong
packer.build("in", "out", share="1/2", encode="jpg")  # wrong
"""


def test_the_keywords_of_a_build_follow_the_recipe() -> None:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(PATH), "-"]
    made = subprocess.run(command, input=make_source(), capture_output=True, text=True, check=True).stdout
    if os.environ.get("UPDATE_KEYWORDS"):
        PATH.write_text(made, "utf-8")
    assert PATH.read_text("utf-8") == made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of the code of each page, and an environment in which our packages are installed."""
    root = tmp_path_factory.mktemp("typed")
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
        assert blocks
        (root / f"{Path(page).stem}.py").write_text("\n".join(blocks), "utf-8")
    (root / "wrong.py").write_text(WRONG, "utf-8")
    venv.create(root / "venv", symlinks=os.name != "nt")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(root / "venv")}))
    for name in ("packer", "readers", "shardspec"):
        (packages / name).symlink_to(REPOSITORY / name, target_is_directory=True)
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return root


def python_of(project: Path) -> str:
    return str(project / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")


def check_by_mypy(project: Path) -> list[tuple[str, int]]:
    """The files and lines of errors. Methods of torch, such as ``backward``, have no annotations."""
    options = [
        "--strict",
        "--follow-imports=silent",
        "--untyped-calls-exclude=torch",
        "--output=json",
        "--cache-dir=.mypy",
    ]
    files = sorted(path.name for path in project.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--python-executable", python_of(project), *files],
        cwd=project,
        env={**os.environ, "MYPYPATH": str(REPOSITORY / "examples")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return [(one["file"], one["line"]) for one in found if one["severity"] == "error"]


def check_by_pyright(project: Path) -> list[tuple[str, int]]:
    """The files and lines of errors. In the tutorials, a name is bound in a loop that runs at least once."""
    settings = {"typeCheckingMode": "standard", "reportPossiblyUnboundVariable": False, "exclude": ["venv"]}
    settings |= {"extraPaths": [str(REPOSITORY / "examples")]}
    (project / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", python_of(project), "--outputjson"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"]


@pytest.mark.parametrize("check", [check_by_mypy, check_by_pyright])
def test_wrong_options_are_errors_and_the_code_of_the_pages_is_not(
    project: Path, check: Callable[[Path], list[tuple[str, int]]]
) -> None:
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
    assert sorted({*check(project)}) == [("wrong.py", number) for number in wrong]
