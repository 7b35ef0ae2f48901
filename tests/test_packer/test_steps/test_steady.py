"""Steady crops of a video: two people, one who leaves and returns, and a hard cut."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, pairwise, product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import file_of, run_packer
from support.errors import raises
from support.face_source import FACE, views, write_frames
from support.faces import in_frame
from support.media import photograph, scene
from support.packed import check_whole, fingerprints, read_samples

import packer
from packer.recipe import Recipe
from packer.steps.faces import smoothing, step
from packer.steps.faces.frame import NO_FACES, FrameFaces, FramePlace
from packer.steps.faces.motion import steady_centre
from packer.steps.faces.smoothing import SteadyTracks, WaitingFrames
from packer.steps.faces.tracks import VideoTracks, differ, make_thumbnail
from packer.steps.report import ItemReport
from packer.vision.geometry.align import align_matrix, part_matrix
from packer.vision.geometry.crop import crop_matrix
from shardspec.errors import UsageError

FRAMES, CUT = 40, 24
SMOOTH, FILL = 5, 3
SHAPE = np.array([[-0.2, -0.2], [0.2, -0.2], [0.0, 0.0], [-0.15, 0.2], [0.15, 0.2]])
STAYS = (*range(10), *range(13, FRAMES))
RETURNS = (*range(2, 9), *range(16, CUT))
ONCE = (30,)
GAP = (10, 11, 12)
POINTLESS = 5
"""A frame in which the first person has a box and no points."""

NAMES = ("right_eye", "left_eye", "nose_tip", "mouth_right", "mouth_left")
Row = dict[str, Any]
Sample = dict[str, Any]


def face(person: int, frame: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A box and its points, with the jitter of a detector."""
    noise = np.random.default_rng((person, frame)).normal(size=(7, 2))
    centre = np.array([(60, 100), (220, 90), (150, 180)][person]) + np.array([0.8, 0.2]) * frame
    side = 60 + 2 * noise[0]
    box = np.concatenate([centre - side / 2, centre + side / 2]) + noise[1, 0]
    return box.astype(np.float32).astype(float), (centre + 60 * SHAPE + noise[2:]).astype(np.float32).astype(float)


def rows_of(name: str, tracks: Sequence[int] | None = None) -> list[Row]:
    rows = []
    for person, frames in enumerate((STAYS, RETURNS, ONCE)):
        for frame in frames:
            box, points = face(person, frame)
            row = {"path": name, "frame": frame, **dict(zip(("x0", "y0", "x1", "y1"), box.tolist(), strict=True))}
            keys = [f"{point}_{axis}" for point, axis in product(NAMES, "xy")]
            if (person, frame) != (0, POINTLESS):
                row |= dict(zip(keys, points.ravel().tolist(), strict=True))
            rows.append(row if tracks is None else {**row, "track": tracks[person]})
    return rows


def write_boxes(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The video three times, and the boxes of all. Where the boxes are, no texture tells how the faces move."""
    root = tmp_path_factory.mktemp("steady")
    frames = [*islice(views(3 * CUT), CUT), *[scene(2, (320, 240))] * (FRAMES - CUT)]
    for frame in frames:
        frame[60:150, 20:130] = frame[50:145, 180:290] = 128
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write_frames(root / "in" / name, frames)
    write_boxes(root / "boxes.jsonl", [row for name in ("a.mp4", "b.mp4", "c.mp4") for row in rows_of(name)])
    (root / "table.csv").write_text("path,mask\nin/a.mp4,in/a.mp4\n")
    return root


def build(folder: Path, out: Path, **options: Any) -> list[Sample]:
    """Pack the first of the videos."""
    how: dict[str, Any] = {"preset": "faces", "size": 64, "encode": "png", "engine": "inline", "limit": 1}
    source = options.pop("source", folder / "in")
    packer.build(source, out, progress=False, **{"boxes": str(folder / "boxes.jsonl"), **how, **options})
    check_whole(out)
    return read_samples(out)


@pytest.fixture(scope="module")
def samples(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return build(folder, tmp_path_factory.mktemp("out") / "out", smooth=SMOOTH, fill=FILL, align=True)


def by_track(samples: Sequence[Sample]) -> dict[int, dict[int, Sample]]:
    found: dict[int, dict[int, Sample]] = {}
    for sample in samples:
        found.setdefault(int(sample["track"]), {})[int(sample["frame"])] = sample
    return found


RUNS: Mapping[int, tuple[int, range]] = {
    0: (0, range(CUT)),
    1: (1, range(2, 9)),
    2: (1, range(16, CUT)),
    3: (0, range(CUT, FRAMES)),
    4: (2, range(30, 31)),
}
"""By track: the person, and the frames; the cut ends the first track, and the second person is away for too long."""


def filled(person: int, frame: int, part: int) -> npt.NDArray[np.float64]:
    """The box (0) or the points (1) of a person; between two frames where they are missing."""
    gap = GAP if part == 0 else (*GAP, POINTLESS)
    if person != 0 or frame not in gap:
        return face(person, frame)[part]
    before, after = (9, 13) if frame in GAP else (POINTLESS - 1, POINTLESS + 1)
    share = (frame - before) / (after - before)
    return (1 - share) * face(person, before)[part] + share * face(person, after)[part]


def window_of(person: int, frames: range, frame: int, part: int, span: int = SMOOTH) -> list[npt.NDArray[np.float64]]:
    """The boxes or points of a window that is held inside the track."""
    first = min(max(frame - span // 2, frames[0]), max(frames[-1] - span + 1, frames[0]))
    return [filled(person, k, part).reshape(-1, 2) for k in frames if first <= k < first + span]


def smoothed(person: int, frames: range, frame: int, part: int, span: int = SMOOTH) -> npt.NDArray[np.float64]:
    """The mean shape over the window, at the frame's own centre."""
    shape = np.mean([points - points.mean(axis=0) for points in window_of(person, frames, frame, part, span)], axis=0)
    return shape + filled(person, frame, part).reshape(-1, 2).mean(axis=0)


def test_tracks_end_at_a_cut_and_bridge_the_gaps_that_are_filled(samples: list[Sample]) -> None:
    tracks = by_track(samples)
    assert {track: list(frames) for track, frames in tracks.items()} == {
        track: list(frames) for track, (_, frames) in RUNS.items()
    }
    assert {sample["image"].shape for sample in samples} == {(64, 64, 3)}


def test_interpolated_faces_are_marked(samples: list[Sample]) -> None:
    marked = {(int(s["track"]), int(s["frame"])): s for s in samples if s["interpolated"]}
    assert list(marked) == [(0, frame) for frame in (POINTLESS, *GAP)]
    assert [bool(s["landmarks_valid"]) for s in samples] == [not s["interpolated"] for s in samples]
    for (_, frame), sample in marked.items():
        assert sample["box"] == pytest.approx(filled(0, frame, 0), abs=1e-3)
        moved = filled(0, frame, 1) @ sample["matrix"][:, :2].T + sample["matrix"][:, 2]
        assert sample["landmarks"] == pytest.approx(moved, abs=1e-2)
        assert (sample["score"] == 0) == (frame in GAP)


def test_crops_follow_the_mean_over_the_track(folder: Path, samples: list[Sample], tmp_path: Path) -> None:
    upright = by_track(build(folder, tmp_path / "out", smooth=SMOOTH, fill=FILL))
    for track, (person, frames) in RUNS.items():
        for frame in frames:
            sample = by_track(samples)[track][frame]
            by_points = align_matrix(smoothed(person, frames, frame, 1), 64, 0.3)
            assert sample["matrix"] == pytest.approx(by_points, abs=1e-3), (track, frame)
            box = smoothed(person, frames, frame, 0)
            assert upright[track][frame]["matrix"] == pytest.approx(crop_matrix(box, 0.3, 64), abs=1e-3)
            assert sample["box"] == pytest.approx(filled(person, frame, 0), abs=1e-3)  # is not smoothed


def test_the_points_of_mouth_crops_are_smoothed_too(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"crop": "mouth", "landmarks": "68"}
    raw = by_track(build(folder, tmp_path / "raw", **how))
    found = by_track(build(folder, tmp_path / "out", smooth=SMOOTH, **how))
    for track, frames in raw.items():
        points = {frame: in_frame(sample, sample["landmarks"]) for frame, sample in frames.items()}
        known = list(points)
        if known != list(range(known[0], known[-1] + 1)):
            continue  # a gap
        for frame, own in points.items():
            first = min(max(frame - SMOOTH // 2, known[0]), max(known[-1] - SMOOTH + 1, known[0]))
            window = [points[k] for k in known if first <= k < first + SMOOTH]
            shape = np.mean([each - each.mean(axis=0) for each in window], axis=0) + own.mean(axis=0)
            expected = part_matrix(shape, "auto-avsr-68", "mouth", 64)
            assert found[track][frame]["matrix"] == pytest.approx(expected, abs=0.02), frame
            assert in_frame(found[track][frame], found[track][frame]["landmarks"]) == pytest.approx(own, abs=0.01)


def test_the_centre_of_the_four_points_stays_in_place(folder: Path, tmp_path: Path) -> None:
    """As in auto_avsr, where the mouth is one of four points."""
    found = by_track(build(folder, tmp_path / "out", smooth=SMOOTH, fill=FILL, crop="mouth"))
    weights = np.array([2, 2, 2, 1, 1]) / 8
    for track, (person, frames) in RUNS.items():
        for frame in frames:
            own = filled(person, frame, 1).reshape(-1, 2)
            window = window_of(person, frames, frame, 1)
            moved = np.mean([each - weights @ each for each in window], axis=0) + weights @ own
            expected = part_matrix(moved, "auto-avsr-4", "mouth", 64)
            assert found[track][frame]["matrix"] == pytest.approx(expected, abs=1e-3), (track, frame)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, npt.NDArray[np.float64]]:
    """A face that moves slowly, by a quarter of its side a frame, and back, and where its centre is.

    Its boxes and points jitter. Those of frame 12 are wrong by a tenth of the side, and frames 40 to 42 have none.
    """
    root = tmp_path_factory.mktemp("moving")
    x = 150 + np.cumsum(np.repeat([1.0, 25.0, -1.0], [25, 10, 25]))
    centres = np.stack([x, 180 + np.rint(10 * np.sin(np.arange(60) / 5))], axis=1)
    left, top, right, bottom = FACE
    side, head = bottom - top, photograph("astronaut")[top - 20 : bottom + 20, left - 20 : right + 20]
    frames, rows = [], []
    for number, centre in enumerate(centres):
        frame = cv2.resize(photograph("coffee"), (640, 360))
        height, width = head.shape[:2]
        y, x0 = int(centre[1]) - height // 2, int(centre[0]) - width // 2
        frame[y : y + height, x0 : x0 + width] = head
        frames.append(frame)
        noise = np.random.default_rng(number).normal(size=(7, 2)) * 0.01 * side
        found = centre + (0.1 * side * np.array([number == 12, 0]))
        box = np.concatenate([found - side / 2, found + side / 2]) + np.tile(noise[0], 2)
        points = found + SHAPE * side + noise[1] + noise[2:]
        keys = [f"{point}_{axis}" for point, axis in product(NAMES, "xy")]
        row = dict(zip((*keys, "x0", "y0", "x1", "y1"), [*points.ravel().tolist(), *box.tolist()], strict=True))
        if number not in (40, 41, 42):
            rows.append({"path": "a.mp4", "frame": number, "track": 0, **row})
    write_frames(root / "in" / "a.mp4", frames)
    write_boxes(root / "boxes.jsonl", rows)
    return root, centres


@pytest.mark.parametrize("align", [False, True])
def test_the_face_stays_in_its_place(moving: tuple[Path, npt.NDArray[np.float64]], tmp_path: Path, align: bool) -> None:
    root, centres = moving

    def away(**options: Any) -> npt.NDArray[np.float64]:
        """How far the face is from its usual place in each crop, relative to the side."""
        samples = build(root, tmp_path / f"{len(options)}", align=align, fill=3, **options)
        places = np.array([s["matrix"] @ [*centre, 1] for s, centre in zip(samples, centres, strict=True)])
        return np.asarray(np.hypot(*(places - np.median(places, axis=0)).T) / 64)

    own, smoothing = away(), away(smooth=13)
    assert own[12] > 0.05
    assert smoothing.max() < 0.01
    assert np.quantile(smoothing, 0.9) < np.quantile(own, 0.9) / 2


@pytest.mark.parametrize(
    ("own", "carried", "expected"),
    [
        (10, {}, 10),  # no motion was found
        (10, {7: 11, 8: 12, 9: 11, 10: 10}, 11),
        (50, {7: 11, 8: 12, 9: 11, 10: 50, 11: 11}, 11),  # the frame's own points are wrong
        (50, {7: 11, 8: 12, 9: 11, 10: 50}, 50),  # the last frame: the points or the motion may be wrong
        (50, {7: 11, 8: 11, 9: 11, 10: 50, 11: 90, 12: 90, 13: 90}, 50),  # the motion is
        (50, {8: 11, 9: 11, 11: 11, 12: 11}, 11),  # interpolated
    ],
)
def test_a_centre_is_replaced_where_those_around_it_agree(
    own: float, carried: dict[int, float], expected: float
) -> None:
    found = steady_centre(10, np.array([own, 0.0]), {k: np.array([x, 0.0]) for k, x in carried.items()}, 100)
    assert found.tolist() == [expected, 0]


@pytest.mark.parametrize("per", ["track", "track-median"])
def test_one_square_for_a_track(folder: Path, tmp_path: Path, per: str) -> None:
    tracks = by_track(build(folder, tmp_path / "out", crop_per=per, fill=FILL))
    for track, (person, frames) in RUNS.items():
        boxes = np.array([filled(person, frame, 0) for frame in frames])
        box = np.median(boxes, axis=0)
        if per == "track":
            box = np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
        for frame in frames:
            assert tracks[track][frame]["matrix"] == pytest.approx(crop_matrix(box, 0.3, 64), abs=1e-3)
    if per == "track-median":
        aligned = by_track(build(folder, tmp_path / "aligned", crop_per=per, align=True))
        assert all(len({s["matrix"].tobytes() for s in track.values()}) == 1 for track in aligned.values())
        assert not aligned[0][POINTLESS]["landmarks_valid"]


def test_tracks_of_user_boxes_are_kept_and_not_smoothed_over_a_cut(folder: Path, tmp_path: Path) -> None:
    boxes = write_boxes(tmp_path / "boxes.jsonl", rows_of("a.mp4", (7, 3, -1)))
    tracks = by_track(build(folder, tmp_path / "out", boxes=str(boxes), smooth=SMOOTH, fill=FILL, align=True))
    assert {track: list(frames) for track, frames in tracks.items()} == {
        7: list(range(FRAMES)),
        3: list(RETURNS),
        -1: list(ONCE),
    }
    for track, (person, frames) in ((7, RUNS[0]), (7, RUNS[3]), (3, RUNS[1]), (3, RUNS[2])):
        for frame in frames:
            expected = align_matrix(smoothed(person, frames, frame, 1), 64, 0.3)
            assert tracks[track][frame]["matrix"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("per", ["track", "track-median"])
def test_one_square_for_a_track_of_user_boxes(folder: Path, tmp_path: Path, per: str) -> None:
    """The tracks have gaps that are not filled here, and one has a cut."""
    boxes = write_boxes(tmp_path / "boxes.jsonl", rows_of("a.mp4", (7, 3, -1)))
    tracks = by_track(build(folder, tmp_path / "out", boxes=str(boxes), crop_per=per))
    for track, person, frames in ((7, 0, STAYS), (3, 1, RETURNS)):
        assert list(tracks[track]) == list(frames)
        known = np.array([face(person, frame)[0] for frame in frames])
        box = np.median(known, axis=0)
        if per == "track":
            box = np.concatenate([known[:, :2].min(axis=0), known[:, 2:].max(axis=0)])
        for sample in tracks[track].values():
            assert sample["matrix"] == pytest.approx(crop_matrix(box, 0.3, 64), abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"choose": "largest", "smooth": SMOOTH, "fill": FILL},
        {"choose": "main", "smooth": SMOOTH, "fill": FILL, "align": True},
        {"choose": "track", "source": "table.csv", "also": "mask", "boxes_scale": 1.0},
        {"choose": "central", "crop_per": "track", "source": "table.csv", "also": "mask"},
        {"choose": "track", "keep_faceless": True, "min_face": 1000},
        {"fill": FILL, "keep_faceless": True},
        {"fill": 1, "smooth": 3, "steps": ["decode", "faces"]},
    ],
)
def test_bytes_do_not_depend_on_what_waits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Frames that are decoded again give what frames in memory give, at any number of frames in a batch."""
    if "source" in options:
        boxes = write_boxes(tmp_path / "boxes.jsonl", rows_of("in/a.mp4"))
        options = {**options, "source": folder / options["source"], "boxes": str(boxes)}
    found = build(folder, tmp_path / "held", **options)
    if "also" in options:
        assert all(np.array_equal(sample["image"], sample["mask_image"]) for sample in found)
    monkeypatch.setattr(smoothing, "MOST_BYTES", 3 * 320 * 240 * 3)
    monkeypatch.setattr(step, "BATCH_FRAMES", 1)
    build(folder, tmp_path / "again", **options)
    assert fingerprints(tmp_path / "held") == fingerprints(tmp_path / "again")


def test_a_dataset_of_steady_crops_grows(folder: Path, tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / "in").mkdir(exist_ok=True)
        shutil.copy2(folder / "in" / name, tmp_path / "in")
        how: dict[str, Any] = {"smooth": SMOOTH, "fill": FILL, "limit": None}
        build(folder, tmp_path / "grown", source=tmp_path / "in", update=name == "b.mp4", **how)
    whole = build(folder, tmp_path / "whole", source=tmp_path / "in", **how)
    grown = read_samples(tmp_path / "grown")
    assert [sample["source"] for sample in grown] == [sample["source"] for sample in whole]
    assert all(np.array_equal(one["image"], other["image"]) for one, other in zip(grown, whole, strict=True))
    with raises(UsageError, option="fill", hint="leave it out with `drop`, or rename it"):
        build(folder, tmp_path / "out", source=[{"path": "a.mp4", "interpolated": 1}], root=str(tmp_path / "in"), **how)


def test_crops_give_the_boxes_of_the_same_crops(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"smooth": SMOOTH, "fill": FILL, "every": 1}
    first = build(folder, tmp_path / "first", **how)
    second = build(folder, tmp_path / "second", boxes=str(tmp_path / "first"), **how)
    assert [s["frame"] for s in first] == [s["frame"] for s in second]
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(first, second, strict=True))
    seen = build(folder, tmp_path / "third", boxes=str(tmp_path / "first"), every=1)
    assert [s["frame"] for s in seen] == [s["frame"] for s in first if s["score"] > 0]


def test_detections_are_tracked_over_the_gaps_that_a_build_fills(folder: Path, tmp_path: Path) -> None:
    how = ("--detector", "support.detectors:Blinking", "--fill", 4, "--limit", 1, "--quiet", "--engine", "inline")
    run_packer("detect", folder / "in", tmp_path / "boxes", *how)
    crops = ("--preset", "faces", "--size", 64, "--smooth", 3)
    run_packer("build", folder / "in", tmp_path / "one", *how, *crops)
    given = ("--boxes", tmp_path / "boxes", "--fill", 4, "--limit", 1, "--quiet", "--engine", "inline")
    run_packer("build", folder / "in", tmp_path / "two", *crops, *given)
    one, two = read_samples(tmp_path / "one"), read_samples(tmp_path / "two")
    assert [int(s["frame"]) for s in one] == [*range(4, 20), *range(24, FRAMES)]  # nothing is filled in over a cut
    assert [int(s["track"]) for s in one] == [int(s["frame"] >= CUT) for s in one]
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(one, two, strict=True))


def test_the_longest_gap_is_filled_without_smoothing_too(folder: Path, tmp_path: Path) -> None:
    tracks = by_track(build(folder, tmp_path / "out", fill=FILL))
    assert {track: [*found] for track, found in tracks.items()} == {k: [*frames] for k, (_, frames) in RUNS.items()}


def test_frames_before_many_damaged_ones_are_smoothed() -> None:
    def place(number: int) -> FramePlace:
        box, points = face(0, number)
        faces = FrameFaces(box[None], np.ones(1, np.float32), points[None], tracks=np.array([0]))
        sample = {"image": np.zeros((2, 2, 3), np.uint8), "frame": number}
        return FramePlace(number, sample, faces, number=number)

    def boxes(numbers: Sequence[int]) -> list[Any]:
        video = SteadyTracks(Recipe(preset="faces", smooth=SMOOTH), WaitingFrames(None), ItemReport("v"))
        return [np.asarray(found.faces.cut_boxes) for found in video.steady(map(place, numbers))]

    assert np.array_equal(boxes([*range(10), *range(20, 30)])[:10], boxes(range(10)))


def test_frames_that_are_not_filled_are_reported(folder: Path, tmp_path: Path) -> None:
    rows = [row for row in rows_of("a.mp4") if row["frame"] < 8 or row["frame"] > 35]
    boxes = write_boxes(tmp_path / "boxes.jsonl", rows)
    build(folder, tmp_path / "out", boxes=str(boxes), fill=FILL)
    (line,) = map(json.loads, file_of(tmp_path / "out", "rejects.jsonl").read_text().splitlines())
    assert line["frames"] == list(range(8, 36))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"smooth": 4}, {"option": "smooth", "found": 4}),
        ({"crop_per": "track", "align": True}, {"option": "crop_per", "hint": "choose track-median"}),
        ({"preset": "images", "smooth": 5}, {"option": "smooth"}),
    ],
)
def test_meaningless_options_are_refused(options: dict[str, Any], wrong: dict[str, Any]) -> None:
    with raises(UsageError, **wrong):
        packer.Recipe(**{"preset": "faces", **options})


def cuts(*frames: npt.NDArray[np.uint8]) -> list[bool]:
    found = list(map(make_thumbnail, frames))
    return [differ(before, after) for before, after in pairwise(found)]


def test_a_cut_is_another_scene_not_a_flash_or_movement() -> None:
    picture = cv2.resize(photograph("astronaut"), (640, 360))
    other = cv2.resize(photograph("coffee"), (640, 360))
    flash = np.clip(picture.astype(int) + 90, 0, 255).astype(np.uint8)
    moved = np.roll(picture, 200, axis=1)
    black = np.zeros_like(picture)
    assert cuts(picture, flash, picture // 3, picture, moved, other, other, picture, black, black, picture) == [
        *[False] * 4,
        *(True, False, True, True, False, True),
    ]


@pytest.mark.parametrize("light", [0.5, 0.25, 0.1, 0.05])
def test_scenes_are_distinguished_in_dark_footage(light: float) -> None:
    names = ("astronaut", "coffee", "chelsea", "rocket")
    found = [make_thumbnail((cv2.resize(photograph(name), (640, 360)) * light).astype(np.uint8)) for name in names]
    assert all(differ(before, after) for before, after in combinations(found, 2))
    assert not any(differ(each, each) for each in found)


def shots(*frames: npt.NDArray[np.uint8], seconds: float = 0.04) -> list[int]:
    """The shot of each frame of a video."""
    places = (
        FramePlace(
            number, {"image": frame, "time": seconds * number}, replace(NO_FACES, thumbnail=make_thumbnail(frame))
        )
        for number, frame in enumerate(frames)
    )
    return [place.shot for place in VideoTracks(None, ItemReport("v.mp4"), None).follow(places)]


@pytest.mark.parametrize("value", [0, 17, 255])
def test_an_empty_frame_is_no_cut_but_may_hide_one(value: int) -> None:
    picture, other = (cv2.resize(photograph(name), (640, 360)) for name in ("astronaut", "coffee"))
    noise = np.random.default_rng(0).normal(value, 3, picture.shape)
    empty = noise.clip(0, 255).astype(np.uint8)
    assert shots(picture, empty, picture, empty, empty, empty, other, seconds=1) == [0] * 6 + [1]


def test_a_change_that_reverts_at_once_is_not_a_cut() -> None:
    a, b, c = (cv2.resize(photograph(name), (640, 360)) for name in ("astronaut", "coffee", "chelsea"))
    assert shots(a, a, b, a, a) == [0] * 5
    assert shots(a, a, b, c, a, a) == [0] * 6  # a flash that falls between two frames disturbs both
    assert shots(a, a, b, b, b, a, a) == [0, 0, 1, 1, 1, 2, 2]
    assert shots(a, a, b, c, c, c) == [0, 0, 1, 2, 2, 2]
    assert shots(a, b, a, b, b, b) == [0, 0, 0, 1, 1, 1]
    assert shots(a, a, b) == [0, 0, 1]
    assert shots(a, np.zeros_like(a), np.zeros_like(a), b, a) == [0, 0, 0, 1, 2]  # too long
    assert shots(a, a, b, a, a, seconds=0.3) == [0, 0, 1, 2, 2]  # a shot of which one frame is sampled


@pytest.mark.parametrize("rate", [25, 75])
def test_tracks_pass_through_a_flash(tmp_path: Path, rate: int) -> None:
    """A flash covers the lower part of one frame and the upper part of the next: the shutter rolls."""
    frames = list(islice(views(60), 20))
    for number, lit in ((9, slice(120, None)), (10, slice(120))):
        frames[number][lit] = (frames[number][lit] * 1.8 + 110).clip(0, 255).astype(np.uint8)
    write_frames(tmp_path / "in" / "a.mp4", frames)
    box = {"x0": 100, "y0": 60, "x1": 200, "y1": 170}
    boxes = write_boxes(tmp_path / "boxes.jsonl", [{"path": "a.mp4", "frame": frame, **box} for frame in range(20)])
    how: dict[str, Any] = {"source": tmp_path / "in", "boxes": str(boxes), "resample_fps": rate, "choose": "track"}
    assert len(build(tmp_path, tmp_path / "out", **how)) == 20 * rate // 25


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_a_cut_depends_on_neighbouring_frames_alone(scenes: list[int]) -> None:
    found = cuts(*(scene(number, (96, 72)) for number in scenes))
    assert found == [before != after for before, after in pairwise(scenes)]
