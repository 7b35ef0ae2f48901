"""Datasets that are replaced while they are open: a reader gives the values of the one that it opened, or an error."""

import json
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.datasets import fixed, manifest_document, values_for, write_dataset
from support.packed import check_whole

import packer
from readers import Loader, PackedDataset, open_dataset
from shardspec.entries import strip_tag
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
def test_a_reader_never_returns_values_of_a_replacement(
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
    with pytest.raises(DatasetChangedError) if format == "npy" else nullcontext():  # in npy, fields have separate files
        pool.read(np.arange(3), ["label"], columns, np.arange(3))
        assert columns["label"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("verify", ["size", "off"])
def test_an_identical_rebuild_does_not_stop_readers(sources: dict[int, Path], tmp_path: Path, verify: Any) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, **SETTINGS)
    dataset = open_dataset(out, verify=verify)
    labels = dataset.column("label").tolist()
    packer.build(sources[NEW], out, overwrite=True, **SETTINGS)
    packer.build(sources[OLD], out, overwrite=True, **SETTINGS)
    assert greys(dataset, range(ROWS)) == {OLD}
    assert dataset.column("label").tolist() == labels


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_dataset_of_an_earlier_version_is_replaced_cleanly(
    sources: dict[int, Path], tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    packer.build(sources[OLD], out, format=format, **SETTINGS)
    rename_all(out, "")
    assert packer.verify(out, deep=True, progress=False).problems == ()
    dataset, other = open_dataset(out), open_dataset(out)
    assert greys(dataset, range(3)) == {OLD}
    packer.build(sources[NEW], out, format=format, overwrite=True, **SETTINGS)
    check_whole(out)
    assert greys(dataset, range(3)) == {OLD}
    for read in (lambda: dataset[4], lambda: other[0], lambda: other.column("label")):
        with pytest.raises(DatasetChangedError):
            read()


def test_a_dataset_under_names_of_an_earlier_version_grows(sources: dict[int, Path], tmp_path: Path) -> None:
    """A reader that has it open reads the old shards, which stay."""
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(sources[OLD], source)
    packer.build(source, out, **SETTINGS)
    rename_all(out, "next-")
    digest, dataset = Layout(out).load().digest, open_dataset(out)
    Image.new("RGB", (16, 16), (NEW,) * 3).save(source / "a" / "99.png")
    packer.build(source, out, update=True, **SETTINGS)
    assert greys(dataset, range(ROWS)) == {OLD}
    manifest = check_whole(out)
    assert [shard.name.partition("-0")[0] for shard in manifest.shards] == ["next-shard"] * 3 + ["shard"]
    assert (manifest.samples, manifest.digest == digest) == (ROWS + 1, False)
    packer.convert(out, tmp_path / "converted", format="npy", progress=False)
    packer.build(source, tmp_path / "rebuilt", **SETTINGS)
    assert (
        packer.build(source, out, overwrite=True, **SETTINGS).manifest.digest
        == check_whole(tmp_path / "rebuilt").digest
    )
    check_whole(out)


def rename_all(out: Path, prefix: str) -> None:
    """Give all files of a dataset names that earlier versions gave them, which had no tags."""
    document = manifest_document(out)
    shards = document["generations"][0]["shards"]
    for entry in [*(entry for shard in shards for entry in shard["files"]), *document["files"]]:
        path = out / entry["name"]
        entry["name"] = prefix + strip_tag(entry["name"])
        (out / entry["name"]).parent.mkdir(exist_ok=True)
        path.rename(out / entry["name"])
    for shard in shards:
        shard["name"] = prefix + strip_tag(shard["name"])
    for folder in [path for path in out.iterdir() if path.is_dir() and not any(path.iterdir())]:
        folder.rmdir()
    (out / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_name_says_what_is_in_the_file(sources: dict[int, Path], tmp_path: Path, format: str) -> None:
    found = []
    for source, out in ((OLD, "a"), (OLD, "b"), (NEW, "c")):
        packer.build(sources[source], tmp_path / out, format=format, **SETTINGS)
        found.append({entry.name: entry.sha256 for entry in Layout(tmp_path / out).load().entries})
    assert found[0] == found[1]
    assert not any(name.startswith("shard-") for name in found[0].keys() & found[2].keys())
    assert found[2].items() >= {(name, found[0][name]) for name in found[0].keys() & found[2].keys()}


def test_opening_during_a_replacement_yields_either_dataset(
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


def test_verify_reports_a_replacement_during_the_check(
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
