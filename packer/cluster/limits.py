"""How long an agent may work: what the user says, or what Slurm does."""

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping

from packer.workspace.sharing.leases import slurm_job
from shardspec.errors import UsageError
from shardspec.wording import shorten

_ANSWER_S = 60.0
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)\Z")

MARGIN_S = 20.0
"""Seconds before the end at which an agent gives back what it has in hand; a twentieth of the time if that is less."""


class TimeLimit:
    """The end of an agent's time, by this host's monotonic clock.

    Parameters
    ----------
    minutes : float or "auto"
        From now; ``"auto"`` for Slurm's limit, or none.
    environment : mapping, optional

    Raises
    ------
    UsageError
        If `minutes` is neither.
    """

    def __init__(self, minutes: str | float = "auto", environment: Mapping[str, str] | None = None) -> None:
        if minutes == "auto":
            seconds = _of_slurm(os.environ if environment is None else environment)
        else:
            seconds = _parse_minutes(minutes) * 60
        margin_s = 0.0 if seconds is None else min(MARGIN_S, seconds / 20)
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds - margin_s

    @property
    def left_s(self) -> float:
        """Seconds left for work; infinite without a limit."""
        return self._end_s - time.monotonic()


def parse_left(text: str) -> float | None:
    """Seconds from what ``squeue`` prints for ``%L``: ``[[days-]hours:]minutes:seconds``; None for no limit.

    Of several lines, the least counts.
    """
    found = []
    for match in filter(None, (_LEFT.match(line.strip()) for line in text.splitlines())):
        days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
        found.append(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
    return min(found, default=None)


def _of_slurm(environment: Mapping[str, str]) -> float | None:
    """Seconds until Slurm's limit; None without one."""
    # The number of one element of an array is that of the whole array, too.
    job, squeue = slurm_job(environment), shutil.which("squeue")
    if not job:
        return None
    end = environment.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal():
        return max(0.0, int(end) - time.time())
    if squeue is None:
        return None
    command = [squeue, "--noheader", "--jobs", job, "--format=%L"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_left(asked.stdout)


def _parse_minutes(minutes: str | float) -> float:
    try:
        found = float(minutes)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(minutes, bool) or not math.isfinite(found) or found <= 0:
        raise UsageError(f"time_limit: expected 'auto' or minutes, more than 0, found {shorten(minutes)}")
    return found
