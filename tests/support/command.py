"""The `packer` command as a user runs it."""

import io
import json
import os
import shutil
import site
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from packer.cli import main
from shardspec.entries import strip_tag

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
    python_path: Path | None = None,
    expect: int | None = 0,
    before: Sequence[str] = (),
    process: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in this process where that makes no difference, since a start takes most of a second.

    Parameters
    ----------
    env, before
        Environment, and words of a launcher of the new process. Any of them asks for one.
    cwd : Path, optional
        The current folder.
    python_path : Path, optional
        A folder of modules.
    expect : int, optional
        The exit status; None accepts any.
    process : bool
        Whether to start a new process: for tests of streams, signals, imports, workers.
    """
    words = arguments(command, *values)
    if process or env is not None or before or sys.platform == "win32":
        done = subprocess.run(
            [*before, *words],
            env=dict(env or environment(python_path=python_path or ())),
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    else:
        with chdir(cwd or Path.cwd()):
            done = _run_here(words[3:], python_path)
    assert expect is None or done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


_OF_ENGINES = ("build", "compact", "convert", "detect", "merge", "split")
"""Commands with an engine."""

_OF_WORKERS = (
    "--engine",
    "--workers",
    "--item-timeout",
    "--shared-detector",
    "--workers-per-node",
    "--help",
    "--dry-run",
)
"""Options of such a command that decide, or depend on, where it runs."""


def _run_here(words: Sequence[str], python_path: Path | None) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process, with the inline engine. Restore what the command changes in the process."""
    given = {word.partition("=")[0] for word in words}
    if words[0] in _OF_ENGINES and len(words) > 2 and given.isdisjoint(_OF_WORKERS):
        words = [*words, "--engine", "inline"]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors, write_through=True) for errors in _ERRORS]
    path, modules, variables = sys.path[:], set(sys.modules), dict(os.environ)
    sys.path[:0] = [str(python_path)] if python_path else []
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), warnings.catch_warnings():
        warnings.resetwarnings()
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
    sys.path[:] = path
    for name in [name for name in variables.keys() ^ os.environ.keys() if name != "PYTEST_CURRENT_TEST"]:
        os.environ.pop(name, None)
    os.environ.update(variables)
    for name in set(sys.modules) - modules:
        if not (getattr(sys.modules[name], "__file__", None) or sys.prefix).startswith(_INSTALLED):
            del sys.modules[name]
    stdout, stderr = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in streams)  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(list(words), status, stdout, stderr)


_ERRORS = ("surrogateescape", "backslashreplace")
"""How Python's standard output and standard error treat text that cannot be encoded."""

_INSTALLED = (
    str(REPOSITORY),
    sys.prefix,
    sys.base_prefix,
    *site.getsitepackages(),
    *(path for path in sys.path if "site-packages" in path),
)
"""Modules elsewhere are those of a test, such as steps beside a recipe file."""


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


def file_of(root: Path, name: str) -> Path:
    """A file or folder of a dataset, by its name without the tag: ``"rejects.jsonl"`` or ``"shard-00000.lmdb"``."""
    found = [path for path in root.rglob("*") if strip_tag(path.relative_to(root).as_posix()) == name]
    (path,) = found or [root / name]
    return path


def read_jsonl(path: Path) -> list[Any]:
    """The documents of a JSON lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
