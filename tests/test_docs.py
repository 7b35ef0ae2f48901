"""The pages for people: what they link to and name is there, and their commands know every option that they show."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer

from packer.cli.line import COMMANDS

PAGES = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "shardspec/SPEC.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
)
MADE = {
    *(REPOSITORY / "docs/reference/commands" / f"{name}.md" for name in COMMANDS),
    *(REPOSITORY / "docs/reference/python" / f"{name}.md" for name in ("packer", "readers", "readers.augment")),
    *(REPOSITORY / "docs/reference/python" / f"{name}.md" for name in ("readers.lightning", "shardspec")),
}
"""Pages that ``docs/make_site.py`` makes. ``make docs`` checks their anchors."""

WIDTH, README_LINES = 120, 120


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
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if target in MADE:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    named = re.findall(r"`((?:packer|readers|shardspec|benchmarks|examples|tests)/[\w./-]+)`", text)
    assert missing + [path for path in named if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_lines_are_short(page: Path) -> None:
    def blank(block: re.Match[str]) -> str:
        """Leave out the lines of output, which has no language."""
        return block[0] if block[1] else "\n" * block[0].count("\n")

    text = re.sub(r"^```(\w*)\n.*?^```$", blank, page.read_text("utf-8"), flags=re.M | re.S)
    lines = enumerate(text.splitlines(), 1)
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


def test_every_page_of_the_site_has_a_place_in_its_navigation() -> None:
    navigation = (REPOSITORY / "zensical.toml").read_text("utf-8")
    shown = re.findall(r'"([\w./-]+\.md)"', str(tomllib.loads(navigation)["project"]["nav"]).replace("'", '"'))
    docs = REPOSITORY / "docs"
    pages = {path.relative_to(docs).as_posix() for path in (*docs.rglob("*.md"), *MADE)}
    assert sorted(shown) == sorted({*pages, "repository/shardspec/SPEC.md"})


def test_the_first_page_links_to_every_other() -> None:
    docs = REPOSITORY / "docs"
    linked = {
        path.partition("#")[0] for path in re.findall(r"\]\(([^)\s]+)\)", (docs / "README.md").read_text("utf-8"))
    }
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert pages - {"README.md"} <= linked


@pytest.mark.parametrize("package", ["packer", "readers"])
def test_the_overview_of_a_package_names_what_exists(package: str) -> None:
    """Files and folders by the end of their path, and names by the words of the code."""
    text = (REPOSITORY / package / "README.md").read_text("utf-8")
    text = re.sub(r"^## Files in OUT.*?(?=^## )|^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    roots = [REPOSITORY / name for name in ("packer", "readers", "shardspec", "tests", "docs")]
    files = [path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".md")]
    places = {f"/{path.relative_to(REPOSITORY).as_posix()}" for path in files}
    words = {word for path in files if path.suffix == ".py" for word in re.findall(r"\w+", path.read_text("utf-8"))}
    spans = set(re.findall(r"`([^`\n]+)`", text))
    paths = [span for span in spans if re.fullmatch(r"[\w/]+(?:\.py|\.md|/)", span)]
    names = [
        span for span in spans if re.fullmatch(r"\w+(?:\.[A-Z]?[a-z_]+)?", span) and re.search(r"[A-Z]|\w_\w", span)
    ]
    assert len(paths) > 10
    assert [span for span in paths if not any(f"/{span}" in place for place in places)] == []
    assert [span for span in {*names} - {*paths} if span.rpartition(".")[2] not in words] == []


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) < README_LINES


def test_the_address_is_written_where_an_index_and_the_site_need_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "pyproject.toml", "zensical.toml", "docs/set_address.py"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    script = tmp_path / "docs" / "set_address.py"
    subprocess.run([sys.executable, script, "https://example.org/us/facepack/"], check=True)
    readme = (tmp_path / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "![" in readme
    assert "https://example.org/us/facepack/raw/HEAD/docs/images/" in readme
    for target in targets:
        kind, _, path = target.removeprefix("https://example.org/us/facepack/").partition("/HEAD/")
        assert kind in ("blob", "raw")
        assert (REPOSITORY / path).exists(), path
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert urls["Repository"] == "https://example.org/us/facepack"
    site = tomllib.loads((tmp_path / "zensical.toml").read_text("utf-8"))
    assert site["project"]["repo_url"] == "https://example.org/us/facepack"
