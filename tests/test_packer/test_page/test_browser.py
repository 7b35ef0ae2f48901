"""Reports and served pages in a real browser: ``make test-page``. Set PAGE_SHOTS to a folder to keep screenshots."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import run_packer
from support.media import scene, write_image, write_video
from support.packed_files import face_columns, write_faces
from support.pages import HOSTILE, write_hostile

from packer import report, view
from readers import open_dataset

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHOTS = os.environ.get("PAGE_SHOTS")

pytestmark = [
    pytest.mark.page,
    pytest.mark.usefixtures("leaks_allowed"),
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page on which nothing may go wrong and which may ask nobody but its own server."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    base = re.match(r"\w+://[^/]*", address)
    assert base is not None
    page.on(
        "request", lambda request: None if request.url.startswith((base[0], "data:")) else wrong.append(request.url)
    )
    page.goto(address)
    page.wait_for_load_state("networkidle")
    yield page
    assert wrong == []
    page.close()


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


def go(page: Any, act: Callable[[], object]) -> None:
    """Do what leads to another page, and wait for it and for all that it fetches."""
    with page.expect_navigation():
        act()
    page.wait_for_load_state("networkidle")


def points_on_screen(page: Any, card: str) -> np.ndarray:
    """Where the points of a card are drawn, in pixels of the stored image: through the browser's own transformation."""
    found = page.evaluate(
        """(card) => [...document.querySelectorAll(card + ' path.points')].flatMap((path) => {
            const image = path.closest('.image').querySelector('img');
            const box = image.getBoundingClientRect(), matrix = path.getScreenCTM();
            const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
            const left = box.x + (box.width - scale * image.naturalWidth) / 2;
            const top = box.y + (box.height - scale * image.naturalHeight) / 2;
            return [...path.getAttribute('d').matchAll(/M(-?[\\d.]+) (-?[\\d.]+)/g)].map(([, x, y]) => {
                const at = new DOMPoint(+x, +y).matrixTransform(matrix);
                return [(at.x - left) / scale, (at.y - top) / scale];
            });
        })""",
        card,
    )
    return np.array(sorted(map(tuple, found)))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser") / "faces"
    write_faces(root, 130, codec="jpeg", size=64)
    return root


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Videos and images, one of them damaged, and what they are packed into."""
    root = tmp_path_factory.mktemp("clips")
    for number, name in enumerate(("real/a.mp4", "fake/b.mp4")):
        write_video(root / "source" / name, frames=12, number=number)
    write_image(root / "source" / "real" / "wide.png", scene(2, (120, 40)))
    (root / "source" / "real" / "<script>alert(1)<script>.jpg").write_bytes(b"no image")
    run_packer(
        *("build", root / "source", root / "out", "--label-from", "folder", "--size", "48", "--every", "2"),
        *("--quiet", "--max-rejects", "100%"),
    )
    return root / "source", root / "out"


def test_a_report_opens_from_the_disk(browser: Any, faces: Path, tmp_path: Path) -> None:
    report(faces, tmp_path / "r.html", progress=False)
    with opened(browser, f"file://{tmp_path}/r.html") as page:
        assert page.locator(".card").count() == 130
        widths = page.evaluate("[...document.querySelectorAll('.card img')].map((image) => image.naturalWidth)")
        assert set(widths) <= {0, 64}  # those out of sight are not decoded yet
        key = page.locator(".card .text .faint").first.inner_text()
        row = open_dataset(faces).find(key)
        expected = np.array(sorted(map(tuple, face_columns(130, codec="jpeg", size=64)["landmarks"][row].tolist())))
        page.locator(".card").first.scroll_into_view_if_needed()
        assert np.allclose(points_on_screen(page, ".card:first-child"), expected, atol=0.05)
        page.get_by_label("points").uncheck()
        assert page.locator("path.points:visible").count() == 0
        assert page.locator("path.outline:visible").count() > 0
        shot(page, "report")


def test_the_grid_filters_sorts_and_opens_samples(browser: Any, faces: Path) -> None:
    dataset = open_dataset(faces)
    with view(faces, port=0, progress=False) as viewer, opened(browser, viewer.address) as page:
        assert page.locator(".card").count() == 100
        assert page.locator("#count").inner_text().startswith("130 samples")
        bar = page.locator('aside a.value:has-text("fake")')
        go(page, bar.click)
        fakes = len(dataset.where("label == 'fake'"))
        assert page.locator("#where").input_value() == "label == 'fake'"
        assert page.locator("#count").inner_text().startswith(f"{fakes} of 130 samples")
        go(page, page.locator(".histogram a:has(.some)").first.click)
        assert int(page.locator("#count").inner_text().split()[0]) < fakes
        page.keyboard.press("/")
        page.keyboard.type("score > 2")  # the filter is selected, so it is replaced
        go(page, partial(page.keyboard.press, "Enter"))
        assert page.locator("#count").inner_text().startswith("0 of 130")
        go(page, page.get_by_text("clear the filter").click)
        page.locator("select[name=sort]").select_option("-score")
        go(page, page.get_by_role("button", name="Show").click)
        scores = np.asarray(dataset.column("score"))
        best = int(np.argmax(scores))
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"row-{best}"
        go(page, partial(page.keyboard.press, "Enter"))
        assert f"/row/{best}?sort=-score" in page.url
        if dataset[best]["landmarks_valid"]:
            expected = np.array(sorted(map(tuple, dataset[best]["landmarks"].tolist())))
            assert np.allclose(points_on_screen(page, "#image"), expected, atol=0.05)
        go(page, partial(page.keyboard.press, "ArrowRight"))
        assert int(page.url.split("/row/")[1].split("?")[0]) == int(np.argsort(-scores, kind="stable")[1])
        neighbours = page.locator(".strip a").count()
        assert neighbours > 10
        go(page, page.locator(".strip a").nth(1).click)
        assert page.locator(".strip a[aria-current]").count() == 1
        shot(page, "sample")


def test_clips_play_and_show_the_frames_they_were_cut_from(browser: Any, clips: tuple[Path, Path]) -> None:
    source, out = clips
    with view(out, source=source, port=0, progress=False) as viewer:
        row = next(row for row, name in enumerate(open_dataset(out).column("source")) if name == "real/a.mp4")
        with opened(browser, f"{viewer.address}0/row/{row}") as page:
            assert page.locator(".strip img").count() == 6
            first = page.locator("#large").get_attribute("src")
            page.get_by_role("button", name="Play").click()
            page.wait_for_function(
                "(first) => document.getElementById('large').getAttribute('src') !== first", arg=first
            )
            page.get_by_role("button", name="Stop").click()
            assert page.locator("#large").get_attribute("src") == first
            assert page.evaluate("document.querySelector('.original img').naturalWidth") == 96
        with opened(browser, f"{viewer.address}0/rejects", color_scheme="dark") as page:
            assert "<script>alert(1)<script>.jpg" in page.locator("main").inner_text()
            shot(page, "rejects")
        with opened(browser, viewer.address) as page:
            page.set_viewport_size({"width": 400, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            shot(page, "narrow")


def test_hostile_texts_never_run(browser: Any, tmp_path: Path) -> None:
    write_hostile(tmp_path / "d")
    report(tmp_path / "d", tmp_path / "r.html", progress=False)
    with opened(browser, f"file://{tmp_path}/r.html") as page:
        assert HOSTILE[0] in page.locator("main").inner_text()
    with view(tmp_path / "d", port=0, progress=False) as viewer:
        for path in ("0/", "0/row/0", "0/row/2", "0/about"):
            with opened(browser, viewer.address + path) as page:
                assert "alert(1)" in page.locator("body").inner_text() or path == "0/about"
