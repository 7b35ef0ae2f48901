"""Celeb-DF v1, v2 and ++: ``Celeb-real``, ``YouTube-real``, ``Celeb-synthesis`` and ``List_of_testing_videos.txt``.

Celeb-DF++ has its forgeries in ``Celeb-synthesis/SCENARIO/METHOD`` (README of github.com/OUC-VAS/Celeb-DF-PP), and its
list names them so. In copies, the folder of v2's forgeries is called ``Celeb-DF-v2`` instead of ``Celeb-DF``.
"""

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_lines, relative_path
from shardspec.errors import UsageError
from shardspec.wording import shorten

TEST_LIST = "List_of_testing_videos.txt"
INNER = "videos"
"""Folder that some copies have around the videos of each folder."""

_LABELS = {"celeb-real": "real", "youtube-real": "real", "celeb-synthesis": "fake"}
"""Label of the videos in each folder. Names are in lower case, because copies differ in the case of YouTube-real."""

_MARKS = {"real": "1", "fake": "0"}
"""First word of a line in the list of testing videos."""

_KEEPS_FRAMES = "FaceSwap"
"""The scenario whose forgeries have the frames of their original. Others animate an image, or follow another video."""

_REAL = re.compile(r"(id\d+)_\d+\Z")
_FAKE = re.compile(r"(id\d+)_(id\d+)_(\d+)\Z")


class VideoId(NamedTuple):
    """Identity of a video: its folders in lower case, without `INNER`, and its name without suffix."""

    folders: tuple[str, ...]
    name: str

    @classmethod
    def of(cls, path: str) -> "VideoId":
        """Return the identity of a path in the dataset, or in the list."""
        *folders, name = PurePosixPath(path.replace("Celeb-DF-v2/", "Celeb-DF/")).parts
        return cls(tuple(folder.lower() for folder in folders if folder.lower() != INNER), PurePosixPath(name).stem)


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find all videos. Those in the list are the test split, all others train; there is no official val split."""
    base = tree.locate(
        lambda folder: bool(set(_LABELS) & {name.lower() for name in tree.folders(folder)}),
        "folders Celeb-real/, YouTube-real/, Celeb-synthesis/ (Celeb-DF)",
    )
    folders = [name for name in tree.folders(base) if name.lower() in _LABELS]
    places = dict.fromkeys(folders, "")
    for folder in (folder for folder in folders if _LABELS[folder.lower()] == "fake"):
        for scenario in tree.folders(join(base, folder)):
            inside = tree.folders(join(base, folder, scenario))
            places |= {f"{folder}/{scenario}/{method}": method for method in inside}
    methods = choice.pick("methods", sorted({method for method in places.values() if method}))
    listed = {} if choice.no_lists else _read_list(tree, choice, base)
    videos: dict[VideoId, str] = {}
    method_of: dict[VideoId, str] = {}
    for place, of in places.items():
        found_here = tree.videos(join(base, place)) or tree.videos(join(base, place, INNER))
        for path in found_here.values():
            video = VideoId.of(path.removeprefix(f"{base}/" if base else ""))
            videos[video], method_of[video] = path, of
    found = TreeContents()
    for video, path in videos.items():
        split = None if choice.no_lists else "test" if video in listed else "train"
        is_real = _LABELS[video.folders[0]] == "real"
        if (split is None or choice.wants(split)) and (is_real or not methods or method_of[video] in methods):
            method = None if not any(places.values()) else "real" if is_real else method_of[video] or "Celeb-DF"
            found.rows.append({"path": path, "split": split, "method": method, **_describe(video, path, videos)})
    if choice.wants("test"):
        absent = [(video, path) for video, path in sorted(listed.items()) if video not in videos]
        chosen = {method.replace("Celeb-DF-v2", "Celeb-DF").lower() for method in methods}
        found.missing += [
            join(base, path)
            for video, path in absent
            if not choice.methods or len(video.folders) < 3 or video.folders[2] in chosen
        ]
    there = {folder.lower() for folder in folders}
    lacking = [name for name in ("Celeb-real", "YouTube-real", "Celeb-synthesis") if name.lower() not in there]
    if lacking:
        found.notes.append(f"folders that do not exist: {', '.join(lacking)}")
    found.sort_by_original()
    return found


def _describe(video: VideoId, path: str, videos: dict[VideoId, str]) -> dict[str, str | None]:
    """Parse a video's name. A forgery's first name is the person shown, whose video it was made from."""
    label = _LABELS[video.folders[0]]
    if label == "fake":
        fake = _FAKE.match(video.name)
        person, donor, number = fake.groups() if fake else (None, None, None)
        original = videos.get(VideoId(("celeb-real",), f"{person}_{number}"))
        if len(video.folders) > 1 and video.folders[1] != _KEEPS_FRAMES.lower():
            original = None
        return {"label": label, "original": original, "person": person, "donor": donor}
    real = _REAL.match(video.name)
    # The people of YouTube-real are unknown. Each video gets a person, so that --by person has a value for it.
    return {"label": label, "original": path, "person": real[1] if real else f"youtube-{video.name}"}


def _read_list(tree: Tree, choice: DatasetFilter, base: str) -> dict[VideoId, str]:
    """Read the path of each listed video."""
    path = tree.official_list(choice, TEST_LIST, (base, ""))
    if path is None:
        raise tree.missing_list(choice, TEST_LIST, "it comes with Celeb-DF")
    listed = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        where = f"{path}, line {number}"
        words = line.split(maxsplit=1)
        name = relative_path(words[-1], where)
        video = VideoId.of(name)
        if len(words) != 2 or words[0] not in _MARKS.values() or not video.folders or video.folders[0] not in _LABELS:
            raise UsageError(place=where, expected="a line such as '1 YouTube-real/00170.mp4'", found=shorten(line))
        label = _LABELS[video.folders[0]]
        if words[0] != _MARKS[label]:
            raise UsageError(
                place=where,
                expected=f"{_MARKS[label]} before a {label} video (in this list 1 is real)",
                found=shorten(line),
            )
        listed[video] = name
    return listed
