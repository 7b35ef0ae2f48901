"""`packer.Writer`: samples of a loop of one's own, whatever goes wrong in it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import environment, run_packer
from support.datasets import assert_equal
from support.errors import raises
from support.fuzz import SEED
from support.listeners import Listener
from support.media import scene, write_image
from support.packed import encoded_values, fingerprints, read_samples
from support.processes import wait_for
from support.written import jpeg, sample

import packer
from packer import Array, Image, Writer
from packer.builds.writing import writer as writer_module
from packer.builds.writing.writer import FIRST_SAMPLES
from readers import open_dataset
from shardspec.errors import (
    BuildError,
    BuildLockedError,
    ResumeMismatchError,
    SchemaError,
    UsageError,
)
from shardspec.formats import FORMATS
from shardspec.layout import Layout

TESTS = Path(__file__).parents[2]
DECLARED = {
    "image": Image("jpeg", quality=85),
    "label": str,
    "embedding": Array("f4", (4,)),
    "points": Array("i2", (None, 2)),
    "ids": Array("i8", (None,)),
    "count": int,
    "share": float,
    "good": bool,
    "note": str,
    "facts": dict,
    "blob": bytes,
}


def write(out: Path, samples: list[dict[str, Any]], **options: Any) -> Writer:
    with Writer(out, progress=False, **options) as writer:
        for one in samples:
            writer.write(**one)
    return writer


def problems(out: Path) -> tuple[str, ...]:
    return packer.verify(out, deep=True, progress=False).problems


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("fields", [None, DECLARED], ids=["inferred", "declared"])
def test_every_kind_of_value_comes_back(tmp_path: Path, format: str, fields: Any) -> None:
    samples = [sample(number) for number in range(120)]
    keyed = [{"key": f"key {number:03d}", **one} for number, one in enumerate(samples)]
    options = (
        {"format": format, "fields": fields, "quality": 85} if fields is None else {"format": format, "fields": fields}
    )
    written = write(tmp_path / "out", keyed, shard_size="40kB", **options)
    assert problems(tmp_path / "out") == ()
    found = open_dataset(tmp_path / "out")
    assert written.result is not None
    assert len(found) == written.result.manifest.samples == 120
    assert len(written.result.manifest.shards) > 1
    assert found.schema["label"].classes == ("cat", "dog", "über")
    kinds = {field.name: (field.kind, field.dtype, field.shape, field.codec.name) for field in found.schema}
    assert kinds == {
        "key": ("text", "|u1", (None,), "utf8"),
        "label": ("fixed", "<i8", (), "raw"),
        "image": ("bytes", "|u1", (18, 24, 3), "jpeg"),
        "blob": ("bytes", "|u1", (None,), "raw"),
        "count": ("fixed", "<i8", (), "raw"),
        "embedding": ("fixed", "<f4", (4,), "raw"),
        "facts": ("text", "|u1", (None,), "json"),
        "good": ("fixed", "|b1", (), "raw"),
        "ids": ("ragged", "<i8", (None,), "raw"),
        "note": ("text", "|u1", (None,), "utf8"),
        "points": ("ragged", "<i2", (None, 2), "raw"),
        "share": ("fixed", "<f8", (), "raw"),
    }
    for number, (expected, row) in enumerate(zip(keyed, read_samples(tmp_path / "out"), strict=True)):
        for name in ("key", "count", "share", "good", "note", "facts", "blob"):
            assert row[name] == expected[name], (number, name)
        assert ("cat", "dog", "über")[row["label"]] == expected["label"]
        assert_equal(row["embedding"], expected["embedding"])
        assert_equal(row["points"], expected["points"])
        assert row["ids"].tolist() == expected["ids"]
    kept = encoded_values(tmp_path / "out", "image")
    assert all(kept[f"key {number:03d}"] == samples[number]["image"] for number in range(1, 120, 2))


def test_the_same_samples_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset depends neither on the parts that a writer cuts, nor on whether its fields were declared."""
    samples = [sample(number) for number in range(150)]
    write(tmp_path / "a", samples, quality=85, shuffle=3, shard_size=20_000)
    monkeypatch.setattr(writer_module, "PART_ROWS", 7)
    write(tmp_path / "b", samples, quality=85, shuffle=3, shard_size=20_000)
    write(tmp_path / "c", samples, fields=DECLARED, shuffle=3, shard_size=20_000)
    write(tmp_path / "d", samples, quality=85, shuffle=4, shard_size=20_000)
    shards = [
        {name: digest for name, digest in fingerprints(tmp_path / out).items() if "shard" in name} for out in "abcd"
    ]
    assert len(shards[0]) > 2
    assert shards[0] == shards[1] == shards[2] != shards[3]
    assert sorted(row["count"] for row in read_samples(tmp_path / "a")) == list(range(150))
    again = write(tmp_path / "again", samples, quality=85, shuffle=3, shard_size=20_000)
    assert again.result is not None
    assert fingerprints(tmp_path / "again") == fingerprints(tmp_path / "b")


WRONG = [
    ({"count": "5"}, "field 'count': expected an integer, found '5' (str)"),
    ({"count": True}, "field 'count': expected an integer, found True (bool)"),
    ({"count": 0.5}, "field 'count': expected an integer, found 0.5 (float)"),
    ({"count": 2**63}, "field 'count': expected an integer"),
    ({"count": None}, "field 'count': expected an integer, found None"),
    ({"share": "much"}, "field 'share': expected a number, found 'much' (str)"),
    ({"good": 1}, "field 'good': expected True or False, found 1 (int)"),
    ({"note": b"bytes"}, "field 'note': expected text, found b'bytes' (bytes)"),
    ({"blob": "text"}, "field 'blob': expected bytes, found 'text' (str)"),
    ({"facts": {"x": float("nan")}}, "field 'facts': expected JSON values"),
    ({"facts": {"x": {1, 2}}}, "field 'facts': expected JSON values"),
    ({"facts": "text"}, "field 'facts': expected a dict or a list for JSON, found 'text' (str)"),
    ({"embedding": np.zeros(4)}, "array of dtype <f4 and shape (4,), found dtype <f8 and shape (4,)"),
    ({"embedding": np.zeros(4)}, "field 'embedding': expected an array of dtype <f4"),
    ({"embedding": np.zeros((1, 4), "f4")}, "field 'embedding': expected an array of dtype <f4"),
    ({"embedding": np.zeros(5, "f4")}, "array of dtype <f4 and shape (4,), found dtype <f4 and shape (5,)"),
    ({"embedding": [1.0, "x", 2.0, 3.0]}, "field 'embedding': expected an array of dtype <f4"),
    ({"embedding": [1e39, 0.0, 0.0, 0.0]}, "field 'embedding': expected an array of dtype <f4"),
    ({"embedding": object()}, "field 'embedding': expected numbers, texts"),
    ({"points": np.zeros((2, 3), "i2")}, "shape (None, 2), found dtype <i2 and shape (2, 3)"),
    ({"points": [[70_000, 0]]}, "field 'points': expected an array of dtype <i2"),
    ({"ids": [[1], [2, 3]]}, "field 'ids': expected an array of dtype <i8"),
    ({"ids": [0.5]}, "field 'ids': expected an array of dtype <i8"),
    ({"label": 1}, "field 'label': expected the name of a class, found 1 (int)"),
    ({"label": ""}, "field 'label': expected the name of a class"),
    ({"image": jpeg(1)[:200]}, "field 'image': expected a JPEG's frame header"),
    ({"image": b"GIF"}, "field 'image': expected an image"),
    ({"image": b""}, "field 'image': expected an image, found an empty file"),
    ({"image": "a.jpg"}, "field 'image': expected an image, an array uint8 of shape (H, W, 3) or encoded bytes"),
    ({"image": np.zeros((4, 4), np.uint8)}, "field 'image': expected an image"),
    ({"image": np.zeros((0, 4, 3), np.uint8)}, "field 'image': expected an image"),
    ({"image": np.zeros((4, 4, 3), np.float32)}, "field 'image': expected an image"),
    ({"nota": "x"}, "found 'nota', which is no field of the samples before; did you mean 'note'?"),
    ({"note": ...}, "expected 'note', found none"),
]


@pytest.mark.parametrize("fields", [None, DECLARED], ids=["inferred", "declared"])
def test_a_wrong_sample_is_an_error_where_it_is_written_and_the_rest_is_packed(tmp_path: Path, fields: Any) -> None:
    with Writer(tmp_path / "out", fields=fields, progress=False) as writer:
        for number in range(101):
            writer.write(key=f"k{number}", **sample(number))
        for wrong, message in WRONG:
            if fields is None and "shape (" in message:  # an array that is not declared may have any number of rows
                continue
            changed = {name: value for name, value in {**sample(1), **wrong}.items() if value is not ...}
            with pytest.raises(SchemaError) as caught:
                writer.write(key="wrong", **changed)
            assert message in str(caught.value)
            assert str(caught.value).startswith("sample 'wrong' (number 101, counted from 0): ")
            assert len(str(caught.value)) < 700
        writer.write(key="wrong", **sample(101))
    assert problems(tmp_path / "out") == ()
    assert [row["count"] for row in read_samples(tmp_path / "out")] == list(range(102))


def test_keys(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", progress=False) as writer:
        writer.write(key="a", x=1)
        for key, message in (
            ("a", "sample 'a': expected a key that no other sample has"),
            (None, "expected a key, as the samples before have, found none"),
            ("", "expected a text as the key"),
            (5, "expected a text as the key, found 5"),
            ("é" * 600, "at most 1024 bytes"),
        ):
            with pytest.raises(SchemaError, match=message):
                writer.write(x=2, **({} if key is None else {"key": key}))
        for number in range(300):
            writer.write(key=f"k{number}", x=number)
        with raises(SchemaError, place="sample 'k17'", found="an earlier sample with this key"):
            writer.write(key="k17", x=5)
    with Writer(tmp_path / "numbered", progress=False) as writer:
        with pytest.raises(SchemaError):
            writer.write(key="wrong", x=object())
        writer.write(x=1)
        with raises(SchemaError, place="sample 1 (counted from 0)", found="'a'"):
            writer.write(key="a", x=2)
        writer.write(x=2)
    assert list(encoded_values(tmp_path / "numbered", "key")) == ["00000000-000000", "00000001-000000"]


def test_the_first_samples_show_the_types(tmp_path: Path) -> None:
    """Whole numbers among others become floats, None a stand-in, and arrays that the loop uses again are copied."""
    again = np.zeros(2, np.int32)
    rows: list[dict[str, Any]] = [
        {"x": 1, "n": None, "e": [], "j": [1, "a"], "l": [1, 2], "o": [], "t": None},
        {"x": 0.5, "n": 3, "e": [1.5], "j": [], "l": [0.5], "o": [], "t": None},
        {"x": 2, "n": 4, "e": [2.5, 3.5], "j": [2], "l": [], "o": [], "t": None},
    ]
    with Writer(tmp_path / "out", progress=False) as writer:
        for number, row in enumerate(rows):
            again[:] = number
            writer.write(again=again, **row)
            with pytest.raises(SchemaError, match="as in the samples before, found 'text'"):
                writer.write(again=again, **{**row, "x": "text"})
    found = read_samples(tmp_path / "out")
    assert [row["again"].tolist() for row in found] == [[0, 0], [1, 1], [2, 2]]
    assert [row["x"] for row in found] == [1.0, 0.5, 2.0]
    assert [(row["n"], row["n_valid"]) for row in found] == [(0, False), (3, True), (4, True)]
    assert [(row["t"], row["t_valid"]) for row in found] == [("", False)] * 3
    assert [row["e"].tolist() for row in found] == [[], [1.5], [2.5, 3.5]]
    assert [row["l"].tolist() for row in found] == [[1.0, 2.0], [0.5], []]
    assert [row["j"] for row in found] == [[1, "a"], [], [2]]
    assert [row["o"] for row in found] == [[], [], []]


@pytest.mark.parametrize("options", [{}, {"fields": {"label": int | None}}, {"fields": {"label": np.int16 | None}}])
def test_a_missing_label_is_no_class_and_not_class_0(tmp_path: Path, options: Any) -> None:
    write(tmp_path / "d", [{"label": None}, {"label": np.int16(0) if options else 0}, {"label": None}], **options)
    assert [int(one["label"]) for one in open_dataset(tmp_path / "d")] == [-1, 0, -1]
    with pytest.raises(UsageError, match="'label' has unsigned integers"):
        Writer(tmp_path / "e", fields={"label": np.uint8 | None})
    with pytest.raises(SchemaError, match="'label' has unsigned integers"):
        write(tmp_path / "e", [{"label": np.uint8(1)}, {"label": None}])


def test_a_value_that_changes_a_type_must_leave_the_earlier_ones_what_they_are(tmp_path: Path) -> None:
    """A list of texts would make all lists JSON, which has no NaN: it is refused, and nothing that was written is lost."""
    with Writer(tmp_path / "out", progress=False) as writer:
        writer.write(x=[float("nan"), 1.0])
        with pytest.raises(SchemaError, match=r"field 'x': expected an array of dtype <f8.*found \['a'\]"):
            writer.write(x=["a"])
        for number in range(FIRST_SAMPLES):
            writer.write(x=[float(number)])
    assert [row["x"].size for row in read_samples(tmp_path / "out")] == [2] + [1] * FIRST_SAMPLES


def test_declared_numbers_take_any_number_that_fits(tmp_path: Path) -> None:
    fields = {"a": int, "b": float, "c": Array("u1"), "d": np.float32, "e": int | None, "f": Array("f4", (None, None))}
    with Writer(tmp_path / "out", fields=fields, progress=False) as writer:
        writer.write(a=np.int8(3), b=2, c=255, d=0.5, e=None, f=[[1, 2]])
        writer.write(a=np.array(4), b=np.float32(0.5), c=np.uint8(1), d=np.float32(1), e=5, f=np.zeros((1, 2), ">f4"))
        for wrong in ({"c": 256}, {"c": -1}, {"c": np.int64(1)}, {"d": np.float64(1)}, {"a": np.uint64(2**63)}):
            with pytest.raises(SchemaError):
                writer.write(**{"a": 1, "b": 1.0, "c": 1, "d": 1.0, "e": 1, "f": [[0]], **wrong})
    found = read_samples(tmp_path / "out")
    assert [(row["a"], row["b"], row["c"], row["d"], row["e"], row["e_valid"]) for row in found] == [
        (3, 2.0, 255, 0.5, 0, False),
        (4, 0.5, 1, 1.0, 5, True),
    ]
    assert open_dataset(tmp_path / "out").schema["f"].shape == (None, None)  # as it was declared, though none varies


@pytest.mark.parametrize("values", [["dog", "cat"], [1, 0], ["dog", 0], [np.int64(1), "cat"]])
@pytest.mark.parametrize("fields", [None, {"label": str}])
def test_given_classes_number_the_labels(tmp_path: Path, values: list[Any], fields: Any) -> None:
    with Writer(tmp_path / "out", classes=["cat", "dog"], fields=fields, progress=False) as writer:
        for value in values:
            writer.write(label=value)
        message = "expected a class, cat, dog, or its number, found" if fields else "field 'label': expected"
        for wrong in ("cats", 2, -2, None, 0.0, True, b"cat", [1, 0], np.ones(2, int)):
            with pytest.raises(SchemaError, match=message):
                writer.write(label=wrong)
    found = open_dataset(tmp_path / "out")
    assert found.schema["label"].classes == ("cat", "dog")
    assert [int(row["label"]) for row in read_samples(tmp_path / "out")] == [1, 0]


@pytest.mark.parametrize("first", ["cat", 0])
def test_given_classes_take_names_and_numbers_after_the_first_samples_too(tmp_path: Path, first: str | int) -> None:
    with Writer(tmp_path / "out", classes=["cat", "dog"], progress=False) as writer:
        for value in [first] * FIRST_SAMPLES + ["dog", 1, -1]:
            writer.write(label=value)
    assert [int(row["label"]) for row in read_samples(tmp_path / "out")] == [0] * FIRST_SAMPLES + [1, 1, -1]


def test_encoded_images_become_what_a_build_makes_of_their_files(tmp_path: Path) -> None:
    files = [
        write_image(tmp_path / "in" / "a.jpg", scene(0, (40, 30))),
        write_image(tmp_path / "in" / "b.jpg", scene(1, (40, 30)), progressive=True),
        write_image(
            tmp_path / "in" / "c.jpg",
            scene(2, (40, 30)),
            exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0",
        ),
        write_image(tmp_path / "in" / "d.png", scene(3, (40, 30))),
        write_image(tmp_path / "in" / "e.webp", scene(4, (40, 30))),
    ]
    packer.build(tmp_path / "in", tmp_path / "built", engine="inline", progress=False)
    write(tmp_path / "out", [{"image": path.read_bytes()} for path in files])
    built, out = (list(encoded_values(tmp_path / name, "image").values()) for name in ("built", "out"))
    assert out == built
    assert [data == path.read_bytes() for data, path in zip(out, files, strict=True)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert Layout(tmp_path / "out").load().generations[0].counts.progressive_jpegs == 1


def left_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("samples", [0, 5, 200])
def test_an_exception_leaves_nothing_or_the_old_dataset(
    tmp_path: Path, error: type[BaseException], samples: int
) -> None:
    out = tmp_path / "out"

    def fail(**options: Any) -> None:
        with pytest.raises(error), Writer(out, progress=False, **options) as writer:  # noqa: PT012 -- what is tested
            for number in range(samples):
                writer.write(x=number)
            raise error

    fail()
    assert left_in(tmp_path) == []
    write(out, [{"x": 1}])
    before = fingerprints(out)
    with pytest.raises(UsageError, match=r"found a packed dataset \(1 sample\): choose another folder, or --overwrite"):
        fail()
    fail(overwrite=True)
    assert fingerprints(out) == before
    write(out, [{"x": 2}], overwrite=True)
    assert [row["x"] for row in read_samples(out)] == [2]


def test_no_sample_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no sample was written, so there is no dataset"):
        write(tmp_path / "out", [])
    assert left_in(tmp_path) == []


def test_a_writer_is_used_once_and_in_its_block(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out", progress=False)
    with raises(UsageError, expected="a call inside the with statement of the writer", found="one before it"):
        writer.write(x=1)
    with writer:
        writer.write(x=1)
        with pytest.raises(BuildLockedError), Writer(tmp_path / "out", progress=False):
            pass
    with raises(UsageError, expected="a call inside the with statement of the writer", found="one after it"):
        writer.write(x=1)
    with pytest.raises(UsageError, match="use each writer in one with statement"), writer:
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x", "utf-8")
    with (
        raises(UsageError, expected="a new or empty folder", found="'mine.txt', which no build made"),
        Writer(tmp_path / "other"),
    ):
        pass
    assert left_in(tmp_path / "other") == ["mine.txt"]


def test_a_fork_neither_writes_nor_clears_anything(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", progress=False) as writer:
        for number in range(150):
            writer.write(x=number)
        child = os.fork()
        if not child:
            status = 1
            try:
                writer.write(x=1)
            except UsageError as error:
                status = 0 if "a fork of it" in str(error) else 2
            finally:
                writer.__exit__(None, None, None)
                writer._held.close()
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    assert len(open_dataset(tmp_path / "out")) == 150


@pytest.mark.parametrize("at", ["append", "finish", "write_shard"])
def test_a_full_disk_is_one_error_and_leaves_the_old_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    write(tmp_path / "out", [{"x": 1}])
    before = fingerprints(tmp_path / "out")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "out"))

    target = (
        "packer.assembly.shard.write_shard" if at == "write_shard" else f"packer.assembly.piece_writer.PieceWriter.{at}"
    )
    monkeypatch.setattr(target, full)
    with pytest.raises(BuildError, match="cannot be written: No space left on device"):
        write(tmp_path / "out", [{"x": 1}], overwrite=True, fields={"x": int})
    assert fingerprints(tmp_path / "out") == before


def test_a_writer_whose_write_was_cut_short_makes_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loop goes on after the error."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "out"))

    with pytest.raises(BuildError, match="an earlier write was interrupted"), Writer(tmp_path / "out") as writer:  # noqa: PT012 -- ends here
        for number in range(101):
            writer.write(x=number)
        with monkeypatch.context() as patch:
            patch.setattr("packer.assembly.piece_writer.PieceWriter.append", full)
            with pytest.raises(BuildError, match="cannot be written: No space left on device"):
                writer.write(x=1)
    assert left_in(tmp_path) == []


def test_an_unfinished_build_is_not_discarded_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_image(tmp_path / "in" / "bad.png", scene(0, (8, 8)))
    how = {"on_error": "fail", "engine": "inline", "progress": False}
    with pytest.raises(BuildError):
        packer.build(tmp_path / "in", out, steps=["decode", "support.steps:fail"], **how)
    with pytest.raises(ResumeMismatchError, match="it is a build, and this is a write"):
        write(out, [{"x": 1}])
    write(out, [{"x": 1}], overwrite=True)
    assert problems(out) == ()


LOOP = """
import itertools, signal, sys
import packer
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
with packer.Writer(sys.argv[1], overwrite=True, progress=False, shard_size=3000) as writer:
    for number in itertools.count():
        writer.write(key=f"sample {number}", x=number, blob=b"x" * 100)
        if number == 500:
            print("begun", flush=True)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("old", [False, True])
def test_signals_in_the_loop(tmp_path: Path, sign: signal.Signals, old: bool) -> None:
    out = tmp_path / "out"
    before = {}
    if old:
        write(out, [{"x": 1}])
        before = fingerprints(out)
    with subprocess.Popen([sys.executable, "-c", LOOP, str(out)], env=environment(), stdout=subprocess.PIPE) as loop:
        assert loop.stdout is not None
        assert loop.stdout.readline() == b"begun\n"
        loop.send_signal(sign)
        loop.wait(60)
    if sign == signal.SIGINT:
        assert not (out / ".build").exists()
    if old:
        assert [row["x"] for row in read_samples(out)] == [1]
        if sign == signal.SIGINT:
            assert fingerprints(out) == before
    else:
        assert not (out / "manifest.json").exists()
        if sign == signal.SIGKILL:
            said = run_packer("inspect", out, expect=2).stderr
            assert (
                "found an interrupted writer that cannot be resumed: run the program again, which replaces it" in said
            )
    write(out, [{"x": 2}], overwrite=old)
    assert problems(out) == ()
    assert [row["x"] for row in read_samples(out)] == [2]
    assert not (out / ".build").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_every_operation_on_files(tmp_path: Path, step: int, overwrite: bool) -> None:
    """Either there is no dataset, or the old one, or the new one; and the next writer makes the new one."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "support.writer_crashes",
            tmp_path,
            str(SEED % step),
            str(step),
            *["overwrite"][: int(overwrite)],
        ],
        env=environment(python_path=[TESTS]),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *crashes, last = map(json.loads, done.stdout.splitlines())
    assert len(crashes) > 80 / step
    seen = {tuple(crash["found"]) if crash["found"] is not None else None for crash in crashes}
    old, new = (list(range(3)), list(range(100, 140)))
    possible = {tuple(old), tuple(new)} if overwrite else {None, tuple(new)}
    assert seen == possible if step == 1 else seen <= possible
    assert {json.dumps(crash["after"], sort_keys=True) for crash in crashes} == {
        json.dumps(last["after"], sort_keys=True)
    }


ROW_VALUES = {
    "number": st.integers(-(2**63), 2**63 - 1),
    "share": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000),
    "good": st.booleans(),
    "note": st.text(st.characters(codec="utf-8"), max_size=8),
    "facts": st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=3), st.none() | st.integers(-5, 5), max_size=2
    ),
    "ids": st.lists(st.integers(-5, 5), max_size=3),
    "odd": st.lists(st.integers(-5, 5) | st.text("ab", max_size=2), max_size=3),
    "maybe": st.none() | st.integers(-5, 5),
    "blob": st.binary(max_size=4),
    "vector": hnp.arrays(np.int16, 3),
    "label": st.sampled_from(["b", "a", "c"]),
}


@settings(max_examples=10)
@given(st.lists(st.fixed_dictionaries(ROW_VALUES), min_size=1, max_size=5))
def test_the_types_are_those_of_rows(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    """What `packer.build` makes of the same rows."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [{**row, "image": np.full((2, 2, 3), number, np.uint8)} for number, row in enumerate(rows)]
    write(folder / "out", rows, encode="png")
    packer.build(rows, folder / "built", text=["note"], encode="png", engine="inline", progress=False)
    out, built = (open_dataset(folder / name).schema for name in ("out", "built"))
    assert list(out) == [field for field in built if field.name not in ("source", "frame", "time", "frame_position")]
    for found, expected in zip(read_samples(folder / "out"), read_samples(folder / "built"), strict=True):
        for name in out.names:
            assert_equal(found[name], expected[name])


def test_progress_reports_the_shards(tmp_path: Path) -> None:
    listener = Listener()
    with Writer(tmp_path / "out", shard_size=100, progress=listener) as writer:
        for number in range(20):
            writer.write(x=number)
    last = listener.heard[-1]
    assert (last.stage, last.done, last.total, last.unit) == ("writing", 5, 5, "shards")
    assert listener.messages == []
    wait_for("the folder", lambda: not (tmp_path / "out" / ".build").exists())
