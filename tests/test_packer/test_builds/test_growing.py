"""Random histories of a dataset that grows, against a model of what must be readable."""

import os
import pkgutil
import shutil
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from PIL import Image
from support.command import read_jsonl
from support.packed import check_whole, read_samples

import packer
from packer.workspace import Workspace
from packer.workspace.replacement import finish_replacement
from readers import open_dataset
from shardspec.layout import Layout

NAMES = [f"{letter}.png" for letter in "abcdefgh"]
names = st.sampled_from(NAMES)
HOW = {"encode": "png", "engine": "inline", "progress": False, "max_rejects": 1.0, "shard_size": 700}


class Killed(BaseException):
    """Ends a build at an operation on files."""


@dataclass(frozen=True)
class File:
    """A file of the source: the grey of its picture, None if it is broken; its time stands for what it is known by."""

    grey: int | None
    time: int


@dataclass(frozen=True)
class Packed:
    """An item of the dataset."""

    name: str
    file: File


class Growing(RuleBasedStateMachine):
    """Builds, updates and retries, some of them killed, of a folder that changes meanwhile."""

    @initialize(format=st.sampled_from(["lmdb", "npy"]))
    def begin(self, format: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.source, self.out = self.folder / "source", self.folder / "out"
        self.source.mkdir()
        self.how = {**HOW, "format": format}
        self.files: dict[str, File] = {}
        self.items: list[Packed] = []
        self.readable: list[tuple[str, str, int]] = []
        self.shards: list[Any] = []
        self.time = 1
        self.write("a.png", 1)

    def teardown(self) -> None:
        if self.items and not (self.out / ".build").exists():
            check_whole(self.out)
            assert packer.verify(self.out, deep=True, progress=False).problems == ()
        shutil.rmtree(self.folder)

    def write(self, name: str, grey: int | None) -> None:
        self.time += 1
        path = self.source / name
        if grey is None:
            path.write_bytes(b"")
        else:
            Image.fromarray(np.full((4, 5, 3), grey, np.uint8)).save(path)
        os.utime(path, ns=(self.time, self.time))
        self.files[name] = File(grey, self.time)

    @rule(name=names, grey=st.integers(2, 250))
    def write_picture(self, name: str, grey: int) -> None:
        self.write(name, grey)

    @rule(name=names)
    def break_picture(self, name: str) -> None:
        self.write(name, None)

    @rule(name=names)
    @precondition(lambda self: len(self.files) > 1)
    def remove(self, name: str) -> None:
        if len(self.files) > 1 and self.files.pop(name, None):
            (self.source / name).unlink()

    @rule(kill_at=st.one_of(st.none(), st.integers(0, 60)))
    def update(self, kill_at: int | None) -> None:
        if not self.items and not any(file.grey is not None for file in self.files.values()):
            return  # nothing could be packed
        new = [name for name in sorted(self.files) if name not in {item.name for item in self.items}]
        known = {item.name: item.file for item in self.items}
        same = sum(known.get(name) == file for name, file in self.files.items())
        counts = (len(new), same, len(self.files) - len(new) - same, len(known.keys() - self.files.keys()))
        after = [*self.items, *(Packed(name, self.files[name]) for name in new)]
        result = self.run(after, list(range(len(self.items), len(after))), kill_at, update=True)
        if result is not None and result.growth is not None:
            growth = result.growth
            assert (growth.new, growth.kept, growth.changed, growth.gone) == counts
            assert result.found_finished == (not new)

    @rule(kill_at=st.one_of(st.none(), st.integers(0, 60)))
    @precondition(lambda self: self.items)
    def retry(self, kill_at: int | None) -> None:
        places = [n for n, item in enumerate(self.items) if item.file.grey is None and item.name in self.files]
        after = list(self.items)
        for place in places:
            after[place] = replace(after[place], file=self.files[after[place].name])
        result = self.run(after, places, kill_at, retry_rejects=True)
        if result is not None and result.growth is not None:
            mended = sum(after[place].file.grey is not None for place in places)
            assert (result.growth.retried, result.growth.mended) == (len(places), mended)

    def run(self, after: list[Packed], tried: list[int], kill_at: int | None, **options: Any) -> Any:
        """Build, perhaps killed; the dataset is then what it was, or what it was to become."""
        left = [kill_at]

        def dying(whole: Any) -> Any:
            def operation(*arguments: Any, **more: Any) -> Any:
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                return whole(*arguments, **more)

            return operation

        opened = open_dataset(self.out) if self.items else None
        before, standing, result = list(self.readable), self.items_digest(), None
        operations = ("os.replace", "os.link", "shutil.rmtree")
        with ExitStack() as stack:
            for name in operations:
                stack.enter_context(patch(name, dying(pkgutil.resolve_name(name))))
            with suppress(Killed):
                result = packer.build(self.source, self.out, **{**self.how, **options})
        if result is None:
            finish_replacement(
                Workspace(self.out / ".build")
            )  # as the next call does first, which may itself be killed
        if self.items_digest() != standing:
            packed = [(n, after[n]) for n in tried if after[n].file.grey is not None]
            self.readable += [(f"{n:08d}-000000", item.name, item.file.grey or 0) for n, item in packed]
            self.items = after
        else:
            assert result is None or after == self.items
        assert self.read() == self.readable
        if opened is not None:
            rows = [opened[row] for row in range(len(opened))]
            assert [(row["key"], row["source"]) for row in rows] == [sample[:2] for sample in before]
        return result

    def items_digest(self) -> str | None:
        """Which report of items is the dataset's."""
        if not (self.out / "manifest.json").exists():
            return None
        entry = Layout(self.out).load().find_file("items.jsonl")
        assert entry is not None
        return entry.sha256

    def lines(self) -> list[Any]:
        """The dataset's report of items."""
        layout = Layout(self.out)
        entry = layout.load().find_file("items.jsonl")
        assert entry is not None
        return read_jsonl(layout.file(entry))

    def read(self) -> list[tuple[str, str, int]]:
        if not (self.out / "manifest.json").exists():
            return []
        manifest = Layout(self.out).load()
        known = [(shard.samples, [entry.sha256 for entry in shard.files]) for shard in manifest.shards]
        assert known[: len(self.shards)] == self.shards, "a shard was written anew"
        self.shards = known
        return [(sample["key"], sample["source"], int(sample["image"][0, 0, 0])) for sample in read_samples(self.out)]

    @invariant()
    def items_are_accounted_for(self) -> None:
        if not getattr(self, "items", None):
            return
        lines = self.lines()
        assert [line["item"] for line in lines] == [item.name for item in self.items]
        states = [line["state"] == "packed" for line in lines]
        assert states == [item.file.grey is not None for item in self.items]
        report = packer.rejects(self.out)
        assert (report.items, report.rejected) == (len(states), states.count(False))


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(
    max_examples=8, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
