"""The ray engine: workers on the nodes of a Ray cluster."""

from collections.abc import Callable

from packer.jobs.engines.remote import RemoteEngine
from packer.jobs.launchers.ray import RayLauncher
from packer.jobs.plan import Work
from packer.recipe.engines import Team
from packer.workspace import Workspace


class RayEngine(RemoteEngine):
    """Runs units on all nodes of a Ray cluster."""

    def __init__(self, workspace: Workspace, _open_work: Callable[[], Work], team: Team) -> None:
        super().__init__(workspace, RayLauncher(workspace, team), team)
