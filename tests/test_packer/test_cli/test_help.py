"""`packer help`, the topics of `packer build --help`, and completion in shells."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer

from packer.cli.commands.build import COMMON, TOPICS
from packer.cli.line import COMMANDS
from packer.recipe.options import OPTION_NAMES


def options_in(text: str) -> list[str]:
    """The options that a help text explains, without ``--no-…``."""
    return re.findall(r"^ {2}--([\w-]+)", text, re.MULTILINE)


def test_each_topic_explains_its_options_and_names_a_page() -> None:
    listed = run_packer("help").stdout
    explained = []
    for name, topic in TOPICS.items():
        assert re.search(rf"^ +{name} +{re.escape(topic.title)}$", listed, re.MULTILINE)
        shown = run_packer("help", name).stdout
        explained += options_in(shown)
        assert (REPOSITORY / topic.page).is_file()
        assert shown.endswith(f"{topic.page}\n")
    assert sorted(explained) == sorted(name.replace("_", "-") for name in OPTION_NAMES)


def test_help_of_a_command_is_that_of_the_command() -> None:
    for command in ("build", "split"):
        assert run_packer("help", command).stdout == run_packer(command, "--help").stdout


def test_the_help_of_a_build_shows_each_option_once_and_the_common_ones_first() -> None:
    shown = options_in(run_packer("build", "--help").stdout)
    ours = [name for name in shown if name.replace("-", "_") in OPTION_NAMES]
    assert ours[: len(COMMON)] == [name.replace("_", "-") for name in COMMON]
    assert sorted(ours) == sorted(name.replace("_", "-") for name in OPTION_NAMES)


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_options_choices_topics_and_paths(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "photos").mkdir()
    script = tmp_path / "script"
    script.write_text(run_packer("--completion", shell).stdout)
    for line, expected in {
        "packer bui": "build",
        "packer build --resample": "--resample-fps",
        "packer build --format web": "webdataset",
        "packer build pho": "photos",
        "packer inspect pho": "photos",
        "packer help clu": "cluster",
    }.items():
        words = shlex.split(line)
        code = {
            "bash": f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_packer; printf "%s\\n" "${{COMPREPLY[@]}}"',
            "fish": f"complete -C {shlex.quote(line)}",
        }[shell]
        done = subprocess.run(
            [program, "-c", f"source {script}; {code}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert [text.split("\t")[0].rstrip("/") for text in done.stdout.splitlines()] == [expected], (line, done.stderr)


def test_zsh_gets_a_function_for_every_command(tmp_path: Path) -> None:
    script = run_packer("--completion", "zsh").stdout
    for name in COMMANDS:
        assert f"_shtab_packer_{name.replace('-', '_')}_options=(" in script
    program = shutil.which("zsh")
    if program is not None:
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", tmp_path / "script"], check=True)
