"""Random histories of a dataset that lives, against a model of what must be readable."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support import living
from support.command import REPOSITORY, environment

from shardspec.formats import FORMATS

names = st.sampled_from(living.NAMES)
kills = st.one_of(st.none(), st.integers(0, 60))


@pytest.mark.parametrize("kill_at", range(3))
@pytest.mark.parametrize("then", ["update", "nothing"])
def test_nothing_stays_of_a_killed_change_of_columns(tmp_path: Path, kill_at: int, then: str) -> None:
    """Killed between its new files and the manifest that names them; the next call finds nothing else to do."""
    dataset = living.Living(tmp_path, "npy")
    dataset.update()
    dataset.add(kill_at, marks=True)
    if then == "update":
        dataset.update()
    dataset.end()


class Growing(RuleBasedStateMachine):
    """Every change of a dataset, some of them killed, while its source changes."""

    @initialize(format=st.sampled_from(sorted(FORMATS)))
    def begin(self, format: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.living = living.Living(self.folder, format)

    def teardown(self) -> None:
        self.living.end()
        shutil.rmtree(self.folder)

    @rule(name=names, grey=st.one_of(st.none(), st.integers(2, 250)))
    def write(self, name: str, grey: int | None) -> None:
        self.living.write(name, grey)

    @rule(name=names)
    def remove(self, name: str) -> None:
        self.living.remove(name)

    @rule(kill_at=kills, changed=st.sampled_from(["replace", "keep"]), gone=st.sampled_from(["drop", "keep"]))
    def update(self, kill_at: int | None, changed: str, gone: str) -> None:
        self.living.update(kill_at, changed=changed, gone=gone)

    @rule(kill_at=kills)
    def retry(self, kill_at: int | None) -> None:
        self.living.retry(kill_at)

    @rule(kill_at=kills, marks=st.booleans())
    def add(self, kill_at: int | None, marks: bool) -> None:
        self.living.add(kill_at, marks=marks)

    @rule(kill_at=kills)
    def drop(self, kill_at: int | None) -> None:
        self.living.drop(kill_at)


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_killed_at_random_moments(tmp_path: Path, format: str) -> None:
    script = REPOSITORY / "tests" / "support" / "living.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), format, "35", str(sorted(FORMATS).index(format))],
        env=environment(python_path=REPOSITORY / "tests"),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["kills"] >= 35
