"""The source for the inputs of a function. The plan stores them, so that worker processes can read them."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from packer.sources.base import Listing, refuse_path_column
from packer.sources.item import Item, item_list
from shardspec.errors import UsageError
from shardspec.wording import shorten

INPUT = "_input"
"""Column that holds the input of a function. Columns with a leading underscore are not packed."""

_TAG = "~"
_NAME_LENGTH = 300


class InputsSource:
    """The inputs of a function, one item each (`packer.sources.base.Source`).

    A text, a path or a number names its item; any other input is named by its number.

    Parameters
    ----------
    inputs : sequence
        Strings, paths, numbers, booleans, None, and lists, tuples and dicts of them.
    classes : sequence of str, optional
        Class names of the field ``label``.

    Raises
    ------
    UsageError
        If an input has another type.
    """

    def __init__(self, inputs: Sequence[Any], classes: Sequence[str] | None = None) -> None:
        self._classes = {} if classes is None else {"label": list(classes)}
        self._items = item_list().extend(
            Item(number, _name(number, value), None, columns={INPUT: _to_json(value, number)})
            for number, value in enumerate(inputs)
        )

    def list_items(self, label_from: str, path_column: str) -> Listing:
        refuse_path_column(path_column, "inputs of a function")
        return Listing(self._items, classes=self._classes)


def read_input(item: Item) -> Any:
    """Return the function's input that an item holds."""
    return _from_json(item.columns[INPUT])


def _name(number: int, value: Any) -> str:
    if isinstance(value, str | PurePath | int | float | np.number) and not isinstance(value, bool):
        text = str(value)
        if text and len(text) <= _NAME_LENGTH and text.isprintable():
            return text
    return f"input-{number:08d}"


def _to_json(value: Any, number: int) -> Any:
    """Convert a value to JSON that `_from_json` reverses; numpy scalars become Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool) or type(value) in (str, int):
        return value
    if type(value) is float:
        return value if value == value and abs(value) != float("inf") else {_TAG: "float", "of": repr(value)}
    if isinstance(value, PurePath):
        return {_TAG: "path", "of": str(value)}
    if type(value) is list:
        return [_to_json(entry, number) for entry in value]
    if type(value) is tuple:
        return {_TAG: "tuple", "of": [_to_json(entry, number) for entry in value]}
    if isinstance(value, Mapping) and all(type(key) is str and key != _TAG for key in value):
        return {key: _to_json(entry, number) for key, entry in value.items()}
    raise UsageError(
        option="inputs",
        expected="strings, paths, numbers, and lists, tuples and dicts of them",
        found=f"{shorten(value)} ({type(value).__name__}) in input {number} (counted from 0)",
        hint="pass a path or a number, and load the data in the function",
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _from_json(entry) for key, entry in value.items()}
    of = value["of"]
    if value[_TAG] == "tuple":
        return tuple(_from_json(entry) for entry in of)
    return Path(of) if value[_TAG] == "path" else float(of)
