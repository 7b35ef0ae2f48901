"""Damage in the manifest, the index and the added fields of a dataset: the right values, or one line."""

import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import run_packer
from support.datasets import face_schema, write_dataset
from support.errors import raises
from support.fuzz import SEED
from support.packed import fingerprints
from support.packed_files import face_columns

import packer
from readers import Loader, open_dataset
from shardspec.errors import ManifestError, ShardCorruptError, ShardspecError
from shardspec.layout import Layout

ROWS = 40
FEW, MANY, READS = 2, 200, 4


def make(root: Path, format: str = "lmdb") -> Path:
    """A dataset with an index of several fields, and with three added fields."""
    write_dataset(root, format, face_schema(16), face_columns(ROWS, size=16), shard_rows=9)
    keys = list(open_dataset(root).column("key"))
    rng = np.random.default_rng(0)
    added = {"key": keys, "weight": rng.random(ROWS), "vector": rng.random((ROWS, 3), np.float32), "note": keys[::-1]}
    packer.add(root, added, progress=False)
    return root


def as_bytes(value: Any) -> Any:
    return np.ma.filled(value, 0).tobytes() if isinstance(value, np.ndarray) else value


def uses(root: Path, to: Path) -> dict[str, Callable[[], Any]]:
    """What people do with the index and the added fields, each with a result to compare."""

    def part(command: Callable[[], Any]) -> Any:
        command()
        return {path.name: fingerprints(path) for path in (to, *to.glob("*")) if (path / "manifest.json").exists()}

    def read() -> Any:
        dataset = open_dataset(root)
        return [{name: as_bytes(value) for name, value in sample.items()} for sample in dataset]

    def load() -> Any:
        batches = Loader(open_dataset(root, fields=["weight", "vector", "note"]), 7, shuffle="full")
        return [[as_bytes(value.numpy()) for value in (batch["weight"], batch["vector"])] for batch in batches]

    return {
        "column": lambda: [as_bytes(open_dataset(root).column(name)) for name in ("label", "frame", "weight", "note")],
        "where": lambda: list(open_dataset(root).where("label == 1 and weight < 0.5").rows),
        "read": read,
        "load": load,
        "copy": lambda: part(lambda: packer.copy(root, to, where="label == 1 and weight < 0.7", progress=False)),
        "split": lambda: part(
            lambda: packer.split(root, to, ratios="a=0.5,b=0.5", stratify="label", engine="inline", progress=False)
        ),
        "convert": lambda: part(lambda: packer.convert(root, to, format="npy", engine="inline", progress=False)),
    }


@contextmanager
def damaged(root: Path, rng: random.Random) -> Iterator[str]:
    """Flip a bit of a random file, cut it or delete it; afterwards, restore it."""
    entries = [entry.name for entry in Layout(root).load().files if not entry.name.endswith(".md")]
    columns = [entry.name for column in Layout(root).load().columns for entry in column.files]
    path = root / rng.choice(["manifest.json", *entries, *columns])
    whole, how = path.read_bytes(), rng.choice(("flip", "flip", "flip", "cut", "delete"))
    place, data = rng.randrange(len(whole)), bytearray(whole)
    data[place] ^= 1 << rng.randrange(8)
    path.unlink()
    if how != "delete":
        path.write_bytes(data if how == "flip" else whole[:place])
    yield f"{how} {path.name} at {place}"
    path.unlink(missing_ok=True)
    path.write_bytes(whole)


def survey(folder: Path, format: str, rounds: int) -> None:
    root, to, rng = make(folder / "dataset", format), folder / "to", random.Random(f"{SEED} {format}")
    named = uses(root, to)
    expected = {}
    for name, use in named.items():
        expected[name] = use()
        shutil.rmtree(to, ignore_errors=True)
    wrong = []
    for name in [*named, *[*named][:READS] * 10] * rounds:
        with damaged(root, rng) as what:
            try:
                found = named[name]()
            except ShardspecError as error:
                if "\n" in str(error):
                    wrong.append((name, what, str(error)))
            else:
                if found != expected[name]:
                    wrong.append((name, what, "another result"))
        shutil.rmtree(to, ignore_errors=True)
    assert wrong == []


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_damage_is_an_error_or_changes_nothing(tmp_path: Path, format: str) -> None:
    survey(tmp_path, format, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["lmdb", "npy", "parquet"])
def test_much_damage_is_an_error_or_changes_nothing(tmp_path: Path, format: str) -> None:
    survey(tmp_path, format, MANY)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("field", ["label", "weight", "vector"])
def test_a_flipped_bit_of_an_index_or_a_field_is_found_at_first_use(tmp_path: Path, field: str) -> None:
    root = make(tmp_path / "dataset")
    path = next(root.glob(f"*/{field}*.npy"), None) or next(root.glob(f"columns/{field}-*/{field}.npy"))
    flip(path, -8)
    dataset = open_dataset(root)
    with raises(ShardCorruptError, place=str(path)):
        dataset.column(field)
    if field != "label":  # the values of samples come from the shards
        with raises(ShardCorruptError, place=str(path)):
            dataset[0]
    with raises(ShardCorruptError, place=str(path)):
        dataset.where(f"{field} == 1" if field != "vector" else "weight > 2").column(field)
    if field != "vector":
        said = run_packer("copy", root, tmp_path / "copy", "--where", f"{field} == 1", "--quiet", expect=1).stderr
        assert str(path) in said
        assert not (tmp_path / "copy").exists()
    unchecked = open_dataset(root, verify="off")
    assert len(unchecked.column(field)) == ROWS


def test_a_copy_of_a_dataset_compares_an_index_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(make(tmp_path / "dataset"))
    dataset.column("label")
    other = pickle.loads(pickle.dumps(dataset))
    monkeypatch.setattr(Layout, "check_digest", lambda *_: pytest.fail("compared again"))
    assert other.column("label").tolist() == dataset.column("label").tolist()


def test_every_changed_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    manifest = Layout(make(tmp_path / "dataset")).manifest
    whole = manifest.read_bytes()
    for place in random.Random(SEED).sample(range(len(whole)), 300):
        flip(manifest, place)
        with pytest.raises(ManifestError):
            open_dataset(tmp_path / "dataset")
        manifest.write_bytes(whole)
    edited = b"{\n" + whole.partition(b'",\n')[2].replace(b'"samples": 9', b'"samples": 9', 1)
    manifest.write_bytes(edited)  # without the line of the checksum
    assert len(open_dataset(tmp_path / "dataset")) == ROWS
