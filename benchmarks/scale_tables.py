"""The tables of `benchmarks.pack_scale`: what each further item costs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

_SIZES = ("peak MB", "own MB", "own MB of a worker")


def scale_tables(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tables of the groups of a document: commands, and what readers do."""
    steps = list(itertools.pairwise(groups))
    last = groups[-1]
    many = f"{last['items']:,}"
    spans = [f"µs of CPU an item, {one['items']:,} to {other['items']:,}" for one, other in steps]
    head = ["command", *spans, "of these the coordinator", "own bytes an item", f"{many}: seconds", *_SIZES]
    commands = [_row(*head), "|---|" + (len(spans) + 6) * "--:|"]
    for name, spent in last["commands"].items():
        costs = [_each(one, other, "commands", name, "cpu_s", 1e6) for one, other in steps]
        for key, factor in (("coordinator_cpu_s", 1e6), ("own_bytes", 1)):
            costs += [_each(*step, "commands", name, key, factor) for step in steps[-1:]] or [""]
        sizes = [spent[key] for key in ("coordinator_bytes", "own_bytes", "worker_own_bytes")]
        shown = [f"{size / 1e6:.0f}" if size else "" for size in sizes]
        commands.append(_row(f"`{name}`", *costs, f"{spent['seconds']:.0f}", *shown))
    times = [f"ms, {group['items']:,}" for group in groups]
    head = ["readers", *times, "own bytes an item", f"{many}: own MB", "kept MB"]
    readers = [_row(*head), "|---|" + (len(groups) + 3) * "--:|"]
    for name, spent in last["readers"].items():
        found = [group["readers"].get(name) for group in groups]
        costs = ["" if one is None else f"{1e3 * one['seconds']:.0f}" for one in found]
        costs += [_each(*step, "readers", name, "own_bytes", 1) for step in steps[-1:]] or [""]
        sizes = [f"{spent[key] / 1e6:.0f}" for key in ("own_bytes", "kept_bytes")]
        readers.append(_row(f"`{name}`", *costs, *sizes))
    return ["\n".join(commands), *(["\n".join(readers)] if last["readers"] else [])]


def _each(one: Mapping[str, Any], other: Mapping[str, Any], what: str, name: str, key: str, factor: float) -> str:
    """Growth of a figure per item, from one number of items to another."""
    if name not in one[what] or name not in other[what]:
        return ""
    return str(round(factor * (other[what][name][key] - one[what][name][key]) / (other["items"] - one["items"])))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
