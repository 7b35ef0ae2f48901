"""Folders of pieces: the plan, and the parts of the tasks that were packed there."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packer.builds.planning.plan import BuildPlan
from packer.workspace import Workspace
from packer.workspace.durable import read_record
from packer.workspace.machines import PIECES
from shardspec.entries import UNSAID, About
from shardspec.errors import Problems
from shardspec.layout import BUILD_FOLDER


@dataclass(frozen=True)
class PieceFolder:
    """A folder of pieces.

    Attributes
    ----------
    path : Path
    document : dict
        The plan as JSON, with `terms`.
    """

    path: Path
    document: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "PieceFolder | None":
        """Open a folder; None if it holds no pieces.

        Raises
        ------
        BuildError
            If the plan is damaged.
        """
        try:
            document = read_record(Workspace(path / BUILD_FOLDER).plan)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(path, document) if PIECES in document else None

    @cached_property
    def plan(self) -> BuildPlan:
        """The plan of the whole build."""
        return BuildPlan.from_json(self.document)

    @property
    def space(self) -> Workspace:
        """The workspace with the parts."""
        return Workspace(self.path / BUILD_FOLDER).of_plan(self.document["fingerprint"])

    @property
    def terms(self) -> Mapping[str, Any]:
        """Number of shares, source, options of the build, and entries about the dataset."""
        terms: Mapping[str, Any] = self.document[PIECES]
        return terms

    @property
    def about(self) -> About:
        """Entries about the dataset that the source has."""
        found = self.terms["about"]
        return (About.from_json(found, Problems()) if found else None) or UNSAID
