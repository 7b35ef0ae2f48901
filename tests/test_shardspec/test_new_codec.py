"""A codec that is added to the table is known everywhere: no other place names the codecs."""

import subprocess
import sys
from pathlib import Path

from support.command import environment


def test_a_new_codec_needs_only_an_entry_in_the_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.new_codec", tmp_path / "work"],
        env=environment(python_path=Path(__file__).parents[1]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
