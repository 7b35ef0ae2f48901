"""``packer build SOURCE s3://… --update`` and ``--retry-rejects``: the dataset in a bucket grows as one in a folder."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from support.builds import QUIET, write_images
from support.command import arguments, run_packer
from support.errors import raises
from support.stores import StoreServer
from test_packer.test_jobs.test_upload import FOREVER, download, files, stop

import packer
from readers import open_dataset
from shardspec.errors import DatasetError, ObjectDeniedError, ShardspecError, UsageError
from shardspec.layout import Layout
from shardspec.stores import Store

SETTINGS: dict[str, Any] = {"size": 120, "resize": "exact", "encode": "png", "shard_size": "64KiB"}
OPTIONS: dict[str, Any] = {**SETTINGS, "label_from": "folder", "max_rejects": 1.0, **QUIET}
WORDS = ("--size", 120, "--resize", "exact", "--encode", "png", "--shard-size", "64KiB", "--label-from", "folder")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with an image that is broken."""
    root = write_images(tmp_path / "in", [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(12)])
    (root / "a/bad.png").write_bytes(b"no image")
    return root


@pytest.fixture
def pair(here: StoreServer, source: Path, tmp_path: Path) -> tuple[Path, str]:
    """The same dataset in a folder and in the bucket."""
    for out in (tmp_path / "local", here.url(tmp_path.name)):
        packer.build(source, out, **OPTIONS)
    return tmp_path / "local", here.url(tmp_path.name)


def add(source: Path) -> None:
    """Add items."""
    write_images(source, [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(20, 30)])


def mend(source: Path) -> None:
    """Mend the reject."""
    shutil.copy(source / "a/00.png", source / "a/bad.png")


def change(source: Path) -> None:
    """Change an item, so that all shards are written again."""
    shutil.copy(source / "b/03.png", source / "a/02.png")


def drop(source: Path) -> None:
    """Drop an item."""
    (source / "a/00.png").unlink()


def check(here: StoreServer, pair: tuple[Path, str], tmp_path: Path) -> None:
    """Check that both are equal, and that the bucket has nothing else."""
    local, url = pair
    assert download(url, tmp_path / "back") == files(local)
    assert here.objects(tmp_path.name).keys() == files(local).keys()
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("step", "how"),
    [
        (add, {"update": True}),
        (mend, {"retry_rejects": True}),
        (change, {"update": True, "changed": "replace"}),
    ],
    ids=["add", "retry", "change"],
)
def test_the_dataset_grows_as_in_a_folder(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path, step: Any, how: dict[str, Any]
) -> None:
    before = here.objects(tmp_path.name)
    step(source)
    for out in pair:
        assert packer.build(source, out, **how, **OPTIONS).growth is not None
    check(here, pair, tmp_path)
    if step is not change:
        assert {name for name in before if name.startswith("shard-")} < here.objects(tmp_path.name).keys()
    again = packer.build(source, pair[1], **how, **OPTIONS)
    assert (again.path, again.found_finished) == (pair[1], True)


def test_the_settings_of_the_store_reach_workers(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(source)
    for name in here.variables:
        monkeypatch.delenv(name)
    keys = {"access_key_id": "test", "secret_access_key": "sécret-value", "region": "us-east-1"}
    options = {**OPTIONS, "update": True, "changed": "replace", "engine": "processes", "workers": 2}
    packer.build(source, pair[1], storage_options={**keys, "endpoint": here.address}, **options)
    packer.build(source, pair[0], **options)
    for name, value in here.variables.items():
        monkeypatch.setenv(name, value)
    check(here, pair, tmp_path)


@pytest.mark.parametrize("step", [add, change])
def test_a_killed_update_resumes_on_any_host(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path, step: Any
) -> None:
    local, url = pair
    old = download(url, tmp_path / "old")
    how = {"update": True, "changed": "replace" if step is change else "keep"}
    step(source)
    command = (
        "build",
        source,
        url,
        "--update",
        *("--changed", "replace") * (step is change),
        *WORDS,
        "--max-rejects",
        "1.0",
    )
    work = f"{tmp_path.name}/.build/work"
    here.fail({"match": f"PUT .*{tmp_path.name}/index", "kind": "503", "times": FOREVER})

    def recorded() -> bool:
        return any("/record.json" in name for name in here.objects(work)) and here.left() != [FOREVER]

    stop(arguments(*command), here, recorded, signal.SIGKILL, tmp_path)
    assert download(url, tmp_path / "still") == old
    here.fail({"match": "PUT .*part-", "kind": "403", "times": 1})
    run_packer(*command, env=here.env)
    assert here.left() == [1]
    here.fail()
    packer.build(source, local, **how, **OPTIONS)
    check(here, pair, tmp_path)


def test_an_interrupted_commit_is_finished(here: StoreServer, source: Path, tmp_path: Path) -> None:
    pair, options = (tmp_path / "local", here.url(tmp_path.name)), {**OPTIONS, "format": "parquet"}
    for out in pair:
        packer.build(source, out, **options)
    add(source)
    here.fail({"match": "PUT .*README", "kind": "403", "times": FOREVER})  # written after the manifest
    with pytest.raises(ShardspecError, match="credentials"):
        packer.build(source, pair[1], update=True, **options)
    here.fail()
    assert any(name.startswith(".build/work") for name in here.objects(tmp_path.name))
    packer.build(source, pair[0], update=True, **options)
    assert packer.build(source, pair[1], update=True, **options).found_finished
    check(here, pair, tmp_path)


@pytest.mark.parametrize("step", [add, change])
def test_an_interrupted_update_that_has_nothing_to_add_any_more_is_discarded(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path, step: Any
) -> None:
    how, before = {"update": True, "changed": "replace" if step is change else "keep"}, here.objects(tmp_path.name)
    shutil.copytree(source, tmp_path / "old")
    step(source)
    here.fail({"match": f"PUT .*{tmp_path.name}/index", "kind": "403", "times": FOREVER})
    with raises(ObjectDeniedError):
        packer.build(source, pair[1], **how, **OPTIONS)
    here.fail()
    left = here.objects(tmp_path.name).keys() - before.keys()
    assert {name[:6] for name in left} >= {".build", "shard-"}
    shutil.rmtree(source)
    shutil.copytree(tmp_path / "old", source)
    assert packer.build(source, pair[1], **how, **OPTIONS).found_finished
    assert here.objects(tmp_path.name) == before
    check(here, pair, tmp_path)


def test_a_replacement_that_has_begun_stays_if_there_is_nothing_to_add(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path
) -> None:
    new = {**OPTIONS, "size": 100, "overwrite": True, "work": f"{pair[1]}/.build/work"}
    here.fail({"match": f"PUT .*{tmp_path.name}/index", "kind": "403", "times": FOREVER})
    with raises(ObjectDeniedError):
        packer.build(source, pair[1], **new)
    here.fail({"match": "PUT .*part-", "kind": "403", "times": 1})
    assert packer.build(source, pair[1], update=True, **OPTIONS).found_finished
    packer.build(source, pair[1], **new)
    assert here.left() == [1]
    here.fail()
    packer.build(source, pair[0], **{**new, "work": None})
    check(here, pair, tmp_path)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("step", [add, change, drop])
def test_added_fields_stay(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path, step: Any, killed: bool
) -> None:
    local, url = pair
    keys = list(open_dataset(local).column("key"))[1:]
    table = {"key": keys, "score": [n / 7 for n in range(len(keys))], "note": [f"no. {key}" for key in keys]}
    packer.add(local, table, allow_missing=True, progress=False)
    packer.compute(local, "digest", progress=False)
    packer.copy(local, url, overwrite=True, progress=False)
    step(source)
    how = {"update": True, "changed": "replace", "gone": "drop"}
    words = ("--update", "--changed", "replace", "--gone", "drop", *WORDS, "--max-rejects", "1.0", "--workers", 2)
    if killed:
        work = f"{tmp_path.name}/.build/work"
        here.fail({"match": f"PUT .*{tmp_path.name}/columns", "kind": "503", "times": FOREVER})

        def waits() -> bool:
            return here.left() != [FOREVER]

        stop(arguments("build", source, url, *words), here, waits, signal.SIGKILL, tmp_path)
        assert any(name.startswith("columns/") for name in here.objects(work))
        here.fail()
    run_packer("build", source, url, *words, env=here.env)
    packer.build(source, local, **how, **OPTIONS)
    check(here, pair, tmp_path)


def test_damaged_added_fields_get_no_new_digest(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path
) -> None:
    local, url = pair
    keys = list(open_dataset(local).column("key"))[1:]
    packer.add(local, {"key": keys, "note": [f"no. {key}" for key in keys]}, allow_missing=True, progress=False)
    packer.copy(local, url, overwrite=True, progress=False)
    column = next(column for column in Layout(local).load().columns if column.field == "note")
    entry = next(entry for entry in column.files if entry.name.endswith(".bin"))
    data = (local / entry.name).read_bytes()
    Store(url).put(entry.name, data[:-1] + bytes([data[-1] ^ 1]))
    before = here.objects(tmp_path.name)
    change(source)
    with pytest.raises(DatasetError, match=entry.name):
        packer.build(source, url, update=True, changed="replace", gone="drop", **OPTIONS)
    assert before.items() <= here.objects(tmp_path.name).items()


def test_rejects_and_left_shards_of_a_dataset_in_a_bucket(
    here: StoreServer, source: Path, pair: tuple[Path, str], tmp_path: Path
) -> None:
    local, url = pair
    (found, expected) = (packer.rejects(place, progress=False) for place in (url, local))
    assert (found.path, found.kinds) == (url, expected.kinds)
    assert len(found.kinds) == 1
    change(source)
    with pytest.raises(UsageError, match="--update"):
        packer.build(source, url, **OPTIONS)
    Store(url).put("shard-00007-0123456789abcdef.lmdb", b"left")  # somebody has deleted .build only
    for name in ("notes.txt", "items.jsonl"):
        Store(url).put(name, b"mine")
        with raises(UsageError, place=url):
            packer.build(source, url, overwrite=True, **OPTIONS)
        assert name in here.objects(tmp_path.name)
        Store(url).delete([name])
    packer.build(source, url, overwrite=True, **OPTIONS)
    packer.build(source, local, overwrite=True, **OPTIONS)
    check(here, pair, tmp_path)


def test_what_cannot_grow_in_a_bucket_is_refused(here: StoreServer, source: Path, pair: tuple[Path, str]) -> None:
    url = pair[1]
    with raises(UsageError, option="work"):
        packer.build(source, url, update=True, work="there", **OPTIONS)
    with raises(UsageError, place=url):
        packer.build(source, url, update=True, **{**OPTIONS, "size": 100})
    with raises(UsageError, place=here.url("none")):
        packer.build(source, here.url("none"), retry_rejects=True, **OPTIONS)
    assert here.objects("none") == {}
