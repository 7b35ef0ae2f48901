"""The `packer` command: what it prints, its exit statuses, and what it never shows."""

import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.archives import write_tar
from support.builds import OPTIONS, write_images
from support.command import arguments, environment, run_packer
from support.errors import raises
from support.hooks import at_start_of, before_each
from support.media import scene, write_image, write_video
from support.packed import check_whole, fingerprints, read_samples

from packer import Recipe
from packer.cli import main
from packer.cli.line import COMMANDS
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few images."""
    return write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [("view", "uvicorn", "view"), ("preview", "cv2", "pack")],
)
def test_a_command_without_its_libraries_says_what_to_install(
    source: Path, tmp_path: Path, command: str, library: str, extra: str
) -> None:
    without = at_start_of(tmp_path / "without", "packer", f"sys.modules[{library!r}] = None")
    said = run_packer(command, source, env=environment(python_path=without), expect=2).stderr
    assert said == (
        f"packer {command}: the command needs the library {library!r}, which is not installed: "
        f'pip install "facepack[{extra}]"\n'
    )


@pytest.mark.parametrize(
    ("values", "library", "extra"),
    [
        (["--size", "8"], "cv2", "pack"),
        (["--preset", "faces"], "cv2", "faces"),
        (["--format", "parquet"], "pyarrow", "parquet"),
        (["--format", "hdf5"], "h5py", "hdf5"),
        (["--format", "tfrecord"], "google_crc32c", "tfrecord"),
        (["--include", "*.mp4"], "av", "pack"),
    ],
)
def test_a_build_asks_for_its_libraries_before_it_plans(
    source: Path, tmp_path: Path, values: list[str], library: str, extra: str
) -> None:
    """So the same command packs once they are installed; and no item is rejected for what a machine lacks."""
    write_video(source / "v.mp4")
    lacks = environment(python_path=at_start_of(tmp_path / "without", "packer", f"sys.modules[{library!r}] = None"))
    said = run_packer("build", source, tmp_path / "out", *values, env=lacks, expect=2).stderr
    assert said.endswith(f' needs the library {library!r}, which is not installed: pip install "facepack[{extra}]"\n')
    assert not (tmp_path / "out").exists()
    run_packer("build", source, tmp_path / "kept", "--exclude", "*.mp4", env=lacks)  # which needs none of them
    check_whole(tmp_path / "kept")


def test_a_build_asks_for_no_library_of_items_that_it_leaves_out_or_rejects(source: Path, tmp_path: Path) -> None:
    lacks = environment(python_path=at_start_of(tmp_path / "without", "packer", "sys.modules['av'] = None"))
    (tmp_path / "rows.csv").write_text("path\na.png\ngone.mp4\n")
    rows = ("--root", source, "--max-rejects", "50%")
    run_packer("build", tmp_path / "rows.csv", tmp_path / "rejecting", *rows, env=lacks)
    assert "gone.mp4" in (tmp_path / "rejecting" / "rejects.jsonl").read_text()
    write_video(source / "v.mp4")
    run_packer("build", source, tmp_path / "limited", "--limit", "3", env=lacks)
    check_whole(tmp_path / "limited")
    assert "needs the library 'av'" in run_packer("build", source, tmp_path / "all", env=lacks, expect=2).stderr


@pytest.mark.parametrize(("format", "library"), [("parquet", "pyarrow"), ("tfrecord", "google_crc32c")])
def test_packed_datasets_are_written_where_the_libraries_are(
    source: Path, tmp_path: Path, format: str, library: str
) -> None:
    run_packer("build", source, tmp_path / "packed")
    lacks = environment(python_path=at_start_of(tmp_path / "without", "packer", f"sys.modules[{library!r}] = None"))
    run_packer("convert", tmp_path / "packed", tmp_path / "out", "--format", format, env=lacks, expect=2)
    assert not (tmp_path / "out").exists()
    run_packer("convert", tmp_path / "packed", tmp_path / "out", "--format", format)
    checked = run_packer("verify", "--deep", tmp_path / "out", env=lacks, expect=2 if format == "tfrecord" else 0)
    assert "problem" not in checked.stderr


def test_help_names_every_command_and_option() -> None:
    text = run_packer("--help").stdout
    assert all(re.search(rf"^ +{name}\s", text, re.MULTILINE) for name in COMMANDS)
    text = run_packer("build", "--help").stdout
    for name in (
        "size",
        "every",
        "shard-size",
        "max-rejects",
        "item-timeout",
        "overwrite",
        "label-from",
        "workers",
        "encode",
        "quality",
        "dry-run",
        "config",
        "json",
        "on-error",
        "limit",
        "shuffle",
        "margin",
        "preset",
        "format",
    ):
        assert f"--{name}" in text, name
    assert "usage: packer build" in text


def test_without_a_command_it_is_a_wrong_call() -> None:
    assert "packer: there is no option --debug" in run_packer("--debug", expect=2).stderr
    assert "there is no command 'pack'" in run_packer("pack", expect=2).stderr
    assert run_packer("--version").stdout.startswith("packer ")


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


def test_inspect_shows_what_is_there(mixed: Path, reference: Path) -> None:
    document = json.loads(run_packer("inspect", reference, "--json").stdout)
    manifest = Layout(reference).load()
    assert document["format"] == "lmdb"
    assert document["digest"] == manifest.digest
    assert document["items"] == document["packed_items"] == 99
    assert document["rejected_items"] == 0
    assert document["samples"] == manifest.samples == sum(shard["samples"] for shard in document["shards"])
    assert {field["name"] for field in document["fields"]} == set(manifest.schema.names)
    text = run_packer("inspect", reference).stdout
    for part in (str(reference), manifest.digest, "99 packed + 0 rejected", "image: bytes", "2 classes: fake, real"):
        assert part in text
    assert document["problem"] == ""
    assert "problem" not in text


def test_inspect_names_the_first_file_that_is_missing(reference: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(reference, copied)
    for name in ("items.jsonl", f"{Layout(copied).load().shards[-1].name}.lmdb"):
        (copied / name).unlink()
        problem = f"{copied / name}: expected a file of "
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


def test_a_source_of_nothing_is_named_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for how in ((), ("--dry-run",)):
        error = run_packer("build", "source", tmp_path / "out", *how, cwd=tmp_path, expect=2).stderr
        assert error == (
            "packer build: expected items to pack, found none (looked for images and videos, known by suffixes such as "
            ".jpg, .png and .mp4, in source and below)\n"
        )
    write_tar(tmp_path / "a.tar", [])
    error = run_packer("build", tmp_path / "a.tar", tmp_path / "out", expect=2).stderr
    assert f"found none (looked for images and videos in {tmp_path / 'a.tar'})" in error
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text("path\n")
        error = run_packer("build", tmp_path / f"{number}.csv", tmp_path / "out", expect=2).stderr
        assert f"{number}.csv: expected a row for each image or video" in error
    error = run_packer("build", tmp_path / "*.tgz", tmp_path / "out", expect=2).stderr
    assert f"{str(tmp_path / '*.tgz')!r}: expected the names of archives (" in error
    assert error.endswith("found nothing\n")
    assert not (tmp_path / "out").exists()


def write_config(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_config_holds_any_option_and_the_command_line_goes_before_it(source: Path, tmp_path: Path) -> None:
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
        ("sise = 3", "recipe.toml: unknown option 'sise': expected one of preset, format"),
        ("worker = 3", "recipe.toml: unknown option 'worker': "),
        ("worker = 3", "; did you mean 'workers'?"),
        ("sise = 3", "; did you mean 'size'?"),
        ("encode = 'jpg'", "encode: expected one of jpeg, png, webp, raw, found 'jpg'; did you mean 'jpeg'?"),
        ("size = 'big'", "size: expected an integer, found 'big'"),
        ("[section]\nsize = 3", "unknown option 'section'"),
        ("size = ", "expected TOML, found a syntax error: Invalid value (at end of document)"),
        ("overwrite = 'no'", "overwrite: expected true or false, found 'no'"),
        ("workers = 0", "workers: expected 'auto' or a number from 1 to 100,000, found 0"),
        ("steps = 3", "steps: expected a list of names, found 3"),
        ("json = true", "unknown option 'json'"),
    ],
)
def test_a_wrong_config_is_a_wrong_call(source: Path, tmp_path: Path, text: str, reported: str) -> None:
    done = run_packer("build", source, tmp_path / "out", "--config", write_config(tmp_path, text), expect=2)
    assert reported in done.stderr
    assert not (tmp_path / "out").exists()


OPENVINO_ON_GPU = "packer build: --detector: openvino runs on the CPU only, found device cuda: take --detector torch\n"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--config", "missing.toml"], "missing.toml: expected a recipe file, found: No such file"),
        (["--size", "0"], "--size: expected 1 or more, found 0"),
        (["--size", "x"], "argument --size: expected an integer, found 'x'"),
        (["--siz", "3"], "packer build: there is no option --siz; did you mean --size?\n"),
        (["--sise=3"], "packer build: there is no option --sise; did you mean --size?\n"),
        (["--wholly-unlike"], "packer build: there is no option --wholly-unlike (packer build --help)\n"),
        (["more", "--quiet"], "packer build: expected no further arguments, found 'more' (packer build --help)\n"),
        (["--shard-size", "many"], "--shard-size: expected a size such as 256MB"),
        (["--max-rejects", "lots"], "--max-rejects: expected a share"),
        (["--max-rejects", "1"], "write 1% or 100%"),
        (["--workers", "0"], "workers: expected 'auto' or a number"),
        (["--item-timeout", "-1"], "--item-timeout: expected more than 0"),
        (["--fps", "inf"], "fps: expected a finite number"),
        (["--every", "2", "--fps", "3"], "expected at most one of every, fps"),
        (["--format", "zip"], f"argument --format: expected one of {', '.join(sorted(FORMATS))}, found 'zip'"),
        (["--format", "parket"], "found 'parket'; did you mean 'parquet'? (packer build --help)\n"),
        (["--steps", "decode,resise"], "; did you mean 'resize'?"),
        (["--label-from", "column"], "--label-from: expected 'folder' or 'none' for a folder"),
        (["--path-column", "file"], "--path-column: applies only to tables, found a folder"),
        (["--resize", "exact"], "resize: read only with size, found no size"),
        (["--steps", "decode,nosuch"], "unknown step 'nosuch': expected module:function or one of decode"),
        (["--steps", "decode,nosuch:f"], "there is no module 'nosuch'"),
        *(
            (["--preset", "faces", "--device", "cuda", "--detector", "openvino", *more], OPENVINO_ON_GPU)
            for more in ([], ["--dry-run"])
        ),
    ],
)
def test_a_wrong_call_is_reported_and_leaves_nothing(
    source: Path, tmp_path: Path, arguments: list[str], reported: str
) -> None:
    done = run_packer("build", source, tmp_path / "out", *arguments, expect=2, cwd=tmp_path)
    assert reported in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["verify", "--depe"], "packer verify: there is no option --depe; did you mean --deep?\n"),
        (["split", "a", "b", "--by", "source", "--ratio", "train=1"], "did you mean --ratios?\n"),
        (
            ["biuld", "a", "b"],
            "split, add, drop-field, export, bench, doctor; did you mean 'build'? (packer --help)\n",
        ),
        (["merge", "a", "--fomat", "npy"], "packer merge: there is no option --fomat; did you mean --format?\n"),
        (
            ["convert", "a"],
            "packer convert: the following arguments are required: OUT, --format (packer convert --help)\n",
        ),
        (["--versoin"], "packer: there is no option --versoin; did you mean --version?\n"),
    ],
)
def test_a_misspelt_word_is_reported_in_one_line(words: list[str], reported: str) -> None:
    done = run_packer(words[0], *words[1:], expect=2)
    assert reported in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


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
def test_a_path_that_no_system_takes_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    reported = capsys.readouterr().err
    assert reported.startswith(f"packer {words[0]}: xxx")
    assert reported.endswith(": File name too long\n")
    assert len(reported) < 500


def test_a_source_that_is_not_there_is_a_wrong_call(tmp_path: Path) -> None:
    done = run_packer("build", tmp_path / "nowhere", tmp_path / "out", expect=2)
    assert f"{tmp_path}/nowhere: expected a folder, a table or an archive, found nothing of that name" in done.stderr


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("inspect", []),
        ("verify", []),
        ("preview", ["-o", "sheet.png"]),
        ("convert", ["out", "--format", "npy"]),
        ("merge", ["other", "out"]),
        ("split", ["out", "--by", "source"]),
        ("export", ["out"]),
        ("bench", ["packed"]),
    ],
)
def test_a_dataset_that_is_not_there_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([name, "nowhere", *more]) == 2
    dataset = "packed" if name == "bench" else "nowhere"
    assert capsys.readouterr().err == (
        f"packer {name}: {dataset}: expected a packed dataset with a manifest.json, found no such folder\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_folder_should_be_is_a_wrong_call(source: Path, reference: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    reported = f"{tmp_path}/out: expected a new or empty folder, found a file: choose another folder"
    for more in ((), ("--dry-run",)):
        assert reported in run_packer("build", source, tmp_path / "out", *more, expect=2).stderr
    assert reported in run_packer("export", reference, tmp_path / "out", expect=2).stderr
    assert (tmp_path / "out").read_text() == "mine"


def test_a_url_is_not_the_name_of_a_folder(source: Path, reference: Path, tmp_path: Path) -> None:
    for words in (
        ("build", source, "s3://bucket/out"),
        ("build", "https://host/images", "out"),
        ("convert", reference, "gs://bucket/out", "--format", "npy"),
        ("inspect", "hf://datasets/faces"),
    ):
        refused = run_packer(*words, cwd=tmp_path, expect=2).stderr
        assert (
            f": expected a path on this machine, found the URL '{next(w for w in words if '://' in str(w))}'" in refused
        )
    assert [path.name for path in tmp_path.iterdir() if path != source] == []


def test_a_variable_that_is_not_set_is_not_the_current_folder(source: Path, reference: Path, tmp_path: Path) -> None:
    before = sorted(source.iterdir())
    refused = run_packer("build", "", tmp_path / "out", cwd=source, expect=2)
    assert "SOURCE: expected a folder, a table or an archive, found an empty text" in refused.stderr
    for words in (
        ("build", reference, ""),
        ("submit", reference, ""),
        ("convert", reference, "", "--format", "npy"),
        ("merge", reference, reference, ""),
        ("split", reference, "", "--by", "source"),
        ("export", reference, ""),
    ):
        refused = run_packer(*words, cwd=source, expect=2)
        assert ": expected a path, found an empty text" in refused.stderr
    for words in (("add", "", tmp_path / "t.csv", "--on", "key"), ("drop-field", "", "label")):
        refused = run_packer(*words, cwd=reference, expect=2)
        assert "DATASET: expected a path, found an empty text" in refused.stderr
    for words in (
        ("inspect", ""),
        ("inspect", ".", "", "--by", "source"),
        ("verify", ""),
        ("status", ""),
        ("rejects", ""),
        ("report", "", "-o", tmp_path / "report.html"),
        ("view", ""),
        ("preview", "", "-o", tmp_path / "sheet.png"),
        ("bench", source, ""),
        ("convert", "", tmp_path / "out", "--format", "npy"),
        ("merge", ".", "", tmp_path / "out"),
        ("split", "", tmp_path / "out", "--by", "source"),
        ("export", "", tmp_path / "out"),
        ("list", "imagefolder", ""),
    ):
        assert ": expected a path, found an empty text" in run_packer(*words, cwd=reference, expect=2).stderr
    with raises(UsageError, option="path", found="an empty text; '.' is the current folder"):
        open_dataset("")
    for command in ("build", "submit"):
        refused = run_packer(command, source, tmp_path / "out", "--config", "", expect=2)
        assert "--config: expected the path of a recipe file, found an empty text" in refused.stderr
    assert sorted(source.iterdir()) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["link", "link/out"])
def test_a_link_to_nothing_where_the_folder_should_be_is_named(
    source: Path, reference: Path, tmp_path: Path, where: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    out, above = tmp_path / where, "" if where == "link" else f" at {tmp_path}/link, above it,"
    found = f"found a link{above} that leads to no folder ({tmp_path}/elsewhere)"
    reported = f"{out}: expected a new or empty folder, {found}"
    assert reported in run_packer("build", source, out, expect=2).stderr
    assert reported in run_packer("export", reference, out, expect=2).stderr
    assert not (tmp_path / "elsewhere").exists()


def test_folders_that_a_path_only_passes_through_are_not_made(source: Path, reference: Path, tmp_path: Path) -> None:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "deep")
    (tmp_path / "file").touch()
    run_packer("build", source, "./-x/../-x a/b", "--quiet", cwd=tmp_path)
    run_packer("export", reference, "link/new/../../c", cwd=tmp_path)  # up from where the link leads to
    run_packer("split", reference, "link/../d/e/..", "--folds", "2", "--engine", "inline", "--quiet", cwd=tmp_path)
    refused = run_packer("build", source, "file/../f", "--quiet", cwd=tmp_path, expect=2).stderr
    assert f"found a file at {tmp_path}/file, above it" in refused
    assert sorted(path.name for path in tmp_path.iterdir() if path != source) == ["-x a", "file", "link", "there"]
    assert Layout(tmp_path / "-x a" / "b").manifest.exists()
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["c", "d", "deep"]
    assert sorted(path.name for path in (tmp_path / "there" / "d").iterdir()) == ["fold-0", "fold-1"]
    assert not list((tmp_path / "there" / "deep").iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "packer", "build", "--debug", tmp_path / "nowhere", tmp_path / "out"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" in done.stderr
    assert "UsageError" in done.stderr


def test_too_many_rejects_are_status_3_and_the_dataset_is_there(source: Path, tmp_path: Path) -> None:
    (source / "bad.png").write_bytes(b"x")
    done = run_packer("build", source, tmp_path / "out", "--json", expect=3)
    assert json.loads(done.stdout)["rejected_items"] == 1
    assert "packed, but 1 of 4 items (25.0%) were rejected, more than 5.0%" in done.stderr
    check_whole(tmp_path / "out")
    again = run_packer("build", source, tmp_path / "out", expect=3)
    assert "finished already, nothing was done: 3 samples" in again.stdout
    run_packer("build", source, tmp_path / "out", "--max-rejects", "25%")


@pytest.mark.parametrize("sign", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["argparse", "packer.cli.arguments", "numpy", "packer.builds.planning.listing"])
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
def test_a_build_needs_nobody_to_see_its_progress(source: Path, tmp_path: Path, redirections: str) -> None:
    command = arguments("build", source, tmp_path / "out", "--workers", 1)
    shell = ["sh", "-c", f'"$@" {redirections}', "sh", *command]
    assert subprocess.run(shell, env=environment(), capture_output=True, check=False).returncode == 0
    check_whole(tmp_path / "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_cannot_be_written_is_named(source: Path, tmp_path: Path, unbuffered: str) -> None:
    out, env = tmp_path / "out", environment(PYTHONUNBUFFERED=unbuffered)
    run_packer("build", source, out, "--quiet")
    lines: list[list[object]] = [["--help"], ["--version"], ["build", "--help"], ["build", source, out]]
    lines += [["build", source, tmp_path / "new", "--dry-run", "--quiet"], ["verify", out, "--quiet"]]
    lines += [["inspect", out], ["inspect", out, out, "--json"], ["inspect", out, "--history"], ["status", out]]
    lines += [["convert", out, tmp_path / "npy", "--format", "npy", "--quiet"], ["rejects", out, "--json", "--quiet"]]
    for line in lines:
        command = arguments(str(line[0]), *line[1:])
        with open("/dev/full", "w") as full:  # noqa: PTH123 -- a device
            done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        name = "packer" if str(line[0]).startswith("-") else f"packer {line[0]}"
        reason = "standard output cannot be written: No space left on device"
        assert (done.returncode, done.stderr) == (1, f"{name}: {reason}\n"), line
    check_whole(tmp_path / "npy")


@pytest.mark.parametrize("words", [["--help"], ["inspect"]])
def test_a_reader_that_has_gone_is_no_error(source: Path, tmp_path: Path, words: list[str]) -> None:
    run_packer("build", source, tmp_path / "out", "--quiet")
    read, write = os.pipe()
    os.close(read)
    command = arguments(*words, *([tmp_path / "out"] if words == ["inspect"] else []))
    done = subprocess.run(command, env=environment(), stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_current_folder_that_was_deleted_matters_to_none(source: Path, tmp_path: Path) -> None:
    run_packer("build", source, tmp_path / "out")
    (tmp_path / "gone").mkdir()
    script = f'cd {shlex.quote(str(tmp_path / "gone"))} && rmdir ../gone && exec "$@"'
    shell = ["sh", "-c", script, "sh", *arguments("inspect", tmp_path / "out")]
    done = subprocess.run(shell, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 samples" in done.stdout


def test_a_table_is_packed_with_its_columns(source: Path, tmp_path: Path) -> None:
    (source / "table.csv").write_text("path,Kind,Age in years\na.png,cat,3\nb.png,dog,\nmissing.png,cat,4\nc.png,,5\n")
    arguments = ("--label-from", "Kind", "--max-rejects", "50%", "--limit", 4)
    run_packer("build", source / "table.csv", tmp_path / "out", *arguments)
    manifest = check_whole(tmp_path / "out")
    assert manifest.schema["label"].classes == ("cat", "dog")
    found = [
        (s["source"], int(s["label"]), int(s["age_in_years"]), bool(s["age_in_years_valid"]))
        for s in read_samples(tmp_path / "out")
    ]
    assert found == [("a.png", 0, 3, True), ("b.png", 1, 0, False)]
    assert manifest.generations[0].counts.rejected_items == 2


def test_folders_with_odd_names(source: Path, tmp_path: Path) -> None:
    odd = tmp_path / "söurce 'with'\nall"
    shutil.copytree(source, odd, copy_function=shutil.copy2)
    raw = tmp_path / os.fsdecode(b"out \xff")
    for out in (tmp_path / "öut 'x' \"y\"", raw):
        done = run_packer("build", odd, out)
        assert f"{out}: 3 samples" in done.stdout
        check_whole(out)
        assert json.loads(run_packer("inspect", out, "--json").stdout)["samples"] == 3
    assert fingerprints(raw) == fingerprints(tmp_path / "öut 'x' \"y\"")


def test_the_same_suffix_in_any_case(tmp_path: Path) -> None:
    write_image(tmp_path / "source" / "A.JpG", scene(0, (20, 16)), format="JPEG")
    write_video(tmp_path / "source" / "b.mp4", frames=3)
    (tmp_path / "source" / "b.mp4").rename(tmp_path / "source" / "B.MP4")
    document: dict[str, Any] = json.loads(run_packer("build", tmp_path / "source", tmp_path / "out", "--json").stdout)
    assert (document["items"], document["samples"]) == (2, 4)


def test_a_failed_build_shows_how_to_go_on(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    done = run_packer("build", source, tmp_path / "out", "--overwrite", expect=2)
    assert "found 'mine', which no build made: choose another folder" in done.stderr
    assert (tmp_path / "out" / "mine").read_text() == "x"
    done = run_packer("inspect", tmp_path / "out", expect=2)
    assert "expected a packed dataset with a manifest.json, found a folder without one" in done.stderr


def test_rows_that_name_one_file_are_reported(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png", "c.png"])
    table = tmp_path / "rows.csv"
    table.write_text("path,label\na.png,x\nb.png,x\na.png,y\na.png,x\n")
    done = run_packer("build", table, tmp_path / "out")
    reported = "1 file named by several rows, such as 'a.png' by 3: each row is packed"
    assert reported in done.stderr
    assert reported in run_packer("build", table, tmp_path / "dry", "--dry-run").stdout
    done = run_packer("build", table, tmp_path / "two", "--limit", 2)
    assert "several rows" not in done.stderr
    table.write_text("path,label\na.png,x\nb.png,x\n")
    done = run_packer("build", table, tmp_path / "single")
    assert "several rows" not in done.stderr


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


def test_a_wrong_value_is_named_by_its_option(source: Path, tmp_path: Path) -> None:
    out, sheet, table = tmp_path / "out", ("--out", tmp_path / "s.png"), tmp_path / "table.csv"
    table.write_text("key,score\na,1\n")
    run_packer("build", source, out, "--quiet")
    lines: dict[str, tuple[object, ...]] = {
        "--align-as: read only by": ("build", source, tmp_path / "x", "--align-as", "arcface"),
        "--size: expected 1 or more, found 0; --quality: expected 100": (
            *("build", source, tmp_path / "x", "--size", 0, "--quality", 200),
        ),
        "--fps: expected at most one of": ("build", source, tmp_path / "x", "--every", 2, "--fps", 3),
        "--sidecars: expected .txt": ("build", source, tmp_path / "x", "--sidecars"),
        "--min-face: expected 20": ("detect", source, tmp_path / "x", "--min-face", 3),
        "--engine: agents work": ("submit", source, tmp_path / "x", "--engine", "inline"),
        "--time-limit: expected": ("work", tmp_path / "x", "--time-limit", 0),
        "--folds: expected an integer": ("split", out, tmp_path / "x", "--by", "source", "--folds", 1),
        "--into: read only without --by": ("split", out, tmp_path / "x", "--by", "key", "--into", "source"),
        "--shard-size: expected a size": ("convert", out, tmp_path / "x", "--format", "npy", "--shard-size", "y"),
        "--shuffle: expected a seed": ("convert", out, tmp_path / "x", "--format", "npy", "--shuffle", -1),
        "--to: expected one of": ("export", out, tmp_path / "x", "--to", "y"),
        "--on: expected a field": ("add", out, table, "--on", "y"),
        "--workers: expected 'auto'": ("convert", out, tmp_path / "x", "--format", "npy", "--workers", 0),
        "--count: expected 1 or more, found 0": ("preview", out, *sheet, "--count", 0),
        "--seed: expected 0 or more, found -1": ("preview", out, *sheet, "--seed", -1),
        "--columns: expected 1 or more, found 0": ("preview", out, *sheet, "--columns", 0),
        "--source: read only with --rejects": ("preview", out, *sheet, "--source", source),
        "--masks: read only without --transform": (*("preview", out, *sheet, "--masks", "over", "--transform", "x:y"),),
        "--count: expected 0 or more": ("report", out, "--out", tmp_path / "r.html", "--count", -1),
        "--port: expected 0 to 65535": ("view", out, "--port", -1),
        "--seconds: expected more than 0": ("bench", source, out, "--seconds", 0),
        "--methods: imagefolder has no": ("list", "imagefolder", source, "--methods", "y"),
    }
    for message, line in lines.items():
        error = run_packer(str(line[0]), *line[1:], expect=2).stderr
        assert error.startswith(f"packer {line[0]}: {message}"), error
        assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_names_that_are_not_options_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    """A path that is called like an option, and a key of a recipe file."""
    for typed in ("text", "./text", "text/"):
        error = run_packer("build", typed, "out", cwd=tmp_path, expect=2).stderr
        assert error.startswith("packer build: text: expected a folder")
    for words in (("--out", "./out"), ("--out=out",)):
        error = run_packer("report", "data", *words, cwd=tmp_path, expect=2).stderr
        assert error.startswith("packer report: out: expected a name that ends in .html")
    (tmp_path / "recipe.toml").write_text("size = 0\n")
    line = ("build", source, "out", "--config", "recipe.toml", "--quality", 200)
    error = run_packer(*map(str, line), cwd=tmp_path, expect=2).stderr
    assert error == ("packer build: size: expected 1 or more, found 0; --quality: expected 100 or less, found 200\n")


def test_a_place_that_cannot_be_meant_is_an_error_with_what_it_is(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for line, message in (
        (["build", "source", "source"], f"{source}: expected a folder outside the source, found the source itself"),
        (
            ["build", "source", "source/out"],
            f"{source / 'out'}: expected a folder outside the source, found one inside",
        ),
        (["build", "", "out"], "SOURCE: expected a folder, a table or an archive, found an empty text; "),
        (["build", "source/a.png", "out"], "found a file .png: give the folder that holds it\n"),
        (["work", "file"], f"{tmp_path / 'file'}: expected a submitted build, found a file"),
    ):
        error = run_packer(*line, cwd=tmp_path, expect=2).stderr
        assert message in error
        assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


def test_a_file_to_write_where_none_may_be_is_an_error_at_once(source: Path, tmp_path: Path) -> None:
    run_packer("build", source, tmp_path / "out", "--quiet")
    for command, name in (("preview", "s.png"), ("report", "r.html"), ("rejects", "t.csv")):
        error = run_packer(command, tmp_path / "out", "--out", tmp_path / "none" / name, expect=2).stderr
        path = tmp_path / "none"
        expected = f"{path / name}: expected a file in an existing folder, found no folder {path}"
        assert error == f"packer {command}: {expected}\n"
        error = run_packer(command, "out", "--out", f"out/{name}", cwd=tmp_path, expect=2).stderr
        assert error == f"packer {command}: out/{name}: expected a file outside the dataset, found one in out\n"


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
