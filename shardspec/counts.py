"""Counts of several generations together."""

from collections.abc import Iterable

from shardspec.entries import Counts, Generation


def total(generations: Iterable[Generation]) -> Counts:
    """The sum of all counts."""
    counts = [generation.counts.to_json() for generation in generations]
    return Counts(**{name: sum(count[name] for count in counts) for name in Counts.__dataclass_fields__})
