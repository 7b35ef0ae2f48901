"""The public names: listed, found on first use, documented, with the options of the command line and results of one shape."""

import ast
import dataclasses
import inspect
import json
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from support.builds import write_images

import packer
from packer.cli import main
from packer.jobs.result import Result

LAZY = ("packer", "packer.vision.detect", "readers", "readers.augment", "readers.lightning", "shardspec")


@pytest.mark.parametrize("package", LAZY)
def test_a_package_lists_its_names_for_people_and_for_type_checkers(package: str) -> None:
    module = import_module(package)
    typed, table = {}, {}
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "shardspec.registry"):
            typed |= {alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                assert isinstance(value, ast.Call)
                table[ast.literal_eval(key)] = ast.literal_eval(value.args[0])  # type: ignore[arg-type]
    assert table == typed
    assert sorted(module.__all__) == sorted(table)
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(table)
    for name, target in table.items():
        assert getattr(module, name) is getattr(import_module(target.split(":")[0]), name)


def test_the_options_of_jobs_are_those_of_the_build() -> None:
    defaults = packer.BuildOptions()
    for function in (packer.convert, packer.merge, packer.split):
        for name in ("workers", "engine", "overwrite"):
            assert inspect.signature(function).parameters[name].default == getattr(defaults, name)


def section(thing: Any, title: str) -> list[str]:
    """The names in a section of a docstring."""
    text = f"{inspect.cleandoc(thing.__doc__)}\n\n"
    found = re.search(rf"^{title}\n-+\n(.*?)\n(?:\n|(?=\w+\n---))", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^(\S.*?)(?: : .*)?$", found[1] if found else "", re.MULTILINE)
    return [name.strip("* ") for line in lines for name in line.split(",")]


@pytest.mark.parametrize("name", sorted(n for n in packer.__all__ if n.islower()))
def test_every_parameter_is_documented(name: str) -> None:
    function = getattr(packer, name)
    assert sorted(section(function, "Parameters")) == sorted(inspect.signature(function).parameters)
    returned = inspect.signature(function).return_annotation
    assert section(function, "Returns") == [" or ".join(kind.__name__ for kind in get_args(returned) or [returned])]
    assert section(function, "Raises")


@pytest.mark.parametrize("name", sorted(n for n in packer.__all__ if not n.islower()))
def test_every_attribute_is_documented(name: str) -> None:
    kind = getattr(packer, name)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        assert section(kind, "Attributes")[: len(kind.__annotations__)] == list(kind.__annotations__)


def check_shape(result: Any) -> dict[str, Any]:
    """The result's JSON."""
    assert isinstance(result, Result)
    assert type(result) is getattr(packer, type(result).__name__)
    assert re.fullmatch(rf"<{type(result).__name__} \S.*[^:]>", repr(result))
    assert result.describe()
    document: dict[str, Any] = json.loads(json.dumps(result.to_json()))
    return document


def test_every_function_takes_texts_and_its_result_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "in" / "x", ["a.jpg", "b.png", "c.png"])
    quiet: dict[str, Any] = {"progress": False}
    inline: dict[str, Any] = {**quiet, "engine": "inline"}

    def prints(result: Any, *words: str, status: int = 0, **other: Any) -> None:
        expected = {**check_shape(result), **other}
        assert main([*words, "--json", "--quiet"]) == status
        said = capsys.readouterr().out
        assert said == json.dumps(json.loads(said)) + "\n"
        assert list(json.loads(said).items()) == list(expected.items())
        assert main([*words, "--quiet"]) == status
        # The job is done by now, and what was made is called as it was given.
        text = capsys.readouterr().out.replace("finished already, nothing was done: ", "")
        assert text == f"{result.describe()}\n".replace(f"{tmp_path}{os.sep}", "")

    job = ("--engine", "inline")
    check_shape(packer.dry_run("in", "a", **quiet))
    built = packer.build("in", "a", label_from="folder", encode="raw", shard_size="1kB", **inline)
    same = ("--label-from", "folder", "--encode", "raw", "--shard-size", "1kB")
    prints(built, "build", "in", "a", *same, *job, out="a", found_finished=True)
    packer.build("in", "b", label_from="folder", encode="raw", **inline)
    converted = packer.convert("a", "c", format="npy", shard_size="1MB", **inline)
    assert len(converted.manifest.shards) == 1 < len(built.manifest.shards)
    prints(converted, "convert", "a", "c", "--format", "npy", "--shard-size", "1MB", *job, out="c", found_finished=True)
    merged = packer.merge(["a", "b"], "m", shard_size="1kB", **inline)
    prints(merged, "merge", "a", "b", "m", "--shard-size", "1kB", *job, out="m", found_finished=True)
    ratios = "one=0.5,two=0.5"
    halves = packer.split("a", "s/", by="source", ratios=ratios, shard_size="1kB", **inline)
    prints(halves, "split", "a", "s/", "--by", "source", "--ratios", ratios, "--shard-size", "1kB", *job)
    assert packer.split("a", "s/", by="source", ratios={"one": 50, "two": 50}, shard_size=1000, **inline).to_json() == (
        halves.to_json()
    )
    prints(packer.split("a", "i", into="label", **inline), "split", "a", "i", "--into", "label", *job)
    prints(packer.verify("a", deep=True, **quiet), "verify", "a", "--deep")
    prints(packer.inspect("a"), "inspect", "a")
    leaks = packer.find_leaks(["a", "b"], by="source", **quiet)
    assert [leak.samples for leak in leaks.found] == [{"a": 1, "b": 1}] * 3
    prints(leaks, "inspect", "a", "b", "--by", "source", status=1)
    assert packer.find_leaks(["s/one", "s/two"], by="source", **quiet).found == ()
    prints(packer.preview("a", "s.png", count=2, **quiet), "preview", "a", "-o", "s.png", "--count", "2")
    write_images(tmp_path / "known" / "train" / "x", ["a.jpg"])
    known = packer.list_dataset("imagefolder", "known", "t.csv", splits=["train"], **quiet)
    prints(known, "list", "imagefolder", "known", "-o", "t.csv", "--splits", "train")
    exported = packer.export("a", "plain", table="jsonl", **quiet)
    placed = {"out": "plain", "table": str(Path("plain", "table.jsonl"))}
    prints(exported, "export", "a", "plain", "--table", "jsonl", **placed, found_finished=True)
    short: dict[str, Any] = {"workers": 1, "batch_size": 1, "runs": 1, "seconds": 0.01, **quiet}
    assert check_shape(packer.bench("in", "a", **short))["same_source"] is True


def test_a_damaged_dataset_is_described_problem_by_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_images(tmp_path / "in", ["a.jpg"])
    made = packer.build(source, tmp_path / "a", format="npy", engine="inline", progress=False).manifest
    damaged = tmp_path / "a" / made.shards[0].files[0].name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    report = packer.verify(tmp_path / "a", progress=False)
    assert (report.ok, len(report.problems)) == (False, 1)
    assert repr(report) == f"<VerifyReport {tmp_path}/a: 1 problem>"
    assert main(["verify", str(tmp_path / "a"), "--quiet"]) == 1
    assert capsys.readouterr().err == f"packer verify: {report.describe()}\n"
