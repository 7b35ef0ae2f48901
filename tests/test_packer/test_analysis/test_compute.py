"""``packer compute``: columns that functions compute from the samples of a dataset."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import measured
from support.command import arguments, environment, run_packer
from support.datasets import face_schema, write_dataset
from support.errors import raises
from support.media import scene, write_image
from support.packed import fingerprints
from support.packed_files import face_columns, write_faces

import packer
from packer.analysis.compute import run
from readers import open_dataset
from shardspec.errors import BuildError, DatasetError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import BUILD_FOLDER, Layout

ROWS = 23
HERE: dict[str, Any] = {"workers": 0, "progress": False}
SMALL: dict[str, Any] = {"size": 16, "engine": "inline", "progress": False}
TESTS = Path(__file__).parents[2]


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """A dataset of `ROWS` faces; frame ``10 * row``, three sources in turn."""
    write_faces(tmp_path / "faces", ROWS, "npy")
    return tmp_path / "faces"


def images_of(root: Path) -> list[Any]:
    """The decoded images."""
    dataset = open_dataset(root)
    return [dataset[row]["image"] for row in range(len(dataset))]


def check_brightest(root: Path) -> None:
    """The values of `measured.brightest`."""
    dataset, images = open_dataset(root), images_of(root)
    assert dataset.column("brightest").tolist() == [image.max() for image in images]
    channels = [image.reshape(-1, 3).mean(0) for image in images]
    assert dataset.column("channels").dtype == np.float16
    np.testing.assert_allclose(dataset.column("channels"), channels, rtol=1e-3)


@pytest.mark.parametrize("format", FORMATS)
def test_a_function_is_computed_for_every_format(tmp_path: Path, format: str) -> None:
    write_faces(tmp_path / "faces", ROWS, format, codec="jpeg")
    packer.compute(tmp_path / "faces", "support.measured:brightest", **HERE)
    check_brightest(tmp_path / "faces")
    assert not packer.verify(tmp_path / "faces", deep=True, progress=False).problems


def test_worker_processes_compute_the_same(faces: Path) -> None:
    how = ("--batch-size", 5, "--workers", 2, "--json")
    result = run_packer("compute", faces, "support.measured:brightest", *how, python_path=TESTS)
    assert json.loads(result.stdout)["added"] == ["brightest", "channels"]
    check_brightest(faces)


def test_text_arrays_of_varying_length_and_missing_values(faces: Path) -> None:
    result = packer.compute(faces, measured.words, batch_size=4, progress=False)
    rows = np.arange(ROWS)
    assert result.missing == {"caption": len(rows[rows % 3 == 0]), "age": len(rows[rows % 2 == 0])}
    dataset = open_dataset(faces)
    keys = dataset.column("key")
    assert dataset.column("caption") == [None if row % 3 == 0 else f"ü {keys[row]}" for row in range(ROWS)]
    assert [one.shape for one in dataset.column("boxes")] == [(row % 3 + 1, 4) for row in range(ROWS)]
    assert dataset.column("age").filled(-1).tolist() == [-1 if row % 2 == 0 else 10 * row for row in range(ROWS)]


def test_computing_the_same_again_is_nothing_to_do(
    faces: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(measured.CALLS, str(tmp_path / "calls"))
    name = "support.measured:noted"
    packer.compute(faces, name, **HERE)
    before, calls = fingerprints(faces), (tmp_path / "calls").read_text()
    assert packer.compute(faces, name, **HERE).found_finished
    assert (tmp_path / "calls").read_text() == calls
    assert fingerprints(faces) == before
    with raises(UsageError, problem="the dataset has a field 'noted' already"):
        packer.compute(faces, f"{name},factor=2", **HERE)
    assert fingerprints(faces) == before
    assert packer.compute(faces, f"{name},factor=2", replace=True, **HERE).replaced == ("noted",)
    (column,) = Layout(faces).load().columns
    source = hashlib.sha256(Path(measured.__file__).read_bytes()).hexdigest()
    assert column.computed == {"function": name, "version": source, "options": {"factor": 2}, "columns": ["noted"]}
    assert f"computed by {name},factor=2" in run_packer("inspect", faces).stdout


def test_other_functions_of_a_call_are_computed_if_one_is_there(faces: Path) -> None:
    packer.compute(faces, "digest", **HERE)
    result = packer.compute(faces, ["digest", "quality"], **HERE)
    assert "digest" not in result.added
    assert "sharpness" in result.added


def test_a_killed_run_resumes_with_the_blocks_that_are_missing(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at its fourth batch, in the third block; the first two blocks are not computed again."""
    calls = tmp_path / "calls"
    command = "import packer; from packer.analysis.compute import run; run.BLOCK_ROWS = 6; " + (
        f"packer.compute({str(faces)!r}, 'support.measured:noted', workers=0, batch_size=4, progress=False)"
    )
    env = environment(python_path=TESTS, **{measured.CALLS: str(calls)})
    ran = subprocess.run([arguments("")[0], "-c", command], env={**env, "MEASURED_STOP": "4"}, check=False)
    assert ran.returncode == -signal.SIGKILL
    assert "noted" not in Layout(faces).load().schema
    monkeypatch.setattr(run, "BLOCK_ROWS", 6)
    monkeypatch.setenv(measured.CALLS, str(calls))
    calls.unlink()
    packer.compute(faces, "support.measured:noted", batch_size=4, **HERE)
    assert sum(map(int, calls.read_text().split())) == ROWS - 10
    whole = [float(image.mean()) for image in images_of(faces)]
    np.testing.assert_allclose(open_dataset(faces).column("noted"), whole, rtol=1e-5)
    assert not (faces / BUILD_FOLDER).exists()


def test_a_damaged_block_is_an_error(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BLOCK_ROWS", 6)
    with pytest.raises(DatasetError):
        packer.compute(faces, measured.raises_at_one, batch_size=2, progress=False)
    block = next((faces / BUILD_FOLDER).rglob("block-000000.npz"))
    data = bytearray(block.read_bytes())
    data[len(data) // 2] ^= 0xFF
    block.write_bytes(data)
    with pytest.raises(BuildError, match="delete it"):
        packer.compute(faces, measured.raises_at_one, batch_size=2, progress=False)


def test_the_first_batch_alone_may_lack_bools(faces: Path) -> None:
    def fourth(frame: Any) -> dict[str, Any]:
        return {"fourth": [None if number == 0 else number % 40 == 0 for number in frame.tolist()]}

    assert packer.compute(faces, fourth, batch_size=4, **HERE).missing == {"fourth": 1}
    expected = [None, *(row % 4 == 0 for row in range(1, ROWS))]
    assert open_dataset(faces).column("fourth").tolist() == expected


def test_functions_that_differ_in_what_they_hold_are_not_the_same(faces: Path) -> None:
    def times(factor: int) -> Any:
        return lambda frame: {"scaled": frame * factor}

    for factor in (2, 3):
        assert not packer.compute(faces, times(factor), replace=True, **HERE).found_finished
        assert open_dataset(faces).column("scaled").tolist() == [10 * row * factor for row in range(ROWS)]
    with pytest.raises(UsageError, match="already"):
        packer.compute(faces, times(4), **HERE)


def test_classes_are_made_with_their_options(faces: Path) -> None:
    packer.compute(faces, {"use": "support.measured:Embedder", "size": 6}, **HERE)
    assert open_dataset(faces).column("embedding").shape == (ROWS, 6)
    with raises(UsageError, expected="an option of it (size)"):
        packer.compute(faces, "support.measured:Embedder,sise=3", **HERE)


def test_one_value_for_a_group_is_the_mean_of_its_best_samples(faces: Path) -> None:
    packer.compute(faces, measured.OfSource, progress=False)
    last = {row % 3: 10 * row for row in range(ROWS)}
    expected = [last[row % 3] - 15 for row in range(ROWS)]
    assert open_dataset(faces).column("mean_frame").tolist() == expected


def test_a_table_is_written_beside_a_dataset_that_stays(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, table = fingerprints(faces), tmp_path / "words.parquet"
    faces.chmod(0o555)
    functions = ["support.measured:words", "support.measured:Embedder"]
    packer.compute(faces, functions, out=table, **HERE)
    monkeypatch.chdir(tmp_path)
    again = packer.compute(faces, functions, out="words.parquet", **HERE)
    assert again.found_finished
    assert again.describe().startswith("words.parquet: ")  # as it was given
    faces.chmod(0o755)
    assert fingerprints(faces) == before
    assert [path.name for path in tmp_path.iterdir() if "words" in path.name] == ["words.parquet"]
    assert pq.read_table(table)["caption"].to_pylist()[:2] == [None, f"ü {open_dataset(faces).column('key')[1]}"]
    copy = shutil.copytree(faces, tmp_path / "copy")
    packer.add(copy, table, allow_missing=True, progress=False)
    packer.compute(faces, functions, **HERE)
    for name in ("caption", "age", "embedding"):
        added, computed = open_dataset(copy).column(name), open_dataset(faces).column(name)
        np.testing.assert_array_equal(np.ma.filled(added, 0), np.ma.filled(computed, 0))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A dataset of three images in the folder ``in``."""
    for number in range(3):
        write_image(tmp_path / f"in/{number}.png", scene(number, (32, 32)))
    packer.build(tmp_path / "in", tmp_path / "an out", **SMALL)
    return tmp_path / "an out"


def test_an_update_drops_computed_columns_and_names_the_command(tmp_path: Path, out: Path) -> None:
    def half(image: Any) -> dict[str, Any]:
        means = image.float().mean((1, 2, 3)).numpy()
        return {"half": np.ma.MaskedArray(means, [True] + [False] * (len(means) - 1))}

    packer.compute(out, [half, "quality", "statistics"], workers=0, progress=False)
    (tmp_path / "in/0.png").unlink()
    result = packer.build(tmp_path / "in", out, update=True, gone="drop", **SMALL)
    assert sum(bool(column.computed) for column in Layout(out).load().columns) == 8  # two samples are left
    write_image(tmp_path / "in/3.png", scene(3, (32, 32)))
    result = packer.build(tmp_path / "in", out, update=True, **SMALL)
    assert Layout(out).load().columns == ()
    (line,) = (line for line in result.notes if "dropped" in line)
    command = shlex.split(line.partition("compute them again: ")[2])
    assert command[:3] == ["packer", "compute", str(out)]
    assert {"quality", "statistics"} <= set(command)
    run_packer("compute", str(out), "quality", "statistics")
    assert len(open_dataset(out).column("sharpness")) == 3


def test_the_commands_after_an_update_compute_the_same_columns(tmp_path: Path, out: Path) -> None:
    packer.duplicates(out, across="none", within=0.01, column="alike", progress=False, workers=0)
    packer.compute(out, "hash", workers=0, progress=False)
    before = {column.field: column.computed for column in Layout(out).load().columns}
    write_image(tmp_path / "in/3.png", scene(3, (32, 32)))
    (line,) = packer.build(tmp_path / "in", out, update=True, **SMALL).notes
    for command in line.partition("compute them again: ")[2].split("; "):
        run_packer(*shlex.split(command)[1:])
    assert {column.field: column.computed for column in Layout(out).load().columns} == before


def test_the_search_after_an_update_has_all_its_datasets(tmp_path: Path, out: Path) -> None:
    write_image(tmp_path / "others/0.png", scene(1, (32, 32)))
    write_image(tmp_path / "others/1.png", scene(7, (32, 32)))
    other = tmp_path / "another" / "dataset"
    packer.build(tmp_path / "others", other, **SMALL)
    assert packer.duplicates([out, other], column="alike", progress=False, workers=0).leaks
    before = {path: open_dataset(path).column("alike").tolist() for path in (out, other)}
    assert set(before[out]) & set(before[other])
    write_image(tmp_path / "in/3.png", scene(7, (32, 32)))
    (line,) = packer.build(tmp_path / "in", out, update=True, **SMALL).notes
    command = shlex.split(line.partition("compute them again: ")[2])
    assert command[1:] == ["duplicates", str(out), str(other), "--column", "alike"]
    run_packer(*command[1:], expect=3)
    numbers = {path: open_dataset(path).column("alike").tolist() for path in (out, other)}
    assert numbers[out][1] == numbers[other][0]
    assert numbers[out][3] == numbers[other][1]
    assert len({*numbers[out], *numbers[other]}) == 4


def test_all_columns_of_a_function_are_computed_again_after_one_was_dropped(faces: Path) -> None:
    packer.compute(faces, ["quality", "digest"], workers=0, progress=False)
    before = Layout(faces).load()
    packer.drop_field(faces, "contrast", progress=False)
    again = packer.compute(faces, ["quality", "digest"], workers=0, progress=False)
    assert again.added == ("contrast",)
    assert "digest" not in again.replaced
    assert Layout(faces).load() == before
    assert packer.compute(faces, ["quality", "digest"], workers=0, progress=False).found_finished


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        ("too_few", UsageError, ("column 'x'", "each of 2 samples", "found 1")),
        ("changes_type", UsageError, ("column 'x'", "<f4", "<f8")),
        ("more_later", UsageError, ("the columns x in every batch", "found x, y")),
        ("OfSource,frames=no", UsageError, ("frames", "an integer of 1 or more")),
        ("returns_nan", UsageError, ("column 'x'", "00000000-000001", "NaN")),
        ("raises_at_one", DatasetError, ("00000000-000001", "ValueError: no such thing")),
        ("no_dict", UsageError, ("a dict of columns", "Tensor")),
        ("image_again", UsageError, ("already", "'frame'")),
        ("unknown_field", UsageError, ("'mask'", "unknown_field")),
        ("nothing", UsageError, ("nothing",)),
    ],
)
def test_wrong_functions_are_one_line_and_change_nothing(
    faces: Path, function: str, error: Any, said: tuple[str, ...]
) -> None:
    before = Layout(faces).manifest.read_bytes()
    with pytest.raises(error) as caught:
        packer.compute(faces, f"support.measured:{function}", batch_size=2, **HERE)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in said), str(caught.value)
    assert Layout(faces).manifest.read_bytes() == before
    assert not list(faces.glob("columns"))


def test_an_error_in_a_worker_process_is_the_same_line(faces: Path) -> None:
    said = []
    for workers in (0, 1):
        with pytest.raises(DatasetError) as caught:
            packer.compute(faces, "support.measured:raises_at_one", workers=workers, progress=False)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_custom_error_keeps_its_message(faces: Path, workers: int) -> None:
    with raises(DatasetError, problem="no such thing"):
        packer.compute(faces, "support.measured:Spoilt", workers=workers, progress=False)


def test_a_function_that_prints_does_not_disturb_the_result(faces: Path) -> None:
    ran = run_packer("compute", faces, "support.measured:prints", "--json", "--workers", 1, python_path=TESTS)
    assert json.loads(ran.stdout)["added"] == ["printed"]


def test_a_device_that_is_not_there_is_an_error(faces: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with raises(UsageError, option="device"):
        packer.compute(faces, "support.measured:Embedder", device="cuda", progress=False)


def test_no_function_and_one_twice_are_errors(faces: Path) -> None:
    with raises(UsageError, option="functions"):
        packer.compute(faces, [], **HERE)
    with raises(UsageError, option="functions"):
        packer.compute(faces, ["hash", "hash"], **HERE)
    with raises(UsageError, option="workers"):
        packer.compute(faces, measured.brightest, workers=2, progress=False)
    for option in ("batch_size", "workers"):
        for wrong in ("x", -1, 2.5):
            with raises(UsageError, option=option):
                packer.compute(faces, "hash", **{**HERE, option: wrong})
    with raises(UsageError, option="dataset"):
        packer.compute("s3://bucket/faces", "hash", **HERE)


def test_a_dead_worker_is_replaced(faces: Path, tmp_path: Path) -> None:
    env = environment(python_path=TESTS, **{measured.CALLS: str(tmp_path / "calls"), "MEASURED_STOP": "2"})
    ran = run_packer("compute", faces, "support.measured:noted", "--batch-size", 4, "--workers", 1, env=env)
    assert "signal 9" in ran.stderr
    assert sum(map(int, (tmp_path / "calls").read_text().split())) == ROWS + 4
    whole = [float(image.mean()) for image in images_of(faces)]
    np.testing.assert_allclose(open_dataset(faces).column("noted"), whole, rtol=1e-5)


def test_a_function_that_kills_every_worker_is_an_error_that_says_how_to_resume(faces: Path) -> None:
    words = ("compute", faces, "support.measured:kills_itself", "--batch-size", 1, "--workers", 1, "--quiet")
    ran = run_packer(*words, python_path=TESTS, expect=1)
    assert "signal 9" in ran.stderr
    assert "to resume" in ran.stderr
    assert list((faces / BUILD_FOLDER).rglob("block-*.npz"))


def test_only_names_of_functions_go_to_other_hosts(faces: Path) -> None:
    pytest.importorskip("ray")
    with raises(UsageError, option="engine"):
        packer.compute(faces, measured.brightest, engine="ray", progress=False)
    assert not (faces / BUILD_FOLDER).exists()


def test_an_interrupt_keeps_finished_blocks(faces: Path, tmp_path: Path) -> None:
    """A function that interrupts its own process, as Ctrl-C does while it runs."""

    def interrupts(frame: Any) -> dict[str, Any]:
        if frame[0] == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return {"x": frame}

    with pytest.raises(KeyboardInterrupt):
        packer.compute(faces, interrupts, batch_size=4, progress=False)
    assert list((faces / BUILD_FOLDER).rglob("block-*.npz"))
    assert "x" not in Layout(faces).load().schema
    assert "repeat the command to resume" in packer.verify(faces, progress=False).describe()


def test_columns_of_an_empty_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path / "empty", "npy", face_schema(), face_columns(0))
    with raises(UsageError, found="an empty dataset"):
        packer.compute(tmp_path / "empty", "hash", **HERE)
