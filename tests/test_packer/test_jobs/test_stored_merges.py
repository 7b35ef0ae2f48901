"""``packer convert``, ``merge`` and ``split`` into a bucket: the dataset of a folder, and a resume on any host."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builds import QUIET, write_images
from support.command import arguments, run_packer
from support.errors import raises
from support.listeners import StopError, stop_when
from support.stores import StoreServer
from test_packer.test_jobs.test_upload import FOREVER, download, files, stop

import packer
from packer.builds.planning.plan import TASK_ITEMS
from shardspec.errors import BuildError, ResumeMismatchError, ShardspecError, UsageError
from shardspec.stores import Store

SETTINGS: dict[str, Any] = {"size": 120, "resize": "exact", "encode": "png", "shard_size": "64KiB"}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets ``a`` and ``b``."""
    root = tmp_path_factory.mktemp("sets")
    for name in "ab":
        source = write_images(root / "in" / name, [f"{'xy'[n % 2]}/{name}{n:02d}.png" for n in range(16)])
        packer.build(source, root / name, **SETTINGS, label_from="folder", **QUIET)
    return root


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pieces of one build in the folders ``1`` and ``2``, and the dataset that it makes in ``whole``. The source is gone."""
    root, how = tmp_path_factory.mktemp("shares"), {**SETTINGS, "label_from": "folder", **QUIET}
    source = write_images(root / "in", [f"{'xy'[n % 2]}/{n:03d}.png" for n in range(2 * TASK_ITEMS)])
    packer.build(source, root / "whole", **how)
    for number in "12":
        packer.build(source, root / number, share=f"{number}/2", **how)
    shutil.rmtree(source)
    return root


def convert(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.convert(f"{sets}/a", out, format="hdf5", **{"progress": False, **more})


def merge(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.merge([f"{sets}/a", f"{sets}/b"], out, shuffle=3, **{"progress": False, **more})


def split(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.split(f"{sets}/a", out, by="label", ratios="train=0.5,val=0.5", **{"progress": False, **more})


@pytest.mark.parametrize("job", [convert, merge, split])
@pytest.mark.parametrize("inputs", ["folder", "bucket"])
def test_the_dataset_is_that_of_a_folder(
    here: StoreServer, sets: Path, tmp_path: Path, job: Callable[..., Any], inputs: str
) -> None:
    name = f"{job.__name__}-{inputs}"
    url, given = here.url(name), str(sets)
    if inputs == "bucket":
        given = here.url("sets")
        for one in "ab":
            packer.copy(sets / one, f"{given}/{one}", progress=False)
    job(sets, tmp_path / "local")
    made = job(given, url)
    parts = [part.name for part in made.parts] if job is split else [""]
    for part in parts:
        assert download(f"{url}/{part}".rstrip("/"), tmp_path / "back" / part) == files(tmp_path / "local" / part)
    assert here.objects(name).keys() == {
        path.relative_to(tmp_path / "local").as_posix() for path in (tmp_path / "local").rglob("*") if path.is_file()
    }
    assert list(Path().iterdir()) == []
    if job is split:
        said = run_packer("split", f"{given}/a", url, "--by", "label", "--ratios", "train=0.5,val=0.5", env=here.env)
        assert f"{url}/val: " in said.stdout
    again = job(given, url)
    assert all(one.found_finished for one in ([part.result for part in again.parts] if job is split else [again]))


def test_a_killed_merge_resumes_on_any_host(here: StoreServer, sets: Path, tmp_path: Path) -> None:
    url, work = here.url("killed"), "killed/.build/work"
    command = ("merge", sets / "a", sets / "b", url, "--shuffle", 3, "--workers", 2)
    here.fail({"match": "PUT .*shard-00003", "kind": "503", "times": FOREVER})

    def recorded() -> bool:
        return any("shard-00000/record.json" in name for name in here.objects(work)) and here.left() != [FOREVER]

    stop(arguments(*command), here, recorded, signal.SIGKILL, tmp_path)
    assert "manifest.json" not in here.objects("killed")
    found = packer.status(url)
    assert (found.stage, found.items, found.done, found.samples) == ("writing shards", 32, 32, 32)
    assert 0 < found.shards_done < found.shards
    with raises(ResumeMismatchError, place=url):
        merge(sets, url, format="npy")
    here.fail({"match": "PUT .*shard-00000", "kind": "403", "times": 1})
    run_packer(*command, env=here.env)
    assert here.left() == [1]
    here.fail()
    merge(sets, tmp_path / "local")
    assert download(url, tmp_path / "back") == files(tmp_path / "local")
    assert here.objects("killed").keys() == files(tmp_path / "local").keys()


@pytest.mark.parametrize("job", [convert, merge, split])
@pytest.mark.parametrize(("stage", "shown"), [("checking", "checking"), ("writing", "writing shards")])
def test_the_status_of_an_interrupted_job(
    here: StoreServer, sets: Path, tmp_path: Path, job: Callable[..., Any], stage: str, shown: str
) -> None:
    seen = []
    for out in (tmp_path / "local", here.url(f"{job.__name__}-{stage}")):
        ear = stop_when(lambda now: (now.stage, now.done) == (stage, 2))
        with pytest.raises(StopError):
            job(sets, out, engine="inline", workers=1, progress=ear)
        seen.append(packer.status(f"{out}/train" if job is split else out))
    local, stored = seen
    assert (local.stage, local.running, stored.running) == (shown, False, False)
    assert local.items == local.done == local.samples
    assert (local.items == 0) == (stage == "checking")
    done, count = (local.tasks_done, local.tasks) if stage == "checking" else (local.shards_done, local.shards)
    assert done == 2
    assert count > 2 or job is split
    same = ("stage", "items", "done", "samples", "rejected", "tasks", "tasks_done", "shards", "shards_done", "sessions")
    assert {name: getattr(stored, name) for name in same} == {name: getattr(local, name) for name in same}


def test_a_dataset_in_a_bucket_is_replaced(here: StoreServer, sets: Path, tmp_path: Path) -> None:
    url = here.url("replaced")
    convert(sets, url)
    with raises(UsageError, place=url):
        merge(sets, url)
    here.fail({"match": "PUT .*shard-00003", "kind": "403", "times": FOREVER})
    with pytest.raises(ShardspecError, match="credentials"):
        merge(sets, url, overwrite=True)
    here.fail()
    convert(sets, tmp_path / "old")
    assert download(url, tmp_path / "back") == files(tmp_path / "old")
    merge(sets, url, overwrite=True)
    merge(sets, tmp_path / "new")
    assert download(url, tmp_path / "back") == files(tmp_path / "new")
    assert here.objects("replaced").keys() == files(tmp_path / "new").keys()


def test_tracks_of_a_dataset_in_a_bucket(here: StoreServer, sets: Path, tmp_path: Path) -> None:
    packer.convert(sets / "a", here.url("items"), sample="item", encode="ffv1", progress=False)
    packer.convert(sets / "a", tmp_path / "local", sample="item", encode="ffv1", progress=False)
    assert download(here.url("items"), tmp_path / "back") == files(tmp_path / "local")


def test_wrong_places_are_refused(here: StoreServer, sets: Path, tmp_path: Path) -> None:
    url = here.url("wrong")
    packer.copy(sets / "a", f"{url}/a", progress=False)
    with raises(UsageError, place=f"{url}/a"):
        convert(url, f"{url}/a")
    with raises(UsageError, place=f"{url}/a/b"):
        convert(url, f"{url}/a/b")
    with raises(UsageError, place=url):
        convert(url, url)
    with raises(UsageError, place=f"{url}/a"):
        split(sets, f"{url}/a")
    for other in ("hf://datasets/me/faces", "https://example.org/faces"):
        with raises(UsageError, option="out"):
            convert(sets, other)
    Store(f"{url}/.build/work").put("notes.txt", b"keep")
    with pytest.raises(UsageError):
        merge(sets, url)
    assert here.objects(f"{url.rpartition('/')[2]}/.build") == {"work/notes.txt": 4}


def test_pieces_become_the_dataset_of_one_build(here: StoreServer, shares: Path, tmp_path: Path) -> None:
    url, pieces = here.url("pieces"), [shares / "2", shares / "1"]
    with raises(BuildError):
        packer.merge(pieces[:1], url, progress=False)
    assert here.objects("pieces") == {}
    made = packer.merge(pieces, url, workers=2, progress=False)
    assert (made.path, made.manifest.samples, made.found_finished) == (url, 2 * TASK_ITEMS, False)
    assert download(url, tmp_path / "back") == files(shares / "whole")
    assert here.objects("pieces").keys() == files(shares / "whole").keys()
    assert list(Path().iterdir()) == []
    assert packer.merge(pieces, url, progress=False).found_finished
    for other in ("hf://datasets/me/faces", "https://example.org/faces"):
        with raises(UsageError, option="out"):
            packer.merge(pieces, other, progress=False)


def test_a_killed_merge_of_pieces_resumes_from_where_they_are_now(
    here: StoreServer, sets: Path, shares: Path, tmp_path: Path
) -> None:
    name = "killed-pieces"
    url, work = here.url(name), f"{name}/.build/work"
    convert(sets, url)
    for folder in ("before", "after"):
        shutil.copytree(shares, tmp_path / folder)
    words = (url, "--overwrite", "--workers", 2)
    here.fail({"match": "PUT .*shard-00003", "kind": "503", "times": FOREVER})

    def recorded() -> bool:
        return any("shard-00000/record.json" in name for name in here.objects(work)) and here.left() != [FOREVER]

    stop(
        arguments("merge", *(tmp_path / "before" / one for one in "12"), *words),
        here,
        recorded,
        signal.SIGKILL,
        tmp_path,
    )
    found = packer.status(url)
    assert (found.stage, found.done, found.samples) == ("writing shards", 2 * TASK_ITEMS, 2 * TASK_ITEMS)
    convert(sets, tmp_path / "old")
    assert download(url, tmp_path / "back") == files(tmp_path / "old")
    shutil.rmtree(tmp_path / "before")
    here.fail({"match": "PUT .*shard-00000", "kind": "403", "times": 1})
    run_packer("merge", *(tmp_path / "after" / one for one in "21"), *words, env=here.env)
    assert here.left() == [1]
    here.fail()
    assert download(url, tmp_path / "back") == files(shares / "whole")
    assert here.objects(name).keys() == files(shares / "whole").keys()
