"""LRS2 (``main/ID/NNNNN.mp4`` with lists) and LRS3 (``{pretrain,trainval,test}/ID/NNNNN.mp4``), with text files."""

from packer.known.tree import DatasetFilter, ListFile, Tree, TreeContents, join, read_lines, relative_path
from packer.vision.media import is_picture
from shardspec.errors import UsageError
from shardspec.wording import shorten

_LRS2 = ("train", "val", "test")
_LRS3 = ("pretrain", "trainval", "test")


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the clips of every recording, with their texts."""
    base = tree.locate(
        lambda folder: bool({"main", *_LRS3} & set(tree.folders(folder))),
        "folders main/ (LRS2), or pretrain/, trainval/, test/ (LRS3)",
    )
    found = TreeContents()
    if "main" in tree.folders(base):
        _add_lrs2(tree, found, choice, base)
    elif choice.lists is not None or choice.no_lists:
        raise UsageError(
            f"applies only to LRS2, found LRS3 in {tree.root}, whose folders are its splits", option="lists"
        )
    else:
        for split in filter(choice.wants, _LRS3):
            _add(tree, found, DatasetFilter(), join(base, split), None, split)
    without = sum(row["text"] is None for row in found.rows)
    if without:
        found.notes.append(f"clips without a text file: {without}")
    return found


def _add_lrs2(tree: Tree, found: TreeContents, choice: DatasetFilter, base: str) -> None:
    """Add clips by the lists ``SPLIT.txt``. Only the lists of the chosen splits must exist; pretrain needs none."""
    absent: list[str] = []
    listed: dict[str, dict[str, str]] = {"main": {}, "pretrain": {}}
    for split in () if choice.no_lists else (*_LRS2, "pretrain"):
        folder, name = "pretrain" if split == "pretrain" else "main", f"{split}.txt"
        path = tree.official_list(choice, name, (base, ""))
        if path is not None and path.name == name:
            for clip in _read_list(path):
                listed[folder].setdefault(clip, split)
        elif split != "pretrain":
            if choice.wants(split):
                raise tree.missing_list(choice, name, "it comes with LRS2")
            absent.append(name)
    for folder, names in listed.items():
        everything = choice.no_lists or (folder == "pretrain" and not names)
        if tree.folders(join(base, folder)):
            _add(tree, found, choice, join(base, folder), None if everything else names, folder)
    if choice.no_lists:
        for row in found.rows:
            del row["split"]
    found.forget_unlisted(absent)


def _add(
    tree: Tree, found: TreeContents, choice: DatasetFilter, folder: str, names: dict[str, str] | None, split: str
) -> None:
    """Add the clips of a folder that are in `names`, with their splits; without `names`, all clips, in one split."""
    listed = names or {}
    clips = set()
    for recording in tree.each(tree.folders(folder), "recordings"):
        for name, path in tree.videos(join(folder, recording)).items():
            clip = f"{recording}/{name}"
            clips.add(clip)
            of = listed.get(clip, split)
            if names is not None and clip not in names:
                found.unlisted.append(path)
            elif choice.wants(of):
                text = tree.read_sidecar(join(folder, f"{clip}.txt"), "text")
                found.rows.append({"path": path, "split": of, "clip": recording, "text": text})
    found.unlisted += tree.paths(folder, is_picture)
    missing = [clip for clip, of in sorted(listed.items()) if clip not in clips and choice.wants(of)]
    found.missing += [join(folder, f"{clip}.mp4") for clip in missing]


def _read_list(path: ListFile) -> list[str]:
    """Read clips ``ID/NNNNN``. Lines of the test list have another word."""
    clips = []
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            name = relative_path(line.split()[0], f"{path}, line {number}")
            if name.count("/") != 1:
                raise UsageError(place=f"{path}, line {number}", expected="ID/NNNNN", found=shorten(line))
            clips.append(name.removesuffix(".mp4"))
    return clips
