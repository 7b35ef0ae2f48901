"""The srun engine: workers on the nodes of a Slurm allocation."""

from collections.abc import Callable

from packer.jobs.engines.remote import RemoteEngine
from packer.jobs.launchers.srun import SrunLauncher
from packer.jobs.plan import Work
from packer.recipe.engines import Team
from packer.workspace import Workspace


class SrunEngine(RemoteEngine):
    """Runs units on all nodes of the Slurm allocation that this process runs in."""

    def __init__(self, workspace: Workspace, _open_work: Callable[[], Work], team: Team) -> None:
        super().__init__(workspace, SrunLauncher(workspace, team), team)
