"""Read the pieces of a build while tasks are running, and then merge them: reports, schema, generations, rows."""

import errno
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carry_columns
from packer.assembly.inputs import PiecePlaces, describe_pieces, for_workers, open_piece
from packer.assembly.packed_rows import PackedRows
from packer.assembly.piece import ColumnSpec, Piece, PieceColumns, count_columns
from packer.assembly.plan import Merge, shuffled
from packer.assembly.records import ItemIdentity, NewGeneration, ReportWriter, reported_items
from packer.assembly.schemas import FieldRules, extend_schema
from packer.assembly.table import RowTable
from packer.builds.planning.plan import DIGEST_BYTES, BuildPlan, source_row
from packer.builds.records import (
    BuildTotals,
    PackingCounts,
    arrange_generations,
    continue_history,
    describe_item,
    settled_reports,
)
from packer.builds.update.compare import UpdatePlan
from packer.jobs.plan import Task
from packer.jobs.stages import failed_item
from packer.recipe import Recipe
from packer.recipe.fields import Declaration
from packer.sources.item import Item, read_items
from packer.sources.packed import check_digests
from packer.steps.encode import declared_fields, image_codec
from packer.steps.report import ItemReport
from packer.workspace import Workspace, read_lines
from packer.workspace.folder import discard
from packer.workspace.shared_files import map_files, map_threaded
from shardspec.columns import IntArray
from shardspec.entries import Counts, strip_tag
from shardspec.errors import DatasetError, SchemaError, TooManyRejectsError, UsageError
from shardspec.layout import REJECTS_NAME, Layout, place_of
from shardspec.manifest import Manifest
from shardspec.wording import LONG, counted, cut, program, shorten

_AT_A_TIME = 4
"""Number of pieces to read between two events of workers. More than this would keep the workers waiting."""

_SHOWN_REASONS = 3

_NOT_THERE = os.strerror(errno.ENOENT)


class BuildAssembler:
    """Reads the pieces of a build while tasks are running, and merges them after the last task.

    Parameters
    ----------
    digests : bytearray
        See `packer.builds.planning.plan`.
    comparison : UpdatePlan, optional
        See `packer.builds.job.BuildJob`.
    rejects : bool
        Whether items may be rejected; otherwise the first reject is an error.
    places : PiecePlaces
        The folders of the pieces.
    """

    def __init__(
        self,
        space: Workspace,
        plan: BuildPlan,
        digests: bytearray,
        declaration: Declaration | None,
        comparison: UpdatePlan | None,
        *,
        rejects: bool,
        places: PiecePlaces,
    ) -> None:
        self._space = space
        self._places = places
        self._plan = plan
        self._recipe = plan.options
        self._digests = digests
        self._comparison = comparison
        self._rejects = rejects
        fields = declared_fields(self._recipe) if declaration is None else declaration.fields
        self._rules = FieldRules(image_codec(self._recipe), plan.classes, fields)
        self._count = Counter[tuple[tuple[str, ColumnSpec], ...]]()
        self._finished: set[int] = set()
        self._begin({})

    def _begin(self, columns: PieceColumns) -> None:
        """Start a pass over the pieces, in which the rows with these columns are used."""
        compared = self._comparison
        base = None if compared is None else reported_items(compared.layout, compared.base)
        self._reports = ReportWriter(self._space.final, base, None if compared is None else compared.gone)
        self._counts = PackingCounts()
        self._rows, self._table = array("q"), RowTable(columns, self._rules)
        self._failed: ItemReport | None = None

    @property
    def reports_folder(self) -> Path:
        """The folder in which `assemble` writes the reports."""
        return self._space.final

    def read(self, finished: Iterable[int] = ()) -> None:
        """Record further finished tasks, and read a few of their pieces, in task order."""
        self._finished.update(finished)
        first = len(self._rows)
        tasks = list(takewhile(self._finished.__contains__, range(first, first + _AT_A_TIME)))
        for piece in self._open(tasks) if tasks else ():
            self._add(piece)
        self._finished.difference_update(tasks)

    def close(self) -> None:
        """Close the files."""
        self._reports.close()

    def assemble(self) -> Merge:
        """Write the reports and settle the schema.

        Raises
        ------
        TooManyRejectsError
            If no item yielded a sample.
        UsageError
            If the rows do not fit into the dataset that is updated, or if it would have no samples.
        DatasetError
            If a shard to copy samples from does not match the manifest.
        """
        space, recipe, compared = self._space, self._recipe, self._comparison
        with closing(self):
            self._read_rest()
        if self._failed is not None and not self._rejects:
            raise failed_item(self._failed.name, f"{self._failed.step}: {self._failed.reason}")
        counts = self._reports.counts(self._plan.ignored)
        if not counts.samples and compared is None:
            raise _give_up(space, counts, recipe)
        table = self._table
        table.settle()
        order = None if recipe.shuffle is None else shuffled(counts.samples, recipe.shuffle)
        places = self._places
        if space.remote is not None and not places.folders:
            places = PiecePlaces(objects=[space.remote.pieces[task] for task in range(len(self._rows))])
        pieces = [describe_pieces(table, self._rows, places)] if counts.samples else []
        made = arrange_generations(self._plan, counts, compared, self._reports.left)
        noted = asdict(BuildTotals.of_counts(self._counts, self._reports.mended, recipe))
        if compared is None:
            rows: dict[str, Any] = {"inputs": pieces}
            return Merge(rows, PackedRows(rows, space, table=table), recipe.format, made, order, noted=noted)
        self._check_fit(compared.base)
        return self._assemble_update(compared, pieces, made, order, noted)

    def _read_rest(self) -> None:
        """Read the remaining pieces and finish the reports.

        The most common columns are known only now. If they differ from those of the first piece with rows, all pieces are
        read again.
        """
        tasks = len(self._plan.tasks)
        for piece in self._open(range(len(self._rows), tasks)):
            self._add(piece)
        columns = self._choose_columns()
        if self._table.columns != columns:
            self.close()
            self._begin(columns)
            for piece in self._open(range(tasks)):
                self._take_rows(piece)
        self._reports.finish()

    def _open(self, tasks: Iterable[int]) -> Iterator[Piece]:
        opened = partial(open_piece, self._space, self._places)
        if self._space.remote is not None:
            return map_threaded(opened, tasks)
        return map_files(self._space.root, opened, tasks)

    def _add(self, piece: Piece) -> None:
        found = count_columns(piece)
        self._count.update(found)
        if not self._table.columns and found:
            self._table = RowTable(dict(found.most_common(1)[0][0]), self._rules)
        self._take_rows(piece)

    def _take_rows(self, piece: Piece) -> None:
        """Collect what the piece of the next task has about rows with the chosen columns."""
        task = self._plan.tasks[len(self._rows)]
        row_of = self._rows_of(task)
        for place, (report, identity) in enumerate(
            zip(settled_reports(piece, self._table.columns), self._identify(task), strict=True)
        ):
            rejected = not report.samples and not report.empty
            if rejected and self._failed is None:
                self._failed = report
            item = describe_item(report, identity, row_of(place) if rejected else {})
            if self._comparison is None:
                self._reports.add(item)
            else:
                self._reports.put(item, identity.number)
            self._counts.add(report)
        self._rows.append(self._table.add(piece))

    def _choose_columns(self) -> PieceColumns:
        """Return the most common columns, in a tie the first; an empty dict if no item yielded a sample.

        All pieces are counted, so neither the order of the items nor the number of workers affects the choice. In an
        update, columns that fit the dataset take precedence.
        """
        ranked = [dict(columns) for columns, _ in self._count.most_common()]
        schema = None if self._comparison is None else self._comparison.base.shard_schema
        fitting = (one for one in ranked if schema is None or self._rules.fits(one, schema))
        return next(fitting, ranked[0] if ranked else {})

    def _assemble_update(
        self,
        compared: UpdatePlan,
        pieces: list[dict[str, Any]],
        made: Sequence[NewGeneration],
        order: IntArray | None,
        noted: Mapping[str, Any],
    ) -> Merge:
        """Merge the new rows, and if samples are removed, also the rows that are kept."""
        base, space, counts = compared.base, self._space, self._reports.counts(self._plan.ignored)
        if compared.rewrites:  # before reading the sizes that decide how rows are cut
            check_digests(compared.layout, base)
        removed = find_rows(compared.layout, base, compared.removed)
        columns = carry_columns(space, compared.layout.root, base, removed, counts.samples)
        if len(removed) == base.samples and not counts.samples:
            discard(space)
            raise UsageError(
                place=place_of(compared.layout.root),
                expected="an update that leaves samples",
                found=f"one that removes all {base.samples} and adds none",
                hint="give another source, or pack this one into another folder",
            )
        dataset = {"path": str(compared.layout.root), "digest": base.digest, "columns": False}
        inputs = [dataset, *pieces]
        if compared.rewrites:
            kept = np.delete(np.arange(base.samples), removed)
            added = base.samples + (np.arange(counts.samples) if order is None else order)
            order = np.concatenate([kept, added])
        elif pieces:
            inputs = [{**pieces[0], "schema": extend_schema(base.shard_schema, self._table.schema).to_json()}]
        rows: dict[str, Any] = {"inputs": inputs}
        if not (compared.rewrites or pieces):  # only the reports change
            rows["shards"], order = [], np.empty(0, np.int64)
        # The digests of local shards have been compared above. Workers compare those of all before they copy rows.
        source = PackedRows({**rows, "check": "size"}, space, [base], self._table if pieces else None)
        rows = for_workers(rows)
        return Merge(
            rows,
            source,
            self._recipe.format,
            made,
            order,
            _next_shard(base),
            None if compared.rewrites else _index_files(compared.layout, base),
            columns,
            continue_history(made, counts, compared),
            noted=noted,
        )

    def _check_fit(self, base: Manifest) -> None:
        """Check that the new rows fit into the dataset."""
        try:
            if len(self._table):
                extend_schema(base.shard_schema, self._table.schema)
        except SchemaError as error:
            discard(self._space)  # resuming this build would fail again
            raise UsageError(
                expected="samples that fit into the dataset",
                found="others",
                hint=(
                    f"{error}: make them alike ({program()} merge names the options), or choose another output folder"
                ),
            ) from error

    def _rows_of(self, task: Task) -> Callable[[int], Mapping[str, Any]]:
        """Return a function that maps an item's position in a task to its row in the source.

        The function reads the items when it is first called.
        """
        items: list[Item] = []

        def row_of(place: int) -> Mapping[str, Any]:
            items.extend(() if items else read_items(self._space.items, *task))
            return source_row(items[place], self._plan)

        return row_of

    def _identify(self, task: Task) -> Iterator[ItemIdentity]:
        """Yield the identity of each item of a task. Later builds recognise the item by this identity."""
        if self._comparison is not None:
            yield from map(self._comparison.identify, read_items(self._space.items, *task))
            return
        digests, digits = self._digests[DIGEST_BYTES * task.start : DIGEST_BYTES * task.stop].hex(), 2 * DIGEST_BYTES
        for place, index in enumerate(range(task.start, task.stop)):
            yield ItemIdentity(digests[digits * place : digits * (place + 1)], index)


def find_rows(layout: Layout, base: Manifest, samples: IntArray) -> IntArray:
    """Return the rows of some items of a dataset, ascending. They are found by the item number in the samples' keys.

    Digests are not compared, because that would read every shard.

    Parameters
    ----------
    samples : (items,) int64
        Expected number of samples of each item of the dataset; 0 for items whose rows are not needed.

    Raises
    ------
    DatasetError
        If the dataset has another number of samples of these items.
    """
    found = array("q")
    if samples.any():
        row = 0
        with closing(PackedRows.of(layout.root, check="size", manifest=base)) as rows:
            for batch in rows.batches(["key"]):
                for key in batch["key"]:
                    number = bytes(key).partition(b"-")[0]
                    if number.isdigit() and (item := int(number)) < len(samples) and samples[item]:
                        found.append(row)
                    row += 1
    expected = samples.sum()
    if len(found) != expected:
        raise DatasetError(
            place=place_of(layout.root),
            expected=f"{expected} samples of the items to replace or drop",
            found=len(found),
            hint="pack it again with --overwrite",
        )
    return np.frombuffer(found, np.int64)


def _next_shard(base: Manifest) -> int:
    """Return a number larger than that of any shard."""
    found = (re.match(r"shard-([0-9]+)", strip_tag(shard.name)) for shard in base.shards)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


def _index_files(layout: Layout, base: Manifest) -> dict[str, Path]:
    """Check the index files of a dataset, and return their paths by field."""
    found = {}
    for name in (known.name for known in base.shard_schema if known.is_scalar):
        entry = layout.find_index(base, name)
        if entry is None:
            raise DatasetError(place=layout.shown, expected=f"an index of the field {name!r}", found="none")
        layout.check_digest(entry)
        found[name] = layout.file(entry)
    return found


def _give_up(space: Workspace, counts: Counts, recipe: Recipe) -> TooManyRejectsError:
    """Discard a build without samples, and return the error to raise. Resuming such a build would not help."""
    reasons = list(islice(read_lines(space.final / REJECTS_NAME), _SHOWN_REASONS))
    shown = "; ".join(f"{shorten(line['item'], LONG)}, {line['step']}: {cut(line['reason'], LONG)}" for line in reasons)
    advice = ""
    if all(line["step"] == "source" and line["reason"].endswith(_NOT_THERE) for line in reasons):
        kind = (
            "have / and a suffix (--path-suffix .jpg appends one), and"
            if recipe.frame_folders is None
            else "have / and all zeros of a name, and"
        )
        advice = f"paths in a table {kind} are relative to its folder, or to --root DIR"
    space.give_up(space.final / REJECTS_NAME)
    all_items = f"none of the {counted(counts.items, 'item')} yielded a sample"
    return TooManyRejectsError(
        f"{'the only item yielded no sample' if counts.items == 1 else all_items}, so nothing was packed: {shown} "
        f"(all reasons: {space.reasons if space.remote is None else space.remote.place(REJECTS_NAME)})"
        f"{f': {advice}' if advice else ''}"
    )
