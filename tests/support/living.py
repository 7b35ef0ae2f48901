"""A dataset that lives, and a model of what must be readable in it. Run as a program:
``living.py FOLDER FORMAT KILLS SEED``.

The program runs a random history in which changes of the dataset are killed by SIGKILL, at a random operation on files
or after a random time, until there were so many kills. It prints what it has done, in one JSON line.
"""

import json
import os
import pkgutil
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

import packer
from packer.workspace import Workspace
from packer.workspace.replacement import finish
from readers import open_dataset
from shardspec.errors import DatasetChangedError, UsageError
from shardspec.layout import Layout
from support.command import read_jsonl
from support.crash_points import run_hooked
from support.packed import check_whole

NAMES = [f"{letter}.png" for letter in "abcdefgh"]
HOW: dict[str, Any] = {"encode": "png", "engine": "inline", "progress": False, "max_rejects": 1.0, "shard_size": 700}
OPERATIONS = ("os.replace", "os.link", "shutil.rmtree")
FIRST = 1000.0
"""What the first sample gets as its score, which all others count on from."""


class Killed(BaseException):
    """Ends a change at an operation on files."""


@dataclass(frozen=True)
class File:
    """A file of the source: the grey of its image, None if it is broken; its time stands for what it is known by."""

    grey: int | None
    time: int


@dataclass(frozen=True)
class Item:
    """An item of the dataset, as it was packed, rejected or dropped."""

    name: str
    file: File
    gone: bool = False

    @property
    def state(self) -> str:
        """Its state in ``items.jsonl``."""
        return "gone" if self.gone else "rejected" if self.file.grey is None else "packed"


class Living:
    """A source, a dataset made of it, and what must be readable.

    Parameters
    ----------
    folder : Path
    format : str
    attempt : callable
        Runs a change, and ends it early if it is given where; returns its result, None if it was ended.

    Attributes
    ----------
    readable : list of (str, str, int)
        Key, source and grey of each sample.
    scores : dict of str to (float or None), or None
        The added field ``score`` by key; None without the field.
    """

    def __init__(self, folder: Path, format: str, attempt: "Callable[..., Any] | None" = None) -> None:
        self.folder = folder
        self.source, self.out = folder / "source", folder / "out"
        self.source.mkdir()
        self.how = {**HOW, "format": format}
        self.attempt = attempt or die_in_process
        self.files: dict[str, File] = {}
        self.items: list[Item] = []
        self.readable: list[tuple[str, str, int]] = []
        self.scores: dict[str, float | None] | None = None
        self.marks = False
        self.shards: list[Any] = []
        self.time, self.score = 1, FIRST
        self.done: Counter[str] = Counter()
        self.write("a.png", 1)

    def write(self, name: str, grey: int | None) -> None:
        """Put an image into the source, or a broken one."""
        self.time += 1
        path = self.source / name
        if grey is None:
            path.write_bytes(b"")
        else:
            Image.fromarray(np.full((4, 5, 3), grey, np.uint8)).save(path)
        os.utime(path, ns=(self.time, self.time))
        self.files[name] = File(grey, self.time)

    def remove(self, name: str) -> None:
        """Remove a file of the source, but not the last one."""
        if len(self.files) > 1 and self.files.pop(name, None):
            (self.source / name).unlink()

    def update(self, kill_at: Any = None, *, changed: str = "keep", gone: str = "keep") -> None:
        """Update the dataset, or build it."""
        if not self.items and not any(file.grey is not None for file in self.files.values()):
            return  # nothing could be packed
        numbers = {item.name: n for n, item in enumerate(self.items)}
        known = {item.name: item for item in self.items if not item.gone}
        differ = [name for name in self.files if name in known and known[name].file != self.files[name]]
        rejected = [name for name in differ if known[name].file.grey is None]
        lost = [n for n, item in enumerate(self.items) if not item.gone and item.name not in self.files]
        returned = [name for name in self.files if name in numbers and name not in known]
        new = [name for name in sorted(self.files) if name not in numbers]
        anew = [*returned, *(differ if changed == "replace" else ())]
        tried = sorted(numbers[name] for name in anew)
        after = list(self.items)
        for n in tried:
            after[n] = Item(after[n].name, self.files[after[n].name])
        for n in lost if gone == "drop" else ():
            after[n] = replace(after[n], gone=True)
        after += [Item(name, self.files[name]) for name in new]
        tried += range(len(self.items), len(after))
        if lost and gone == "drop" and not self.files.keys() & known.keys():
            self.refused(update=True, gone=gone, changed=changed)
            return
        if self.items and tried and self.scores is not None and not self.marks:
            self.refused(update=True, gone=gone, changed=changed)
            return
        if self.readable and not any(item.state == "packed" for item in after):
            self.refused(update=True, gone=gone, changed=changed)
            return
        result = self.run(after, tried, kill_at, update=True, changed=changed, gone=gone)
        if result is not None and result.growth is not None:
            growth, replaced = result.growth, changed == "replace"
            assert growth.new == len(new) + len(returned)
            assert growth.retried == (len(rejected) if replaced else 0)
            assert growth.changed == len(differ) - growth.retried
            assert growth.kept == len(self.files.keys() & known.keys()) - len(differ)
            assert (growth.gone, growth.dropped) == (len(lost), len(lost) if gone == "drop" else 0)
            assert growth.replaced == (growth.changed if replaced else 0)
            assert result.found_finished == (not tried and not growth.dropped)

    def retry(self, kill_at: Any = None) -> None:
        """Try the rejected items again."""
        if not self.items:
            return
        tried = [n for n, item in enumerate(self.items) if item.state == "rejected" and item.name in self.files]
        if tried and self.scores is not None and not self.marks:
            self.refused(retry_rejects=True)
            return
        after = list(self.items)
        for n in tried:
            after[n] = replace(after[n], file=self.files[after[n].name])
        result = self.run(after, tried, kill_at, retry_rejects=True)
        if result is not None and result.growth is not None:
            mended = sum(after[n].file.grey is not None for n in tried)
            assert (result.growth.retried, result.growth.mended) == (len(tried), mended)

    def add(self, kill_at: Any = None, *, marks: bool = True) -> None:
        """Add a field, or replace it."""
        if not self.readable:
            return
        keys, before = [key for key, *_ in self.readable], self.columns()
        scores = {key: self.score + n for n, key in enumerate(keys)}
        self.score += len(keys)
        table = {"key": keys, "score": list(scores.values())}
        how = {"replace": True, "allow_missing": marks, "progress": False}
        if self.change(lambda: packer.add(self.out, table, **how), kill_at, "add") is not None or (
            self.columns() != before
        ):
            self.scores, self.marks = dict(scores), marks
        self.check()

    def drop(self, kill_at: Any = None) -> None:
        """Drop the field."""
        if self.scores is None:
            return
        self.change(lambda: packer.drop_field(self.out, "score", progress=False), kill_at, "drop")
        if not self.columns():
            self.scores = None
        self.check()

    def change(self, call: Callable[[], Any], kill_at: Any, what: str) -> Any:
        """Run a change of the finished dataset, which an unfinished build in its folder refuses."""
        self.done[what] += 1
        unfinished = (self.out / ".build" / "plan.json").exists()
        try:
            result = self.attempt(call, kill_at, self.out)
        except UsageError as error:
            if unfinished and "unfinished" in str(error):
                return None
            raise
        self.finish()
        return result

    def run(self, after: list[Item], tried: list[int], kill_at: Any, **options: Any) -> Any:
        """Build, perhaps killed; the dataset is then what it was, or what it was to become."""
        self.done["build"] += 1
        opened = open_dataset(self.out) if self.items else None
        before, standing = list(self.readable), self.items_digest()
        result = self.attempt(lambda: packer.build(self.source, self.out, **{**self.how, **options}), kill_at, self.out)
        self.finish()
        copied = False
        if self.items_digest() != standing:
            removed = {
                f"{n:08d}-000000" for n, (one, now) in enumerate(zip(self.items, after, strict=False)) if one != now
            }
            self.readable = [sample for sample in self.readable if sample[0] not in removed]
            copied = len(self.readable) < len(before)
            self.shards = [] if copied else self.shards
            packed = [(n, after[n]) for n in tried if after[n].file.grey is not None]
            self.readable += [(f"{n:08d}-000000", item.name, item.file.grey or 0) for n, item in packed]
            if self.scores is not None:
                fresh = {f"{n:08d}-000000" for n, _ in packed}
                self.scores = {key: None if key in fresh else self.scores[key] for key, *_ in self.readable}
            self.items = after
        else:
            assert result is None or after == self.items
        self.check()
        if opened is not None:
            with suppress(DatasetChangedError) if copied or self.scores is not None else ExitStack():
                rows = [opened[row] for row in range(len(opened))]
                assert [(row["key"], row["source"]) for row in rows] == [sample[:2] for sample in before]
        return result

    def refused(self, **options: Any) -> None:
        """A build that is a wrong call, and changes nothing."""
        standing = self.items_digest()
        try:
            packer.build(self.source, self.out, **{**self.how, **options})
        except UsageError:
            assert self.items_digest() == standing
        else:
            raise AssertionError("expected a wrong call, found that it was done")

    def finish(self) -> None:
        """Do what the next call does first, which may itself be killed."""
        finish(Workspace(self.out / ".build"))

    def items_digest(self) -> str | None:
        """Which report of items is the dataset's."""
        if not (self.out / "manifest.json").exists():
            return None
        entry = Layout(self.out).load().find_file("items.jsonl")
        assert entry is not None
        return entry.sha256

    def columns(self) -> tuple[Any, ...]:
        """The dataset's columns."""
        return Layout(self.out).load().columns

    def check(self) -> None:
        """Compare everything with the model."""
        if not (self.out / "manifest.json").exists():
            assert not self.readable
            return
        layout = Layout(self.out)
        manifest = layout.load()
        shards = [[entry.sha256 for entry in shard.files] for shard in manifest.shards]
        assert shards[: len(self.shards)] == self.shards, "a shard was written anew"
        self.shards = shards
        ds = open_dataset(self.out)
        samples = [ds[row] for row in range(len(ds))]
        found = [(sample["key"], sample["source"], int(sample["image"][0, 0, 0])) for sample in samples]
        assert found == self.readable
        if self.scores is not None:
            scores = [float(s["score"]) if s.get("score_valid", True) else None for s in samples]
            assert scores == [self.scores[key] for key, *_ in self.readable]
        else:
            assert not manifest.columns
        entry = manifest.find_file("items.jsonl")
        assert entry is not None
        lines = read_jsonl(layout.file(entry))
        assert [(line["item"], line["state"]) for line in lines] == [(item.name, item.state) for item in self.items]
        states = [item.state for item in self.items if not item.gone]
        report = packer.rejects(self.out, progress=False)
        assert (report.items, report.rejected) == (len(states), states.count("rejected"))

    def end(self) -> None:
        """Finish what is unfinished, and compare the dataset with its manifest."""
        if not self.items:
            return
        self.update()
        shutil.rmtree(self.out / ".build", ignore_errors=True)
        check_whole(self.out)
        assert packer.verify(self.out, deep=True, progress=False).problems == ()


def die_in_process(call: Callable[[], Any], kill_at: int | None, _out: Path) -> Any:
    """Run a change, and end it by an exception at the given operation on files."""
    left = [kill_at]

    def dying(whole: Any) -> Any:
        def operation(*arguments: Any, **more: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return whole(*arguments, **more)

        return operation

    with ExitStack() as stack:
        for name in OPERATIONS:
            stack.enter_context(patch(name, dying(pkgutil.resolve_name(name))))
        with suppress(Killed):
            return call()
    return None


class Dying:
    """Runs changes in forked processes, and kills them.

    Attributes
    ----------
    kills : int
        Processes that were killed before they had ended.
    """

    def __init__(self) -> None:
        self.kills = 0

    def __call__(self, call: Callable[[], Any], kill_at: int | float | None, out: Path) -> Any:
        """Run a change; kill it at an operation on files, or after a time in seconds."""
        if kill_at is None:
            return call()
        if isinstance(kill_at, int):
            status, operation = run_hooked(self.quiet(call), out, kill_at)
            self.kills += bool(operation)
        else:
            status = self.kill_after(self.quiet(call), kill_at)
            self.kills += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a process failed"
        return None

    def quiet(self, call: Callable[[], Any]) -> Callable[[], None]:
        """The change; that it is refused is not a failure."""

        def run() -> None:
            with suppress(UsageError):
                call()

        return run

    def kill_after(self, call: Callable[[], Any], seconds: float) -> int:
        """Fork, and kill the child after a time; its status."""
        child = os.fork()
        if not child:
            status = 1
            try:
                call()
                status = 0
            finally:
                os._exit(status)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]


def main(folder: Path, format: str, kills: int, seed: int) -> None:
    """A random history with so many kills."""
    draw, dying = random.Random(seed), Dying()
    living = Living(folder, format, dying)
    choices = ["keep", "replace"], ["keep", "drop"]
    while dying.kills < kills:
        for _ in range(draw.randrange(3)):
            name, grey = draw.choice(NAMES), draw.choice([None, *range(2, 250)])
            living.remove(name) if draw.random() < 0.3 else living.write(name, grey)
        kill_at = draw.choice([None, draw.randrange(120), draw.random() * 0.06, draw.random() * 0.3])
        what = draw.choice(["update", "update", "update", "update", "retry", "add", "drop"])
        if what == "update":
            living.update(kill_at, changed=draw.choice(choices[0]), gone=draw.choice(choices[1]))
        elif what == "add":
            living.add(kill_at, marks=draw.random() < 0.8)
        else:
            getattr(living, what)(kill_at)
    living.end()
    print(json.dumps({"kills": dying.kills, **living.done, "samples": len(living.readable)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
