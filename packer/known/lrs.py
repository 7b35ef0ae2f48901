"""LRS2 (``main/ID/NNNNN.mp4`` with lists) and LRS3 (``{pretrain,trainval,test}/ID/NNNNN.mp4``), texts beside them."""

from collections.abc import Sequence
from pathlib import Path

from packer.known.tree import Choice, Found, Tree, is_media, join, read_lines, relative_path
from shardspec.errors import UsageError
from shardspec.wording import shorten

_LRS2 = ("train", "val", "test")
_LRS3 = ("pretrain", "trainval", "test")


def find(tree: Tree, choice: Choice) -> Found:
    """The clips of every recording, with their texts."""
    base = tree.locate(
        lambda folder: bool({"main", *_LRS3} & set(tree.folders(folder))),
        "folders main/ (LRS2), or pretrain/, trainval/, test/ (LRS3)",
    )
    if "main" in tree.folders(base):
        found = _find_listed(tree, choice, base)
    else:
        if choice.lists is not None or choice.no_lists:
            raise UsageError(f"lists: applies only to LRS2, found LRS3 in {tree.root}: its folders are its splits")
        found = Found()
        for split in filter(choice.wants, _LRS3):
            _add(tree, found, join(base, split), None, split)
    texts = sum(row["text"] is not None for row in found.rows)
    if texts < len(found.rows):
        found.notes.append(f"clips without a text file: {len(found.rows) - texts}")
    return found


def _find_listed(tree: Tree, choice: Choice, base: str) -> Found:
    found = Found()
    absent: list[str] = []
    listed: dict[str, dict[str, str]] = {"main": {}, "pretrain": {}}
    for split in (*_LRS2, "pretrain"):
        folder = "pretrain" if split == "pretrain" else "main"
        if not tree.folders(join(base, folder)):
            continue
        path = None if choice.no_lists else tree.official_list(choice, f"{split}.txt", (base, ""))
        if path is not None and path.name == f"{split}.txt":
            for name in _names(path):
                listed[folder].setdefault(name, split)
        elif split != "pretrain" and not choice.no_lists:
            absent.append(f"{split}.txt")
            if not choice.wants(split):
                continue
            raise UsageError(
                f"{tree.root}: expected the official lists train.txt, val.txt and test.txt, found no {split}.txt: "
                "they come with LRS2; give their folder with --lists, or --lists none to list without splits"
            )
    for folder, names in listed.items():
        everything = choice.no_lists or (folder == "pretrain" and not names)
        _add(tree, found, join(base, folder), None if everything else names, folder, choice)
    if choice.no_lists:
        for row in found.rows:
            del row["split"]
    found.forget_unlisted(absent)
    return found


def _add(
    tree: Tree, found: Found, folder: str, names: dict[str, str] | None, split: str, choice: Choice | None = None
) -> None:
    """Add the clips of one folder: those of a list, which gives each a split, or all of them, as one split."""
    choice = choice or Choice()
    listed = names if names is not None else {}
    there = set()
    for clip in tree.each(tree.folders(folder), "recordings"):
        videos = tree.videos(join(folder, clip))
        for name, path in videos.items():
            key = f"{clip}/{name}"
            there.add(key)
            if names is not None and key not in names:
                found.unlisted.append(path)
            elif choice.wants(listed.get(key, split)):
                text = _text(tree.read_sidecar(join(folder, clip, f"{name}.txt")))
                found.rows.append({"path": path, "split": listed.get(key, split), "clip": clip, "text": text})
    found.unlisted += [join(folder, name) for name in tree.files(folder, is_media)]
    found.missing += [
        join(folder, f"{name}.mp4") for name, of in sorted(listed.items()) if name not in there and choice.wants(of)
    ]


def _names(path: Path) -> list[str]:
    """The clips of a list, ``ID/NNNNN``; the list of the test set has a further word in each line."""
    names = []
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            name = relative_path(line.split()[0], f"{path}, line {number}")
            if name.count("/") != 1:
                raise UsageError(f"{path}, line {number}: expected ID/NNNNN, found {shorten(line)}")
            names.append(name.removesuffix(".mp4"))
    return names


def _text(lines: Sequence[str]) -> str | None:
    """Return the spoken text from the line ``Text:  …``."""
    for line in lines:
        name, separator, value = line.partition(":")
        if separator and name.strip().lower() == "text":
            return value.strip()
    return None
