"""LAV-DF: ``{train,dev,test}/NNNNNN.mp4`` and ``metadata.min.json`` or ``metadata.json``.

The fields of the metadata are those of the class ``Metadata`` in ``dataset/lavdf.py`` of github.com/ControlNet/LAV-DF.
"""

from collections.abc import Mapping

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_entries, relative_path, text_of
from shardspec.errors import UsageError
from shardspec.wording import shorten

METADATA = ("metadata.min.json", "metadata.json")
SPLITS: Mapping[str, str] = {"train": "train", "dev": "val", "val": "val", "test": "test"}

_MODIFIED = {(False, False): "none", (True, False): "video", (False, True): "audio", (True, True): "both"}


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the videos that the metadata lists. A forgery of the sound alone is fake, and `modified` says so."""
    base = tree.locate(
        lambda folder: any(tree.has(join(folder, name)) for name in METADATA),
        f"{' or '.join(METADATA)} (LAV-DF)",
    )
    path = join(base, next(name for name in METADATA if tree.has(join(base, name))))
    found = TreeContents()
    videos = tree.all_videos(found, base)
    listed: set[str] = set()
    for entry in read_entries(tree, path):
        name = relative_path(str(entry.get("file", "")), path)
        split = SPLITS.get(str(entry.get("split")))
        if split is None:
            raise UsageError(
                place=path,
                expected=f"a split for {shorten(name)}, one of {', '.join(SPLITS)}",
                found=shorten(entry.get("split")),
            )
        if name in listed:
            found.repeated.append(name)
            continue
        listed.add(name)
        if not choice.wants(split):
            continue
        video = join(base, name)
        if video not in videos:
            found.missing.append(video)
            continue
        modified = _MODIFIED[entry.get("modify_video") is True, entry.get("modify_audio") is True]
        periods = found.read_intervals(entry.get("fake_periods"), name)
        original = text_of(entry.get("original"))
        found.rows.append(
            {
                "path": video,
                "label": "real" if modified == "none" else "fake",
                "split": split,
                "original": video if modified == "none" else original and join(base, relative_path(original, path)),
                "modified": modified,
                "fake_periods": periods,
                "duration": _seconds(entry.get("duration")),
            }
        )
    found.unlisted += sorted(videos - {join(base, name) for name in listed})
    found.drop_missing_originals(videos)
    found.sort_by_original()
    return found


def _seconds(value: object) -> float | None:
    """Return a duration; None for anything else than a number that is finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None
