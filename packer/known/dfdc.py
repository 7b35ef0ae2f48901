"""DFDC, its test set and its preview: videos next to ``metadata.json``, ``labels.csv`` or ``dataset.json``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_json, read_rows, relative_path, text_of
from packer.vision.media import VIDEO
from shardspec.errors import UsageError
from shardspec.wording import counted, list_some, shorten

METADATA, TEST_LABELS, PREVIEW = "metadata.json", "labels.csv", "dataset.json"

_SPLITS: Mapping[str, str] = {"train": "train", "val": "val", "validation": "val", "test": "test"}
_LABELS: Mapping[str, str] = {"real": "real", "fake": "fake", "0": "real", "1": "fake"}


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the videos of every folder that has a list, at any depth."""
    found = TreeContents()
    lists: list[tuple[str, str]] = []
    videos: dict[str, list[str]] = {}
    for folder, names in tree.walk(found):
        lists += [(folder, name) for name in (METADATA, TEST_LABELS, PREVIEW) if name in names]
        for name in filter(VIDEO.holds, names):
            videos.setdefault(name, []).append(join(folder, name))
    if not lists:
        tree.locate(lambda _: False, f"{METADATA} or {TEST_LABELS} (DFDC) or {PREVIEW} (its preview) next to videos")
    listed: dict[str, dict[str, Any]] = {}
    unlabelled: set[str] = set()
    for folder, name in tree.each(lists, "lists"):
        for entry in _read_list(tree, folder, name):
            if entry["label"] is None:
                unlabelled.add(entry["path"])
            else:
                listed.setdefault(entry["path"], entry)
    for path, entry in listed.items():
        if choice.wants(entry["split"]):
            video = _locate(path, videos)
            if video is None:
                found.missing.append(path)
            else:
                original = _locate(entry["original"], videos) if entry["original"] else None
                found.rows.append({**entry, "path": video, "original": original})
    unlabelled -= set(listed)
    if unlabelled:
        found.notes.append(f"{counted(len(unlabelled), 'video')} without a label: {list_some(sorted(unlabelled))}")
    existing = {path for paths in videos.values() for path in paths}
    found.unlisted += sorted(existing - set(listed) - unlabelled - {row["path"] for row in found.rows})
    found.sort_by_original()
    return found


def _locate(path: str, videos: Mapping[str, Sequence[str]]) -> str | None:
    """Find a video at its path, in a folder below its list, or by its name if that is unique."""
    folder, _, name = path.rpartition("/")
    places = videos.get(name, ())
    if path in places:
        return path
    below = [place for place in places if place.startswith(f"{folder}/" if folder else "")]
    return below[0] if len(below) == 1 else places[0] if len(places) == 1 else None


def _read_list(tree: Tree, folder: str, kind: str) -> Iterator[dict[str, Any]]:
    """Read a list. ``metadata.json`` and the preview's ``dataset.json`` hold an object per video."""
    where = join(folder, kind)
    facts: Any
    for name, facts in (_read_test_labels if kind == TEST_LABELS else _read_object)(tree, where):
        if not isinstance(facts, dict):
            raise UsageError(place=where, expected=f"an object for {shorten(name)}", found=type(facts).__name__)
        inside = relative_path(name, where)
        path = join(folder, inside)
        label = _LABELS.get(str(facts.get("label")).strip().lower())
        split = str(facts.get("set" if kind == PREVIEW else "split", "train")).lower()
        entry = {"path": path, "label": label, "split": _SPLITS.get(split, "train"), "original": None}
        if kind == PREVIEW:
            entry["method"] = "real" if label == "real" else PurePosixPath(inside).parts[0]
            entry |= {"person": text_of(facts.get("target_id")), "donor": text_of(facts.get("swapped_id"))}
        elif label == "real":
            entry["original"] = path
        elif isinstance(original := facts.get("original"), str) and original.strip():
            entry["original"] = join(folder, relative_path(original, where))
        if kind == METADATA:
            entry["group"] = PurePosixPath(folder).name or tree.root.resolve().name
        yield entry


def _read_object(tree: Tree, where: str) -> Iterator[tuple[str, object]]:
    yield from read_json(tree.file(where), dict).items()


def _read_test_labels(tree: Tree, where: str) -> Iterator[tuple[str, object]]:
    """Read ``filename,label`` of the test set, where 1 is a forgery."""
    for row in read_rows(tree.file(where), ("filename", "label"), "filename and label"):
        yield row["filename"], {"label": row["label"], "split": "test"}
