"""``packer view``: pages that agree with the dataset, given to nobody but those who know the address."""

import io
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from support import archives
from support.builds import QUIET
from support.command import arguments, environment, run_packer, start_packer
from support.datasets import encode, face_schema, fixed, picture, text, write_dataset, write_encoded
from support.errors import raises
from support.media import scene, write_image, write_video
from support.packed_files import face_columns, read_all, write_faces
from support.pages import HOSTILE, Page, assert_harmless, descendants, write_hostile

from packer import build, compute, copy, describe, merge, report, view
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.tracks import pauses_ms, track_rows
from packer.page.dataset_view import DatasetView
from packer.page.server import Query
from packer.page.view import describe_address, make_app
from packer.sources.member_bytes import close_contents
from readers import open_dataset
from shardspec.errors import DatasetError, ItemError, UsageError
from shardspec.schema import Schema

TOKEN = "to-ken_1"


def client(*paths: Path, source: Path | None = None, table: Path | None = None) -> TestClient:
    shown = [DatasetView(BrowsedDataset(path, table), source) for path in paths]
    return TestClient(
        make_app(shown, TOKEN, "127.0.0.1"), base_url="http://127.0.0.1:8017", raise_server_exceptions=True
    )


def get(pages: TestClient, path: str, status: int = 200) -> Page:
    answer = pages.get(f"/{TOKEN}{path}")
    assert answer.status_code == status, answer.text
    return Page(answer.text)


def rows_of(page: Page) -> list[int]:
    """The rows of a page of the grid, in order."""
    return [int(card.attributes["id"].removeprefix("row-")) for card in page.find("a", "card")]


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 250 faces, changed by no test."""
    root = tmp_path_factory.mktemp("view") / "faces"
    write_faces(root, 250, codec="jpeg", shard_rows=100)
    return root


def test_the_grid_shows_what_where_and_sort_choose(faces: Path) -> None:
    pages, dataset = client(faces), open_dataset(faces)
    assert rows_of(get(pages, "/0/")) == list(range(100))
    assert rows_of(get(pages, "/0/?page=3")) == list(range(200, 250))
    assert rows_of(get(pages, "/0/?page=99")) == list(range(200, 250))
    where = "label == 'fake' and score >= 0.95"
    expected = dataset.where(where).rows
    page = get(pages, f"/0/?where={quote(where)}&sort=-score")
    scores = np.asarray(dataset.column("score"))
    assert rows_of(page) == sorted(expected.tolist(), key=lambda row: -scores[row])[:100]
    assert page.find("span", "sum")[0].text.startswith(f"{len(expected)} of 250 samples")
    keys = pages.get(f"/{TOKEN}/0/keys.txt?where={quote(where)}").text.split("\n")[:-1]
    assert keys == [dataset[int(row)]["key"] for row in expected]
    assert np.array_equal(dataset.where(lambda key: np.isin(key, keys), ["key"]).rows, expected)


def test_a_random_order_has_every_sample_once_and_a_page_is_reached_by_its_number(faces: Path) -> None:
    pages = client(faces)
    seen = [row for page in (1, 2, 3) for row in rows_of(get(pages, f"/0/?sort=*&page={page}"))]
    assert sorted(seen) == list(range(250))
    assert seen[:100] != sorted(seen[:100])
    assert rows_of(get(pages, "/0/?sort=*")) == seen[:100]
    where = "score > 0.5"
    page = get(pages, f"/0/?where={quote(where)}&sort=*")
    jump = next(
        form for form in page.find("form") if any(e.attributes.get("name") == "page" for e in descendants(form))
    )
    given = {e.attributes["name"]: e.attributes["value"] for e in descendants(jump) if e.tag == "input"}
    assert given == {"where": where, "sort": "*", "page": "1"}


def test_the_label_comes_first_among_the_fields(faces: Path) -> None:
    shown = [e.attributes["data-src"] for e in get(client(faces), "/0/").find("section", "field")]
    assert shown[0].endswith("/field/label")
    assert len(shown) > 3


def test_the_crop_is_drawn_where_it_was_cut(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "0.png", scene(0, (300, 200)))
    matrix = np.array([[0.8, 0.6, -60.0], [-0.6, 0.8, 30.0]])
    schema = Schema(
        (text("source"), fixed("frame", "<i8"), fixed("box", "<f4", 4), fixed("matrix", "<f4", 2, 3), picture("image"))
    )
    columns = {
        "source": ["0.png"],
        "frame": np.array([0]),
        "box": np.array([[100, 60, 140, 110]]),
        "matrix": matrix[None],
        "image": [scene(1, (50, 40))],
    }
    write_dataset(tmp_path / "d", "npy", schema, columns)
    page = get(client(tmp_path / "d", source=tmp_path / "in"), "/0/row/0/original")
    paths = {e.classes[-1]: e.attributes["d"] for e in page.find("path", "shape")}
    assert paths["box"] == "M100.00 60.00H140.00V110.00H100.00Z"
    corners = np.array([text.split() for text in paths["cut"].strip("MZ").split("L")], float)
    mapped = corners @ matrix[:, :2].T + matrix[:, 2]
    assert np.allclose(mapped, [(0, 0), (50, 0), (50, 40), (0, 40)], atol=0.02)


def test_sources_of_several_datasets_are_named_on_the_start_page(faces: Path, tmp_path: Path) -> None:
    write_faces(tmp_path / "other", 30)
    pages = client(faces, tmp_path / "other")
    assert f"/{TOKEN}/faults" in pages.get(f"/{TOKEN}/").text
    assert "in more than one of these datasets" in get(pages, "/faults").text


def test_a_wrong_filter_is_reported_next_to_it(faces: Path) -> None:
    pages, dataset = client(faces), open_dataset(faces)
    for where, message in (
        ("score >", "expected an expression"),
        ("sore > 1", "did you mean"),
        ("__import__('os')", "comparisons"),
    ):
        page = get(pages, f"/0/?where={quote(where)}", 400)
        assert message in page.find("p", "error")[0].text
        assert page.find("input")[0].attributes["value"] == where
        parts = [e.attributes["data-src"] for e in page.find("section") if "data-src" in e.attributes]
        assert len(parts) > 3
        for part in parts:  # of all samples, as nothing is selected
            assert pages.get(part).status_code == 200, part
    (asked,) = (e for e in get(pages, "/0/").find("input") if e.attributes.get("id") == "where")
    assert len(dataset.where(asked.attributes["placeholder"])) < len(dataset)  # the example is one of this dataset


def test_bars_lead_to_the_samples_they_count_and_back(faces: Path) -> None:
    pages = client(faces)
    for field in ("frame", "label", "source"):
        part = get(pages, f"/0/field/{field}")
        bars = [e for e in part.find("a") if "value" in e.classes and descendants(e)]
        total = 0
        for bar in bars:
            if not any(e.tag == "rect" and "some" in e.classes for e in descendants(bar)):
                continue
            address = bar.attributes["href"].removeprefix(f"/{TOKEN}")
            page = get(pages, address)
            shown = int(page.find("span", "sum")[0].text.split()[0])
            title = next((e.text for e in descendants(bar) if e.tag == "title"), bar.attributes.get("title", ""))
            assert shown == int(title.rsplit(": ", 1)[1])
            total += shown
            narrowed = get(pages, f"/0/field/{field}?{urlsplit(address).query}")
            (on,) = [e for e in narrowed.find("a") if "on" in e.classes]
            assert on.attributes["href"] == f"/{TOKEN}/0/"  # once more takes the filter away
        assert total == 250


def test_a_click_replaces_the_condition_on_its_field_and_keeps_others() -> None:
    query = Query("label == 'fake' and (score > 0.5 or frame < 9)", "-score")
    address, there = query.narrowed("label == 'real'", "label")
    assert (there, address) == (
        False,
        "?where=%28score+%3E+0.5+or+frame+%3C+9%29+and+label+%3D%3D+%27real%27&sort=-score",
    )
    assert query.narrowed("label == 'fake'", "label")[1]
    assert Query("a b").narrowed("x == 1", "x") == ("?where=x+%3D%3D+1", False)


def test_a_track_does_not_mix_merged_parts_of_one_source(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_faces(tmp_path / part, 12)  # row, row + 3, ... are of one source, 1.2 s apart
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", engine="inline", progress=False)
    dataset = BrowsedDataset(tmp_path / "both")
    rows = track_rows(dataset, 13)
    assert rows.tolist() == [13, 16, 19, 22]
    assert pauses_ms(dataset, rows) == [1000] * 4  # the longest


def test_a_sample_has_its_image_fields_neighbours_and_the_frame_it_was_cut_from(tmp_path: Path) -> None:
    columns = face_columns(12, codec="jpeg", groups=2)
    write_video(tmp_path / "source" / "a.mp4", frames=12)
    columns["source"] = ["a.mp4" if row % 2 == 0 else "../outside.mp4" for row in range(12)]
    columns["frame"] = np.arange(12)[::-1].copy()
    columns["landmarks_valid"][:] = True
    write_video(tmp_path / "outside.mp4", frames=2)
    write_dataset(tmp_path / "d", "lmdb", face_schema(32, "jpeg"), columns)
    pages, stored = client(tmp_path / "d", source=tmp_path / "source"), read_all(tmp_path / "d")
    answer = pages.get(f"/{TOKEN}/0/row/4/image")
    assert (answer.content, answer.headers["content-type"]) == (stored["image"][4], "image/jpeg")
    page = get(pages, "/0/row/4")
    table = {row.children[0].text: row.children[1].text for row in page.find("tr") if len(row.children) == 2}
    assert table["key"] == columns["key"][4]
    assert table["label"] == ("real", "fake")[columns["label"][4]]
    assert table["frame"] == "7"
    strip = get(pages, "/0/row/4/track").find("a")
    assert [int(e.attributes["href"].rsplit("/", 1)[1]) for e in strip] == [10, 8, 6, 4, 2, 0]  # by frame
    assert [e.attributes.get("aria-current") for e in strip].index("true") == 3
    original = get(pages, "/0/row/4/original")
    left, top, right, bottom = columns["box"][4].tolist()
    assert [e.attributes["d"] for e in original.find("path", "box")] == [
        f"M{left:.2f} {top:.2f}H{right:.2f}V{bottom:.2f}H{left:.2f}Z"
    ]
    assert [e.attributes["viewbox"] for e in original.find("svg")] == ["0 0 96 72"]
    assert pages.get(f"/{TOKEN}/0/row/4/original.jpg").content[:2] == b"\xff\xd8"
    assert "expected a file in the source, found none" in get(pages, "/0/row/5/original").elements[-1].text
    assert pages.get(f"/{TOKEN}/0/row/5/original.jpg").status_code == 422
    for path in ("/0/row/12", "/0/row/4/key", "/0/row/4/nothing", "/1/", "/0/field/image", "/static/../server.py"):
        assert pages.get(f"/{TOKEN}{path}").status_code == 404, path


def test_raw_images_of_any_size_are_png_with_the_same_pixels(tmp_path: Path) -> None:
    images = [scene(row, (20 + row, 30)) for row in range(3)]
    write_dataset(tmp_path / "d", "npy", Schema((picture("photo", "raw"),)), {"photo": images})
    pages = client(tmp_path / "d")
    (tmp_path / "p.png").write_bytes(pages.get(f"/{TOKEN}/0/row/2/photo").content)
    with Image.open(tmp_path / "p.png") as found:
        assert np.array_equal(np.asarray(found), images[2])
    sizes = [(e.attributes["width"], e.attributes["height"]) for e in get(pages, "/0/").find("img")]
    assert sizes == [("20", "30"), ("21", "30"), ("22", "30")]


def test_hostile_texts_are_text_on_every_page(tmp_path: Path) -> None:
    write_hostile(tmp_path / "d", 12)
    describe(tmp_path / "d", title=HOSTILE[1], license=["CC-BY-4.0", "CC0-1.0"])
    pages = client(tmp_path / "d")
    for path in (
        "/0/",
        "/0/about",
        "/0/field/source",
        "/0/row/0",
        "/0/row/2/track",
        "/0/rejects",
        f"/0/?where={quote(HOSTILE[1])}",
    ):
        answer = pages.get(f"/{TOKEN}{path}")
        page = Page(answer.text)
        assert_harmless(page)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not [e for e in page.elements if "style" in e.attributes or (e.tag == "script" and e.text)]
    assert HOSTILE[0] in get(pages, "/0/row/0").text
    stated = [e.text for e in get(pages, "/0/about").find("td") if e.classes == ["wrap"]]
    assert stated == [HOSTILE[1], "CC-BY-4.0, CC0-1.0"]
    bars = [e for e in get(pages, "/0/field/source").find("a") if "value" in e.classes]
    for bar in bars:
        assert len(rows_of(get(pages, bar.attributes["href"].removeprefix(f"/{TOKEN}")))) == 2


def test_only_those_who_know_the_address_are_answered(faces: Path) -> None:
    pages = client(faces)
    for path in ("/", "/0/", "/wrong/0/", f"/{TOKEN}x/0/", "/%ff/0/", "//"):
        answer = pages.get(path)
        assert answer.status_code == 403, path
        assert TOKEN not in answer.text
    for host, status in (
        ("evil.example", 421),
        ("evil.example:8017", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8017", 200),
    ):
        assert pages.get(f"/{TOKEN}/0/", headers={"host": host}).status_code == status, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert pages.request(method, f"/{TOKEN}/0/").status_code == 405
    assert pages.get(f"/{TOKEN}/0/?where={'x' * 20_000}").status_code == 414
    assert pages.get(f"/{TOKEN}/0/?page=-1&sort=nothing").status_code == 400
    assert pages.head(f"/{TOKEN}/0/").status_code == 200


@pytest.mark.parametrize("odd", ["text", "<f8", "|b1", "<i2"])
def test_fields_of_unknown_types_are_shown(tmp_path: Path, odd: str) -> None:
    names = ("source", "label", "track", "frame", "time", "score", "landmarks", "landmarks_valid", "box", "hull")
    numbers = {"<f8": [np.nan, -1, np.inf]}.get(odd, [0, 1, 0])
    values = ["x", "<b>", ""] if odd == "text" else np.array(numbers, odd)
    fields = [text(name) if odd == "text" else fixed(name, odd) for name in names]
    image = np.stack([scene(row, (9, 7)) for row in range(3)])
    schema = Schema((*fields, fixed("image", "|u1", 7, 9, 3)))
    write_dataset(tmp_path / "d", "npy", schema, {**dict.fromkeys(names, values), "image": image})
    (tmp_path / "source").mkdir()
    pages = client(tmp_path / "d", source=tmp_path / "source")
    for path in (
        "",
        "?sort=-time",
        "row/1",
        "row/1/track",
        "row/1/original",
        "about",
        "keys.txt",
        *(f"field/{n}" for n in names),
    ):
        assert pages.get(f"/{TOKEN}/0/{path}").status_code == 200, path
    report(tmp_path / "d", tmp_path / "r.html", progress=False)


def test_damaged_values_and_files_are_reported_and_end_nothing(tmp_path: Path) -> None:
    schema = Schema((text("key"), picture("image")))
    encoded = encode(schema, {"key": ["a", "b"], "image": [scene(0, (8, 8))] * 2})
    encoded["image"][0] = b"no jpeg"
    write_encoded(tmp_path / "d", "npy", schema, encoded)
    pages = client(tmp_path / "d")
    assert rows_of(get(pages, "/0/")) == [0, 1]
    assert pages.get(f"/{TOKEN}/0/row/0/image").content == b"no jpeg"  # as stored; the browser will not show it
    (tmp_path / "d" / "shard-00000" / "key.bin").unlink()
    with raises(DatasetError, expected="a file of 2 bytes", found="none"):
        client(tmp_path / "d")


def test_keys_of_a_damaged_shard_are_an_error_in_one_line(tmp_path: Path) -> None:
    columns = face_columns(40, codec="png")
    write_dataset(tmp_path / "d", "tfrecord", face_schema(32, "png"), columns, shard_rows=20)
    path = tmp_path / "d" / "shard-00001.tfrecord"
    data = bytearray(path.read_bytes())
    data[data.rindex(str(columns["key"][-1]).encode())] ^= 1
    pages = client(tmp_path / "d")
    assert pages.get(f"/{TOKEN}/0/keys.txt").text.split() == list(columns["key"])
    path.write_bytes(data)
    answer = client(tmp_path / "d").get(f"/{TOKEN}/0/keys.txt")
    assert (answer.status_code, answer.text.count("\n")) == (422, 1)
    assert "shard-00001.tfrecord" in answer.text


def test_predictions_are_joined_and_the_worst_come_first(tmp_path: Path, faces: Path) -> None:
    dataset = open_dataset(faces)
    keys, labels = dataset.column("key"), dataset.column("label")
    wrong = set(range(0, 250, 50))
    lines = ["key,prediction,p"]
    for row, key in enumerate(keys):
        right = ("real", "fake")[labels[row]]
        lines.append(f"{key},{('fake' if right == 'real' else 'real') if row in wrong else right},{row / 250}")
    others = "of-another-dataset,real,0.99"
    (tmp_path / "predictions.csv").write_text("\n".join([*lines[:-1], others]))
    pages = client(faces, table=tmp_path / "predictions.csv")
    page = get(pages, "/0/")
    assert set(rows_of(page)[:5]) == wrong
    assert set(rows_of(get(pages, "/0/?where=wrong"))) == wrong
    assert rows_of(get(pages, "/0/?where=p%20%3E%200.9&sort=-p"))[0] == 248
    assert "prediction" in get(pages, "/0/row/3").text
    stored = get(pages, "/0/?sort=")
    assert rows_of(stored) == list(range(100))
    (after,) = [e.attributes["href"] for e in stored.find("a") if e.attributes.get("rel") == "next"]
    assert rows_of(get(pages, after.removeprefix(f"/{TOKEN}"))) == list(range(100, 200))
    (tmp_path / "loss.csv").write_text("key,loss\n" + "\n".join(f"{key},{row % 7}" for row, key in enumerate(keys)))
    assert all(row % 7 == 6 for row in rows_of(get(client(faces, table=tmp_path / "loss.csv"), "/0/"))[:30])
    (tmp_path / "bad.csv").write_text("key,loss\nnothing,1\n")
    with raises(UsageError, expected="keys of the dataset's samples in its column 'key'", found="none of them"):
        client(faces, table=tmp_path / "bad.csv")


@pytest.fixture(scope="module")
def rejecting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source with a damaged image, and what it is packed into."""
    root = tmp_path_factory.mktemp("rejecting")
    write_image(root / "source" / "good.png", scene(0, (40, 30)))
    (root / "source" / "<b>.jpg").write_bytes(b"no image")
    run_packer("build", root / "source", root / "out", "--size", "24", "--quiet", "--max-rejects", "100%")
    return root / "source", root / "out"


def test_rejects_are_listed_and_drawn_from_the_source(rejecting: tuple[Path, Path]) -> None:
    source, out = rejecting
    page = get(client(out), "/0/rejects")
    assert "1 of 2 items rejected" in page.text
    assert "<b>.jpg" in page.text
    assert not page.find("img")
    pages = client(out, source=source)
    (image,) = get(pages, "/0/rejects").find("img")
    answer = pages.get(image.attributes["src"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    (source / "<b>.jpg").write_bytes((source / "good.png").read_bytes())
    assert client(out, source=source).get(image.attributes["src"]).headers["content-type"] == "image/jpeg"
    for name in ("7.jpg", "7/0.jpg"):
        assert pages.get(f"/{TOKEN}/0/rejects/{name}").status_code == 404


def test_folders_of_frames_whose_numbers_begin_at_1_are_drawn(tmp_path: Path) -> None:
    for number in range(1, 4):
        write_image(tmp_path / "source" / "good" / f"{number}.png", scene(number, (40, 30)))
        write_image(tmp_path / "source" / "bad" / f"{number}.png", scene(number, (40, 30)))
    whole = (tmp_path / "source" / "bad" / "1.png").read_bytes()
    for path in (tmp_path / "source" / "bad").iterdir():
        path.write_bytes(b"no image")
    run_packer(
        *("build", tmp_path / "source", tmp_path / "out", "--frame-folders", "25", "--max-rejects", "100%", "--quiet")
    )
    (tmp_path / "source" / "bad" / "1.png").write_bytes(whole)
    pages = client(tmp_path / "out", source=tmp_path / "source")
    (image,) = get(pages, "/0/rejects").find("img")
    assert pages.get(image.attributes["src"]).headers["content-type"] == "image/jpeg"
    assert "good, frame 1" in pages.get(f"/{TOKEN}/0/row/0/original").text


@pytest.mark.parametrize("kind", ["tgz", "folder of tars", "lmdb", "parquet"])
def test_rejects_in_archives_are_drawn(tmp_path: Path, kind: str) -> None:
    bad = b"\xff\xd8\xff no jpeg"
    photos = {"good": archives.encoded(1), "wrong": bad}
    members = [(f"{key}.jpg", data) for key, data in photos.items()]
    if kind == "lmdb":
        source = archives.write_lmdb(tmp_path / "in.lmdb", {key.encode(): data for key, data in photos.items()})
    elif kind == "parquet":
        source = tmp_path / "in.parquet"
        archives.write_parquet(source, 2, image=[{"bytes": data, "path": key} for key, data in photos.items()])
    else:
        source = tmp_path / "in" / ("a.tgz" if kind == "tgz" else "deep/a.tar")
        archives.write_tar(source, members)
        if kind == "folder of tars":
            archives.write_tar(tmp_path / "in" / "b.tar", [("other.jpg", archives.encoded(2))])
            source = tmp_path / "in"
    run_packer("build", source, tmp_path / "d", "--size", "16", "--quiet", "--max-rejects", "100%")
    pages = client(tmp_path / "d", source=source)
    (image,) = get(pages, "/0/rejects").find("img")
    assert pages.get(image.attributes["src"]).headers["content-type"] == "image/svg+xml"  # it does not decode
    assert [e.attributes["viewbox"] for e in get(pages, "/0/row/0/original").find("svg")] == []
    original = pages.get(f"/{TOKEN}/0/row/0/original.jpg")
    assert original.status_code == 200, original.text
    with Image.open(io.BytesIO(original.content)) as found:
        assert found.size == (32, 24)
    one = DatasetView(BrowsedDataset(tmp_path / "d"), source)
    for more in ("x", "\ud800"):
        with pytest.raises(ItemError, match="expected a member"):
            one.originals.frame(one.rejects.kinds[0].examples[0].item + more)
    for name in ("../in/a.tar!good", "/etc/passwd!good", "nothing.tar!good", "!", "a.tar!\0"):
        with raises(ItemError, expected="a file in the source", found="none"):
            one.originals.frame(name)
    close_contents()


def test_over_ssh_the_tunnel_is_named() -> None:
    assert (
        "ssh -L 8017:127.0.0.1:8017 10.0.0.9" in describe_address(("127.0.0.1", 8017), "10.0.0.5 51122 10.0.0.9 22")[0]
    )
    assert len(describe_address(("127.0.0.1", 8017))) == 1
    assert "unencrypted" in describe_address(("0.0.0.0", 8017))[0]


@pytest.fixture
def server(faces: Path) -> Iterator[tuple[object, str]]:
    """The command itself, and the address that it prints."""
    started = start_packer("view", faces, "--port", "0")
    assert started.stdout is not None
    line = started.stdout.readline()
    yield started, re.findall(r"http://\S+", line)[0]
    if started.poll() is None:
        started.kill()
    started.communicate()


def test_the_command_serves_this_machine_alone_until_ctrl_c(server: tuple[object, str]) -> None:
    started, address = server
    where = urlsplit(address)
    assert where.hostname == "127.0.0.1"
    assert len(where.path.strip("/")) >= 20
    with socket.create_connection((where.hostname, where.port), timeout=120) as connection:
        request = f"GET {where.path}0/ HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"server:" not in answer.lower().split(b"\r\n\r\n")[0]
    with socket.create_connection((where.hostname, where.port), timeout=120) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400" in connection.recv(1 << 16)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "Traceback" not in errors
    assert errors.strip().endswith("packer: interrupted")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of descriptors")
def test_half_open_connections_do_not_stop_the_pages(faces: Path) -> None:
    shell = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *arguments("view", faces, "--port", "0")]
    with subprocess.Popen(
        shell, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        where = urlsplit(re.findall(r"http://\S+", started.stdout.readline())[0])
        with ExitStack() as stack:
            for number in range(200):
                waiting = stack.enter_context(socket.create_connection((where.hostname, where.port), timeout=60))
                waiting.sendall(b"GET / HTTP/1.1\r\nHost:"[: 9 * (number % 3)])
            with urllib.request.urlopen(f"{where.geturl()}0/", timeout=60) as answer:
                assert rows_of(Page(answer.read().decode())) == list(range(100))
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=60)
    assert "Too many open files" not in errors
    assert "Traceback" not in errors


def test_wrong_calls_of_the_command(faces: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_packer("view", faces, "--port", taken.getsockname()[1], expect=2)
    assert "cannot listen" in done.stderr


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two datasets that share two images of eight, one of them under another label."""
    root = tmp_path_factory.mktemp("leaking")
    for name, numbers in (("train", range(6)), ("test", (4, 5, 6, 7))):
        for number in numbers:
            label = "b" if (name, number) == ("test", 5) else "a"
            write_image(root / "in" / name / label / f"{number}.png", scene(number, (96, 96)))
        build(root / "in" / name, root / name, label_from="folder", **QUIET)
    return root / "train", root / "test"


def test_groups_of_duplicates_are_shown_side_by_side(leaking: tuple[Path, Path]) -> None:
    with view(leaking, duplicates=True, port=0, progress=False) as viewer:
        page = Page(urllib.request.urlopen(viewer.address).read().decode())
        groups = page.find("section", "group")
        assert len(groups) == 2
        cards = [[e for e in descendants(group) if "card" in e.classes] for group in groups]
        assert [len(one) for one in cards] == [2, 2]
        assert [any("conflict" in e.classes for e in descendants(group)) for group in groups].count(True) == 1
        parts = urlsplit(viewer.address)
        for card in cards[0]:
            assert urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}{card.attributes['href']}").status == 200
            image = next(e for e in descendants(card) if e.tag == "img")
            assert urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}{image.attributes['src']}").status == 200
        sample = Page(urllib.request.urlopen(f"{viewer.address}0/").read().decode())
        assert any(link.text == "Duplicates" for link in sample.find("a"))


def test_a_selection_becomes_a_column_by_which_a_dataset_is_cleaned(leaking: tuple[Path, Path], tmp_path: Path) -> None:
    out = copy(leaking[0], tmp_path / "ds", progress=False)
    compute(tmp_path / "ds", "quality", workers=0, progress=False)
    pages, sharpness = client(tmp_path / "ds"), open_dataset(tmp_path / "ds").column("sharpness")
    least = float(np.sort(sharpness)[2])
    assert any(
        e.attributes["data-src"].endswith("/field/sharpness") for e in get(pages, "/0/").find("section", "field")
    )
    assert rows_of(get(pages, "/0/?sort=sharpness")) == np.argsort(sharpness, kind="stable").tolist()
    table = pages.get(f"/{TOKEN}/0/keep.jsonl?where={quote(f'sharpness >= {least!r}')}")
    (tmp_path / "keep.jsonl").write_bytes(table.content)
    run_packer("add", tmp_path / "ds", tmp_path / "keep.jsonl")
    run_packer("copy", tmp_path / "ds", tmp_path / "clean", "--where", "keep")
    assert len(open_dataset(tmp_path / "clean")) == out.manifest.samples - 2
    assert min(open_dataset(tmp_path / "clean").column("sharpness")) >= least
