"""``packer copy``: datasets between folders and an S3 server, whole, byte for byte, or not readable at all."""

import json
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.command import arguments, file_of, run_packer
from support.errors import raises
from support.listeners import Listener
from support.packed_files import files_below, read_all, write_faces
from support.stores import StoreServer

from packer import build, copy, describe, verify
from packer.cli import main
from packer.jobs import transfers
from packer.packed.copy.copy_targets import DatasetPlace, Folder
from shardspec.entries import FileEntry
from shardspec.errors import MissingDependencyError, ShardCorruptError, StoreError, UsageError
from shardspec.layout import Layout
from shardspec.stores import Store, store

SILENT: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in three shards, changed by no test."""
    root = tmp_path_factory.mktemp("copy") / "faces"
    write_faces(root, 12)
    return root


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a field ``split`` in twelve shards of one sample, changed by no test."""
    root = tmp_path_factory.mktemp("copy") / "official"
    rows = [
        {"image": np.full((8, 8, 3), number, np.uint8), "number": number, "split": "train" if number < 6 else "test"}
        for number in range(12)
    ]
    build(rows, root, shard_size=1, **QUIET)
    return root


@pytest.mark.parametrize("format", ["npy", "webdataset"])
def test_a_dataset_is_copied_to_a_bucket_and_back(server: StoreServer, tmp_path: Path, format: str) -> None:
    write_faces(tmp_path / "faces", 12, format)
    url = server.url(f"ünd/{format} 1+2%")
    to = json.loads(run_packer("copy", tmp_path / "faces", url, "--json", env=server.env).stdout)
    assert to["files_copied"] == len(files_below(tmp_path / "faces")) - 1
    run_packer("copy", url, tmp_path / "back", env=server.env)
    assert files_below(tmp_path / "back") == files_below(tmp_path / "faces")
    again = json.loads(run_packer("copy", url, tmp_path / "back", "--json", env=server.env).stdout)
    assert (again["files_copied"], again["files_kept"]) == (0, to["files_copied"])
    run_packer("copy", url, server.url(f"{format}/second"), env=server.env)
    run_packer("verify", tmp_path / "back")


def test_a_dataset_is_fetched_from_a_web_server_that_lists_nothing(faces: Path, tmp_path: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(faces.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web, ThreadPoolExecutor(1) as thread:
        served = thread.submit(web.serve_forever)
        url = f"http://127.0.0.1:{web.server_port}"
        run_packer("copy", f"{url}/faces", tmp_path / "copy")
        assert run_packer("copy", f"{url}/none", tmp_path / "none", expect=None).returncode == 2
        web.shutdown()
        served.result()
    assert files_below(tmp_path / "copy") == files_below(faces)


def test_a_folder_is_copied_and_its_files_are_checked(faces: Path, tmp_path: Path) -> None:
    assert main(["copy", f"file://{faces}", f"file://{tmp_path}/%2520", "--quiet"]) == 0
    (tmp_path / "%20").rename(tmp_path / "copy")
    assert files_below(tmp_path / "copy") == files_below(faces)
    shard = next((tmp_path / "copy").glob("shard*"))
    changed = shard if shard.is_file() else next(path for path in shard.iterdir() if path.is_file())
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    with raises(ShardCorruptError, place=str(changed)):
        copy(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "other/manifest.json").exists()
    assert copy(faces, tmp_path / "copy").files_copied == 1  # the damaged file alone
    assert files_below(tmp_path / "copy") == files_below(faces)


def test_passing_faults_are_survived_and_bytes_are_right(here: StoreServer, faces: Path, tmp_path: Path) -> None:
    url = here.url("faults")
    shards = [f"shard.*{number}" for number in range(3)]
    here.fail(
        {"match": "PUT .*shard.*0", "kind": "503", "times": 2},
        {"match": "PUT .*shard.*1", "kind": "reset", "times": 1},
        {"match": "PUT .*index", "kind": "500", "times": 1},
    )
    listener = Listener()
    copy(faces, url, progress=listener)
    assert here.left() == [0, 0, 0]
    assert listener.stages() == [("copying", "files")]
    assert listener.heard[-1].bytes == sum(entry.bytes for entry in Layout(faces).load().entries)
    kinds = [(f"GET .*{shard}", kind) for shard, kind in zip(shards, ("cut", "flip", "503"), strict=True)]
    here.fail(*({"match": match, "kind": kind, "times": 1} for match, kind in kinds))
    copy(url, tmp_path / "back")
    assert here.left() == [0, 0, 0]
    assert files_below(tmp_path / "back") == files_below(faces)


def test_a_server_that_ignores_ranges_is_survived(here: StoreServer, faces: Path, tmp_path: Path) -> None:
    """rclone's server answers a request for the rest of a file with the whole file."""
    copy(faces, here.url("whole"))
    shard = "GET .*shard.*1.lmdb$"
    here.fail(
        {"match": shard, "kind": "cut", "times": 1},
        {"match": shard, "kind": "whole", "times": 1},
        {"match": shard, "kind": "cut", "times": 1},
        {"match": shard, "kind": "whole", "times": 1},
    )
    copy(here.url("whole"), tmp_path / "back")
    assert here.left() == [0, 0, 0, 0]
    assert files_below(tmp_path / "back") == files_below(faces)


@pytest.mark.parametrize("span", [None, (5, (12 << 20) - 7)])
def test_a_transfer_that_fails_after_the_time_for_retries_continues(
    here: StoreServer, span: tuple[int, int] | None
) -> None:
    data = np.random.default_rng(0).bytes(12 << 20)
    name = "long" if span is None else "long-part"
    here.put(name, data)
    here.fail({"match": f"GET .*/{name}", "kind": "cut", "times": 1})
    _, chunks = Store(here.url(""), patience_s=0.0).get(name, span)
    assert b"".join(chunks) == (data if span is None else data[slice(*span)])
    assert here.left() == [0]


def test_a_store_that_keeps_failing_is_named_and_the_next_call_resumes(
    here: StoreServer, faces: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(transfers, "_THREADS", 1)  # the first shard is there before the second fails
    url = here.url("failing")
    copy(faces, url)
    here.fail({"match": "GET .*shard.*1", "kind": "flip", "times": 99})
    with raises(ShardCorruptError) as caught:
        copy(url, tmp_path / "back")
    assert url in caught.value.place
    here.fail({"match": "GET .*shard.*1", "kind": "403", "times": 99})
    with raises(StoreError) as refused:
        copy(url, tmp_path / "back")
    assert url in refused.value.place
    assert "credentials" in refused.value.hint
    assert "Debug" not in str(refused.value)
    assert not (tmp_path / "back/manifest.json").exists()
    here.fail()
    assert copy(url, tmp_path / "back").files_kept > 0
    assert files_below(tmp_path / "back") == files_below(faces)


def test_missing_and_slow_answers_are_waited_for(
    here: StoreServer, faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_READ_TIMEOUT_S", 1)
    here.fail({"match": "PUT .*shard.*0.lmdb$", "kind": "hang", "times": 1})
    copy(faces, here.url("slow"))
    here.fail(
        {"match": "GET .*shard.*1.lmdb$", "kind": "hang", "times": 1},
        {"match": "GET .*shard.*2.lmdb$", "kind": "trickle", "times": 1},
    )
    copy(here.url("slow"), tmp_path / "back")
    assert here.left() == [0, 0]
    assert files_below(tmp_path / "back") == files_below(faces)


@pytest.mark.parametrize("uploads", [True, False])
def test_credentials_that_expire_are_renewed_and_the_copy_resumed(
    here: StoreServer, faces: Path, tmp_path: Path, uploads: bool
) -> None:
    url, back = here.url(f"expired-{uploads}"), tmp_path / "back"
    if not uploads:
        copy(faces, url)
    here.fail({"match": ("PUT" if uploads else "GET") + " .*shard.*2.lmdb$", "kind": "expired", "times": 99})
    with raises(StoreError, hint="renew the credentials, then repeat the command to resume"):
        copy(*((faces, url) if uploads else (url, back)))
    assert here.left() == [98]
    here.fail()
    assert copy(*((faces, url) if uploads else (url, back))).files_kept > 0
    copy(url, back)
    assert files_below(back) == files_below(faces)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_a_full_disk_is_named_and_the_copy_resumed(server: StoreServer, faces: Path, tmp_path: Path) -> None:
    url, back = server.url("full"), tmp_path / "back"
    run_packer("copy", faces, url, env=server.env)
    full = ("prlimit", "--fsize=20000")
    failed = run_packer("copy", url, back, env=server.env, before=full, expect=1)
    assert f"{back}: cannot be written: File too large" in failed.stderr
    assert not Layout(back).manifest.exists()
    run_packer("copy", url, back, env=server.env)
    assert files_below(back) == files_below(faces)
    env = {**server.env, "TMPDIR": str(tmp_path)}
    failed = run_packer("copy", url, f"{url}-copy", env=env, before=full, expect=1)
    assert f"{tmp_path}: cannot be written" in failed.stderr
    assert "manifest.json" not in server.objects("full-copy")


@pytest.mark.parametrize("uploads", [True, False])
def test_a_killed_copy_cannot_be_opened_and_is_resumed(
    server: StoreServer, faces: Path, tmp_path: Path, uploads: bool
) -> None:
    url, back = server.url(f"killed-{uploads}"), tmp_path / "back"
    if not uploads:
        run_packer("copy", faces, url, env=server.env)
    command = arguments("copy", *((faces, url) if uploads else (url, back)))
    server.fail({"match": ("PUT" if uploads else "GET") + " .*shard.*2", "kind": "503", "times": 10**6})
    with subprocess.Popen(command, env=server.env, stderr=subprocess.DEVNULL) as process:
        while server.left() == [10**6]:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    server.fail()
    if uploads:
        assert "manifest.json" not in server.objects(f"killed-{uploads}")
        assert run_packer("copy", url, back, env=server.env, expect=None).returncode == 2
    else:
        assert not Layout(back).manifest.exists()
    run_packer("copy", *((faces, url) if uploads else (url, back)), env=server.env)
    run_packer("copy", url, back, env=server.env)
    assert files_below(back) == files_below(faces)


@pytest.mark.parametrize("uploads", [True, False])
def test_ctrl_c_ends_a_copy_while_requests_are_repeated(
    server: StoreServer, faces: Path, tmp_path: Path, uploads: bool
) -> None:
    url = server.url(f"interrupted-{uploads}")
    if not uploads:
        run_packer("copy", faces, url, env=server.env)
    server.fail({"match": ("PUT" if uploads else "GET") + " .*shard.*2", "kind": "503", "times": 10**6})
    command = arguments("copy", *((faces, url) if uploads else (url, tmp_path / "back")))
    with subprocess.Popen(command, env=server.env, stderr=subprocess.DEVNULL) as process:
        while server.left() == [10**6]:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    server.fail()


def numbers(root: Path) -> list[int]:
    """The field ``number`` of a dataset that is right in every byte and value."""
    assert verify(root, deep=True, progress=False).problems == ()
    found: list[int] = read_all(root)["number"].tolist()
    return found


def test_a_part_is_a_complete_dataset(here: StoreServer, official: Path, tmp_path: Path) -> None:
    call = ("copy", official, tmp_path / "part", "--where", "number < 9", "--split", "test")
    assert json.loads(run_packer(*call, "--json").stdout)["samples"] == 3
    assert numbers(tmp_path / "part") == [6, 7, 8]
    assert "0 files copied" in run_packer(*call).stdout
    index = file_of(tmp_path / "part", "index/number.npy")
    index.write_bytes(b"?")
    with raises(ShardCorruptError, place=str(index)):
        copy(official, tmp_path / "part", where="number < 9", split="test")
    url = here.url("part")
    for _ in range(2):
        assert copy(official, url, split="train", overwrite=True, **SILENT).manifest.samples == 6
    with raises(UsageError, place=url):
        copy(official, url, split="test", **SILENT)
    with raises(UsageError, place=url):
        copy(official, url, **SILENT)
    copy(url, tmp_path / "back", **SILENT)
    assert numbers(tmp_path / "back") == list(range(6))
    assert copy(official, url, split="train", **SILENT).files_copied == 0


def test_only_needed_shards_are_fetched_from_a_store(
    here: StoreServer, official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are in the index; a text is in every shard."""
    monkeypatch.setenv("FACEPACK_CACHE", str(tmp_path / "cache"))
    url = here.url("official")
    copy(official, url, **SILENT)
    here.fail({"match": "GET .*shard-0000[0-46-9]|GET .*shard-0001", "kind": "403", "times": 99})
    copy(url, tmp_path / "one", where="number == 5", **SILENT)
    assert numbers(tmp_path / "one") == [5]
    with pytest.raises(StoreError):
        copy(url, tmp_path / "train", split="train", **SILENT)
    assert not (tmp_path / "train").exists()
    here.fail({"match": "GET .*shard-00005|GET .*index/", "kind": "403", "times": 99})  # they are in the cache
    copy(url, tmp_path / "train", split="train", **SILENT)
    assert numbers(tmp_path / "train") == list(range(6))
    copy(official, tmp_path / "other", split="train", **SILENT)
    assert Layout(tmp_path / "train").load().digest == Layout(tmp_path / "other").load().digest
    here.fail()
    copy(url, here.url("last"), where="number > 9", **SILENT)
    copy(here.url("last"), tmp_path / "last", **SILENT)
    assert numbers(tmp_path / "last") == [10, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "last", "one", "other", "train"]


@pytest.mark.parametrize(
    ("choice", "option", "found"),
    [
        ({"split": "val"}, "split", "'val'"),
        ({"where": "number > 50"}, "where", "none of 12 selected"),
        ({"where": "numbers > 5"}, "where", "'numbers'; did you mean 'number'?"),
        ({"where": 5}, "where", "5"),
    ],
)
def test_a_copy_of_no_samples_is_refused(
    official: Path, tmp_path: Path, choice: dict[str, Any], option: str, found: str
) -> None:
    with raises(UsageError, option=option, found=found):
        copy(official, tmp_path / "out", **choice)
    assert not (tmp_path / "out").exists()


def test_a_dataset_without_splits_has_no_part_of_that_name(faces: Path, tmp_path: Path) -> None:
    with raises(UsageError, option="split", found=f"none in {faces}"):
        copy(faces, tmp_path / "out", split="train")


def test_the_next_copy_deletes_temporary_folders_of_killed_ones(
    here: StoreServer, official: Path, tmp_path: Path
) -> None:
    command = arguments("copy", official, here.url("killed-part"), "--where", "number < 2")
    env = {**here.env, "TMPDIR": str(tmp_path)}
    here.fail({"match": "PUT .*shard", "kind": "503", "times": 10**6})
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        while here.left() == [10**6]:
            assert process.poll() is None
        process.kill()
    here.fail()
    assert len(list(tmp_path.iterdir())) == 1
    subprocess.run(command, env=env, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "copy"])
def test_a_copy_inside_the_dataset_is_refused(faces: Path, inside: str) -> None:
    with raises(UsageError, option="out"):
        copy(faces, faces / inside)
    assert not (faces / "copy").exists()


def test_another_dataset_is_replaced_only_on_request(here: StoreServer, faces: Path, tmp_path: Path) -> None:
    write_faces(tmp_path / "small", 3)
    copy(tmp_path / "small", tmp_path / "damaged")
    (tmp_path / "damaged" / Layout(tmp_path / "damaged").load().entries[-1].name).write_bytes(b"")
    for target in (here.url("replaced"), str(tmp_path / "replaced")):
        copy(faces, target)
        with raises(UsageError, place=target):
            copy(tmp_path / "small", target)
        with pytest.raises(ShardCorruptError):
            copy(tmp_path / "damaged", target, overwrite=True)
        copy(tmp_path / "small", target, overwrite=True)
    assert files_below(tmp_path / "replaced") == files_below(tmp_path / "small")
    assert here.objects("replaced").keys() == files_below(tmp_path / "small").keys()


def test_the_old_dataset_stays_readable_until_the_copy_is_complete(
    here: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("old", "new")):
        build([{"image": np.full((8, 8, 3), 3 * number + n, np.uint8)} for n in range(3)], tmp_path / name, **QUIET)
    write = Folder.write

    def checked(place: Folder, entry: FileEntry, source: DatasetPlace) -> None:
        write(place, entry, source)
        assert verify(place.root, deep=True, progress=False).digest == Layout(tmp_path / "old").load().digest

    for target in (here.url("steps"), str(tmp_path / "steps")):
        copy(tmp_path / "old", target)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "write", checked)
            copy(tmp_path / "new", target, overwrite=True)
        copy(target, tmp_path / "back", overwrite=True)
        assert files_below(tmp_path / "back") == files_below(tmp_path / "new")
    assert here.objects("steps").keys() == files_below(tmp_path / "new").keys()


def test_a_manifest_of_the_same_files_replaces_another(here: StoreServer, tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 12)
    for target in (here.url("described"), str(tmp_path / "copy")):
        copy(tmp_path / "faces", target)
        describe(tmp_path / "faces", title=target)
        again = copy(tmp_path / "faces", target)
        assert (again.files_copied, again.manifest.about.title) == (0, target)
        copy(target, tmp_path / "back", overwrite=True)
        assert files_below(tmp_path / "back") == files_below(tmp_path / "faces")


def test_an_object_that_is_too_long_is_not_read_to_its_end(here: StoreServer, faces: Path, tmp_path: Path) -> None:
    copy(faces, here.url("long"))
    Store(here.url("long")).put(Layout(faces).load().entries[0].name, bytes(2**25))
    with pytest.raises(ShardCorruptError) as caught:
        copy(here.url("long"), tmp_path / "back")
    assert f"{2**25} bytes" not in str(caught.value)


def test_files_of_the_user_are_neither_deleted_nor_mixed_with_a_dataset(
    here: StoreServer, faces: Path, tmp_path: Path
) -> None:
    here.put("mine/notes.txt", b"keep")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    for target in (here.url("mine"), str(tmp_path / "mine")):
        with raises(UsageError, place=target):
            copy(faces, target, overwrite=True)
        with raises(UsageError, place=target):
            copy(faces, target, where="frame < 9", overwrite=True)
    copy(faces, here.url("theirs"))
    with raises(UsageError, option="where"):
        copy(here.url("theirs"), tmp_path / "other", where="frames < 9")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert here.objects("mine") == {"notes.txt": 4}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "url",
    ["s3://", "ftp://host/x", "s3://key:secret@bucket/x", "https://host/x?token=secret"],
)
def test_urls_that_cannot_be_used_are_refused_without_their_secrets(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        copy(url, tmp_path / "out")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["s3:/bucket/x", "hf:/datasets/org/name", Path("s3://bucket/x")])
def test_a_url_without_its_second_slash_is_not_a_folder(faces: Path, tmp_path: Path, place: str | Path) -> None:
    expected = "a path, or a URL with '://' given as text"
    with raises(UsageError, option="dataset", expected=expected):
        copy(place, tmp_path / "out")
    with raises(UsageError, option="out", expected=expected):
        copy(faces, place)


def test_a_bucket_that_does_not_exist_is_named(here: StoreServer, faces: Path, tmp_path: Path) -> None:
    for source, target in ((faces, "s3://no-such-bucket/x"), ("s3://no-such-bucket/x", tmp_path / "out")):
        with raises(StoreError, hint="check its name") as caught:
            copy(source, target)
        assert "the bucket does not exist" in str(caught.value)


def test_a_web_server_cannot_be_a_target(faces: Path) -> None:
    with raises(UsageError, option="out"):
        copy(faces, "https://127.0.0.1/x")


def test_credentials_come_from_a_profile_and_appear_nowhere(server: StoreServer, faces: Path, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = AKIA1\naws_secret_access_key = s3cr3t\n")
    (tmp_path / "config").write_text(f"[profile lab]\nregion = eu-west-1\nendpoint_url = {server.address}\n")
    env = {name: value for name, value in server.env.items() if not name.startswith("AWS_")}
    files_of_aws = {
        name: str(tmp_path / file)
        for name, file in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    }
    done = run_packer("copy", faces, server.url("profile"), env={**env, "AWS_PROFILE": "lab", **files_of_aws})
    assert "s3cr3t" not in done.stdout + done.stderr
    assert "manifest.json" in server.objects("profile")


def test_a_store_is_not_pickled_and_does_not_show_its_secrets(here: StoreServer) -> None:
    import pickle

    store = Store(here.url("x"), {"secret_access_key": "s3cr3t"})
    assert "s3cr3t" not in repr(store)
    with pytest.raises(TypeError):
        pickle.dumps(store)


def test_the_extra_is_named_where_the_client_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(MissingDependencyError, match="remote"):
        copy("s3://bucket/x", tmp_path / "out")
