"""History of a dataset in its manifest: one line for each time that it was extended or rewritten."""

from collections.abc import Mapping
from typing import Any

from shardspec.entries import Counts, Generation
from shardspec.manifest import Manifest


def noted(base: Manifest) -> list[Any]:
    """Return the recorded history of a dataset; for a single build, the line that it would get."""
    history = base.wall_clock.get("history")
    if isinstance(history, list):
        return history
    finished = base.wall_clock.get("finished") if len(base.generations) == 1 else None
    return [note(generation.kind, generation, finished, generation.counts) for generation in base.generations]


def note(
    kind: str, last: Generation, finished: Any, counts: Counts | None = None, more: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """A line.

    Parameters
    ----------
    kind : str
    last : Generation
        Made by the version of this project that is noted.
    finished : str or None
        When, in UTC.
    counts : Counts, optional
        What became of the items of that time; none by default.
    more : mapping, optional
        Further keys.
    """
    made = {"kind": kind, "finished": finished, "version": last.runtime.get("facepack")}
    items = (0, 0, 0) if counts is None else (counts.items, counts.rejected_items, counts.samples)
    return {**made, **dict(zip(("items", "rejected", "samples"), items, strict=True)), **(more or {})}
