"""Celeb-DF v1 and v2: ``Celeb-real``, ``YouTube-real``, ``Celeb-synthesis`` and ``List_of_testing_videos.txt``."""

import re
from pathlib import PurePosixPath

from packer.known.tree import Choice, Found, Tree, join, read_lines, relative_path
from shardspec.errors import UsageError
from shardspec.wording import shorten

TEST_LIST = "List_of_testing_videos.txt"

_LABELS = {"celeb-real": "real", "youtube-real": "real", "celeb-synthesis": "fake"}
"""Label of the videos in each folder. Names are in lower case, because copies differ in the case of YouTube-real."""

_MARKS = {"real": "1", "fake": "0"}
"""First word of a line in the list of testing videos."""

_REAL = re.compile(r"(id\d+)_\d+\Z")
_FAKE = re.compile(r"(id\d+)_(id\d+)_(\d+)\Z")


def find(tree: Tree, choice: Choice) -> Found:
    """Find all videos. Those in the list are the test split, all others train; there is no official val split."""
    base = tree.locate(
        lambda folder: bool(set(_LABELS) & {name.lower() for name in tree.folders(folder)}),
        "folders Celeb-real/, YouTube-real/, Celeb-synthesis/ (Celeb-DF)",
    )
    listed = {} if choice.no_lists else _read_list(tree, choice, base)
    folders = {name.lower(): name for name in tree.folders(base) if name.lower() in _LABELS}
    found = Found()
    videos: dict[tuple[str, str], str] = {}
    for key, folder in folders.items():
        inside = tree.videos(join(base, folder)) or tree.videos(join(base, folder, "videos"))
        videos |= {(key, name): path for name, path in inside.items()}
    for (key, name), path in videos.items():
        split = None if choice.no_lists else "test" if (key, name) in listed else "train"
        if split is None or choice.wants(split):
            found.rows.append({"path": path, "split": split, **_describe(key, name, path, videos)})
    if choice.wants("test"):
        found.missing += [join(base, path) for video, path in sorted(listed.items()) if video not in videos]
    absent = [name for name in ("Celeb-real", "YouTube-real", "Celeb-synthesis") if name.lower() not in folders]
    if absent:
        found.notes.append(f"folders that do not exist: {', '.join(absent)}")
    found.sort_by_original()
    return found


def _describe(key: str, name: str, path: str, videos: dict[tuple[str, str], str]) -> dict[str, str | None]:
    """Parse a video's name. A forgery's first name is the person shown, whose video it was made from."""
    label = _LABELS[key]
    if label == "fake":
        fake = _FAKE.match(name)
        person, donor, number = fake.groups() if fake else (None, None, None)
        original = videos.get(("celeb-real", f"{person}_{number}"))
        return {"label": label, "original": original, "person": person, "donor": donor}
    real = _REAL.match(name)
    # The people of YouTube-real are unknown. Each video gets a person, so that --by person has a value for it.
    return {"label": label, "original": path, "person": real[1] if real else f"youtube-{name}"}


def _read_list(tree: Tree, choice: Choice, base: str) -> dict[tuple[str, str], str]:
    """Read the path of each listed video by folder, in lower case, and name."""
    path = tree.official_list(choice, TEST_LIST, (base, ""))
    if path is None:
        raise tree.missing_list(choice, TEST_LIST, "it comes with Celeb-DF")
    listed = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        where = f"{path}, line {number}"
        words = line.split(maxsplit=1)
        parts = PurePosixPath(relative_path(words[-1], where)).parts
        if len(words) != 2 or words[0] not in _MARKS.values() or len(parts) < 2 or parts[0].lower() not in _LABELS:
            raise UsageError(place=where, expected="a line such as '1 YouTube-real/00170.mp4'", found=shorten(line))
        label = _LABELS[parts[0].lower()]
        if words[0] != _MARKS[label]:
            raise UsageError(
                place=where,
                expected=f"{_MARKS[label]} before a {label} video (in this list 1 is real)",
                found=shorten(line),
            )
        listed[parts[0].lower(), PurePosixPath(parts[-1]).stem] = f"{parts[0]}/{parts[-1]}"
    return listed
