"""`packer.list_dataset` over small copies of public datasets in their exact layouts, and over what copies get wrong."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import known_trees as trees
from support.command import run_packer
from support.errors import raises

import packer
from packer.known.listing import KNOWN
from packer.known.tree import COLUMNS
from shardspec.errors import UsageError


def listed(name: str, root: Path, out: Path | None = None, **options: Any) -> packer.DatasetList:
    return packer.list_dataset(name, root, out, progress=False, **options)


def column(found: packer.DatasetList, *names: str) -> list[Any]:
    """The values of one column, or tuples of several."""
    return [row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in found.rows]


@pytest.fixture(autouse=True)
def empty_videos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list opens no video, so empty files do."""
    monkeypatch.setattr(trees, "portrait_video", lambda: b"")
    monkeypatch.setattr(trees, "faceless_video", lambda: b"")


def test_faceforensics_is_split_by_pairs_and_a_forgery_belongs_to_its_target(tmp_path: Path) -> None:
    found = listed("faceforensics", trees.make_faceforensics(tmp_path), tmp_path / "t.csv")
    youtube = "original_sequences/youtube/c23/videos"
    forged = "manipulated_sequences/Deepfakes"
    assert found.rows[:2] == (
        {
            "path": f"{youtube}/000.mp4",
            "label": "real",
            "split": "test",
            "original": f"{youtube}/000.mp4",
            "mask": None,
            "method": "real",
            "compression": "c23",
            "donor": None,
            "group": "000_003",
        },
        {
            "path": f"{forged}/c23/videos/000_003.mp4",
            "label": "fake",
            "split": "test",
            "original": f"{youtube}/000.mp4",
            "mask": f"{forged}/masks/videos/000_003.mp4",
            "method": "Deepfakes",
            "compression": "c23",
            "donor": "003",
            "group": "000_003",
        },
    )
    assert len(found.rows) == 3 * (2 + 2 * 2)
    assert {row["split"] for row in found.rows if "071" in row["path"] or "054" in row["path"]} == {"train"}
    assert found.counts["method"] == {"Deepfakes": 6, "FaceSwap": 6, "real": 6}
    assert (found.missing, found.unlisted) == ((), ())
    assert any("DeepFakeDetection is left out, since it has no official split" in note for note in found.notes)
    assert any("expected pairs train 360, val 70, test 70, found train 1, val 1, test 1" in n for n in found.notes)


def test_missing_and_unlisted_files_of_faceforensics_are_named(tmp_path: Path) -> None:
    root = trees.make_faceforensics(tmp_path)
    youtube = "original_sequences/youtube/c23/videos"
    (root / youtube / "071.mp4").unlink()
    (root / "manipulated_sequences/FaceSwap/c23/videos/003_000.mp4").unlink()
    (root / "manipulated_sequences/FaceSwap/masks/videos/720_672.mp4").unlink()
    trees.put(root, [f"{youtube}/999.mp4"], b"")
    found = listed("faceforensics", root)
    assert found.missing == (f"{youtube}/071.mp4", "manipulated_sequences/FaceSwap/c23/videos/003_000.mp4")
    assert found.unlisted == (f"{youtube}/999.mp4",)
    text = found.describe()
    assert f"missing files: 2: {youtube}/071.mp4, manip" in text
    assert f"files in no list: 1: {youtube}/999.mp4" in text
    assert "FaceSwap: 1 of 5 forgeries without a mask (720_672)" in found.notes
    assert "forgeries whose original is unknown or missing: 2: " in text
    assert [row["original"] for row in found.rows if "071_054" in row["path"]] == [None, None]


def test_of_two_videos_with_one_name_the_other_is_not_listed(tmp_path: Path) -> None:
    root = trees.make_lrw(tmp_path)
    (video, *_) = column(listed("lrw", root), "path")
    trees.put(root, [f"{video[:-4]}.avi"], b"")
    found = listed("lrw", root)
    assert column(found, "path")[0] == video
    assert f"{video[:-4]}.avi" in found.unlisted


def test_a_part_of_faceforensics_is_chosen(tmp_path: Path) -> None:
    root = trees.make_faceforensics(tmp_path, ("c23", "c40"), masks=())
    with pytest.raises(
        UsageError, match=r"compression: expected a choice, since c23, c40 are present: --compression c23"
    ):
        listed("faceforensics", root)
    found = listed("faceforensics", root, compression="c40", methods=["FaceSwap"], splits="train, val")
    assert set(column(found, "method", "compression", "split")) == {
        (method, "c40", split) for method in ("real", "FaceSwap") for split in ("train", "val")
    }
    assert "/c40/" in found.rows[0]["original"]
    assert "mask" not in found.columns
    assert len(listed("faceforensics", root, compression="c23,c40").rows) == 2 * 18
    (root / "splits/test.json").unlink()
    found = listed("faceforensics", root, compression="c23", splits="train")
    assert set(column(found, "split")) == {"train"}
    assert (len(found.rows), found.missing, found.unlisted) == (6, (), ())


def test_the_actors_of_faceforensics_have_no_split(tmp_path: Path) -> None:
    root = trees.make_faceforensics(tmp_path)
    found = listed("faceforensics", root, methods="DeepFakeDetection")
    assert "split" not in found.columns
    fake = next(row for row in found.rows if row["label"] == "fake")
    assert (fake["person"], fake["donor"]) == ("01", "02")
    assert fake["original"] == "original_sequences/actors/c23/videos/01__hall.mp4"
    assert "DeepFakeDetection has no official split: its rows have none" in found.notes
    with pytest.raises(UsageError, match="DeepFakeDetection has no official split: leave out --splits"):
        listed("faceforensics", root, methods="DeepFakeDetection", splits="train")


def test_the_lists_of_faceforensics_may_be_elsewhere_or_omitted(tmp_path: Path) -> None:
    root = trees.make_faceforensics(tmp_path / "ff")
    (root / "splits").rename(tmp_path / "elsewhere")
    with pytest.raises(
        UsageError,
        match=r"the official list train.json, found none: download dataset/splits of github.com/ondyari/FaceForensics",
    ):
        listed("faceforensics", root)
    assert len(listed("faceforensics", root, lists=tmp_path / "elsewhere").rows) == 18
    found = listed("faceforensics", root, lists="none")
    assert "split" not in found.columns
    assert set(column(found, "group")) == {"000_003", "054_071", "672_720"}
    (tmp_path / "elsewhere/val.json").write_text('[["071", "720"]]')
    with raises(UsageError, expected="each video in one pair", found="'071' in two"):
        listed("faceforensics", root, lists=tmp_path / "elsewhere")


def test_dfdc_is_found_however_its_parts_are_nested(tmp_path: Path) -> None:
    found = listed("dfdc", trees.make_dfdc(tmp_path))
    part = "dfdc_train_part_00/dfdc_train_part_0"
    assert column(found, "path", "label", "split", "original", "group")[:2] == [
        (f"{part}/a.mp4", "real", "train", f"{part}/a.mp4", "dfdc_train_part_0"),
        (f"{part}/ax.mp4", "fake", "train", f"{part}/a.mp4", "dfdc_train_part_0"),
    ]
    test = [row for row in found.rows if row["split"] == "test"]
    assert [(row["path"], row["label"]) for row in test] == [("test/t0.mp4", "real"), ("test/t1.mp4", "fake")]
    assert found.counts["label"] == {"fake": 5, "real": 5}
    assert len(listed("dfdc", tmp_path, splits="test").rows) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\nt0.mp4,1\n", "expected the columns filename and label, found name, label"),
        ("filename,label\n" + "x" * 200_000, "expected CSV, field larger than field limit"),
        ("filename,label\n/etc/t0.mp4,1\n", "expected paths below the dataset's folder, found '/etc/t0.mp4'"),
    ],
)
def test_labels_that_are_not_those_of_dfdc(tmp_path: Path, text: str, message: str) -> None:
    trees.put(tmp_path, ["t0.mp4"], b"")
    trees.put_text(tmp_path, "labels.csv", text)
    with pytest.raises(UsageError, match=message):
        listed("dfdc", tmp_path)


def test_parts_of_dfdc_behind_links_are_named(tmp_path: Path) -> None:
    trees.make_dfdc(tmp_path / "disk")
    trees.make_dfdc(tmp_path / "dfdc")
    (tmp_path / "dfdc/part_49").symlink_to(tmp_path / "disk/dfdc_train_part_1", target_is_directory=True)
    found = listed("dfdc", tmp_path / "dfdc")
    assert len(found.rows) == 10
    assert "links to folders are not followed: part_49" in found.notes


def test_the_preview_of_dfdc(tmp_path: Path) -> None:
    entries = {
        "original_videos/7/7_A_000.mp4": {"label": "real", "set": "train", "target_id": None, "swapped_id": None},
        "method_A/12/12_C_0.mp4": {"label": "fake", "set": "test", "target_id": "12", "swapped_id": 7},
    }
    trees.put(tmp_path, entries, b"")
    trees.put_text(tmp_path, "dataset.json", json.dumps(entries))
    found = listed("dfdc", tmp_path, tmp_path / "t.csv")
    assert column(found, "label", "split", "method", "person", "donor") == [
        ("fake", "test", "method_A", "12", "7"),
        ("real", "train", "real", None, None),
    ]
    assert "original" not in found.columns
    assert "--classes real,fake --preset faces --frames 16 " in found.describe()
    assert found.describe().endswith("--encode png --text person --text donor")


@pytest.mark.parametrize(("youtube", "inner"), [("YouTube-real", ""), ("Youtube-real", "videos")])
def test_celeb_df_counts_1_as_real_and_keeps_the_first_line(tmp_path: Path, youtube: str, inner: str) -> None:
    found = listed("celeb-df", trees.make_celeb_df(tmp_path, youtube, inner))
    middle = f"{inner}/" if inner else ""
    rows = {Path(row["path"]).stem: row for row in found.rows}
    assert {name: (row["label"], row["split"]) for name, row in rows.items()} == {
        "id0_0000": ("real", "train"),
        "id1_0000": ("real", "train"),
        "id2_0000": ("real", "test"),
        "00000": ("real", "train"),
        "00170": ("real", "test"),
        "id0_id1_0000": ("fake", "train"),
        "id1_id0_0000": ("fake", "train"),
        "id2_id1_0000": ("fake", "test"),
    }
    forgery = rows["id0_id1_0000"]
    assert forgery["original"] == f"Celeb-real/{middle}id0_0000.mp4"
    assert (forgery["person"], forgery["donor"]) == ("id0", "id1")
    assert rows["00170"]["path"] == f"{youtube}/{middle}00170.mp4"
    assert (rows["id1_0000"]["person"], rows["00170"]["person"]) == ("id1", "youtube-00170")
    assert (found.missing, found.unlisted, found.notes) == ((), (), ())


@pytest.mark.parametrize("celeb_df", ["Celeb-DF", "Celeb-DF-v2"])
def test_the_forgeries_of_celeb_df_pp_are_one_level_deeper(tmp_path: Path, celeb_df: str) -> None:
    root = trees.make_celeb_df_pp(tmp_path, celeb_df)
    found = listed("celeb-df", root, tmp_path / "t.csv")
    assert (found.missing, found.unlisted) == ((), ())
    assert found.counts["method"] == {celeb_df: 2, "BlendFace": 2, "DaGAN": 2, "SadTalker": 2, "real": 4}
    assert found.counts["split"] == {"test": 5, "train": 7}
    fakes = {row["path"]: row for row in found.rows if row["label"] == "fake"}
    swapped, animated = (
        f"Celeb-synthesis/{name}/id2_id1_0000.mp4" for name in ("FaceSwap/BlendFace", "FaceReenact/DaGAN")
    )
    assert fakes[swapped] | {"original": "Celeb-real/id2_0000.mp4", "split": "test", "donor": "id1"} == fakes[swapped]
    # Its frames are not those of the person's video, whose boxes would cut it anywhere.
    assert fakes[animated] | {"original": None, "split": "test", "person": "id2"} == fakes[animated]
    assert any("unknown or missing: 4: " in note for note in found.notes)
    some = listed("celeb-df", root, methods="DaGAN", splits="test")
    assert column(some, "method", "path") == [("real", "Celeb-real/id2_0000.mp4"), ("DaGAN", animated)]
    for method in ("FaceSwap/BlendFace", "TalkingFace/SadTalker"):
        (root / f"Celeb-synthesis/{method}/id2_id1_0000.mp4").unlink()
    assert listed("celeb-df", root).missing == (swapped, "Celeb-synthesis/TalkingFace/SadTalker/id2_id1_0000.mp4")
    assert listed("celeb-df", root, methods="DaGAN,BlendFace").missing == (swapped,)


def test_the_list_of_celeb_df_from_another_system_and_with_contradictions(tmp_path: Path) -> None:
    root = trees.make_celeb_df(tmp_path)
    path = root / "List_of_testing_videos.txt"
    path.write_bytes(b"\xef\xbb\xbf1 YouTube-real\\00170.mp4\r\n0 Celeb-synthesis\\id9_id1_0000.mp4\r\n")
    found = listed("celeb-df", root)
    assert [row["path"] for row in found.rows if row["split"] == "test"] == ["YouTube-real/00170.mp4"]
    assert found.missing == ("Celeb-synthesis/id9_id1_0000.mp4",)
    path.write_text("1 YouTube-real/00170.mp4\n1 Celeb-synthesis/id0_id1_0000.mp4\n")
    with pytest.raises(
        UsageError, match=r"line 2: expected 0 before a fake video \(in this list 1 is real\), found '1 C"
    ):
        listed("celeb-df", root)
    path.write_text("1 ../secret.mp4\n")
    with pytest.raises(UsageError, match=r"line 1: expected paths below the dataset's folder, found '\.\./secret.mp4'"):
        listed("celeb-df", root)
    path.unlink()
    with raises(UsageError, expected="the official list List_of_testing_videos.txt", found="none"):
        listed("celeb-df", root)
    assert len(listed("celeb-df", root, lists="none").rows) == 8


def test_lav_df_has_the_seconds_that_are_forged(tmp_path: Path) -> None:
    root = trees.make_lav_df(tmp_path)
    found = listed("lav-df", root, tmp_path / "t.csv")
    assert column(found, "path", "label", "split", "original", "modified", "fake_periods", "duration")[:3] == [
        ("dev/000002.mp4", "real", "val", "dev/000002.mp4", "none", [], 0.16),
        ("dev/000003.mp4", "fake", "val", "dev/000002.mp4", "video", [[0.04, 0.16]], 0.16),
        ("test/000004.mp4", "real", "test", "test/000004.mp4", "none", [], 0.16),
    ]
    assert found.counts["modified"] == {"audio": 1, "none": 3, "video": 3}
    assert (found.missing, found.unlisted, found.notes) == ((), (), ())
    assert found.describe().endswith("--preset faces --size 224 --choose main --intervals fake_periods")
    assert "boxes-from" not in found.describe()  # a forged word is longer or shorter than the original one
    assert "audio_frames" not in found.columns


def edit_json(path: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the entries of a list."""
    entries = json.loads(path.read_text())
    edit(entries)
    path.write_text(json.dumps(entries))


def test_errors_in_the_metadata_of_lav_df_are_counted(tmp_path: Path) -> None:
    root = trees.make_lav_df(tmp_path)

    def edit(entries: list[dict[str, Any]]) -> None:
        entries[1] |= {"file": "train\\000001.mp4", "fake_periods": [[0.12, 0.04]], "original": "train/999999.mp4"}
        entries += [entries[0], {**entries[0], "file": "train/000007.mp4"}]

    edit_json(root / "metadata.min.json", edit)
    (root / "metadata.min.json").rename(root / "metadata.json")
    trees.put(root, ["dev/extra.mp4"], b"")
    found = listed("lav-df", root)
    row = next(row for row in found.rows if row["path"] == "train/000001.mp4")
    assert (row["fake_periods"], row["original"]) == (None, None)
    assert (found.missing, found.unlisted) == (("train/000007.mp4",), ("dev/extra.mp4",))
    assert found.notes == (
        "files that a list names again, whose first entry counts: 1: train/000000.mp4",
        "files whose intervals are malformed, and left out: 1: train/000001.mp4",
        "forgeries whose original is unknown or missing: 1: train/000001.mp4 "
        "(--boxes-from original detects faces in the forgeries themselves)",
    )
    assert column(listed("lav-df", root, splits="val"), "split") == ["val", "val"]
    edit_json(root / "metadata.json", lambda entries: entries[0].update(split="holdout"))
    with raises(UsageError, expected="a split for 'train/000000.mp4', one of train, dev, val, test", found="'holdout'"):
        listed("lav-df", root)
    (root / "metadata.json").unlink()
    with raises(UsageError, expected="metadata.min.json or metadata.json (LAV-DF)"):
        listed("lav-df", root)


@pytest.mark.parametrize("plus_plus", [False, True], ids=["1m", "plus_plus"])
def test_av_deepfake1m_lists_the_forged_intervals_of_each_stream(tmp_path: Path, plus_plus: bool) -> None:
    root = trees.make_av_deepfake1m(tmp_path, plus_plus=plus_plus)
    found = listed("av-deepfake1m", root, tmp_path / "t.csv")
    person = "vox_celeb_2/id06745" if plus_plus else "id06745"
    folder = f"train/{person}/_c3CCbnZEbU/00011"
    columns = ("path", "label", "original", "modified", "method", "person")
    segments = ("fake_segments", "visual_fake_segments", "audio_fake_segments")
    real, seen = f"{folder}/real.mp4", f"{folder}/fake_video_real_audio.mp4"
    rows = {row["path"]: row for row in found.rows}
    assert [rows[real][name] for name in columns] == [real, "real", real, "none", "real", person]
    method = "Talklip" if plus_plus else "visual_modified"
    assert [rows[seen][name] for name in columns] == [seen, "fake", real, "video", method, person]
    assert [rows[seen][name] for name in segments] == [[[0.04, 0.08]], [[0.04, 0.08]], []]
    assert found.counts["modified"] == {"audio": 2, "both": 2, "none": 2, "video": 2}
    assert (found.missing, found.unlisted) == ((), ())
    assert found.notes == ("test is left out, since it has no labels: --splits test lists it",)
    assert found.describe().endswith("".join(f" --intervals {name}" for name in segments))
    test = listed("av-deepfake1m", root, splits="test")
    assert test.rows == ({"path": "test/000000.mp4", "split": "test"},)


def test_both_parts_of_the_test_of_av_deepfake1m_plus_plus_are_splits(tmp_path: Path) -> None:
    root = trees.make_av_deepfake1m(tmp_path, plus_plus=True)
    (root / "test_files.txt").unlink()
    for part, name in (("testA", "testA/000000.mp4"), ("testB", "000001.mp4")):
        (root / f"{part}_files.txt").write_text(f"{PurePosixPath(name).name}\n")
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "test/000000.mp4", root / name)
    assert [note.split()[0] for note in listed("av-deepfake1m", root).notes] == ["testA", "testB"]
    found = listed("av-deepfake1m", root, splits="testA,testB")
    assert found.rows == ({"path": "000001.mp4", "split": "testB"}, {"path": "testA/000000.mp4", "split": "testA"})
    with raises(UsageError, expected="the official list test_files.txt", found="none"):
        listed("av-deepfake1m", root, splits="test")


def test_missing_files_of_av_deepfake1m_are_named(tmp_path: Path) -> None:
    root = trees.make_av_deepfake1m(tmp_path / "pp", plus_plus=True)
    (root / "val/vox_celeb_2").rename(root / "vox_celeb_2")  # where the archive of val unpacks to
    (root / "train_metadata.json").unlink()
    found = listed("av-deepfake1m", root)
    assert column(found, "split") == ["val"] * 4
    assert "lists that do not exist: train_metadata.json" in found.notes
    assert found.rows[0]["original"] == "vox_celeb_2/id06743/_c3CCbnZEbU/00011/real.mp4"
    with raises(UsageError, expected="the official list train_metadata.json", found="none"):
        listed("av-deepfake1m", root, splits="train")
    (root / found.rows[0]["path"]).unlink()
    found = listed("av-deepfake1m", root)
    assert found.missing == ("val/vox_celeb_2/id06743/_c3CCbnZEbU/00011/real.mp4",)
    assert "original" not in found.columns
    edit_json(root / "val_metadata.json", lambda entries: entries[1].update(modify_type="swapped"))
    with pytest.raises(UsageError, match="modify_type real, visual_modified, audio_modified or both_modified"):
        listed("av-deepfake1m", root)


@pytest.mark.parametrize("published", [True, False], ids=["published", "found"])
def test_df40_is_listed_in_either_of_its_trees(tmp_path: Path, published: bool) -> None:
    root = trees.make_df40(tmp_path, tmp_path / "dataset_json", published=published)
    found = listed("df40", root)
    assert found.counts["method"] == {"VQGAN": 2, "heygen": 2, "mobileswap": 2, "real": 4, "simswap": 2}
    assert found.counts["label"] == {"fake": 8, "real": 4}
    assert set(column(found, "method", "split")) == {
        ("VQGAN", "train"),
        *((method, "test") for method in ("heygen", "mobileswap", "real", "simswap")),
    }
    sources = set(column(found, "method", "group"))
    assert {("simswap", "ff"), ("mobileswap", "cdf"), ("real", "ff"), ("real", None), ("heygen", None)} < sources
    assert (found.missing, found.unlisted, found.notes) == ((), (), ())
    by_list = listed("df40", root, lists=root / "dataset_json")
    assert by_list.counts["split"] == {"test": 10, "train": 2, "val": 4}
    assert {row["path"] for row in by_list.rows} == {row["path"] for row in found.rows}
    assert by_list.missing == ("deepfakes_detection_datasets/DF40/simswap/ff/frames/071_054/020.png",)
    assert by_list.notes == (
        "listed frames that do not exist: simswap 1 of 3",
        "LEAK: the lists have 4 frames of val in test as well",
    )
    one = listed("df40", root, lists=root / "dataset_json/VQGAN_ff.json")
    assert one.counts["method"] == {"VQGAN": 2}
    assert len(one.unlisted) == 10
    some = listed("df40", root, lists=root / "dataset_json", methods="heygen", splits="val")
    assert column(some, "method", "label") == [("heygen", "fake")] * 2 + [("real", "real")] * 2
    with pytest.raises(UsageError, match="did you mean 'simswap'"):
        listed("df40", root, methods="simswop")


def test_folders_that_are_not_df40(tmp_path: Path) -> None:
    trees.put_images(tmp_path, ["FaceForensics++/manipulated_sequences/FaceSwap/c23/frames/071_054/000.png"])
    with raises(UsageError, expected="folders METHOD/ff, METHOD/cdf, METHOD/fake or METHOD/real (DF40)"):
        listed("df40", tmp_path)
    trees.put_images(tmp_path, ["DF40_train/fsgan/071_054/000.png"])
    assert column(listed("df40", tmp_path), "method", "split") == [("fsgan", "train")]
    assert column(listed("df40", tmp_path / "DF40_train"), "method", "split") == [("fsgan", "train")]
    (tmp_path / "empty").mkdir()
    with raises(UsageError, option="lists", expected="JSON files of DF40"):
        listed("df40", tmp_path, lists=tmp_path / "empty")


def test_fakeavceleb_has_people_but_no_split(tmp_path: Path) -> None:
    root = trees.make_fakeavceleb(tmp_path / "FakeAVCeleb_v1.2")
    found = listed("fakeavceleb", tmp_path, tmp_path / "t.csv")
    home = "FakeAVCeleb_v1.2/FakeAVCeleb"
    real = f"{home}/RealVideo-RealAudio/African/men/id00076/00109.mp4"
    columns = ("path", "label", "original", "method", "modified", "person", "donor", "gender", "race")
    assert column(found, *columns)[:4] == [
        (real, "real", real, "real", "none", "id00076", None, "men", "African"),
        *(
            (f"{home}/{path}", "fake", real, method, modified, "id00076", donor, "men", "African")
            for path, method, modified, donor in (
                (
                    "FakeVideo-FakeAudio/African/men/id00076/00109_2_id00166_wavtolip.mp4",
                    "faceswap-wav2lip",
                    "both",
                    "id00166",
                ),
                (
                    "FakeVideo-RealAudio/African/men/id00076/00109_id00166_x7pq_faceswap.mp4",
                    "faceswap",
                    "video",
                    "id00166",
                ),
                ("RealVideo-FakeAudio/African/men/id00076/00109_fake.mp4", "rtvc", "audio", None),
            )
        ),
    ]
    assert found.counts["modified"] == {"audio": 2, "both": 2, "none": 2, "video": 2}
    assert (found.missing, found.unlisted) == ((), ())
    assert [note.partition(": FakeVideo")[0] for note in found.notes] == [
        "files that a list names again, whose first entry counts: 2"
    ]
    some = listed("fakeavceleb", root, methods="rtvc")
    assert some.counts["method"] == {"real": 2, "rtvc": 2}


def test_the_metadata_of_fakeavceleb_from_another_system(tmp_path: Path) -> None:
    root = trees.make_fakeavceleb(tmp_path)
    expected = listed("fakeavceleb", root).rows
    text = (root / "meta_data.csv").read_text()
    lines = [line.replace("/", "\\") for line in text.splitlines()]
    (root / "meta_data.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert listed("fakeavceleb", root).rows == expected
    # Without the folders, and without the folder around the types.
    (root / "meta_data.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    (root / "FakeAVCeleb").rename(tmp_path / "moved")
    for kind in (tmp_path / "moved").iterdir():
        kind.rename(root / kind.name)
    (root / "RealVideo-RealAudio/African/men/id00076/00109.mp4").unlink()
    trees.put(root, ["RealVideo-RealAudio/African/men/id00076/99999.mp4"], b"")
    found = listed("fakeavceleb", root)
    assert len(found.rows) == len(expected) - 1
    assert found.missing == ("RealVideo-RealAudio/African/men/id00076/00109.mp4",)
    assert found.unlisted == ("RealVideo-RealAudio/African/men/id00076/99999.mp4",)
    assert sum(row["original"] is None for row in found.rows) == 3
    (root / "meta_data.csv").write_text("source,type\n")
    with raises(
        UsageError, expected="the columns source, target1, method, type, race, gender, path", found="source, type"
    ):
        listed("fakeavceleb", root)
    (root / "meta_data.csv").write_text(text.replace("RealVideo-RealAudio,", "Real,"))
    with pytest.raises(UsageError, match=r"expected a type, one of RealVideo-RealAudio, .*, found 'Real'"):
        listed("fakeavceleb", root)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("parted", [True, False])
def test_dev_of_voxceleb2_is_train(tmp_path: Path, parted: bool, separator: str) -> None:
    root = trees.make_voxceleb2(tmp_path / "vox", parted=parted, separator=separator)
    found = listed("voxceleb2", root, tmp_path / "t.csv")
    dev, test = ("dev/", "test/") if parted else ("", "")
    assert column(found, "path", "split", "person", "gender", "clip")[::3] == [
        (f"{dev}mp4/id00012/_raOc3-IRsw/00001.mp4", "train", "id00012", "m", "id00012/_raOc3-IRsw"),
        (f"{dev}mp4/id00015/_raOc3-IRsw/00002.mp4", "train", "id00015", "m", "id00015/_raOc3-IRsw"),
    ]
    assert found.counts == {"split": {"test": 2, "train": 4}}
    assert (found.missing, found.unlisted, found.notes) == ((), (), ())
    assert " --label-from none --preset faces --size 224 " in found.describe()
    assert column(listed("voxceleb2", root, splits="test"), "path")[0].startswith(f"{test}mp4/id00017/")


def test_missing_people_of_voxceleb2_are_named(tmp_path: Path) -> None:
    root = trees.make_voxceleb2(tmp_path, separator=",")
    (root / "dev/mp4/id00015").rename(root / "dev/mp4/id00099")
    found = listed("voxceleb2", root)
    assert found.notes == (
        "people of vox2_meta.csv without a folder: 1: id00015",
        "people who are not in vox2_meta.csv: 1: id00099",
    )
    assert column(found, "person", "split", "gender")[2] == ("id00099", "train", None)
    (root / "vox2_meta.csv").write_text("id,sex\n")
    with raises(UsageError, expected="the columns VoxCeleb2 ID, Gender and Set", found="id, sex"):
        listed("voxceleb2", root)
    (root / "vox2_meta.csv").unlink()
    found = listed("voxceleb2", root)
    assert "gender" not in found.columns
    assert found.counts == {"split": {"test": 2, "train": 4}}
    assert found.notes[0].startswith("vox2_meta.csv does not exist: clips have no gender")


@pytest.mark.parametrize("separator", ["/", "\\"])
def test_deepfakebench_lists_frames_in_the_order_of_their_numbers(tmp_path: Path, separator: str) -> None:
    root = trees.make_deepfakebench(tmp_path / "rgb", tmp_path / "json", separator)
    found = listed("deepfakebench", root, lists=tmp_path / "json")
    video = "FaceForensics++/manipulated_sequences/Deepfakes/c23/frames/071_054"
    fakes = [row for row in found.rows if row["clip"] == video]
    assert fakes == [
        {
            "path": f"{video}/{number}.png",
            "label": "fake",
            "split": "train",
            "mask": f"{video}/{number}.png".replace("/frames/", "/masks/"),
            "method": "FF-DF",
            "compression": "c23",
            "clip": video,
        }
        for number in ("009", "010")
    ]
    assert found.counts["split"] == {"test": 6, "train": 6, "val": 6}
    assert (found.missing, found.unlisted, found.notes) == ((), (), ())


def celeb_of_deepfakebench(root: Path, prefix: str) -> dict[str, Any]:
    """What its script writes for Celeb-DF: test videos are in train and in val as well."""
    videos = {}
    for name in ("id0_0000", "id1_0000"):
        frames = [f"Celeb-DF-v2/Celeb-real/frames/{name}/000.png"]
        trees.put_images(root, frames)
        videos[name] = {"label": "CelebDFv2_real", "frames": [prefix + frame for frame in frames]}
    test = {"id0_0000": videos["id0_0000"]}
    return {"Celeb-DF-v2": {"CelebDFv2_real": {"train": videos, "val": dict(test), "test": test}}}


@pytest.mark.parametrize("prefix", ["", "/home/somebody/datasets/", "D:\\datasets\\", "./datasets/"])
def test_leaks_in_deepfakebench_are_reported(tmp_path: Path, prefix: str) -> None:
    document = celeb_of_deepfakebench(tmp_path, prefix)
    val = document["Celeb-DF-v2"]["CelebDFv2_real"]["val"]
    val |= {"label": "CelebDFv2_real", "frames": ["a/b.png"]}
    trees.put_text(tmp_path, "Celeb-DF-v2.json", json.dumps(document))
    found = listed("deepfakebench", tmp_path)
    assert sorted(column(found, "split", "clip")) == [
        (split, f"Celeb-DF-v2/Celeb-real/frames/{name}")
        for split, names in (("test", ["id0_0000"]), ("train", ["id0_0000", "id1_0000"]), ("val", ["id0_0000"]))
        for name in names
    ]
    assert found.notes == (
        "Celeb-DF-v2/CelebDFv2_real/val holds the frames of one video instead of videos: left out",
        "LEAK: the file has 1 video of train in val as well",
        "LEAK: the file has 1 video of train in test as well",
        "LEAK: the file has 1 video of val in test as well",
    )
    assert len(listed("deepfakebench", tmp_path, splits="test").rows) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            "expected JSON, found a syntax error: Expecting property name enclosed in double quotes (line 1 column 2)",
        ),
        ("[" * 100_000, "expected JSON, found too many levels"),
        ("[]", "expected an object, found list"),
        ('{"a": {"b": {"train": []}}}', "expected an object at 'a/b/train', found list"),
        ('{"a": {"b": {"dev": {}}}}', "expected the splits train, val and test, found 'a/b/dev'"),
        ('{"a": {"b": {"train": {"v": {"frames": [1]}}}}}', "expected a list of frames at 'a/b/train/v', found"),
        ('{"a": {"b": {"train": {"v": {"frames": ["../x.png"]}}}}}', "expected paths below the dataset's folder"),
        (
            '{"a": {"b": {"train": {"v": {"frames": ["x/y.png"]}}}}}',
            "expected the frames that list.json names, such as",
        ),
        ("{}", "expected videos with frames, found none"),
    ],
)
def test_files_that_are_not_deepfakebenchs(tmp_path: Path, text: str, message: str) -> None:
    trees.put_text(tmp_path, "list.json", text)
    with pytest.raises(UsageError) as error:
        listed("deepfakebench", tmp_path)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("val", ["kaggle", "devkit", "folders"])
def test_imagenets_validation_has_the_classes_of_train(tmp_path: Path, val: str) -> None:
    found = listed("imagenet", trees.make_imagenet(tmp_path, val))
    assert set(column(found, "split", "label")) == {(split, wnid) for split in ("train", "val") for wnid in trees.WNIDS}
    classes = {Path(row["path"]).stem: row["label"] for row in found.rows if row["split"] == "val"}
    expected = [trees.WNIDS[place] for place in (2, 0, 1, 0)]
    assert classes == {f"ILSVRC2012_val_{number:08d}": wnid for number, wnid in enumerate(expected, 1)}
    assert (found.missing, found.unlisted) == ((), ())


@pytest.mark.parametrize("inner", ["ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"])
def test_any_folder_of_kaggles_imagenet_has_the_list_above_it(tmp_path: Path, inner: str) -> None:
    root = trees.make_imagenet(tmp_path / "kaggle") / inner
    found = listed("imagenet", root)
    assert column(found, "label") == column(listed("imagenet", tmp_path / "kaggle"), "label")
    assert all((root / path).is_file() for path in column(found, "path"))


def test_a_list_above_another_tree_is_not_taken(tmp_path: Path) -> None:
    trees.put_text(tmp_path, "LOC_val_solution.csv", "ImageId,PredictionString\n")
    with raises(UsageError, found="neither"):
        listed("imagenet", trees.make_imagenet(tmp_path / "ILSVRC2012", "none"))


def test_imagenet_with_what_copies_lack(tmp_path: Path) -> None:
    root = trees.make_imagenet(tmp_path, "none")
    with raises(UsageError, found="neither"):
        listed("imagenet", root)
    assert [row["label"] for row in listed("imagenet", root, lists="none").rows].count(None) == 4
    given = tmp_path / "val.txt"
    given.write_text("ILSVRC2012_val_00000001.JPEG 65\n")
    with pytest.raises(UsageError, match="line 1: expected an image and its class such as n01751748, found"):
        listed("imagenet", root, lists=given)
    given.write_text(f"ILSVRC2012_val_00000001.JPEG {trees.WNIDS[0]}\nILSVRC2012_val_00000009.JPEG n09999999\n")
    trees.put_images(root, ["test/ILSVRC2012_test_00000001.JPEG"])
    trees.put(root, ["train/n03000684.tar"], b"")
    found = listed("imagenet", root, lists=given)
    assert found.missing == ("val/ILSVRC2012_val_00000009.JPEG",)
    assert found.unlisted == tuple(f"val/ILSVRC2012_val_{number:08d}.JPEG" for number in (2, 3, 4))
    assert "classes of val that train lacks: n09999999" in found.notes
    assert "test is left out, since its classes are not public (1 image)" in found.notes
    assert any(note.startswith("train: 1 archive (n03000684.tar): unpack") for note in found.notes)
    assert column(listed("imagenet", root, splits="test"), "path") == ["test/ILSVRC2012_test_00000001.JPEG"]


def test_a_devkit_without_its_classes(tmp_path: Path) -> None:
    root = trees.make_imagenet(tmp_path, "devkit")
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    meta.write_bytes(b"MATLAB 5.0 but not really" * 20)
    with pytest.raises(UsageError, match=r"meta.mat: expected the development kit's classes"):
        listed("imagenet", root)
    meta.unlink()
    with pytest.raises(UsageError, match=r"meta.mat: expected the names of the class numbers"):
        listed("imagenet", root)


def test_lrw_has_the_word_and_its_length(tmp_path: Path) -> None:
    root = trees.make_lrw(tmp_path / "lipread_mp4")
    (root / "WHICH/val/WHICH_00001.mp4").unlink()
    (root / "WHICH/test/WHICH_00001.txt").unlink()
    trees.put(root, ["ABOUT/train/OTHER_00001.mp4"], b"")
    for place, prefix in ((root, ""), (tmp_path, "lipread_mp4/")):
        found = listed("lrw", place)
        assert found.rows[1] == {
            "path": f"{prefix}ABOUT/train/ABOUT_00002.mp4",
            "label": "ABOUT",
            "split": "train",
            "duration": 0.23,
        }
        assert found.missing == (f"{prefix}WHICH/val/WHICH_00001.mp4",)
        assert found.unlisted == (f"{prefix}ABOUT/train/OTHER_00001.mp4",)
        assert found.notes == ("clips without a text file with the duration of the word: 1",)


def test_lrs2_is_split_by_its_lists(tmp_path: Path) -> None:
    root = trees.make_lrs2(tmp_path)
    trees.put(root, ["mvlrs_v1/main/5535415699068794046/00077.mp4"], b"")
    trees.put_text(root, "val.txt", "5535415699068794046/00001\n5535415699068794046/00099\n")
    found = listed("lrs", root, tmp_path / "t.csv")
    assert sorted(column(found, "split", "clip", "text")) == [
        ("pretrain", "5535423430009926848", "BEFORE"),
        ("test", "6241381370013668290", "SAID IN TEST"),
        ("train", "6330311066473698535", "SAID IN TRAIN"),
        ("val", "5535415699068794046", "SAID IN VAL"),
    ]
    assert found.missing == ("mvlrs_v1/main/5535415699068794046/00099.mp4",)
    assert found.unlisted == ("mvlrs_v1/main/5535415699068794046/00077.mp4",)
    assert "--label-from none --preset images --size 128 --text clip" in found.describe()
    (root / "val.txt").unlink()
    with pytest.raises(UsageError, match=r"the official list val\.txt, found none: it comes with LRS2"):
        listed("lrs", root)
    assert len(listed("lrs", root, lists="none").rows) == 5
    found = listed("lrs", root, splits="train,test")
    assert sorted(column(found, "split")) == ["test", "train"]
    assert found.unlisted == ()  # the clips of val are in a list that is not there


def test_lrs3_is_split_by_its_folders(tmp_path: Path) -> None:
    root = trees.make_lrs3(tmp_path)
    (root / "test/0Fi83BHQsMA/00002.txt").unlink()
    found = listed("lrs", root)
    assert found.counts == {"split": {"pretrain": 2, "test": 2, "trainval": 2}}
    assert column(found, "path", "clip", "text")[-2:] == [
        ("test/0Fi83BHQsMA/00001.mp4", "0Fi83BHQsMA", "AND SO ON 1"),
        ("test/0Fi83BHQsMA/00002.mp4", "0Fi83BHQsMA", None),
    ]
    assert found.notes == ("clips without a text file: 1",)
    with pytest.raises(UsageError, match="lists: applies only to LRS2"):
        listed("lrs", root, lists="none")


def test_folders_train_val_test(tmp_path: Path) -> None:
    root = trees.make_imagefolder(tmp_path)
    (root / "val").rename(root / "Validation")
    trees.put_images(root, ["train/loose.png", "test/bird/deep/1.png"])
    (root / "train/bird").mkdir()
    found = listed("imagefolder", root)
    assert found.counts == {"label": {"bird": 1, "cat": 6, "dog": 6}, "split": {"test": 5, "train": 4, "val": 4}}
    assert found.unlisted == ("train/loose.png",)
    assert found.notes == (
        "ignored train/bird: no images or videos inside",
        "classes of test that train lacks: bird",
    )
    trees.put_images(tmp_path / "flat", ["train/cat/1.png", "test/1.png", "test/2.png"])
    with raises(
        UsageError, expected="files of imagefolder (test) to list", found="none: 2 files in no list, such as test/1.png"
    ):
        listed("imagefolder", tmp_path / "flat", splits="test")


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_wrong_folder_is_answered_with_what_was_expected_and_what_is_there(tmp_path: Path, name: str) -> None:
    root = tmp_path / "elsewhere/data"
    trees.put(root, ["some/thing/x.bin", "notes.md"], b"")
    with pytest.raises(UsageError) as error:
        listed(name, root)
    assert str(error.value).startswith(f"{root}: expected ")
    assert "found" in str(error.value)
    if name != "deepfakebench":
        assert str(error.value).endswith("found some/, notes.md")


def test_the_error_for_a_subfolder_names_the_folder_above(tmp_path: Path) -> None:
    root = trees.make_lrw(tmp_path / "lipread_mp4")
    with pytest.raises(UsageError, match=r"found test/, train/, val/: give the folder above, .*/lipread_mp4$"):
        listed("lrw", root / "ABOUT")
    for word in ("ABOUT", "WHICH"):
        (root / f"{word}/val/{word}_00001.mp4").unlink()
    with raises(
        UsageError,
        expected="files of lrw (val) to list",
        found="none: 2 files missing, such as ABOUT/val/ABOUT_00001.mp4",
    ):
        listed("lrw", root, splits="val")


def test_a_folder_with_two_datasets_is_refused_and_one_that_holds_the_dataset_is_not(tmp_path: Path) -> None:
    trees.make_celeb_df(tmp_path / "Celeb-DF-v2")
    assert listed("celeb-df", tmp_path).rows[0]["path"].startswith("Celeb-DF-v2/Celeb-real/")
    trees.make_celeb_df(tmp_path / "Celeb-DF-v1")
    with pytest.raises(UsageError, match="found several: give one of Celeb-DF-v1, Celeb-DF-v2"):
        listed("celeb-df", tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imagenett", {}, "unknown dataset 'imagenett': expected one of av-deepfake1m, .*; did you mean 'imagenet'?"),
        ("lrw", {"methods": "x"}, "methods: lrw has no such option; it has splits"),
        ("dfdc", {"lists": "."}, "lists: dfdc has no such option; it has splits"),
        ("lrw", {"splits": "dev"}, "splits: expected some of train, val, test, found 'dev'"),
        ("lrw", {"splits": "train,,val"}, "splits: expected names separated by commas, found 'train,,val'"),
        ("lrs", {"splits": ["train", 3]}, "splits: expected names separated by commas"),
        ("celeb-df", {"lists": "nowhere"}, "lists: expected a file, a folder or none, found nothing at nowhere"),
        ("celeb-df", {"lists": "none", "splits": "test"}, "splits: --lists none leaves no splits to choose from"),
    ],
)
def test_options_that_a_dataset_lacks(tmp_path: Path, name: str, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        listed(name, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "Deepfake"}, "methods: expected some of DeepFakeDetection, .*, found 'Deepfake'; did you mean"),
        ({"compression": "c40"}, "compression: expected some of c23, found 'c40'"),
    ],
)
def test_unknown_methods_splits_and_compressions(tmp_path: Path, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        listed("faceforensics", trees.make_faceforensics(tmp_path), **options)


def test_lists_that_nothing_would_read_are_refused(tmp_path: Path) -> None:
    trees.make_faceforensics(tmp_path / "ff")
    with pytest.raises(UsageError, match="lists: DeepFakeDetection has no official lists: leave out --lists"):
        listed("faceforensics", tmp_path / "ff", methods="DeepFakeDetection", lists=tmp_path / "ff/splits")
    with pytest.raises(UsageError, match="lists: val/ has class folders, which name the classes"):
        listed("imagenet", trees.make_imagenet(tmp_path / "inet", "folders"), lists=tmp_path)
    trees.make_lrs2(tmp_path / "lrs")
    with raises(UsageError, expected="the official list val.txt", found="none"):
        listed("lrs", tmp_path / "lrs", lists=tmp_path / "lrs/train.txt")


def test_frames_alone_are_not_videos(tmp_path: Path) -> None:
    trees.put(tmp_path, ["original_sequences/youtube/c23/images/071/0000.png"], b"")
    with raises(
        UsageError,
        expected="videos in METHOD/COMPRESSION/videos",
        found="folders images alone: download the videos (-t videos)",
    ):
        listed("faceforensics", tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_tables_hold_the_rows(tmp_path: Path, suffix: str) -> None:
    root = trees.make_lrw(tmp_path / "lrw")
    (root / "ABOUT/test/ABOUT_00001.txt").unlink()
    table = tmp_path / f"t.{suffix}"
    table.write_text("replaced")
    found = listed("lrw", root, table)
    if suffix == "csv":
        rows: Sequence[Mapping[str, Any]] = list(csv.DictReader(table.read_text("utf-8").splitlines()))
        assert [row["duration"] for row in rows][2:4] == ["0.13", ""]
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in table.read_text().splitlines()]
        assert rows == list(found.rows)
    else:
        rows = pq.read_table(table).to_pylist()
    assert [row["path"] for row in rows] == column(found, "path")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lrw", table.name]


def test_all_columns_share_one_vocabulary_and_are_documented() -> None:
    page = (Path(packer.__file__).parents[1] / "docs/howto/datasets.md").read_text("utf-8")
    table = page.partition("| column |")[2].partition("\n\n")[0]
    for name in COLUMNS:
        assert f"`{name}`" in table
    for name, known in KNOWN.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert [option for option in ("compression", "methods", "splits", "lists") if f"`--{option}`" in line] == list(
            known.options
        )


def test_the_command_prints_what_python_returns(tmp_path: Path) -> None:
    root = trees.make_imagefolder(tmp_path / "photos")
    table = tmp_path / "t.csv"
    done = run_packer("list", "imagefolder", root, "-o", table, "--json", "--quiet")
    assert json.loads(done.stdout) == listed("imagefolder", root, table).to_json()
    done = run_packer("list", "imagefolder", root, "--splits", "train")
    assert done.stdout.splitlines() == [
        f"imagefolder in {root}: 4 rows",
        "label: cat 2, dog 2",
        "split: train 4",
        "no table was written: add -o TABLE.csv",
    ]
    assert "listing: 2/2 folders" in done.stderr
    wrong = run_packer("list", "lrw", root, "--methods", "x", expect=2)
    assert wrong.stderr == "packer list: --methods: lrw has no such option; it has splits\n"


LISTS: Mapping[str, tuple[str, str]] = {
    "List_of_testing_videos.txt": ("celeb-df", "Celeb-real/id0_0000.mp4"),
    "LOC_val_solution.csv": ("imagenet", "val/ILSVRC2012_val_00000001.JPEG"),
    "metadata.json": ("dfdc", "a.mp4"),
    "labels.csv": ("dfdc", "a.mp4"),
    "dataset.json": ("dfdc", "a.mp4"),
    "train.json": ("faceforensics", "original_sequences/youtube/c23/videos/071.mp4"),
    "bench.json": ("deepfakebench", "a.mp4"),
    "train.txt": ("lrs", "main/1/00001.mp4"),
    "metadata.min.json": ("lav-df", "a.mp4"),
    "val_metadata.json": ("av-deepfake1m", "a.mp4"),
    "meta_data.csv": ("fakeavceleb", "a.mp4"),
    "vox2_meta.csv": ("voxceleb2", "mp4/id00012/a/00001.mp4"),
}
"""Lists that come from elsewhere, and a file that makes a folder one of that dataset."""

_WORDS = st.sampled_from(
    [
        "a.mp4",
        "FAKE",
        "real",
        "label",
        "frames",
        "train",
        "c23",
        "071",
        "1",
        "0",
        "../x",
        "/x",
        "n01440764",
        "\\",
        "\0",
        "",
    ]
) | st.text(max_size=8)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=20,
)
_TEXTS = st.lists(st.lists(_WORDS, max_size=3).map(" ".join) | st.text(max_size=20), max_size=5).map("\n".join)


@pytest.mark.parametrize("name", LISTS)
@given(data=st.data())
def test_any_list_yields_a_result_or_one_short_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    dataset, member = LISTS[name]
    root = tmp_path_factory.mktemp("fuzz")
    trees.put(root, [member], b"")
    written = _DOCUMENTS.map(json.dumps) if name.endswith(".json") else _TEXTS
    content = data.draw(written.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40))
    (root / name).write_bytes(content)
    refused = None
    try:
        found = listed(dataset, root)
    except UsageError as error:
        refused = str(error)
    if refused is not None:
        assert len(refused) < len(str(root)) + 700
    else:
        assert all(".." not in Path(path).parts and not Path(path).is_absolute() for path in column(found, "path"))
        assert found.describe()
        json.dumps(found.to_json())
