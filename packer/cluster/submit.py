"""``packer.submit``: plan a build for agents, and submit the agents to Slurm."""

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import packer
from packer.builds.build import plan_build, refuse_work, resolve_options
from packer.builds.result import BuildResult
from packer.cluster import slurm as _slurm
from packer.cluster.agent import ENGINE
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.recipe import Recipe
from packer.recipe.checks import checked
from packer.recipe.command_line import option_words
from packer.recipe.keywords import BuildKeywords
from packer.sources.opening import open_source
from packer.steps.chain import check_steps
from packer.workspace import Workspace
from packer.workspace.agents import read_terms
from packer.workspace.durable import write_durably, writing
from packer.workspace.folder import output_folder
from shardspec.errors import BuildLockedError, UsageError
from shardspec.layout import BUILD_FOLDER
from shardspec.wording import counted, program

_ARRAY = """\
#!/bin/bash
# One element of the array: it works on the build until nothing is left, or its time is nearly up.
set -u
{frame}
exec {python} -P -m packer work {out}{workers}
"""

_FINISH = """\
#!/bin/bash
# Runs when the array has ended, however it ended: does what is left, and puts the dataset into place.
set -u
{frame}
{python} -P -m packer work {out}{workers}
# A build that was finished or discarded meanwhile stays so: --overwrite is not to begin another.
[ -e {terms} ] || exit 0
exec {python} -P -m packer build {build}
"""

_WIDTH = 100
"""Columns of a printed command."""


@dataclass(frozen=True)
class Scripts:
    """The scripts of a submission, and their options for ``sbatch``.

    Attributes
    ----------
    folder : Path
        Folder next to the dataset's folder, for the scripts and the jobs' logs.
    array, finish : str
        The scripts.
    array_options, finish_options : list of str
        Options for ``sbatch``. In those of the finishing job, ``{array}`` stands for the number of the array's job.
    """

    folder: Path
    array: str
    finish: str
    array_options: Sequence[str]
    finish_options: Sequence[str]

    def describe(self) -> str:
        """Return both scripts, each with the command that submits it."""
        shown = []
        for name, script, options in (
            ("array.sh", self.array, self.array_options),
            ("finish.sh", self.finish, [option.format(array="ARRAY") for option in self.finish_options]),
        ):
            shown.append(f"{_comment(['sbatch', '--parsable', *options, str(self.folder / name)])}\n{script}")
        return "\n".join(shown)


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
    words: Sequence[str] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[BuildKeywords],
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
    words : sequence of str, optional
        The same options as words of the command line of ``packer build``, for the scripts; by default made from them.
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
    if not isinstance(source, str | os.PathLike):
        raise UsageError(option="source", expected="a path, which other hosts can read", found=type(source).__name__)
    slurm, print = checked("slurm", slurm, bool), checked("print", print, bool)
    elements, at_once = _slurm.parse_array(_slurm.ELEMENTS if array is None else array)
    jobs = _slurm.split_options(sbatch)
    if words is None:
        shown = {} if recipe is None else vars(recipe)
        changed = {name: value for name, value in shown.items() if value != getattr(Recipe, name, None)}
        words = option_words({**options, **changed})
    chosen, how, functions = resolve_options(recipe, dict(options))
    target = output_folder(out)
    refuse_work(how)
    if how.engine != ENGINE:
        raise UsageError(
            f"agents work with the {ENGINE} engine, found {how.engine}", option="engine", hint="leave the option out"
        )
    scripts = None
    if slurm or print:
        scripts = _make_scripts(os.fspath(source), target, words, how.workers, elements, at_once, jobs)
    elif sbatch or array is not None:
        raise UsageError("read only with `slurm`, found it without", option="sbatch" if sbatch else "array")
    if print:
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


def _make_scripts(
    source: str, out: Path, words: Sequence[str], workers: str | int, elements: int, at_once: str, sbatch: Sequence[str]
) -> Scripts:
    """Return the scripts of a submission, which run in the current folder and with this interpreter.

    Parameters
    ----------
    out : Path
        Absolute path of the dataset's folder.
    words : sequence of str
        Options of the build, as words of a command line.
    workers : str or int
        Number of workers of each element of the array.
    at_once : str
        Limit on the elements that run at the same time, such as ``"%4"``; empty for no limit.
    sbatch : sequence of str
        The user's options for ``sbatch``.
    """
    folder = out.with_name(out.name + ".slurm")
    frame = [f"cd -- {shlex.quote(str(Path.cwd()))}"]
    if path := _python_path():
        frame.append(f"export PYTHONPATH={shlex.quote(path)}")
    given = {
        "frame": "\n".join(frame),
        "python": shlex.quote(sys.executable),
        "out": shlex.quote(str(out)),
        "terms": shlex.quote(str(Workspace(out / BUILD_FOLDER).array)),
        "workers": "" if workers == "auto" else f" --workers {workers}",
        "build": shlex.join([f"./{source}" if source.startswith("-") else source, str(out), *words]),
    }
    name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in out.name)
    logs = str(folder).replace("%", "%%")
    common = ["--nodes=1", "--ntasks=1", *sbatch]
    array = [
        f"--job-name=packer-{name}",
        f"--output={logs}/array-%A_%a.log",
        *common,
        f"--array=0-{elements - 1}{at_once}",
    ]
    finish = [f"--job-name=packer-{name}-finish", f"--output={logs}/finish-%j.log", *common]
    finish = [option.replace("{", "{{").replace("}", "}}") for option in finish]
    finish += ["--dependency=afterany:{array}"]
    return Scripts(folder, _ARRAY.format(**given), _FINISH.format(**given), array, finish)


def _comment(words: Sequence[str]) -> str:
    lines = ["#"]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > _WIDTH:
            lines[-1] += " \\"
            lines.append("#    ")
        lines[-1] += " " + word.replace("\n", "\n# ")
    return "\n".join(lines)


def _python_path() -> str:
    """Return the PYTHONPATH with which another interpreter of this environment finds our modules and the user's."""
    given = os.environ.get("PYTHONPATH", "")
    root = str(Path(packer.__file__).parents[1])
    found = [str(Path(path).absolute()) for path in given.split(os.pathsep) if path]
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return os.pathsep.join(dict.fromkeys([*found, *([] if root in installed or root in found else [root])]))
