"""``packer rejects``: sum up rejected items by reason, and list them."""

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packer.assembly.piece import Piece
from packer.assembly.records import checked_lines
from packer.builds.records import report_of
from packer.jobs.progress import ProgressListener, Stage, listener_of, without_values
from packer.jobs.result import Result
from packer.sources.stores.packed import partial_folder
from packer.workspace import Workspace
from packer.workspace.durable import read_record
from packer.workspace.output import check_output, write_output
from shardspec.entries import total
from shardspec.errors import DatasetError, NotADatasetError
from shardspec.layout import BUILD_FOLDER, REJECTS_NAME, Layout, layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.wording import LONG, counted, cut, found_instead, one_line, shorten

EXAMPLES = 3
"""Items named for each reason."""

_REASONS = 1000
"""Most reasons that are counted separately; later reasons are counted together."""

_SHOWN = 20
_OTHERS = "other reasons"
_LINE_BYTES = 1 << 26

_COLUMNS = ("item", "step", "reason")


class Example(NamedTuple):
    """A rejected item."""

    item: str
    reason: str


@dataclass
class RejectKind:
    """The rejects with one reason.

    Attributes
    ----------
    step : str
        The step that rejected the items.
    reason : str
        The reason, with ``…`` instead of names and numbers.
    items : int
    examples : list of Example
        The first of the items.
    """

    step: str
    reason: str
    items: int = 0
    examples: list[Example] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        examples = [example._asdict() for example in self.examples]
        return {"step": self.step, "reason": self.reason, "items": self.items, "examples": examples}


@dataclass(frozen=True, repr=False)
class RejectsReport(Result):
    """The rejected items of a dataset or a build, by reason.

    Attributes
    ----------
    path : Path or str
        The dataset's folder, or its URL.
    finished : bool
        Whether it is a packed dataset; otherwise an unfinished build, or one that packed nothing.
    items : int
        Items that were tried.
    rejected : int
    damaged : int
        Items that are packed only in part.
    kinds : tuple of RejectKind
        By reason, the most frequent first.
    table : Path or None
        The list that was written.
    """

    path: Path | str
    finished: bool
    items: int
    rejected: int
    damaged: int
    kinds: tuple[RejectKind, ...]
    table: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        values = {**vars(self), "path": str(self.path), "table": None if self.table is None else str(self.table)}
        return {**values, "kinds": [kind.to_json() for kind in self.kinds]}

    def describe(self) -> str:
        """Describe the reasons, with examples, and what to do."""
        state = "" if self.finished else ", not finished"
        damaged = f"; {self.damaged} packed only in part, since they are damaged" if self.damaged else ""
        lines = [f"{self.path}{state}: {self.rejected} of {counted(self.items, 'item')} rejected{damaged}"]
        for kind in self.kinds[:_SHOWN]:
            lines.append(f"  {counted(kind.items, 'item')}, {one_line(kind.step)}: {cut(one_line(kind.reason), LONG)}")
            for example in kind.examples:
                why = "" if example.reason == kind.reason else f": {cut(one_line(example.reason), LONG)}"
                lines.append(f"    {shorten(example.item, LONG)}{why}")
        if len(self.kinds) > _SHOWN:
            lines.append(f"  and {len(self.kinds) - _SHOWN} more reasons (--json lists them)")
        if self.table is not None:
            lines.append(f"{self.table}: {counted(self.rejected, 'item')}")
        return "\n".join(lines)


def rejects(
    dataset: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | ProgressListener = True,
) -> RejectsReport:
    """Sum up the rejected items of a packed dataset by reason, and list them.

    Of an unfinished build, or a build that packed nothing, the finished tasks are summed up. To try rejected items again,
    use ``packer build … --retry-rejects``.

    Parameters
    ----------
    dataset : path
        A packed dataset, also by its URL, or the folder of a build.
    out : path, optional
        A file to write, ``.csv`` or ``.jsonl``, with the columns ``item``, ``step`` and ``reason``. An existing file is
        replaced. The folder must exist, outside the dataset.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    RejectsReport

    Raises
    ------
    UsageError
        If `out` is neither type of file, is inside the dataset, or is in a folder that cannot be written.
    BuildError
        If the disk is full.
    DatasetError
        If there is neither a dataset nor a build, or its reports cannot be read.
    """
    layout = layout_at(partial_folder(dataset))
    target = None if out is None else Path(out)
    if target is not None:
        check_output(target, ".csv", ".jsonl", datasets=[layout.root])
    manifest = _manifest(layout)
    lines = _build_lines(layout) if manifest is None else _dataset_lines(layout, manifest)
    kinds: dict[tuple[str, str], RejectKind] = {}
    rows: list[dict[str, str]] = []
    items = rejected = damaged = 0
    with Stage(listener_of(progress), "summing up", 1, "datasets") as stage:
        for line in lines:
            items += line.get("items", 0)
            damaged += line.get("kind") == "damage"
            if line.get("kind") == "item":
                rejected += 1
                row = {name: str(line.get(name)) for name in _COLUMNS}
                _add(kinds, **row)
                if target is not None:
                    rows.append(row)
        stage.advance()
    found = tuple(sorted(kinds.values(), key=lambda kind: (-kind.items, kind.step, kind.reason)))
    if target is not None:
        write_output(target, _as_json_lines(rows) if target.suffix.lower() == ".jsonl" else _as_csv(rows))
    return RejectsReport(place_of(layout.root), manifest is not None, items, rejected, damaged, found, target)


def _manifest(layout: Layout) -> Manifest | None:
    """Load the manifest; return None for the folder of a build without one."""
    try:
        return layout.load()
    except NotADatasetError:
        if not layout.build.is_dir():
            raise
        return None


def _dataset_lines(layout: Layout, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the lines of a dataset's report, after one with the number of items."""
    yield {"items": total(manifest.generations).items}
    checked_lines(layout, manifest, REJECTS_NAME)
    entry = manifest.find_file(REJECTS_NAME)
    yield from () if entry is None else parse_report(layout.file(entry))


def _build_lines(layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield the reports of the finished tasks of an unfinished build, or the reasons why nothing was packed."""
    space = Workspace(layout.root / BUILD_FOLDER)
    reports = [path for path in (space.reasons, space.final / REJECTS_NAME) if path.exists()]
    if reports:
        done = space.final / "items.jsonl"
        for line in parse_report(reports[0]):
            yield line
            if not done.exists() and line.get("kind") == "item":
                yield {"items": 1}
        if done.exists():
            yield {"items": sum(1 for _ in parse_report(done))}
        return
    with suppress(KeyError):
        space = space.of_plan(str(planned(layout)["fingerprint"]))
    for path in space.part_files():
        if path.suffix == ".partial":
            continue
        try:
            found = list(map(report_of, Piece(path).items))
        except FileNotFoundError:  # joined, or used up, by the build that is under way
            continue
        for report in found:
            yield {"items": 1}
            if not report.samples and not report.empty:
                yield {"kind": "item", "item": report.name, "step": report.step, "reason": report.reason}
            elif report.damage is not None:
                yield {"kind": "damage", "item": report.name}


def parse_report(path: Path) -> Iterator[dict[str, Any]]:
    """Parse the lines of a report that may come from anyone.

    Raises
    ------
    DatasetError
        If a line is not a JSON object.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(iter(partial(file.readline, _LINE_BYTES), b""), 1):
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise DatasetError(
                    f"expected a JSON object, {found_instead(error)}", place=f"{path}, line {number}"
                ) from error
            if not isinstance(line, dict):
                raise DatasetError(place=f"{path}, line {number}", expected="a JSON object", found=type(line).__name__)
            yield {name: value for name, value in line.items() if name != "items"}


def _add(kinds: dict[tuple[str, str], RejectKind], item: str, step: str, reason: str) -> None:
    alike = without_values(reason)
    key = (step, alike)
    if key not in kinds and len(kinds) >= _REASONS:
        key = ("", _OTHERS)
    kind = kinds.setdefault(key, RejectKind(key[0] or "any step", key[1]))
    kind.items += 1
    if len(kind.examples) < EXAMPLES:
        kind.examples.append(Example(item, reason))


def planned(layout: Layout) -> dict[str, Any]:
    """Return the plan of an unfinished build, or nothing if there is none."""
    plan = Workspace(layout.build).plan
    return read_record(plan) if plan.exists() else {}


def _as_json_lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)


def _as_csv(rows: list[dict[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")  # names of files need not be UTF-8
