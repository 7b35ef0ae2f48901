"""``packer rejects``: sum up rejected items by reason, and write the table of items to retry."""

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packer.builds.parts.part import Part
from packer.builds.planning.plan import BuildPlan, source_row
from packer.builds.reports import checked_lines
from packer.builds.update.checks import FROM_INPUTS, FROM_PACKED
from packer.jobs.progress import ProgressListener, Stage, listener_of, without_values
from packer.jobs.result import Result
from packer.recipe import Recipe
from packer.recipe.command_line import changed_options, option_words
from packer.sources.archives.member import MEMBER_MARK
from packer.sources.archives.opening import kind_of
from packer.sources.item import read_items
from packer.workspace import Workspace
from packer.workspace.output import check_output, write_output
from shardspec.entries import total
from shardspec.errors import DatasetError, NotADatasetError, UsageError
from shardspec.layout import BUILD_FOLDER, REJECTS_NAME, Layout, given_path
from shardspec.manifest import Manifest
from shardspec.typing.cells import CellTyper
from shardspec.wording import LONG, counted, cut, found_instead, one_line, program, shorten

EXAMPLES = 3
"""Items named for each reason."""

_REASONS = 1000
"""Most reasons that are counted separately; later reasons are counted together."""

_SHOWN = 20
_OTHERS = "other reasons"
_LINE_BYTES = 1 << 26

_NAME = ""
"""The key of an item's name in a row: no column is called so."""

_OF_SOURCES = (
    *("root", "limit", "keys", "drop", "include", "exclude", "fields_from_path", "sidecars"),
    *("classes", "classes_from", "label_names"),
)
"""Options that a table of rejected items does not need, or that its columns and ``--classes-from`` replace."""

_PART = re.compile(r"part-([0-9]+)(?:\.item-([0-9]+))?")
_ROW = re.compile(r"row-[0-9]{8,}\Z")


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
    path : Path
        The dataset's folder.
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
        The table that was written.
    left_out : int
        Rejected items without a path, which are not in the table.
    retry : str
        How to pack the items of the table; empty if there is no way.
    """

    path: Path
    finished: bool
    items: int
    rejected: int
    damaged: int
    kinds: tuple[RejectKind, ...]
    table: Path | None = None
    left_out: int = 0
    retry: str = ""

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
            written = counted(self.rejected - self.left_out, "item")
            left = f"; {self.left_out} without a path left out" if self.left_out else ""
            lines.append(
                f"{self.table}: {written}{left}"
                + (f"; to try them: {self.retry}" if self.retry and self.rejected else "")
            )
        return "\n".join(lines)


def rejects(
    dataset: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | ProgressListener = True,
) -> RejectsReport:
    """Sum up the rejected items of a packed dataset by reason, and write a table of them to try again.

    Of an unfinished build, or a build that packed nothing, the finished tasks are summed up.

    Parameters
    ----------
    dataset : path
        A packed dataset, or the folder of a build.
    out : path, optional
        A table to write, ``.csv`` or ``.jsonl``, with the names of the rejected items relative to the source, and their
        columns in the source. `RejectsReport.retry` is the command that packs it as the dataset was packed. For items
        of an archive, the column ``key`` has the names in the archive, for ``--keys``. Inputs of `packer.pack` are in
        the column ``input``, samples of a packed dataset in ``key``. The folder must exist, outside the dataset. An
        existing file is replaced.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    RejectsReport

    Raises
    ------
    UsageError
        If `out` is not a table, is inside the dataset, or is in a folder that cannot be written.
    BuildError
        If the disk is full.
    DatasetError
        If there is neither a dataset nor a build, or its reports cannot be read.
    """
    layout = Layout(given_path("dataset", dataset))
    target = None if out is None else Path(out)
    if target is not None:
        check_output(target, ".csv", ".jsonl", datasets=[layout.root])
    manifest = _manifest(layout)
    lines = _build_lines(layout) if manifest is None else _dataset_lines(layout, manifest)
    kinds: dict[tuple[str, str], RejectKind] = {}
    rows: list[dict[str, Any]] = []
    items = rejected = damaged = 0
    with Stage(listener_of(progress), "summing up", 1, "datasets") as stage:
        for line in lines:
            items += line.get("items", 0)
            damaged += line.get("kind") == "damage"
            if line.get("kind") == "item":
                rejected += 1
                name = str(line.get("item"))
                _add(kinds, name, str(line.get("step")), str(line.get("reason")))
                if target is not None and not _ROW.match(name):
                    rows.append({_NAME: name, **(line.get("columns") or {})})
        stage.advance()
    found = tuple(sorted(kinds.values(), key=lambda kind: (-kind.items, kind.step, kind.reason)))
    if target is None:
        return RejectsReport(layout.root, manifest is not None, items, rejected, damaged, found)
    retry = _write_table(target, rows, _origin(layout, manifest))
    left = rejected - len(rows)
    return RejectsReport(layout.root, manifest is not None, items, rejected, damaged, found, target, left, retry)


def report_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the report of rejects of a packed dataset, or of the finished tasks of an unfinished build.

    Raises
    ------
    DatasetError
        If there is neither, or the report cannot be read.
    """
    layout = Layout(path)
    manifest = _manifest(layout)
    yield from _build_lines(layout) if manifest is None else _dataset_lines(layout, manifest)


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
    document, plan = planned(layout), None
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):
        space = space.of_plan(str(document["fingerprint"]))
        plan = BuildPlan.from_json(document)
    for path in space.part_files():
        if path.suffix == ".partial":
            continue
        try:
            found = Part(path).reports()
        except FileNotFoundError:  # joined, or used up, by the build that is under way
            continue
        rows = [] if plan is None else _rows_of(path, space, plan)
        for place, report in enumerate(found):
            yield {"items": 1}
            if not report.samples and not report.empty:
                line = {"kind": "item", "item": report.name, "step": report.step, "reason": report.reason}
                yield {**line, "columns": rows[place] if len(rows) == len(found) else {}}
            elif report.damage is not None:
                yield {"kind": "damage", "item": report.name}


def _rows_of(path: Path, space: Workspace, plan: BuildPlan) -> list[dict[str, Any]]:
    """Return the source rows of the items of a part, or nothing if the plan does not have them."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        number, item = _PART.fullmatch(path.name).groups()  # type: ignore[union-attr]
        items = read_items(space.items, *plan.tasks[int(number)])
        return [source_row(one, plan) for one in items if item is None or one.index == int(item)]
    return []


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


class _Origin(NamedTuple):
    """Origin of the items of a dataset.

    Attributes
    ----------
    recipe : mapping
        The recipe by which they were packed, or the first of several.
    kind : {"files", "inputs", "samples"}
    classes : tuple of str
        The options that number the labels as in the dataset.
    merged : bool
        Whether they come from several sources.
    """

    kind: str = "files"
    recipe: Mapping[str, Any] = {}
    classes: tuple[str, ...] = ()
    merged: bool = False


def planned(layout: Layout) -> dict[str, Any]:
    """Return the plan of an unfinished build, or nothing if there is none."""
    plan: Any = None
    with suppress(OSError, ValueError):
        plan = json.loads(Workspace(layout.build).plan.read_bytes())
    return plan if isinstance(plan, dict) else {}


def _origin(layout: Layout, manifest: Manifest | None) -> _Origin:
    if manifest is None:
        plan = planned(layout)
        recipe = plan.get("recipe", {})
        names = recipe.get("classes") or plan.get("classes", {}).get("label")
        return _Origin("inputs" if plan.get("declared") else "files", recipe, _class_words(names))
    notes = manifest.wall_clock
    kind = "inputs" if notes.get(FROM_INPUTS) else "samples" if notes.get(FROM_PACKED) else "files"
    recipe = next(_recipes([generation.to_json() for generation in manifest.generations]))
    label = manifest.schema.by_name.get("label")
    classes = () if label is None or label.classes is None else ("--classes-from", str(layout.root))
    job = notes.get("job")
    return _Origin(kind, recipe, classes, isinstance(job, dict) and job.get("kind") == "merge")


def _class_words(names: Sequence[str] | None) -> tuple[str, ...]:
    return ("--classes", ",".join(names)) if names and not any("," in name for name in names) else ()


def _recipes(generations: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the recipes by which samples were made, including those of joined datasets."""
    for generation in generations:
        inputs = generation["recipe"].get("inputs")
        if inputs is None:
            yield generation["recipe"]
        for one in inputs or ():
            yield from _recipes(one["generations"])


def _write_table(path: Path, rows: list[dict[str, Any]], origin: _Origin) -> str:
    """Write the table, and return the command that packs its items, or another way to do so."""
    recipe, table = origin.recipe, str(path)
    words, retry = ["build", table, "OUT", "--root", "SOURCE"], ""
    column = str(recipe.get("path_column") or Recipe.path_column)
    if origin.kind != "files":
        column, words = ("input", []) if origin.kind == "inputs" else ("key", [])
        retry = "packer.pack with these inputs" if origin.kind == "inputs" else ""
        rows = [{_NAME: row[_NAME]} for row in rows]
    elif rows and all(_is_member(row[_NAME]) for row in rows):
        keys = dict.fromkeys(row[_NAME].partition(MEMBER_MARK)[2] for row in rows)
        column, words, rows = "key", ["build", "SOURCE", "OUT", "--keys", table], [{_NAME: key} for key in keys]
    else:
        rows = [{**row, _NAME: _below_root(row[_NAME], recipe)} for row in rows]
    header = list(dict.fromkeys(name for row in rows for name in row))
    named = [column if name == _NAME else name for name in header]
    written = [{shown: row[name] for name, shown in zip(header, named, strict=True) if name in row} for row in rows]
    if path.suffix.lower() == ".jsonl":
        data = b"".join(json.dumps(row).encode("ascii") + b"\n" for row in written)
        texts: list[str] = []
    else:
        data = _as_csv(path, written, named or [column])
        texts = [name for name in named if name != column and _looks_like_numbers(written, name)]
    write_output(path, data)
    if words:
        given = _option_words(recipe, None if column == "key" else named, texts)
        takes_labels = column == "key" or any(name in named for name in ("label", str(recipe.get("label_from"))))
        numbering = origin.classes if takes_labels and recipe.get("label_from") != "none" else ()
        retry = f"{program()} {shlex.join([*words, *given, *numbering])}" if given is not None else ""
    if not retry and words:  # neither can be said in words of a command
        return "the same build with --retry-rejects"
    return retry + (", with the items of one source at a time" if retry and origin.merged else "")


def _below_root(name: str, recipe: Mapping[str, Any]) -> str:
    """Return the path of an item relative to its root. With several roots, its name begins with the name of one."""
    roots = [PurePosixPath(root).name for root in recipe.get("root") or ()]
    first, _, rest = name.partition("/")
    return rest if len(roots) > 1 and rest and first in roots else name


def _option_words(recipe: Mapping[str, Any], columns: Sequence[str] | None, texts: Sequence[str]) -> list[str] | None:
    """Return the options of a recipe as words of a command line; None if a command line cannot hold them.

    Parameters
    ----------
    columns : sequence of str or None
        Columns of the table; None for keys of archives, whose fields stay as they were.
    texts : sequence of str
        Columns of texts that look like numbers.
    """
    options = {name: value for name, value in changed_options(recipe).items() if name not in _OF_SOURCES}
    if "frame_folders" in options and (recipe.get("include") or recipe.get("exclude")):
        return None  # a table does not take the patterns that have chosen the frames
    if columns is not None:
        for kind in ("text", "int", "float", "intervals"):
            named = [*options.get(kind, ()), *(texts if kind == "text" else ())]
            options[kind] = [name for name in dict.fromkeys(named) if name in columns]
        if Recipe.path_column in columns:
            options.pop("path_column", None)
        if options.get("label_from") not in (*columns, "none"):
            options.pop("label_from", None)  # the labels of folders are a column of the table
    try:
        return option_words(options)
    except UsageError:
        return None


def _looks_like_numbers(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Return whether a CSV would turn a column of texts into numbers."""
    values = [row[name] for row in rows if row.get(name) is not None]
    typer = CellTyper()
    if values and isinstance(values[0], str):
        typer.scan(values)
    return typer.kind is not str


def _is_member(name: str) -> bool:
    archive, mark, _ = name.partition(MEMBER_MARK)
    return bool(mark) and kind_of(archive) is not None


def _as_csv(path: Path, rows: list[dict[str, Any]], header: list[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    for row in rows:
        for name, value in row.items():
            if isinstance(value, bool | list | dict):
                raise UsageError(
                    place=path,
                    expected="columns of texts and numbers",
                    found=f"{shorten(value)} in column {shorten(name)}, which no CSV can hold",
                    hint=f"write {path.with_suffix('.jsonl').name}",
                )
        writer.writerow(["" if row.get(name) is None else row[name] for name in header])
    try:
        return text.getvalue().encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            place=path,
            expected="names that can be encoded as UTF-8",
            found="others, which no CSV can hold",
            hint=f"write {path.with_suffix('.jsonl').name}",
        ) from error
