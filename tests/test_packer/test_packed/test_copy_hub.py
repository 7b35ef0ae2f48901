"""``packer copy`` to and from a server that behaves as the Hugging Face Hub. No request goes to another host."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.builds import QUIET
from support.command import run_packer
from support.errors import raises
from support.hub import TOKEN, FakeHub, serving_hub
from support.packed_files import files_below, write_faces

from packer import convert, copy, verify
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.layout import Layout
from shardspec.stores import Hub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving_hub() as running:
        yield running
        assert running.outside == []


@pytest.mark.parametrize(
    ("format", "url"), [("parquet", "hf://datasets/me/faces"), ("lmdb", "hf://datasets/me/faces/v1/a")]
)
@pytest.mark.usefixtures("leaks_allowed")  # connections of an earlier file may be opened again
def test_a_dataset_is_published_and_fetched(hub: FakeHub, tmp_path: Path, format: str, url: str) -> None:
    write_faces(tmp_path / "faces", 12, format)
    run_packer("copy", tmp_path / "faces", url, env=hub.env)
    first, published = hub.repositories["me/faces"]
    assert first.keys() == {".gitattributes"}
    folder = url.removeprefix("hf://datasets/me/faces").strip("/")
    own = {Path(name).relative_to(folder).as_posix(): data for name, data in published.items() if name not in first}
    assert own == files_below(tmp_path / "faces")
    assert hub.private == {"me/faces"}
    again = json.loads(run_packer("copy", tmp_path / "faces", url, "--json", env=hub.env).stdout)
    assert again["files_copied"] == 0
    run_packer("copy", url, tmp_path / "back", env=hub.env)
    assert files_below(tmp_path / "back") == files_below(tmp_path / "faces")
    run_packer("copy", url.replace("faces", "faces@main", 1), tmp_path / "part", "--where", "frame < 30", env=hub.env)
    assert Layout(tmp_path / "part").load().samples == 3
    script = f"import readers; print(readers.open_dataset({url!r}, cache={str(tmp_path / 'cache')!r})[7]['frame'])"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=hub.env, check=True, capture_output=True, text=True).stdout == "70\n"


def test_a_dataset_is_replaced_in_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    url = "hf://datasets/lab/fakes"
    write_faces(tmp_path / "old", 12)
    write_faces(tmp_path / "new", 3, seed=1)
    hub.repositories["lab/fakes"] = [{".gitattributes": b"", "README.md": b"# Fakes"}]
    hub.failing = {"POST .*/commit/": 503}
    failed = run_packer("copy", tmp_path / "old", url, env=hub.env, expect=1)
    assert f"{url}: The server answered 503" in failed.stderr
    uploads = sum("PUT /lfs/" in request for request in hub.requests)
    hub.failing = {}
    run_packer("copy", tmp_path / "old", url, env=hub.env)
    assert sum("PUT /lfs/" in request for request in hub.requests) == uploads  # the content was there
    assert "another dataset" in run_packer("copy", tmp_path / "new", url, env=hub.env, expect=2).stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as web:
        thread = Thread(target=web.serve_forever)
        thread.start()
        new = f"http://127.0.0.1:{web.server_port}/new"
        run_packer("copy", new, url, "--overwrite", env=hub.env)
        web.shutdown()
        thread.join()
    _, first, second = hub.repositories["lab/fakes"]
    others = {".gitattributes": b"", "README.md": b"# Fakes"}
    assert first == files_below(tmp_path / "old") | others
    assert second == files_below(tmp_path / "new") | others
    hub.repositories["lab/fakes"].append({**others, "notes.txt": b"keep"})
    assert "notes.txt" in run_packer("copy", tmp_path / "new", url, env=hub.env, expect=2).stderr


def test_a_card_that_was_edited_on_the_hub_stays_and_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    write_faces(tmp_path / "lmdb", 3)
    digest = convert(tmp_path / "lmdb", tmp_path / "faces", format="parquet", **QUIET).manifest.digest
    assert (tmp_path / "faces/README.md").exists()
    edited = {**files_below(tmp_path / "faces"), "README.md": b"# Faces, edited on the Hub"}
    hub.repositories["me/faces"] = [edited]
    run_packer("copy", "hf://datasets/me/faces", tmp_path / "back", env=hub.env)
    assert (tmp_path / "back/README.md").read_bytes() == edited["README.md"]
    report = verify(tmp_path / "back", progress=False)
    assert (report.problems, report.digest) == ((), digest)
    run_packer("copy", tmp_path / "faces", "hf://datasets/me/faces", env=hub.env)
    assert hub.repositories["me/faces"] == [edited]


def test_errors_of_reading_do_not_show_the_token(hub: FakeHub, tmp_path: Path) -> None:
    write_faces(tmp_path / "faces", 3)
    hub.repositories["me/faces"] = [files_below(tmp_path / "faces")]
    for url, env, text in (
        ("hf://datasets/me/none", {}, "HF_TOKEN"),
        ("hf://datasets/me/faces@v9", {}, "RevisionNotFoundError"),
        ("hf://datasets/me/faces", {"HF_TOKEN": "hf_other"}, "HF_TOKEN"),
        ("hf://datasets/me/faces/sub", {}, "found none"),
    ):
        failed = run_packer("copy", url, tmp_path / "out", env={**hub.env, **env}, expect=None)
        assert failed.returncode in (1, 2)
        assert text in failed.stderr
        assert url in failed.stderr
        assert TOKEN not in failed.stderr + failed.stdout
        assert "hf_other" not in failed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("url", ["hf://models/a/b", "hf://datasets/a", "hf://a/b", "hf://datasets/a/b@"])
def test_other_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="hf://datasets/ORG/NAME"):
        copy(url, tmp_path / "out")


def test_options_and_pickles_hold_no_secrets() -> None:
    hub = Hub("hf://datasets/a/b", {"token": "s3cr3t", "endpoint": "http://127.0.0.1:9"})
    assert "s3cr3t" not in repr(hub)
    with pytest.raises(TypeError):
        pickle.dumps(hub)
    with raises(UsageError, option="storage_options", found="'region'"):
        Hub("hf://datasets/a/b", {"region": "eu"})


def test_the_extra_is_named_where_the_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"facepack\[hf\]"):
        copy("hf://datasets/a/b", tmp_path / "out")


@pytest.mark.usefixtures("leaks_allowed")
def test_requests_refused_because_of_many_ranks_are_repeated(hub: FakeHub, tmp_path: Path) -> None:
    """The first request of a rank gets them too, in `packer copy` and in training."""
    write_faces(tmp_path / "faces", 12)
    url = "hf://datasets/me/faces"
    passing = [(503, {}), (0, {}), (429, {"retry-after": "1"}), (429, {"ratelimit": '"api";r=0;t=1'})]
    hub.passing += passing
    run_packer("copy", tmp_path / "faces", url, env=hub.env)
    hub.passing += passing
    run_packer("copy", url, tmp_path / "back", env=hub.env)
    assert files_below(tmp_path / "back") == files_below(tmp_path / "faces")
    hub.passing += passing
    script = f"import readers; print(readers.open_dataset({url!r}, cache={str(tmp_path / 'cache')!r})[7]['frame'])"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=hub.env, check=True, capture_output=True, text=True).stdout == "70\n"
    assert hub.passing == []
