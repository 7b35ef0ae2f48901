"""``packer.submit``: plan a build for agents, and submit the agents to Slurm."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.builds.build import plan_build, resolve_options
from packer.builds.result import BuildResult
from packer.cluster import slurm as _slurm
from packer.cluster.agent import ENGINE
from packer.cluster.scripts import Scripts, write_scripts
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.recipe import Recipe
from packer.recipe.checks import checked
from packer.recipe.command_line import option_words
from packer.sources.opening import open_source
from packer.steps.chain import check_steps
from packer.workspace.durable import write_durably, writing
from packer.workspace.folder import output_folder
from packer.workspace.sharing.array import read_terms
from shardspec.errors import BuildLockedError, UsageError
from shardspec.wording import counted, program


@dataclass(frozen=True, repr=False)
class SubmitResult(Result):
    """Result of planning and submitting a build.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    items, tasks : int
        Items and tasks of the plan; 0 if the scripts were only printed.
    scripts : Scripts or None
        None without Slurm.
    array_job, finish_job : str
        Slurm's numbers of the jobs; empty if no job was submitted.
    finished : str
        Description of the dataset if it is finished already; otherwise empty.
    notes : tuple of str
        Remarks about the source, one line each.
    """

    path: Path
    items: int = 0
    tasks: int = 0
    scripts: Scripts | None = None
    array_job: str = ""
    finish_job: str = ""
    finished: str = ""
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the plan, the jobs, and the command that shows the progress."""
        if self.finished:
            return self.finished
        if self.scripts is not None and not self.array_job:
            return self.scripts.describe().rstrip("\n")
        return "\n".join((f"{self.path}: {self._describe_plan()}", *self.notes))

    def _describe_plan(self) -> str:
        plan = f"{counted(self.items, 'item')} in {counted(self.tasks, 'task')}"
        if self.scripts is None:
            return (
                f"planned, {plan}: run {program()} work {self.path} on any number of hosts, then the same {program()} "
                f"build; {program()} status {self.path} shows the progress"
            )
        return (
            f"{plan}, submitted as Slurm jobs {self.array_job} (array) and {self.finish_job} (finishing job): "
            f"{program()} status {self.path} shows the progress, logs and scripts are in {self.scripts.folder}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return counts, the numbers of the jobs, and the scripts as JSON."""
        scripts = self.scripts
        shown = {} if scripts is None else {"array_script": scripts.array, "finish_script": scripts.finish}
        jobs = {"array_job": self.array_job or None, "finish_job": self.finish_job or None}
        counts = {"items": self.items, "tasks": self.tasks, "finished": bool(self.finished)}
        return {"out": str(self.path), **counts, **jobs, **shown, "notes": self.notes}


def submit(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    slurm: bool = False,
    array: str | int | None = None,
    sbatch: str = "",
    print: bool = False,
    recipe: Recipe | None = None,
    progress: bool | ProgressListener = True,
    **options: Any,
) -> SubmitResult:
    """Plan a build that agents work on (`work`). The same call again resumes an unfinished build.

    With `slurm`, two jobs are submitted: an array of agents, and a job that finishes the build after the array has ended
    for any reason. Without `slurm`, the call writes the plan only, and you start the agents.

    Parameters
    ----------
    source : path
        Source, as for `build`.
    out : path
        Folder of the dataset; must be new, empty, or hold the build to resume.
    slurm : bool
        Whether to submit jobs to Slurm.
    array : int or str, optional
        Number of elements of the array, such as 16, or ``"16%4"`` to run 4 at a time; 8 by default. The number of tasks
        does not depend on it.
    sbatch : str
        Options for ``sbatch``, used for both jobs.
    print : bool
        Whether to return the scripts without submitting or writing anything.
    recipe : Recipe, optional
        Recipe to use in place of its options as keyword arguments.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.
    **options
        Attributes of `Recipe` and of `BuildOptions`.

    Returns
    -------
    SubmitResult

    Raises
    ------
    UsageError
        If the call is invalid, the folder holds something else, or Slurm is not installed.
    ResumeMismatchError
        If another job was begun in the folder.
    BuildLockedError
        If agents or another process are at work in the folder, or the jobs of an earlier call are in Slurm's queue.
    BuildError
        If Slurm refuses a job. The plan stays in the folder.
    """
    shown = dict(options)
    if recipe is not None:
        shown |= {name: value for name, value in vars(recipe).items() if value != getattr(Recipe, name, None)}
    return submit_build(
        source,
        out,
        option_words(shown),
        slurm=slurm,
        array=array,
        sbatch=sbatch,
        print_only=print,
        recipe=recipe,
        progress=progress,
        options=options,
    )


def submit_build(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    words: Sequence[str],
    *,
    slurm: bool,
    array: str | int | None,
    sbatch: str,
    print_only: bool,
    recipe: Recipe | None,
    progress: bool | ProgressListener,
    options: Mapping[str, Any],
) -> SubmitResult:
    """Submit a build (`submit`) whose options are also given as words of a command line, for the scripts."""
    if not isinstance(source, str | os.PathLike):
        raise UsageError(option="source", expected="a path, which other hosts can read", found=type(source).__name__)
    slurm, print_only = checked("slurm", slurm, bool), checked("print", print_only, bool)
    elements, at_once = _slurm.parse_array(_slurm.ELEMENTS if array is None else array)
    jobs = _slurm.split_options(sbatch)
    chosen, how, functions = resolve_options(recipe, dict(options))
    target = output_folder(out)
    if how.engine != ENGINE:
        raise UsageError(
            f"agents work with the {ENGINE} engine, found {how.engine}", option="engine", hint="leave the option out"
        )
    scripts = None
    if slurm or print_only:
        scripts = write_scripts(os.fspath(source), target, words, how.workers, elements, at_once, jobs)
    elif sbatch or array is not None:
        raise UsageError("read only with `slurm`, found it without", option="sbatch" if sbatch else "array")
    if print_only:
        return SubmitResult(target, scripts=scripts)
    if slurm:
        _slurm.find_command("sbatch")
    opened = open_source(source, target, chosen)
    check_steps(chosen, functions)
    listener = listener_of(progress)
    planned = plan_build(opened, target, chosen, how, listener, functions)
    if isinstance(planned, BuildResult):
        return SubmitResult(target, finished=planned.describe())
    plan, notes, _ = planned
    job = Job(plan, target, how, listener)
    numbers: dict[str, str] = {}

    def send() -> Mapping[str, Any]:
        if scripts is not None:
            numbers.update(_submit(scripts))
        return {"jobs": numbers}

    made = job.open_to_agents(lambda: _refuse_queued(job), send)
    if made is not None:
        return SubmitResult(target, finished=BuildResult(**vars(made)).describe())
    ids = {f"{name}_job": number for name, number in numbers.items()}
    return SubmitResult(target, plan.plan.items, len(plan.tasks), scripts, notes=notes, **ids)


def _refuse_queued(job: Job) -> None:
    """Refuse to submit a build whose earlier jobs are still in Slurm's queue."""
    terms = read_terms(job.workspace) or {}
    numbers = list((terms.get("jobs") or {}).values())
    queued = _slurm.queued(numbers)
    if queued:
        shown = ", ".join(sorted({f"{one.number} {one.state.lower()}" for one in queued})[:6])
        raise BuildLockedError(
            (
                f"submitted already, and in Slurm's queue ({shown}): {program()} status {job.layout.root} "
                f"shows the progress; to submit it again, first run scancel {' '.join(numbers)}"
            ),
            place=job.layout.root,
        )


def _submit(scripts: Scripts) -> dict[str, str]:
    """Write and submit both scripts, and return the numbers of the jobs."""
    with writing(scripts.folder):
        scripts.folder.mkdir(parents=True, exist_ok=True)
        for name, script in (("array.sh", scripts.array), ("finish.sh", scripts.finish)):
            write_durably(scripts.folder / name, os.fsencode(script))
    array = _slurm.submit([*scripts.array_options, str(scripts.folder / "array.sh")])
    options = [option.format(array=array) for option in scripts.finish_options]
    try:
        finish = _slurm.submit([*options, str(scripts.folder / "finish.sh")])
    except BaseException:
        _slurm.cancel(array)
        raise
    return {"array": array, "finish": finish}
