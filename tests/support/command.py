"""The `packer` command as a user runs it: a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

COMMAND_LIMIT_S = 300
"""Seconds. No command of the tests takes nearly as long; one that hangs fails its test."""

REPOSITORY = Path(__file__).parents[2]


def environment(*, python_path: Path | Sequence[Path] = (), **more: str) -> dict[str, str]:
    """The environment of a command; modules in `python_path` can be imported by it and by its workers."""
    paths = [str(path) for path in ([python_path] if isinstance(python_path, Path) else python_path)] + [
        str(REPOSITORY)
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def arguments(command: str, *values: object) -> list[str]:
    """``python -m packer COMMAND ...`` as a list."""
    return [sys.executable, "-m", "packer", command, *(os.fspath(v) if isinstance(v, Path) else str(v) for v in values)]


def run_unprivileged(command: str, *values: object, expect: int | None = 0) -> "subprocess.CompletedProcess[str]":
    """Run a command for which the modes of files count, even if this process is root's."""
    if os.name == "nt":
        pytest.skip("modes of files do not count on Windows")
    if os.geteuid() != 0:
        return run_packer(command, *values, expect=expect)
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("setpriv is not installed, and this is root")
    return run_packer(
        command, *values, expect=expect, before=(program, "--bounding-set=-dac_override,-dac_read_search")
    )


def run_packer(
    command: str,
    *values: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    expect: int | None = 0,
    before: Sequence[str] = (),
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end. `expect` is its exit status; None takes any. `before` are words of a launcher."""
    done = subprocess.run(
        [*before, *arguments(command, *values)],
        env=dict(env or environment()),
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert expect is None or done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def start_packer(
    command: str, *values: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.Popen[str]":
    """Start a command in a session of its own, its output in pipes."""
    return subprocess.Popen(
        arguments(command, *values),
        env=dict(env or environment()),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_jsonl(path: Path) -> list[Any]:
    """The documents of a JSON lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
