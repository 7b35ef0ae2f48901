"""ImageNet (ILSVRC 2012): ``train/WNID/*.JPEG``, and ``val`` in class folders or flat with a list of its classes."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from packer.known.tree import Choice, Found, Tree, join, read_csv, read_lines
from packer.sources.item import is_picture
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import counted, list_some, shorten

KAGGLE_LIST = "LOC_val_solution.csv"
DEVKIT_LIST, DEVKIT_CLASSES = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"

_KAGGLE_FOLDER = "ILSVRC/Data/CLS-LOC"
_KAGGLE_INNER = "Data/CLS-LOC"
_DEVKIT_FOLDERS = ("ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "data")
_WNID = re.compile(r"n\d{8}\Z")
_CLASSES = 1000


def find(tree: Tree, choice: Choice) -> Found:
    """The pictures of train by their folders, and of val by their folders or by the official list."""
    base = tree.locate(
        lambda folder: bool({"train", "val"} & set(tree.folders(folder))),
        "folders train/ and val/ (ImageNet)",
        (_KAGGLE_FOLDER, _KAGGLE_INNER),
    )
    found = Found()
    train = _add_folders(tree, found, join(base, "train"), "train", choice.wants("train"))
    val: set[str] = set()
    if choice.wants("val") and "val" in tree.folders(base):
        folder = join(base, "val")
        val = _add_folders(tree, found, folder, "val", wanted=True)
        if val and (choice.lists is not None or choice.no_lists):
            raise UsageError("lists: val/ has class folders, which name the classes: leave out --lists")
        val = val or _add_flat(tree, found, folder, choice, base)
    strange = sorted(val - train) if train else []
    if strange:
        found.notes.append(f"classes of val that train has not: {list_some(strange)}")
    _add_test(tree, found, join(base, "test"), choice)
    return found


def _add_folders(tree: Tree, found: Found, folder: str, split: str, wanted: bool) -> set[str]:
    """Add the pictures of every class folder; the classes."""
    classes = [name for name in tree.folders(folder) if _WNID.match(name)]
    if not wanted:
        return set(classes)
    archives = tree.files(folder, lambda name: name.endswith(".tar"))
    if archives:
        found.notes.append(
            f"{folder}: {counted(len(archives), 'archive')} ({list_some(archives, 3)}): unpack each into a folder of "
            "its name"
        )
    empty = []
    for label in tree.each(classes, "classes"):
        names = tree.files(join(folder, label), is_picture)
        found.rows += [{"path": join(folder, label, name), "label": label, "split": split} for name in names]
        if not names:
            empty.append(label)
    if empty:
        found.notes.append(f"classes of {split} without a picture: {len(empty)} ({list_some(empty)})")
    for name in tree.folders(folder):
        if not _WNID.match(name):
            found.unlisted += [join(folder, name, file) for file in tree.files(join(folder, name), is_picture)]
    if classes:
        found.unlisted += [join(folder, name) for name in tree.files(folder, is_picture)]
        if len(classes) != _CLASSES:
            found.notes.append(f"{split} has {counted(len(classes), 'class folder')}; ImageNet has {_CLASSES}")
    return set(classes)


def _add_flat(tree: Tree, found: Found, folder: str, choice: Choice, base: str) -> set[str]:
    """Add pictures that lie side by side, by the list of their classes; the classes."""
    names = tree.files(folder, is_picture)
    listed = {} if choice.no_lists else _validation_classes(tree, choice, base)
    for name in names:
        stem = PurePosixPath(name).stem
        if choice.no_lists:
            found.rows.append({"path": join(folder, name), "split": "val"})
        elif stem in listed:
            found.rows.append({"path": join(folder, name), "label": listed[stem], "split": "val"})
        else:
            found.unlisted.append(join(folder, name))
    there = {PurePosixPath(name).stem for name in names}
    found.missing += [join(folder, f"{stem}.JPEG") for stem in sorted(set(listed) - there)]
    return set(listed.values())


def _validation_classes(tree: Tree, choice: Choice, base: str) -> dict[str, str]:
    """The class of each picture of val, by its name without suffix."""
    inside = ("", base, *(join(place, kit) for place in ("", base) for kit in _DEVKIT_FOLDERS))
    places = (*inside, *_folders_above(tree, base))
    for name in (KAGGLE_LIST, DEVKIT_LIST):
        path = tree.official_list(choice, name, places)
        if path is not None:
            read = _read_devkit if path.name == DEVKIT_LIST else _read_names
            return read(path)
    raise UsageError(
        f"{choice.lists or tree.root}: expected class folders in val/, or a list of its classes: {KAGGLE_LIST} "
        f"(Kaggle) or {DEVKIT_LIST} beside {DEVKIT_CLASSES} (development kit), found neither: give it with --lists, or "
        "--lists none to list val without labels"
    )


def _folders_above(tree: Tree, base: str) -> list[str]:
    """Folders above the root, where the root is a folder of Kaggle's tree: its list lies beside the outermost one."""
    parts = PurePosixPath(_KAGGLE_FOLDER).parts
    pictures = tree.root.resolve() / base
    if pictures.parts[-2:] != parts[-2:]:
        return []
    count = len(parts) - len(PurePosixPath(base).parts)
    return ["/".join([".."] * number) for number in range(1, count + 1)]


def _read_names(path: Path) -> dict[str, str]:
    """A list with a picture and its class in each line: Kaggle's CSV, or ``ILSVRC2012_val_00000001.JPEG n01751748``."""
    listed: dict[str, str] = {}
    kaggle = path.suffix.lower() == ".csv"
    rows = read_csv(path) if kaggle else [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, start=1):
        if not row or (kaggle and row[0] == "ImageId"):
            continue
        words = row[1].split() if len(row) > 1 else []
        if not words or not _WNID.match(words[0]):
            raise UsageError(
                f"{path}, line {number}: expected a picture and its class such as n01751748, found "
                f"{shorten(' '.join(row))}: numbers say nothing without the list that they count"
            )
        listed[PurePosixPath(row[0]).stem] = words[0]
    return listed


def _read_devkit(path: Path) -> dict[str, str]:
    """The development kit's list: line i is the class number of picture i; ``meta.mat`` has the names of the numbers.

    These numbers are not those of the sorted names.
    """
    classes = _read_devkit_classes(path.with_name(DEVKIT_CLASSES))
    listed = {}
    for number, line in enumerate(filter(None, read_lines(path)), start=1):
        name = classes.get(int(line)) if line.isdecimal() and len(line) < 10 else None
        if name is None:
            raise UsageError(
                f"{path}, line {number}: expected a class number of {DEVKIT_CLASSES}, found {shorten(line)}"
            )
        listed[f"ILSVRC2012_val_{number:08d}"] = name
    return listed


def _read_devkit_classes(path: Path) -> Mapping[int, str]:
    if not path.is_file():
        raise UsageError(f"{path}: expected the names of the class numbers in {DEVKIT_LIST}, found no such file")
    read = import_target("scipy.io:loadmat", what=f"the development kit's {DEVKIT_CLASSES}")
    try:
        synsets = read(path, squeeze_me=True, variable_names=["synsets"])["synsets"]
        classes = {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in synsets if int(one["num_children"]) == 0}
    except Exception as error:  # scipy raises errors of many kinds
        raise UsageError(f"{path}: expected the development kit's classes, {shorten(str(error))}") from error
    return classes


def _add_test(tree: Tree, found: Found, folder: str, choice: Choice) -> None:
    """Add the pictures of test, whose classes are not public, if they are asked for by name."""
    names = tree.files(folder, is_picture)
    if names and "test" not in choice.splits:
        found.notes.append(f"test is left out, since its classes are not public ({counted(len(names), 'picture')})")
    elif names:
        found.rows += [{"path": join(folder, name), "split": "test"} for name in names]
        found.notes.append("test has no labels, since its classes are not public: build it with --label-from none")
