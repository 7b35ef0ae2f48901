"""``packer convert``: the same samples in another format, resumable and atomic."""

import errno
import itertools
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.builds import QUIET
from support.command import file_of, run_packer, start_packer
from support.datasets import assert_same, encode, every_kind_schema, manifest_document, values_for, write_dataset
from support.listeners import Listener
from support.packed_files import files_below, read_all, write_faces

from packer import Progress, build, convert, export, merge, split, verify
from packer.cli import main
from readers.formats.npy import NpyShardReader
from shardspec.entries import Counts, Generation
from shardspec.errors import BuildError, DatasetError, ResumeMismatchError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout, describe_file
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema


def facts(root: Path) -> dict[str, Any]:
    """The manifest without the wall clock."""
    document = manifest_document(root)
    del document["wall_clock"]
    return document


def files(root: Path) -> dict[str, bytes]:
    """Every file but the manifest."""
    return {name: data for name, data in files_below(root).items() if name != "manifest.json"}


def describe(root: Path, format: str, *, shard_size: int = 9000, **recipe: Any) -> None:
    """Give a dataset the provenance and the reports that a build would."""
    layout = Layout(root)
    manifest = layout.load()
    file_of(layout.root, "items.jsonl").write_bytes(
        b'{"item": "person0/a.mp4", "state": "packed"}\n' * manifest.samples
    )
    file_of(layout.root, "rejects.jsonl").write_bytes(b"")
    options = {"format": format, "shard_size": shard_size, "shuffle": None, "quality": 95, **recipe}
    generation = replace(manifest.generations[0], recipe=options, runtime={"numpy": "2.0"}, fingerprint="ab" * 32)
    more = tuple(
        describe_file(root, path)
        for path in (file_of(layout.root, "items.jsonl"), file_of(layout.root, "rejects.jsonl"))
    )
    layout.manifest.write_bytes(replace(manifest, generations=(generation,), files=more + manifest.files).dumps())


def begin(tmp_path: Path, rows: int = 14, **more: Any) -> Path:
    """A dataset whose shards are cut as a conversion cuts them."""
    write_faces(tmp_path / "raw", rows, **more)
    describe(tmp_path / "raw", "lmdb")
    convert(tmp_path / "raw", tmp_path / "start", format="lmdb", **QUIET)
    return tmp_path / "start"


@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(sorted(FORMATS), 2)))
def test_every_kind_of_field_moves_bit_for_bit(tmp_path: Path, here: str, there: str) -> None:
    schema = every_kind_schema()
    values = values_for(schema, 9)
    write_dataset(tmp_path / "in", here, schema, values, shard_rows=4)
    convert(tmp_path / "in", tmp_path / "out", format=there, shard_size=3000, **QUIET)
    assert_same(schema, read_all(tmp_path / "out"), encode(schema, values))


def test_an_empty_dataset_stays_one(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", 0, shard_rows=None)
    manifest = convert(tmp_path / "in", tmp_path / "out", format="npy", **QUIET).manifest
    assert (manifest.samples, manifest.shards) == (0, ())
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_shards_are_cut_by_their_encoded_bytes_and_shuffled_by_the_seed(tmp_path: Path) -> None:
    start = begin(tmp_path)
    row_bytes = 32 * 32 * 3 + 1000
    small = convert(start, tmp_path / "small", format="npy", shard_size=2 * row_bytes, shuffle=5, **QUIET).manifest
    assert [shard.samples for shard in small.shards] == [2] * 7
    assert small.generations[0].recipe == {
        **Layout(start).load().generations[0].recipe,
        "format": "npy",
        "shard_size": 2 * row_bytes,
        "shuffle": 5,
    }
    order = np.random.Generator(np.random.PCG64(5)).permutation(14)
    assert_same(small.schema, read_all(tmp_path / "small"), read_all(start), order.tolist())
    assert np.array_equal(np.load(file_of(tmp_path / "small", "index/frame.npy")), order * 10)
    again = convert(start, tmp_path / "again", format="npy", shard_size=2 * row_bytes, shuffle=5, **QUIET).manifest
    assert again.digest == small.digest


def test_generations_are_kept_separate(tmp_path: Path) -> None:
    """Two generations in one dataset, as appending will make them: no shard holds rows of both."""
    manifest = write_faces(tmp_path / "in", 12, "npy", shard_rows=4)
    counts = Counts(4, 4, 0, 0, 4, 0, 0, 0), Counts(8, 8, 0, 0, 8, 0, 0, 0)
    generations = tuple(
        Generation("build", name * 64, {"shard_size": size}, {}, count, shards)
        for name, size, count, shards in zip(
            "ab", (10**6, 1), counts, (manifest.shards[:1], manifest.shards[1:]), strict=True
        )
    )
    Layout(tmp_path / "in").manifest.write_bytes(Manifest("npy", manifest.schema, generations, manifest.files).dumps())
    made = convert(tmp_path / "in", tmp_path / "out", format="lmdb", **QUIET).manifest
    assert [[shard.samples for shard in g.shards] for g in made.generations] == [[4], [1] * 8]
    assert [g.fingerprint[0] for g in made.generations] == ["a", "b"]
    mixed = convert(tmp_path / "in", tmp_path / "mixed", format="lmdb", shuffle=1, **QUIET).manifest
    (joined,) = mixed.generations
    assert (joined.kind, joined.counts) == ("convert", Counts(12, 12, 0, 0, 12, 0, 0, 0))
    (reported,) = joined.recipe["inputs"]
    assert [g["fingerprint"][0] for g in reported["generations"]] == ["a", "b"]


def test_damage_is_found_and_never_copied(tmp_path: Path) -> None:
    start = begin(tmp_path)
    path = start / Layout(start).load().shards[1].files[0].name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(BuildError, match=rf"{path.name}: expected SHA-256"):
            convert(start, tmp_path / "out", format="npy", **QUIET)
    assert not Layout(tmp_path / "out").manifest.exists()
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert convert(start, tmp_path / "out", format="npy", **QUIET).resumed
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_a_repeated_export_is_done_and_another_is_refused(tmp_path: Path) -> None:
    start = begin(tmp_path)
    out = tmp_path / "out"
    first = convert(start, out, format="npy", **QUIET)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert convert(start, out, format="npy", **QUIET).manifest == first.manifest
    assert stamps == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    more = begin(tmp_path / "more", rows=6)
    with pytest.raises(UsageError, match=r"another plan: option format: was 'npy', now 'lmdb'.*--overwrite"):
        convert(start, out, format="lmdb", **QUIET)
    with pytest.raises(UsageError, match=r"it is a convert, and this is a merge"):
        merge([start, more], out, **QUIET)
    with pytest.raises(UsageError, match=r"the packed datasets that are read"):
        convert(more, out, format="npy", **QUIET)
    assert str(tmp_path) not in (out / "manifest.json").read_text()
    assert convert(start, out, format="lmdb", overwrite=True, **QUIET).manifest.digest == Layout(start).load().digest
    assert not list(out.glob("shard-*.npy"))
    assert verify(out).unlisted == ()


@pytest.mark.parametrize(
    ("wall_clock", "reported"),
    [
        ({}, "made by another plan: it is a build, and this is a convert"),
        ({"job": "convert"}, "made by another plan: it is a build, and this is a convert"),
        ({"job": {"kind": "convert"}}, "option format: was None, now 'npy'"),
    ],
)
def test_an_existing_dataset_is_described_by_its_manifest(
    tmp_path: Path, wall_clock: dict[str, Any], reported: str
) -> None:
    write_faces(tmp_path / "in", 3)
    manifest, layout = write_faces(tmp_path / "out", 4), Layout(tmp_path / "out")
    layout.manifest.write_bytes(replace(manifest, wall_clock=wall_clock).dumps())
    with pytest.raises(UsageError) as caught:
        convert(tmp_path / "in", tmp_path / "out", format="npy", **QUIET)
    assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("inside", "found"),
    [("", "the dataset itself: choose another"), ("sub", "one inside the other"), ("..", "one inside the other")],
)
def test_source_and_output_are_kept_apart(tmp_path: Path, inside: str, found: str) -> None:
    write_faces(tmp_path / "a" / "in", 3)
    with pytest.raises(UsageError, match=rf"expected a place apart from .*, found {found}$"):
        convert(tmp_path / "a" / "in", tmp_path / "a" / "in" / inside, format="npy", **QUIET)


def test_after_kills_at_any_moment_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    start = begin(tmp_path, 60)
    whole = convert(start, tmp_path / "whole", format="npy", shard_size=4000, **QUIET).manifest
    out, options = tmp_path / "out", ("--format", "npy", "--shard-size", "4000", "--quiet")
    for wait_for in ("scans/*/scan-00003.npy", "staging/*/shard-00005", "staging/*/shard-00030"):
        process = start_packer("convert", start, out, *options, "--workers", "1")
        while process.poll() is None and not list((out / ".build").glob(wait_for)):
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert not Layout(out).manifest.exists()
    with pytest.raises(ResumeMismatchError, match=r"option shuffle: was None, now 3"):
        convert(start, out, format="npy", shard_size=4000, shuffle=3, **QUIET)
    done = run_packer("convert", start, out, *options)
    assert "60 samples in" in done.stdout
    manifest = Layout(out).load()
    assert manifest.digest == whole.digest
    assert facts(out) == facts(tmp_path / "whole")
    assert manifest.wall_clock["sessions"] == 4
    # The journal's line follows the shard's record, so that a kill between the two leaves one line too few, never one too many.
    assert len(manifest.shards) - 3 <= manifest.wall_clock["shards_written"] <= len(manifest.shards)
    assert verify(out, deep=True).problems == ()


def test_a_moved_source_is_found_at_its_new_place(tmp_path: Path) -> None:
    start = begin(tmp_path)
    broken = start / Layout(start).load().shards[-1].files[0].name
    kept = broken.read_bytes()
    broken.unlink()
    with pytest.raises(BuildError, match="expected a file"):
        convert(start, tmp_path / "out", format="npy", **QUIET)
    broken.write_bytes(kept)
    moved = start.rename(tmp_path / "moved")
    result = convert(moved, tmp_path / "out", format="npy", **QUIET)
    assert result.resumed
    assert_same(result.manifest.schema, read_all(tmp_path / "out"), read_all(moved))


def test_the_command_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_faces(tmp_path / "in", 6)
    arguments = ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--format", "npy", "--engine", "inline"]
    assert main([*arguments, "--quiet", "--json", "--shard-size", "1MB"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported == {
        "out": str(tmp_path / "out"),
        "digest": Layout(tmp_path / "out").load().digest,
        "samples": 6,
        "shards": 1,
        "found_finished": False,
    }
    assert main([*arguments, "--quiet", "--shard-size", "1MB"]) == 0
    assert f"{tmp_path}/out: finished already, nothing was done: 6 samples in 1 npy" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "nowhere"), str(tmp_path / "x"), "--format", "npy"]) == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("failing", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda one, out: convert(one, out, format="lmdb", **QUIET),
        lambda one, out: merge([one, one.with_name("other")], out, **QUIET),
        lambda one, out: split(one, out, by="source", ratios="half=0.5,rest=0.5", **QUIET),
        lambda one, out: export(one, out, progress=False),
    ],
    ids=["convert", "merge", "split", "export"],
)
def test_an_input_that_cannot_be_read_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any], failing: int
) -> None:
    """At whatever read the system refuses, and not as if something could not be written."""
    for name in ("in", "other"):
        write_faces(tmp_path / name, 14, "npy")
    reads, read = itertools.count(1), NpyShardReader.read

    def refuse(self: NpyShardReader, *arguments: Any) -> None:
        if next(reads) >= failing:
            raise OSError(errno.EIO, "Input/output error")
        read(self, *arguments)

    monkeypatch.setattr(NpyShardReader, "read", refuse)
    with pytest.raises((BuildError, DatasetError), match=rf"{tmp_path}/in/shard-0000\d: cannot be read: Input/output"):
        make(tmp_path / "in", tmp_path / "out")


class Replacing(Listener):
    """Has another dataset take the place of one as soon as a stage has come so far."""

    def __init__(self, stage: str, done: int, replace_it: Callable[[], Any]) -> None:
        super().__init__(self._act_once)
        self._stage, self._done, self._replace_it = stage, done, replace_it
        self.replaced = False

    def _act_once(self, progress: Progress) -> None:
        if not self.replaced and progress.stage == self._stage and progress.done >= self._done:
            self.replaced = True
            self._replace_it()


def grey_images(folder: Path, greys: Iterable[int]) -> Path:
    """Images of one size and of one grey each, which is their name."""
    folder.mkdir(exist_ok=True)
    for grey in greys:
        Image.fromarray(np.full((4, 5, 3), grey, np.uint8)).save(folder / f"{grey:03}.png")
    return folder


@pytest.mark.parametrize("change", ["overwritten", "updated"])
@pytest.mark.parametrize(
    ("make", "stage", "done"),
    [
        (lambda one, out, **how: convert(one, out, format="lmdb", **how), "writing", 0),
        (lambda one, out, **how: convert(one, out, format="lmdb", **how), "writing", 1),
        (lambda one, out, **how: merge([one.with_name("other"), one], out, **how), "writing", 1),
        (lambda one, out, **how: split(one, out, by="source", ratios="most=0.8,rest=0.2", **how), "writing", 1),
        (lambda one, out, **how: build(one, out, encode="raw", **how), "packing", 0),
    ],
    ids=["convert", "convert after a shard", "merge", "split", "build"],
)
def test_rows_of_a_dataset_and_of_its_replacement_are_never_mixed(
    tmp_path: Path, make: Callable[..., Any], stage: str, done: int, change: str
) -> None:
    """Their files have the same numbers and sizes: only the tags in their names tell them apart."""
    source = grey_images(tmp_path / "source", range(6))
    how: dict[str, Any] = {"encode": "raw", "format": "npy", "shard_size": 100, **QUIET}
    build(source, tmp_path / "in", **how)
    build(grey_images(tmp_path / "others", range(100, 104)), tmp_path / "other", **how)

    def overwrite() -> None:
        build(grey_images(tmp_path / "newer", range(50, 56)), tmp_path / "in", **how, overwrite=True)

    def follow() -> None:
        (source / "000.png").unlink()
        grey_images(source, [6])
        build(source, tmp_path / "in", **how, update=True, gone="drop")

    listener = Replacing(stage, done, overwrite if change == "overwritten" else follow)
    with pytest.raises((BuildError, DatasetError), match="expected the dataset that was opened, found another"):
        make(tmp_path / "in", tmp_path / "out", engine="inline", progress=listener)
    assert listener.replaced
    assert not list((tmp_path / "out").rglob("manifest.json"))


def test_a_dataset_without_values_of_varying_size_is_converted(tmp_path: Path) -> None:
    schema = Schema(
        (
            Field("image", "fixed", "|u1", (4, 4, 3)),
            Field("score", "fixed", "<f4", ()),
        )
    )
    columns = {"image": np.arange(5 * 48, dtype=np.uint8).reshape(5, 4, 4, 3), "score": np.arange(5, dtype="<f4")}
    write_dataset(tmp_path / "in", "npy", schema, columns, shard_rows=2)
    convert(tmp_path / "in", tmp_path / "out", format="hdf5", **QUIET)
    assert_same(schema, read_all(tmp_path / "out"), columns, range(5))
