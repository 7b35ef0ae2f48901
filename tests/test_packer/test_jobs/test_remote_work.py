"""``packer build SOURCE s3://… --work s3://…``: pieces, plan, journal and verdicts are objects, and workers write shards."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.builds import QUIET, TESTS, write_images
from support.command import arguments, environment, run_packer
from support.errors import raises
from support.sloppy import find_server, sloppy_server
from support.steps import LOG
from support.stores import StoreServer
from test_packer.test_jobs.test_upload import FOREVER, download, files, stop

import packer
from packer.builds.planning.plan import TASK_ITEMS
from packer.cli import main
from packer.jobs.mirror import RemoteMirror
from packer.sources.base import Listing
from packer.sources.folders.folder import FolderSource
from packer.workspace import Workspace
from packer.workspace.remote import RemoteFiles
from shardspec.errors import (
    BuildError,
    BuildLockedError,
    ObjectDeniedError,
    ResumeMismatchError,
    ShardspecError,
    TooManyRejectsError,
    UsageError,
)
from shardspec.stores import Store
from shardspec.stores.store import StoredObject

SETTINGS: dict[str, Any] = {"size": 120, "resize": "exact", "encode": "png", "shard_size": "64KiB"}
WORDS = ("--size", 120, "--resize", "exact", "--encode", "png", "--shard-size", "64KiB", "--label-from", "folder")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks."""
    names = [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(3 * TASK_ITEMS - 2)]
    return write_images(tmp_path_factory.mktemp("remote") / "in", names)


@pytest.fixture(scope="module")
def local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build with `WORDS` makes in a folder."""
    out = tmp_path_factory.mktemp("remote") / "local"
    packer.build(source, out, **SETTINGS, label_from="folder", **QUIET)
    return files(out)


@pytest.mark.parametrize(
    "more",
    [{"format": "lmdb"}, {"format": "npy"}, {"format": "webdataset", "shuffle": 3}],
    ids=lambda more: more["format"],
)
def test_the_dataset_is_that_of_a_folder(here: StoreServer, source: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    url, work = here.url(f"same-{more['format']}"), f"work-{more['format']}"
    options = {**SETTINGS, **more, "label_from": "folder"}
    packer.build(source, tmp_path / "local", **options, **QUIET)
    packer.build(source, url, work=here.url(work), **options, **QUIET)
    assert download(url, tmp_path / "back") == files(tmp_path / "local")
    assert here.objects(work) == {}
    assert ".build/upload.json" not in here.objects(f"same-{more['format']}")
    assert list(Path().iterdir()) == []
    assert packer.build(source, url, work=here.url(work), **options, **QUIET).found_finished


def test_a_killed_build_resumes_without_its_folder_on_any_host(
    here: StoreServer, source: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    url, work = here.url("killed"), "killed-work"
    command = ("build", source, url, "--work", here.url(work), "--workers", 2, *WORDS)
    here.fail({"match": "PUT .*part-000002", "kind": "503", "times": FOREVER})
    pieces = ("part-000000", "part-000001")
    stop(
        arguments(*command),
        here,
        lambda: all(any(piece in name for name in here.objects(work)) for piece in pieces),
        signal.SIGKILL,
        tmp_path,
    )
    assert "manifest.json" not in here.objects("killed")
    holder = {"name": "other", "host": "elsewhere", "pid": 1, "lease_s": 1.0, "beat": 4}
    Store(here.url(work)).put("holder.json", json.dumps(holder).encode())
    here.fail(*({"match": f"PUT .*{piece}", "kind": "403", "times": 1} for piece in pieces))
    said = run_packer(*command, env=here.env).stderr
    assert "elsewhere" in said
    assert here.left() == [1, 1]
    here.fail()
    assert download(url, tmp_path / "back") == local
    assert here.objects(work) == {}


def test_an_interrupted_build_does_not_wait_for_a_store_that_is_away(
    here: StoreServer, source: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    url, work = here.url("interrupted"), "interrupted-work"
    command = ("build", source, url, "--work", here.url(work), "--workers", 2, *WORDS)
    here.fail({"match": "PUT .*part-000002", "kind": "503", "times": FOREVER})

    def away() -> bool:
        if not any("/part-" in name for name in here.objects(work)):
            return False
        here.fail({"match": "", "kind": "503", "times": FOREVER})
        return True

    assert stop(arguments(*command), here, away, signal.SIGINT, tmp_path).returncode == 130
    here.fail()
    run_packer(*command, env=here.env)
    assert download(url, tmp_path / "back") == local


def test_the_status_of_a_build_is_that_of_its_objects(here: StoreServer, source: Path, tmp_path: Path) -> None:
    url, work = here.url("status"), here.url("status-work")
    for place in (url, work):
        with raises(UsageError, place=place, found="neither"):
            packer.status(place)
    here.fail({"match": "PUT .*part-000002", "kind": "503", "times": FOREVER})
    stop(
        arguments("build", source, url, "--work", work, "--workers", 2, *WORDS),
        here,
        lambda: sum("/part-" in name for name in here.objects("status-work")) == 2,
        signal.SIGKILL,
        tmp_path,
    )
    before = here.objects("status-work")
    for place in (url, work):
        found = packer.status(place)
        assert (found.path, found.stage, found.running) == (place, "packing", False)
        assert (found.items, found.done, found.tasks, found.tasks_done) == (3 * TASK_ITEMS - 2, 2 * TASK_ITEMS, 3, 2)
        assert (found.samples, found.rejected) == (2 * TASK_ITEMS, 0)
        assert "packer build" in found.held_by
    assert "no process is at work" in run_packer("status", url, env=here.env).stdout
    here.fail({"match": "GET .*journal/", "kind": "404", "times": 1})  # as if the build had just ended
    assert packer.status(url).tasks_done == 2
    assert here.left() == [0]
    holder = {"name": "other", "host": "elsewhere", "node": "elsewhere", "pid": 7, "lease_s": 3.0, "beat": 4}
    store, over = Store(work), threading.Event()

    def renew() -> None:
        while not over.wait(0.2):
            holder["beat"] = int(str(holder["beat"])) + 1
            store.put("holder.json", json.dumps(holder).encode())

    store.put("holder.json", json.dumps(holder).encode())
    assert packer.status(url).running is False
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        assert "at work: process 7 on elsewhere" in run_packer("status", work, env=here.env).stdout
    finally:
        over.set()
        thread.join()
    assert here.objects("status-work").keys() == before.keys()
    store.delete(["holder.json"])
    here.fail()
    packer.build(source, url, work=work, **SETTINGS, label_from="folder", **QUIET)
    assert (packer.status(url).stage, packer.status(url).samples) == ("finished", 3 * TASK_ITEMS - 2)
    with raises(UsageError, place=work):
        packer.status(work)


def test_the_status_of_an_upload_from_a_folder_is_in_the_folder(here: StoreServer, source: Path) -> None:
    here.fail({"match": "PUT .*shard-", "kind": "403", "times": FOREVER})
    with pytest.raises(ShardspecError, match="credentials"):
        packer.build(source, here.url("folder"), work="there", **SETTINGS, **QUIET)
    here.fail()
    with pytest.raises(UsageError, match=re.escape(str(Path("there").absolute()))):
        packer.status(here.url("folder"))


def test_shards_that_workers_uploaded_are_not_written_again(
    here: StoreServer, source: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    url, work = here.url("late"), "late-work"
    command = ("build", source, url, "--work", here.url(work), "--workers", 2, *WORDS)
    here.fail({"match": "PUT .*shard-00003", "kind": "503", "times": FOREVER})

    def recorded() -> bool:
        return any("shard-00000/record.json" in name for name in here.objects(work)) and here.left() != [FOREVER]

    stop(arguments(*command), here, recorded, signal.SIGKILL, tmp_path)
    here.fail({"match": "PUT .*(shard-00000|part-)", "kind": "403", "times": 1})
    run_packer(*command, env=here.env)
    assert here.left() == [1]
    here.fail()
    assert download(url, tmp_path / "back") == local
    assert here.objects(work) == {}


@pytest.mark.stores
def test_a_server_that_sends_whole_objects_for_their_ends(
    source: Path, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaks_allowed: None
) -> None:
    if find_server("rclone") is None:
        pytest.skip("rclone is not installed")
    with sloppy_server("rclone", tmp_path / "server") as env:
        words = ("build", source, "s3://data/out", "--work", "s3://data/work", "--workers", 2, *WORDS)
        run_packer(*words, env=env)
        for name in env.keys() - os.environ.keys():
            monkeypatch.setenv(name, env[name])
        assert download("s3://data/out", tmp_path / "back") == local
        assert not [path for path in (tmp_path / "server/data/work").rglob("*") if path.is_file()]


def test_one_build_at_a_time(here: StoreServer, source: Path) -> None:
    url, options = here.url("contested"), {**SETTINGS, "work": here.url("contested-work")}

    class Listener:
        refused = False

        def on_progress(self, progress: packer.Progress) -> None:
            if progress.stage == "packing" and not self.refused:
                self.refused = True
                with pytest.raises(BuildLockedError, match="another build is at work"):
                    packer.build(source, url, **options, **QUIET)

        def on_message(self, line: str) -> None: ...

    listener = Listener()
    packer.build(source, url, **options, engine="inline", progress=listener)
    assert listener.refused
    assert here.objects("contested-work") == {}


def test_of_two_builds_that_begin_at_once_one_stops_before_any_work(here: StoreServer, tmp_path: Path) -> None:
    other = json.dumps({"name": "other", "host": "elsewhere"}).encode()

    class Contested(Store):
        def list(self) -> Iterator[StoredObject]:
            self.put("holder.json", other)
            return super().list()

    work = Contested(here.url("at-once-work"))
    space = Workspace(tmp_path, remote=RemoteFiles(work, Store(here.url("at-once"))))
    with pytest.raises(BuildLockedError), RemoteMirror(space, print):
        pass
    assert work.read("holder.json", 1000) == other


def test_of_many_builds_that_begin_at_once_one_works(here: StoreServer, tmp_path: Path) -> None:
    url, begin, end = here.url("many"), threading.Barrier(12, timeout=60), threading.Barrier(12, timeout=60)
    ended = {"name": "ended", "host": "elsewhere", "ended": True}

    def enter(number: int) -> bool:
        space = Workspace(tmp_path / str(number), remote=RemoteFiles(Store(url), Store(here.url("many-out"))))
        space.root.mkdir()
        begin.wait()
        with suppress(BuildLockedError), RemoteMirror(space, print):
            end.wait()
            return True
        end.wait()
        return False

    for number, before in enumerate((None, json.dumps(ended).encode(), b"damaged")):
        if before is not None:
            Store(url).put("holder.json", before)
        with ThreadPoolExecutor(12) as threads:
            assert sum(threads.map(enter, range(12 * number, 12 * number + 12))) == 1


@pytest.mark.parametrize("kind", ["unconditional", "501"])
def test_a_lease_at_a_store_without_conditional_writes(here: StoreServer, tmp_path: Path, kind: str) -> None:
    work = Store(here.url(f"lease-{kind}"), patience_s=1)
    space = Workspace(tmp_path, remote=RemoteFiles(work, Store(here.url("lease-out"))))
    here.fail({"match": "PUT .*holder", "kind": kind, "times": FOREVER})
    with RemoteMirror(space, print), pytest.raises(BuildLockedError), RemoteMirror(space, print):
        pass
    here.fail()
    assert here.objects(f"lease-{kind}") == {}


def test_a_lease_whose_write_is_not_answered(here: StoreServer, tmp_path: Path) -> None:
    work = Store(here.url("unanswered"), {"client_options": {"timeout": "2s"}})
    here.fail({"match": "PUT .*holder", "kind": "hang", "times": 1})
    with RemoteMirror(Workspace(tmp_path, remote=RemoteFiles(work, Store(here.url("lease-out")))), print):
        assert here.left() == [0]


def test_a_lease_at_a_store_with_two_etags_for_an_object_is_asked_for_now_and_then(
    here: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ambiguous(Store):
        refused = 0

        def put_if(self, name: str, content: bytes, etag: str | None) -> bool:
            self.refused += self.refused < 3
            return self.refused >= 3 and super().put_if(name, content, etag)

    pauses: list[float] = []
    monkeypatch.setattr("packer.jobs.mirror.time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    work = Ambiguous(here.url("ambiguous"))
    with RemoteMirror(Workspace(tmp_path, remote=RemoteFiles(work, Store(here.url("lease-out")))), print):
        assert len(pauses) == 2


def test_a_call_that_could_not_release_its_lease_can_be_repeated(here: StoreServer, source: Path) -> None:
    url, options = here.url("unreleased"), {**SETTINGS, **QUIET, "work": here.url("unreleased-work")}
    writing = "^(PUT|POST|DELETE) "
    here.fail({"match": writing, "kind": "whole", "times": 8}, {"match": writing, "kind": "403", "times": FOREVER})
    with pytest.raises(ShardspecError, match="credentials"):
        packer.build(source, url, **options)
    here.fail()
    assert "holder.json" in here.objects("unreleased-work")
    packer.build(source, url, **options)
    assert here.objects("unreleased-work") == {}


def test_an_item_that_kills_is_rejected_as_on_one_disk(here: StoreServer, tmp_path: Path) -> None:
    few = write_images(tmp_path / "few", ["a/0.png", "a/1.png", "a/bad.png"])
    steps = ("--size", 16, "--steps", "decode,resize,support.steps:kill_itself", "--max-rejects", "1.0")
    env = {**here.env, **environment(python_path=TESTS, **{LOG: str(tmp_path / "log")}), **here.variables}
    run_packer("build", few, tmp_path / "one", *steps, env=env)
    run_packer("build", few, here.url("kills"), "--work", here.url("kills-work"), *steps, env=env)
    assert download(here.url("kills"), tmp_path / "back") == files(tmp_path / "one")
    assert here.objects("kills-work") == {}


def test_reasons_stay_if_nothing_was_packed(here: StoreServer, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(TooManyRejectsError, match="nothing-work/rejects"):
            packer.build(tmp_path / "bad", here.url("nothing"), work=here.url("nothing-work"), **QUIET)
        assert here.objects("nothing") == {}
        assert here.objects("nothing-work").keys() == {"rejects.jsonl"}


def test_another_build_is_refused_and_keeps_the_pieces(here: StoreServer, source: Path, tmp_path: Path) -> None:
    work, options = here.url("other-work"), {**SETTINGS, **QUIET}
    here.fail({"match": "PUT .*shard-", "kind": "403", "times": FOREVER})
    with pytest.raises(ShardspecError, match="credentials"):
        packer.build(source, here.url("other"), work=work, **options)
    before = here.objects("other-work").keys()
    assert any("/part-" in name for name in before)
    with pytest.raises(ResumeMismatchError, match="size"):
        packer.build(source, here.url("other"), work=work, **{**options, "size": 100})
    assert here.objects("other-work").keys() >= {name for name in before if name != "holder.json"}
    here.fail()
    packer.build(source, here.url("other"), work=work, overwrite=True, **{**options, "size": 100})
    packer.build(source, tmp_path / "local", **{**options, "size": 100})
    assert download(here.url("other"), tmp_path / "back") == files(tmp_path / "local")
    assert here.objects("other-work") == {}


def test_a_dataset_that_appears_while_the_source_is_listed_is_refused(
    here: StoreServer, source: Path, tmp_path: Path
) -> None:
    url, work = here.url("meanwhile"), here.url("meanwhile-work")

    class Listed(FolderSource):
        def list_items(self, label_from: str, path_column: str) -> Listing:
            packer.build(source, url, work=work, **SETTINGS, **QUIET)
            return super().list_items(label_from, path_column)

    with raises(UsageError, place=url):
        packer.build(Listed(source), url, work=work, **{**SETTINGS, **QUIET, "size": 100})
    packer.build(source, tmp_path / "local", **SETTINGS, **QUIET)
    assert download(url, tmp_path / "back") == files(tmp_path / "local")
    assert packer.build(Listed(source), url, work=work, **SETTINGS, **QUIET).found_finished


def test_a_build_that_was_taken_over_leaves_the_objects_of_the_other(here: StoreServer, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_bytes(b"no image")
    store = Store(here.url("taken-work"))
    others = {"holder.json": json.dumps({"name": "other", "host": "elsewhere"}).encode(), "plan.json": b"other"}

    class Listener:
        def on_progress(self, progress: packer.Progress) -> None:
            if progress.stage == "packing":
                for name, data in others.items():
                    store.put(name, data)

        def on_message(self, line: str) -> None: ...

    with pytest.raises(BuildError):
        packer.build(tmp_path / "bad", here.url("taken"), work=store.url, **{**QUIET, "progress": Listener()})
    assert {name: store.read(name, 1000) for name in others} == others


def test_what_an_interrupted_cleanup_left_is_deleted(here: StoreServer, source: Path) -> None:
    url, work, options = here.url("tidy"), "tidy-work", {**SETTINGS, **QUIET}
    packer.build(source, url, work=here.url(work), **options)
    here.put(f"{work}/parts/0123456789ab/000/part-000000.4-5-6-00000000", b"piece")
    assert packer.build(source, url, work=here.url(work), **options).found_finished
    assert here.objects(work) == {}


def test_wrong_places_are_refused_before_any_work(
    here: StoreServer, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, work = here.url("wrong"), here.url("wrong-work")
    here.put("mine/notes.txt", b"keep")
    with raises(UsageError, place=here.url("mine")):
        packer.build(source, url, work=here.url("mine"), **QUIET)
    assert here.objects("mine") == {"notes.txt": 4}
    with raises(UsageError, option="work"):
        packer.build(source, "local", work=work, **QUIET)
    with raises(UsageError, option="work"):
        packer.build(here.url("raw"), url, work=here.url("raw/work"), **QUIET)
    with raises(UsageError, option="work"):
        packer.build(source, here.url("wrong/out"), work=url, **QUIET)
    for other in ("gs://data/work", "hf://datasets/me/work", "https://example.org/work"):
        with raises(UsageError, option="work", found=repr(other)):
            packer.build(source, url, work=other, **QUIET)
    here.fail({"match": "PUT .*wrong-work", "kind": "403", "times": FOREVER})
    assert main(["build", str(source), url, "--work", work]) == 1
    said = capsys.readouterr().err
    assert work in said
    assert "packing" not in said
    assert here.objects("wrong") == {}
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("below", [".build/work", "mine"])
def test_an_unfinished_build_with_another_workspace_is_refused_and_overwritten(
    here: StoreServer, source: Path, local: dict[str, bytes], tmp_path: Path, below: str
) -> None:
    name = f"ways-{below[-4:]}"
    url, work = here.url(name), here.url(f"{name}/{below}")
    options = {**SETTINGS, "label_from": "folder", **QUIET}
    here.fail({"match": "PUT .*shard-", "kind": "403", "times": FOREVER})
    with pytest.raises(ShardspecError, match="credentials"):
        packer.build(source, url, work=work, **options)
    here.fail()
    before = here.objects(name)
    assert any("/part-" in one for one in before)
    with raises(UsageError, place=url, found=f"one whose workspace is {work}"):
        packer.build(source, url, work="there", **options)
    assert here.objects(name) == before
    packer.build(source, url, work="there", overwrite=True, **options)
    assert download(url, tmp_path / "back") == local
    assert here.objects(name).keys() == local.keys()


def test_reasons_in_a_store_do_not_keep_other_builds_out(here: StoreServer, source: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_bytes(b"no image")
    url = here.url("reasons")
    with pytest.raises(TooManyRejectsError):
        packer.build(tmp_path / "bad", url, work=f"{url}/.build/work", **QUIET)
    assert here.objects("reasons").keys() == {".build/work/rejects.jsonl"}
    here.put("reasons/.build/work/notes.txt", b"keep")
    with raises(UsageError, place=url, found="other objects (.build/work/notes.txt)"):
        packer.build(source, url, work="there", overwrite=True, **SETTINGS, **QUIET)
    Store(url).delete([".build/work/notes.txt"])
    packer.build(source, url, work="there", **SETTINGS, **QUIET)
    assert not [name for name in here.objects("reasons") if name.startswith(".build")]


def test_a_finished_build_needs_no_permission_to_write(here: StoreServer, source: Path) -> None:
    url, work = here.url("read-only"), here.url("read-only-work")
    packer.build(source, url, work=work, **SETTINGS, **QUIET)
    here.fail({"match": "^(PUT|POST|DELETE) ", "kind": "403", "times": FOREVER})
    assert packer.build(source, url, work=work, **SETTINGS, **QUIET).found_finished
    with raises(ObjectDeniedError):
        packer.build(source, url, work=work, overwrite=True, **SETTINGS, **QUIET)


def test_the_first_of_two_machines_is_recorded_once(here: StoreServer, tmp_path: Path) -> None:
    store, begin = Store(here.url("machines")), threading.Barrier(12, timeout=60)

    def settle(number: int) -> bytes:
        path = tmp_path / f"{number}/parts/machine.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"%d" % number)
        begin.wait()
        RemoteFiles(store, Store(here.url("machines-out"))).settle(tmp_path / str(number), path)
        return path.read_bytes()

    with ThreadPoolExecutor(12) as threads:
        assert len({*threads.map(settle, range(12))}) == 1
