"""A build while it runs, or after it has died: read from its working folder, into which nothing is written."""

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from packer.builds.parts.part import Part
from packer.cluster.status import NOTHING_PACKED, is_at_work
from packer.jobs.plan import Tasks
from packer.packed.shown.pictures import MEDIA_TYPES, StoredPicture, as_png
from packer.page.cards import Card, shown_text
from packer.page.looking import draw_jpeg, read_end
from packer.page.state import Busy, State, TaskDone, item_rate, read_task
from packer.page.workers import Workers
from packer.sources.item import Item
from packer.steps.encode import EncodedValue
from packer.workspace import Workspace
from packer.workspace.lock import describe_holder, read_holder
from readers.drawing.svg import overlay
from shardspec.errors import BuildError, ItemError
from shardspec.layout import BUILD_FOLDER
from shardspec.registry import import_target

_PART = re.compile(r"part-(\d+)(\.item-\d+)?((?:\.[A-Za-z0-9_-]+)?\.[0-9a-f]+\.partial)?\Z")
_SAMPLES = 36
_REJECTS = 30
_LOG_BYTES = 1500
_LOGS = 6
_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"RIFF": "webp"}


class Building:
    """Reads the working folder of a build. Safe to use from several threads.

    Parameters
    ----------
    out : Path
        The folder of the build.
    """

    def __init__(self, out: Path) -> None:
        self.path = out
        self.name = shown_text(out.absolute().name)
        self.space = Workspace(out / BUILD_FOLDER)
        self._done: dict[int, TaskDone] = {}
        self._plan: str | None = None
        self._read: tuple[tuple[int, int], Any] = ((0, 0), {})
        self._workers = Workers()
        self._items: tuple[float, int] = (0.0, 0)
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        """Whether there is a working folder."""
        return self.space.root.is_dir()

    def state(self) -> State:
        """How far it is now."""
        with self._lock:
            busy, changed = self._look(time.time())
            journal = list(self.space.read_journal())
            tasks = sorted(self._done.values(), key=lambda task: -task.finished_s)
            done = sum(task.items for task in tasks)
            items = self._count_items()
            rate = item_rate(tasks)
            running, holder = is_at_work(self.space), read_holder(self.space)
            workers = self._workers.look(self.space, self._tasks()) if running is not False else []
            rejects = [reject for task in tasks for reject in task.rejects]
            return State(
                running=running,
                stage=self._stage(),
                items=items,
                done=done,
                samples=sum(task.samples for task in tasks),
                rejected=len(rejects),
                rate=rate,
                left_s=(items - done) / rate if rate and items > done else None,
                sessions=sum(line.get("did") == "session" for line in journal if isinstance(line, dict)),
                shards=sum(line.get("did") == "shard" for line in journal if isinstance(line, dict)),
                held_by=describe_holder(holder) if holder else "",
                workers=workers,
                busy=busy,
                tasks=tasks,
                rejects=rejects[:_REJECTS],
                logs=list(self._logs()),
                changed_s=changed,
            )

    def samples(self) -> list[tuple[int, int, Card]]:
        """The last samples that were packed: task, row in its part, card."""
        found: list[tuple[int, int, Card]] = []
        classes = self._classes()
        for task in sorted(self._done.values(), key=lambda task: -task.finished_s):
            part = self._part(task.task)
            group = part.groups[0] if part is not None and part.groups else None
            if group is None:
                continue
            for row in range(len(group) - 1, -1, -1)[: max(4, _SAMPLES // 6)]:
                found.append((task.task, row, _card(row, group.row(row), classes)))
                if len(found) == _SAMPLES:
                    return found
        return found

    def picture(self, task: int, row: int) -> StoredPicture | None:
        """The picture of a sample as it was packed; None if it is not there, or no longer."""
        part = self._part(task)
        if part is None or not part.groups or not 0 <= row < len(part.groups[0]):
            return None
        value = _image_of(part.groups[0].row(row))
        if value is None:
            return None
        data = bytes(value.data)
        codec = next((codec for magic, codec in _MAGIC.items() if data.startswith(magic)), None)
        if codec is not None:
            return StoredPicture(data, MEDIA_TYPES[codec])
        return as_png(np.frombuffer(data, np.uint8).reshape(value.shape))

    def reject_picture(self, task: int, place: int) -> bytes | None:
        """The first frame of a rejected item as JPEG; None if there is no such item.

        Raises
        ------
        ItemError
            If it does not decode.
        """
        done = self._done.get(task)
        reject = next((one for one in done.rejects if one.place == place), None) if done is not None else None
        item = None if reject is None else self._find_item(reject.item)
        if item is None:
            return None
        if item.path is None:
            raise ItemError("expected an item that is a file, or a member of an archive")
        read_frame = import_target("packer.packed.shown.originals:read_frame", what="rejects", extra="pack")
        return draw_jpeg(read_frame(item.file))[0]

    def _look(self, now_s: float) -> tuple[list[Busy], float]:
        """Take in new parts; the parts under way, and seconds since the last change."""
        plan = self._fingerprint()
        if plan != self._plan:  # begun anew: the tasks of these numbers are others
            self._plan, self._done = plan, {}
            self.space = self.space.of_plan(plan or "")
        busy, last = [], 0.0
        for entry in self._part_entries():
            match = _PART.match(entry.name)
            if match is None:
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            last, task = max(last, status.st_mtime), int(match[1])
            if match[3]:
                busy.append(
                    Busy(f"{task}{' item by item' if match[2] else ''}", status.st_size, now_s - status.st_mtime)
                )
            elif not match[2] and task not in self._done:
                done = read_task(Path(entry.path), task, status.st_mtime)
                if done is not None:
                    self._done[task] = done
        for path in (self.space.journal, self.space.assembly):
            if path.exists():
                last = max(last, path.stat().st_mtime)
        return sorted(busy, key=lambda one: one.idle_s), max(0.0, now_s - last) if last else 0.0

    def _part_entries(self) -> Iterator[os.DirEntry[str]]:
        """What lies in the folders of the parts."""
        with suppress(OSError):
            for folder in self.space.part_folders():
                with suppress(OSError):
                    yield from list(os.scandir(folder))

    def _fingerprint(self) -> str | None:
        """That of the plan; None if there is none as yet."""
        found = self._document().get("fingerprint")
        return None if found is None else str(found)

    def _document(self) -> dict[str, Any]:
        """The plan, read again when it has changed; empty if there is none as yet."""
        try:
            status = self.space.plan.stat()
            if self._read[0] != (status.st_mtime_ns, status.st_ino):
                self._read = (status.st_mtime_ns, status.st_ino), json.loads(self.space.plan.read_bytes())
        except (OSError, ValueError):
            return {}
        return self._read[1] if isinstance(self._read[1], dict) else {}

    def _tasks(self) -> Tasks:
        found = self._document().get("tasks")
        try:
            return Tasks.from_json(found if isinstance(found, list) else [])
        except (TypeError, OverflowError):
            return Tasks()

    def _part(self, task: int) -> Part | None:
        try:
            return Part(self.space.part(task))
        except (OSError, BuildError, ValueError, KeyError):  # used up, or of another version
            return None

    def _stage(self) -> str:
        if self.space.reasons.exists():
            return NOTHING_PACKED
        if not self.space.plan.exists():
            return "listing"
        return "writing shards" if self.space.assembly.exists() else "packing"

    def _count_items(self) -> int:
        try:
            changed = self.space.items.stat().st_mtime
            if changed != self._items[0]:
                with self.space.items.open("rb") as file:
                    self._items = changed, sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        except OSError:
            return 0
        return self._items[1]

    def _find_item(self, name: str) -> Item | None:
        try:
            with self.space.items.open(encoding="ascii") as file:
                spelled = json.dumps(name)
                for line in file:
                    if spelled in line and (item := Item.from_line(line)).name == name:
                        return item
        except (OSError, ValueError):
            return None
        return None

    def _classes(self) -> list[str]:
        """The classes of ``label``, as far as the plan knows them."""
        try:
            classes = self._document()["classes"]["label"]
        except (KeyError, TypeError):
            return []
        return [shown_text(str(name)) for name in classes] if isinstance(classes, list) else []

    def _logs(self) -> Iterator[tuple[str, str]]:
        try:
            paths = sorted(self.space.logs.rglob("*.log"))  # beside them lie the numbers of the items in hand
        except OSError:
            return
        for path in paths[-_LOGS:]:
            text = read_end(path, _LOG_BYTES)
            if text:
                yield path.name, shown_text(text)


def _card(row: int, values: Mapping[str, EncodedValue], classes: Sequence[str]) -> Card:
    image = _image_of(values)
    sample: dict[str, Any] = {}
    for name in ("landmarks", "hull", "regions", "landmarks_valid"):
        value = values.get(name)
        if value is not None:
            sample[name] = np.frombuffer(value.data, value.spec.dtype).reshape(value.shape)
    texts = {
        name: shown_text(bytes(values[name].data).decode("utf-8", "replace"))
        for name in ("key", "label", "source")
        if name in values and values[name].spec.kind in ("class", "text")
    }
    size = (image.shape[1], image.shape[0]) if image is not None else None
    facts = (("source", texts["source"]),) if "source" in texts else ()
    label = texts.get("label", "")
    if "label" in values and not label and not values["label"].shape:
        number = int(np.frombuffer(values["label"].data, values["label"].spec.dtype)[0])
        label = classes[number] if 0 <= number < len(classes) else str(number)
    valid = bool(np.all(sample.get("landmarks_valid", True)))
    return Card(row, texts.get("key", f"row {row}"), label, facts, size, overlay(sample), valid)


def _image_of(values: Mapping[str, EncodedValue]) -> EncodedValue | None:
    pictures = [name for name, value in values.items() if len(value.shape) == 3 and value.shape[2] == 3]
    name = "image" if "image" in pictures else next(iter(pictures), None)
    return None if name is None else values[name]
