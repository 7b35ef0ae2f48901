"""What is told of a worker process that was lost: how, over which item, and what becomes of it."""

from collections.abc import Sequence

from packer.builds.plan import Task
from packer.jobs.engines.base import Event
from packer.sources.item import item_name
from packer.workspace import Workspace

_ENDS = {"died": "died", "timeout": "was ended"}


def describe_lost(event: Event, workspace: Workspace, tasks: Sequence[Task]) -> str:
    """One line about an event of which something follows; empty for any other."""
    if not event.follows or event.unit is None:
        return ""
    unit = event.unit
    item = unit.item if event.item is None and unit.do == "item" else event.item
    at = f"{unit.do} {unit.number}" if item is None else repr(item_name(workspace.items, tasks[unit.number], item))
    return f"packer: a worker process {_ENDS[event.kind]} at {at} ({event.message}): {event.follows}"
