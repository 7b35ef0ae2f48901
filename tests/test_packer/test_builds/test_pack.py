"""`packer.pack`: a function over inputs, in worker processes, killed or not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import written
from support.builds import parts_of
from support.command import environment, file_of, read_jsonl
from support.media import scene, write_image
from support.packed import check_whole, encoded_values, fingerprints, read_samples
from support.processes import wait_for, workers_in
from support.steps import LOG, read_log

import packer
from packer import Image
from readers import open_dataset
from shardspec.errors import BuildError, ResumeMismatchError, TooManyRejectsError, UsageError

TESTS = Path(__file__).parents[2]


def pack(function: Any, inputs: Any, out: Path, **options: Any) -> Any:
    return packer.pack(function, inputs, out, **{"progress": False, "max_rejects": 1.0, **options})


def test_every_input_is_packed_or_rejected_with_the_reason(tmp_path: Path) -> None:
    result = pack("support.written:make", range(100), tmp_path / "out", engine="inline", shard_size=30_000)
    assert packer.verify(tmp_path / "out", deep=True, progress=False).problems == ()
    assert (result.counts.items, result.counts.packed_items, result.counts.rejected_items) == (100, 93, 7)
    items = read_jsonl(file_of(tmp_path / "out", "items.jsonl"))
    assert [item["samples"] for item in items if item["item"].endswith("9")] == [0] * 10
    assert {item["state"] for item in items if item["item"].endswith("9")} == {"packed"}
    rejects = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert [reject["item"] for reject in rejects] == ["8", "28", "38", "58", "68", "88", "98"]
    assert rejects[0]["step"] == "support.written:make"
    assert rejects[0]["reason"].startswith("RuntimeError: no sample of 8 (written.py, line ")
    schema = open_dataset(tmp_path / "out").schema
    assert schema["label"].classes == ("cat", "dog", "über")
    rows = read_samples(tmp_path / "out")
    assert [row["key"] for row in rows[:3]] == ["00000000-000000", "00000001-000000", "00000001-000001"]
    assert [row["source"] for row in rows[:3]] == ["0", "1", "1"]
    assert encoded_values(tmp_path / "out", "image")["00000001-000000"] == written.jpeg(1)
    again = pack(written.make, range(100), tmp_path / "out", shard_size=30_000)
    assert again.found_finished


def test_declared_fields(tmp_path: Path) -> None:
    fields = {"image": Image("png"), "name": str}
    paths = [write_image(tmp_path / "in" / f"{n}.jpg", scene(n, (20, 16))) for n in range(3)]
    pack(written.name_of_file, paths, tmp_path / "out", fields=fields, workers=1)
    found = open_dataset(tmp_path / "out")
    assert found.schema["image"].codec.name == "png"
    assert [row["name"] for row in read_samples(tmp_path / "out")] == ["0.jpg", "1.jpg", "2.jpg"]
    assert [row["source"] for row in read_samples(tmp_path / "out")] == [str(path) for path in paths]
    check_whole(tmp_path / "out")
    begun = {"on_error": "fail", "engine": "inline"}
    with pytest.raises(BuildError):
        pack(written.misfit, [0], tmp_path / "begun", fields={"x": int, "name": str}, **begun)
    with pytest.raises(ResumeMismatchError, match="declared field name: was"):
        pack(written.misfit, [0], tmp_path / "begun", fields={"x": int, "name": bytes}, **begun)


def test_what_cannot_be_a_sample_is_a_reject(tmp_path: Path) -> None:
    result = pack(written.misfit, range(11), tmp_path / "out", engine="inline")
    reasons = {reject["item"]: reject["reason"] for reject in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    assert result.counts.packed_items == 2
    expected = {
        "1": "expected a dict, dicts, or None from the function, found int",
        "2": "expected a dict, dicts, or None from the function, found str",
        "3": "expected samples as dicts from the function, found int",
        "4": "field 'x': expected a value, found None: declare a field whose value may be missing, int | None",
        "5": "field 'x': expected numbers, texts, bytes, JSON, or arrays of",
        "6": "sample: expected names of lower-case letters, digits and underscores, a letter first, found 'X'",
        "7": "field 'key': expected samples without it, since it is made from the input's number",
        "8": "expected the same fields as in most items, found others: field 'x' is missing",
        "9": "expected the same fields as in most items, found others: field 'x': expected array <i8",
    }
    assert reasons.keys() == expected.keys()
    for item, reason in expected.items():
        assert reasons[item].startswith(reason), reasons[item]
    declared = pack(written.misfit, range(11), tmp_path / "declared", engine="inline", fields={"x": int | None})
    assert declared.counts.packed_items == 3
    reasons = {
        reject["item"]: reject["reason"] for reject in read_jsonl(file_of(tmp_path / "declared", "rejects.jsonl"))
    }
    assert reasons["8"].startswith("expected 'x', found none; found 'y', which is no field")
    with pytest.raises(TooManyRejectsError):
        pack(written.misfit, range(11), tmp_path / "few", engine="inline", max_rejects=0.05)
    with pytest.raises(BuildError, match="item '1' gave no sample, and --on-error is fail"):
        pack(written.misfit, range(11), tmp_path / "first", engine="inline", on_error="fail")
    with pytest.raises(TooManyRejectsError, match="items yielded a sample"):
        pack(written.misfit, [1, 2], tmp_path / "none", engine="inline")


def test_inputs_arrive_as_they_were_given(tmp_path: Path) -> None:
    inputs = [
        3,
        0.5,
        float("inf"),
        "a/b.jpg",
        Path("c.jpg"),
        (1, "x"),
        [1, (2,)],
        {"a": Path("d"), "b": None},
        True,
        "",
    ]
    pack(written.describe, inputs, tmp_path / "out", workers=1)
    rows = read_samples(tmp_path / "out")
    assert [row["text"] for row in rows] == [repr(given) for given in inputs]
    names = [row["source"] for row in rows]
    assert names == ["3", "0.5", "inf", "a/b.jpg", "c.jpg", *(f"input-{n:08d}" for n in range(5, 10))]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("abc", "inputs: expected a list or another iterable of inputs, found 'abc'"),
        (5, "inputs: expected a list"),
        ([object()], "strings, paths, numbers, and lists, tuples and dicts of them, found <object"),
        ([1, {2: 3}], "found {2: 3} (dict) in input 1 (counted from 0): pass a path or a number"),
        ([], "expected items to pack, found none"),
    ],
)
def test_wrong_inputs(tmp_path: Path, inputs: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        pack(written.describe, inputs, tmp_path / "out")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_functions_that_do_not_travel(tmp_path: Path) -> None:
    def inside(number: int) -> dict[str, Any]:
        return {"x": number}

    for function, found in (
        (lambda number: {"x": number}, "found a lambda"),
        (inside, "which is defined inside another function or class"),
        (written.sample.__call__, "has no name|defined inside"),
        (5, "found int, which has no name"),
    ):
        with pytest.raises(
            UsageError, match=f"function: expected a function that worker processes can import.*{found}"
        ):
            pack(function, [1], tmp_path / "out")
    for name, message in (("nowhere:make", "there is no module 'nowhere'"), ("support.written:none", "no attribute")):
        with pytest.raises(UsageError, match=message):
            pack(name, [1], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    pack(inside, [1, 2], tmp_path / "out", engine="inline")
    assert [row["x"] for row in read_samples(tmp_path / "out")] == [1, 2]


SCRIPT = """
import sys
import packer
def make(number):
    return {{"x": number}}
{guard}    print(packer.pack(make, range(40), "out", workers=2, progress=False).found_finished)
"""


def run_script(folder: Path, guard: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "my_script.py").write_text(SCRIPT.format(guard=guard), "utf-8")
    command = [sys.executable, *(arguments or ("my_script.py",))]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_a_function_of_the_script_itself(tmp_path: Path) -> None:
    guard = 'if __name__ == "__main__":\n'
    assert run_script(tmp_path, guard).stdout == "False\n"
    assert run_script(tmp_path, guard, "-m", "my_script").stdout == "True\n"  # the same module under the same name
    assert [row["x"] for row in read_samples(tmp_path / "out")] == list(range(40))


def test_a_script_without_a_guard_is_one_clear_error(tmp_path: Path) -> None:
    done = run_script(tmp_path, "if True:\n")
    assert done.returncode == 1
    assert 'put the call under if __name__ == "__main__":' in done.stderr.splitlines()[-1]
    done = run_script(tmp_path, "if True:\n", "-c", "exec(open('my_script.py').read())")
    assert "which is not in a file" in done.stderr.splitlines()[-1]


def test_another_function_is_another_plan(tmp_path: Path) -> None:
    (tmp_path / "my_function.py").write_text("def make(n):\n    assert n != 3\n    return {'x': n}\n", "utf-8")
    call = "import packer; packer.pack('my_function:make', range(5), 'out', workers=1, on_error='fail', progress=False)"

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", call],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stderr

    assert "item '3' gave no sample" in run()
    (tmp_path / "my_function.py").write_text("def make(n):\n    return {'x': n}\n", "utf-8")
    assert "runtime file of step my_function:make: was" in run()


def test_more_inputs_are_another_plan_and_no_update_is_offered(tmp_path: Path) -> None:
    pack(written.describe, range(5), tmp_path / "out", engine="inline")
    with pytest.raises(UsageError, match=r"source: '5' new\): choose another folder, or --overwrite\Z"):
        pack(written.describe, range(6), tmp_path / "out", engine="inline")


def test_an_input_that_brings_down_its_worker_is_a_reject(tmp_path: Path) -> None:
    result = pack(written.kill_itself, range(10), tmp_path / "out", workers=2)
    assert (result.counts.packed_items, result.counts.rejected_items) == (9, 1)
    assert "brought down a worker" in file_of(tmp_path / "out", "rejects.jsonl").read_text("utf-8")


CALL = """
import sys
import packer
from support.written import make_and_log
packer.pack(make_and_log, range(400), sys.argv[1], workers=2, shard_size=30_000, progress=False)
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    """The same bytes as of a call that nobody killed, and nothing that was finished is done again."""
    env = environment(python_path=[TESTS], **{LOG: str(tmp_path / "log")})
    command = [sys.executable, "-c", CALL, str(tmp_path / "out")]
    with subprocess.Popen(command, env=env) as call:
        wait_for("the first parts", lambda: len(parts_of(tmp_path / "out")) > 1)
        call.send_signal(signal.SIGKILL)
        call.wait(60)
    wait_for("the end of the workers", lambda: not workers_in(tmp_path / "out"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    finished = 32 * len(parts_of(tmp_path / "out"))
    before = len(read_log(tmp_path / "log"))
    subprocess.run(command, env=env, check=True, timeout=120)
    assert len(read_log(tmp_path / "log")) - before == 400 - finished
    os.environ[LOG] = str(tmp_path / "log")
    try:
        pack(written.make_and_log, range(400), tmp_path / "whole", engine="inline", shard_size=30_000)
    finally:
        del os.environ[LOG]
    assert fingerprints(tmp_path / "out") == fingerprints(tmp_path / "whole")
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["wall_clock"]["sessions"] == 2


def test_classes_that_only_a_run_shows_are_no_difference_between_plans(tmp_path: Path) -> None:
    pack(_name_parity, range(4), tmp_path / "out", engine="inline", progress=False)
    with pytest.raises(UsageError, match="now 50") as error:
        pack(_name_parity, range(4), tmp_path / "out", engine="inline", progress=False, quality=50)
    assert "classes of" not in str(error.value)


def _name_parity(number: int) -> dict[str, Any]:
    return {"label": ("even", "odd")[number % 2], "image": np.full((4, 4, 3), number, np.uint8)}
