"""Read the parts of a build while tasks are running, and then write its reports, settle its schema, and plan its shards."""

import errno
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carry_columns
from packer.assembly.plan import ShardRun, shuffled
from packer.builds.generations import BuildTotals, arrange_generations
from packer.builds.parts.part import Part, PartColumns, open_part
from packer.builds.parts.rows import RowTable, UpdatedRows, describe_rows, describe_updated, find_rows
from packer.builds.parts.schema import SchemaSettler, count_columns, settled_reports
from packer.builds.planning.plan import DIGEST_BYTES, BuildPlan, source_row
from packer.builds.reports import BaseReports, ItemIdentity, ReportWriter
from packer.builds.update.compare import UpdatePlan
from packer.jobs.plan import RowLayout, Task
from packer.jobs.stages import failed_item
from packer.recipe import Recipe
from packer.recipe.fields import Declaration
from packer.sources.item import Item, read_items
from packer.steps.encode import ColumnSpec, declared_fields, image_codec
from packer.steps.report import ItemReport
from packer.workspace import Workspace, read_lines
from packer.workspace.folder import discard
from packer.workspace.shared_files import map_files
from readers.formats.machine import available_processors
from shardspec.entries import Counts, strip_aside
from shardspec.errors import DatasetError, SchemaError, TooManyRejectsError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest
from shardspec.points import LAYOUTS
from shardspec.schema import Schema
from shardspec.wording import LONG, counted, cut, program, shorten

_AT_A_TIME = 4
"""Number of parts to read between two events of workers. More than this would keep the workers waiting."""

_SHOWN_REASONS = 3

_NOT_THERE = os.strerror(errno.ENOENT)


class BuildAssembler:
    """Reads the parts of a build while tasks are running, and plans the shards after the last task.

    Parameters
    ----------
    digests : bytearray
        See `packer.builds.planning.plan`.
    comparison : UpdatePlan, optional
        See `packer.builds.job.BuildJob`.
    rejects : bool
        Whether items may be rejected; otherwise the first reject is an error.
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
    ) -> None:
        self._space = space
        self._plan = plan
        self._recipe = Recipe.from_options(plan.recipe)
        self._digests = digests
        self._declaration = declaration
        self._comparison = comparison
        self._rejects = rejects
        self._count = Counter[tuple[tuple[str, ColumnSpec], ...]]()
        self._finished: set[int] = set()
        self._begin({})

    def _begin(self, columns: PartColumns) -> None:
        """Start a pass over the parts, in which the rows with these columns are used."""
        self._columns, self._settler, self._reports = columns, self._make_settler(), self._make_reports()
        self._settler.begin(columns)
        self._rows, self._table = array("q"), RowTable(columns)
        self._failed: ItemReport | None = None

    def read(self, finished: Iterable[int] = ()) -> None:
        """Record further finished tasks, and read a few of their parts, in task order."""
        self._finished.update(finished)
        first = len(self._rows)
        tasks = list(takewhile(self._finished.__contains__, range(first, first + _AT_A_TIME)))
        for part in self._open(tasks) if tasks else ():
            self._add(part)
        self._finished.difference_update(tasks)

    def close(self) -> None:
        """Close the files."""
        self._reports.close()

    def assemble(self) -> RowLayout:
        """Write the reports and settle the schema.

        Raises
        ------
        TooManyRejectsError
            If no item yielded a sample.
        """
        space, recipe, compared = self._space, self._recipe, self._comparison
        with closing(self):
            self._read_rest()
        if self._failed is not None and not self._rejects:
            raise failed_item(self._failed.name, f"{self._failed.step}: {self._failed.reason}")
        totals = BuildTotals.of_reports(self._reports, recipe, self._plan.ignored)
        totals.save(space)
        counts = totals.counts
        if not counts.samples and compared is None:
            raise _give_up(space, counts, recipe)
        self._table.schema = self._settle(self._settler)
        config = describe_rows(self._columns, self._rows, self._table.schema)
        order = None if recipe.shuffle is None else shuffled(counts.samples, recipe.shuffle)
        made = arrange_generations(self._plan, totals, compared)
        pieces = [ShardRun(one.rows, recipe.shard_size) for one in made]
        added = RowLayout(config, recipe.format, pieces, order, source=self._table)
        return added if compared is None else self._assemble_update(compared, added, counts.samples)

    def _read_rest(self) -> None:
        """Read the remaining parts and finish the reports.

        The most common columns are known only now. If they differ from those of the first part with rows, all parts are
        read again.
        """
        tasks = len(self._plan.tasks)
        for part in self._open(range(len(self._rows), tasks)):
            self._add(part)
        columns = self._choose_columns()
        if self._columns != columns:
            self.close()
            self._begin(columns)
            for part in self._open(range(tasks)):
                self._take_rows(part)
        self._reports.finish()

    def _open(self, tasks: Iterable[int]) -> Iterator[Part]:
        return map_files(self._space.root, partial(open_part, self._space), tasks)

    def _add(self, part: Part) -> None:
        found = count_columns(part)
        self._count.update(found)
        if not self._columns and found:
            self._columns = dict(found.most_common(1)[0][0])
            self._settler.begin(self._columns)
            self._table = RowTable(self._columns)
        self._take_rows(part)

    def _take_rows(self, part: Part) -> None:
        """Collect what the part of the next task has about rows with the chosen columns."""
        task = self._plan.tasks[len(self._rows)]
        reports = list(settled_reports(part, self._columns))
        if self._failed is None:
            self._failed = next((report for report in reports if not report.samples and not report.empty), None)
        self._reports.add(reports, self._identify(task), self._rows_of(task))
        self._rows.append(self._settler.add(part))
        rows = part.group(self._columns)
        if rows is not None:
            self._table.add(rows)

    def _choose_columns(self) -> PartColumns:
        """Return the most common columns, in a tie the first; an empty dict if no item yielded a sample.

        All parts are counted, so neither the order of the items nor the number of workers affects the choice. In an
        update, columns that fit the dataset take precedence.
        """
        ranked = [dict(columns) for columns, _ in self._count.most_common()]
        schema = None if self._comparison is None else self._comparison.base.shard_schema
        fitting = (one for one in ranked if schema is None or self._settler.fits(one, schema))
        return next(fitting, ranked[0] if ranked else {})

    def _make_settler(self) -> SchemaSettler:
        layouts = {len(layout.names): name for name, layout in LAYOUTS.items()}
        fields = declared_fields(self._recipe) if self._declaration is None else self._declaration.fields
        return SchemaSettler(image_codec(self._recipe), self._plan.classes, layouts, fields)

    def _make_reports(self) -> ReportWriter:
        space, compared = self._space, self._comparison
        before = None if compared is None else BaseReports(compared.layout, compared.base, compared.gone)
        return ReportWriter(space.final / REJECTS_NAME, space.final / ITEMS_NAME, before)

    def _assemble_update(self, compared: UpdatePlan, added: RowLayout, samples: int) -> RowLayout:
        """Plan shards for the new rows. If samples are removed, the new shards also hold the rows that are kept.

        Raises
        ------
        UsageError
            If no sample would be left.
        DatasetError
            If a shard to copy samples from does not match the manifest.
        """
        base, space = compared.base, self._space
        if compared.rewrites:  # check the shards before reading the sizes that decide how rows are cut
            _check_shards(compared.layout, base)
        removed = find_rows(compared.layout, base, compared.removed)
        carry_columns(space, base, removed, samples)
        first = _next_shard(base, space)
        if not compared.rewrites:
            return replace(added, first_shard=first, before=_index_files(compared.layout, base))
        if len(removed) == base.samples and not samples:
            discard(space, aside=True)
            raise UsageError(
                place=compared.layout.root,
                expected="an update that leaves samples",
                found=f"one that removes all {base.samples} and adds none",
                hint="give another source, or pack this one into another folder",
            )
        kept = np.delete(np.arange(base.samples), removed)
        order = base.samples + (np.arange(samples) if added.order is None else added.order)
        rows = describe_updated(base, added.rows)
        source = UpdatedRows(rows, space, added.source)
        return replace(added, rows=rows, order=np.concatenate([kept, order]), first_shard=first, source=source)

    def _settle(self, settler: SchemaSettler) -> Schema:
        """Return the schema of the rows, or in an update the schema of the extended dataset.

        Raises
        ------
        UsageError
            If the rows do not fit into the dataset.
        """
        if self._comparison is None:
            return settler.settle()
        try:
            return settler.settle_into(self._comparison.base.shard_schema)
        except SchemaError as error:
            discard(self._space, aside=True)  # resuming this build would fail again
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


def _next_shard(base: Manifest, space: Workspace) -> int:
    """Return a shard number larger than that of any shard or file in the folder."""
    names = [*(shard.name for shard in base.shards), *(path.name for path in space.out.iterdir())]
    found = (re.match(r"shard-([0-9]+)", strip_aside(name)) for name in names)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


def _check_shards(layout: Layout, base: Manifest) -> None:
    with ThreadPoolExecutor(available_processors()) as threads:
        for _ in threads.map(layout.check_digest, [entry for shard in base.shards for entry in shard.files]):
            pass


def _index_files(layout: Layout, base: Manifest) -> dict[str, Path]:
    """Check the index files of a dataset, and return their paths by field."""
    found = {}
    for name in (known.name for known in base.shard_schema if known.is_scalar):
        entry = layout.find_index(base, name)
        if entry is None:
            raise DatasetError(place=layout.root, expected=f"an index of the field {name!r}", found="none")
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
        f"(all reasons: {space.reasons})"
        f"{f': {advice}' if advice else ''}"
    )
