"""The parts as the cut reads them: each opened once, in order, from memory or from a file."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.packed import fingerprints

import packer
from packer.builds.parts import opened as module
from packer.builds.parts.opened import OpenedParts
from packer.builds.parts.part import Part
from packer.builds.parts.writer import PartWriter
from packer.sources.item import ItemReport
from packer.steps.encode import ColumnSpec, EncodedValue
from packer.workspace import Workspace
from shardspec.columns import Buffer

TASKS = 80


def encoded(data: Buffer, kind: str, dtype: str, shape: tuple[int, ...]) -> EncodedValue:
    return EncodedValue(data, shape, ColumnSpec(kind, dtype, len(shape)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Parts of no to three rows, some of which have a second group."""
    space = Workspace(tmp_path_factory.mktemp("parts") / ".build")
    space.create()
    space.create_results(TASKS)
    for task in range(TASKS):
        with PartWriter(space.part(task)) as part:
            for item in range(task % 4):
                part.begin()
                name = b"cat" if item else b"a longer name"
                row = {
                    "image": encoded(bytes([task]) * (task + 1), "image", "|u1", (task + 1, 1, 1)),
                    "label": encoded(name, "class", "|u1", (len(name),)),
                    "time": encoded(np.float64(task).tobytes(), "array", "<f8", ()),
                }
                if item == 2:
                    row["odd"] = encoded(bytes([item]), "array", "|b1", ())
                part.append(row)
                part.end(ItemReport(f"{task}-{item}", frames=1, faces=1))
            part.finish()
    return space


def described(part: Part) -> list[object]:
    groups = []
    for group in part.groups:
        rows = np.arange(len(group))[::-1]
        names = [name for name in group.columns if name != "image"]
        values = [[bytes(value) for value in group.values(name, rows)] for name in names]
        groups.append([dict(group.columns), group.lengths.tolist(), group.axes("image").tolist(), values])
    return [groups, part.group_of, part.reports()]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kept_bytes", [0, 1000, 10**6])
def test_each_part_is_opened_once_and_reads_as_before(
    space: Workspace, ahead: bool, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    class Counted(Part):
        def __init__(self, path: Path, **options: bool) -> None:
            opened.append(path)
            super().__init__(path, **options)

    monkeypatch.setattr(module, "Part", Counted)
    monkeypatch.setattr(module, "_KEPT_BYTES", kept_bytes)
    parts = OpenedParts(space, TASKS, ahead=ahead)
    expected = [described(Part(space.part(task))) for task in range(TASKS)]
    assert [described(part) for part in parts] == expected
    assert [described(part) for part in parts] == expected
    assert [described(parts[task]) for task in reversed(range(TASKS))] == expected[::-1]
    assert sorted(opened) == [space.part(task) for task in range(TASKS)]


def test_finished_tasks_are_those_with_a_part(space: Workspace) -> None:
    space.item_part(TASKS, TASKS).write_bytes(b"")
    space.attempt(space.part(TASKS)).write_bytes(b"")
    assert space.finished_tasks() == set(range(TASKS))


def test_a_build_on_a_network_file_system_gives_the_same_bytes(
    mixed: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are asked for, parts opened and deleted, many at a time."""
    deleted: list[Path] = []
    for place in ("packer.builds.parts.opened", "packer.jobs.shards", "packer.sources.base"):
        monkeypatch.setattr(f"{place}.is_far", lambda _: True)
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        if threading.current_thread() is not threading.main_thread():
            deleted.append(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    options: dict[str, Any] = {"size": 32, "every": 6, "label_from": "folder", "shard_size": "30kB"}
    packer.build(mixed, tmp_path / "out", engine="inline", **options)
    assert fingerprints(tmp_path / "out") == fingerprints(reference)
    assert any(path.name.startswith("part-") for path in deleted)
    assert not (tmp_path / "out" / ".build").exists()
