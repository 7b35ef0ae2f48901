"""The output folder before a build: its lock, and the files that may be deleted."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from packer.workspace import Workspace
from packer.workspace.durable import read_manifest, write_durably, writing
from packer.workspace.lock import FolderLock
from packer.workspace.replacement import earlier_manifests, finish, is_committed, sweep
from shardspec.entries import CARD_NAME
from shardspec.errors import BuildError, DatasetError, UsageError
from shardspec.layout import BUILD_FOLDER, MANIFEST_NAME, Layout, given_path
from shardspec.manifest import Manifest
from shardspec.stores import local_path, names_store
from shardspec.wording import LONG, cut, program, shorten


def output_folder(out: str | os.PathLike[str], name: str = "out") -> Path:
    """Return the absolute path of an output folder, without ``..``.

    Parameters
    ----------
    out : path
    name : str
        Name of the argument, for messages.

    Raises
    ------
    UsageError
        If `out` is empty, not a path, or a URL other than ``file://``.
    """
    if names_store(out):
        raise UsageError(
            option=name,
            expected="a local folder",
            found=f"the URL {shorten(str(out))}",
            hint=f"use a local folder, and copy the dataset with {program()} copy",
        )
    path = given_path(name, local_path(out)).absolute()
    return path.resolve() if os.pardir in path.parts else path  # otherwise `mkdir` would make the folders before `..`


@contextmanager
def locked(workspace: Workspace, say: Callable[[str], None] = lambda _: None) -> Iterator[FolderLock]:
    """Hold the lock of an output folder, making the folder if it does not exist.

    Parameters
    ----------
    workspace : Workspace
    say : callable, optional
        See `FolderLock`.

    Raises
    ------
    UsageError
        If a file is at that path, or if the folder would be inside a packed dataset.
    BuildLockedError
        If another process holds the lock.
    BuildError
        If the folder cannot be written.
    """
    refuse_files(workspace.out)
    _refuse_inside_dataset(workspace.out)
    made, owner = not workspace.root.exists(), os.getpid()
    new = [path for path in (workspace.out, *workspace.out.parents) if not os.path.lexists(path)]
    refused = False
    with writing(workspace.out):
        workspace.create()
        lock = FolderLock(workspace, say)
        lock.acquire()
        try:
            yield lock
        except BaseException:
            refused = True
            raise
        finally:
            # A call that failed before it made anything to resume from leaves no trace. The holder alone may remove it.
            kept = (workspace.plan, workspace.assembly, workspace.reasons, workspace.computed)
            if os.getpid() == owner:  # not in a fork of the process, which may still be at work
                try:
                    if made and not lock.is_lost and not any(path.exists() for path in kept):
                        workspace.remove()
                        with suppress(OSError):  # raised by the first folder that is not empty
                            for path in new if refused else ():
                                path.rmdir()
                finally:
                    lock.release()


@contextmanager
def changing(path: Path) -> Iterator[tuple[Workspace, Manifest]]:
    """Lock a packed dataset, and yield its workspace and its manifest."""
    layout, workspace = Layout(path), Workspace(path / BUILD_FOLDER)
    layout.load()
    with locked(workspace), writing(path):
        if finish(workspace):
            workspace.remove()
            workspace.create()
        if workspace.plan.exists():
            raise UsageError(
                place=path,
                expected="a dataset at rest",
                found="an unfinished build in its folder",
                hint=f"run its command again, or delete {BUILD_FOLDER}",
            )
        workspace.sweep()
        yield workspace, layout.load()
        workspace.remove()


def refuse_files(out: Path) -> None:
    """Check that a folder exists or can be made: no part of its path may be a file or a link that leads to no folder.

    Raises
    ------
    UsageError
        If a part of the path is a file or such a link.
    """
    for path in (out, *out.parents):
        if os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112 -- Path.is_dir may raise
            where = "" if path == out else f" at {path}, above it"
            if os.path.islink(path):  # noqa: PTH114 -- as above
                target = cut(os.readlink(path), LONG)  # noqa: PTH115
                found = f"a link{where}{',' if where else ''} that leads to no folder ({target})"
            else:
                found = f"a file{where}"
            raise UsageError(place=out, expected="a new or empty folder", found=found, hint="choose another folder")


def _refuse_inside_dataset(out: Path) -> None:
    """Refuse a folder inside a packed dataset, where its files would count as files of someone else."""
    for parent in out.parents:
        if (parent / MANIFEST_NAME).exists() and _is_dataset(Layout(parent)):
            raise UsageError(
                place=out,
                expected="a folder outside packed datasets",
                found=f"one inside {parent}",
                hint="choose another folder",
            )


def _is_dataset(layout: Layout) -> bool:
    try:
        layout.load()
    except DatasetError:
        return False
    return True


def committed(layout: Layout) -> Manifest | None:
    """Return the manifest of the folder, or None if the folder is not a packed dataset."""
    if not layout.manifest.exists():
        return None
    try:
        return layout.load()
    except DatasetError as error:
        raise BuildError("to build here, move the folder away", place=error) from error


def begun_on(workspace: Workspace, manifest: Manifest | None) -> bool:
    """Return whether the plan in the workspace was made for the folder's present state.

    The plan may make a dataset, or replace or extend the one with this manifest.
    """
    if not workspace.plan.exists():
        return False
    return manifest is None or manifest in earlier_manifests(workspace)


def finish_interrupted(workspace: Workspace) -> None:
    """Finish a commit that was interrupted, or remove the files that an interrupted call left behind.

    Raises
    ------
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the folder cannot be written.
    """
    layout = Layout(workspace.out)
    if is_committed(workspace):
        with locked(workspace):
            finish(workspace)
            workspace.remove()
    elif workspace.root.exists() and not workspace.plan.exists() and layout.manifest.exists():
        with locked(workspace):  # files that were put into place before the manifest that lists them
            sweep(layout, layout.load())


def clear_addition(workspace: Workspace, say: Callable[[str], None]) -> None:
    """Remove the workspace of an update that is finished or has nothing to add.

    Raises
    ------
    BuildLockedError
        If another process is at work in the folder.
    """
    if workspace.root.exists() and not (workspace.plan.exists() and workspace.replaced.exists()):
        with locked(workspace, say):
            discard(workspace)
            workspace.remove()


def prepare_update(workspace: Workspace, base: Manifest) -> None:
    """Prepare the folder of a dataset for an update.

    Raises
    ------
    UsageError
        If the folder holds an unfinished build that replaces the dataset.
    """
    if workspace.plan.exists() and workspace.replaced.exists():
        remote = workspace.remote
        raise UsageError(
            place=workspace.out if remote is None else remote.out.url,
            expected="a dataset with no other unfinished build",
            found="an unfinished build that replaces it",
            hint=f"finish it with its own command, or delete {workspace.root if remote is None else remote.work.url}",
        )
    discard(workspace, kept=True)
    write_durably(workspace.base, base.dumps())


def prepare_folder(
    layout: Layout,
    workspace: Workspace,
    manifest: Manifest | None,
    overwrite: bool,
    why: str,
    remedy: str,
    place: str | Path,
) -> None:
    """Prepare the folder for a new build. A dataset in it stays until the new one takes its place.

    Parameters
    ----------
    manifest : Manifest or None
        The dataset in the folder, or in the object store for which the folder is the workspace.
    place : str or Path
        The place of that dataset, for the error message.
    why : str
        How the dataset in the folder differs from the plan, for the error message.
    remedy : str
        Further advice, for the error message.

    Raises
    ------
    UsageError
        If the folder holds a dataset or a build and `overwrite` is False, or if it holds files that no build made.
    """
    if manifest is not None and not overwrite:
        raise UsageError(
            place=place,
            expected="a new or empty folder",
            found=f"a packed dataset ({why})",
            hint=f"choose another folder, or --overwrite{remedy}",
        )
    # If the manifest was removed by hand while the dataset was being replaced, the workspace still lists its files.
    replaced = read_manifest(workspace.replaced) if workspace.replaced.exists() else None
    replaced = manifest or replaced
    _sweep_out(workspace)
    foreign = _foreign(workspace, replaced)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UsageError(
            place=layout.root,
            expected="a new or empty folder",
            found=f"{foreign[0]!r}{more}, which no build made",
            hint="choose another folder",
        )
    discard(workspace, kept=not overwrite)
    if replaced is not None:
        write_durably(workspace.replaced, replaced.dumps())


def _foreign(workspace: Workspace, manifest: Manifest | None) -> list[str]:
    """Return the names of files that belong neither to the dataset nor to the unfinished build."""
    root = workspace.out
    owned = {path.name for path in workspace.left_of_commit()}
    if manifest is not None:
        owned.update((MANIFEST_NAME, CARD_NAME, *(entry.name for entry in manifest.entries)))
    folders = {parent.as_posix() for name in owned for parent in PurePosixPath(name).parents}
    found = []
    for folder, below, files in os.walk(root):
        here = Path(folder).relative_to(root)
        if here == Path():
            below[:] = [name for name in below if name != workspace.root.name]
        elif not below and not files and here.as_posix() not in folders:
            found.append(here.as_posix())
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118 -- many
        found += [name for name in ((here / name).as_posix() for name in files + links) if name not in owned]
    return sorted(found)


def discard(workspace: Workspace, *, kept: bool = False) -> None:
    """Remove an unfinished build, its plan first, and the files that it put into the dataset's folder.

    Parameters
    ----------
    kept : bool
        Whether to keep the parts of earlier plans.
    """
    workspace.plan.unlink(missing_ok=True)
    for path in workspace.left_of_commit():
        path.unlink(missing_ok=True)
    _sweep_out(workspace)
    for path in workspace.root.iterdir():
        if not workspace.is_of_lock(path) and path != workspace.replaced and not (kept and path == workspace.kept):
            workspace.take_away(path)
    workspace.replaced.unlink(missing_ok=True)
    workspace.create()


def _sweep_out(workspace: Workspace) -> None:
    """Remove the files that interrupted commits put into the dataset's folder."""
    layout = Layout(workspace.out)
    if layout.manifest.exists():
        sweep(layout, layout.load())
    elif workspace.assembly.exists():  # otherwise, no build in this folder has come to its commit
        sweep(layout, *earlier_manifests(workspace))


def remove_shards(workspace: Workspace) -> None:
    """Remove the finished shards of an unfinished build, and their records."""
    for path in sorted(workspace.staging.iterdir()):
        workspace.take_away(path)


def give_up_replacing(workspace: Workspace) -> None:
    """Discard an unfinished build unless it is committed already. The dataset that it was to replace stays."""
    if not finish(workspace):
        discard(workspace)
        workspace.remove()
