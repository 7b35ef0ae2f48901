"""Requests to Slurm through its commands: submit, list, cancel. They never use its accounting."""

import re
import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from packer.jobs.hosts.srun import run_slurm
from shardspec.errors import BuildError, UsageError
from shardspec.wording import LONG, cut, shorten

_NUMBER = re.compile(r"(\d+)(?:;.*)?\Z")
_ARRAY = re.compile(r"([1-9]\d{0,6})(%[1-9]\d{0,6})?\Z")

ELEMENTS = 8
"""Default number of elements of an array."""


@dataclass(frozen=True)
class SlurmJob:
    """A job in Slurm's queue: its number, such as ``"12_3"``, state, and the nodes or the reason why it waits."""

    number: str
    state: str
    where: str

    def to_json(self) -> dict[str, str]:
        """Return the attributes."""
        return dict(vars(self))


def split_options(text: str) -> list[str]:
    """Split the user's options for ``sbatch``.

    Raises
    ------
    UsageError
        If the text cannot be split.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            option="sbatch", expected="options as in a shell", found=cut(repr(text), LONG), hint=error
        ) from error


def parse_array(text: str | int) -> tuple[int, str]:
    """Parse ``"16"`` or ``"16%4"`` into the number of elements and the limit on those that run at a time (``"%4"``)."""
    match = _ARRAY.match(str(text))
    if match is None or isinstance(text, bool):
        raise UsageError(
            option="array", expected="a number of elements, such as 16, or 16%4 for 4 at a time", found=shorten(text)
        )
    return int(match[1]), match[2] or ""


def submit(words: Sequence[str]) -> str:
    """Submit a script, the last of the words, after its options, and return the job's number."""
    printed = run_slurm("sbatch", "--parsable", *words)
    match = _NUMBER.match(printed.strip().rpartition("\n")[2])
    if match is None:
        raise BuildError(place="Slurm's sbatch", expected="the number of a job", found=cut(repr(printed.strip()), LONG))
    return match[1]


def cancel(number: str) -> None:
    """Cancel a job."""
    run_slurm("scancel", number)


def queued(numbers: Collection[str]) -> list[SlurmJob]:
    """Return the given jobs that wait or run, one entry for each element of an array.

    Empty if Slurm is not installed.
    """
    if not numbers or shutil.which("squeue") is None:
        return []
    found = []
    for number in numbers:  # one by one, since squeue reports nothing else if it has forgotten one of the jobs
        try:
            printed = run_slurm("squeue", "--noheader", "--jobs", number, "--format=%i|%T|%R")
        except BuildError:
            continue
        rows = [line.strip().split("|", 2) for line in printed.splitlines()]
        found += [SlurmJob(*row) for row in rows if len(row) == len(SlurmJob.__dataclass_fields__)]
    return found


def find_command(program: str) -> str:
    """Return the path of one of Slurm's commands.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise UsageError(
            option="slurm", expected=f"Slurm's command {program}", found="none on the PATH", hint="submit where it is"
        )
    return found
