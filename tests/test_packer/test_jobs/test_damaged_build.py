"""Damage in the folder of an unfinished build: the right dataset, or one line that says what to delete."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import damaged_builds
from support.command import environment
from support.fuzz import SEED

MODES = ("build", "overwrite", "update", "convert")
FEW, MANY = 12, 400


def survey(folder: Path, mode: str, rounds: int) -> None:
    program = [sys.executable, "-W", "ignore", damaged_builds.__file__, folder, mode, SEED, rounds]
    env = environment(python_path=Path(damaged_builds.__file__).parents[1])
    done = subprocess.run(list(map(str, program)), capture_output=True, text=True, env={**os.environ, **env})
    assert not done.returncode, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == rounds
    assert [one for one in found if one["wrong"]] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_build_is_resumed_rightly_or_refused(tmp_path: Path, mode: str) -> None:
    survey(tmp_path, mode, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_damaged_builds_are_resumed_rightly_or_refused(tmp_path: Path, mode: str) -> None:
    survey(tmp_path, mode, MANY)
