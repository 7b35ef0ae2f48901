"""The output folder before a build: whose it is, and what may go."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from packer.commit import remove_dataset
from packer.workspace import Workspace
from shardspec.errors import BuildError, BuildLockedError, DatasetError, UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest, Shard
from shardspec.problems import Problems


@contextmanager
def locked(workspace: Workspace) -> Iterator[None]:
    """Hold the one lock of an output folder, making the folder if it is not there.

    Raises
    ------
    BuildLockedError
        Another process holds it.
    BuildError
        The folder cannot be written.
    """
    made = not workspace.root.exists()
    try:
        with workspace.writing():
            workspace.create()
            lock = filelock.FileLock(workspace.lock, timeout=0)
            try:
                lock.acquire()
            except filelock.Timeout as error:
                raise BuildLockedError(
                    f"{workspace.out}: another build is at work in this folder: wait for it, or end it"
                ) from error
            try:
                yield
            finally:
                lock.release()
    finally:
        # A call that was refused before it planned anything leaves no trace.
        if made and not workspace.plan.exists() and not workspace.assembly.exists():
            workspace.remove()


def committed(layout: Layout) -> Manifest | None:
    """The manifest of the folder, if it is a packed dataset."""
    if not layout.manifest.exists():
        return None
    try:
        return layout.load()
    except DatasetError as error:
        raise BuildError(f"{error}: to build here, move the folder away") from error


def make_room(layout: Layout, workspace: Workspace, manifest: Manifest | None, overwrite: bool, why: str) -> None:
    """Make the folder fit for a new build.

    Raises
    ------
    UsageError
        It holds a dataset, a build or other files, and `overwrite` is off; or files that this project did not make.
    """
    if manifest is not None:
        if not overwrite:
            raise UsageError(
                f"{layout.root}: expected a new or empty folder, found a packed dataset ({why}): choose another folder, or --overwrite"
            )
        remove_dataset(layout, manifest)
    if workspace.plan.exists() or workspace.assembly.exists():
        discard(workspace)
    foreign = sorted(path.name for path in layout.root.iterdir() if path != workspace.root)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UsageError(
            f"{layout.root}: expected a new or empty folder, found {foreign[0]!r}{more}, which no build made: choose another folder"
        )


def discard(workspace: Workspace) -> None:
    """Remove what an unfinished build has put into the dataset's folder, and its plan."""
    workspace.plan.unlink(missing_ok=True)
    for record in sorted(workspace.root.glob("staging/*.json")):
        shard = Shard.from_json(json.loads(record.read_bytes()), Problems())
        for entry in shard.files if shard is not None else ():
            _remove(workspace.out / entry.name.split("/")[0])
    for path in workspace.final.iterdir():
        _remove(workspace.out / path.name)
    for path in workspace.root.iterdir():
        if path != workspace.lock:
            _remove(path)
    workspace.create()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
