"""What is submitted to Slurm: the scripts, their options and names, and what is refused, with a Slurm that is a fake."""

import os
import shlex
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.builds import write_images
from support.command import REPOSITORY, environment, run_packer
from support.packed import fingerprints

import packer
from packer.cli.line import _parser
from packer.cluster.claiming import TimeLimit, parse_left
from packer.cluster.slurm import parse_array, split_options
from packer.recipe.command_line import option_words
from shardspec.errors import UsageError

SBATCH = """\
#!/bin/sh
printf '%s\\n' "$@" >> "$FAKE/sbatch.log"
case "$*" in *"$FAKE_REFUSED"*) echo "sbatch: error: Invalid qos specification" >&2; exit 1;; esac
number=$(( $(cat "$FAKE/number" 2>/dev/null || echo 40) + 1 ))
echo $number > "$FAKE/number"
echo $number
"""
SQUEUE = (
    '#!/bin/sh\n[ "$3" = "$(cat "$FAKE/queued")" ] && echo "$3_0|RUNNING|n1" && echo "$3_[1-3]|PENDING|(Resources)"\n'
)
SCANCEL = '#!/bin/sh\necho "$@" >> "$FAKE/scancel.log"\n'


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment with a Slurm that notes what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        program = folder / name
        program.write_text(script)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "queued").write_text("none")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return environment(FAKE=str(tmp_path), FAKE_REFUSED="--qos=none", PATH=path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / 'it\'s a "source"\nin $two lines', [f"{n}.png" for n in range(3)])


def test_the_scripts_do_the_build_whatever_the_folders_are_called(
    fake: dict[str, str], tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "an 'odd'\n$name; 50%"
    options = ("--size", "16", "--quiet", "--array", "4%2", "--sbatch", "--partition='a b' --time 60")
    done = run_packer("submit", source, out, "--slurm", *options, env=fake)
    assert "submitted as Slurm jobs 41 (array) and 42 (finishing job)" in done.stdout
    asked = (tmp_path / "sbatch.log").read_text()
    for words in ("--array=0-3%2\n", "--partition=a b\n--time\n60\n", "--dependency=afterany:41\n", "50%%.slurm"):
        assert words in asked
    folder = out.with_name(out.name + ".slurm")
    for name in ("array.sh", "finish.sh"):
        done_by = subprocess.run(
            ["bash", folder / name], env=fake, capture_output=True, text=True, cwd="/", timeout=300
        )
        assert done_by.returncode == 0, done_by.stderr
    run_packer("build", source, tmp_path / "local", "--size", "16", "--quiet")
    assert fingerprints(out) == fingerprints(tmp_path / "local")
    again = run_packer("submit", source, out, "--slurm", *options, env=fake)
    assert "finished already" in again.stdout


def test_a_finishing_job_does_not_overwrite_what_another_call_has_finished(
    fake: dict[str, str], tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "out"
    options = ("--size", "16", "--quiet", "--overwrite")
    run_packer("submit", source, out, "--slurm", *options, env=fake)
    run_packer("build", source, out, *options)
    before = (out / "manifest.json").stat().st_mtime_ns
    finish = ["bash", out.with_name("out.slurm") / "finish.sh"]
    done = subprocess.run(finish, env=fake, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the build is finished" in done.stdout
    assert (out / "manifest.json").stat().st_mtime_ns == before


def test_what_is_in_the_queue_is_not_submitted_twice(
    fake: dict[str, str], tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(fake, monkeypatch)
    out = tmp_path / "out"
    submit = partial(packer.submit, source, out, size=16, slurm=True, progress=False)
    assert submit().to_json()["array_job"] == "41"
    (tmp_path / "queued").write_text("41")
    refused = run_packer("submit", source, out, "--size", "16", "--quiet", "--slurm", env=fake, expect=1)
    assert "submitted already, and in Slurm's queue (41_0 running, 41_[1-3] pending)" in refused.stderr
    assert "scancel 41 42" in refused.stderr
    shown = run_packer("status", out, env=fake).stdout
    assert "Slurm job 41_[1-3]: pending, (Resources)" in shown
    (tmp_path / "queued").write_text("none")
    assert submit().to_json()["array_job"] == "43"


def test_what_slurm_refuses_is_said_and_nothing_half_submitted_stays(
    fake: dict[str, str], tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(fake, monkeypatch)
    submit = partial(packer.submit, source, tmp_path / "out", size=16, slurm=True, progress=False)
    call = ("submit", source, tmp_path / "out", "--size", "16", "--quiet", "--slurm")
    refused = run_packer(*call, env={**fake, "FAKE_REFUSED": "--dependency"}, expect=1)
    assert "submit: Slurm's sbatch: Invalid qos specification" in refused.stderr
    assert (tmp_path / "scancel.log").read_text() == "41\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="expected Slurm's command sbatch, found none on the PATH"):
        submit()


def use(fake: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that Slurm in this process, too."""
    for name in ("FAKE", "FAKE_REFUSED", "PATH"):
        monkeypatch.setenv(name, fake[name])


def test_print_shows_the_scripts_of_the_docs_and_writes_nothing(tmp_path: Path) -> None:
    words = "/data/videos /data/faces --slurm --array 16 --sbatch '-p cpu -t 4:00:00' --preset faces --every 10"
    shown = run_packer("submit", *shlex.split(words), "--print", cwd=tmp_path, env=environment()).stdout
    assert list(tmp_path.iterdir()) == []
    page = (REPOSITORY / "docs" / "howto" / "cluster.md").read_text("utf-8")
    assert f"packer submit {words} --print" in page.replace(" \\\n    ", " ")
    lines = [line for line in shown.splitlines() if not line.startswith("export PYTHONPATH=")]
    plain = "\n".join(lines).replace(sys.executable, "/home/me/.venv/bin/python").replace(str(tmp_path), "/home/me")
    assert f"```sh\n{plain}\n```" in page


def test_options_for_the_jobs_are_split_as_in_a_shell() -> None:
    assert split_options("-p 'a b' --time=1:00 --exclusive --mem 4G") == [
        *("-p", "a b", "--time=1:00", "--exclusive", "--mem", "4G")
    ]
    with pytest.raises(UsageError, match="No closing quotation"):
        split_options("--comment='")
    assert parse_array("16%4") == (16, "%4")
    for wrong in ("0", "-1", "1-3", "4%0", "", True):
        with pytest.raises(UsageError, match="array: expected a number"):
            parse_array(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "faces", "every": 10, "fps": 2.5, "min_score": 0.5, "keep_faceless": True, "overwrite": True},
        {"steps": ("decode", "mine:step"), "classes": ("a b", "-c"), "text": ("x", "-y"), "shared_detector": False},
        {"retry_rejects": True, "update": True, "shard_size": "30kB", "max_rejects": "5%", "resize": "none"},
        {"retry_rejects": "decode", "include": ["*.png"], "workers": 3, "root": ["/a", "/b c"]},
    ],
)
def test_options_become_the_words_of_the_same_build(options: dict[str, object]) -> None:
    parser, _ = _parser(["build"])
    found = vars(parser.parse_args(["build", "source", "out", *option_words(options)]))
    for name, value in options.items():
        wanted = list(value) if isinstance(value, tuple) else value
        read = list(found[name]) if isinstance(found[name], tuple) else found[name]
        assert str(read) == str(wanted), name


def test_what_no_command_line_can_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use a recipe file"):
        packer.submit(tmp_path, tmp_path / "out", steps=[{"use": "mine:step", "size": 3}], slurm=True, print=True)
    with pytest.raises(UsageError, match="source: expected a path"):
        packer.submit([{"path": "x"}], tmp_path / "out")  # type: ignore[arg-type]
    shown = packer.submit(tmp_path, tmp_path / "out", size=16, slurm=True, print=True)
    assert "--size=16" in str(shown.to_json()["finish_script"])


def test_the_time_that_is_left_is_slurms(fake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [parse_left(text) for text in ("1-02:03:04\n", "5:00", "UNLIMITED", "")] == [93784.0, 300.0, None, None]
    assert TimeLimit("auto", {}).left_s == float("inf")
    assert 0 < TimeLimit(2).left_s < 120
    assert TimeLimit("auto", {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1"}).left_s <= 0
    monkeypatch.setenv("PATH", fake["PATH"])
    assert TimeLimit("auto", {"SLURM_JOB_ID": "7"}).left_s == float("inf")
    squeue = tmp_path / "bin" / "squeue"  # which answers for a whole array with a line for each element
    squeue.write_text('#!/bin/sh\ncase "$3" in 17_3) echo 5:00;; 17) echo 9:00; echo 8:00;; esac\n')
    element = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    assert TimeLimit("auto", element).left_s < 300
    assert 300 < TimeLimit("auto", {"SLURM_JOB_ID": "17"}).left_s < 480
    for wrong in ("0", "-1", "nan", "soon", True):
        with pytest.raises(UsageError, match="time_limit: expected"):
            TimeLimit(wrong)
