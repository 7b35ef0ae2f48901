"""The README and every page of the docs, followed from top to bottom as a reader would (`support/walkthrough.py`)."""

import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from support.command import REPOSITORY
from support.walkthrough import Walk, beginnings, read_blocks

TESTED_ELSEWHERE = {
    "docs/howto/datasets.md": "tests/test_packer/test_known/test_recipes.py",
    "docs/howto/other_datasets.md": "tests/test_packer/test_known/test_other_layouts.py",
    "docs/howto/trainers.md": "tests/test_trainers.py",
    "docs/start/deepfakes.md": "tests/test_tutorials.py",
    "docs/start/lips.md": "tests/test_tutorials.py",
}
"""Pages about files that cannot be made here, scripts that are killed in mid-epoch, and notebooks."""

CONTINUED = {"docs/start/first_training.md": "docs/start/first_dataset.md"}
"""Pages that begin where another one ends."""

NOT_RUN = 24
"""Blocks that need a GPU, Slurm, the network, an account or a person."""

PAGES = {
    name: path
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
    if (name := path.relative_to(REPOSITORY).as_posix()) not in TESTED_ELSEWHERE | CONTINUED
    and any(block.kind == "commands" or block.kind == "python" for block in read_blocks(path))
}


COMMON = {begun for begun, pages in Counter(chain.from_iterable(map(beginnings, PAGES.values()))).items() if pages > 1}
"""Commands with which several pages begin. They run once, and the other pages get a copy of what they made."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("leaks_allowed")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_from_top_to_bottom(name: str, tmp_path: Path, made: Path) -> None:
    walk = Walk(tmp_path, made, COMMON)
    walk.follow(PAGES[name])
    for page, before in CONTINUED.items():
        if before == name:
            walk.follow(REPOSITORY / page)


def test_few_blocks_are_not_run() -> None:
    marks = [
        f"{name}:{block.line}: {reason}"
        for name, path in PAGES.items()
        for block in read_blocks(path)
        if (reason := block.mark("not run:"))
    ]
    assert len(marks) == NOT_RUN, "\n".join(marks)


def test_pages_that_are_tested_elsewhere_are_named_there() -> None:
    for page, test in TESTED_ELSEWHERE.items():
        assert Path(page).stem in (REPOSITORY / test).read_text("utf-8")
