"""`packer help`, the topics of `packer build --help`, and completion in shells."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command import REPOSITORY, run_packer
from support.face_source import views, write_frames
from support.media import scene, write_image

from packer.cli.commands.build import COMMON, EXAMPLES, TOPICS
from packer.cli.line import COMMANDS
from packer.recipe.options import OPTION_NAMES
from readers import open_dataset


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


def test_the_help_of_the_command_lists_each_command_once() -> None:
    shown = run_packer("--help").stdout
    listed = re.findall(r"^ {2}([a-z-]+) ", shown.partition("\noptions:")[0].partition("\npack:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_short_help_shows_the_most_used_options_and_examples(command: str) -> None:
    shown = run_packer(command, "-h").stdout
    every = run_packer(command, "--help").stdout
    ours = [name.replace("-", "_") for name in options_in(shown) if name.replace("-", "_") in OPTION_NAMES]
    assert [name for name in COMMON if name in ours] == ours
    assert set(options_in(shown)) < set(options_in(every))
    assert len(shown) < len(every) / 2
    assert shown.splitlines()[0] == every.splitlines()[0]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources that the examples name."""
    root = tmp_path_factory.mktemp("examples")
    images, lines = list(views(13)), ["path,label"]
    for number in range(2):
        label = ("real", "fake")[number]
        write_frames(root / "videos" / label / f"{number}.mp4", images[number : number + 12])
        write_image(root / "photos" / label / f"{number}.jpg", scene(number, (320, 280)))
        lines.append(f"{label}/{number}.mp4,{label}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return root


def test_the_examples_of_the_short_help_pack(sources: Path) -> None:
    for line in [*EXAMPLES["build"].splitlines(), *EXAMPLES["detect"].splitlines()]:
        words = shlex.split(line)[1:]
        run_packer(*words, "--quiet", *(("--overwrite",) if words[0] == "build" else ()), cwd=sources)
        dataset = open_dataset(sources / words[2])
        assert len(dataset) >= 2
        if "--label-from" in words or "table.csv" in words:
            assert dataset.classes == ("fake", "real")


@pytest.mark.parametrize("words", [[], ["help"]])
def test_make_lists_its_targets_and_installs_nothing(words: list[str], tmp_path: Path) -> None:
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    line = [program, *words, f"VENV={tmp_path / 'venv'}"]
    listed = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    public = [name for name in targets[1].replace("\\", "").split() if not name.startswith("with-")]
    assert sorted(re.findall(r"^ {2}([a-z-]+) {2,}\S", listed, re.MULTILINE)) == sorted(public)
    assert not (tmp_path / "venv").exists()


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
