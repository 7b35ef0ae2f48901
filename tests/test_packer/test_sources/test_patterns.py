"""Globs go by the rules of `.gitignore`; a path's placeholders take what they are said to take, in time."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import examples

from packer.sources.folders.patterns import Globs, PathPattern

PARTS = st.sampled_from(["a", "b", "ab", "a.jpg", "b.png", "train", "d_e"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
GLOB_PARTS = st.sampled_from(["*", "**", "?", "a*", "*.jpg", "[ab]", "[!a]", "[a-c]*", "a", "b", "ab", "train", "?*b"])


def chosen(globs: Globs, path: str) -> bool:
    """Whether a pattern matches a file or a folder above it."""
    parts = path.split("/")
    above = [globs.match(parts[:depth], folder=True) for depth in range(1, len(parts))]
    return any([*above, globs.match(parts, folder=False)])


def ignored_by_git(pattern: str, paths: list[str]) -> list[bool]:
    """What git says of files that exist in no folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        (Path(folder) / ".gitignore").write_text(pattern + "\n")
        command = ["git", "-C", folder, "check-ignore", "--no-index", "--stdin", "-z"]
        done = subprocess.run(command, input="\0".join(paths), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [path in done.stdout.split("\0") for path in paths]


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@examples(60)
@given(
    st.lists(GLOB_PARTS, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["", "/"]),
    st.sampled_from(["", "/"]),
    st.lists(PATHS, min_size=8, max_size=24),
)
@example("a/**", "", "", ["a", "a/b", "a/b/b.png", "b/a/b"])
@example("**/a", "", "/", ["a", "b/a", "b/a/b"])
@example("*/**", "", "/", ["a", "b/a", "b/a/b"])
def test_globs_match_what_git_would_ignore(body: str, before: str, after: str, paths: list[str]) -> None:
    pattern = before + body + after
    globs = Globs([pattern])
    assert [chosen(globs, path) for path in paths] == ignored_by_git(pattern, paths), pattern


def test_patterns_with_many_stars_are_fast() -> None:
    globs = Globs(["**/a" * 20 + "/**/b", "*a" * 40 + "b"])
    assert not chosen(globs, "/".join(["a" * 200] * 100))
    pattern = PathPattern("_".join(f"{{p{number}}}" for number in range(20)) + "x.jpg")
    assert pattern.match("_" * 250 + ".jpg") is None


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("{split}/{label}/{clip}.mp4", "train/real/7.mp4", {"split": "train", "label": "real", "clip": "7"}),
        ("{split}/{label}/{clip}.mp4", "train/real/x/7.mp4", None),
        ("{split}/{label}/{clip}.mp4", "train/7.mp4", None),
        ("{split}/{label}/{clip}.mp4", "train/real/7.MP4", None),
        ("{label}/{clip}.*", "real/7.b.MP4", {"label": "real", "clip": "7"}),
        ("{label}/{clip}", "real/7.b.MP4", {"label": "real", "clip": "7.b.MP4"}),
        ("{label}/**", "real/7.mp4", {"label": "real"}),
        ("{label}/**", "real/a/b/7.mp4", {"label": "real"}),
        ("{label}/**", "7.mp4", None),
        ("**/{person}_{clip}.mp4", "id_0_1.mp4", {"person": "id", "clip": "0_1"}),
        ("**/{person}_{clip}.mp4", "a/b/id_0.mp4", {"person": "id", "clip": "0"}),
        ("{a}/**/{b}/{c}.png", "x/y.png", None),
        ("{a}/**/{b}/{c}.png", "x/z/y.png", {"a": "x", "b": "z", "c": "y"}),
        ("{a}/**/{b}/{c}.png", "x/1/2/z/y.png", {"a": "x", "b": "z", "c": "y"}),
        ("./c23/*/id{who}-*", "c23/videos/id7-.mp4", {"who": "7"}),
        ("c23/*/id{who}-*", "c40/videos/id7-.mp4", None),
        ("{a}.mp4", "x.mp4.mp4", {"a": "x.mp4"}),
        ("{a}.mp4", ".mp4", None),
        ("a+({n}).png", "a+(3).png", {"n": "3"}),
        ("{x}\n{y}", "a\nb\nc", {"x": "a", "y": "b\nc"}),
    ],
)
def test_what_placeholders_match(pattern: str, path: str, found: dict[str, str] | None) -> None:
    assert PathPattern(pattern).match(path) == found


NAMES = st.text(st.characters(exclude_characters="/_\0", exclude_categories=["Cs"]), min_size=1, max_size=6)


@given(NAMES, NAMES, NAMES)
def test_from_a_path_values_are_parsed(label: str, person: str, clip: str) -> None:
    found = PathPattern("data/{label}/{person}_{clip}.mp4").match(f"data/{label}/{person}_{clip}.mp4")
    assert found == {"label": label, "person": person, "clip": clip}
