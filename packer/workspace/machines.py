"""Check that all machines that work on one plan produce the same bytes, and record which one coordinates."""

import json
import mmap
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packer.workspace import Workspace
from packer.workspace.durable import publish, read_record, writing
from packer.workspace.shared_files import host, reading, wait_for
from shardspec.errors import BuildError
from shardspec.manifest import seal
from shardspec.wording import LONG, cut, one_line

MISSING = "missing"
"""Recorded as the version of a library that is not installed."""

MADE_ON = "made_on"
"""Key in the plan's document, under which the host of the coordinating process is recorded."""

PLAN, OWNER = "PACKER_PLAN", "PACKER_OWNER"
"""Environment variables with the key and the owner of a worker's workspace. Unset means empty."""

RUNTIME = "runtime"
"""Key in the plan's document for the versions of libraries and everything else besides the options that affects bytes."""

PIECES = "pieces"
"""Key in the document of a plan that is packed in shares, for options of the build that the plan does not have."""

_MACHINE = "machine.json"
_VERSION = re.compile(rf"(?:{MISSING}|[0-9][^ ]{{0,39}})\Z")


def here() -> dict[str, Any]:
    """Return the host and the environment of the coordinating process, for the plan's document."""
    return {"host": host(), "python": sys.prefix}


def enter_plan(space: Workspace) -> tuple[Workspace, dict[str, Any]]:
    """Read the plan of a workspace as a worker does, and check that its results may be made in this process.

    Parameters
    ----------
    space : Workspace
        If it has a key, wait until the plan with that key appears.

    Returns
    -------
    space : Workspace
        With the plan's key.
    document : dict
        The plan as JSON.

    Raises
    ------
    BuildError
        If there is no such plan, or if the build was started with other libraries or on another kind of machine.
    """
    found: dict[str, Any] = {}

    def there() -> bool:
        try:
            found.update(read_record(space.plan))
        except FileNotFoundError:
            return False
        return not space.key or space.of_plan(found["fingerprint"]).key == space.key

    with reading():
        wait_for(space.plan, there=there)
    made_on = found.get(MADE_ON, {})
    space = space.of_plan(found["fingerprint"])
    if space.owner or made_on.get("python") != sys.prefix:
        _check_libraries(found.get(RUNTIME, {}), str(made_on.get("host")))
    check_machine(space)
    return space, found


def machine_kind() -> dict[str, str]:
    """Return the properties of the machine that affect bytes: processor kind, instructions used by numpy, page size."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {})
    simd = " ".join([*found.get("baseline", []), *found.get("found", [])])
    return {"processor": platform.machine(), "instructions": simd, "page size": str(mmap.PAGESIZE)}


def _check_libraries(expected: Mapping[str, Any], there: str) -> None:
    """Compare the versions of libraries with those of the plan, and ignore the other entries of its runtime."""
    differing = [
        f"{name} {wanted} (here {found})"
        for name, wanted in versions_of(expected).items()
        if (found := library_version(name)) != wanted
    ]
    if differing:
        raise BuildError(
            place=f"host {host()}",
            expected=f"the libraries that the plan was made with on host {there}",
            hint=(
                f"{cut(', '.join(differing), LONG)}: use one environment with these versions on all "
                "hosts, or start again with --overwrite"
            ),
        )


def versions_of(runtime: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a plan's runtime that are versions of libraries, by name."""
    return {
        name: value
        for name, value in runtime.items()
        if " " not in name and isinstance(value, str) and _VERSION.match(value)
    }


def describe_others(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """List the libraries whose versions differ, with the expected versions; empty if none differ."""
    wanted, there = versions_of(expected), versions_of(found)
    others = (f"{name} {version}" for name, version in wanted.items() if there.get(name, version) != version)
    return cut(one_line(", ".join(others)), LONG)


def library_version(name: str) -> str:
    """Return the version of an installed library, or ``missing``."""
    from importlib.metadata import PackageNotFoundError, version  # a slow import

    try:
        return version(name)
    except (PackageNotFoundError, ValueError):
        return MISSING


def first_machine(space: Workspace) -> dict[str, str]:
    """Return the kind of the machine on which a plan was started, or of this machine if none is recorded."""
    try:
        noted = _read_machine(space.parts / _MACHINE)
    except OSError:
        return machine_kind()
    return {name: noted[name] for name in machine_kind()}


def check_machine(space: Workspace) -> None:
    """Compare this machine's kind with that of the plan's first worker, which is recorded next to the parts."""
    path, mine = space.parts / _MACHINE, {**machine_kind(), "host": host()}
    if not path.exists():
        attempt = space.attempt(path)
        with writing(space.out):
            attempt.write_bytes(seal(json.dumps(mine)))
            publish(attempt, path)
    if space.remote is not None:
        space.remote.settle(space.root, path)
    with reading():
        first = _read_machine(path)
    differing = [
        f"{name} {cut(first[name], LONG)} (here {cut(mine[name], LONG)})"
        for name in machine_kind()
        if first[name] != mine[name]
    ]
    if differing:
        raise BuildError(
            place=f"host {host()}",
            expected=(
                f"a machine of the same kind as host {first['host']}, on which the build was started, since other "
                "kinds may produce other bytes"
            ),
            hint=(
                f"{'; '.join(differing)}: use hosts of one kind (Slurm: --constraint), or delete the "
                ".build folder to start again"
            ),
        )


def _read_machine(path: Path) -> dict[str, str]:
    """Read the record of a first worker; return this machine's if the record was damaged when its machine crashed."""
    try:
        found = read_record(path)
    except BuildError:
        return {**machine_kind(), "host": "?"}
    return {name: str(found.get(name)) for name in (*machine_kind(), "host")}
