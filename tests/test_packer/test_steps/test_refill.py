"""``--refill``: frames nearby take the places of sampled frames without a face."""

import csv
import json
import shutil
import tarfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import read_jsonl, run_packer
from support.detectors import count_searched
from support.face_source import views, write_frames
from support.media import FAST_START, photograph, write_image, write_video
from support.packed import check_whole, fingerprints, read_samples
from test_packer.test_steps.test_faces_tracks import damage

import packer
from packer.vision.decode.sampling import neighbours, spread
from shardspec.errors import TooManyRejectsError
from shardspec.layout import Layout

FRAMES = 40
SAMPLED = (5, 15, 25, 35)
FACELESS = (*range(12, 17), *range(31, 40))
"""Of the frames near 15, 11 and 17 have a face; of those near 35 none has."""
TAKEN = [5, 17, 25]
FACE = {"x0": 5, "y0": 5, "x1": 45, "y1": 50}

Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 40 frames, a forgery of it in which the detector finds no face, and a mask of every frame's own."""
    root = tmp_path_factory.mktemp("refill")
    frames = list(views(FRAMES, faceless=FACELESS))
    write_frames(root / "original.mp4", frames)
    write_frames(root / "forged.mp4", (np.ascontiguousarray(frame[:, ::-1]) for frame in frames))
    shades = (np.full((240, 320, 3), 4 * number + 20, np.uint8) for number in range(FRAMES))
    write_frames(root / "mask.mp4", shades)
    return root


def write_table(folder: Path, name: str, rows: Iterable[Row]) -> Path:
    with (folder / name).open("w", newline="") as file:
        table = csv.DictWriter(file, ["path", "original", "mask"])
        table.writeheader()
        table.writerows(rows)
    return folder / name


def build(source: Path, out: Path, **options: Any) -> packer.BuildResult:
    how: dict[str, Any] = {"preset": "faces", "size": 64, "encode": "png", "max_rejects": 1.0, "engine": "inline"}
    return packer.build(source, out, progress=False, **{**how, **options})


def frames_of(out: Path, name: str = "") -> list[int]:
    return [int(sample["frame"]) for sample in read_samples(out) if sample["source"].endswith(name)]


def test_a_video_in_an_archive_and_one_of_images_are_refilled_too(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "videos.tar", "w") as archive:
        archive.add(folder / "original.mp4", "000.mp4")
    build(tmp_path / "videos.tar", tmp_path / "tar", frames=len(SAMPLED), refill=True)
    assert frames_of(tmp_path / "tar") == TAKEN
    for number, frame in enumerate(views(FRAMES, faceless=FACELESS)):
        write_image(tmp_path / "frames" / "original" / f"{number}.png", frame)
    build(tmp_path / "frames", tmp_path / "images", frames=len(SAMPLED), refill=True, frame_folders=25)
    assert frames_of(tmp_path / "images") == TAKEN


class TestNeighbours:
    @given(st.integers(1, 3000), st.integers(1, 200))
    def test_each_frame_stands_in_for_the_sampled_frame_nearest_to_it(self, count: int, frames: int) -> None:
        near = neighbours(count, frames)
        sampled = spread(count, frames).tolist()
        assert list(near) == sampled
        listed = [index for some in near.values() for index in some]
        assert listed == sorted(set(listed))
        assert set(listed).isdisjoint(sampled)
        assert set(listed) <= set(range(count))
        for place, some in near.items():
            assert all(abs(index - place) == min(abs(index - other) for other in sampled) for index in some)
            assert sum(index < place for index in some) <= 4
            assert sum(index > place for index in some) <= 4

    @given(st.integers(2, 3000), st.integers(1, 200))
    def test_the_last_on_a_side_is_at_the_end_of_the_share(self, count: int, frames: int) -> None:
        near = neighbours(count, frames)
        ends = {place: max(place, *some) if some else place for place, some in near.items()}
        starts = {place: min(place, *some) if some else place for place, some in near.items()}
        assert min(starts.values()) == 0
        assert max(ends.values()) == count - 1
        assert all(starts[after] == ends[here] + 1 for here, after in pairwise(near))

    def test_in_a_short_share_every_frame_is_one(self) -> None:
        assert neighbours(9, 1) == {4: (0, 1, 2, 3, 5, 6, 7, 8)}
        assert neighbours(300, 1) == {150: (0, 66, 113, 141, 159, 187, 233, 299)}
        assert neighbours(3, 5) == {0: (), 1: (), 2: ()}


class TestPacked:
    def test_the_nearest_frame_with_a_face_is_taken(self, folder: Path, tmp_path: Path) -> None:
        """Through the command line; the samples are those that all frames give at these indices."""
        (tmp_path / "in").mkdir()
        for name in ("a.mp4", "b.mp4"):
            shutil.copy(folder / "original.mp4", tmp_path / "in" / name)
        how = ("--preset", "faces", "--size", 64, "--encode", "png", "--quiet")
        for name, workers in (("1", ("--engine", "inline")), ("2", ("--workers", 2))):
            done = run_packer("build", tmp_path / "in", tmp_path / name, *how, "--frames", 4, "--refill", *workers)
            assert done.stdout.splitlines()[1:] == ["2 sampled frames without a face replaced by a nearby frame"]
        assert fingerprints(tmp_path / "1") == fingerprints(tmp_path / "2")
        check_whole(tmp_path / "1")
        run_packer("build", tmp_path / "in", tmp_path / "all", *how, "--limit", 1, "--engine", "inline")
        whole = {int(sample["frame"]): sample for sample in read_samples(tmp_path / "all")}
        taken = [sample for sample in read_samples(tmp_path / "1") if sample["source"] == "a.mp4"]
        assert [int(sample["frame"]) for sample in taken] == TAKEN
        assert [int(sample["frame_position"]) for sample in taken] == [0, 1, 2]
        for sample in taken:
            other = whole[int(sample["frame"])]
            assert float(sample["time"]) == pytest.approx(int(sample["frame"]) / 25)
            for name in ("image", "matrix", "box", "landmarks", "time"):
                assert np.array_equal(sample[name], other[name]), name
        item = read_jsonl(Layout(tmp_path / "1").items)[0]
        assert (item["samples"], item["frames"], item["refilled"]) == (3, 4, 1)
        line = read_jsonl(Layout(tmp_path / "1").rejects)[0]
        assert line["frames"] == [35]
        assert line["reason"].endswith("a score of 0.95 and more in it or nearby: found none")

    def test_without_it_nothing_is_replaced(self, folder: Path, tmp_path: Path) -> None:
        result = build(folder, tmp_path / "out", frames=4)
        assert result.refilled is None
        assert frames_of(tmp_path / "out", "original.mp4") == [5, 25]

    def test_a_forgery_follows_its_original_and_its_mask_belongs_to_the_frame(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = {"path": "original.mp4", "original": "original.mp4", "mask": ""}
        forged = {"path": "forged.mp4", "original": "original.mp4", "mask": "mask.mp4"}
        searched = count_searched(monkeypatch)
        found, looked = {}, {}
        for name, rows in (("there", [original, forged]), ("back", [forged, original]), ("alone", [forged])):
            searched.clear()
            table = write_table(folder, f"{name}.csv", rows)
            how: dict[str, Any] = {"frames": 4, "refill": True, "boxes_from": "original", "also": "mask"}
            build(table, tmp_path / name, **how, choose="largest")
            looked[name] = sum(searched)
            found[name] = [s for s in read_samples(tmp_path / name) if s["source"] == "forged.mp4"]
            lines = [line for line in read_jsonl(Layout(tmp_path / name).rejects) if line["item"] == "forged.mp4"]
            assert [line["frames"] for line in lines] == [[35]]
        assert looked["there"] == looked["alone"]  # the faces of the original are remembered
        for samples in found.values():
            assert [int(sample["frame"]) for sample in samples] == TAKEN
            for sample, first in zip(samples, found["there"], strict=True):
                assert sample["mask_image_valid"]
                assert np.array_equal(sample["image"], first["image"])
                middle = int(sample["mask_image"][28:36, 28:36].mean())
                assert middle == pytest.approx(4 * int(sample["frame"]) + 20, abs=2)
        originals = [s for s in read_samples(tmp_path / "there") if s["source"] == "original.mp4"]
        for sample, first in zip(originals, found["there"], strict=True):
            assert np.array_equal(sample["matrix"], first["matrix"])

    def test_at_most_eight_more_frames_are_searched_for_each(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_frames(tmp_path / "in" / "coffee.mp4", views(60, faceless=range(60)))
        write_image(tmp_path / "in" / "portrait.png", photograph("astronaut"))
        searched = count_searched(monkeypatch)
        build(tmp_path / "in", tmp_path / "out", frames=3, refill=True)
        assert sum(searched) == 3 * 9 + 1
        (reject,) = read_jsonl(Layout(tmp_path / "out").rejects)
        assert reject["reason"].endswith("in it or nearby: found none (3 frames)")

    def test_an_item_without_any_face_keeps_its_sampled_frames(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "in" / "coffee.mp4", views(30, faceless=range(30)))
        build(tmp_path / "in", tmp_path / "out", frames=3, refill=True, keep_faceless=True)
        assert frames_of(tmp_path / "out") == [5, 15, 25]


class TestGivenBoxes:
    """Boxes of the user's own: no detector, every frame the same face."""

    def build(self, root: Path, with_face: Iterable[int], **options: Any) -> list[tuple[int, int]]:
        """Frame and track of every sample of a video of 60 frames in which the given frames have a face."""
        if not (root / "in" / "v.mp4").exists():
            write_video(root / "in" / "v.mp4", frames=60, container=FAST_START)
        rows = [{"path": "v.mp4", "frame": frame, **FACE} for frame in with_face]
        (root / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        how: dict[str, Any] = {"boxes": str(root / "boxes.jsonl"), "min_face": 20, "size": 32, "refill": True}
        result = build(root / "in", root / "out", overwrite=True, **{**how, **options})
        self.refilled = result.refilled
        check_whole(root / "out")
        return [(int(sample["frame"]), int(sample["track"])) for sample in read_samples(root / "out")]

    def test_of_two_at_the_same_distance_the_earlier_one(self, tmp_path: Path) -> None:
        assert self.build(tmp_path, [23, 37], frames=1) == [(23, 0)]
        assert self.build(tmp_path, [14, 37], frames=1) == [(37, 0)]

    def test_tracks_go_on_over_it_and_the_kept_track_is_chosen_from_all(self, tmp_path: Path) -> None:
        found = self.build(tmp_path, [6, 19, 30, 42, 54], frames=5, choose="track")
        assert found == [(frame, 0) for frame in (6, 19, 30, 42, 54)]
        assert self.refilled == 1

    def test_damaged_frames_are_replaced_too(self, tmp_path: Path) -> None:
        """Groups of twelve frames: the key frame after the damaged group is the last that is near 18."""
        path = write_video(tmp_path / "in" / "v.mp4", frames=60, container=FAST_START)
        damage(path, 12, 12)
        assert [frame for frame, _ in self.build(tmp_path, range(60), frames=5)] == [6, 24, 30, 42, 54]
        assert self.refilled == 1
        (line,) = read_jsonl(Layout(tmp_path / "out").rejects)
        assert line["kind"] == "damage"

    def test_a_face_that_is_too_small_does_not_count(self, tmp_path: Path) -> None:
        found = self.build(tmp_path, [15, 44], frames=2, min_face=40)
        assert found == [(15, 0), (44, 0)]
        with pytest.raises(TooManyRejectsError, match="item yielded no sample"):
            self.build(tmp_path, [14, 44], frames=2, min_face=41)
        (line,) = read_jsonl(tmp_path / "out" / ".build" / "rejects.jsonl")
        assert "largest face 40 px (score 1)" in line["reason"]
