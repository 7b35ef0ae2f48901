"""DeepfakeBench's JSON files, ``{dataset: {label: {split: {[compression:] {video: {"frames": […]}}}}}}``."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packer.known.tree import DatasetFilter, Tree, TreeContents, read_json, relative_path
from packer.vision.media import IMAGE
from shardspec.errors import UsageError
from shardspec.wording import LONG, cut, list_some, shorten

_PLACES = ("", "dataset_json", "preprocessing/dataset_json")
_MOST_TRIED = 50
"""Number of frames searched to find the folder to which the paths of a file are relative."""

_SPLITS = ("train", "val", "test")


class BenchVideo(NamedTuple):
    """A video of a file; `label` is the file's, such as ``FF-real`` or ``FF-DF``."""

    dataset: str
    label: str
    split: str
    compression: str | None
    name: str
    frames: list[str]
    masks: list[str]


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the frames of all videos. A video in several splits has rows for each."""
    if choice.no_lists:
        raise UsageError(option="lists", expected="a JSON file of DeepfakeBench", found="'none'")
    path = _file(tree, choice)
    found = TreeContents()
    videos = list(read_videos(path, found))
    fakes = sorted({video.label for video in videos if not _is_real(video.label)})
    labels = choice.pick("methods", fakes)
    compressions = choice.pick_compressions(
        sorted({video.compression for video in videos if video.compression is not None}), f"in {path.name}"
    )
    videos = [
        video
        for video in videos
        if (_is_real(video.label) or video.label in labels)
        and (video.compression is None or video.compression in compressions)
    ]
    _note_overlaps(found, videos)
    frames = _FrameList(tree, path, videos)
    chosen = [video for video in videos if choice.wants(video.split)]
    for video in tree.each(chosen, "videos"):
        _add(found, frames, video)
    found.missing = list(dict.fromkeys(found.missing))
    found.unlisted += frames.unlisted(videos)
    return found


def _file(tree: Tree, choice: DatasetFilter) -> Path:
    """Return the JSON file in the option `lists`, or the only one next to the data."""
    if choice.lists is not None and not choice.lists.is_dir():
        return choice.lists
    folders = [choice.lists] if choice.lists is not None else [tree.root / place for place in _PLACES]
    files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    if len(files) != 1:
        names = list_some([path.name for path in files]) or "none"
        raise UsageError(
            place=folders[0], expected="one JSON file of DeepfakeBench", found=names, hint="name it with --lists FILE"
        )
    return files[0]


def read_videos(path: Path, found: TreeContents) -> Iterator[BenchVideo]:
    """Yield the videos of a JSON file; `UsageError` if it has another format."""
    document = read_json(path, dict)

    def inside(value: object, *where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UsageError(
                place=path, expected=f"an object at {shorten('/'.join(where))}", found=type(value).__name__
            )
        return value

    for dataset, labels in document.items():
        for label, splits in inside(labels, dataset).items():
            for split, members in inside(splits, dataset, label).items():
                where = (dataset, label, split)
                if split not in _SPLITS:
                    raise UsageError(
                        place=path, expected="the splits train, val and test", found=shorten("/".join(where))
                    )
                if isinstance(inside(members, *where).get("frames"), list):
                    # A bug of the script that writes these files replaces all videos of DFDC's val by the frames of
                    # one video. Videos may have been added to the object afterwards.
                    place = cut("/".join(where), LONG)
                    found.notes.append(f"{place} holds the frames of one video instead of videos: left out")
                    members = {name: facts for name, facts in members.items() if isinstance(facts, dict)}
                for name, facts in members.items():
                    if "frames" in inside(facts, *where, name):
                        yield _video(path, (*where, name), None, facts)
                        continue
                    for video, inner in facts.items():
                        yield _video(path, (*where, video), name, inside(inner, *where, name, video))


def _video(path: Path, where: tuple[str, ...], compression: str | None, facts: dict[str, Any]) -> BenchVideo:
    dataset, label, split, name = where

    def paths(names: object) -> list[str]:
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise UsageError(
                place=path, expected=f"a list of frames at {shorten('/'.join(where))}", found=shorten(names)
            )
        return [_relative(one, path) for one in names]

    frames, masks = paths(facts.get("frames")), paths(facts.get("masks") or [])
    return BenchVideo(dataset, label, split, compression, name, sorted(frames, key=_order), masks)


def _relative(name: str, where: object) -> str:
    r"""Return a frame's path with ``/`` for ``\``, without the root of an absolute path from another machine."""
    plain = name.strip().replace("\\", "/")
    drive, _, rest = plain.partition(":/")
    return relative_path((rest if rest and len(drive) == 1 else plain).lstrip("/"), where)


def _order(path: str) -> tuple[int, str]:
    """Return a sort key by frame number, so that 10.png follows 9.png."""
    stem = PurePosixPath(path).stem
    return (int(stem) if stem.isdecimal() and len(stem) < 19 else 0, path)


def _is_real(label: str) -> bool:
    """Return whether a label of these files means real videos, such as FF-real, CelebDFv2_real or DFDC_Real."""
    return "real" in label.lower()


class _FrameList:
    """Existing frames, listed folder by folder when needed."""

    def __init__(self, tree: Tree, path: Path, videos: list[BenchVideo]) -> None:
        self._tree = tree
        self._paths: dict[str, set[str]] = {}
        frames = [frame for video in videos for frame in video.frames[:1]]
        for frame in islice(frames, _MOST_TRIED):
            parts = PurePosixPath(frame).parts
            for skipped in range(len(parts) - 1):
                if tree.has("/".join(parts[skipped:])):
                    self._skipped = skipped
                    return
        if not frames:
            raise UsageError(place=path, expected="videos with frames", found="none")
        tree.locate(lambda _: False, f"the frames that {path.name} names, such as {shorten(frames[0])}")

    def path(self, frame: str) -> str:
        """Return the path of a frame that the file names."""
        return "/".join(PurePosixPath(frame).parts[self._skipped :])

    def has(self, path: str) -> bool:
        """Return whether a frame exists."""
        folder = path.rpartition("/")[0]
        if folder not in self._paths:
            self._paths[folder] = set(self._tree.paths(folder, IMAGE.holds))
        return path in self._paths[folder]

    def unlisted(self, videos: list[BenchVideo]) -> list[str]:
        """Return the frames in the listed folders that no video of the file has."""
        listed = {self.path(frame) for video in videos for frame in (*video.frames, *video.masks)}
        return sorted(set().union(*self._paths.values()) - listed)


def _add(found: TreeContents, frames: _FrameList, video: BenchVideo) -> None:
    """Add a video's frames, each with the mask of the same name."""
    masks = {PurePosixPath(mask).stem: frames.path(mask) for mask in video.masks}
    real = _is_real(video.label)
    for frame in video.frames:
        path = frames.path(frame)
        if not frames.has(path):
            found.missing.append(path)
            continue
        mask = masks.get(PurePosixPath(frame).stem)
        if mask is not None and not frames.has(mask):
            found.missing.append(mask)
            mask = None
        found.rows.append(
            {
                "path": path,
                "label": "real" if real else "fake",
                "split": video.split,
                "mask": mask,
                "method": "real" if real else video.label,
                "compression": video.compression,
                "clip": PurePosixPath(path).parent.as_posix(),
            }
        )


def _note_overlaps(found: TreeContents, videos: list[BenchVideo]) -> None:
    """Note videos in several splits, which several of these files have."""
    splits: dict[tuple[str, str, str | None], set[str]] = {}
    for video in videos:
        if video.frames:
            splits.setdefault((video.dataset, video.frames[0], video.compression), set()).add(video.split)
    found.note_leaks("the file has", "video", splits.values())
