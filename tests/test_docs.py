"""The pages for people: what they link to and name is there, and their commands know every option that they show."""

import re
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer

PAGES = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "shardspec/SPEC.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
)
WRITTEN = tuple(page for page in PAGES if page.name != "api.md")
"""Pages that no program makes."""

WIDTH, README_LINES = 120, 150


def name_page(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_and_named_files_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    named = re.findall(r"`((?:packer|readers|shardspec|benchmarks|examples|tests)/[\w./-]+)`", text)
    assert missing + [path for path in named if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_page)
def test_lines_are_short(page: Path) -> None:
    lines = enumerate(page.read_text("utf-8").splitlines(), 1)
    assert [number for number, line in lines if len(line) > WIDTH and not line.startswith(("|", "!["))] == []


def test_commands_know_the_options_that_the_pages_show() -> None:
    shown: dict[str, set[str]] = {}
    for page in PAGES:
        for command, words in re.findall(r"^(?: {4})?packer ([a-z]+) ([^#\n]*)", page.read_text("utf-8"), re.MULTILINE):
            shown.setdefault(command, set()).update(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", words))
    assert {"build", "split", "verify"} <= shown.keys()
    for command, options in shown.items():
        known = set(re.findall(r"--[a-z][a-z-]*", run_packer(command, "--help").stdout))
        assert options <= known, command


def test_the_readme_is_for_people_in_a_hurry() -> None:
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) < README_LINES
