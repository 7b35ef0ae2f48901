"""Datasets that are replaced while they are open: a reader gives the values of the one that it opened, or an error."""

import json
import os
import pickle
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.command import environment, run_packer
from support.datasets import fixed, manifest_document, values_for, write_dataset
from support.hooks import before_each

import packer
from readers import Loader, PackedDataset, open_dataset
from shardspec.columns import allocate
from shardspec.entries import ASIDE
from shardspec.errors import DatasetChangedError, ShardCorruptError
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import Schema

ROWS, OLD, NEW = 12, 10, 200
SETTINGS: dict[str, Any] = {
    "size": 16,
    "encode": "raw",
    "label_from": "folder",
    "shard_size": 3_500,
    "engine": "inline",
    "progress": False,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two folders of images of one grey each, with the same names but for some that lie in the other class."""
    found = {}
    for grey in (OLD, NEW):
        root = found[grey] = tmp_path_factory.mktemp("source") / str(grey)
        for number in range(ROWS):
            path = root / "ab"[number % 2 if grey == OLD else number > 3] / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (grey,) * 3).save(path)
    return found


def greys(dataset: PackedDataset, rows: range) -> set[int]:
    return set(np.unique(dataset.read_batch(rows)["image"]).tolist())


@pytest.mark.parametrize("verify", ["size", "digest", "off"])
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_reader_never_gives_values_of_the_dataset_that_replaced_its_own(
    sources: dict[int, Path], tmp_path: Path, format: str, verify: Any
) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, format=format, **SETTINGS)
    dataset, other = open_dataset(out, verify=verify), open_dataset(out, verify=verify)
    assert len(dataset.manifest.shards) == 3
    assert greys(dataset, range(3)) == {OLD}
    packer.build(sources[NEW], out, format=format, overwrite=True, **SETTINGS)
    assert greys(dataset, range(3)) == {OLD}  # its shard is open
    message = f"{out}: expected the dataset that was opened, found another in its place: open it again"
    for read in (
        lambda: dataset[4],
        lambda: dataset.read_batch(range(ROWS)),
        lambda: dataset.column("label"),
        lambda: pickle.loads(pickle.dumps(dataset))[0],
        lambda: other[ROWS - 1],
        lambda: list(Loader(other, 4, workers=2)),
    ):
        with pytest.raises(DatasetChangedError) as caught:
            read()
        assert message in str(caught.value)
    assert greys(open_dataset(out, verify=verify), range(ROWS)) == {NEW}


@pytest.mark.parametrize("format", ["hdf5", "npy"])
def test_fields_of_an_open_shard_that_were_not_read_yet(sources: dict[int, Path], tmp_path: Path, format: str) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, format=format, **SETTINGS)
    first = open_dataset(out)
    pool = first.pool
    columns = {"image": np.empty((3, 16, 16, 3), np.uint8), "label": np.empty(3, np.int64)}
    pool.read(np.arange(3), ["image"], columns, np.arange(3))
    packer.build(sources[NEW], out, format=format, overwrite=True, **SETTINGS)
    pool.read(np.arange(3), ["image"], columns, np.arange(3))
    assert set(np.unique(columns["image"])) == {OLD}
    with pytest.raises(DatasetChangedError):
        pool.read(np.arange(3), ["label"], columns, np.arange(3))


@pytest.mark.parametrize("verify", ["size", "off"])
def test_the_same_dataset_built_once_more_reads_on(sources: dict[int, Path], tmp_path: Path, verify: Any) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, **SETTINGS)
    dataset = open_dataset(out, verify=verify)
    labels = dataset.column("label").tolist()
    packer.build(sources[NEW], out, overwrite=True, **SETTINGS)
    packer.build(sources[OLD], out, overwrite=True, **SETTINGS)
    assert greys(dataset, range(ROWS)) == {OLD}
    assert dataset.column("label").tolist() == labels


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_reader_that_opened_under_the_names_of_the_switch_reads_on_after_it(
    sources: dict[int, Path], tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, format=format, **SETTINGS)
    options = ("--size", 16, "--encode", "raw", "--label-from", "folder", "--shard-size", 3500, "--engine", "inline")
    command = ("build", sources[NEW], out, "--format", format, *options, "--quiet", "--overwrite")
    hooks = before_each(tmp_path / "hooks", "packer", "os.link", "'/next-shard-00001' in os.fsdecode(arguments[0])")
    run_packer(*command, env=environment(python_path=hooks), expect=-signal.SIGKILL)
    run_packer("verify", out, "--deep")
    dataset = open_dataset(out, transform=None)
    assert dataset.manifest.shards[0].name == "next-shard-00000"
    assert Layout(out).find_index(dataset.manifest, "label").name == "next-index/label.npy"
    assert greys(dataset, range(3)) == {NEW}
    labels = dataset.column("label").tolist()
    run_packer(*command)
    assert not list(out.glob("next-*"))
    assert greys(dataset, range(ROWS)) == {NEW}
    assert dataset.column("label").tolist() == labels
    assert labels == [0] * 4 + [1] * 8


def rename_aside(out: Path) -> None:
    """Give all files of a dataset the names that they have while it takes the place of another."""
    document = manifest_document(out)
    shards = document["generations"][0]["shards"]
    entries = [*shards, *(entry for shard in shards for entry in shard["files"]), *document["files"]]
    for name in {entry["name"].split("/")[0] for shard in shards for entry in shard["files"]} | {
        entry["name"].split("/")[0] for entry in document["files"]
    }:
        (out / name).rename(out / f"{ASIDE}{name}")
    for entry in entries:
        entry["name"] = ASIDE + entry["name"]
    (out / "new").write_text(json.dumps(document))
    (out / "new").replace(out / "manifest.json")


def test_files_get_other_names_while_two_shards_are_open(sources: dict[int, Path], tmp_path: Path) -> None:
    packer.build(sources[OLD], tmp_path / "out", format="npy", **SETTINGS)
    dataset = open_dataset(tmp_path / "out")
    rows = np.array([0, ROWS // 2, ROWS - 1])
    dataset.pool.read(rows, ["label"], allocate(dataset.schema.select(["label"]), 3), np.arange(3))
    rename_aside(tmp_path / "out")
    assert set(np.unique(dataset.read_batch(rows)["image"]).tolist()) == {OLD}


def test_files_get_other_names_while_two_threads_read(
    sources: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer.build(sources[OLD], tmp_path / "out", format="npy", **SETTINGS)
    dataset = open_dataset(tmp_path / "out")
    rename_aside(tmp_path / "out")
    follow, both, first_is_done = type(dataset.pool)._follow, threading.Barrier(2, timeout=60), threading.Event()

    def follow_in_turn(*arguments: Any) -> bool:
        if both.wait() == 0:
            assert first_is_done.wait(60)
        try:
            return follow(*arguments)
        finally:
            first_is_done.set()

    monkeypatch.setattr(type(dataset.pool), "_follow", follow_in_turn)
    found: list[set[int]] = []
    threads = [threading.Thread(target=lambda: found.append(greys(dataset, range(2)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{OLD}, {OLD}]


def test_opening_while_another_dataset_takes_the_place_gives_one_of_both(
    sources: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old manifest is read, and the new shards are looked at."""
    out = tmp_path / "out"
    packer.build(sources[OLD], out, **SETTINGS)
    check_sizes, calls = Layout.check_sizes, []

    def replaced_before(self: Layout, *shards: Any) -> Any:
        if not calls:
            calls.append(1)
            packer.build(sources[NEW], out, overwrite=True, **SETTINGS)
        return check_sizes(self, *shards)

    monkeypatch.setattr(Layout, "check_sizes", replaced_before)
    dataset = open_dataset(out)
    assert calls
    assert greys(dataset, range(ROWS)) == {NEW}
    assert dataset.column("label").tolist() == [0] * 4 + [1] * 8


def test_a_file_put_back_is_read_and_another_of_its_size_is_not(tmp_path: Path) -> None:
    schema = Schema((fixed("image", "|u1", 32, 32, 3), fixed("label", "<i8")))
    values = values_for(schema, 6)
    write_dataset(tmp_path / "d", "lmdb", schema, values, shard_rows=3)
    dataset, other = open_dataset(tmp_path / "d"), open_dataset(tmp_path / "d")
    path = tmp_path / "d" / "shard-00001.lmdb"
    whole = path.read_bytes()
    path.rename(tmp_path / "away")
    path.write_bytes(whole)
    assert np.array_equal(dataset[3]["image"], values["image"][3])
    changed = whole.replace(values["image"][3].tobytes(), bytes(32 * 32 * 3))
    assert len(changed) == len(whole)
    path.write_bytes(changed)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DatasetChangedError, match=r"shard-00001\.lmdb: expected SHA-256 .* open the dataset again"):
        other[3]


def test_verify_says_that_another_dataset_took_the_place_meanwhile(
    sources: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packer import verify
    from shardspec.errors import DatasetError

    out = tmp_path / "out"
    packer.build(sources[OLD], out, **SETTINGS)
    check_digest, calls = Layout.check_digest, []

    def replaced_before(self: Layout, entry: Any) -> None:
        if not calls:
            calls.append(1)
            packer.build(sources[NEW], out, overwrite=True, **SETTINGS)
        check_digest(self, entry)

    monkeypatch.setattr(Layout, "check_digest", replaced_before)
    monkeypatch.setattr("packer.packed.verify.verify.available_processors", lambda: 1)
    with pytest.raises(DatasetError, match="another took its place meanwhile: run the command again"):
        verify(out)


def test_links_within_the_folder_are_followed_and_others_refused(tmp_path: Path) -> None:
    schema = Schema((fixed("label", "<i8"),))
    write_dataset(tmp_path / "d", "lmdb", schema, values_for(schema, 2))
    path = tmp_path / "d" / "shard-00000.lmdb"
    (tmp_path / "d" / "kept").mkdir()
    path.rename(tmp_path / "d" / "kept" / "file")
    path.symlink_to("kept/file")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    assert open_dataset(tmp_path / "link").read_batch([0, 1])["label"].shape == (2,)
    path.unlink()
    shutil.move(tmp_path / "d" / "kept" / "file", tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(ShardCorruptError, match=r"shard-00000\.lmdb: expected .* inside .*, found a link to .*outside"):
        open_dataset(tmp_path / "d")
