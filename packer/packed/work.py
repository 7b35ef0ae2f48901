"""The work of jobs over packed datasets. Each input shard is a task, which checks and scans it."""

from collections.abc import Mapping
from typing import Any

from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import PlannedShards
from packer.jobs.plan import OnItem, Unit, Verdicts
from packer.steps.chain import StepResources
from packer.workspace import Workspace
from packer.workspace.durable import writing


class RepackWork:
    """Does the tasks of a job over packed datasets (`packer.jobs.plan.Work`).

    Parameters
    ----------
    rows : mapping
        The row source's configuration.
    """

    def __init__(self, workspace: Workspace, rows: Mapping[str, Any]) -> None:
        self._workspace = workspace
        self._config = rows
        self._rows: PackedRows | None = None
        self._shards = PlannedShards(workspace)

    @classmethod
    def of_plan(cls, workspace: Workspace, document: Mapping[str, Any], _resources: StepResources) -> "RepackWork":
        """Return the work of a workspace's plan."""
        return cls(workspace, document["rows"])

    def prepare(self) -> None:
        """Do nothing, because nothing is slow to load."""

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Do one unit.

        Raises
        ------
        BuildError
            If a file cannot be written.
        DatasetError
            If a shard does not match its manifest.
        """
        with writing(self._workspace.out):
            if unit.do == "shard":
                return self._shards.write(unit.number)
            if self._rows is None:
                self._rows = PackedRows(self._config, self._workspace)
            self._rows.scan(unit.number)
            return {}

    def close(self) -> None:
        """Close the input shards."""
        self._shards.close()
        if self._rows is not None:
            self._rows.close()
