"""Tar files from the command line: built, read by the webdataset package and by our readers, and packed on."""

from pathlib import Path

import numpy as np
import pytest
from support.builds import write_images
from support.command import run_packer
from support.tar_streams import stream_tars

from readers import WebDatasetDataset, open_dataset

NAMES = [f"{label}/{number:02d}.png" for label in ("cat", "dog") for number in range(6)]
OPTIONS = ("--size", 24, "--resize", "exact", "--label-from", "folder", "--shard-size", "4kB", "--engine", "inline")


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several tar files."""
    root = tmp_path_factory.mktemp("tars")
    source = write_images(root / "source", NAMES)
    run_packer("build", source, root / "out", "--format", "webdataset", *OPTIONS, "--quiet")
    assert len(list((root / "out").glob("shard-*.tar"))) > 1
    return root / "out"


def test_the_webdataset_package_streams_all_shards_in_order(tars: Path) -> None:
    dataset = open_dataset(tars)
    assert isinstance(dataset, WebDatasetDataset)
    rows = stream_tars(sorted(tars.glob("shard-*.tar")))
    assert [row["__key__"] for row in rows] == [dataset[row]["key"] for row in range(len(dataset))]
    assert [row["source.txt"] for row in rows] == NAMES
    assert [row["cls"] for row in rows] == dataset.column("label").tolist() == [0] * 6 + [1] * 6
    for number, row in enumerate(rows):
        # Two decoders of one JPEG may differ by rounding.
        difference = row["jpg"].astype(int) - dataset[number]["image"].astype(int)
        assert row["jpg"].shape == (24, 24, 3)
        assert np.abs(difference).max() <= 2
        assert row["time.npy"] == dataset[number]["time"]


def test_the_command_converts_splits_merges_and_verifies_them(tars: Path, tmp_path: Path) -> None:
    run_packer("verify", tars, "--deep")
    run_packer("split", tars, tmp_path / "parts", "--by", "source", "--ratios", "train=0.5,test=0.5", "--quiet")
    parts = [tmp_path / "parts" / name for name in ("train", "test")]
    run_packer("merge", *parts, tmp_path / "all", "--quiet")
    run_packer("convert", tmp_path / "all", tmp_path / "lmdb", "--format", "lmdb", "--quiet")
    assert all(list(root.glob("shard-*.idx")) for root in (*parts, tmp_path / "all"))
    rows = [
        {sample["key"]: sample for sample in map(open_dataset(root).__getitem__, range(12))}
        for root in (tars, tmp_path / "lmdb")
    ]
    assert rows[0].keys() == rows[1].keys()
    for key, sample in rows[0].items():
        for name, value in sample.items():
            assert np.array_equal(value, rows[1][key][name]), name
