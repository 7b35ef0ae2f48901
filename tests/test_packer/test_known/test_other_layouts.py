"""The programs of docs/howto/other_datasets.md for datasets that `packer list` does not know, run on small copies of them."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from support import known_trees as trees
from support.archives import write_lmdb
from support.command import COMMAND_LIMIT_S, REPOSITORY, environment, file_of, read_jsonl

import packer
from readers import open_dataset

PAGE = REPOSITORY / "docs" / "howto" / "other_datasets.md"


def run_programs(title: str, here: Path) -> None:
    """Run the programs below a heading in a folder, each in a process of its own."""
    body = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert body is not None
    for code in re.findall(r"^```python\n(.*?)^```$", body[1], re.DOTALL | re.MULTILINE):
        program = here / "program.py"
        program.write_text(code, encoding="utf-8")
        call = [sys.executable, str(program)]
        done = subprocess.run(
            call, cwd=here, env=environment(), capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr


def test_lists_of_celeba_and_ids_without_a_suffix(tmp_path: Path) -> None:
    numbers, root = range(1, 7), tmp_path / "celeba"
    trees.put_images(root / "img_align_celeba", [f"{number:06d}.jpg" for number in numbers])
    for name, header, cells in (
        ("list_attr_celeba.txt", "6\n5_o_Clock_Shadow Male Smiling \n", ["-1  1 -1", " 1 -1  1"]),
        ("list_eval_partition.txt", "", ["0", "2"]),
        ("identity_CelebA.txt", "", ["2880", "2937"]),
    ):
        lines = [f"{number:06d}.jpg {cells[number % 2]}\n" for number in numbers]
        trees.put_text(root, name, header + "".join(lines))
    trees.put_images(tmp_path / "train_images", ["00a1.png", "00b2.png", "0003.png"])
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbfid_code,diagnosis\r\n00a1,10\r\n00b2,2\r\n0003,0\r\n")
    run_programs("Lists: rows in Python", tmp_path)
    ds = open_dataset(tmp_path / "celeba-packed")
    fields = ("source", "label", "smiling", "male", "split", "person")
    assert [tuple(ds[i][field] for field in fields) for i in (0, 1)] == [
        ("000001.jpg", 1, True, False, "test", "2937"),
        ("000002.jpg", 0, False, True, "train", "2880"),
    ]
    kaggle = open_dataset(tmp_path / "kaggle")
    assert [(sample["source"], sample["label"]) for sample in kaggle] == [
        ("00a1.png", 10),
        ("00b2.png", 2),
        ("0003.png", 0),
    ]


def test_frames_of_deepfakebench_in_an_lmdb(tmp_path: Path) -> None:
    root = trees.make_deepfakebench(tmp_path / "rgb", tmp_path / "dataset_json", "\\")
    found = packer.list_dataset(
        "deepfakebench", root, lists=tmp_path / "dataset_json/FaceForensics++.json", progress=False
    )
    pairs = {row["path"].replace("/", "\\").encode(): (root / row["path"]).read_bytes() for row in found.rows}
    write_lmdb(tmp_path / "FaceForensics++_lmdb", pairs)
    run_programs("Keys of an archive: `keys`", tmp_path)
    ds = open_dataset(tmp_path / "bench")
    assert {(sample["source"].partition("!")[2], sample["label"], sample["split"]) for sample in ds} == {
        (row["path"], ["real", "fake"].index(row["label"]), row["split"]) for row in found.rows
    }


def test_boxes_of_wider_face(tmp_path: Path) -> None:
    faces = {f"0--Parade/{number:02d}.jpg": [(5, 8, 12, 16)] for number in range(20)}
    faces |= {"1--Riot/0.jpg": [], "2--Fun/0.jpg": [(1, 2, 30, 40), (50, 9, 20, 24)]}
    trees.put_images(tmp_path / "WIDER_train/images", faces)
    blocks = [
        f"{path}\n{len(boxes)}\n" + "".join(f"{' '.join(map(str, box))} 0 0 0 0 0 0 \n" for box in boxes or [(0,) * 4])
        for path, boxes in faces.items()
    ]
    trees.put_text(tmp_path, "wider_face_split/wider_face_train_bbx_gt.txt", "".join(blocks))
    run_programs("Boxes and points: a table", tmp_path)
    ds = open_dataset(tmp_path / "wider")
    assert [(sample["source"], sample["box"].tolist()) for sample in ds] == [
        (path, [x, y, x + width, y + height]) for path, boxes in faces.items() for x, y, width, height in boxes
    ]
    assert [line["item"] for line in read_jsonl(file_of(tmp_path / "wider", "rejects.jsonl"))] == ["1--Riot/0.jpg"]


def test_pixels_of_fer2013(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 48, 48), dtype=np.uint8)
    lines = [f"{n},{' '.join(map(str, picture.ravel()))},Training\n" for n, picture in enumerate(images)]
    trees.put_text(tmp_path, "fer2013.csv", "emotion,pixels,Usage\n" + "".join(lines))
    run_programs("Pixels: the writer", tmp_path)
    ds = open_dataset(tmp_path / "fer")
    assert [(sample["label"], sample["split"]) for sample in ds] == [(n, "Training") for n in range(3)]
    assert all((sample["image"] == picture[..., None]).all() for sample, picture in zip(ds, images, strict=True))


def test_frames_as_images(tmp_path: Path) -> None:
    sessions = {"S005/001": "3.0000000e+00", "S010/002": None, "S011/001": "7.0000000e+00"}
    for session, emotion in sessions.items():
        name = session.replace("/", "_")
        numbers = range(1, 6)
        trees.put_images(tmp_path / "cohn-kanade-images" / session, [f"{name}_{n:08d}.png" for n in numbers])
        (tmp_path / "Emotion" / session).mkdir(parents=True)
        if emotion is not None:
            trees.put_text(tmp_path, f"Emotion/{session}/{name}_00000005_emotion.txt", f"   {emotion}\n")
    for video in ("00001", "00012"):
        trees.put_images(tmp_path / "clip_224x224" / video, [f"{video}_{n:05d}.jpg" for n in range(1, 17)])
    (tmp_path / "set_1.csv").write_text("video_name,label\n1,7\n12,1\n")
    run_programs("Frames as images: `--frame-folders`", tmp_path)
    ck = open_dataset(tmp_path / "ck")
    known = {(s["source"], s["subject"], s["session"], int(s["emotion"]), bool(s["emotion_valid"])) for s in ck}
    assert known == {
        ("S005/001", "S005", "001", 3, True),
        ("S010/002", "S010", "002", 0, False),
        ("S011/001", "S011", "001", 7, True),
    }
    clips = open_dataset(tmp_path / "dfew").clips(16, by=None)
    assert [(clip["source"], int(clip["label"]), clip["frame"].tolist()) for clip in clips] == [
        ("00001", 6, list(range(1, 17))),
        ("00012", 0, list(range(1, 17))),
    ]
