"""Validation that reports every problem of a document at once, each with its place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shardspec.errors import ShardspecError
from shardspec.wording import LONG

_LISTED = 20
_KEPT = 1000
_INTEGERS = range(-(2**63), 2**63)


class Problems:
    """Errors that are collected to be raised together. Truthy when there is any.

    Parameters
    ----------
    of_options : bool
        If true, `add` takes names of options, else places in a document.

    Attributes
    ----------
    found : list of ShardspecError
        Long texts are cut, and only the first thousand are kept.
    """

    def __init__(self, *, of_options: bool = False) -> None:
        self.found: list[ShardspecError] = []
        self._of_options = of_options
        self._place: list[str] = []

    @property
    def full(self) -> bool:
        """True if there are so many that no more are kept."""
        return len(self.found) >= _KEPT

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, place: str, problem: str = "", **parts: Any) -> None:
        """Record one problem at `place`, relative to the places entered by `at`.

        The other arguments are those of `ShardspecError`.
        """
        if self.full:
            return
        path = ".".join([*self._place, *([place] if place else [])]) or None
        parts["option" if self._of_options else "place"] = path
        error = ShardspecError(problem, **parts)
        if len(text := str(error)) > LONG:
            error = ShardspecError(f"{text[:LONG]}…")
        self.found.append(error)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Inside, `add` takes places relative to `place`."""
        self._place.append(place)
        try:
            yield
        finally:
            self._place.pop()

    def check_keys(
        self, document: Any, expected: Mapping[str, type], optional: Mapping[str, type] | None = None
    ) -> bool:
        """Return whether `document` is an object with exactly the expected keys and types.

        If not, problems are added.
        """
        if not isinstance(document, dict):
            self.add("", f"expected an object, found {type(document).__name__}")
            return False
        before = len(self.found)
        known = expected if optional is None else {**expected, **optional}
        for key, kind in known.items():
            if key not in document:
                if key in expected:
                    self.add(key, "expected, but missing")
                continue
            value = document[key]
            if type(value) is not kind:
                self.add(key, f"expected {kind.__name__}, found {type(value).__name__}")
            elif kind is int and value not in _INTEGERS:
                self.add(key, f"expected an integer of 64 bits, found {value}")
        for key in document:
            if key not in known:
                self.add(str(key), f"unknown key: expected one of {', '.join(known)}")
        return len(self.found) == before

    def raise_as(self, error: type[ShardspecError], where: str | None = None) -> None:
        """Raise `error` with the first problems, if there are any, and the number of the others."""
        if self.found:
            rest = len(self.found) - _LISTED
            more = f"and {rest} more{' at least' if self.full else ''}" if rest > 0 else ""
            raise error(more, place=where, problems=self.found[:_LISTED])
