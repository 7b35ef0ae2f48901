"""``packer build s3://… OUT``: sources in a bucket and on a web server give the shards of the same files in a folder."""

import errno
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.archives import encoded, rec_header, samples, write_lmdb, write_parquet, write_rec, write_tar, write_zip
from support.builds import QUIET, write_images, write_source
from support.command import arguments, file_of, read_jsonl, run_packer
from support.errors import raises
from support.listeners import Listener
from support.packed import read_samples
from support.sound import tone, write_sound
from support.stores import StoreServer, web_server

import packer
from packer.cli import EXIT_INTERRUPTED
from packer.sources.opening import open_source
from readers import Loader, open_dataset
from shardspec.errors import BuildError, StoreError, UsageError
from shardspec.stores import Store

SMALL: dict[str, Any] = {"shard_size": "30kB", **QUIET}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def upload(server: StoreServer, root: Path, prefix: str) -> str:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            server.put(quote(f"{prefix}/{path.relative_to(root).as_posix()}"), path.read_bytes())
    return server.url(prefix)


def values_of(root: Path, field: str) -> list[Any]:
    return [sample[field] for sample in read_samples(root)]


def packed(out: Path) -> dict[str, bytes]:
    """The shards, indexes and rejects of a dataset."""
    files = [*out.glob("shard-*"), file_of(out, "rejects.jsonl")]
    assert not packer.verify(out, deep=True, progress=False).problems
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def folder(root: Path) -> dict[str, Any]:
    write_source(root)
    (root / "real" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    (root / "real" / "ä b%20+.jpg").write_bytes(encoded(1))
    (root / ".hidden.jpg").write_bytes(encoded(2))
    return {"source": "", "label_from": "folder", "size": 32, "every": 6, "max_rejects": 1.0}


def sidecars(root: Path) -> dict[str, Any]:
    write_images(root, ["a.png", "sub/b.png", "sub/c.png"])
    (root / "a.txt").write_text("text")
    (root / "sub" / "b.json").write_text('{"age": 3}')
    return {"source": "", "sidecars": True}


def chosen(root: Path) -> dict[str, Any]:
    write_images(root, ["a/1.png", "a/2.png", "b/1.png", "b/c/1.png", "d-1/1.png", "d/1.png", "other/1.png"])
    return {"source": "", "include": ["[abd]*/"], "exclude": ["c/"], "fields_from_path": "{label}/**"}


def frames(root: Path) -> dict[str, Any]:
    for video in "ab":
        write_images(root / "videos" / video, [f"{number:03d}.png" for number in range(7)])
    return {"source": "", "frame_folders": 25.0, "every": 2}


def table(root: Path) -> dict[str, Any]:
    write_images(root, ["a.png", "sub/b.png", "masks/a.png"])
    rows = "path,mask,age\na.png,masks/a.png,3\nsub/b.png,,4\na.png,,5\nno.png,,6\n"
    (root / "rows.csv").write_text(rows)
    return {"source": "rows.csv", "also": "mask", "max_rejects": 1.0}


def sounds(root: Path) -> dict[str, Any]:
    for number, name in enumerate(["low/a.mp3", "low/b.flac", "high/c.wav"]):
        write_sound(root / name, tone(300 * (number + 1), 1.3, 44100), 44100)
    (root / "high" / "broken.wav").write_bytes(b"RIFF")
    how = {"preset": "sound", "audio": 8000, "seconds": 0.25, "label_from": "folder", "max_rejects": 1.0}
    return {"source": "", **how}


def tars(root: Path) -> dict[str, Any]:
    for number in range(3):
        write_tar(root / f"train-{number:03d}.tar", samples(10 * number, 10 * number + 10))
    (root / "notes.txt").write_text("x")
    return {"source": "train-{000..002}.tar"}


def tars_in_folder(root: Path) -> dict[str, Any]:
    return {**tars(root), "source": ""}


def compressed(root: Path) -> dict[str, Any]:
    write_tar(root / "all.tar.gz", samples(0, 80), "w:gz")
    return {"source": "all.tar.gz"}


def zips(root: Path) -> dict[str, Any]:
    for number in range(2):
        members = [(f"{cls}/{number}{at}.jpg", encoded(at)) for at, cls in enumerate("abcabcabc")]
        members.insert(
            0, ("notes.bin", os.urandom(100_000))
        )  # only the end of such an archive is downloaded to list it
        write_zip(root / f"part-{number}.zip", members, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED][number])
    return {"source": "part-*.zip", "label_from": "folder"}


def table_of_zips(root: Path) -> dict[str, Any]:
    zips(root)
    (root / "rows.csv").write_text("path,age\na/00.jpg,1\na/10.jpg,2\nb/01.jpg,3\n")
    return {"source": "rows.csv"}


def zips_in_folders(root: Path) -> dict[str, Any]:
    for name in ("a/part-0.zip", "b/c/part-1.zip", ".hidden/part-2.zip", "other.zip", "a/.x/3.zip", "a/.x/.4.zip"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_zip(root / name, [(f"{name[0]}{at}.jpg", encoded(at)) for at in range(9)])
    return {"source": "**/part-*.zip"}


def zips_in_hidden_folders(root: Path) -> dict[str, Any]:
    return {**zips_in_folders(root), "source": "**/.x/*.zip"}


def parquet(root: Path) -> dict[str, Any]:
    write_parquet(root / "a.parquet", 30, names=["x", "y"])
    write_parquet(root / "b.parquet", 90, names=["x", "y"], note=["n" * 2000] * 90)
    return {"source": "*.parquet"}


def parquet_of_paths(root: Path) -> dict[str, Any]:
    write_images(root, ["a.png", "b.png"])
    pq.write_table(pa.table({"path": ["a.png", "b.png"], "x": [1, 2]}), root / "rows.parquet")
    return {"source": "rows.parquet"}


def records(root: Path) -> dict[str, Any]:
    write_rec(root / "train.rec", {number: rec_header(number % 3, number, encoded(number)) for number in range(9)})
    return {"source": "train.rec"}


def records_with_keys(root: Path) -> dict[str, Any]:
    options = records(root)
    lines = [line.split() for line in (root / "train.idx").read_text().splitlines()]
    (root / "train.idx").write_text("".join(f"{int(key) + 100}\t{start}\n" for key, start in lines))
    return options


def lmdb(root: Path) -> dict[str, Any]:
    pairs = {b"image-%09d" % n: encoded(n) for n in range(1, 9)} | {b"label-%09d" % n: b"t" for n in range(1, 9)}
    write_lmdb(root / "words.lmdb", {**pairs, b"num-samples": b"8"})
    return {"source": "words.lmdb"}


@pytest.mark.parametrize(
    "make",
    [
        folder,
        chosen,
        sidecars,
        frames,
        table,
        sounds,
        tars,
        tars_in_folder,
        compressed,
        zips,
        zips_in_folders,
        zips_in_hidden_folders,
        table_of_zips,
        parquet,
        parquet_of_paths,
        records,
        records_with_keys,
        lmdb,
    ],
)
def test_a_source_in_a_bucket_gives_the_shards_of_a_folder(
    here: StoreServer, tmp_path: Path, temporary: Path, make: Callable[[Path], dict[str, Any]]
) -> None:
    options = make(tmp_path / "in")
    name = options.pop("source")
    url = upload(here, tmp_path / "in", f"alike ä%20+/{make.__name__}")
    packer.build(str(tmp_path / "in" / name), tmp_path / "local", **options, **SMALL)
    made = packer.build(f"{url}/{name}", tmp_path / "stored", **options, **SMALL)
    assert len(packed(tmp_path / "local")) > 2
    assert packed(tmp_path / "stored") == packed(tmp_path / "local")
    assert not [note for note in made.notes if str(temporary) in note]
    again = packer.build(f"{url}/{name}", tmp_path / "stored", **options, **SMALL)
    assert again.found_finished
    for share in ("1/2", "2/2"):
        packer.build(f"{url}/{name}", tmp_path / "pieces", share=share, **options, **SMALL)
    packer.merge([tmp_path / "pieces"], tmp_path / "merged", **QUIET)
    assert packed(tmp_path / "merged") == packed(tmp_path / "local")
    assert not list(temporary.glob("packer-scratch-*/*.*"))


def test_sound_in_a_bucket_is_packed_into_a_bucket_and_read_there(here: StoreServer, tmp_path: Path) -> None:
    options = sounds(tmp_path / "in")
    source = upload(here, tmp_path / "in", options.pop("source") + "tones")
    packer.build(tmp_path / "in", tmp_path / "local", **options, **SMALL)
    packer.build(source, here.url("packed tones"), work=tmp_path / "work", **options, **SMALL)
    batches = [
        list(Loader(open_dataset(place), batch_size=4, shuffle="full", seed=1))
        for place in (tmp_path / "local", here.url("packed tones"))
    ]
    assert len(batches[0]) == len(batches[1]) == 4
    for expected, found in zip(*batches, strict=True):
        assert found["key"] == expected["key"]
        assert found["audio"].shape == (len(found["key"]), 2000)
        assert torch.equal(found["audio"], expected["audio"])


@pytest.mark.parametrize("others", [0, 3000])
def test_a_zip_is_listed_from_its_end(
    here: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    members = [(f"{at % 3}/{at:02d}.png", os.urandom(10_000)) for at in range(60)]
    members += [(f"notes/{'n' * 20}{at:05d}.txt", b"") for at in range(others)]
    path = write_zip(tmp_path / "in" / "a.zip", members)
    url = upload(here, tmp_path / "in", f"zip-{others}")
    spans: list[tuple[int, int] | None] = []
    download = Store.download
    monkeypatch.setattr(Store, "download", lambda *args: (spans.append((*args, None)[3]), download(*args))[1])
    listing = open_source(f"{url}/a.zip", tmp_path / "out").list_items("folder", "path")
    assert [item.name for item in listing.items] == [f"a.zip!{name}" for name, _ in members[:60]]
    assert listing.ignored == others
    assert 0 < sum(end - start for start, end in filter(None, spans)) < path.stat().st_size - 500_000
    assert None not in spans
    assert len(spans) == 1 + bool(others)  # a long list begins before the part that is requested first


def test_a_zip_that_is_replaced_before_it_is_listed_is_listed_as_it_is_now(
    here: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        write_zip(tmp_path / f"{name}.zip", [(f"{name}.png", os.urandom(100_000))])
    here.put("replaced.zip", (tmp_path / "old.zip").read_bytes())
    download = Store.download

    def replace_first(self: Store, name: str, path: Path, span: tuple[int, int] | None = None) -> Any:
        Store(here.url("")).put("replaced.zip", (tmp_path / "new.zip").read_bytes())
        return download(self, name, path, span)

    monkeypatch.setattr(Store, "download", replace_first)
    listing = open_source(here.url("replaced.zip"), tmp_path / "out").list_items("none", "path")
    assert [(item.name, item.reject) for item in listing.items] == [("replaced.zip!new.png", None)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_local_table_names_files_in_a_bucket(here: StoreServer, tmp_path: Path, whole: bool) -> None:
    root = write_images(tmp_path / "in", ["a.png", "sub/b c.png"])
    url = upload(here, root, f"named-{whole}")
    above = f"{url}/" if whole else ""
    (tmp_path / "t.csv").write_text(f"path,age\n{above}sub/b c.png,1\n{above}a.png,2\n")
    packer.build(tmp_path / "t.csv", tmp_path / "out", root=[url], **SMALL)
    assert values_of(tmp_path / "out", "source") == ["sub/b c.png", "a.png"]
    if whole:
        with raises(UsageError, found=f"2 of 2 paths outside, such as line 2: '{url}/sub/b c.png'"):
            packer.build(tmp_path / "t.csv", tmp_path / "outside", **SMALL)
    rows = [{"path": f"{above}a.png"}]
    packer.build(rows, tmp_path / "rows", root=[url], **SMALL)
    assert values_of(tmp_path / "rows", "source") == ["a.png"]
    here.put(f"named-{whole}/sub/t.csv", (tmp_path / "t.csv").read_bytes())
    packer.build(f"{url}/sub/t.csv", tmp_path / "above", root=[url], **SMALL)
    assert packed(tmp_path / "above") == packed(tmp_path / "out")


def test_a_table_names_files_on_a_web_server(here: StoreServer, tmp_path: Path) -> None:
    root = write_images(tmp_path / "in" / "a %", ["a.png", "sub/b c.png", "masks/a.png"])
    write_images(tmp_path / "in" / "b", ["b.png"])
    write_tar(root / "all.tar.gz", samples(0, 5), "w:gz")
    with web_server(tmp_path / "in") as server:
        url = f"{server}/a%20%25"
        rows = f"{url}/sub/b%20c.png,\n{url}/a.png,{url}/masks/a.png\n{url}/no.png,\n./a.png,\na\x01.png,\n"
        (root / "rows.csv").write_text(f"path,mask\n{rows}")
        options: dict[str, Any] = {"also": "mask", "max_rejects": 1.0, **SMALL}
        packer.build(root / "rows.csv", tmp_path / "local", root=[url], **options)
        packer.build(f"{url}/rows.csv", tmp_path / "stored", **options)
        packer.build(f"{url}/all.tar.gz", tmp_path / "tar", **SMALL)
        packer.build([{"path": "b.png"}, {"path": "a.png"}], tmp_path / "two", root=[url, f"{server}/b"], **SMALL)
        with raises(UsageError, place=f"{url}/nothing", found="nothing at this URL"):
            packer.build(f"{url}/nothing/", tmp_path / "no", **SMALL)
    assert values_of(tmp_path / "local", "source") == ["sub/b c.png", "a.png", "a.png"]
    assert packed(tmp_path / "stored") == packed(tmp_path / "local")
    assert [one["item"] for one in read_jsonl(file_of(tmp_path / "stored", "rejects.jsonl"))] == ["no.png", "a\x01.png"]
    assert len(values_of(tmp_path / "tar", "key")) == 5
    assert values_of(tmp_path / "two", "source") == ["b/b.png", "a %/a.png"]


def test_a_full_folder_for_temporary_files_rejects_no_archive(
    here: StoreServer, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "in" / "a.tar", samples(0, 5))
    write_zip(tmp_path / "in" / "a.zip", [("a.png", os.urandom(100_000))])
    url = upload(here, tmp_path / "in", "full")

    def chunks() -> Iterator[memoryview]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield

    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, name, span: (get(self, name)[0], chunks()))
    for name in ("a.tar", "a.zip"):
        with raises(BuildError, place=str(temporary), hint="set TMPDIR to a folder with enough free space"):
            packer.build(f"{url}/{name}", tmp_path / "out", **QUIET)


def change_when_packing(change: Callable[[], None]) -> Listener:
    """Change the store after the source was listed, before an item is downloaded."""
    done: list[str] = []

    def act(progress: packer.Progress) -> None:
        if progress.stage == "packing" and not done:
            done.append("once")
            change()

    return Listener(act)


def test_items_that_change_vanish_or_are_forbidden_are_rejects(here: StoreServer, tmp_path: Path) -> None:
    names = [f"{number:02d}.png" for number in range(8)]
    url = upload(here, write_images(tmp_path / "in", names), "rejects")

    def change() -> None:
        store = Store(url)
        store.put("02.png", encoded(7))
        store.delete(["04.png"])
        here.fail({"match": "GET .*rejects/06.png", "kind": "403", "times": 99})

    listener = change_when_packing(change)
    packer.build(url, tmp_path / "out", max_rejects=1.0, progress=listener, engine="inline")
    here.fail()
    assert {one["item"]: one["reason"] for one in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))} == {
        "02.png": "'02.png' has changed since the build was planned",
        "04.png": "'04.png' existed when the build was planned",
        "06.png": "expected '06.png' in the store, which refuses to send it",
    }
    assert values_of(tmp_path / "out", "source") == [
        name for name in names if name not in ("02.png", "04.png", "06.png")
    ]
    grown = packer.build(
        url, tmp_path / "out", update=True, changed="replace", retry_rejects=True, max_rejects=1.0, **QUIET
    )
    assert grown.growth is not None
    assert sorted(values_of(tmp_path / "out", "source")) == [name for name in names if name != "04.png"]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_an_archive_that_changes_gives_rejects(here: StoreServer, tmp_path: Path, kind: str) -> None:
    for name in "ab":
        path = tmp_path / "in" / f"{name}.{kind}"
        path.parent.mkdir(exist_ok=True)
        write_tar(path, samples(0, 20)) if kind == "tar" else write_parquet(path, 20)
    url = upload(here, tmp_path / "in", kind)
    listener = change_when_packing(partial(Store(url).put, f"b.{kind}", b"x" * 9000))
    packer.build(url, tmp_path / "out", max_rejects=1.0, progress=listener, engine="inline")
    rejects = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert {one["reason"] for one in rejects} == {f"'b.{kind}' has changed since the build was planned"}
    assert len(rejects) == len(read_samples(tmp_path / "out")) == 20


def test_a_store_that_fails_ends_the_build_which_resumes(here: StoreServer, tmp_path: Path, temporary: Path) -> None:
    root = write_images(tmp_path / "in", [f"{number:03d}.png" for number in range(90)])
    url = upload(here, root, "fails")
    here.fail({"match": "GET .*fails/07..png", "kind": "expired", "times": 999})
    options: dict[str, Any] = {"size": 16, **SMALL}
    with pytest.raises(BuildError, match="ExpiredToken"):
        packer.build(url, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list(temporary.glob("packer-scratch-*"))  # also of workers that were killed
    here.fail(
        {"match": "GET .*fails/080.png", "kind": "503", "times": 2},
        {"match": "GET .*fails/07", "kind": "cut", "times": 2},
    )
    packer.build(url, tmp_path / "out", **options)
    packer.build(root, tmp_path / "local", **options)
    assert packed(tmp_path / "out") == packed(tmp_path / "local")
    assert not list(temporary.glob("packer-scratch-*/*.png"))


def test_a_killed_build_resumes_and_leaves_no_temporary_files(
    here: StoreServer, tmp_path: Path, temporary: Path
) -> None:
    root = write_source(tmp_path / "in")
    url = upload(here, root, "killed")
    out, words = tmp_path / "out", ("--size", 32, "--every", 6, "--workers", 2)
    command = arguments("build", url, out, *words)
    env = {**here.env, "TMPDIR": str(temporary)}
    here.fail({"match": "GET .*/050", "kind": "hang", "times": 1})
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        while here.left() == [1]:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert list(temporary.glob("packer-scratch-*"))
    (temporary / "packer-scratch-new").mkdir()  # of a process that was killed before it locked its folder
    here.fail()
    run_packer("build", url, out, *words, env=env)
    run_packer("build", root, tmp_path / "local", *words)
    assert packed(out) == packed(tmp_path / "local")
    assert not list(temporary.glob("packer-scratch-*"))


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_ctrl_c_ends_a_build_while_its_source_cannot_be_listed(
    here: StoreServer, tmp_path: Path, temporary: Path, method: str
) -> None:
    write_tar(tmp_path / "in" / "a.tar", samples(0, 5))
    url = upload(here, tmp_path / "in", f"hangs-{method}")
    here.fail({"match": f"{method} .*/hangs", "kind": "hang", "times": 99})
    env = {**here.env, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        arguments("build", f"{url}/a.tar", tmp_path / "out"), env=env, stderr=subprocess.DEVNULL
    ) as process:
        while here.left() == [99]:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == EXIT_INTERRUPTED  # a client repeats the request for two minutes
        finally:
            process.kill()
    assert not list(temporary.glob("packer-scratch-*"))


def test_impossible_names_are_counted(here: StoreServer, tmp_path: Path) -> None:
    url = upload(here, write_images(tmp_path / "in", ["a.png"]), "names")
    for name in ("names/a.png/d.png", f"names/{'e' * 300}.png"):
        here.put(name, encoded(0))
    here.put("names/folder/", b"")
    here.put("names/folder/f.png", encoded(1))
    made = packer.build(url, tmp_path / "out", **QUIET)
    assert values_of(tmp_path / "out", "source") == ["a.png", "folder/f.png"]
    assert made.counts.ignored_files == 2
    assert [note for note in made.notes if "2 objects" in note]


def test_what_cannot_be_packed_is_refused_at_once(here: StoreServer, tmp_path: Path) -> None:
    url = upload(here, write_images(tmp_path / "in", ["a.png"]), "refused")
    out = tmp_path / "out"
    with raises(UsageError, place=here.url("nothing"), found="none"):
        packer.build(here.url("nothing"), out, **QUIET)
    with pytest.raises(StoreError, match="the bucket does not exist"):
        packer.build("s3://no-bucket/raw", out, **QUIET)
    with raises(UsageError, option="out", found=f"{url}/out"):
        packer.build(url, f"{url}/out", **QUIET)
    with raises(UsageError, option="source", found="'hf://datasets/me/raw'"):
        packer.build("hf://datasets/me/raw", out, **QUIET)
    with raises(UsageError, option="root"):
        packer.build(tmp_path / "in", out, root=[url], **QUIET)
    with raises(UsageError, place=f"{url}/..", expected="a URL without . and .. between slashes"):
        packer.build(f"{url}/../raw", out, **QUIET)
    here.fail({"match": "GET /data$", "kind": "403", "times": 1})
    with pytest.raises(StoreError, match="check the credentials"):
        packer.build(url, out, **QUIET)
    packer.build(tmp_path / "in", here.url("refused-packed"), **QUIET)
    with raises(UsageError, place=here.url("refused-packed"), found="a packed dataset"):
        packer.build(here.url("refused-packed"), out, **QUIET)
    assert not out.exists()


def test_a_byte_that_flips_on_the_way_is_not_packed(here: StoreServer, tmp_path: Path) -> None:
    options = folder(tmp_path / "in")
    options = {name: value for name, value in options.items() if name != "source"}
    url = upload(here, tmp_path / "in", "flipped")
    here.fail({"match": "GET .*(jpg|png|mp4)$", "kind": "flip", "times": 5})
    packer.build(url, tmp_path / "out", **options, **SMALL)
    assert here.left() == [0]
    packer.build(tmp_path / "in", tmp_path / "local", **options, **SMALL)
    assert packed(tmp_path / "out") == packed(tmp_path / "local")


def test_settings_reach_the_workers_of_a_source_and_are_not_stored(
    here: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "in", [f"{number}.png" for number in range(6)])
    url = upload(here, tmp_path / "in", "settings")
    for name in here.variables:
        monkeypatch.delenv(name)
    options = {"access_key_id": "test", "secret_access_key": "s3cr3t", "endpoint": here.address}
    packer.dry_run(url, tmp_path / "out", storage_options=options, **QUIET)
    packer.build(url, tmp_path / "out", storage_options=options, engine="processes", workers=2, progress=False)
    assert len(read_samples(tmp_path / "out")) == 6
    assert packer.build(url, tmp_path / "out", storage_options=options, **QUIET).found_finished
    assert not any(b"s3cr3t" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "s3cr3t" not in str(os.environ)
    with raises(UsageError, option="storage_options"):
        packer.build(url, tmp_path / "other", storage_options={**options, "credential_provider": dict}, **QUIET)
