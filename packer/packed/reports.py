"""Copy the reports of packed datasets, ``items.jsonl`` and ``rejects.jsonl``, into datasets made from them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packer.builds.update.base_reports import checked_lines
from packer.packed.plan import Input
from packer.workspace.json_lines import encode_line
from shardspec.layout import ITEMS_NAME, REJECTS_NAME


def read_report(one: Input, name: str) -> Iterator[dict[str, Any]]:
    """Return the parsed lines of a report; none if the dataset does not have it.

    Raises
    ------
    DatasetError
        If the file does not match the manifest.
    """
    return map(json.loads, _raw_lines(one, name))


def _raw_lines(one: Input, name: str) -> Iterator[bytes]:
    return checked_lines(one.layout, one.manifest, name) if one.manifest.find_file(name) else iter(())


def write_reports(folder: Path, inputs: Sequence[Input], keep: Callable[[dict[str, Any]], bool] | None = None) -> None:
    """Write both reports of the inputs into a folder, one input after another.

    Parameters
    ----------
    keep : callable, optional
        Chooses the lines to write; all by default.
    """
    mixed = keep is not None or len(inputs) > 1
    for name in (ITEMS_NAME, REJECTS_NAME):
        if any(one.manifest.find_file(name) for one in inputs):
            with (folder / name).open("wb") as file:
                for one in inputs:
                    lines = (raw for raw in _raw_lines(one, name) if keep is None or keep(json.loads(raw)))
                    file.writelines(map(_without_generation, lines) if mixed else lines)


def _without_generation(raw: bytes) -> bytes:
    """Drop the number of the generation, which differs in the other dataset."""
    if b"generation" not in raw and b"\\u" not in raw:  # most lines have none, and parsing is slow
        return raw
    document = json.loads(raw)
    if "generation" not in document:
        return raw
    del document["generation"]
    return encode_line(document)
