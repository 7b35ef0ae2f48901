"""Pictures or videos in folders ``SPLIT/CLASS/…``, as torchvision's ``ImageFolder`` reads them."""

from collections.abc import Mapping

from packer.known.tree import Choice, Found, Tree, is_media, join
from shardspec.wording import list_some, program

SPLITS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""The names of split folders, in any case, and the split that each stands for."""


def find(tree: Tree, choice: Choice) -> Found:
    """The files of every class of every split."""
    base = tree.locate(
        lambda folder: any(name.lower() in SPLITS for name in tree.folders(folder)),
        f"folders train/, val/ or test/ with a folder for each class (without them: {program()} build --label-from folder)",
    )
    found = Found()
    classes: dict[str, set[str]] = {}
    empty: list[str] = []
    for folder in tree.folders(base):
        split = SPLITS.get(folder.lower())
        if split is None or not choice.wants(split):
            continue
        there = join(base, folder)
        found.unlisted += [join(there, name) for name in tree.files(there, is_media)]
        for label in tree.each(tree.folders(there), "folders"):
            names = _below(tree, join(there, label))
            found.rows += [{"path": path, "label": label, "split": split} for path in names]
            if names:
                classes.setdefault(split, set()).add(label)
            else:
                empty.append(join(there, label))
    if empty:
        found.notes.append(f"no class for {list_some(empty)}: no picture or video to pack in it")
    for split, labels in classes.items():
        strange = sorted(labels - classes.get("train", labels))
        if strange:
            found.notes.append(f"classes of {split} that train has not: {list_some(strange)}")
    return found


def _below(tree: Tree, folder: str) -> list[str]:
    """The pictures and videos in a folder and in the folders in it."""
    paths = [join(folder, name) for name in tree.files(folder, is_media)]
    for name in tree.folders(folder):
        paths += _below(tree, join(folder, name))
    return paths
