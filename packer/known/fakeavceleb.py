"""FakeAVCeleb v1.2: ``{Real,Fake}Video-{Real,Fake}Audio/RACE/GENDER/IDENTITY/*.mp4`` and ``meta_data.csv``.

The authors' repository (github.com/DASH-Lab/FakeAVCeleb) describes neither. The types are from issue 1 of
github.com/piotrkawa/attack-agnostic-dataset, the names of videos from issue 11 of the authors' repository. The columns
are those that public loaders read: ``source,target1,target2,method,category,type,race,gender,path`` and one without a
name, which holds the folder from ``FakeAVCeleb/`` on. In their copies, 22 videos are listed twice.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_rows, relative_path
from shardspec.errors import UsageError
from shardspec.wording import shorten

METADATA = "meta_data.csv"

MODIFIED: Mapping[str, str] = {
    "RealVideo-RealAudio": "none",
    "RealVideo-FakeAudio": "audio",
    "FakeVideo-RealAudio": "video",
    "FakeVideo-FakeAudio": "both",
}
"""The streams that are forged, by ``type``, which is a folder as well."""

_SWAPS = ("faceswap", "fsgan")
"""Methods that put the face of ``target1`` into the video of ``source``. The others change lips or the voice."""

_INNER = "FakeAVCeleb"
"""Folder around the types, next to the metadata."""

_COLUMNS = ("source", "target1", "method", "type", "race", "gender", "path")
_NONE = ("", "-")


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the videos that the metadata lists. There is no official split; `group` is the person of the source."""
    home = tree.locate(lambda folder: tree.has(join(folder, METADATA)), f"{METADATA} (FakeAVCeleb)")
    inner = join(home, _INNER)
    base = inner if tree.folders(inner) else home
    found = TreeContents()
    videos = tree.all_videos(found, base)
    entries = dict[str, dict[str, str]]()
    for name, entry in _entries(tree, join(home, METADATA)):
        if name in entries:
            found.repeated.append(name)
        entries.setdefault(name, entry)
    methods = choice.pick("methods", sorted({entry["method"] for entry in entries.values()} - {"real"}))
    # Each person has one real video. A forgery's name begins with the number of the video that it was made from.
    originals = {
        (entry["source"], PurePosixPath(name).stem): join(base, name)
        for name, entry in entries.items()
        if MODIFIED[entry["type"]] == "none"
    }
    for name, entry in entries.items():
        modified, method = MODIFIED[entry["type"]], entry["method"]
        if modified != "none" and method not in methods:
            continue
        video = join(base, name)
        if video not in videos:
            found.missing.append(video)
            continue
        swaps = modified in ("video", "both") and method.startswith(_SWAPS) and entry["target1"] not in _NONE
        found.rows.append(
            {
                "path": video,
                "label": "real" if modified == "none" else "fake",
                "original": originals.get((entry["source"], PurePosixPath(name).stem.partition("_")[0])),
                "method": method,
                "modified": modified,
                "person": entry["source"],
                "donor": entry["target1"] if swaps else None,
                "gender": entry["gender"] or None,
                "race": entry["race"] or None,
            }
        )
    found.unlisted += sorted(videos - {join(base, name) for name in entries})
    found.drop_missing_originals(videos)
    found.sort_by_original()
    return found


def _entries(tree: Tree, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the path of each listed video from its type on, and its row."""
    for row in tree.each(list(read_rows(tree.file(path), _COLUMNS, ", ".join(_COLUMNS))), "videos"):
        if row["type"] not in MODIFIED:
            raise UsageError(place=path, expected=f"a type, one of {', '.join(MODIFIED)}", found=shorten(row["type"]))
        folder = row.get("", "").replace("\\", "/").partition(f"{_INNER}/")[2]
        folder = folder or join(row["type"], row["race"], row["gender"], row["source"])
        yield relative_path(join(folder, PurePosixPath(row["path"].replace("\\", "/")).name), path), row
