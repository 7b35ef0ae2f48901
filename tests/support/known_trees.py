"""Small copies of public datasets in the layouts in which they are published, with real videos and images."""

import json
import shutil
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

import cv2
import numpy as np
from scipy.io import savemat

from support.media import photograph, write_image
from support.video_files import write_video

VIDEO_SIZE = (256, 192)
METHODS = ("Deepfakes", "FaceSwap")
PAIRS = {"train": [["071", "054"]], "val": [["720", "672"]], "test": [["000", "003"]]}
WNIDS = ("n01440764", "n01443537", "n02084071")


@cache
def portrait_video() -> bytes:
    """A short video of a face."""
    return _video_bytes("portrait")


@cache
def faceless_video() -> bytes:
    """A video of the same size and length without a face, for forgeries that no detector finds."""
    return _video_bytes("plain")


def _video_bytes(kind: str) -> bytes:
    folder = Path(mkdtemp())
    try:
        path = folder / "video.mp4"
        if kind == "portrait":
            write_video(path, size=VIDEO_SIZE, frames=4)
        else:
            _write_still(path, np.full((VIDEO_SIZE[1], VIDEO_SIZE[0], 3), 90, np.uint8))
        return path.read_bytes()
    finally:
        shutil.rmtree(folder)


def _write_still(path: Path, picture: np.ndarray) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (picture.shape[1], picture.shape[0]))
    for _ in range(4):
        writer.write(picture)
    writer.release()


def put(root: Path, names: Iterable[str], data: bytes | None = None) -> None:
    """Write files of these bytes, by default a portrait's video."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(portrait_video() if data is None else data)


def put_images(root: Path, names: Iterable[str]) -> None:
    """Write small images, each another part of a photograph."""
    photo = photograph("chelsea")
    for number, name in enumerate(names):
        write_image(root / name, np.roll(photo, 31 * number, axis=1)[:96, :128])


def put_text(root: Path, name: str, text: str) -> None:
    """Write a text file."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def make_faceforensics(root: Path, compressions: Sequence[str] = ("c23",), masks: Sequence[str] = METHODS) -> Path:
    """FaceForensics++: two methods, two videos in each split, masks, and the actors' videos of DeepFakeDetection."""
    for split, pairs in PAIRS.items():
        put_text(root, f"splits/{split}.json", json.dumps(pairs))
    for compression in compressions:
        for a, b in (pair for pairs in PAIRS.values() for pair in pairs):
            put(root, [f"original_sequences/youtube/{compression}/videos/{name}.mp4" for name in (a, b)])
            for method in METHODS:
                names = [f"{a}_{b}.mp4", f"{b}_{a}.mp4"]
                folder = f"manipulated_sequences/{method}"
                put(root, [f"{folder}/{compression}/videos/{name}" for name in names], faceless_video())
                if method in masks:
                    put(root, [f"{folder}/masks/videos/{name}" for name in names], faceless_video())
        put(root, [f"original_sequences/actors/{compression}/videos/{name}.mp4" for name in ("01__hall", "02__hall")])
        fake = f"manipulated_sequences/DeepFakeDetection/{compression}/videos/01_02__hall__QWERTY12.mp4"
        put(root, [fake], faceless_video())
    return root


def make_dfdc(root: Path) -> Path:
    """DFDC: one part that is nested as Kaggle's are, one that is not, and the test set."""
    for folder, reals in (("dfdc_train_part_00/dfdc_train_part_0", "ab"), ("dfdc_train_part_1", "cd")):
        metadata: dict[str, dict[str, str | None]] = {}
        for number, real in enumerate(reals):
            metadata[f"{real}.mp4"] = {"label": "REAL", "split": "train"} | ({"original": None} if number else {})
            metadata[f"{real}x.mp4"] = {"label": "FAKE", "split": "train", "original": f"{real}.mp4"}
            put(root, [f"{folder}/{real}.mp4"])
            put(root, [f"{folder}/{real}x.mp4"], faceless_video())
        put_text(root, f"{folder}/metadata.json", json.dumps(metadata))
    put_text(root, "test/labels.csv", "filename,label\nt0.mp4,0\nt1.mp4,1\n")
    put(root, ["test/t0.mp4", "test/t1.mp4"])
    return root


def make_celeb_df(root: Path, youtube: str = "YouTube-real", inner: str = "") -> Path:
    """Celeb-DF: three people, with their forgeries, and two videos of nobody's; two videos of each kind are for test."""
    inner = f"{inner}/" if inner else ""
    reals = ["id0_0000", "id1_0000", "id2_0000"]
    fakes = ["id0_id1_0000", "id1_id0_0000", "id2_id1_0000"]
    put(root, [f"Celeb-real/{inner}{name}.mp4" for name in reals])
    put(root, [f"{youtube}/{inner}{name}.mp4" for name in ("00000", "00170")])
    put(root, [f"Celeb-synthesis/{inner}{name}.mp4" for name in fakes], faceless_video())
    lines = ["1 YouTube-real/00170.mp4", "1 Celeb-real/id2_0000.mp4", "0 Celeb-synthesis/id2_id1_0000.mp4"]
    put_text(root, "List_of_testing_videos.txt", "\n".join(lines) + "\n")
    return root


def make_celeb_df_pp(root: Path, celeb_df: str = "Celeb-DF") -> Path:
    """Celeb-DF++: the forgeries one level deeper, by scenario and method; one of each kind is for test."""
    put(root, [f"Celeb-real/{name}.mp4" for name in ("id0_0000", "id1_0000", "id2_0000")])
    put(root, ["YouTube-real/00170.mp4"])
    methods = (f"FaceSwap/{celeb_df}", "FaceSwap/BlendFace", "FaceReenact/DaGAN", "TalkingFace/SadTalker")
    names = [f"Celeb-synthesis/{method}/{name}.mp4" for method in methods for name in ("id0_id1_0000", "id2_id1_0000")]
    put(root, names, faceless_video())
    fakes = [f"0 {name.replace(celeb_df, 'Celeb-DF')}" for name in names if "/id2_" in name]
    put_text(root, "List_of_testing_videos.txt", "\n".join(["1 Celeb-real/id2_0000.mp4", *fakes]) + "\n")
    return root


def make_lav_df(root: Path) -> Path:
    """LAV-DF: a real video and a forgery of its picture for each split, and one of the sound alone."""
    entries = []
    for number, (split, video, audio) in enumerate(
        [(split, fake, False) for split in ("train", "dev", "test") for fake in (False, True)] + [("test", False, True)]
    ):
        name, fake = f"{split}/{number:06d}.mp4", video or audio
        put(root, [name])
        periods = [[0.04, 0.16]] if fake else []
        original = f"{split}/{number - 1 - audio:06d}.mp4" if fake else None
        entry = {"file": name, "n_fakes": len(periods), "fake_periods": periods, "duration": 0.16, "original": original}
        entry |= {"modify_video": video, "modify_audio": audio, "split": split, "video_frames": 4, "audio_frames": 2560}
        entries.append(entry)
    put_text(root, "metadata.min.json", json.dumps(entries))
    return root


def make_av_deepfake1m(root: Path, *, plus_plus: bool = False) -> Path:
    """AV-Deepfake1M, or ++: one utterance, real and forged in three ways, for train and val; test without labels."""
    kinds = {"real": "real", "visual_modified": "fake_video_real_audio", "audio_modified": "real_video_fake_audio"}
    kinds |= {"both_modified": "fake_video_fake_audio"}
    for split in ("train", "val"):
        folder = f"{'vox_celeb_2/' if plus_plus else ''}id0674{len(split)}/_c3CCbnZEbU/00011"
        entries = []
        for kind, name in kinds.items():
            put(root, [f"{split}/{folder}/{name}.mp4"])
            seen, heard = ([[0.04, 0.08]] if kind in (one, "both_modified") else [] for one in list(kinds)[1:3])
            real = f"VoxCeleb2/dev/mp4/{folder}.mp4" if kind == "real" else f"{folder}/real.mp4"
            entry = {"file": f"{folder}/{name}.mp4", "original": real, "split": split, "modify_type": kind}
            entry |= {"audio_model": "vits" if heard else None} | (
                {"video_model": "Talklip"} if plus_plus and seen else {}
            )
            entry |= {"fake_segments": seen or heard, "visual_fake_segments": seen, "audio_fake_segments": heard}
            entries.append({**entry, "video_frames": 4, "audio_frames": 111680})
        put_text(root, f"{split}_metadata.json", json.dumps(entries))
    put(root, ["test/000000.mp4"])
    put_text(root, "test_files.txt", "000000.mp4\n")
    return root


def make_fakeavceleb(root: Path) -> Path:
    """FakeAVCeleb: two people, each with a real video and its forgeries; one video is listed twice."""
    lines = ["source,target1,target2,method,category,type,race,gender,path,"]
    for source, other, race in (("id00076", "id00166", "African"), ("id00166", "id00076", "Caucasian (American)")):
        for kind, method, target, name in (
            ("RealVideo-RealAudio", "real", "-", "00109.mp4"),
            ("RealVideo-FakeAudio", "rtvc", "-", "00109_fake.mp4"),
            ("FakeVideo-RealAudio", "faceswap", other, f"00109_{other}_x7pq_faceswap.mp4"),
            ("FakeVideo-FakeAudio", "faceswap-wav2lip", other, f"00109_2_{other}_wavtolip.mp4"),
            ("FakeVideo-FakeAudio", "wav2lip", other, f"00109_2_{other}_wavtolip.mp4"),
        ):
            folder = f"FakeAVCeleb/{kind}/{race}/men/{source}"
            put(root, [f"{folder}/{name}"])
            lines.append(f"{source},{target},-,{method},A,{kind},{race},men,{name},{folder}")
    put_text(root, "meta_data.csv", "\n".join(lines) + "\n")
    return root


def make_voxceleb2(root: Path, *, parted: bool = True, separator: str = "\t") -> Path:
    """VoxCeleb2: two people of dev, one of test, two clips of one video each; their sound as well."""
    people = {"id00012": "dev", "id00015": "dev", "id00017": "test"}
    for person, split in people.items():
        for number in (1, 2):
            clip = f"{person}/_raOc3-IRsw/{number:05d}"
            put(root / split if parted else root, [f"mp4/{clip}.mp4"])
            put_text(root / split if parted else root, f"aac/{clip}.m4a", "")
    rows = [("VoxCeleb2 ID ", "VGGFace2 ID ", "Gender ", "Set ")]
    rows += [(f"{person} ", "n000012 ", "m ", f"{split} ") for person, split in people.items()]
    put_text(root, "vox2_meta.csv", "\n".join(map(separator.join, rows)) + "\n")
    return root


def make_df40(root: Path, lists_folder: Path, *, published: bool = True) -> Path:
    """DF40 and its lists, in the tree of its README, or in one that its users have found.

    The lists name a frame that does not exist for one method, and have the frames of val in test.
    """
    here = "deepfake_detection_datasets/" if published else ""
    listed = "deepfakes_detection_datasets"
    real = "FaceForensics++/original_sequences/youtube/c23/frames/071"
    trees = {  # each folder of the lists, and where it is in a copy
        "DF40/simswap/ff/frames/071_054": "DF40/simswap/ff/frames/071_054",
        "DF40/mobileswap/cdf/frames/id0_id1_0000": f"DF40/mobileswap/mobileswap/cdf/Public/{listed}/DF40/mobileswap/cdf/frames/id0_id1_0000",
        "DF40_train/VQGAN/ff/440": "DF40_train/VQGAN/440",
        "DF40/heygen/fake/frames/a": "DF40/heygen/fake/a",
        "DF40/heygen/real/frames/b": "DF40/heygen/real/b",
        real: real,
    }
    for folder, other in trees.items():
        put_images(root, [f"{here}{folder if published else other}/{number:03d}.png" for number in (0, 10)])

    def entry(folder: str, label: str, *more: str) -> dict[str, object]:
        name = PurePosixPath(folder).name
        frames = [f"{listed}/{folder}/{number}" for number in ("000.png", "010.png", *more)]
        return {name: {"label": label, "frames": frames}}

    simswap, mobileswap, vqgan, fake, own, _ = trees
    lists = {
        "simswap_ff": ("test", entry(simswap, "simswap_Fake", "020.png"), entry(real, "simswap_Real")),
        "mobileswap_cdf": ("test", entry(mobileswap, "mobileswap_Fake"), {}),
        "VQGAN_ff": ("train", entry(vqgan, "VQGAN_Fake"), {}),
        "heygen": ("test", entry(fake, "heygen_Fake"), entry(own, "heygen_Real")),
    }
    for name, (split, fakes, reals) in lists.items():
        method = name.partition("_")[0]
        splits = {split: (fakes, reals)} | ({"val": (fakes, reals)} if name == "heygen" else {})
        document = {f"{method}_Fake": {s: f for s, (f, _) in splits.items()}}
        document |= {f"{method}_Real": {s: r for s, (_, r) in splits.items()}}
        put_text(lists_folder, f"{name}.json", json.dumps({name: document}))
    return root


def make_deepfakebench(root: Path, lists: Path, separator: str = "/") -> Path:
    """FaceForensics++ as DeepfakeBench holds it: frames beside a JSON file, one level deeper for the compression."""
    splits: dict[str, dict[str, object]] = {"FF-real": {}, "FF-DF": {}}
    for split, pairs in PAIRS.items():
        for label, base, names in (
            ("FF-real", "FaceForensics++/original_sequences/youtube/c23", pairs[0]),
            ("FF-DF", "FaceForensics++/manipulated_sequences/Deepfakes/c23", ["_".join(pairs[0])]),
        ):
            videos = {}
            for name in names:
                frames = [f"{base}/frames/{name}/{number:03d}.png" for number in (9, 10)]
                masks = [frame.replace("/frames/", "/masks/") for frame in frames] if label == "FF-DF" else []
                put_images(root, [*frames, *masks])
                video = {"label": label, "frames": frames[::-1]} | ({"masks": masks} if masks else {})
                videos[name] = json.loads(json.dumps(video).replace("/", separator.replace("\\", "\\\\")))
            splits[label][split] = {"c23": videos}
    put_text(lists, "FaceForensics++.json", json.dumps({"FaceForensics++": splits}))
    return root


def make_imagenet(root: Path, val: str = "kaggle") -> Path:
    """ImageNet: three classes; `val` is flat with Kaggle's list or the development kit's, or in class folders."""
    base = root / "ILSVRC/Data/CLS-LOC" if val == "kaggle" else root
    put_images(base, [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in WNIDS for number in (10, 11)])
    names = [f"ILSVRC2012_val_{number:08d}" for number in (1, 2, 3, 4)]
    classes = [WNIDS[place] for place in (2, 0, 1, 0)]
    if val == "folders":
        put_images(base, [f"val/{wnid}/{name}.JPEG" for name, wnid in zip(names, classes, strict=True)])
        return root
    put_images(base, [f"val/{name}.JPEG" for name in names])
    if val == "kaggle":
        rows = [f"{name},{wnid} 111 108 230 366 " for name, wnid in zip(names, classes, strict=True)]
        put_text(root, "LOC_val_solution.csv", "\n".join(["ImageId,PredictionString", *rows]) + "\n")
    elif val == "devkit":
        make_devkit(root / "ILSVRC2012_devkit_t12/data", classes)
    return root


def make_devkit(folder: Path, classes: Sequence[str]) -> None:
    """The development kit's list, with numbers that are not those of the sorted names."""
    numbers = {WNIDS[0]: 3, WNIDS[1]: 1, WNIDS[2]: 2}
    put_text(folder, "ILSVRC2012_validation_ground_truth.txt", "".join(f"{numbers[wnid]}\n" for wnid in classes))
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    entries = [(number, wnid, "a word", 0) for wnid, number in numbers.items()] + [(1001, "n00000001", "above", 3)]
    savemat(folder / "meta.mat", {"synsets": np.array(entries, dtype=kinds)})


def make_lrw(root: Path) -> Path:
    """LRW: two words in three splits, a text file beside each clip."""
    for word in ("ABOUT", "WHICH"):
        for split, number in (("train", 1), ("train", 2), ("val", 1), ("test", 1)):
            name = f"{word}/{split}/{word}_{number:05d}"
            put(root, [f"{name}.mp4"])
            put_text(
                root,
                f"{name}.txt",
                f"Disk reference: 1\nChannel: BBC\nClip start: 1.0\nDuration: 0.{number}3 seconds\n",
            )
    return root


def make_lrs2(root: Path) -> Path:
    """LRS2: ``mvlrs_v1/main`` and ``pretrain``, with the lists beside ``mvlrs_v1``."""
    clips = {
        "train": "6330311066473698535/00011",
        "val": "5535415699068794046/00001",
        "test": "6241381370013668290/00002",
    }
    for split, clip in clips.items():
        put(root, [f"mvlrs_v1/main/{clip}.mp4"])
        put_text(root, f"mvlrs_v1/main/{clip}.txt", f"Text:  SAID IN {split.upper()}\nConf:  4\n")
        put_text(root, f"{split}.txt", clip + (" NF\n" if split == "test" else "\n"))
    put(root, ["mvlrs_v1/pretrain/5535423430009926848/00001.mp4"])
    put_text(
        root, "mvlrs_v1/pretrain/5535423430009926848/00001.txt", "Text:  BEFORE\nConf:  5\n\nWORD START END ASDSCORE\n"
    )
    put_text(root, "pretrain.txt", "5535423430009926848/00001\n")
    return root


def make_lrs3(root: Path) -> Path:
    """LRS3: two clips of one talk in each of its folders."""
    for split, talk in (("pretrain", "0akiEFwtkyA"), ("trainval", "0C5UQbWzwg8"), ("test", "0Fi83BHQsMA")):
        for number in (1, 2):
            put(root, [f"{split}/{talk}/{number:05d}.mp4"])
            put_text(root, f"{split}/{talk}/{number:05d}.txt", f"Text:  AND SO ON {number}\nConf:  7\nRef: {talk}\n")
    return root


def make_imagefolder(root: Path) -> Path:
    """Two classes in three splits."""
    names = [f"{label}/{number}.png" for label in ("cat", "dog") for number in (1, 2)]
    for split in ("train", "val", "test"):
        put_images(root / split, names)
    return root
