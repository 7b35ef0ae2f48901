"""Commands on datasets in a bucket, with the same results as on a folder; and the cache that they share."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import arguments
from support.objects import serving_objects
from support.packed_files import write_faces
from support.stores import StoreServer, web_server

import packer
from packer import cache, copy, inspect
from packer.assembly.packed_rows import PackedRows
from packer.cli import main
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.counts import spread
from packer.sources.stores.packed import RowsLayout, partial_folder
from readers import open_dataset
from readers.staging.folder import CacheFolder
from shardspec.errors import UsageError
from shardspec.layout import Layout, layout_at
from shardspec.stores import Store


@pytest.fixture
def faces(server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaks_allowed: None) -> Path:
    """A dataset in three shards, whose copy is in the bucket as ``faces``."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    write_faces(tmp_path / "faces", 12)
    copy(tmp_path / "faces", server.url("faces"), overwrite=True, progress=False)
    return tmp_path / "faces"


def output_of(capsys: pytest.CaptureFixture[str], *command: Any) -> dict[str, Any]:
    assert main([str(word) for word in command]) == 0, command
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_commands_read_a_bucket_like_a_folder(faces: Path, server: StoreServer, tmp_path: Path, capsys: Any) -> None:
    url = server.url("faces")
    here, there = (output_of(capsys, "inspect", place, "--json") for place in (faces, url))
    assert there == {**here, "path": url}
    assert not list((tmp_path / "cache").rglob("shard-*"))  # the manifest and the index tell it
    values = output_of(capsys, "inspect", url, "--by", "key", "--json")
    assert values["path"] == url
    assert main(["inspect", url, str(faces), "--by", "key", "--json", "--quiet"]) == 1
    assert json.loads(capsys.readouterr().out)["datasets"] == [url, str(faces)]
    for place, name in ((faces, "here"), (url, "there")):
        out = tmp_path / name
        out.mkdir()
        assert main(["preview", str(place), "-o", str(out / "sheet.png"), "--quiet"]) == 0
        assert main(["report", str(place), "-o", str(out / "report.html"), "--quiet"]) == 0
        capsys.readouterr()
        assert output_of(capsys, "verify", place, "--json", "--quiet")["path"] == str(place)
        assert main(["convert", str(place), str(out / "npy"), "--format", "npy", "--quiet"]) == 0
        assert main(["split", str(place), str(out / "split"), "--by", "key", "--quiet"]) == 0
        assert main(["export", str(place), str(out / "files"), "--quiet"]) == 0
    page = (tmp_path / "there/report.html").read_text("utf-8")
    assert f"<code>{url}</code>" in page
    assert "<title>faces" in page
    assert (tmp_path / "here/sheet.png").read_bytes() == (tmp_path / "there/sheet.png").read_bytes()
    for made in ("npy", "split/train", "split/val"):
        digests = [open_dataset(tmp_path / name / made).manifest.digest for name in ("here", "there")]
        assert digests[0] == digests[1]
    write_faces(tmp_path / "others", 6, "lmdb")
    assert main(["merge", server.url("faces"), str(tmp_path / "others"), str(tmp_path / "merged"), "--quiet"]) == 0
    assert open_dataset(tmp_path / "merged").manifest.samples == 18
    exported = [sorted(path.name for path in (tmp_path / name / "files").rglob("*")) for name in ("here", "there")]
    assert exported[0] == exported[1]


def test_verify_reads_the_store_and_not_the_cache(faces: Path, server: StoreServer, tmp_path: Path) -> None:
    url = server.url("faces")
    entries = Layout(faces).load().entries
    packer.convert(url, tmp_path / "fills", progress=False, format="npy")  # so that every file is in the cache
    report = packer.verify(url, deep=True, progress=False)
    assert (report.ok, report.path, report.unlisted) == (True, url, ())
    for entry in (entries[0], entries[-1]):
        whole = (faces / entry.name).read_bytes()
        Store(url).put(entry.name, whole[:-1] + bytes([whole[-1] ^ 1]))
        (problem,) = packer.verify(url, progress=False).problems
        assert problem.startswith(f"{url}/{entry.name}: ")
        Store(url).delete([entry.name])
        (problem,) = packer.verify(url, deep=True, progress=False).problems
        assert problem.startswith(f"{url}/{entry.name}: ")
        Store(url).put(entry.name, whole)
    assert packer.verify(url, progress=False).ok
    assert not list(tmp_path.rglob("packer-scratch-*"))


def test_a_verify_that_was_killed_leaves_nothing_for_long(faces: Path, server: StoreServer, tmp_path: Path) -> None:
    url, cache_root = server.url("faces"), tmp_path / "cache" / "facepack"
    for sweep in (lambda: packer.verify(url, progress=False), lambda: cache(tmp_path / "cache", clear=True)):
        server.fail({"match": "GET .*faces/shard", "kind": "503", "times": 10**6})
        with subprocess.Popen(arguments("verify", url), stderr=subprocess.DEVNULL) as process:
            while not (left := list(cache_root.glob("packer-scratch-*/facepack/stager.json"))):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        server.fail()
        # Its stager ends, after a minute if the client was killed before it had asked for anything.
        with CacheFolder(left[0].parents[1]).lock().acquire(timeout=180):
            pass
        sweep()
        assert not list(tmp_path.rglob("packer-scratch-*"))


@pytest.fixture(params=["lmdb", "npy", "parquet", "hdf5", "tfrecord", "webdataset"])
def large(
    request: pytest.FixtureRequest,
    server: StoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leaks_allowed: None,
) -> str:
    """The URL of a dataset of large values in each format, which is also in ``local``."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    options: dict[str, Any] = {"format": request.param, "shard_size": "1500KiB", "progress": False}
    with packer.Writer(tmp_path / "local", **options) as writer:
        for number in range(30):
            values = random.integers(0, 255, random.integers(50_000, 200_000), np.uint8)
            image = random.integers(0, 255, (160, 160, 3), np.uint8)
            writer.write(image=image, values=values, box=random.random(4), name=f"n{number}", number=number)
    packer.copy(tmp_path / "local", server.url(request.param), overwrite=True, progress=False)
    return server.url(request.param)


def downloaded(folder: Path) -> int:
    """The bytes of the parts of shards that this process has of a remote dataset."""
    layout = layout_at(folder)
    assert isinstance(layout, RowsLayout)
    return sum(512 * path.stat().st_blocks for path in layout.scratch.path.rglob("*") if "shard-" in str(path))


def test_a_few_samples_need_no_whole_shards(large: str, tmp_path: Path) -> None:
    for place, sheet in ((tmp_path / "local", "here.png"), (large, "there.png")):
        assert main(["preview", str(place), "-o", str(tmp_path / sheet), "--count", "3", "--quiet"]) == 0
    assert (tmp_path / "here.png").read_bytes() == (tmp_path / "there.png").read_bytes()
    folder = partial_folder(large)
    here, there = BrowsedDataset(tmp_path / "local"), BrowsedDataset(folder)
    for rows in ([17], [2, 3, 29], [17, 18]):
        for name in ("image", "values", "box", "name", "number"):
            expected, found = here.read(rows, [name]), there.read(rows, [name])
            assert repr(found) == repr(expected)
            assert all(np.array_equal(a[name], b[name]) for a, b in zip(found, expected, strict=True))
    assert there.select("number > 27").mask.sum() == 2
    assert 0 < downloaded(folder) < here.manifest.stored_bytes / 2
    assert not list((tmp_path / "cache").rglob("shard-*"))
    open_dataset(large)[17]  # the whole shard, which is used from now on
    assert np.array_equal(
        BrowsedDataset(folder).read([16], ["image"])[0]["image"], here.read([16], ["image"])[0]["image"]
    )


def test_small_fields_and_lengths_need_no_images(large: str, tmp_path: Path) -> None:
    folder = partial_folder(large)
    here, there = (PackedRows.of(path, check="size") for path in (tmp_path / "local", folder))
    for rows in (np.arange(30), np.array([29, 3, 7])):
        expected, found = (one.read(rows, ["number"]) for one in (here, there))
        assert np.array_equal(found["number"], expected["number"])
    assert downloaded(folder) == 0  # the index has it
    sizes = here.sizes(), there.sizes()
    assert sizes[0].keys() == sizes[1].keys() > {"image", "values"}
    assert all(np.array_equal(sizes[0][name], sizes[1][name]) for name in sizes[0])
    if not large.endswith("tfrecord"):  # which has `values` as varints, whose number is in no index
        assert 0 < downloaded(folder) < Layout(folder).load().stored_bytes / 2
    texts = [[bytes(name) for batch in one.batches(["name"]) for name in batch["name"]] for one in (here, there)]
    assert texts[0] == texts[1] == [f"n{number}".encode() for number in range(30)]
    assert not list((tmp_path / "cache").rglob("shard-*"))


def test_a_server_that_ignores_ranges_sends_whole_shards(large: str, tmp_path: Path) -> None:
    here = BrowsedDataset(tmp_path / "local")
    with web_server(tmp_path / "local") as url:
        there = BrowsedDataset(partial_folder(url))
        assert repr(there.read([2, 7], ["key", "box"])) == repr(here.read([2, 7], ["key", "box"]))
    assert list((tmp_path / "cache").rglob("shard-*"))


def test_jobs_need_room_for_small_files_and_two_shards_in_the_cache(
    faces: Path, server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Layout(faces).load()
    shards = 2 * max(part.bytes for part in manifest.parts)
    monkeypatch.setenv("FACEPACK_CACHE_SIZE", str(shards))
    assert main(["convert", server.url("faces"), str(tmp_path / "none"), "--format", "npy", "--quiet"]) == 2
    monkeypatch.setenv("FACEPACK_CACHE_SIZE", str(shards + sum(entry.bytes for entry in manifest.files)))
    assert main(["export", server.url("faces"), str(tmp_path / "files"), "--quiet"]) == 2
    for shuffled in ([], ["--shuffle", "3"]):
        options = ["--format", "npy", "--shard-size", "2kB", *shuffled, "--quiet"]
        for name, place in (("there", server.url("faces")), ("here", faces)):
            assert main(["convert", str(place), str(tmp_path / name), *options, "--overwrite"]) == 0
        assert Layout(tmp_path / "there").load().digest == Layout(tmp_path / "here").load().digest
    assert packer.verify(server.url("faces"), deep=True, progress=False).ok  # two shards at a time
    assert inspect(server.url("faces")).manifest.samples == 12


def test_the_cache_is_listed_and_cleared_and_keeps_what_is_not_its_own(
    faces: Path, server: StoreServer, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "apart"
    dataset = open_dataset(server.url("faces"), cache=folder)
    dataset[0]
    listed = output_of(capsys, "cache", folder, "--json")
    assert [found["url"] for found in listed["datasets"]] == [server.url("faces")]
    assert listed["datasets"][0]["bytes"] > 0
    assert main(["cache", str(folder), "--clear"]) == 1  # in use
    other = dataset.path / "notes.txt"
    other.write_text("mine")
    del dataset
    cleared = cache(folder, clear=True)
    assert len(cleared.datasets) == 1
    assert other.read_text() == "mine"
    assert [path for path in dataset_files(folder) if path != other] == []
    assert cache(folder).datasets == ()


def dataset_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "facepack/datasets").rglob("*") if path.is_file()]


def test_a_report_on_a_remote_dataset_takes_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaks_allowed: None
) -> None:
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    with packer.Writer(tmp_path / "local", shard_size="3MB", classes=["a", "b"], progress=False) as writer:
        for number in range(120):
            image = random.integers(0, 255, (300, 300, 3), np.uint8)
            writer.write(image=image, label=number % 2, box=random.random(4), source=f"s{number % 40}", number=number)
    pages = []
    with serving_objects() as server:
        root = tmp_path / "local"
        files = [path for path in root.rglob("*") if path.is_file()]
        server.objects |= {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
        for name in ("one", "two"):
            packer.report(f"{server.address}/{name}", tmp_path / "report.html", count=8, progress=False)
            pages.append((tmp_path / "report.html").read_text("utf-8"))
        size = sum(map(len, server.objects.values()))
        assert server.sent < size / 2
        far = BrowsedDataset(partial_folder(f"{server.address}/one"))
        assert spread(far, "label").kind == "list"
        assert spread(far, "source").kind == spread(far, "box_side").kind == "none"
        assert len(far.select("source == 's3'")) == 3
        assert spread(far, "source").kind == "list"
        before = server.sent
        packer.report(
            [f"{server.address}/one", f"{server.address}/two"], tmp_path / "both.html", count=8, progress=False
        )
        assert server.sent - before < size / 2
    for page in pages:
        assert "in 8 of 120 samples" in page
        assert f"{size // 10**6}" in page
    assert "not compared" in (tmp_path / "both.html").read_text("utf-8")
    packer.report(tmp_path / "local", tmp_path / "report.html", count=8, progress=False)
    assert "in 8 of 120 samples" not in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("large", ["parquet", "tfrecord"], indirect=True)
def test_damage_in_parts_of_shards_is_noticed(large: str, tmp_path: Path, capsys: Any) -> None:
    image = bytes(PackedRows.of(tmp_path / "local").read(np.array([17]), ["image"])["image"][0])
    name, whole = next(
        (path.name, data) for path in (tmp_path / "local").glob("shard-*") if image in (data := path.read_bytes())
    )
    at = whole.index(image) + len(image) // 2
    Store(large).put(name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert main(["preview", large, "-o", str(tmp_path / "sheet.png"), "--count", "30", "--quiet"]) == 1
    assert f"{name}: expected the checksum of" in capsys.readouterr().err
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("address", ["", "127.0.0.1:9000"])
def test_an_address_without_http_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str) -> None:
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    assert main(["inspect", "s3://data/faces"]) == 2
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(UsageError):
        Store("s3://data/faces", {"endpoint": address})


@pytest.mark.parametrize("large", ["lmdb"], indirect=True)
def test_a_missing_object_is_named(large: str, tmp_path: Path, capsys: Any) -> None:
    name = next(path.name for path in (tmp_path / "local").glob("shard-*.lmdb"))
    Store(large).delete([name])
    assert main(["merge", large, str(tmp_path / "local"), str(tmp_path / "out"), "--quiet"]) == 1
    assert f"{large}/{name}: expected an object of" in capsys.readouterr().err
