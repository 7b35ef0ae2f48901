"""``packer build SOURCE s3://…``: the shards go to an S3 server while others are written, and the manifest last."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.session import Session
from support.builds import QUIET, write_images
from support.command import arguments, read_jsonl, run_packer
from support.datasets import manifest_document
from support.errors import raises
from support.stores import BUCKET, StoreServer

import packer
from packer.cli import main
from shardspec.errors import BuildError, StoreError, TooManyRejectsError, UsageError
from shardspec.layout import Layout
from shardspec.stores import Store

SMALL: dict[str, Any] = {"size": 120, "resize": "exact", "encode": "png", "shard_size": "64KiB"}
LARGE = {**SMALL, "size": 140}
WORDS = ("--size", 140, "--resize", "exact", "--encode", "png", "--shard-size", "64KiB", "--workers", 2)
MARK = ".build/upload.json"
FOREVER = 10**6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("upload") / "in", [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(12)])


@pytest.fixture(scope="module")
def local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build of `LARGE` makes in a folder."""
    out = tmp_path_factory.mktemp("upload") / "local"
    packer.build(source, out, **LARGE, **QUIET)
    assert len(list(out.glob("shard-*.lmdb"))) > 3
    return out


def download(url: str, to: Path) -> dict[str, bytes]:
    """The files of a dataset in a store, without those times in its manifest that differ between builds."""
    packer.copy(url, to, overwrite=True, progress=False)
    assert not packer.verify(to, deep=True, progress=False).problems
    return files(to)


def files(root: Path) -> dict[str, bytes]:
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    manifest = manifest_document(root)
    found["manifest.json"] = json.dumps({**manifest, "wall_clock": None}).encode()
    return found


def stop(
    command: list[str], server: StoreServer, until: Callable[[], bool], how: signal.Signals, cwd: Path
) -> "subprocess.Popen[bytes]":
    """Start a command, and send it a signal as soon as something is true."""
    with subprocess.Popen(command, env=server.env, cwd=cwd, stderr=subprocess.DEVNULL) as process:
        while not until():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(how)
        process.wait(timeout=60)
    return process


def test_a_dataset_in_a_bucket_is_that_of_a_folder(
    here: StoreServer, source: Path, local: Path, tmp_path: Path
) -> None:
    url = here.url("plain/faces")
    done = run_packer("build", source, url, *WORDS, "--json", env=here.env)
    assert json.loads(done.stdout)["out"] == url
    assert list(Path().iterdir()) == []
    assert download(url, tmp_path / "back") == files(local)
    assert here.objects("plain/faces").keys() == files(local).keys()
    again = packer.build(source, url, **LARGE, **QUIET)
    assert (again.path, again.found_finished) == (url, True)
    packer.build(source, url, title="Faces", **LARGE, **QUIET)
    described = download(url, tmp_path / "described")
    assert json.loads(described.pop("manifest.json")).pop("about") == {"title": "Faces"}
    assert described == {name: data for name, data in files(local).items() if name != "manifest.json"}
    with raises(UsageError, place=url):
        packer.build(source, url, **SMALL, **QUIET)


def test_passing_faults_are_survived(here: StoreServer, source: Path, local: Path, tmp_path: Path) -> None:
    kinds = {"shard-00000": "503", "shard-00001": "reset", "index": "500", "manifest": "503", "upload": "reset"}
    here.fail(*({"match": f"PUT .*{name}", "kind": kind, "times": 2} for name, kind in kinds.items()))
    packer.build(source, here.url("passing"), work=tmp_path / "work", **LARGE, **QUIET)
    assert here.left() == [0] * len(kinds)
    assert download(here.url("passing"), tmp_path / "back") == files(local)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_killed_build_is_resumed_without_repeated_uploads(
    here: StoreServer, source: Path, local: Path, tmp_path: Path, overwrite: bool
) -> None:
    name, work, more = f"killed-{overwrite}", tmp_path / "work", ("--overwrite",) * overwrite
    url = here.url(name)
    if overwrite:
        packer.build(source, url, **SMALL, **QUIET)
        before = download(url, tmp_path / "before")
    here.fail({"match": "PUT .*shard-00003", "kind": "503", "times": FOREVER})
    command = ("build", source, url, "--work", work, *WORDS, *more)

    def uploaded() -> bool:
        shard = f"{Layout(local).load().shards[0].name}.lmdb"
        return (
            shard in here.objects(name)
            and here.left() != [FOREVER]
            and not list(work.glob(".build/staging/*/shard-00000/*.lmdb*"))
        )

    stop(arguments(*command), here, uploaded, signal.SIGKILL, tmp_path)
    assert not any("sécret" in path.read_text("utf-8", "replace") for path in work.rglob("*.json*"))
    if overwrite:
        assert download(url, tmp_path / "old") == before
        with raises(UsageError, place=url):
            packer.build(source, url, work=work, **LARGE, **QUIET)
    else:
        assert "manifest.json" not in here.objects(name)
    with raises(UsageError, place=url):
        packer.build(source, url, work=tmp_path / "other", **LARGE, **QUIET)
    here.fail({"match": "PUT .*shard-00000", "kind": "403", "times": 1})
    run_packer(*command, env=here.env)
    assert here.left() == [1]
    here.fail()
    made = download(url, tmp_path / "back")
    assert here.objects(name).keys() == made.keys()
    assert made == files(local)
    assert not work.exists()


def test_a_name_in_a_store_is_never_used_for_other_contents(
    here: StoreServer, source: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ever, sent, put = here.url("replaced"), dict[str, bytes](), list[str](), Store.put
    monkeypatch.setattr(Store, "put", lambda store, name, data: (sent.append(name), put(store, name, data)))
    for number, options in enumerate((SMALL, LARGE, SMALL, LARGE)):
        sent.clear()
        packer.build(source, url, overwrite=True, **options, **QUIET)
        assert len(set(sent)) == len(sent)
        made = download(url, tmp_path / f"{number}")
        assert here.objects("replaced").keys() == made.keys()
        del made["manifest.json"]
        assert all(ever.setdefault(name, data) == data for name, data in made.items())
    assert download(url, tmp_path / "last") == files(local)
    run_packer("rejects", tmp_path / "3")
    shutil.copytree(source, tmp_path / "more")
    write_images(tmp_path / "more", ["b/new.png"])
    grown = packer.build(tmp_path / "more", tmp_path / "3", update=True, **LARGE, **QUIET)
    assert grown.manifest.samples == 13
    assert not packer.verify(tmp_path / "3", deep=True, progress=False).problems


def test_ctrl_c_ends_a_build_while_uploads_are_repeated(here: StoreServer, source: Path, tmp_path: Path) -> None:
    here.fail({"match": "PUT .*shard", "kind": "503", "times": FOREVER})
    command = arguments("build", source, here.url("interrupted"), *WORDS)
    ended = stop(command, here, lambda: here.left() != [FOREVER], signal.SIGINT, tmp_path)
    assert ended.returncode == 130
    assert (tmp_path / "interrupted.work/.build/plan.json").exists()


def test_a_refused_upload_ends_the_build_and_a_damaged_shard_is_written_again(
    here: StoreServer, source: Path, local: Path, tmp_path: Path
) -> None:
    url, work = here.url("refused"), tmp_path / "work"
    here.fail({"match": "PUT .*shard-00002", "kind": "403", "times": FOREVER})
    with raises(StoreError) as caught:
        packer.build(source, url, work=work, **LARGE, **QUIET)
    assert f"{url}/shard-00002" in caught.value.place
    assert "credentials" in caught.value.hint
    here.fail()
    (shard,) = work.glob(".build/staging/*/shard-00002/*.lmdb")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BuildError, match="SHA-256"):
        packer.build(source, url, work=work, **LARGE, **QUIET)
    packer.build(source, url, work=work, **LARGE, **QUIET)
    assert download(url, tmp_path / "back") == files(local)


def test_wrong_credentials_buckets_and_endpoints_are_reported_before_any_work(
    here: StoreServer, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here.fail({"match": "", "kind": "403", "times": FOREVER})
    assert main(["build", str(source), here.url("denied")]) == 1
    for method in ("PUT", "POST"):  # deletes
        here.fail({"match": f"{method} .*", "kind": "403", "times": FOREVER})
        assert main(["build", str(source), here.url("denied")]) == 1
    here.fail()
    assert main(["build", str(source), "s3://no-such-bucket/faces"]) == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("packer.jobs.upload._PROBE_S", 0.5)
    assert main(["build", str(source), here.url("denied")]) == 1
    said = capsys.readouterr().err
    assert said.count("credentials") == 3
    assert "check the endpoint" in said
    assert "the bucket does not exist" in said
    assert "packing" not in said


def test_other_objects_and_other_uploads_stay(here: StoreServer, source: Path, tmp_path: Path) -> None:
    here.put("mine/notes.txt", b"keep")
    for overwrite in (False, True):
        with raises(UsageError, place=here.url("mine")):
            packer.build(source, here.url("mine"), overwrite=overwrite, **LARGE, **QUIET)
    assert here.objects("mine") == {"notes.txt": 4}
    here.put("console/", b"")  # made by the web page of a store for a new folder
    packer.build(source, here.url("console"), **LARGE, **QUIET)
    here.put("console/.build/upload.json", json.dumps({"id": "1", "host": "elsewhere", "work": "/w"}).encode())
    with raises(UsageError, place=here.url("console")) as caught:
        packer.build(source, here.url("console"), **SMALL, **QUIET)
    assert "elsewhere" in caught.value.found
    here.put("console/shard-00077.lmdb", b"left over")
    packer.build(source, here.url("console"), overwrite=True, **SMALL, **QUIET)
    assert here.objects("console").keys() - {""} == download(here.url("console"), tmp_path / "back").keys()


def test_two_builds_cannot_end_in_one_place(here: StoreServer, source: Path) -> None:
    taken: list[packer.BuildResult] = []

    class Listener:
        def on_progress(self, progress: packer.Progress) -> None:
            if progress.stage == "writing" and not taken:
                taken.append(packer.build(source, url, work="second", overwrite=True, **SMALL, **QUIET))

        def on_message(self, line: str) -> None: ...

    url = here.url("contested")
    with pytest.raises(BuildError, match="another build has begun to upload"):
        packer.build(source, url, engine="inline", progress=Listener(), **LARGE)
    assert packer.build(source, url, work="third", **SMALL, **QUIET).found_finished


def test_a_build_of_rejects_alone_leaves_no_mark(here: StoreServer, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_bytes(b"no image")
    with pytest.raises(TooManyRejectsError):
        packer.build(tmp_path / "bad", here.url("nothing"), work=tmp_path / "work", **QUIET)
    assert here.objects("nothing") == {}
    assert len(read_jsonl(tmp_path / "work/.build/rejects.jsonl")) == 1


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("work", lambda source, url: packer.build(source, "local", work="w")),
        ("out", lambda source, url: packer.build(source, "https://127.0.0.1/x")),
        ("out", lambda source, url: packer.dry_run(source, "https://127.0.0.1/x")),
        ("out", lambda source, url: packer.Writer(url)),
        ("out", lambda source, url: packer.pack(np.zeros, [1], url, engine="inline")),
        ("dataset", lambda source, url: packer.add(url, source)),
    ],
)
def test_what_works_on_local_folders_only_is_refused(
    here: StoreServer, source: Path, option: str, call: Callable[[Path, str], Any]
) -> None:
    with raises(UsageError, option=option):
        call(source, here.url("refused-calls"))
    assert here.objects("refused-calls") == {}
    assert list(Path().iterdir()) == []


def test_a_dry_run_writes_nothing(here: StoreServer, source: Path) -> None:
    assert packer.dry_run(source, here.url("dry"), progress=False).fits
    assert here.objects("dry") == {}
    assert list(Path().iterdir()) == []


def test_unfinished_parts_of_a_killed_build_are_deleted_when_it_resumes(
    here: StoreServer, source: Path, local: Path, tmp_path: Path
) -> None:
    """Nobody sees them in the bucket, and they are paid for. Those of others are left."""
    url, work = here.url("parts"), tmp_path / "work"
    here.fail({"match": "PUT .*shard-00003", "kind": "403", "times": FOREVER})
    with raises(StoreError):
        packer.build(source, url, work=work, **LARGE, **QUIET)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    client = Session().create_client("s3", endpoint_url=here.address, **keys)
    for name in ("parts/shard-00003.lmdb", "parts/notes.bin", "other/shard-00003.lmdb"):
        client.create_multipart_upload(Bucket=BUCKET, Key=name)
    here.fail()
    packer.build(source, url, work=work, **LARGE, **QUIET)
    left = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert sorted(one["Key"] for one in left) == ["other/shard-00003.lmdb", "parts/notes.bin"]
    assert download(url, tmp_path / "back") == files(local)
