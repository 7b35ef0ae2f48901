"""The stage of the shards: cut the rows into shards, and write every unfinished shard of the plan."""

from collections.abc import Callable
from contextlib import closing

from packer.assembly.plan import ShardPlan, plan_assembly, write_index
from packer.assembly.rows import open_rows
from packer.assembly.shard import place_shard
from packer.jobs.engines.base import Event
from packer.jobs.plan import Assembly, Unit
from packer.jobs.progress import ProgressListener, Stage
from packer.workspace import Workspace, append_line
from packer.workspace.durable import fsync_folder
from packer.workspace.shared_files import map_files
from shardspec.entries import Shard
from shardspec.errors import BuildError
from shardspec.layout import INDEX_FOLDER

RunUnits = Callable[[list[Unit], Callable[[Event], None]], None]
"""Function that runs units until all are done, and passes on every event."""


def cut_into_shards(assemble: Callable[[], Assembly], space: Workspace) -> ShardPlan:
    """Write reports and index, and cut the rows of all tasks into shards. The assembly plan is written last."""
    found = assemble()
    with closing(open_rows(found.rows, space) if found.source is None else found.source) as source:
        assembly = plan_assembly(space, found.rows, source, found.format, found.pieces, found.order, found.first_shard)
        write_index(source, found.order, space.final / INDEX_FOLDER, found.before)
    for folder in space.part_folders():  # makes the names of the parts durable: no task runs again from here on
        fsync_folder(folder)
    assembly.save()
    return assembly


def assemble_shards(plan: ShardPlan, run: RunUnits, listener: ProgressListener) -> tuple[Shard, ...]:
    """Write the unfinished shards of an assembly plan, and return all shards in order."""
    workspace, count = plan.workspace, len(plan.sizes)
    root = workspace.shard_folder
    shards: dict[int, Shard] = {}
    plan.staging.mkdir(exist_ok=True)
    placed = map_files(root, lambda number: place_shard(root, plan.published(number)), range(count))
    for number, shard in enumerate(placed):
        if shard is not None:
            shards[number] = shard
        else:
            workspace.take_away(plan.published(number))
    with Stage(listener, "writing", count, "shards", len(shards)) as stage:

        def on_event(event: Event) -> None:
            size = 0
            if event.kind == "done" and event.unit is not None:
                number = event.unit.number
                append_line(workspace.journal, {"did": "shard", "number": number})
                shard = place_shard(root, plan.published(number))
                if shard is None:
                    raise BuildError(
                        place=plan.published(number),
                        expected="the files of a finished shard",
                        found="others",
                        hint="run the same command again to resume",
                    )
                shards[number] = shard
                size = shard.bytes
            stage.advance(int(event.kind == "done"), size=size)

        run([Unit("shard", number) for number in range(count) if number not in shards], on_event)
    fsync_folder(root)
    return tuple(shards[number] for number in range(count))
