"""The short way of plain images gives the same datasets as the chain, for whatever it takes and whatever it refuses."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.command import read_jsonl, run_packer
from support.media import photograph
from support.packed import check_whole, fingerprints

import packer
from packer.jobs.schedule import Schedule
from packer.recipe import Recipe
from packer.sources.item import Item
from packer.steps.encode import Encoder
from packer.steps.plain import PlainImages

PLAIN = ("baseline.jpg", "capital.JPG", "exif.jpeg", "grey.jpg", "progressive.jpg", "tiny.jpg", "markers.jpg")
OTHERS = (
    "cmyk.jpg",
    "cut.jpg",
    "empty.jpg",
    "large.jpg",
    "other.png",
    "png.jpg",
    "renamed.jpe",
    "text.jpg",
    "turned.jpg",
)


def jpeg(image: np.ndarray, mode: str = "RGB", **options: Any) -> bytes:
    """An image as JPEG, saved by Pillow."""
    file = BytesIO()
    Image.fromarray(image).convert(mode).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that may go the short way, and others, in two folders."""
    root = tmp_path_factory.mktemp("plain") / "in"
    small, noise = photograph("coffee")[:83, :61], np.random.default_rng(0).integers(0, 256, (500, 500, 3), np.uint8)
    png = BytesIO()
    Image.fromarray(small).save(png, "PNG")
    files = {
        "baseline.jpg": jpeg(small),
        "capital.JPG": jpeg(small, quality=50),
        "exif.jpeg": jpeg(small, exif=turned(1)),
        "grey.jpg": jpeg(small, "L"),
        "progressive.jpg": jpeg(small, progressive=True),
        "tiny.jpg": jpeg(small[:1, :1]),
        "markers.jpg": jpeg(small, restart_marker_blocks=2),
        "cmyk.jpg": jpeg(small, "CMYK"),
        "cut.jpg": jpeg(small)[:-40],
        "empty.jpg": b"",
        "large.jpg": jpeg(noise, quality=100),
        "other.png": png.getvalue(),
        "png.jpg": png.getvalue(),
        "renamed.jpe": jpeg(small),
        "text.jpg": b"\xff\xd8\xff, and no image",
        "turned.jpg": jpeg(small, exif=turned(6)),
    }
    assert sorted(files) == sorted((*PLAIN, *OTHERS))
    assert len(files["large.jpg"]) > 1 << 18
    for number, (name, data) in enumerate(files.items()):
        path = root / "ab"[number % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the items that go the short way."""
    found: list[str] = []
    take = PlainImages.take

    def note(self: PlainImages, *given: Any) -> Any:
        made = take(self, *given)
        found.extend(Path(name).name for name in made.names)
        return made

    monkeypatch.setattr(PlainImages, "take", note)
    return found


def build(source: Any, out: Path, **options: Any) -> dict[str, str]:
    """Build in this process; the digests of all files."""
    packer.build(source, out, engine="inline", progress=False, max_rejects="100%", format="npy", **options)
    return fingerprints(out)


def rows(source: Path) -> list[Mapping[str, Any]]:
    """Columns of every kind; one value that no field can hold."""
    found = []
    for number, path in enumerate(sorted(source.rglob("*.*"))):
        odd = {"note": "\ud800"} if path.name == "grey.jpg" else {"note": f"{number}é"}
        found.append({"path": str(path), "weights": [1.5, number], "meta": {"n": number}, "good": True, **odd})
    return found


CASES: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "folder": lambda source: (source, {}),
    "labels": lambda source: (source, {"label_from": "folder", "steps": "decode,resize", "shuffle": 3}),
    "restart markers": lambda source: (source, {"restart_markers": True}),
    "columns": lambda source: (rows(source), {"root": (str(source),)}),
    "first images": lambda source: (source, {"limit": 5}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_short_way_and_the_chain_give_the_same_dataset(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[str], case: str
) -> None:
    given, options = CASES[case](source)
    short = build(given, tmp_path / "short", **options)
    assert taken
    assert set(taken) <= set(PLAIN)
    if case in ("folder", "labels", "restart markers"):
        assert sorted(taken) == sorted(PLAIN)
    check_whole(tmp_path / "short")
    monkeypatch.setattr(PlainImages, "of", lambda *_: None)
    assert build(given, tmp_path / "long", **options) == short


MADE: dict[str, dict[str, Any]] = {
    "resized": {"size": 32},
    "resized and enlarged": {"size": 70, "resize": "exact", "encode": "webp", "quality": 80},
    "as large": {"size": 61},
    "png": {"encode": "png"},
    "raw": {"encode": "raw", "size": 16},
    "baseline": {"progressive": "baseline"},
    "restart markers": {"restart_markers": True, "size": 32},
    "decoded alone": {"steps": "decode", "encode": "png"},
}
"""Recipes whose images are decoded, whatever their kind."""

WHOLE = (*PLAIN, "cmyk.jpg", "other.png", "png.jpg", "renamed.jpe", "turned.jpg")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("case", MADE)
def test_images_that_are_made_anew_are_the_same_by_the_short_way(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[str], case: str, columns: bool
) -> None:
    given, root = (rows(source), {"root": (str(source),)}) if columns else (source, {})
    short = build(given, tmp_path / "short", **root, **MADE[case])
    # Each is read by the decoder of its kind; what a field cannot hold goes the long way.
    assert sorted(taken) == sorted(set(WHOLE) - {"grey.jpg"} if columns else WHOLE)
    check_whole(tmp_path / "short")
    monkeypatch.setattr(PlainImages, "of", lambda *_: None)
    assert build(given, tmp_path / "long", **root, **MADE[case]) == short


@pytest.mark.parametrize("name", ["mask", "crop_mask"])
def test_a_column_that_is_resized_with_its_image_goes_the_long_way(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[str], name: str
) -> None:
    path = next(source.rglob("baseline.jpg"))
    given = [{"path": str(path), name: np.arange(83 * 61, dtype=np.uint16).reshape(83, 61)}]
    short = build(given, tmp_path / "short", size=32, root=(str(source),))
    assert not taken
    monkeypatch.setattr(PlainImages, "of", lambda *_: None)
    assert build(given, tmp_path / "long", size=32, root=(str(source),)) == short


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_whatever_goes_wrong_on_the_short_way_is_tried_again_by_the_chain(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    long = build(source, tmp_path / "long", size=32)
    failed = []

    def fail(data: bytes, *, bgr: bool) -> None:
        failed.append(data)
        raise error

    monkeypatch.setattr("packer.vision.decode.image.decode_image", fail)
    assert build(source, tmp_path / "short", size=32) == long
    assert failed


@pytest.mark.parametrize("options", [{}, {"size": 32}])
@pytest.mark.parametrize(("limit", "value"), [("_TOGETHER_ITEMS", 1), ("_TOGETHER_BYTES", 1), ("_TOGETHER_S", 0.0)])
def test_images_taken_one_by_one_or_together_give_the_same_dataset(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    limit: str,
    value: float,
) -> None:
    counts: list[int] = []
    take = PlainImages.take

    def count(self: PlainImages, *given: Any) -> Any:
        made = take(self, *given)
        counts.append(len(made))
        return made

    monkeypatch.setattr(PlainImages, "take", count)
    monkeypatch.setattr("packer.steps.plain._TOGETHER_S", 3600.0)
    plain = [row for row in rows(source) if Path(row["path"]).name in PLAIN]
    together = build(plain, tmp_path / "together", root=(str(source),), **options)
    assert max(counts) > 1
    counts.clear()
    monkeypatch.setattr(f"packer.steps.plain.{limit}", value)
    assert build(plain, tmp_path / "alone", root=(str(source),), **options) == together
    assert max(counts) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"encode_field": "mask=png"},
        {"also": "mask"},
        {"steps": "resize,decode"},
        {"steps": "decode,support.steps:add_field"},
    ],
)
def test_a_recipe_with_further_images_or_steps_has_no_short_way(options: dict[str, Any]) -> None:
    recipe = Recipe.from_options(options)
    assert PlainImages.of(recipe, Encoder(recipe)) is None


@pytest.mark.parametrize("change", ["longer", "shorter", "same size", "newer", "gone"])
def test_a_image_that_has_changed_since_it_was_listed_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    data = jpeg(photograph("coffee")[:40, :40])
    for name in ("a.jpg", "b.jpg"):
        tmp_path.joinpath("in").mkdir(exist_ok=True)
        tmp_path.joinpath("in", name).write_bytes(data)
    take = PlainImages.take

    def changed(self: PlainImages, items: Iterable[Item], begin: Callable[[Item], None], *more: Any) -> Any:
        def change_and_begin(item: Item) -> None:
            path = Path(str(item.path))
            if item.name == "a.jpg" and change == "gone":
                path.unlink()
            elif item.name == "a.jpg":
                new = {"longer": data + b"\0", "shorter": data[:-1], "same size": data[:-1] + b"\0"}.get(change, data)
                path.write_bytes(new)
                os.utime(path, ns=(item.mtime_ns, item.mtime_ns + 10**9 * (change in ("newer", "same size"))))
            begin(item)

        return take(self, items, change_and_begin, *more)

    monkeypatch.setattr(PlainImages, "take", changed)
    build(tmp_path / "in", tmp_path / "out")
    (line,) = read_jsonl(tmp_path / "out" / "rejects.jsonl")
    assert line["item"] == "a.jpg"
    assert ("existed when" if change == "gone" else "has changed since the build was planned") in line["reason"]


def test_an_item_that_must_not_be_tried_again_is_not(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[str]
) -> None:
    monkeypatch.setattr(Schedule, "_verdicts_of", lambda *_: {0: ("worker", "brought down a worker")})
    build(source, tmp_path / "out")
    assert len(taken) == len(PLAIN) - 1
    first = read_jsonl(tmp_path / "out" / "rejects.jsonl")[0]
    assert (first["item"], first["step"], first["reason"]) == ("a/baseline.jpg", "worker", "brought down a worker")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_no_text_stays_what_it_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"odd \xff.jpg")
    tmp_path.joinpath("in").mkdir()
    tmp_path.joinpath("in", name).write_bytes(jpeg(photograph("coffee")[:40, :40]))
    done = run_packer("build", tmp_path / "in", tmp_path / "out", "--quiet", "--json")
    assert json.loads(done.stdout)["samples"] == 1
    (line,) = read_jsonl(tmp_path / "out" / "items.jsonl")
    assert line["item"] == name
