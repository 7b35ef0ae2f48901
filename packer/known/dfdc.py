"""DFDC, its test set and its preview: videos beside ``metadata.json``, ``labels.csv`` or ``dataset.json``."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packer.known.tree import Choice, Found, Tree, join, read_csv, read_json, relative_path, sort_by_original
from packer.sources.item import is_video
from shardspec.errors import UsageError
from shardspec.wording import counted, list_some, shorten

METADATA, TEST_LABELS, PREVIEW = "metadata.json", "labels.csv", "dataset.json"

_SPLITS: Mapping[object, str] = {"train": "train", "val": "val", "validation": "val", "test": "test"}
_LABELS: Mapping[object, str] = {"real": "real", "fake": "fake", "0": "real", "1": "fake"}


def find(tree: Tree, choice: Choice) -> Found:
    """The videos of every folder that has metadata, however deep it lies."""
    found = Found()
    lists: list[tuple[str, str]] = []
    videos: dict[str, list[str]] = {}
    for folder, names in tree.walk(found):
        lists += [(folder, name) for name in (METADATA, TEST_LABELS, PREVIEW) if name in names]
        for name in filter(is_video, names):
            videos.setdefault(name, []).append(join(folder, name))
    if not lists:
        tree.locate(lambda _: False, f"{METADATA} or {TEST_LABELS} (DFDC) or {PREVIEW} (its preview) beside videos")
    listed: dict[str, dict[str, Any]] = {}
    unlabelled: list[str] = []
    readers = {METADATA: _read_metadata, TEST_LABELS: _read_labels, PREVIEW: _read_preview}
    for folder, name in tree.each(lists, "lists"):
        for entry in readers[name](tree, folder):
            if entry["label"] is None:
                unlabelled.append(entry["path"])
            else:
                listed.setdefault(entry["path"], entry)
    _place(found, choice, listed, videos)
    unlabelled = sorted(set(unlabelled) - set(listed))
    if unlabelled:
        found.notes.append(f"{counted(len(unlabelled), 'video')} without a label: {list_some(unlabelled)}")
    there = {path for paths in videos.values() for path in paths}
    found.unlisted += sorted(there - set(listed) - set(unlabelled) - {row["path"] for row in found.rows})
    sort_by_original(found)
    return found


def _place(
    found: Found, choice: Choice, listed: Mapping[str, dict[str, Any]], videos: Mapping[str, Sequence[str]]
) -> None:
    """Make rows of the listed videos that are there; those that are not are missing."""
    for path, entry in listed.items():
        place = _look(path, videos)
        if not choice.wants(entry["split"]):
            continue
        if place is None:
            found.missing.append(path)
            continue
        original = entry["original"]
        row = {**entry, "path": place, "original": _look(original, videos) if original else None}
        found.rows.append(row)


def _look(path: str, videos: Mapping[str, Sequence[str]]) -> str | None:
    """Where a video lies: at its path, in a folder below its list, or at the only place with a file of that name."""
    folder, _, name = path.rpartition("/")
    places = videos.get(name, ())
    if path in places:
        return path
    below = [place for place in places if place.startswith(f"{folder}/" if folder else "")]
    return below[0] if len(below) == 1 else places[0] if len(places) == 1 else None


def _read_metadata(tree: Tree, folder: str) -> list[dict[str, Any]]:
    """``{"x.mp4": {"label": "FAKE", "split": "train", "original": "y.mp4"}}``."""
    where = join(folder, METADATA)
    entries = []
    for name, facts in read_json(tree.root / where, dict).items():
        _check_entry(where, name, facts)
        path = join(folder, relative_path(name, where))
        label = _LABELS.get(str(facts.get("label")).lower())
        original = facts.get("original")
        named = isinstance(original, str) and original.strip()
        entries.append(
            {
                "path": path,
                "label": label,
                "split": _SPLITS.get(str(facts.get("split", "train")).lower(), "train"),
                "original": path
                if label == "real"
                else join(folder, relative_path(original, where))
                if named
                else None,
                "group": PurePosixPath(folder).name or tree.root.resolve().name,
            }
        )
    return entries


def _read_labels(tree: Tree, folder: str) -> list[dict[str, Any]]:
    """``filename,label`` of the test set: 1 is a forgery."""
    path = tree.root / folder / TEST_LABELS
    header, *rows = read_csv(path) or [[]]
    columns = [name.strip() for name in header]
    if not {"filename", "label"} <= set(columns):
        raise UsageError(f"{path}: expected the columns filename and label, found {list_some(columns) or 'none'}")
    entries = []
    for row in (dict(zip(columns, cells, strict=False)) for cells in rows):
        place = join(folder, relative_path(row.get("filename", ""), path))
        label = _LABELS.get(row.get("label", "").strip().lower())
        original = place if label == "real" else None
        entries.append({"path": place, "label": label, "split": "test", "original": original})
    return entries


def _read_preview(tree: Tree, folder: str) -> list[dict[str, Any]]:
    """``{"method_A/…/v.mp4": {"label": "fake", "set": "train", "target_id": …, "swapped_id": …}}``."""
    where = join(folder, PREVIEW)
    entries = []
    for name, facts in read_json(tree.root / where, dict).items():
        _check_entry(where, name, facts)
        path = relative_path(name, where)
        label = _LABELS.get(str(facts.get("label")).lower())
        entries.append(
            {
                "path": join(folder, path),
                "label": label,
                "split": _SPLITS.get(str(facts.get("set", "train")).lower(), "train"),
                "original": None,
                "method": "real" if label == "real" else PurePosixPath(path).parts[0],
                "person": _text(facts.get("target_id")),
                "donor": _text(facts.get("swapped_id")),
            }
        )
    return entries


def _check_entry(where: str, name: str, facts: object) -> None:
    if not isinstance(facts, dict):
        raise UsageError(f"{where}: expected an object for {shorten(name)}, found {type(facts).__name__}")


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
