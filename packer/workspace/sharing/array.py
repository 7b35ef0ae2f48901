"""Builds that are open to agents: the terms of their work, and how one process takes over a build from them."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packer.workspace.durable import write_durably
from packer.workspace.paths import Workspace
from packer.workspace.process_identity import host
from packer.workspace.sharing.claims import Claims
from packer.workspace.sharing.leases import Agent, Observer
from shardspec.errors import BuildLockedError
from shardspec.wording import counted, program

BLOCKS = 4096
"""Least number of blocks of a large plan; at most twice as many. Each claim to a block is a file on a shared disk."""

_SHOWN = 3


def count_blocks(tasks: int) -> int:
    """Return the number of blocks of tasks, which are claimed as a whole."""
    return -(-tasks // block_size(tasks))


def block_size(tasks: int) -> int:
    """Return the number of tasks in a block."""
    return max(1, tasks // BLOCKS)


def open_to_agents(space: Workspace, terms: Mapping[str, Any], tasks: int, is_done: Callable[[int], bool]) -> None:
    """Let agents work on the plan. The caller holds the folder's lock, and no agent is at work.

    Parameters
    ----------
    terms : mapping
        Options that agents need besides the plan, as JSON.
    tasks : int
        The number of tasks of the plan.
    is_done : callable
        Returns whether a task is done.
    """
    for folder in (space.claims, space.agents):
        if folder.exists():
            space.take_away(folder)
        folder.mkdir(parents=True)
    claims, size = Claims(space.claims, "", "task", count_blocks(tasks)), block_size(tasks)
    for block in range(count_blocks(tasks)):
        if all(map(is_done, range(block * size, min(tasks, (block + 1) * size)))):
            claims.finish(block)
    write_durably(space.array, json.dumps(dict(terms)).encode())


def read_terms(space: Workspace) -> dict[str, Any] | None:
    """Return the terms of the agents' work; None if the build is not open to them."""
    try:
        terms = json.loads(space.array.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return terms if isinstance(terms, dict) else None


def close_to_agents(space: Workspace, say: Callable[[str], None]) -> Callable[[], None]:
    """Wait until no agent is at work, and let none start. The caller holds the folder's lock.

    Returns
    -------
    callable
        Opens the build to agents again, if it was open, for a caller that does not continue it.

    Raises
    ------
    BuildLockedError
        If agents are at work.
    """
    terms = read_terms(space) if space.plan.exists() else None  # the mount may have cached those of a finished build

    def reopen() -> None:
        if terms is not None and space.array.exists():
            write_durably(space.array, json.dumps(terms).encode())

    if terms is None and not space.agents.exists():
        return reopen
    observer = Observer(space.agents)
    _wait(space, observer, say)
    if terms is not None:
        here = {"host": host(), "pid": os.getpid(), "since_s": round(time.time(), 3)}
        write_durably(space.array, json.dumps({**terms, "closed": here}).encode())
        try:  # an agent may have started meanwhile; from now on each finds the build closed
            _wait(space, observer, say)
        except BaseException:
            reopen()
            raise
    return reopen


def _wait(space: Workspace, observer: Observer, say: Callable[[str], None]) -> None:
    """Wait until no agent can be at work; raise if one certainly is."""

    def refuse(alive: Sequence[Agent]) -> BuildLockedError:
        return BuildLockedError(
            describe_agents(alive),
            place=space.out,
            hint=(
                f"wait for them ({program()} status {space.out} shows how far they are), or end them and "
                "run the same command again"
            ),
        )

    def announce(waiting: Sequence[Agent], limit_s: float) -> None:
        say(f"{program()}: waiting up to {limit_s:g} s, as {describe_agents(waiting, may=True)}")

    observer.wait(observer.at_work, refuse, announce)


def describe_closed(closed: Mapping[str, Any]) -> str:
    """Describe the process that has taken over a build, and how to continue if that process was killed."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(closed["since_s"]))
    return (
        f"process {closed['pid']} on {closed['host']} has continued the build alone since {since}; if it was killed, "
        f"run {program()} submit or {program()} build again, with the same arguments"
    )


def describe_agents(agents: Iterable[Agent], *, may: bool = False) -> str:
    """Describe agents that are at work, or may be."""
    known = list(agents)
    shown = "; ".join(agent.describe() for agent in known[:_SHOWN])
    more = f"; and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    verb = "may still be" if may else "is" if len(known) == 1 else "are"
    return f"{counted(len(known), 'agent')} {verb} at work here ({shown}{more})"
