"""The examples of docs/howto/tables.md, run over a dataset of faces."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import REPOSITORY, run_packer
from support.packed_files import face_columns, write_faces

import packer
from readers import open_dataset

ROWS = 12
PAGE = (REPOSITORY / "docs" / "howto" / "tables.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The datasets that the page names, in the current folder."""
    write_faces(tmp_path / "written", ROWS, codec="jpeg")
    run_packer("convert", "written", "faces", "--format", "lmdb", "--quiet", cwd=tmp_path)  # files named as by a build
    (command,) = re.findall(r"^ {4}packer (.*?) *#", PAGE, re.MULTILINE)
    run_packer(*command.split(), "--quiet", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def last_value(block: str) -> Any:
    """Run a block; the value of its last line, if that is an expression."""
    *before, last = block.strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    code = last.partition("  #")[0]
    if re.match(r"\w+ = ", code):
        exec(code, names)
        return names[code.partition(" ")[0]]
    return eval(code, names)


def block_with(text: str) -> str:
    (found,) = [block for block in BLOCKS if text in block]
    return found


def test_every_block_is_run_here() -> None:
    wanted = [
        "SELECT label",
        "polars",
        "read_parquet",
        "SELECT image",
        "load_dataset",
        "np.load",
        "to_pandas",
        "rank()",
    ]
    assert sorted(map(block_with, wanted)) == sorted(BLOCKS)


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("leaks_allowed")
def test_the_page(folder: Path) -> None:
    for name in ("pandas", "duckdb"):
        pytest.importorskip(name)
    columns = face_columns(ROWS, codec="jpeg")
    labels, scores = columns["label"], columns["score"]
    found = last_value(block_with("SELECT label")).fetchall()
    assert [(label, count) for label, count, _ in found] == [(n, (labels == n).sum()) for n in np.unique(labels)]
    assert [mean for _, _, mean in found] == pytest.approx([scores[labels == n].mean() for n in np.unique(labels)])
    frame = last_value(block_with("read_parquet"))
    assert frame["key"].tolist() == columns["key"]
    assert np.array_equal(frame["score"].to_numpy(), scores)
    assert last_value(block_with("SELECT image")).size == (32, 32)
    small = last_value(block_with("np.load"))
    assert np.array_equal(small["frame"].to_numpy(), columns["frame"])
    hard = last_value(block_with("to_pandas"))
    assert list(hard.column("key")) == [key for key, score in zip(columns["key"], scores, strict=True) if score < 0.99]
    last_value(block_with("rank()") + "\nNone")
    added = open_dataset(folder / "faces")
    assert np.array_equal(np.argsort(np.asarray(added.column("place"))), np.argsort(scores))
    assert packer.verify(folder / "faces", deep=True, progress=False).problems == ()


@pytest.mark.external
@pytest.mark.usefixtures("leaks_allowed")
def test_polars(folder: Path) -> None:
    pytest.importorskip("polars")
    columns = face_columns(ROWS, codec="jpeg")
    chosen = last_value(block_with("polars"))
    assert chosen["key"].to_list() == [k for k, s in zip(columns["key"], columns["score"], strict=True) if s > 0.99]


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("leaks_allowed")
def test_hugging_face(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    # The library's cache knows a dataset by its relative path, so it would give rows of other folders.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
    assert len(last_value(block_with("load_dataset"))["train"]) == ROWS
