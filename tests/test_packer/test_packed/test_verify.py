"""``packer verify`` finds every difference between a dataset and its manifest, and nothing else."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.command import file_of, run_packer
from support.datasets import face_schema, manifest_document, write_dataset
from support.errors import raises
from support.packed_files import face_columns, read_all, write_faces

from packer import verify
from packer.cli import main
from shardspec.errors import ManifestError, NotADatasetError
from shardspec.formats import FORMATS
from shardspec.layout import Layout


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_whole_dataset_has_no_problems(tmp_path: Path, format: str) -> None:
    manifest = write_faces(tmp_path, 12, format, codec="jpeg")
    report = verify(str(tmp_path), deep=True)
    assert report.problems == ()
    assert (report.samples, report.shards, report.digest) == (12, 3, manifest.digest)
    assert report.files == len(manifest.files) + sum(len(shard.files) for shard in manifest.shards)


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_every_flipped_byte_of_every_file_is_found(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path, 7, "npy", shard_rows=4)
    entries = [*(entry for shard in manifest.shards for entry in shard.files), *manifest.files]
    for entry in entries:
        path = tmp_path / entry.name
        for offset in (0, entry.bytes // 2, entry.bytes - 1):
            _flip(path, offset)
            (problem,) = verify(tmp_path).problems
            assert str(path) in problem
            assert entry.sha256 in problem
            _flip(path, offset)
    assert verify(tmp_path).problems == ()


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path, 12, "lmdb")
    paths = [tmp_path / shard.files[0].name for shard in manifest.shards]
    paths[0].write_bytes(paths[0].read_bytes()[:-64])
    paths[1].unlink()
    _flip(file_of(tmp_path, "index/label.npy"), -1)
    problems = verify(tmp_path, deep=True).problems
    wrong = [*paths[:2], file_of(tmp_path, "index/label.npy")]
    assert [path for path, text in zip(wrong, problems, strict=False) if str(path) in text] == wrong


@pytest.mark.parametrize("format", ["npy", "tfrecord", "lmdb", "parquet", "webdataset"])
def test_the_samples_of_a_damaged_shard_are_named(tmp_path: Path, format: str) -> None:
    manifest = write_faces(tmp_path, 12, format, codec="png", shard_rows=4)
    value = read_all(tmp_path)["image"][6]
    shard = Layout(tmp_path).shard(manifest.shards[1], format)
    path = shard / "image.bin" if format == "npy" else shard
    _flip(path, path.read_bytes().index(value) + 50)  # the image's own checksum shows it
    changed, unread = verify(tmp_path, deep=True).problems
    assert f"{path}: expected SHA-256" in changed
    assert f"{shard}, row 2 (key '00000000-000002'), " in unread


def test_damage_that_cannot_be_located_is_reported(tmp_path: Path) -> None:
    write_faces(tmp_path, 6, "npy", shard_rows=4)
    shard = tmp_path / "shard-00001"
    _flip(shard / "image.npy", -1)
    (problem,) = verify(tmp_path, deep=True).problems
    assert f"{shard / 'image.npy'}: expected SHA-256" in problem
    (shard / "key.bin").unlink()
    where = f"{shard}, row 1, field 'key': shard-00001/key.bin: expected a file"
    assert any(text.startswith(where) for text in verify(tmp_path, deep=True).problems)


def _pack(root: Path, name: str, row: int, value: object) -> None:
    columns = face_columns(6)
    columns[name][row] = value
    write_dataset(root, "lmdb", face_schema(), columns, shard_rows=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", 2),
        ("label", -2),
        ("landmarks", np.full((5, 2), np.nan)),
        ("landmarks", np.full((5, 2), 65)),
        ("hull", np.full((16, 2), -33)),
        ("regions", np.tile([9, 9, 8, 10], (4, 1))),
        ("box", [1, 1, 0, np.inf]),
        ("matrix", [[1, 2, 0], [2, 4, 0]]),
        ("score", np.nan),
        ("time", np.inf),
    ],
)
def test_values_that_cannot_be_are_named_by_key_and_field(tmp_path: Path, name: str, value: object) -> None:
    _pack(tmp_path, name, 5, value)
    assert verify(tmp_path).problems == ()
    (problem,) = verify(tmp_path, deep=True).problems
    assert f"shard-00001.lmdb, row 1 (key '00000002-000001'), field {name!r}" in problem


def test_points_just_outside_the_image_are_allowed(tmp_path: Path) -> None:
    _pack(tmp_path, "landmarks", 5, np.full((5, 2), -20))
    assert verify(tmp_path, deep=True).problems == ()


def test_a_key_in_two_shards_is_named(tmp_path: Path) -> None:
    _pack(tmp_path, "key", 5, "00000000-000000")
    (problem,) = verify(tmp_path, deep=True).problems
    assert "'00000000-000000' in rows 0 and 5" in problem


def test_an_image_that_does_not_decode_or_has_another_shape_is_named(tmp_path: Path) -> None:
    write_faces(tmp_path, 6, "npy", codec="png", shard_rows=None)
    images = tmp_path / "shard-00000" / "image.bin"
    data = bytearray(images.read_bytes())
    data[60:70] = bytes(10)
    images.write_bytes(data)
    _accept_files(tmp_path)
    (problem,) = verify(tmp_path, deep=True).problems
    assert "row 0 (key '00000000-000000'), field 'image': expected a value that decodes" in problem


def test_an_index_that_says_something_else_than_the_shards_is_named(tmp_path: Path) -> None:
    write_faces(tmp_path, 6)
    path = file_of(tmp_path, "index/frame.npy")
    np.save(path, np.load(path) + (np.arange(6) == 5), allow_pickle=False)
    _accept_files(tmp_path)
    (problem,) = verify(tmp_path, deep=True).problems
    assert "row 0 (key '00000002-000001'), field 'frame': expected what the index has, 51, found 50" in problem
    np.save(path, np.zeros(5, np.int64))
    _accept_files(tmp_path)
    (problem,) = verify(tmp_path, deep=True).problems
    assert problem.startswith(f"{path}: expected")
    assert "<i8" in problem
    assert "the manifest contradicts this file" in problem


def _accept_files(root: Path) -> None:
    """Give the manifest the digests of the files as they are, as a careless tool would."""
    document = manifest_document(root)
    entries = [e for g in document["generations"] for s in g["shards"] for e in s["files"]] + document["files"]
    for entry in entries:
        data = (root / entry["name"]).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (root / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_hostile_shard_with_a_matching_digest_is_reported(tmp_path: Path, format: str) -> None:
    manifest = write_faces(tmp_path, 12, format)
    for entry in manifest.shards[1].files:
        (tmp_path / entry.name).write_bytes(b"\xff" * entry.bytes)
    _accept_files(tmp_path)
    problems = verify(tmp_path, deep=True).problems
    assert problems
    assert all("shard-00001" in problem for problem in problems)


def test_the_reports_are_counted(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path, 6)
    layout = Layout(tmp_path)
    file_of(layout.root, "items.jsonl").write_bytes(b'{"item": "a", "state": "packed"}\n' * 5 + b"no JSON\n")
    file_of(layout.root, "rejects.jsonl").write_bytes(b'{"kind": "item"}\n')
    document = manifest_document(tmp_path)
    document["files"] += [{"name": name, "bytes": 0, "sha256": "0" * 64} for name in ("items.jsonl", "rejects.jsonl")]
    layout.manifest.write_text(json.dumps(document))
    _accept_files(tmp_path)
    items, rejects = verify(tmp_path).problems
    assert "expected 6 items, 6 packed and 0 rejected, found 6, 5 and 0" in items
    assert "expected 0 rejects and 0 damaged items, found 1 and 0" in rejects
    assert manifest.generations[0].counts.items == 6


def _edit(root: Path, old: str, new: str) -> None:
    """Change the first occurrence of a text in the manifest, which loses its checksum."""
    path = Layout(root).manifest
    text = re.sub(r'\n "sha256": .*', "", path.read_text("utf-8"), count=1)
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_an_edited_manifest_is_reported_without_blaming_either_side(tmp_path: Path) -> None:
    entry = write_faces(tmp_path, 6).shards[0].files[0]
    disagree = "the file or the manifest has changed since packing"
    for old, new, reported in (
        (entry.sha256, "1" * 64, f"expected SHA-256 {'1' * 64}, found {entry.sha256}: {disagree}"),
        (f'"bytes": {entry.bytes}', '"bytes": 77', f"expected 77 bytes, found {entry.bytes}: {disagree}"),
    ):
        _edit(tmp_path, old, new)
        assert f"{tmp_path}/{entry.name}: {reported}" in run_packer("verify", tmp_path, "--quiet", expect=1).stderr
        _edit(tmp_path, new, old)
    assert verify(tmp_path).problems == ()


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_if_a_shard_matches_its_digest_the_manifest_is_suspected(tmp_path: Path, format: str) -> None:
    write_faces(tmp_path, 6, format, shard_rows=3)
    _edit(tmp_path, '"samples": 3', '"samples": 2')
    _edit(tmp_path, '"samples": 3', '"samples": 4')
    problems = verify(tmp_path, deep=True).problems
    assert any("shard-00000" in text for text in problems)
    doubts = ("the manifest's other entries for it are wrong", "this file or its manifest entry was altered")
    assert all(any(doubt in text for doubt in doubts) for text in problems), problems


def test_unlisted_files_are_reported_and_are_not_a_problem(tmp_path: Path) -> None:
    write_faces(tmp_path, 3)
    (tmp_path / "notes.txt").write_text("mine")
    report = verify(tmp_path)
    assert report.unlisted == ("notes.txt",)
    assert report.problems == ()


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_faces(tmp_path, 6)
    assert main(["verify", str(tmp_path), "--deep", "--quiet"]) == 0
    assert "6 samples in 2 shards" in capsys.readouterr().out
    _flip(tmp_path / manifest.shards[0].files[0].name, 5000)
    assert main(["verify", str(tmp_path), "--quiet"]) == 1
    assert "shard-00000.lmdb: expected SHA-256" in capsys.readouterr().err
    assert main(["verify", str(tmp_path), "--json", "--quiet"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert len(report["problems"]) == 1
    with pytest.raises(NotADatasetError):
        verify(tmp_path / "nowhere")


def test_a_format_that_is_not_known_is_an_error_of_the_manifest(tmp_path: Path) -> None:
    write_faces(tmp_path, 3)
    document = manifest_document(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({**document, "format": "zip"}))
    with raises(ManifestError, place="format", found="'zip'"):
        verify(tmp_path)
