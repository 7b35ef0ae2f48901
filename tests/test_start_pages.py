"""The pages that a new user reads first, followed word by word: pack, look, split, train."""

import re
import shlex
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer
from support.ranks import run_script

START = REPOSITORY / "docs" / "start"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images of ``make_data.py``."""
    root = tmp_path_factory.mktemp("start")
    run_script(REPOSITORY / "examples" / "make_data.py", "media/", cwd=root)
    return root


def test_the_start_pages_show_what_their_commands_print(folder: Path) -> None:
    for page in ("first_dataset.md", "first_training.md"):
        text = (START / page).read_text("utf-8")
        for line, output in re.findall(r"^ {4}packer ([^\n]*)\n\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            assert run_packer(*shlex.split(line), cwd=folder).stdout.startswith(output), line
        for script in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            lines = run_script("-c", script, cwd=folder).stdout.splitlines()
            shown = re.findall(r"^epoch .*$", text, re.MULTILINE)
            assert [line.split(":")[0] for line in lines] == [line.split(":")[0] for line in shown]
            assert int(lines[-1].split(" of ")[0].split()[-1]) > 8  # of 11; losses differ between processors
