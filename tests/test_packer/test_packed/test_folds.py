"""``packer split --folds``, ``--stratify`` and several ``--by``; the same parts by ``ds.folds``; values counted."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.command import run_packer
from support.datasets import fixed, ragged, text, write_dataset
from support.packed_files import read_all

import packer
from packer import count_values, find_leaks, split, verify
from packer.cli import main
from readers import open_dataset
from shardspec.errors import SchemaError, UsageError
from shardspec.schema import Schema


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 frames of 60 videos of 20 people, a quarter of them real; two people share each tenth video's studio."""
    frames = np.arange(240)
    video = frames // 4
    person = video % 20
    columns = {
        "key": [f"{number:08d}-{frame % 4:06d}" for number, frame in zip(video, frames, strict=True)],
        "source": [f"{number}.mp4" for number in video],
        "label": (person % 4 != 0).astype(np.int64),
        "person": [f"person {number}" for number in person],
        "studio": (video % 20 // 2).astype(np.int64),
        "method": ["" if number % 4 == 0 else f"swap {number % 3}" for number in person],
    }
    fields = (fixed("label", "<i8", classes=("real", "fake")), text("person"), fixed("studio", "<i8"), text("method"))
    path = tmp_path_factory.mktemp("videos") / "packed"
    write_dataset(path, "npy", Schema((text("key"), text("source"), *fields)), columns, shard_rows=50)
    return path


def keys_of(path: Path) -> list[str]:
    return [key.decode() for key in read_all(path)["key"]]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"by": "person"}, ["--by", "person"]),
        ({"by": "person", "stratify": "label"}, ["--by", "person", "--stratify", "label"]),
        ({"by": ["source", "studio"], "stratify": "label"}, ["--by", "source", "--by", "studio", "--stratify", "label"]),
        ({"stratify": "method"}, ["--stratify", "method"]),
        ({}, []),
    ],
)  # fmt: skip
def test_the_command_and_the_readers_make_the_same_folds(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], arguments: list[str]
) -> None:
    call = ["split", str(videos), str(tmp_path), "--folds", "4", *arguments, "--seed", "5", "--engine", "inline"]
    assert main([*call, "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    dataset = open_dataset(videos)
    folds = dataset.folds(4, **options, seed=5)
    assert list(found["splits"]) == ["fold-0", "fold-1", "fold-2", "fold-3"]
    seen: Counter[str] = Counter()
    for number, (train, val) in enumerate(folds):
        keys = keys_of(tmp_path / f"fold-{number}")
        assert keys == val.column("key")
        assert sorted([*train.column("key"), *keys]) == sorted(dataset.column("key"))
        assert len(train) == 240 - len(val)
        assert verify(tmp_path / f"fold-{number}").problems == ()
        seen.update(keys)
        if options.get("stratify") == "label":
            labels = np.bincount(val.column("label"))
            assert found["splits"][f"fold-{number}"]["strata"] == {"fake": labels[1], "real": labels[0]}
            assert abs(labels[0] - 15) <= 12
            assert abs(labels[1] - 45) <= 24
    assert seen == Counter(dataset.column("key"))
    paths = [tmp_path / name for name in found["splits"]]
    by = options.get("by", [])
    for field in [by] if isinstance(by, str) else by:
        assert find_leaks(paths, by=field, progress=False).found == ()
    again = run_packer(*call, "--quiet").stdout
    assert again.count("finished already") == 4
    if not by:
        assert re.search(
            r"warning: samples of [0-9]+ sources are in several parts: --by source keeps the frames", again
        )


def test_stratified_shares(videos: Path, tmp_path: Path) -> None:
    result = split(videos, tmp_path / "out", by="person", stratify="label", ratios="train=0.8,val=0.2", **QUIET)
    assert [part.strata for part in result.parts] == [{"fake": 144, "real": 48}, {"fake": 36, "real": 12}]
    assert "80.00% (wanted 80.00%), 16 values of person, label: 144 fake, 48 real" in result.describe()
    train, val = open_dataset(videos).split([0.8, 0.2], by="person", stratify="label")
    assert keys_of(tmp_path / "out" / "train") == train.column("key")
    assert keys_of(tmp_path / "out" / "val") == val.column("key")
    part, other = open_dataset(videos).split([0.5, 0.25], stratify="method")
    for one, share in ((part, 0.5), (other, 0.25)):
        counts = Counter(one.column("method"))
        assert all(abs(counts[name] - share * 60) < 2 for name in ("", "swap 0"))
        assert len(one) == 240 * share


def test_samples_that_share_any_of_several_fields_stay_together(videos: Path, tmp_path: Path) -> None:
    result = split(videos, tmp_path / "out", by=("person", "studio"), ratios="a=0.5,b=0.5", **QUIET)
    assert "groups by person, studio: 5 + 5 = 10" in result.describe()
    assert result.to_json()["by"] == ["person", "studio"]
    paths = [part.result.path for part in result.parts]
    for field in ("person", "studio"):
        assert find_leaks(paths, by=field, progress=False).found == ()
    alone = split(videos, tmp_path / "alone", by=["person"], ratios="a=0.5,b=0.5", **QUIET)
    same = split(videos, tmp_path / "same", by="person", ratios="a=0.5,b=0.5", **QUIET)
    assert [a.result.manifest.generations for a in alone.parts] == [b.result.manifest.generations for b in same.parts]
    assert alone.to_json()["by"] == "person"


def test_impossible_folds_are_refused(videos: Path) -> None:
    dataset = open_dataset(videos)
    for call, message in (
        (lambda: dataset.folds(21, by="person"), "found 20 groups for 21 splits"),
        (lambda: dataset.folds(241), "folds: expected an integer of 2 to 100"),
        (lambda: dataset.subset(range(3)).folds(4), "expected as many samples as splits or more, found 3 for 4"),
        (lambda: dataset.folds(6, by="person", stratify="label"), "found 5 with 'real'"),
        (lambda: dataset.folds(2, by=[]), "by: expected the name of a field, or a list of names"),
        (lambda: dataset.folds(2, by=3), "by: expected the name of a field, or a list of names, found 3"),
        (lambda: split(videos, "nowhere", by=["label", 3]), "by: expected the name of a field, or a list of names"),
        (lambda: dataset.folds(2, by="method"), "found none in 60 of 240"),
        (lambda: dataset.split([0.99, 0.01], stratify="label", by="studio"), "leave a part empty"),
        (lambda: dataset.split([0.999, 0.001], stratify="label"), "leave a part empty"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_fields_that_cannot_group(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"there is no field 'persom'.*did you mean 'person'"):
        open_dataset(videos).folds(2, by="persom")
    points = [np.zeros((number, 2), np.float32) for number in range(4)]
    schema = Schema((fixed("box", "<f4", 4), ragged("points", "<f4", 2)))
    write_dataset(tmp_path / "points", "npy", schema, {"box": np.zeros((4, 4), np.float32), "points": points})
    dataset = open_dataset(tmp_path / "points")
    for field, found in (("box", r"one of shape \(4,\)"), ("points", "one of varying shape")):
        with pytest.raises(UsageError, match=f"{field}: expected a field of text or of single values, found {found}"):
            dataset.folds(2, stratify=field)


def test_values_are_counted(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_packer("inspect", videos, "--by", "method").stdout.splitlines()
    assert out == [
        f"{videos}: 240 samples, 4 values of method",
        "  'swap 1': 60 samples, 15 items, 60 fake",
        "  'swap 2': 60 samples, 15 items, 60 fake",
        "  'swap 0': 60 samples, 15 items, 60 fake",
        "  no value: 60 samples, 15 items, 60 real",
    ]
    assert main(["inspect", str(videos), "--by", "studio", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["values"][0] == {
        "value": "0",
        "samples": 24,
        "items": 6,
        "classes": {"fake": 12, "real": 12},
    }
    assert sum(value["samples"] for value in found["values"]) == 240
    assert main(["inspect", str(videos), "--by", "key"]) == 0
    long = capsys.readouterr().out.splitlines()
    assert len(long) == 22
    assert long[-1] == "  and 220 more (--json has all)"
    assert main(["inspect", str(videos), "--by", "Persons"]) == 2
    assert "did you mean 'person'" in capsys.readouterr().err
    assert len(count_values(videos, by="source").found) == 60
    # Keys of one's own say nothing of items, sources do; without either, items are unknown.
    rows = [{"image": np.full((8, 8, 3), number, np.uint8), "kind": "ab"[number % 2]} for number in range(5)]
    packer.build(rows, tmp_path / "rows", **QUIET)
    counts = count_values(tmp_path / "rows", by="kind")
    assert [(count.value, count.samples, count.items, count.classes) for count in counts.found] == [
        ("a", 3, 3, {}),
        ("b", 2, 2, {}),
    ]
    with packer.Writer(tmp_path / "own", progress=False) as out:
        for key, video in (("2026-01", "a"), ("2026-02", "a"), ("2026-03", "b")):
            out.write(key=key, source=video, kind="x")
    assert [count.items for count in count_values(tmp_path / "own", by="kind").found] == [2]
    write_dataset(tmp_path / "bare", "npy", Schema((text("kind"),)), {"kind": ["a", "b", "a"]})
    assert [count.items for count in count_values(tmp_path / "bare", by="kind").found] == [None, None]


def test_folds_that_an_earlier_split_left_are_warned_of(videos: Path, tmp_path: Path) -> None:
    """Training on every folder there would see what it is validated on."""
    out, by = tmp_path / "out", {"by": "person", **QUIET}
    assert split(videos, out, folds=4, **by).others == ()
    assert split(videos, out, folds=4, **by).others == ()
    (out / "notes.txt").write_text("mine")
    packer.convert(videos, out / "whole", format="npy", **QUIET)
    result = split(videos, out, folds=2, overwrite=True, **by)
    assert result.others == ("fold-2", "fold-3")
    assert result.to_json()["others"] == ["fold-2", "fold-3"]
    warning = "also holds parts of another split, which may have the same samples (fold-2, fold-3): delete them"
    assert warning in result.describe().splitlines()[-1]
    assert (out / "fold-3" / "manifest.json").exists()
