"""Finished items of a plan that has changed since: they count for equal items, made by an equal recipe and versions."""

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from packer.builds.parts.part import Part, PartWriter
from packer.builds.planning.item_digests import item_digest
from packer.builds.planning.plan import BuildPlan
from packer.sources.item import PACKED_ROW, Item, read_items
from packer.steps.report import ItemReport
from packer.workspace import Workspace
from packer.workspace.durable import write_durably
from packer.workspace.machines import first_machine, machine_kind

_PART = re.compile(r"part-([0-9]+)(?:\.item-([0-9]+))?\Z")
_RECORD = ".json"


def keep_parts(space: Workspace, document: Mapping[str, Any]) -> None:
    """Put the finished parts of a workspace's plan aside, each with the digests of its items.

    May be repeated after a crash at any moment: a part is either still the plan's, or put aside with its record.

    Parameters
    ----------
    document : mapping
        The plan in the workspace, as JSON. Its items file is still there.
    """
    plan = BuildPlan.from_json(document)
    space.kept.mkdir(exist_ok=True)
    space = space.of_plan(plan.fingerprint)
    machine = first_machine(space)
    for path in space.part_files():
        match = _PART.match(path.name)
        if match is None:
            path.unlink()
            continue
        items = read_items(space.items, *plan.tasks[int(match[1])])
        digests = [item_digest(item) for item in items if match[2] is None or item.index == int(match[2])]
        target = space.kept / f"{uuid.uuid4().hex}.part"
        record = {"terms": plan.terms, "machine": machine, "items": digests}
        write_durably(target.with_suffix(_RECORD), json.dumps(record).encode())
        os.replace(path, target)


class KeptItems:
    """The items put aside in a workspace that count for a plan.

    Parameters
    ----------
    space : Workspace
    plan : BuildPlan
    """

    def __init__(self, space: Workspace, plan: BuildPlan) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        self._open = lru_cache(maxsize=8)(Part)
        terms, machine = plan.terms, machine_kind()
        for record in sorted(space.kept.glob(f"*{_RECORD}")) if space.kept.is_dir() else ():
            document, path = json.loads(record.read_bytes()), record.with_suffix(".part")
            if (document["terms"], document["machine"]) == (terms, machine) and path.exists():
                self._places |= {digest: (path, place) for place, digest in enumerate(document["items"])}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: Item) -> bool:
        return bool(self._places) and item_digest(item) in self._places

    def count(self, items: Iterable[Item]) -> int:
        """How many of some items were put aside."""
        return sum(item in self for item in items) if self._places else 0

    def copy(self, item: Item, part: PartWriter) -> ItemReport | None:
        """Append what was made of an equal item, under this item's number; None if there is none."""
        found = self._places.get(item_digest(item)) if self._places else None
        if found is None:
            return None
        path, place = found
        key = None if PACKED_ROW in item.columns else lambda number: built_key(item, number)
        return part.copy(self._open(path), place, key)


def built_key(item: Item, number: int) -> str:
    """The key of an item's sample: the number of the item and the sample's ordinal."""
    return f"{item.index if item.number is None else item.number:08d}-{number:06d}"
