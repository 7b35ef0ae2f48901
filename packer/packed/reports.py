"""The reports of packed datasets, ``items.jsonl`` and ``rejects.jsonl``, for the datasets that are made of them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packer.packed.plan import Input
from packer.workspace.lines import encode_line
from shardspec.layout import ITEMS_NAME, REJECTS_NAME

Line = tuple[bytes, dict[str, Any]]


def read_report(one: Input, name: str) -> Iterator[Line]:
    """The lines of ``items.jsonl`` or ``rejects.jsonl``, as they are and parsed; see `_raw_lines`."""
    for raw in _raw_lines(one, name):
        yield raw, json.loads(raw)


def _raw_lines(one: Input, name: str) -> Iterator[bytes]:
    """The lines of a report; none if the dataset has no such file.

    Raises
    ------
    DatasetError
        If the file does not match the manifest.
    """
    entry = one.manifest.find_file(name)
    if entry is not None:
        one.layout.check_digest(entry)
        with one.layout.file(entry).open("rb") as file:
            yield from file


def write_reports(folder: Path, inputs: Sequence[Input], keep: Callable[[dict[str, Any]], bool] | None = None) -> None:
    """Write both reports of some inputs into a folder, one input after another.

    Parameters
    ----------
    keep : callable, optional
        Which lines are kept; all by default.
    """
    mixed = keep is not None or len(inputs) > 1
    for name in (ITEMS_NAME, REJECTS_NAME):
        if any(one.manifest.find_file(name) for one in inputs):
            with (folder / name).open("wb") as file:
                for one in inputs:
                    if keep is None:
                        lines = _raw_lines(one, name)
                    else:
                        lines = (raw for raw, document in read_report(one, name) if keep(document))
                    file.writelines(map(_without_generation, lines) if mixed else lines)


def _without_generation(raw: bytes) -> bytes:
    """A line without the number of a generation, which is another in another dataset."""
    if b"generation" not in raw and b"\\u" not in raw:  # most have none, and parsing them takes long
        return raw
    document = json.loads(raw)
    if "generation" not in document:
        return raw
    left = {name: value for name, value in document.items() if name != "generation"}
    return encode_line(left)
