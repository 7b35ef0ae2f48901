"""Boxes given in a file: the kinds of file, and what becomes of them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import file_of, read_jsonl, run_packer
from support.errors import raises
from support.packed import check_whole, read_samples

import packer
from packer.steps.faces.box_table import POINTS
from packer.steps.faces.boxes import digest_file_or_folder, open_boxes
from packer.vision.geometry.affine import apply, invert
from shardspec.errors import ItemError, UsageError
from shardspec.layout import Layout

Samples = list[dict[str, Any]]


def build(source: Any, out: Path, **options: Any) -> Samples:
    chosen = {"preset": "faces", "size": 96, "every": 2, "encode": "png", "max_rejects": 1, **options}
    packer.build(source, out, engine="inline", progress=False, **chosen)
    check_whole(out)
    return read_samples(out)


@pytest.fixture(scope="module")
def detected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return build(source, tmp_path_factory.mktemp("detected") / "out")


def of(samples: Samples, name: str) -> Samples:
    return [sample for sample in samples if sample["source"] == name]


def write_json(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def rows_of(samples: Samples, *, points: bool = True, track: bool = True) -> list[dict[str, Any]]:
    """What a table of boxes says of detected samples."""
    rows = []
    for sample in samples:
        row = {"path": sample["source"], "frame": int(sample["frame"]), "score": float(sample["score"])}
        row |= dict(zip(("x0", "y0", "x1", "y1"), sample["box"].tolist(), strict=True))
        if track:
            row["track"] = int(sample["track"])
        if points:
            found = apply(invert(sample["matrix"]), sample["landmarks"])
            row |= dict(zip(POINTS, found.ravel().tolist(), strict=True))
        rows.append(row)
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def frames_of(samples: Samples, scale: float = 1.0) -> dict[str, Any]:
    """The DFDC tools' object for one video; frames without a face are null."""
    out: dict[str, Any] = dict.fromkeys(map(str, range(20)))
    for sample in samples:
        out[str(int(sample["frame"]))] = [(sample["box"] * scale).tolist()]
    return out


class TestTable:
    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
    def test_the_detectors_own_boxes_give_the_same_samples(
        self, source: Path, detected: Samples, tmp_path: Path, kind: str
    ) -> None:
        table = write_table(tmp_path / f"boxes.{kind}", rows_of(detected))
        found = build(source, tmp_path / "out", boxes=str(table))
        assert len(found) == len(detected)
        for a, b in zip(found, detected, strict=True):
            assert a.keys() == b.keys()
            for name in ("source", "frame", "track", "score", "box", "matrix", "image", "landmarks_valid"):
                assert np.array_equal(a[name], b[name]), name
            for name in ("landmarks", "hull", "regions"):
                assert np.allclose(a[name], b[name], atol=1e-3), name

    @pytest.mark.parametrize("kind", ["jsonl", "json"])
    def test_boxes_for_frames_that_are_not_sampled_are_counted(
        self, source: Path, detected: Samples, tmp_path: Path, kind: str
    ) -> None:
        rows = rows_of(of(detected, "clip.mp4"))
        if kind == "json":
            boxes = write_json(tmp_path / "boxes.json", {"clip.mp4": frames_of(of(detected, "clip.mp4"))})
        else:
            beyond = {**rows[-1], "frame": 10_000}
            boxes = write_table(tmp_path / "boxes.jsonl", [*rows, beyond])
        expected = sum(row["frame"] % 4 != 0 for row in rows) + (kind == "jsonl")
        assert expected > 1
        options: dict[str, Any] = {"preset": "faces", "size": 96, "every": 4, "boxes": str(boxes), "max_rejects": 1}
        result = packer.build(source, tmp_path / "out", engine="inline", progress=False, **options)
        assert result.unused_boxes == result.to_json()["unused_boxes"] == expected
        reported = f"\nunused boxes: {expected}, for frames that were not sampled or do not exist (a smaller --every"
        assert reported in result.describe()
        command = ("build", source, tmp_path / "out", "--preset", "faces", "--size", 96, "--boxes", boxes)
        again = run_packer(*command, "--every", 4, "--max-rejects", "100%")
        assert "unused boxes" not in again.stdout + again.stderr
        whole = run_packer(*command, "--every", 2, "--max-rejects", "100%", "--overwrite")
        assert ("unused boxes: 1, " in whole.stdout) == (kind == "jsonl")

    def test_without_points_there_are_no_landmarks(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        table = write_table(tmp_path / "boxes.jsonl", rows_of(detected, points=False, track=False))
        found = build(source, tmp_path / "out", boxes=str(table))
        for a, b in zip(found, detected, strict=True):
            assert np.array_equal(a["image"], b["image"])
            assert not a["landmarks_valid"]
            for name in ("landmarks", "hull", "regions"):
                assert (a[name].shape, a[name].dtype) == (b[name].shape, b[name].dtype)
                assert not a[name].any()
            assert a["track"] == b["track"]  # joined here

    def test_of_one_face_points_may_be_missing(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        rows = rows_of(of(detected, "pair.png"))
        rows[1][POINTS[3]] = None
        table = write_table(tmp_path / "boxes.jsonl", rows)
        found = build(source, tmp_path / "out", boxes=str(table))
        assert [bool(sample["landmarks_valid"]) for sample in found] == [True, False]
        (aligned,) = build(source, tmp_path / "aligned", boxes=str(table), align=True)
        assert aligned["box"].tolist() == found[0]["box"].tolist()
        damage = [
            line for line in read_jsonl(file_of(tmp_path / "aligned", "rejects.jsonl")) if line["kind"] == "damage"
        ]
        assert [line["item"] for line in damage] == ["pair.png"]
        assert "frame 0: a face could not be cut: expected five points" in damage[0]["reason"]

    @pytest.mark.parametrize("scale", [0.0, 1e4])
    def test_degenerate_points_cost_no_other_face(
        self, source: Path, detected: Samples, tmp_path: Path, scale: float
    ) -> None:
        rows = rows_of(of(detected, "pair.png"))
        rows[0] |= {name: 100.0 + scale * (rows[0][name] - 100.0) for name in POINTS}
        table = write_table(tmp_path / "boxes.jsonl", rows)
        (kept,) = build(source, tmp_path / "out", boxes=str(table), align=True)
        assert kept["box"].tolist() == pytest.approx([rows[1][edge] for edge in ("x0", "y0", "x1", "y1")])
        plain = build(source, tmp_path / "plain", boxes=str(table))
        assert [bool(sample["landmarks_valid"]) for sample in plain] == [not scale, True]
        assert all(np.isfinite(sample[name]).all() for sample in plain for name in ("landmarks", "hull", "regions"))

    @pytest.mark.parametrize("options", [{}, {"align": True}])
    def test_a_box_that_misses_the_frame_is_reported(
        self, source: Path, detected: Samples, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        # As when boxes of half-size frames are scaled twice.
        rows = rows_of(of(detected, "pair.png"))
        names = ("x0", "y0", "x1", "y1", *POINTS)
        far = {name: 4 * value for name, value in rows[1].items() if name in names}
        table = write_table(tmp_path / "boxes.jsonl", [rows[0], {**rows[1], **far}])
        (kept,) = build(source, tmp_path / "out", boxes=str(table), **options)
        assert kept["box"][0] < 512
        (damage,) = [
            line for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) if line["kind"] == "damage"
        ]
        assert "expected a box that touches the frame (870 x 512), found" in damage["reason"]

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
    @pytest.mark.parametrize(("name", "meant"), [("scores", "score"), ("Track", "track"), ("NOSE_TIP_X", "nose_tip_x")])
    def test_a_misspelt_column_is_refused(
        self, source: Path, detected: Samples, tmp_path: Path, kind: str, name: str, meant: str
    ) -> None:
        rows = [{**row, "source": "x", "core": 1} for row in rows_of(detected, track=False)]
        rows = [{key: value for key, value in row.items() if key not in ("score", *POINTS)} for row in rows]
        build(source, tmp_path / "fine", boxes=str(write_table(tmp_path / f"fine.{kind}", rows)))
        table = write_table(tmp_path / f"boxes.{kind}", [{**row, name: 0.5} for row in rows])
        with pytest.raises(
            UsageError, match=f"expected no column {name!r}, which nothing reads; did you mean {meant!r}"
        ):
            build(source, tmp_path / "out", boxes=str(table))

    def test_tracks_are_taken_as_given(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        rows = rows_of(of(detected, "clip.mp4"))
        for number, row in enumerate(rows):
            row["track"] = 7 if number in (1, 3, 4) else -1 if not number else 2
        table = write_table(tmp_path / "boxes.parquet", rows)
        tracks = [int(sample["track"]) for sample in build(source, tmp_path / "all", boxes=str(table))]
        assert tracks == [-1, 7, 2, 7, 7, 2, 2, 2]

    def test_a_track_is_one_face_of_a_frame(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        rows = [{**row, "track": 3} for row in rows_of(of(detected, "clip.mp4")) + rows_of(of(detected, "pair.png"))]
        rows[-2]["track"] = 4
        build(source, tmp_path / "fine", boxes=str(write_table(tmp_path / "fine.csv", rows)))
        rows[-2]["track"] = 3
        with pytest.raises(UsageError, match=f"line {len(rows) + 1}: expected each track once in a frame, found 3"):
            build(source, tmp_path / "out", boxes=str(write_table(tmp_path / "boxes.csv", rows)))

    def test_choice_and_limits_hold_for_given_boxes(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        table = str(write_table(tmp_path / "boxes.csv", rows_of(of(detected, "pair.png"))))
        (largest,) = build(source, tmp_path / "largest", boxes=table, choose="largest")
        assert largest["box"][0] < 512
        (kept,) = build(source, tmp_path / "kept", boxes=table, min_face=75)
        assert kept["box"][0] < 512

    def test_boxes_may_be_smaller_than_what_a_detector_finds(self, source: Path, tmp_path: Path) -> None:
        row = {"path": "pair.png", "frame": 0, "x0": 100, "y0": 100, "x1": 105, "y1": 109}
        table = str(write_table(tmp_path / "boxes.csv", [row]))
        (tiny,) = build(source, tmp_path / "tiny", boxes=table, min_face=5)
        assert tiny["box"].tolist() == [100, 100, 105, 109]
        with raises(UsageError, option="min_face", found=5):
            build(source, tmp_path / "found", min_face=5)

    def test_points_with_exchanged_sides_are_reported(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        """As CelebA names them: its lefteye is the person's right one."""
        rows = rows_of(detected)
        sides = [name for name in POINTS if "left" in name]
        others = {name: name.replace("left", "right") for name in sides}
        swapped = [
            {**row, **{a: row[b] for a, b in others.items()}, **{b: row[a] for a, b in others.items()}} for row in rows
        ]
        how: dict[str, Any] = {"preset": "faces", "every": 2, "max_rejects": 1, "engine": "inline", "progress": False}
        for name, table, count in (("as-found", rows, 0), ("swapped", swapped, 1)):
            boxes = str(write_table(tmp_path / f"{name}.csv", table))
            notes = packer.build(source, tmp_path / name, boxes=boxes, **how).notes
            assert sum("left and right seem to be exchanged" in note for note in notes) == count, notes

    def test_boxes_of_the_original(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        table = str(write_table(tmp_path / "boxes.csv", rows_of(of(detected, "astronaut.png"))))
        rows = write_table(source.parent / "rows.csv", [{"path": "faces/coffee.png", "of": "faces/astronaut.png"}])
        moved = [{**row, "path": "faces/" + row["path"]} for row in rows_of(of(detected, "astronaut.png"))]
        table = str(write_table(tmp_path / "boxes.csv", moved))
        (sample,) = build(rows, tmp_path / "out", boxes=table, boxes_from="of")
        assert sample["source"] == "faces/coffee.png"
        assert sample["box"].tolist() == of(detected, "astronaut.png")[0]["box"].tolist()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x1": 0.0, "x0": 0.0}, "line 1: expected a box with x0 < x1 and y0 < y1"),
            ({"y1": None}, "line 1: expected a box"),
            ({"frame": 1.5}, "line 1: expected a whole number of 0 or more in column 'frame'"),
            ({"frame": -1}, "expected a whole number of 0 or more"),
            ({"score": 95}, "expected a score from 0 to 1"),
            ({"x0": "left"}, "expected numbers in column 'x0'"),
            (
                {"x0": 0.1, "y0": 0.2, "x1": 0.5, "y1": 1},
                "expected boxes in pixels of the frame, found all of them within",
            ),
            ({"path": "other.png"}, "expected boxes under the items' paths, such as 'astronaut.png', found others"),
        ],
    )
    def test_tables_that_are_not_of_boxes(
        self, source: Path, detected: Samples, tmp_path: Path, change: dict[str, Any], message: str
    ) -> None:
        row = rows_of(of(detected, "astronaut.png"))[0]
        table = write_table(tmp_path / "boxes.jsonl", [{**row, **change}])
        with pytest.raises(UsageError, match=message):
            build(source, tmp_path / "out", boxes=str(table))

    def test_columns_that_are_missing(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        row = rows_of(of(detected, "astronaut.png"))[0]
        for gone in ("frame", "mouth_left_y"):
            table = write_table(tmp_path / f"{gone}.csv", [{name: v for name, v in row.items() if name != gone}])
            with pytest.raises(UsageError, match=f"expected columns {gone}, found path"):
                build(source, tmp_path / "out", boxes=str(table))


class TestJson:
    def test_a_folder_of_half_size_boxes_as_the_dfdc_tools_write_it(
        self, source: Path, detected: Samples, tmp_path: Path
    ) -> None:
        clip = of(detected, "clip.mp4")
        write_json(tmp_path / "boxes" / "clip.json", frames_of(clip, 0.5))
        arguments = ("--boxes", tmp_path / "boxes", "--boxes-scale", 2)
        shape = ("--preset", "faces", "--size", 96, "--every", 2, "--encode", "png", "--max-rejects", "100%", "--quiet")
        run_packer("build", source, tmp_path / "out", *shape, *arguments)
        found = read_samples(tmp_path / "out")
        assert [int(sample["frame"]) for sample in found] == [int(sample["frame"]) for sample in clip]
        for a, b in zip(found, clip, strict=True):
            for name in ("box", "matrix", "image", "track"):
                assert np.array_equal(a[name], b[name]), name
            assert (float(a["score"]), bool(a["landmarks_valid"])) == (1.0, False)
        lines = {line["item"]: line for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
        assert lines["clip.mp4"]["frames"] == [8, 10]
        assert "expected" in lines["pair.png"]["reason"]
        assert "found no such file" in lines["pair.png"]["reason"]

    def test_one_file_for_all_items(self, source: Path, detected: Samples, tmp_path: Path) -> None:
        items = {"clip.mp4": frames_of(of(detected, "clip.mp4")), "coffee.png": {"0": [[10, 10, 90, 90]]}}
        items["clip.mp4"].pop("4")
        boxes = write_json(tmp_path / "boxes.json", items)
        found = build(source, tmp_path / "out", boxes=str(boxes))
        assert {sample["source"] for sample in found} == {"clip.mp4", "coffee.png"}
        lines = {line.get("reason"): line for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
        assert lines["the boxes have no entry for it"]["frames"] == [4]

    @pytest.mark.parametrize(
        "document",
        [
            [[1, 2, 3, 4]],
            {"first": None},
            {"1": None, "01": None},
            {"-1": None},
            {"0": [1, 2, 3, 4]},
            {"0": [[1, 2, 3]]},
            {"0": [[1, 2, 3, 4], [1]]},
            {"0": [[3, 2, 1, 4]]},
            {"0": [[0, 0, 1e30, 1]]},
            {"0": [[0, 0, float("nan"), 1]]},
            {"0": "boxes"},
            {"0": [["1", "2", "3", "4"]]},
            {"0": {}},
            {"0": 0},
        ],
    )
    def test_an_invalid_file_of_boxes_rejects_only_its_item(self, tmp_path: Path, document: Any) -> None:
        path = write_json(tmp_path / "boxes.json", {"bad.mp4": document, "good.mp4": {"0": [[1, 2, 3, 4]], "003": []}})
        sidecar = open_boxes(str(path), 1.0)
        with pytest.raises(ItemError, match=r"boxes: boxes\.json, 'bad\.mp4'"):
            sidecar.faces("bad.mp4")
        good = sidecar.faces("good.mp4")
        assert {frame: faces.boxes.tolist() for frame, faces in good.items()} == {0: [[1, 2, 3, 4]], 3: []}
        with raises(ItemError, place="boxes", found="none"):
            sidecar.faces("else.mp4")

    def test_the_nearest_file_counts_and_one_file_for_two_items_is_refused(self, tmp_path: Path) -> None:
        write_json(tmp_path / "clip.json", {"0": [[0, 0, 1, 1]]})
        write_json(tmp_path / "a" / "clip.json", {"0": [[0, 0, 2, 2]]})
        write_json(tmp_path / "b" / "clip.mp4.json", {"0": [[0, 0, 3, 3]]})
        sidecar = open_boxes(str(tmp_path), 1.0)
        sidecar.check(["a/clip.mp4", "b/clip.mp4", "c/clip.mp4", "d/other.mp4"])
        right = [sidecar.faces(f"{folder}/clip.mp4")[0].boxes[0, 2] for folder in "abc"]
        assert right == [2, 3, 1]
        with pytest.raises(UsageError, match=r"would be for 'c/clip.mp4' and for 'e/clip.mp4'"):
            sidecar.check(["c/clip.mp4", "e/clip.mp4"])
        with raises(UsageError, option="boxes", found="none for any item"):
            sidecar.check(["d/other.mp4"])


class TestPlan:
    def test_the_manifest_records_the_name_and_the_digest(
        self, source: Path, detected: Samples, tmp_path: Path
    ) -> None:
        table = write_table(tmp_path / "boxes.csv", rows_of(detected))
        build(source, tmp_path / "out", boxes=str(table))
        generation = Layout(tmp_path / "out").load().generations[0]
        assert generation.recipe["boxes"] == "boxes.csv"
        assert generation.runtime["boxes"] == digest_file_or_folder(str(table))
        # Moved, it is the same build; with other content it is not.
        (tmp_path / "moved").mkdir()
        moved = table.rename(tmp_path / "moved" / "boxes.csv")
        build(source, tmp_path / "out", boxes=str(moved))
        write_table(moved, rows_of(detected)[1:])
        with pytest.raises(UsageError, match="another plan"):
            build(source, tmp_path / "out", boxes=str(moved))

    @pytest.mark.parametrize("options", [{"align": True}, {"landmarks": "68"}])
    def test_options_that_need_points_are_refused_without_points(
        self, source: Path, detected: Samples, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        boxes = write_json(tmp_path / "boxes.json", {"clip.mp4": frames_of(of(detected, "clip.mp4"))})
        with raises(UsageError, found="none"):
            build(source, tmp_path / "out", boxes=str(boxes), **options)

    def test_a_missing_file_or_one_of_another_kind(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="found nothing at"):
            build(source, tmp_path / "out", boxes=str(tmp_path / "none.csv"))
        (tmp_path / "boxes.txt").write_text("")
        with raises(UsageError, option="boxes", found="'boxes.txt'"):
            build(source, tmp_path / "out", boxes=str(tmp_path / "boxes.txt"))
        (tmp_path / "boxes.json").write_text("{")
        with pytest.raises(UsageError, match=r"expected JSON, found a syntax error: .* \(line 1 column 2\)"):
            build(source, tmp_path / "out", boxes=str(tmp_path / "boxes.json"))
        with pytest.raises(UsageError, match="boxes: read only by the step 'faces'"):
            build(source, tmp_path / "out", boxes="boxes.json", preset="images")
