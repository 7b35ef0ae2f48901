"""Scripts for Slurm jobs, and the command lines in them."""

import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import packer
from packer.workspace import Workspace
from shardspec.layout import BUILD_FOLDER

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


@dataclass(frozen=True)
class Scripts:
    """The scripts of a submission, and their options for ``sbatch``.

    Attributes
    ----------
    folder : Path
        Folder beside the dataset's folder, also for the jobs' logs.
    array, finish : str
        The scripts.
    array_options, finish_options : list of str
        Options for ``sbatch``; ``{array}`` in those of the finishing job stands for the number of the array's job.
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


def write_scripts(
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
        Workers of each element of the array.
    at_once : str
        Limit on the elements that run at a time, such as ``"%4"``; empty for no limit.
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
    """Format a command as a comment of several lines."""
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
