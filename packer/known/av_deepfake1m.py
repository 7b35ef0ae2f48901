"""AV-Deepfake1M and ++: ``{train,val,test}/…/*.mp4``, ``{train,val}_metadata.json`` and ``test_files.txt``.

The test set of ++ comes in two parts: ``testA_files.txt`` and ``testB_files.txt``.

Layout and fields are those of the README and of ``python/avdeepfake1m/loader.py`` of
github.com/ControlNet/AV-Deepfake1M. Paths in the lists are relative to the folder of their split; copies of ++ also
have them in the dataset's folder. ``audio_frames`` is not read, because it is wrong for forgeries (issue 7 there).
"""

from collections.abc import Collection, Mapping
from typing import Any

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_entries, read_lines, relative_path, text_of
from shardspec.errors import UsageError
from shardspec.wording import shorten

_LISTS: Mapping[str, str] = {
    **{split: f"{split}_metadata.json" for split in ("train", "val")},
    **{split: f"{split}_files.txt" for split in ("test", "testA", "testB")},
}
"""The list of each split. Those of test are texts without labels."""
_TESTS = ("test", "testA", "testB")
SPLITS = tuple(_LISTS)
SEGMENTS = ("fake_segments", "visual_fake_segments", "audio_fake_segments")

_MODIFIED: Mapping[str, str] = {"real": "none", "visual": "video", "audio": "audio", "both": "both"}
"""The streams that are forged, by the first word of ``modify_type`` (both_modified, in the loader both-modified)."""


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the videos that the metadata lists. Those of test have no labels, and are listed only by request."""
    base = tree.locate(
        lambda folder: any(tree.has(join(folder, name)) for name in _LISTS.values()),
        f"{', '.join(_LISTS.values())} (AV-Deepfake1M)",
    )
    found = TreeContents()
    wanted = [split for split in _LISTS if (split in choice.splits if choice.splits else split not in _TESTS)]
    absent = [_LISTS[split] for split in wanted if not tree.has(join(base, _LISTS[split]))]
    if absent and choice.splits:
        raise UsageError(place=tree.root / base, expected=f"the official list {absent[0]}", found="none")
    if absent:
        found.notes.append(f"lists that do not exist: {', '.join(absent)}")
    for split in () if choice.splits else _TESTS:
        if tree.has(join(base, _LISTS[split])):
            found.notes.append(f"{split} is left out, since it has no labels: --splits {split} lists it")
    videos = tree.all_videos(found, base)
    for split in wanted:
        if _LISTS[split] not in absent:
            _add(tree, found, videos, base, split)
    found.drop_missing_originals(videos)
    found.sort_by_original()
    return found


def _add(tree: Tree, found: TreeContents, videos: Collection[str], base: str, split: str) -> None:
    path, is_test = join(base, _LISTS[split]), split in _TESTS
    entries = ({"file": line} for line in read_lines(tree.file(path)) if line) if is_test else read_entries(tree, path)
    listed: set[str] = set()
    for entry in entries:
        file = relative_path(str(entry.get("file", "")), path)
        if file in listed:
            found.repeated.append(file)
            continue
        listed.add(file)
        places = [join(base, split, file), join(base, file)]
        video = next((place for place in places if place in videos), None)
        if video is None:
            found.missing.append(places[0])
            continue
        row: dict[str, Any] = {"path": video, "split": split, "person": _person(file)}
        found.rows.append(row if is_test else row | _describe(found, entry, video, file, path))
    folder = f"{join(base, split)}/"
    found.unlisted += sorted(
        video for video in videos if video.startswith(folder) and video.removeprefix(folder) not in listed
    )


def _describe(found: TreeContents, entry: Mapping[str, Any], video: str, file: str, path: str) -> dict[str, Any]:
    """Return the facts of a listed video. A real video's ``original`` is its path in VoxCeleb2."""
    kind = str(entry.get("modify_type"))
    modified = _MODIFIED.get(kind.replace("-", "_").partition("_")[0])
    if modified is None:
        raise UsageError(
            place=path,
            expected=f"modify_type real, visual_modified, audio_modified or both_modified for {shorten(file)}",
            found=shorten(entry.get("modify_type")),
        )
    models = [text_of(entry.get(f"{stream}_model")) for stream in ("video", "audio")]
    original = text_of(entry.get("original"))
    if modified == "none":
        method, original = "real", video
    else:
        method = "-".join(filter(None, models)) or kind
        original = original and video.removesuffix(file) + relative_path(original, path)
    facts = {"label": "real" if modified == "none" else "fake", "method": method, "original": original}
    return facts | {"modified": modified} | {name: found.read_intervals(entry.get(name), file) for name in SEGMENTS}


def _person(file: str) -> str | None:
    """Return the speaker: the first folder; in ++, whose first folders are corpora, the first two."""
    folders = file.split("/")[:-1]
    return "/".join(folders[: 1 if folders[:1] and folders[0].startswith("id") else 2]) or None
