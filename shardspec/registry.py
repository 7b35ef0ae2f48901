"""Tables of names: what a name stands for is imported on first use."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shardspec.errors import MissingDependencyError, UsageError
from shardspec.wording import did_you_mean


@dataclass(frozen=True)
class Entry:
    """Where a named thing lives and which extra brings the libraries it needs.

    Attributes
    ----------
    target : str
        ``"module:attribute"``.
    extra : str or None
        The extra of this project to install when a library is missing, None if the core suffices.
    """

    target: str
    extra: str | None = None


def resolve(kind: str, name: str, table: Mapping[str, Entry]) -> Any:
    """Import and return what `name` stands for in `table`.

    Parameters
    ----------
    kind : str
        What the table holds, for messages: ``"format"``, ``"codec"``, ``"step"``.

    Raises
    ------
    UsageError
        The name is not in the table; the message lists those that are.
    MissingDependencyError
        A library is not installed; the message names the extra.
    """
    entry = table.get(name)
    if entry is None:
        like = did_you_mean(name, table)
        raise UsageError(f"unknown {kind} {name!r}: expected one of {', '.join(sorted(table))}{like}")
    return import_target(entry.target, what=f"{kind} {name!r}", extra=entry.extra)


def import_target(target: str, *, what: str, extra: str | None = None) -> Any:
    """Import ``"module:attribute"``, with an error that says what to install or what is misspelt."""
    module_name, separator, attribute = target.partition(":")
    if not (separator and module_name and attribute):
        raise UsageError(f"{what}: expected 'module:name', found {target!r}")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        own = missing and (module_name == missing or module_name.startswith(missing + "."))
        if extra is None and own:
            raise UsageError(f"{what}: there is no module {missing!r} on the Python path") from error
        advice = f'pip install "facepack[{extra}]"' if extra else f"install {missing!r}"
        raise MissingDependencyError(
            f"{what} needs the library {missing!r}, which is not installed: {advice}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UsageError(f"{what}: module {module_name!r} has no attribute {attribute!r}") from None
