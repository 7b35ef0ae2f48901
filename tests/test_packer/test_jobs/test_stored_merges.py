"""``packer convert``, ``merge`` and ``split`` into a bucket: the dataset of a folder, and a resume on any host."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builds import QUIET, write_images
from support.command import arguments, run_packer
from support.errors import raises
from support.stores import StoreServer
from test_packer.test_jobs.test_upload import FOREVER, download, files, stop

import packer
from shardspec.errors import ResumeMismatchError, ShardspecError, UsageError
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


def convert(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.convert(f"{sets}/a", out, format="hdf5", **more, progress=False)


def merge(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.merge([f"{sets}/a", f"{sets}/b"], out, shuffle=3, **more, progress=False)


def split(sets: Path | str, out: Path | str, **more: Any) -> Any:
    return packer.split(f"{sets}/a", out, by="label", ratios="train=0.5,val=0.5", **more, progress=False)


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
    with raises(ResumeMismatchError, place=url):
        merge(sets, url, format="npy")
    here.fail({"match": "PUT .*shard-00000", "kind": "403", "times": 1})
    run_packer(*command, env=here.env)
    assert here.left() == [1]
    here.fail()
    merge(sets, tmp_path / "local")
    assert download(url, tmp_path / "back") == files(tmp_path / "local")
    assert here.objects("killed").keys() == files(tmp_path / "local").keys()


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
    packer.build(sets / "in" / "a", tmp_path / "pieces", share="1/1", **SETTINGS, **QUIET)
    with raises(UsageError, option="out"):
        packer.merge([tmp_path / "pieces"], here.url("pieces"), progress=False)
    Store(f"{url}/.build/work").put("notes.txt", b"keep")
    with pytest.raises(UsageError):
        merge(sets, url)
    assert here.objects(f"{url.rpartition('/')[2]}/.build") == {"work/notes.txt": 4}
