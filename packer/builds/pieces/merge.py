"""Merge pieces into the dataset that the undivided build would have made."""

from collections.abc import Sequence
from pathlib import Path

from packer.assembly.inputs import PiecePlaces
from packer.builds.build import finish_build
from packer.builds.job import BuildJob
from packer.builds.pieces.folder import PieceFolder
from packer.builds.planning.changes import describe_mismatch
from packer.builds.planning.plan import ItemLines, read_item_lines
from packer.builds.provenance import library_versions
from packer.builds.result import BuildResult
from packer.jobs.plan import describe_changes
from packer.jobs.progress import ProgressListener
from packer.jobs.upload import Upload
from packer.recipe.options import BuildOptions
from packer.workspace.machines import first_machine
from packer.workspace.shared_files import host
from shardspec.errors import BuildError, UsageError
from shardspec.wording import counted, list_some


def merge_pieces(
    folders: Sequence[PieceFolder],
    out: Path,
    upload: Upload | None,
    *,
    workers: str | int,
    engine: str,
    overwrite: bool,
    listener: ProgressListener,
) -> BuildResult:
    """Merge folders of pieces.

    Parameters
    ----------
    out, upload
        See `packer.jobs.job.Job`.

    Raises
    ------
    UsageError
        If the folders have different plans, or `out` is one of them.
    BuildError
        If tasks are missing, or if the pieces were made with other libraries or on different kinds of machines.
    TooManyRejectsError
        See `packer.build`.
    """
    first = folders[0]
    options = BuildOptions(workers=workers, engine=engine, overwrite=overwrite, **first.terms["options"])
    _check_folders(folders, out)
    _check_machines([folder for folder in folders if folder.space.finished_tasks()])
    _check_libraries(first)
    plan = first.plan
    places = _find_parts(folders)
    lines = ItemLines.load(first.space.items, plan.tasks)
    from_packed = first.terms["from_packed"]
    job = BuildJob(plan, lines, options, plan.options, about=first.about, from_packed=from_packed, places=places)
    return finish_build(job, (), None, out, options, listener, upload)


def _check_folders(folders: Sequence[PieceFolder], out: Path) -> None:
    first = folders[0]
    paths = [folder.path.resolve() for folder in folders]
    if len({*paths}) != len(paths):
        raise UsageError(expected="every folder of pieces once", found=f"one twice among {', '.join(map(str, paths))}")
    for path in paths:
        if out.resolve().is_relative_to(path) or path.is_relative_to(out.resolve()):
            raise UsageError(
                place=out, expected=f"a folder apart from the pieces in {path}", found="one that overlaps it"
            )
    for other in folders[1:]:
        if other.plan.fingerprint != first.plan.fingerprint:
            lines = read_item_lines(first.space), read_item_lines(other.space)
            raise UsageError(
                place=other.path,
                expected=f"pieces of the plan in {first.path}",
                found=f"pieces of another plan ({describe_mismatch(first.plan, other.plan, *lines)})",
                hint="pack all shares with the same options and libraries from the same files",
            )
        if changes := describe_changes("option", first.terms["options"], other.terms["options"]):
            raise UsageError(
                place=other.path,
                expected=f"pieces with the options of those in {first.path}",
                found=f"others ({'; '.join(changes)})",
                hint="pack all shares with the same options",
            )


def _check_machines(folders: Sequence[PieceFolder]) -> None:
    """Check that machines of one kind have packed the pieces in all folders."""
    for other in folders[1:]:
        first = folders[0]
        if changes := describe_changes("machine's", first_machine(first.space), first_machine(other.space)):
            raise BuildError(
                place=other.path,
                expected=f"pieces from the same kind of machine as in {first.path}",
                found=f"pieces from another kind, which may have other bytes ({'; '.join(changes)})",
            )


def _check_libraries(first: PieceFolder) -> None:
    """Check that this process writes shards with the libraries of the plan."""
    here = library_versions(str(first.plan.recipe["format"]))
    if changes := describe_changes("library", {name: first.plan.runtime.get(name) for name in here}, here):
        raise BuildError(
            place=f"host {host()}",
            expected="the libraries with which the pieces were packed",
            found=f"others ({'; '.join(changes)})",
            hint="merge them in the environment that packed them",
        )


def _find_parts(folders: Sequence[PieceFolder]) -> PiecePlaces:
    """Find the part of each task.

    Raises
    ------
    BuildError
        If some are missing.
    """
    count = len(folders[0].plan.tasks)
    found: dict[int, int] = {}
    for number, folder in enumerate(folders):
        for task in folder.space.finished_tasks():
            found.setdefault(task, number)
    missing = [task for task in range(count) if task not in found]
    if missing:
        raise BuildError(
            place=list_some([str(folder.path) for folder in folders]),
            expected=f"the pieces of all {counted(count, 'task')}",
            found=f"those of {count - len(missing)} ({_name_missing(folders, missing)})",
            hint="repeat the command of each missing share, or name its folder, too",
        )
    return PiecePlaces([str(folder.space.root) for folder in folders], [found[task] for task in range(count)])


def _name_missing(folders: Sequence[PieceFolder], missing: Sequence[int]) -> str:
    """Describe missing tasks by their shares, or by their numbers if the folders were packed in different numbers of shares."""
    shares = {folder.terms["shares"] for folder in folders}
    if len(shares) > 1:
        return f"missing tasks: {list_some([str(task) for task in missing])}"
    (of,) = shares
    numbers = sorted({task % of + 1 for task in missing})
    return f"missing from {'share' if len(numbers) == 1 else 'shares'} {list_some([f'{n}/{of}' for n in numbers])}"
