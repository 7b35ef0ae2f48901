"""The reports of datasets whose rows come from packed ones: the lines of theirs, all or some."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packer.packed.plan import Input
from shardspec.layout import ITEMS_NAME, REJECTS_NAME

Line = tuple[bytes, dict[str, Any]]


def read_report(one: Input, name: str) -> Iterator[Line]:
    """The lines of ``items.jsonl`` or ``rejects.jsonl``, as they are and parsed; none if the dataset has no such file.

    Raises
    ------
    DatasetError
        The file is not what the manifest says.
    """
    entry = one.manifest.find_file(name)
    if entry is not None:
        one.layout.check_digest(entry)
        with one.layout.file(entry).open("rb") as file:
            for line in file:
                yield line, json.loads(line)


def write_reports(folder: Path, inputs: Sequence[Input], keep: Callable[[dict[str, Any]], bool] | None = None) -> None:
    """Write both reports of some inputs into a folder, one input after another.

    Parameters
    ----------
    keep : callable, optional
        Which lines are kept; all by default.
    """
    for name in (ITEMS_NAME, REJECTS_NAME):
        if any(one.manifest.find_file(name) for one in inputs):
            with (folder / name).open("wb") as file:
                for one in inputs:
                    file.writelines(raw for raw, line in read_report(one, name) if keep is None or keep(line))
