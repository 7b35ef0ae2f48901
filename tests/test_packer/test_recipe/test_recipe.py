"""The recipe and the options: checked when made, all problems reported at once."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import write_images
from support.errors import raises

import packer
from packer import BuildOptions, Recipe, StepSpec
from packer.recipe import recipe
from packer.recipe.checks import parse_bytes
from packer.recipe.options import BUILD_OPTION_NAMES, parse_share
from shardspec.errors import UsageError


def test_an_option_that_something_reads_is_taken() -> None:
    assert Recipe(resize="none").size is None
    assert Recipe(size=9, also_resample="nearest").also_resample == "nearest"
    assert Recipe(preset="faces", steps=("decode", "faces", "resize"), resize="exact").size == 224  # type: ignore[arg-type]
    assert Recipe(preset="faces", steps=("decode", "faces", "resize"), resize="none", size=64).size == 64  # type: ignore[arg-type]
    assert Recipe(preset="faces", boxes="b.json", boxes_scale=2).boxes_scale == 2
    assert Recipe(preset="faces", detector="module:function", min_face=8).min_face == 8


def test_a_build_checks_every_option_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: Counter[str] = Counter()
    check_value = recipe.check_value

    def count(name: str, *more: Any) -> None:
        checked[name] += 1
        check_value(name, *more)

    monkeypatch.setattr(recipe, "check_value", count)
    packer.build(write_images(tmp_path / "source", ["a.png"]), tmp_path / "out", engine="inline", progress=False)
    assert checked["format"] == checked["on_error"] == 1
    assert set(checked.values()) == {1}


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Recipe.from_options(
            {"preset": "cats", "every": 0, "fps": 2.0, "size": "big", "quality": 101, "margin": -1.0, "min_face": 5}
        )
    for part in (
        "preset: expected one of faces, images, sound, found 'cats'",
        "every: expected 1 or more, found 0",
        "size: expected an integer, found 'big'",
        "quality: expected 100 or less, found 101",
        "margin: expected 0 or more, found -1.0",
        "min_face: expected 20 or more",
        "expected at most one of every, fps, resample_fps, frames, keyframes, found every and fps",
    ):
        assert part in str(caught.value), part


def test_numbers_of_numpy_are_stored_as_pythons_own() -> None:
    """The recipe is the same, and so are its JSON and every fingerprint that covers it."""
    numbers = {"size": np.int64(64), "every": np.int32(5), "limit": np.uint8(2), "shuffle": np.uint64(2**63)}
    shares = {"margin": np.float32(0.25), "min_score": np.longdouble(0.5), "boxes_scale": np.float64(1)}
    found = Recipe.from_options({"preset": np.str_("faces"), "align": np.bool_(True), **numbers, **shares})
    plain = Recipe(
        preset="faces",
        align=True,
        size=64,
        every=5,
        limit=2,
        shuffle=2**63,
        margin=0.25,
        min_score=0.5,
        boxes_scale=1.0,
    )
    assert found == plain
    assert json.dumps(found.to_json()) == json.dumps(plain.to_json())
    assert all(type(getattr(found, name)) is type(value) for name, value in vars(plain).items())
    how = BuildOptions(workers=np.int64(2), item_timeout=np.float32(2.5), overwrite=np.bool_(False))  # type: ignore[arg-type]
    assert [type(value) for value in (how.workers, how.item_timeout, how.overwrite)] == [int, float, bool]


def test_the_recipe_of_a_manifest_can_be_given_again(tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.jpg"])
    first = packer.build(tmp_path / "in", tmp_path / "a", size=8, engine="inline", progress=False)
    recipe = first.manifest.generations[-1].recipe
    again = packer.build(tmp_path / "in", tmp_path / "b", engine="inline", progress=False, **recipe)
    assert again.manifest.digest == first.manifest.digest


@pytest.mark.parametrize("number", [5, np.int64(5)])
def test_a_number_selects_the_choice_with_this_spelling(number: Any) -> None:
    assert Recipe(preset="faces", landmarks=number).landmarks == "5"
    assert Recipe.from_options({"subsampling": 444}).subsampling == "444"
    with raises(UsageError, option="landmarks", found="6"):
        Recipe(preset="faces", landmarks=6)  # type: ignore[arg-type]


def test_the_steps_of_the_preset_are_the_default() -> None:
    assert [step.use for step in Recipe(preset="images").chain] == ["decode", "resize"]
    assert [step.use for step in Recipe(preset="faces").chain] == ["decode", "faces"]
    assert Recipe(steps=("decode",)).chain == (StepSpec("decode"),)  # type: ignore[arg-type]  # names become specs


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000),
        (7, 7),
        ("256MB", 256 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        ("2kib", 2048),
        (" 3 b ", 3),
        ("0.5kB", 500),
    ],
)
def test_sizes_are_parsed_with_their_unit(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset."""
    folder = tmp_path_factory.mktemp("packed")
    packer.build(write_images(folder / "in", ["a.png"]), folder / "out", engine="inline", progress=False)
    return folder / "out"


@pytest.mark.parametrize(
    ("text", "meant"),
    [("3", "3MB"), (256, "256MB"), ("30 kB", "30MB"), ("63KiB", "63MiB"), ("0.05MB", "0.05GB"), ("0.01MiB", "0.01GiB")],
)
def test_a_size_without_its_unit_is_refused(
    packed: Path, text: str | int, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACKER_SMALLEST_SIZE")
    out = tmp_path / "out"
    for call in (
        lambda: packer.build([], out, shard_size=text),
        lambda: packer.convert(packed, out, format="npy", shard_size=text),
        lambda: packer.Writer(out, shard_size=text),
    ):
        with pytest.raises(UsageError, match=rf"^shard_size: expected 64KiB or more, found .*: write {meant} if"):
            call()
    with pytest.raises(UsageError, match="64KiB or more"):
        Recipe(shard_size=2**16 - 1)
    assert Recipe(shard_size=2**16).shard_size == parse_bytes("64KiB")
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), (0, 0.0), (1, 1.0), ("100%", 1.0), ("0%", 0.0)]
)
def test_percentages_are_parsed(text: str | float, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


def test_recipe_and_options_share_no_name() -> None:
    assert not BUILD_OPTION_NAMES & {field.name for field in dataclasses.fields(Recipe)}
    assert BuildOptions(workers="3").workers == "3"
