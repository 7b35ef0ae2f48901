"""The errors of the whole project: one small tree.

An error carries its parts as data, from which one sentence is made: the option or the place, what was expected, what was
found, and what to do. The command line prints the sentence with its own names of the options and exits with the class's
``exit_code``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from shardspec.wording import LONG

_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_REFERENCE = re.compile(r"`(\w+)`")
_LISTED = 20
_KEPT = 1000
_INTEGERS = range(-(2**63), 2**63)


class ShardspecError(Exception):
    """Root of every error that this project raises on purpose.

    Parameters
    ----------
    problem : str, optional
        What is wrong, if `expected` and `found` do not say it.
    option : str, optional
        Name of the argument in Python, such as ``"workers"``; several are separated by ``", "``.
    place : optional
        Where the problem is: a file, a line, a field, a sample.
    expected, found : optional
        What was expected, and what was found there instead. Numbers stay numbers; other values are kept as text, since
        errors are sent between processes.
    hint : str, optional
        What to do, or a detail that helps.
    problems : sequence of ShardspecError
        Several problems that are reported together.

    Notes
    -----
    Texts name other options as ```name```. `sentence` replaces these by the names that the command line has.
    """

    exit_code = 1

    def __init__(
        self,
        problem: Any = "",
        *,
        option: str | None = None,
        place: Any = None,
        expected: Any = None,
        found: Any = None,
        hint: Any = None,
        problems: "Sequence[ShardspecError]" = (),
    ) -> None:
        self.problem = str(problem)
        self.option = option
        self.place = _as_data(place)
        self.expected = _as_data(expected)
        self.found = _as_data(found)
        self.hint = _as_data(hint)
        self.problems = tuple(problems)
        super().__init__(self.sentence())

    def sentence(self, names: Mapping[str, str] = _NO_NAMES) -> str:
        """Return the message.

        Parameters
        ----------
        names : mapping of str to str
            Names of options to show, such as ``--label-from``, by their names in Python.
        """
        option = None
        if self.option is not None:
            option = ", ".join(names.get(name, name) for name in self.option.split(", "))
        what = self.problem
        if self.problems:
            what = "; ".join([problem.sentence(names) for problem in self.problems] + [what] * bool(what))
        elif self.expected is not None:
            what = f"expected {self.expected}" + (f", found {self.found}" if self.found is not None else "")
        shown = ": ".join(str(part) for part in (option, self.place, what, self.hint) if part not in (None, ""))
        return _REFERENCE.sub(lambda name: names.get(name[1], name[0]), shown)


class Problems:
    """Errors that are collected and raised together. Truthy if any were added.

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
        """True if the limit is reached, so that further errors are dropped."""
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


class UsageError(ShardspecError, ValueError):
    """An invalid call: an unknown name, a value out of range, two options that exclude each other."""

    exit_code = 2


class SchemaError(ShardspecError, ValueError):
    """A field or a schema that breaks the rules of the contract, or a value that does not fit its field."""


class CodecError(ShardspecError, ValueError):
    """A value that cannot be encoded, or bytes that do not decode to a value of the field."""


class MissingDependencyError(ShardspecError, ImportError):
    """A library that the chosen format, codec or step needs is not installed."""

    exit_code = 2


class DatasetError(ShardspecError):
    """A folder that cannot be read as a packed dataset."""


class NotADatasetError(DatasetError):
    """The folder has no manifest: it does not exist, is not a dataset, or holds a build that is not committed."""

    exit_code = 2


class ManifestError(DatasetError, ValueError):
    """A manifest that breaks the contract. The message lists every problem with its place in the document."""


class VersionError(DatasetError):
    """The dataset was written by a newer version of the contract than this one reads."""


class ShardMissingError(DatasetError, FileNotFoundError):
    """A file named in the manifest does not exist."""


class ShardCorruptError(DatasetError):
    """A file's size, digest, checksum or structure contradicts the manifest or the format."""


class DatasetChangedError(DatasetError):
    """A file of a dataset has been replaced or changed since the dataset was opened."""


class StoreError(DatasetError):
    """A request to an object store or a web server failed, or returned an unexpected response."""


class ObjectDeniedError(StoreError):
    """A store refuses to send an object, and would refuse the same request again."""


class ReadTimeoutError(DatasetError, TimeoutError):
    """A read did not finish within its time limit."""


class ItemError(ShardspecError):
    """An item cannot yield samples. Steps and sources raise it; its message becomes the reason of the reject."""


class BuildError(ShardspecError):
    """A job cannot continue: the disk is full, the folder is read-only, a worker cannot start."""


class BuildLockedError(BuildError):
    """Another process is building into the same folder."""


class ResumeMismatchError(BuildError):
    """The call does not match the plan of the finished or unfinished build in the output folder."""

    exit_code = 2


class TooManyRejectsError(BuildError):
    """The share of rejected items is above the limit. The dataset was committed, and lists the rejects.

    Attributes
    ----------
    result : Any
        What the build would have returned; None if no item yielded a sample, so no dataset was written.
    """

    exit_code = 3

    def __init__(self, problem: str = "", *, result: Any = None, **parts: Any) -> None:
        super().__init__(problem, **parts)
        self.result = result


class VerifyError(DatasetError):
    """``packer verify`` found a difference between the manifest and the files."""


def _as_data(value: Any) -> Any:
    return value if value is None or type(value) in (int, float, str) else str(value)


def system_reason(error: BaseException) -> str:
    """Return the text of a system or libav error without the error number and the file name. It is never empty."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
