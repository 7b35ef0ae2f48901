"""The tutorials `deepfakes` and `lips`, run as notebooks."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.command import REPOSITORY
from support.ranks import run_script

START = REPOSITORY / "docs" / "start"


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebooks of the tutorials, run from their pages."""
    folder = tmp_path_factory.mktemp("notebooks")
    run_script(REPOSITORY / "docs" / "make_notebooks.py", folder)
    return folder


def read_cells(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook.cells


def printed_by(cells: list[Any]) -> str:
    outputs = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", ()))
    return outputs.replace("\r\n", "\n")  # of a command, which the kernel runs in a terminal


@pytest.mark.parametrize("name", ["deepfakes", "lips"])
def test_tutorials_show_what_their_cells_print(notebooks: Path, name: str) -> None:
    cells = read_cells(notebooks / f"{name}.ipynb")
    ours = read_cells(START / f"{name}.ipynb")
    assert [cell["source"] for cell in cells] == [cell["source"] for cell in ours], "run `make notebooks`"
    for made in (cells, ours):
        shown = [output.data for cell in made for output in cell.get("outputs", ()) if "data" in output]
        assert ["image/png" in data for data in shown] == [True]
    varying = re.compile(r"[\d.]+ MB|(?<=loss )[\d.]+|[\d.]+%|\d+ of \d+ val|^\d\.\d\d +(real|fake).*$", re.MULTILINE)
    printed = varying.sub("N", printed_by(cells))
    page = (START / f"{name}.md").read_text("utf-8")
    for language, output in re.findall(r"^```(python)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert language or varying.sub("N", output) in printed


def test_the_tutorials_networks_learn(notebooks: Path) -> None:
    scores = re.findall(r"^([\d.]+) +(real|fake) ", printed_by(read_cells(notebooks / "deepfakes.ipynb")), re.MULTILINE)
    assert len(scores) == 12
    assert [label for _, label in scores] == ["real"] * 4 + ["fake"] * 8
    right = re.findall(r"(\d+) of 10 validation clips right", printed_by(read_cells(notebooks / "lips.ipynb")))
    assert int(right[-1]) >= 8
