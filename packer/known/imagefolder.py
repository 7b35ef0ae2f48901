"""Images or videos in folders ``SPLIT/CLASS/…``, as torchvision's ``ImageFolder`` reads them."""

from collections.abc import Mapping

from packer.known.tree import DatasetFilter, Tree, TreeContents, join
from packer.vision.media import is_picture
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
"""Split of each folder, by its name in lower case."""


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the files of every class of every split."""
    base = tree.locate(
        lambda folder: any(name.lower() in SPLITS for name in tree.folders(folder)),
        f"folders train/, val/ or test/ with a folder for each class (without them: {program()} build --label-from folder)",
    )
    found = TreeContents()
    classes: dict[str, set[str]] = {}
    empty: list[str] = []
    for name in tree.folders(base):
        split = SPLITS.get(name.lower())
        if split is None or not choice.wants(split):
            continue
        folder = join(base, name)
        found.unlisted += tree.paths(folder, is_picture)
        for label in tree.each(tree.folders(folder), "folders"):
            paths = _below(tree, join(folder, label))
            found.rows += [{"path": path, "label": label, "split": split} for path in paths]
            if paths:
                classes.setdefault(split, set()).add(label)
            else:
                empty.append(join(folder, label))
    if empty:
        found.notes.append(f"ignored {list_some(empty)}: no images or videos inside")
    for split, labels in classes.items():
        found.note_new_classes(split, labels, classes.get("train", set()))
    return found


def _below(tree: Tree, folder: str) -> list[str]:
    paths = tree.paths(folder, is_picture)
    for name in tree.folders(folder):
        paths += _below(tree, join(folder, name))
    return paths
