"""The `packer` command: what it prints, its exit statuses, and what it never shows."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.builds import OPTIONS, write_images
from support.command import arguments, environment, file_of, run_packer
from support.hooks import at_start_of, before_each
from support.media import write_video
from support.packed import check_whole, read_samples

from packer import Recipe
from packer.cli import main
from shardspec.layout import Layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few images."""
    return write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])


def test_a_command_without_its_libraries_says_what_to_install(source: Path, tmp_path: Path) -> None:
    without = at_start_of(tmp_path / "without", "packer", "sys.modules['uvicorn'] = None")
    said = run_packer("view", source, env=environment(python_path=without), expect=2).stderr
    assert said == (
        "packer view: packer.view needs the library 'uvicorn', which is not installed: pip install \"facepack[view]\"\n"
    )


@pytest.mark.parametrize(
    ("values", "library", "extra"),
    [
        (["--size", "8"], "cv2", "pack"),
        (["--preset", "faces"], "cv2", "faces-light"),
        (["--preset", "faces"], "mtcnn", "faces-light"),
        (["--format", "parquet"], "pyarrow", "parquet"),
        (["--format", "hdf5"], "h5py", "hdf5"),
        (["--include", "*.mp4"], "av", "pack"),
    ],
)
def test_a_build_checks_its_libraries_before_it_plans(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[str], library: str, extra: str
) -> None:
    """The same command packs once they are installed, and no item is rejected for what a machine lacks."""
    write_video(source / "v.mp4")
    monkeypatch.setitem(sys.modules, library, None)
    said = run_packer("build", source, tmp_path / "out", *values, expect=2).stderr
    assert said.endswith(f' needs the library {library!r}, which is not installed: pip install "facepack[{extra}]"\n')
    assert not (tmp_path / "out").exists()


def test_images_are_kept_without_the_libraries_of_other_recipes(source: Path, tmp_path: Path) -> None:
    code = "\n".join(f"sys.modules[{name!r}] = None" for name in ("cv2", "pyarrow", "h5py", "av"))
    lacks = environment(python_path=at_start_of(tmp_path / "without", "packer", code))
    run_packer("build", source, tmp_path / "kept", env=lacks)
    check_whole(tmp_path / "kept")


def test_a_build_needs_no_library_for_items_that_it_excludes_or_rejects(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_video(tmp_path / "v.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "rows.csv").write_text("path\na.png\ngone.mp4\n")
    rows = ("--root", source, "--max-rejects", "50%")
    run_packer("build", tmp_path / "rows.csv", tmp_path / "rejecting", *rows)
    assert "gone.mp4" in file_of(tmp_path / "rejecting", "rejects.jsonl").read_text()
    video.rename(source / "v.mp4")
    run_packer("build", source, tmp_path / "limited", "--limit", "3")
    check_whole(tmp_path / "limited")
    assert "needs the library 'av'" in run_packer("build", source, tmp_path / "all", expect=2).stderr


def test_packed_datasets_are_written_if_the_libraries_are_installed(source: Path, tmp_path: Path) -> None:
    run_packer("build", source, tmp_path / "packed")
    lacks = environment(python_path=at_start_of(tmp_path / "without", "packer", "sys.modules['pyarrow'] = None"))
    run_packer("convert", tmp_path / "packed", tmp_path / "out", "--format", "parquet", env=lacks, expect=2)
    assert not (tmp_path / "out").exists()
    run_packer("convert", tmp_path / "packed", tmp_path / "out", "--format", "parquet")
    run_packer("verify", "--deep", tmp_path / "out", env=lacks)


def test_only_workers_that_have_something_to_do_are_announced(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source, tmp_path / "out", "--workers", "2")
    assert done.stderr.startswith("packing: 3 items into lmdb shards by 1 worker process\n")  # all in one task


def test_a_build_shows_what_it_made(source: Path, tmp_path: Path) -> None:
    done = run_packer("build", source, tmp_path / "out", process=True)
    assert re.fullmatch(
        rf"{tmp_path}/out: 3 samples in 1 lmdb shard \(0\.\d MB\) from 3 of 3 items, 0 rejected\n", done.stdout
    )
    assert re.match(r"packing: 3 items into lmdb shards by 1 worker process\n", done.stderr)
    assert re.search(r"^packing: 3/3 items, .* samples/s, .* MB, 0 rejects$", done.stderr, re.MULTILINE)
    assert re.search(r"^writing: 1/1 shards, 0\.\d MB$", done.stderr, re.MULTILINE)
    assert "\x1b" not in done.stderr
    again = run_packer("build", source, tmp_path / "out")
    assert again.stdout == done.stdout.replace("out: ", "out: finished already, nothing was done: ")
    assert again.stderr == ""
    again = run_packer("build", source, tmp_path / "out", "--quiet", "--json")
    assert again.stderr == ""
    document = json.loads(again.stdout)
    assert document["digest"] == Layout(tmp_path / "out").load().digest
    assert document["found_finished"]
    assert {name: document[name] for name in ("samples", "items", "packed_items", "rejected_items", "shards")} == {
        "samples": 3, "items": 3, "packed_items": 3, "rejected_items": 0, "shards": 1,
    }  # fmt: skip


def test_inspect_names_the_first_file_that_is_missing(reference: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(reference, copied)
    for path in (file_of(copied, "items.jsonl"), copied / f"{Layout(copied).load().shards[-1].name}.lmdb"):
        path.unlink()
        problem = f"{path}: expected a file of "
        assert json.loads(run_packer("inspect", copied, "--json").stdout)["problem"].startswith(problem)
        assert f"\nproblem: {problem}" in run_packer("inspect", copied).stdout


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_dry_run_writes_nothing(mixed: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "here").mkdir()
    done = run_packer("build", mixed, "out", *OPTIONS, "--dry-run", *arguments, cwd=tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())
    if arguments:
        document = json.loads(done.stdout)
        assert (document["items"], document["fits"]) == (99, True)
        assert 0 < document["tried_items"] < 20
        assert document["recipe"]["size"] == 32
        assert document["bytes"] > 0
        assert document["samples"] > 4
        assert document["seconds"] > 0
    else:
        assert "99 items in 6 tasks, 0 ignored" in done.stdout
        assert "fits" in done.stdout
        (recipe,) = (line for line in done.stdout.splitlines() if line.startswith("recipe: "))
        shown = {option.partition("=")[0] for option in recipe.removeprefix("recipe: ").split(", ")}
        assert shown >= {"preset", "size", "resize", "format", "shard_size"}
        assert "[" not in recipe
        assert not shown & {"min_face", "detector", "margin", "landmarks", "boxes_scale", "path_column"}


def write_config(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_config_accepts_any_option_and_the_command_line_overrides_it(source: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        'size = 8\nformat = "npy"\nshard-size = "1kB"\nencode = "png"\nworkers = 1\nmax_rejects = "50%"\n'
        'steps = ["decode", "resize", {use = "support.steps:slow", seconds = 0.001}]\n',
    )
    run_packer("build", source, tmp_path / "out", "--config", config, "--size", 12)
    manifest = check_whole(tmp_path / "out")
    recipe = manifest.generations[0].recipe
    assert (recipe["size"], recipe["encode"], recipe["shard_size"], manifest.format) == (12, "png", 1000, "npy")
    assert recipe["steps"][2] == {"use": "support.steps:slow", "seconds": 0.001}
    assert Recipe.from_options(recipe).to_json() == recipe
    assert read_samples(tmp_path / "out")[0]["image"].shape == (12, 16, 3)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("sise = 3", "recipe.toml: unknown option 'sise'; did you mean 'size'?"),
        ("worker = 3", "recipe.toml: unknown option 'worker'; did you mean 'workers'?"),
        ("sise = 3", "; did you mean 'size'?"),
        (
            "encode = 'jpg'",
            "encode: expected one of jpeg, png, webp, webp-lossless, raw, av1, ffv1, h264, found 'jpg'; did you mean 'jpeg'?",
        ),
        ("size = 'big'", "size: expected an integer, found 'big'"),
        ("[section]\nsize = 3", "unknown option 'section'"),
        ("size = ", "expected TOML, found a syntax error: Invalid value (at end of document)"),
        ("overwrite = 'no'", "overwrite: expected true or false, found 'no'"),
        ("workers = 0", "workers: expected 'auto' or a number from 1 to 100,000, found 0"),
        ("steps = 3", "steps: expected a list of names, found 3"),
        ("json = true", "unknown option 'json'"),
        pytest.param("size = " + "[" * 20_000, "expected TOML, found too many levels", id="many brackets"),
    ],
)
def test_an_invalid_config_is_a_usage_error(source: Path, tmp_path: Path, text: str, reported: str) -> None:
    done = run_packer("build", source, tmp_path / "out", "--config", write_config(tmp_path, text), expect=2)
    assert reported in done.stderr
    assert not (tmp_path / "out").exists()


LONG_WORD = "x" * 20_000


@pytest.mark.parametrize(
    "words",
    [
        [LONG_WORD],
        ["inspect", f"--{LONG_WORD}"],
        ["convert", "a", "out", "--format", LONG_WORD],
        ["build", ".", "../out", "--size", LONG_WORD],
        ["build", ".", "../out", "--shard-size", LONG_WORD],
        ["split", "a", "out", "--by", "source", "--ratios", LONG_WORD],
    ],
    ids=lambda words: " ".join(words).replace(LONG_WORD, "LONG"),
)
def test_a_long_word_is_cut_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        assert main(words) == 2
    reported = capsys.readouterr().err
    assert "x" * 60 in reported
    assert len(reported) < 800
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["build", LONG_WORD, "out"], ["status", LONG_WORD], ["list", "imagefolder", LONG_WORD]]
)
def test_an_invalid_path_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    reported = capsys.readouterr().err
    assert reported.startswith(f"packer {words[0]}: xxx")
    assert reported.endswith(": File name too long\n")
    assert len(reported) < 500


def test_folders_that_a_path_only_passes_through_are_not_created(source: Path, reference: Path, tmp_path: Path) -> None:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "deep")
    run_packer("build", source, "./-x/../-x a/b", "--quiet", cwd=tmp_path)
    run_packer("export", reference, "link/new/../../c", cwd=tmp_path)  # up from where the link leads to
    run_packer("split", reference, "link/../d/e/..", "--folds", "2", "--engine", "inline", "--quiet", cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path != source) == ["-x a", "link", "there"]
    assert Layout(tmp_path / "-x a" / "b").manifest.exists()
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["c", "d", "deep"]
    assert sorted(path.name for path in (tmp_path / "there" / "d").iterdir()) == ["fold-0", "fold-1"]
    assert not list((tmp_path / "there" / "deep").iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packer", "build", "--debug", tmp_path / "nowhere", tmp_path / "out"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" in done.stderr
    assert "UsageError" in done.stderr


def test_too_many_rejects_exit_with_3_and_keep_the_dataset(source: Path, tmp_path: Path) -> None:
    (source / "bad.png").write_bytes(b"x")
    done = run_packer("build", source, tmp_path / "out", "--json", expect=3)
    assert json.loads(done.stdout)["rejected_items"] == 1
    assert "packed, but 1 of 4 items (25.0%) were rejected, more than 5.0%" in done.stderr
    assert done.stderr.endswith(f"`packer rejects {tmp_path / 'out'}`; to accept them, repeat with --max-rejects 25%\n")
    check_whole(tmp_path / "out")
    again = run_packer("build", source, tmp_path / "out", expect=3)
    assert "finished already, nothing was done: 3 samples" in again.stdout
    run_packer("build", source, tmp_path / "out", "--max-rejects", "25%")


@pytest.mark.parametrize(
    ("module", "sign"),
    [
        ("argparse", "SIGINT"),
        ("packer.cli.arguments", "SIGTERM"),
        ("numpy", "SIGINT"),
        ("packer.builds.planning.listing", "SIGTERM"),
    ],
)
def test_an_interrupt_while_modules_are_imported_is_quiet(source: Path, tmp_path: Path, module: str, sign: str) -> None:
    condition, deed = f"arguments[0] == {module!r}", f"os.kill(os.getpid(), signal.{sign})"
    env = environment(python_path=before_each(tmp_path / "hooks", "packer", "import", condition, deed))
    done = run_packer("build", source, tmp_path / "out", env=env, expect=130)
    assert done.stdout == ""
    assert done.stderr.startswith("packer: interrupted")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="redirections of a POSIX shell")
@pytest.mark.parametrize("redirections", ["2>&-", "<&- >&- 2>&-", "2>/dev/full", "2>&1 >/dev/null | true"])
def test_a_build_does_not_need_a_progress_listener(source: Path, tmp_path: Path, redirections: str) -> None:
    command = arguments("build", source, tmp_path / "out", "--workers", 1)
    shell = ["sh", "-c", f'"$@" {redirections}', "sh", *command]
    assert subprocess.run(shell, env=environment(), capture_output=True, check=False).returncode == 0
    check_whole(tmp_path / "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    run_packer("build", source, out, "--quiet")
    lines: list[tuple[str, list[object]]] = [
        ("", ["--help"]),
        ("1", ["build", "--help"]),
        ("1", ["build", source, out]),
    ]
    lines += [("1", ["inspect", out, out, "--json"]), ("", ["convert", out, new, "--format", "npy", "--quiet"])]
    for unbuffered, line in lines:
        command, env = arguments(str(line[0]), *line[1:]), environment(PYTHONUNBUFFERED=unbuffered)
        with open("/dev/full", "w") as full:  # noqa: PTH123 -- a device
            done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        name = "packer" if str(line[0]).startswith("-") else f"packer {line[0]}"
        reason = "standard output cannot be written: No space left on device"
        assert (done.returncode, done.stderr) == (1, f"{name}: {reason}\n"), line
    check_whole(new)


@pytest.mark.parametrize("words", [["--help"], ["inspect"]])
def test_a_closed_pipe_is_not_an_error(source: Path, tmp_path: Path, words: list[str]) -> None:
    run_packer("build", source, tmp_path / "out", "--quiet")
    read, write = os.pipe()
    os.close(read)
    command = arguments(*words, *([tmp_path / "out"] if words == ["inspect"] else []))
    done = subprocess.run(command, env=environment(), stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_command_fails_in_a_deleted_current_folder(source: Path, tmp_path: Path) -> None:
    run_packer("build", source, tmp_path / "out")
    (tmp_path / "gone").mkdir()
    script = f'cd {shlex.quote(str(tmp_path / "gone"))} && rmdir ../gone && exec "$@"'
    shell = ["sh", "-c", script, "sh", *arguments("inspect", tmp_path / "out")]
    done = subprocess.run(shell, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 samples" in done.stdout
    shell[4:] = arguments("inspect", "out")
    (tmp_path / "gone").mkdir()
    done = subprocess.run(shell, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "the current folder was deleted" in done.stderr


def test_a_build_of_a_finished_dataset_says_what_it_changed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_packer("build", source, out)
    said = json.loads(run_packer("build", source, out, "--title", "New", "--license", "MIT", "--json").stdout)
    assert (said["found_finished"], said["changed"]) == (True, ["title", "license"])
    assert "title changed" in run_packer("build", source, out, "--title", "Newer", "--license", "MIT").stdout
    again = run_packer("build", source, out, "--title", "Newer", "--license", "MIT")
    assert "nothing was done" in again.stdout
    assert "Newer" in run_packer("inspect", out).stdout


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "beside another's"])
def test_the_process_ends_with_everything_done(source: Path, tmp_path: Path, kept: bool) -> None:
    (tmp_path / "ends.py").write_text(
        "import atexit\nfrom pathlib import Path\n"
        "atexit.register(lambda: Path('ended').write_text('of a step'))\n"
        "def step(samples):\n    yield from samples\n"
    )
    code = "import atexit, pathlib; atexit.register(lambda: pathlib.Path('measured').touch())"
    env = environment(python_path=at_start_of(tmp_path / "site", "packer", code)) if kept else environment()
    env.pop("PYTHONUNBUFFERED", None)
    steps = ("--steps", "decode,ends:step", "--engine", "inline")
    done = run_packer("build", source, tmp_path / "out", *steps, "--json", cwd=tmp_path, env=env)
    assert json.loads(done.stdout)["out"] == str(tmp_path / "out")
    assert (tmp_path / "ended").read_text() == "of a step"
    assert (tmp_path / "measured").exists() == kept


def test_a_command_names_what_it_made_as_it_was_typed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("source,score\na.png,1\nb.png,2\nc.png,3\n")
    parts = ("--by", "source", "--ratios", "a=0.5,b=0.5")
    for line, named in (
        (["build", "source", "sets/out"], ["sets/out: "]),
        (["add", "sets/out", "table.csv", "--on", "source"], ["sets/out: "]),
        (["convert", "sets/out", "sets/npy", "--format", "npy"], ["sets/npy: "]),
        (["merge", "sets/out", "sets/npy", "sets/both"], ["sets/both: "]),
        (["split", "sets/out", "splits", *parts], ["splits/a: ", "splits/b: "]),
        (["export", "sets/out", "sets/files"], ["sets/files: "]),
        (["drop-field", "sets/out", "score"], ["sets/out: "]),
    ):
        printed = run_packer(*line, "--quiet", cwd=tmp_path).stdout.splitlines()
        assert [text.startswith(start) for text, start in zip(printed, named, strict=False)] == [True] * len(named)
    found = json.loads(run_packer("export", "sets/out", "sets/more", "--quiet", "--json", cwd=tmp_path).stdout)
    assert (found["out"], found["table"]) == ("sets/more", "sets/more/table.csv")
