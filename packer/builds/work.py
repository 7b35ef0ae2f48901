"""The work of a build: run the steps on items and write pieces, then write shards."""

import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from packer.assembly.piece import PackedItem, Piece
from packer.assembly.piece_writer import PieceWriter
from packer.assembly.remote_piece import put_piece
from packer.assembly.shard import PlannedShards
from packer.builds.planning.plan import BuildPlan, item_digest
from packer.builds.records import report_of
from packer.jobs.plan import PIECE, OnItem, Unit, Verdicts
from packer.jobs.progress import reason_kind
from packer.recipe.fields import Declaration
from packer.sources.item import PACKED_ROW, Item, items_of, read_items
from packer.sources.row_fields import with_arrays
from packer.steps.call import MadeEncoder, step_of
from packer.steps.chain import PACKED_KEY, STEPS, Pipeline, Step, StepError, StepResources, sample_key
from packer.steps.encode import Encoder, keeps_images
from packer.steps.report import ItemReport
from packer.vision.faults import find_full_disk, find_memory_error, may_pass
from packer.workspace import Workspace
from packer.workspace.durable import read_record, write_record, writing
from packer.workspace.machines import first_machine, machine_kind
from packer.workspace.shared_files import reading
from shardspec.errors import BuildError, CodecError, MissingDependencyError, SchemaError, system_reason
from shardspec.registry import import_target

if TYPE_CHECKING:
    from packer.builds.fetching import Fetcher

READ_PAUSES_S = (0.5, 2.0)
"""Pauses in seconds before each retry of an item that could not be read because of a temporary fault."""

_PIECE = re.compile(r"part-([0-9]+)(?:\.item-([0-9]+))?\Z")
_RECORD = ".json"


class BuildWork:
    """Runs units of work in one workspace (`packer.jobs.plan.Work`).

    Parameters
    ----------
    functions : dict of str to callable
        Steps passed as Python functions (inline engine only).
    live : dict of int to Item
        Items whose columns hold arrays, by index (inline engine only).
    """

    def __init__(
        self,
        workspace: Workspace,
        plan: BuildPlan,
        functions: Mapping[str, Step] | None = None,
        live: Mapping[int, Item] | None = None,
        *,
        resources: StepResources,
    ) -> None:
        self.workspace = workspace
        self.plan = plan
        self._functions = functions
        self._live = live or {}
        self._resources = replace(resources, only_encodes=not plan.declared)
        self._recipe = plan.options
        self._encoder: Encoder | MadeEncoder | None = None
        self._pipeline: Pipeline | None = None
        self._shards = PlannedShards(workspace)
        self._items: BinaryIO | None = None
        self._fetcher: Fetcher | None = None

    @classmethod
    def of_plan(cls, workspace: Workspace, document: Mapping[str, Any], resources: StepResources) -> "BuildWork":
        """Make the work for the plan of a workspace, given as JSON."""
        return cls(workspace, BuildPlan.from_json(document), resources=resources)

    def prepare(self) -> None:
        """Load the steps and their models before the first task."""
        if self._pipeline is None:
            functions = self._functions or {}
            if self.plan.declared:
                (spec,) = self._recipe.chain
                function = functions.get(spec.use) or import_target(spec.use, what=f"function {spec.use!r}")
                functions = {spec.use: step_of(function)}
                self._encoder = MadeEncoder(Declaration.from_json(self.plan.declared))
            else:
                self._encoder = Encoder(self._recipe)
                if not keeps_images(self._recipe):
                    self._encoder.prepare()
            self._pipeline = Pipeline(self._recipe, functions, self._resources)

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Run one unit, and return its record for the journal.

        Raises
        ------
        BuildError
            If the job cannot continue, regardless of the item.
        MemoryError
            If memory ran out, which is not the fault of an item.
        """
        with writing(self.workspace.out):
            if unit.do == "shard":
                return self._shards.write(unit.number)
            if unit.do == "join":
                return self._join(unit)
            task = self.plan.tasks[unit.number]
            with reading():
                if self._items is None:  # kept open: on a shared file system each opening takes time
                    self._items = self.workspace.items.open("rb")
                items = list(items_of(self._items, *task))
            if unit.do == "item":
                target = self.workspace.item_part(unit.number, unit.item)
                items = [item for item in items if item.index == unit.item]
            else:
                target = self.workspace.part(unit.number)
            with self._fetching(items, verdicts), PieceWriter(target, self.workspace.owner) as piece:
                for planned in items:
                    # Before the item starts: a slow download is not its fault.
                    item = self._ready(planned)
                    on_item("start", item.index, 0, "")
                    report = self._kept.copy(planned, piece) or self._item(item, piece, verdicts, on_item)
                    reason = "" if report.step is None else f"{report.step}: {report.reason}"
                    on_item("end", item.index, report.samples, reason)
                    self._release([planned])
                piece.finish()
            return {**summarise(piece.items), "bytes": piece.bytes, **self._hand_in(unit, target)}

    def _hand_in(self, unit: Unit, path: Path) -> dict[str, str]:
        """Move a finished piece to the store of the workspace, if it has one, and return the piece's name there."""
        remote = self.workspace.remote
        if remote is None:
            return {}
        if unit.do == "item":
            remote.put(self.workspace.root, path)
            return {}
        return {PIECE: put_piece(self.workspace, remote, path)}

    def close(self) -> None:
        """Close the shards, the items file and the steps."""
        self._shards.close()
        if self._items is not None:
            self._items.close()
        if self._pipeline is not None:
            self._pipeline.close()
        if self._fetcher is not None:
            self._fetcher.close()

    def _ready(self, item: Item) -> Item:
        """Return an item with its arrays, which the plan's file does not store as such, and with its files downloaded."""
        found = self._live.get(item.index, item)
        found = found._replace(columns=with_arrays(found.columns, self.plan.arrays)) if self.plan.arrays else found
        return found if self._fetcher is None else self._fetcher.local(found)

    def _fetching(self, items: Sequence[Item], verdicts: Verdicts) -> AbstractContextManager[None]:
        """Return the context in which the files of the items that will be packed are downloaded, if they are in stores."""
        if not any(item.is_stored for item in items):
            return nullcontext()
        if self._fetcher is None:
            self._fetcher = import_target("packer.builds.fetching:Fetcher", what="sources in stores")()
        return self._fetcher.fetching(item for item in items if item not in self._kept and item.index not in verdicts)

    def _release(self, items: Iterable[Item]) -> None:
        if self._fetcher is not None:
            for item in items:
                self._fetcher.release(item.index)

    @cached_property
    def _kept(self) -> "KeptItems":
        return KeptItems(self.workspace, self.plan)

    def _item(self, item: Item, piece: PieceWriter, verdicts: Verdicts, on_item: OnItem) -> ItemReport:
        """Run the steps on one item and append its samples. An item that fails becomes a reject without samples."""
        self.prepare()
        report = _begin_report(item, on_item)
        for pause_s in (*READ_PAUSES_S, None):
            piece.begin()
            try:
                self._pack(item, report, piece, verdicts)
            except StepError as error:
                piece.undo()
                if pause_s is not None and may_pass(error):
                    time.sleep(pause_s)
                    report = _begin_report(item, on_item)
                    continue
                report = _describe_reject(item, report, error)
            break
        document = report.to_json()
        piece.end(document.pop("name"), document)
        return report

    def _pack(self, item: Item, report: ItemReport, piece: PieceWriter, verdicts: Verdicts) -> None:
        """Run the steps on one item, unless it is rejected already, and append its samples."""
        if item.reject is not None:
            raise StepError("source", item.reject)
        if item.index in verdicts:
            raise StepError(*verdicts[item.index])
        try:
            self._append_samples(item, report, piece)
        except MissingDependencyError as error:
            raise MissingDependencyError(error, place=f"{item.name!r}") from error
        except (StepError, MemoryError) as error:
            full = find_full_disk(error)
            # Built-in steps write no files, but libav reports a full buffer with the same error number.
            if full is not None and not (isinstance(error, StepError) and error.step in STEPS):
                where = full.filename or f"a file that is needed for {item.name!r}"
                raise BuildError(f"cannot be written: {system_reason(full)}", place=where) from error
            if (lack := find_memory_error(error)) is None:
                raise
            step = error.step if isinstance(error, StepError) else "encode"
            raise MemoryError(
                f"memory ran out at {item.name!r}, in {step}: {str(lack) or type(lack).__name__}"
            ) from error
        try:
            changes = list(item.changes())
        except OSError as error:
            raise StepError("source", f"expected a readable file, found: {system_reason(error)}") from error
        if changes:
            # The file was read without an error, but it is not the file that was planned.
            raise StepError("source", changes[0])

    def _append_samples(self, item: Item, report: ItemReport, piece: PieceWriter) -> None:
        assert self._pipeline is not None
        assert self._encoder is not None
        with closing(self._pipeline.run(item, report)) as samples:
            for number, sample in enumerate(samples):
                try:
                    row = self._encoder.encode({**sample, "key": _key(item, number, sample)})
                    piece.append(row)
                except (SchemaError, CodecError) as error:
                    raise StepError("encode", str(error)) from error
                report.samples += 1
                report.progressive += sum(value.progressive for value in row.values())

    def _join(self, unit: Unit) -> dict[str, Any]:
        """Concatenate the pieces of a task's items, then delete them. After a crash at any moment, the call can be repeated."""
        number = unit.number
        task = self.plan.tasks[number]
        paths = [self.workspace.item_part(number, item) for item in range(task.start, task.stop)]
        joined = self.workspace.part(number)
        if not joined.exists():
            with PieceWriter(joined, self.workspace.owner) as piece:
                for path in paths:
                    piece.copy(Piece(self.workspace.promised(path)), 0)
                piece.finish()
        for path in paths:
            path.unlink(missing_ok=True)
        return {**summarise(Piece(joined).items), **self._hand_in(unit, joined)}


def summarise(items: Iterable[PackedItem]) -> dict[str, Any]:
    """Summarise a task's items for the journal: count samples, and rejected items by step and reason."""
    rows, rejected = 0, Counter[str]()
    for _, report, _ in items:
        samples = report.get("samples", 0)
        rows += samples
        if not samples and not report.get("empty"):
            rejected[f"{report['step']}: {reason_kind(str(report['reason']))}"] += 1
    return {"rows": rows, **({"rejected": dict(rejected)} if rejected else {})}


def _begin_report(item: Item, on_item: OnItem) -> ItemReport:
    """Make the report of an item. For a video, it also reports the number of frames examined so far."""
    if not item.medium.is_sequence:
        return ItemReport(item.name)
    return ItemReport(item.name, watch=lambda frames: on_item("frame", item.index, frames, ""))


def _describe_reject(item: Item, report: ItemReport, error: StepError) -> ItemReport:
    """Return the report of an item that failed."""
    reasons = [error.reason, *([report.damage] if report.damage else [])]
    with suppress(OSError):
        reasons += item.changes()
    if may_pass(error):
        reasons.append(f"tried {len(READ_PAUSES_S) + 1} times")
    reason = "; ".join(dict.fromkeys(reasons))
    return ItemReport(item.name, frames=report.frames, faces=report.faces, step=error.step, reason=reason)


def _key(item: Item, number: int, sample: Mapping[str, Any]) -> str:
    """Return a sample's key, made from its item and ordinal, or derived from the key of a packed row."""
    packed = sample.get(PACKED_KEY)
    return sample_key(item, packed, number) if packed is not None else built_key(item, number)


def keep_pieces(space: Workspace, document: Mapping[str, Any]) -> None:
    """Move the finished pieces of a plan to `Workspace.kept`, each with the digests of its items.

    After a crash at any moment, the call can be repeated: each piece is either in its old place, or moved with its record.

    Parameters
    ----------
    document : mapping
        The plan in the workspace, as JSON. Its items file must still exist.
    """
    plan = BuildPlan.from_json(document)
    space.kept.mkdir(exist_ok=True)
    space = space.of_plan(plan.fingerprint)
    machine = first_machine(space)
    for path in space.part_files():
        match = _PIECE.match(path.name)
        if match is None:
            path.unlink()
            continue
        items = read_items(space.items, *plan.tasks[int(match[1])])
        digests = [item_digest(item) for item in items if match[2] is None or item.index == int(match[2])]
        target = space.kept / f"{uuid.uuid4().hex}.piece"
        record = {"terms": plan.terms, "machine": machine, "items": digests}
        write_record(target.with_suffix(_RECORD), record)
        os.replace(path, target)


class KeptItems:
    """Finds items of earlier plans in `Workspace.kept` that a plan can reuse."""

    def __init__(self, space: Workspace, plan: BuildPlan) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        self._open = lru_cache(maxsize=8)(Piece)
        terms, machine = plan.terms, machine_kind()
        for record in sorted(space.kept.glob(f"*{_RECORD}")) if space.kept.is_dir() else ():
            document, path = read_record(record), record.with_suffix(".piece")
            if (document["terms"], document["machine"]) == (terms, machine) and path.exists():
                self._places |= {digest: (path, place) for place, digest in enumerate(document["items"])}

    def __contains__(self, item: Item) -> bool:
        return bool(self._places) and item_digest(item) in self._places

    def copy(self, item: Item, piece: PieceWriter) -> ItemReport | None:
        """Append the kept samples of an equal item with keys of this item. Return None if there is no such item."""
        found = self._places.get(item_digest(item)) if self._places else None
        if found is None:
            return None
        path, place = found
        key = None if PACKED_ROW in item.columns else lambda number: built_key(item, number)
        return report_of(piece.copy(self._open(path), place, key))


def built_key(item: Item, number: int) -> str:
    """Return the key of a sample, made from the number of its item and its ordinal in the item."""
    return f"{item.index if item.number is None else item.number:08d}-{number:06d}"
