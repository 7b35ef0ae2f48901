"""DF40: frames in ``DF40/METHOD/{ff,cdf}``, ``DF40_train/METHOD/…`` and, of nine methods, ``METHOD/{fake,real}``.

Methods and folders are those of the README of github.com/YZY-stack/DF40. Its downloads differ: the videos follow the
method without ``ff`` (issue 28 there), below ``frames``, or below long paths with the method again (issue 36). So the
last folder named after a method decides, and the folders in `_STRUCTURE` are left out of the rest of the path. The
lists are JSON files of DeepfakeBench's format, which name frames that do not exist (issues 16, 29, 40).
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packer.known.deepfakebench import read_videos
from packer.known.tree import DatasetFilter, Tree, TreeContents, join
from packer.vision.media import is_picture
from shardspec.errors import UsageError
from shardspec.wording import list_some

METHODS = (
    *("fsgan", "faceswap", "simswap", "inswap", "blendface", "uniface", "mobileswap", "e4s", "facedancer"),
    *("deepfacelab", "fomm", "facevid2vid", "wav2lip", "MRAA", "one_shot_free", "pirender", "tpsm", "lia", "danet"),
    *("sadtalker", "mcnet", "hyperreenact", "heygen", "VQGAN", "StyleGAN2", "StyleGAN3", "StyleGANXL", "sd2.1"),
    *("ddim", "RDDM", "pixart", "DiT", "SiT", "MidJourney", "whichfaceisreal", "CollabDiff", "e4e", "stargan"),
    *("starganv2", "styleclip"),
)
_METHOD_OF = {name.lower(): name for name in METHODS} | {
    "whichisreal": "whichfaceisreal",
    "collaborative_diffusion": "CollabDiff",
}
_SOURCES = {"original_sequences": "ff", "celeb-real": "cdf", "youtube-real": "cdf"}
"""Folders of the real frames of the other methods, and the dataset to which they belong."""

_STRUCTURE = {
    "ff": "ff",
    "cdf": "cdf",
    "ff_processed": "ff",
    "cdf_processed": "cdf",
    "frames": "",
    "fake": "",
    "real": "",
}
"""Folders that a copy may have or lack, and the dataset whose faces they hold."""


class FrameId(NamedTuple):
    """Identity of a frame, read from its path. `method` is ``real`` for frames of the original datasets."""

    method: str
    is_real: bool
    source: str
    name: str
    """Path without the folders that copies may lack."""

    @classmethod
    def of(cls, path: str) -> "FrameId | None":
        """Read a path in the dataset or in a list; None if it has no method and is not of an original dataset."""
        parts = PurePosixPath(path).parts
        lower = [part.lower() for part in parts[:-1]]
        if "manipulated_sequences" in lower:  # of FaceForensics++, which has a FaceSwap of its own
            return None
        at = next((place for place in reversed(range(len(lower))) if lower[place] in _METHOD_OF), None)
        if at is None:
            source = next((_SOURCES[part] for part in lower if part in _SOURCES), None)
            return None if source is None else cls("real", True, source, "/".join(parts[-2:]))
        inside = lower[at + 1 :]
        source = next((_STRUCTURE[part] for part in inside if _STRUCTURE.get(part)), "")
        rest = [part for part in parts[at + 1 : -1] if part.lower() not in _STRUCTURE]
        return cls(_METHOD_OF[lower[at]], "real" in inside, source, "/".join([*rest, parts[-1]]))


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the frames, and with lists only those that they name. Without, folders called train are the train split."""
    found = TreeContents()
    files: dict[str, FrameId] = {}
    for folder, names in tree.walk(found):
        for path in (join(folder, name) for name in names if is_picture(name)):
            frame = FrameId.of(path)
            if frame is None:
                found.unlisted.append(path)
            else:
                files[path] = frame
    if not files:
        tree.locate(lambda _: False, "folders METHOD/ff, METHOD/cdf, METHOD/fake or METHOD/real (DF40)")
    there = {frame.method for frame in files.values()}
    methods = {*choice.pick("methods", [name for name in METHODS if name in there]), "real"}
    home = tree.root.resolve().name
    if choice.lists is None:
        for path, frame in files.items():
            split = "train" if "train" in f"{home}/{path.rpartition('/')[0]}".lower() else "test"
            if frame.method in methods and choice.wants(split):
                found.rows.append(_row(path, frame, split))
    else:
        _add_listed(tree, found, choice, files, methods)
    found.rows.sort(key=lambda row: (row["split"], row["method"], row["path"]))
    return found


def _row(path: str, frame: FrameId, split: str) -> dict[str, str | None]:
    return {
        "path": path,
        "label": "real" if frame.is_real else "fake",
        "split": split,
        "method": "real" if frame.is_real else frame.method,
        "group": frame.source or None,
        "clip": PurePosixPath(path).parent.as_posix(),
    }


def _add_listed(
    tree: Tree, found: TreeContents, choice: DatasetFilter, files: dict[str, FrameId], methods: set[str]
) -> None:
    """Add the listed frames that exist, wherever they are, and count the others by method."""
    by_frame: dict[FrameId, str] = {}
    for place, of in files.items():
        by_frame.setdefault(of, place)
    listed, absent, done = Counter[str](), Counter[str](), set[tuple[str, str]]()
    used = set[str]()
    for split, name in _listed_frames(tree, found, choice):
        frame = FrameId.of(name)
        if frame is None or frame.method not in methods:
            continue
        path = by_frame.get(frame) or by_frame.get(frame._replace(source=""))
        used.add(path or name)
        if (path or name, split) in done:  # the lists of several methods share real frames
            continue
        done.add((path or name, split))
        if not choice.wants(split):
            continue
        listed[frame.method] += 1
        if path is None:
            absent[frame.method] += 1
            found.missing.append(name)
        else:
            found.rows.append(_row(path, files[path], split))
    if absent:
        found.notes.append(f"listed frames that do not exist: {_describe(absent, listed)}")
    splits: dict[str, set[str]] = {}
    for name, split in done:
        splits.setdefault(name, set()).add(split)
    found.note_leaks("the lists have", "frame", splits.values())
    found.missing = list(dict.fromkeys(found.missing))
    found.unlisted += [path for path in files if path not in used]


def _listed_frames(tree: Tree, found: TreeContents, choice: DatasetFilter) -> Iterator[tuple[str, str]]:
    """Yield the split and path of each frame of the lists."""
    path = choice.lists or Path()
    lists = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not lists:
        raise UsageError(option="lists", expected="JSON files of DF40", found=f"none in {path}")
    for one in tree.each(lists, "lists"):
        for video in read_videos(one, found):
            yield from ((video.split, frame) for frame in video.frames)


def _describe(counts: Counter[str], totals: Counter[str]) -> str:
    """Describe counts by method, the largest first."""
    return list_some([f"{name} {n} of {totals[name]}" for name, n in counts.most_common()])
