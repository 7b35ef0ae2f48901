"""The dataset card of Parquet and WebDataset datasets: other tools find the data, and it is accounted for like every file."""

from pathlib import Path

import numpy as np
import pytest
from support.builds import QUIET
from support.command import run_packer
from support.errors import raises
from support.media import scene
from support.packed_files import read_all, write_faces

from packer import build, convert, split, verify
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

ROWS = [{"image": scene(number, (16, 12)), "label": "ab"[number % 2], "n": number} for number in range(6)]


def listed(root: Path) -> set[str]:
    """The names of the files that the manifest lists beside the shards."""
    return {entry.name for entry in Layout(root).load().files}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_it_is_there_in_formats_that_have_one_and_in_the_manifest(tmp_path: Path, format: str) -> None:
    build(ROWS, tmp_path / "out", format=format, **QUIET)
    has_card = FORMATS[format].card is not None
    assert has_card is (format in ("parquet", "webdataset"))
    assert ("README.md" in listed(tmp_path / "out")) is has_card
    assert (tmp_path / "out" / "README.md").exists() is has_card
    assert verify(tmp_path / "out", deep=True).problems == ()
    assert verify(tmp_path / "out").unlisted == ()


def test_every_job_writes_it(tmp_path: Path) -> None:
    write_faces(tmp_path / "npy", 12)
    run_packer("convert", tmp_path / "npy", tmp_path / "parquet", "--format", "parquet", "--quiet")
    parts = split(tmp_path / "parquet", tmp_path / "parts", into="label", **QUIET).parts
    convert(tmp_path / "parquet", tmp_path / "back", format="lmdb", **QUIET)
    roots = [tmp_path / "parquet", *(part.result.path for part in parts)]
    assert len({(root / "README.md").read_bytes() for root in roots}) == 1
    assert all("README.md" in listed(root) and verify(root).problems == () for root in roots)
    assert not (tmp_path / "back" / "README.md").exists()


def test_it_comes_and_goes_with_the_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for format in ("parquet", "lmdb", "parquet", "parquet"):
        build(ROWS, out, format=format, quality=90 + len(format), overwrite=True, **QUIET)
        assert (out / "README.md").exists() is (format == "parquet")
        assert verify(out, deep=True).problems == ()
    (out / "README.md").write_text("mine")
    assert any("README.md" in problem for problem in verify(out).problems)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("mine")
    with raises(UsageError, expected="a new or empty folder", found="'README.md', which no build made"):
        build(ROWS, tmp_path / "own", format="parquet", overwrite=True, **QUIET)
    assert (tmp_path / "own" / "README.md").read_text() == "mine"


@pytest.mark.external
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("format", "image", "label"), [("parquet", "image", "label"), ("webdataset", "png", "cls")])
def test_hugging_face_datasets_load_the_folder(tmp_path: Path, format: str, image: str, label: str) -> None:
    datasets = pytest.importorskip("datasets")
    write_faces(tmp_path / "npy", 40, codec="png")
    run_packer("convert", tmp_path / "npy", tmp_path / "out", "--format", format, "--shard-size", "20kB", "--quiet")
    assert len(list((tmp_path / "out").glob(f"shard-*{FORMATS[format].suffix}"))) > 1
    assert (tmp_path / "out" / "index" / "landmarks_valid.npy").exists()
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert list(found) == ["train"]
    assert len(found["train"]) == 40
    assert list(found["train"][label]) == read_all(tmp_path / "npy")["label"].tolist()
    assert format == "webdataset" or found["train"].features[label].names == ["real", "fake"]
    assert np.asarray(found["train"][0][image]).shape == (32, 32, 3)
