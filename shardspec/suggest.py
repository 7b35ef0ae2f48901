"""The name that somebody may have meant, for messages about one that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'size'?"``, to stand behind what was expected; empty where no known name is like it."""
    found = get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
