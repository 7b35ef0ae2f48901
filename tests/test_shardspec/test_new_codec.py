"""A codec that is added to the table is known everywhere: no other place names the codecs."""

import subprocess
import sys
from pathlib import Path

from support.command import environment


def test_an_entry_of_the_table_is_all_that_a_new_codec_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.new_codec", tmp_path / "work"],
        env=environment(python_path=Path(__file__).parents[1]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
