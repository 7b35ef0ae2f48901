"""Celeb-DF v1 and v2: ``Celeb-real``, ``YouTube-real``, ``Celeb-synthesis`` and ``List_of_testing_videos.txt``."""

import re
from pathlib import Path, PurePosixPath

from packer.known.tree import Choice, Found, Tree, join, read_lines, relative_path, sort_by_original
from shardspec.errors import UsageError
from shardspec.wording import shorten

TEST_LIST = "List_of_testing_videos.txt"

_LABELS = {"celeb-real": "real", "youtube-real": "real", "celeb-synthesis": "fake"}
"""The folders in lower case (copies spell YouTube-real in several ways), and the label of the videos in each."""

_MARKS = {"real": "1", "fake": "0"}
"""What stands before a video in the list of testing videos."""

_REAL = re.compile(r"(id\d+)_\d+\Z")
_FAKE = re.compile(r"(id\d+)_(id\d+)_(\d+)\Z")


def find(tree: Tree, choice: Choice) -> Found:
    """All videos. Those of the list are the test split; the rest is train, since there is no official val split."""
    base = tree.locate(
        lambda folder: bool(set(_LABELS) & {name.lower() for name in tree.folders(folder)}),
        "folders Celeb-real/, YouTube-real/, Celeb-synthesis/ (Celeb-DF)",
    )
    listed = _listed(tree, choice, base)
    folders = {name.lower(): name for name in tree.folders(base) if name.lower() in _LABELS}
    found = Found()
    there: dict[tuple[str, str], str] = {}
    for key, folder in folders.items():
        videos = tree.videos(join(base, folder)) or tree.videos(join(base, folder, "videos"))
        there |= {(key, name): path for name, path in videos.items()}
    for (key, name), path in there.items():
        split = None if listed is None else "test" if (key, name) in listed else "train"
        if split is None or choice.wants(split):
            found.rows.append({"path": path, "split": split, **_describe(key, name, path, there)})
    if choice.wants("test"):
        found.missing += [join(base, listed[video]) for video in sorted(set(listed or ()) - set(there)) if listed]
    absent = [name for name in ("Celeb-real", "YouTube-real", "Celeb-synthesis") if name.lower() not in folders]
    if absent:
        found.notes.append(f"folders that are not there: {', '.join(absent)}")
    sort_by_original(found)
    return found


def _describe(key: str, name: str, path: str, there: dict[tuple[str, str], str]) -> dict[str, str | None]:
    """Parse the folder and name of a video.

    The first name of a forgery is the person shown, and the owner of the video.
    """
    label = _LABELS[key]
    fake, real = _FAKE.match(name), _REAL.match(name)
    if label == "fake":
        person, donor, number = fake.groups() if fake else (None, None, None)
        return {
            "label": label,
            "original": there.get(("celeb-real", f"{person}_{number}")),
            "person": person,
            "donor": donor,
        }
    # Nobody knows who is in a video of YouTube-real: each counts as a person of its own, so that --by person has a value.
    return {"label": label, "original": path, "person": real[1] if real else f"youtube-{name}"}


def _listed(tree: Tree, choice: Choice, base: str) -> dict[tuple[str, str], str] | None:
    """The videos of the list by folder, in lower case, and name; None without a list."""
    if choice.no_lists:
        return None
    path = tree.official_list(choice, TEST_LIST, (base, ""))
    if path is None:
        raise UsageError(
            f"{tree.root}: expected the official list {TEST_LIST}, found none: it comes with Celeb-DF; "
            "give it with --lists, or --lists none to list without splits"
        )
    listed = {}
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            folder, name, label = _parse(path, number, line)
            listed[folder.lower(), PurePosixPath(name).stem] = f"{folder}/{name}"
            mark = line.split()[0]
            if mark != _MARKS[label]:
                raise UsageError(
                    f"{path}, line {number}: expected {_MARKS[label]} before a {label} video (in this list 1 is real), "
                    f"found {shorten(line)}"
                )
    return listed


def _parse(path: Path, number: int, line: str) -> tuple[str, str, str]:
    """The folder, the file and the label that a line such as ``1 YouTube-real/00170.mp4`` names."""
    words = line.split(maxsplit=1)
    parts = PurePosixPath(relative_path(words[-1], f"{path}, line {number}")).parts
    if len(words) != 2 or words[0] not in _MARKS.values() or len(parts) < 2 or parts[0].lower() not in _LABELS:
        raise UsageError(
            f"{path}, line {number}: expected '1 YouTube-real/00170.mp4' or the like, found {shorten(line)}"
        )
    return parts[0], parts[-1], _LABELS[parts[0].lower()]
