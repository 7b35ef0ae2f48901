"""Folders on a network file system, where threads list the next folders and ask for files while others are read."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import examples

from packer.sources import files
from packer.sources.base import Listing
from packer.sources.folders import walk
from packer.sources.folders.folder import FolderSource
from shardspec.errors import BuildError

NAMES = st.sampled_from(["a", "a-b", "a.png", "b", "b.png", "é", ".c.png", "d.txt", "e.mp4", "f", "z.jpg"])
TREES = st.recursive(st.none(), lambda below: st.dictionaries(NAMES, below, max_size=6), max_leaves=40)


def plant(folder: Path, tree: dict[str, object]) -> None:
    """Make a tree: files where it says nothing."""
    folder.mkdir()
    for name, below in tree.items():
        if isinstance(below, dict):
            plant(folder / name, below)
        else:
            (folder / name).write_bytes(os.fsencode(name))


def listed(folder: Path, *, far: bool, kept: int = 20_000) -> Listing:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "is_on_network", lambda _: far)
        patch.setattr(walk, "THREADS", 3)
        patch.setattr(walk, "_SCANNED_AHEAD", kept)
        return FolderSource(folder).list_items("folder", "path")


@examples(30)
@given(tree=st.dictionaries(NAMES, TREES, max_size=6), kept=st.sampled_from([0, 2, 20_000]))
def test_remote_and_local_folders_are_listed_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object], kept: int
) -> None:
    folder = tmp_path_factory.mktemp("far") / "source"
    plant(folder, tree)
    near, far = listed(folder, far=False), listed(folder, far=True, kept=kept)
    assert list(far.items) == list(near.items)
    assert (far.ignored, far.classes, far.notes) == (near.ignored, near.classes, near.notes)
    names = [os.fsencode(item.name) for item in far.items]
    assert names == sorted(names)


def test_a_folder_that_cannot_be_listed_ends_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "source", {f"{number:02d}": {"a.png": None} for number in range(40)})
    scandir = os.scandir

    def refuse(folder: str | Path) -> object:
        if os.fspath(folder).endswith("20"):
            raise PermissionError(13, "Permission denied", os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    for far in (False, True):
        with pytest.raises(BuildError, match="20: cannot be listed: Permission denied"):
            listed(tmp_path / "source", far=far)
