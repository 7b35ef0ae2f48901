"""Patterns of paths: globs that choose files, and a pattern whose placeholders become fields."""

import fnmatch
import re
from collections.abc import Collection, Sequence

from packer.recipe import field_name
from shardspec.errors import UsageError
from shardspec.fields import RESERVED
from shardspec.wording import list_some, shorten

_ANY_FOLDERS = "**"
_MARK = re.compile(r"(\{[^{}]*\}|\*)")
_NAME = re.compile(r"\{([A-Za-z][A-Za-z0-9_]*)\}\Z")

_Part = re.Pattern[str] | None
"""Regular expression for one part of a path; None for ``**``."""


class Globs:
    """Patterns for files and folders below a folder, with the rules of ``.gitignore``.

    A pattern without ``/`` is compared with the name of each file and folder, one with ``/`` with the path from the
    top. ``*``, ``?`` and ``[a-z]`` do not match ``/``; ``**`` between slashes matches any number of folders. With
    ``/`` at the end, a pattern matches only folders. Upper and lower case differ.

    Attributes
    ----------
    unmatched : list of str
        The patterns that have matched nothing so far.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(text, _compile(text), text.endswith("/")) for text in patterns]
        self.unmatched = list(patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, parts: Sequence[str], *, folder: bool) -> bool:
        """Return whether a pattern matches the path of a file or folder itself. Matches of folders above do not count."""
        found = False
        for text, pattern, only_folders in self._patterns:
            if (folder or not only_folders) and _matches(parts, pattern):
                found = True
                if text in self.unmatched:
                    self.unmatched.remove(text)
        return found


def is_chosen(parts: Sequence[str], include: Globs, exclude: Globs) -> bool:
    """Return whether the patterns choose a file, directly or by a folder above it. The path is given in parts."""
    above = [parts[:depth] for depth in range(1, len(parts))]
    if exclude.match(parts, folder=False) or any(exclude.match(one, folder=True) for one in above):
        return False
    return not include or include.match(parts, folder=False) or any(include.match(one, folder=True) for one in above)


def _compile(text: str) -> list[_Part]:
    bare = text.removeprefix("./").strip("/")
    parts: list[_Part] = [
        None if part == _ANY_FOLDERS else re.compile(fnmatch.translate(part)) for part in bare.split("/")
    ]
    if parts[-1] is None:
        parts.append(re.compile(""))  # matches everything in the folder, but not the folder itself
    anchored = "/" in text.rstrip("/")
    return parts if anchored else [None, *parts]


def _matches(parts: Sequence[str], pattern: Sequence[_Part]) -> bool:
    """Return whether a pattern matches all parts of a path.

    All states of the match are followed at the same time, so the run time is polynomial.
    """
    states = _skip_any({0}, pattern)
    for part in parts:
        states = _skip_any({after for state in states for after in _step(state, part, pattern)}, pattern)
    return len(pattern) in states


def _step(state: int, part: str, pattern: Sequence[_Part]) -> Collection[int]:
    if state == len(pattern):
        return ()
    expected = pattern[state]
    if expected is None:
        return (state,)
    return (state + 1,) if expected.match(part) else ()


def _skip_any(states: set[int], pattern: Sequence[_Part]) -> set[int]:
    """Add the states after each ``**``, which may match no folder at all."""
    for state in range(len(pattern)):
        if state in states and pattern[state] is None:
            states.add(state + 1)
    return states


class PathPattern:
    """A pattern such as ``{split}/{label}/{person}_{clip}.mp4``, whose placeholders match parts of the path.

    A placeholder matches one or more characters except ``/``, as few as the next text allows; the last one in a part
    matches the rest. ``*`` matches any number of characters except ``/``. ``**`` may occur once between slashes and
    matches any number of folders; at the end it matches the rest of the path, which is at least a file.

    Attributes
    ----------
    names : list of str
        The names of the placeholders, in order.

    Raises
    ------
    UsageError
        If the pattern has no placeholder, if a placeholder is not a valid field name or occurs twice, or if no text
        separates two placeholders.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []
        parts = text.removeprefix("./").split("/")
        if parts.count(_ANY_FOLDERS) > 1:
            raise _refuse(text, f"at most one {_ANY_FOLDERS}", "several")
        cut = parts.index(_ANY_FOLDERS) if _ANY_FOLDERS in parts else None
        compiled = [self._compile(part) for part in parts if part != _ANY_FOLDERS]
        self._first = compiled if cut is None else compiled[:cut]
        self._last = None if cut is None else compiled[cut:]
        if not self.names:
            raise _refuse(text, "a placeholder such as {label}", "none")

    def match(self, path: str) -> dict[str, str] | None:
        """Return the text of each placeholder in a path with ``/``, or None if the path does not match."""
        parts = path.split("/")
        first, last = self._first, self._last
        if last is None:
            found = zip(first, parts, strict=True) if len(first) == len(parts) else None
        else:
            least = len(first) + (len(last) or 1)
            tail = parts[len(parts) - len(last) :]
            found = zip([*first, *last], [*parts[: len(first)], *tail], strict=True) if len(parts) >= least else None
        values: dict[str, str] = {}
        for expression, part in found or ():
            match = expression.match(part)
            if match is None:
                return None
            values |= match.groupdict()
        return None if found is None else values

    def _compile(self, part: str) -> re.Pattern[str]:
        """Compile one part of the pattern to a regular expression that matches in linear time."""
        pieces = _MARK.split(part)  # literal, mark, literal, …, literal
        literals, marks = pieces[::2], pieces[1::2]
        for before, between, after in zip(marks, literals[1:-1], marks[1:], strict=False):
            if not between:
                raise _refuse(self.text, f"text between {shorten(before)} and {shorten(after)}", "none")
        for literal in literals:
            if "{" in literal or "}" in literal:
                raise _refuse(self.text, "braces in pairs, within one part of the path", shorten(part))
        out = re.escape(literals[0])
        for number, (mark, literal) in enumerate(zip(marks, literals[1:], strict=True), start=1):
            group, least = ("(?:", "*") if mark == "*" else (f"(?P<{self._name(mark)}>", "+")
            if number == len(marks):
                out += f"{group}.{least}){re.escape(literal)}\\Z"
            else:
                # Atomic, without backtracking: the first occurrence of the following text is always a valid choice.
                out += f"(?>{group}.{least}?){re.escape(literal)})"
        return re.compile(out if marks else f"{out}\\Z", re.DOTALL)

    def _name(self, mark: str) -> str:
        match = _NAME.match(mark)
        if match is None:
            raise _refuse(self.text, "names of letters a to z, digits and _ in braces", shorten(mark))
        name, field = match[1], field_name(match[1])
        if field in RESERVED:
            raise _refuse(
                self.text,
                "names that a build does not use for its own fields",
                f"{mark}: call it {{{field}_id}}, for example",
            )
        if field in map(field_name, self.names):
            raise _refuse(self.text, "every name once", f"{mark} again")
        self.names.append(name)
        return name


def _refuse(text: str, expected: str, found: str) -> UsageError:
    return UsageError(option="fields_from_path", expected=expected, found=f"{found} in {shorten(text, 200)}")


def describe_unmatched(option: str, patterns: Sequence[str]) -> str:
    """Describe the patterns of an option that match nothing."""
    verb = "matches" if len(patterns) == 1 else "match"
    what = "image or video" if option == "include" else "file or folder"
    return (
        f"--{option} {list_some([shorten(text) for text in patterns])} {verb} no {what}: "
        "patterns are compared with paths below the source"
    )
