"""ImageNet (ILSVRC 2012): ``train/WNID/*.JPEG``, and ``val`` in class folders or flat with a list of its classes."""

import re
from pathlib import Path, PurePosixPath

from packer.known.tree import DatasetFilter, ListFile, Tree, TreeContents, join, read_lines, read_rows
from packer.vision.media import IMAGE
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import counted, list_some, shorten

KAGGLE_LIST = "LOC_val_solution.csv"
DEVKIT_LIST, DEVKIT_CLASSES = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"

_KAGGLE_FOLDERS = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
_DEVKIT_FOLDERS = ("ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "data")
_WNID = re.compile(r"n\d{8}\Z")
_CLASSES = 1000


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the images of train by their folders, and of val by their folders or by the official list."""
    base = tree.locate(
        lambda folder: bool({"train", "val"} & set(tree.folders(folder))),
        "folders train/ and val/ (ImageNet)",
        _KAGGLE_FOLDERS,
    )
    found = TreeContents()
    train = _add_folders(tree, found, join(base, "train"), "train", choice.wants("train"))
    if choice.wants("val") and "val" in tree.folders(base):
        folder = join(base, "val")
        val = _add_folders(tree, found, folder, "val", wanted=True)
        if val and (choice.lists is not None or choice.no_lists):
            raise UsageError("val/ has class folders, which name the classes", option="lists", hint="leave out --lists")
        found.note_new_classes("val", val or _add_flat(tree, found, folder, choice, base), train)
    _add_test(tree, found, join(base, "test"), choice)
    return found


def _add_folders(tree: Tree, found: TreeContents, folder: str, split: str, wanted: bool) -> set[str]:
    """Add the images of every class folder if the split is wanted, and return the classes."""
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
        paths = tree.paths(join(folder, label), IMAGE.holds)
        found.rows += [{"path": path, "label": label, "split": split} for path in paths]
        if not paths:
            empty.append(label)
    if empty:
        found.notes.append(f"classes of {split} without images: {len(empty)} ({list_some(empty)})")
    for name in tree.folders(folder):
        if not _WNID.match(name):
            found.unlisted += tree.paths(join(folder, name), IMAGE.holds)
    if classes:
        found.unlisted += tree.paths(folder, IMAGE.holds)
        if len(classes) != _CLASSES:
            found.notes.append(f"{split} has {counted(len(classes), 'class folder')}; ImageNet has {_CLASSES}")
    return set(classes)


def _add_flat(tree: Tree, found: TreeContents, folder: str, choice: DatasetFilter, base: str) -> set[str]:
    """Add the images of a folder without class folders by the list of their classes, and return the classes."""
    images = {PurePosixPath(path).stem: path for path in tree.paths(folder, IMAGE.holds)}
    if choice.no_lists:
        found.rows += [{"path": path, "split": "val"} for path in images.values()]
        return set()
    listed = _read_list(tree, choice, base)
    found.rows += [
        {"path": path, "label": listed[stem], "split": "val"} for stem, path in images.items() if stem in listed
    ]
    found.unlisted += [path for stem, path in images.items() if stem not in listed]
    found.missing += [join(folder, f"{stem}.JPEG") for stem in sorted(set(listed) - set(images))]
    return set(listed.values())


def _read_list(tree: Tree, choice: DatasetFilter, base: str) -> dict[str, str]:
    """Read the class of each image of val by its name without suffix."""
    places = (
        "",
        base,
        *(join(place, kit) for place in ("", base) for kit in _DEVKIT_FOLDERS),
        *_folders_above(tree, base),
    )
    for name in (KAGGLE_LIST, DEVKIT_LIST):
        path = tree.official_list(choice, name, places)
        if path is not None:
            return _read_devkit(path) if path.name == DEVKIT_LIST else _read_classes(path)
    raise UsageError(
        place=choice.lists or tree.root,
        expected=(
            f"class folders in val/, or a list of its classes: {KAGGLE_LIST} (Kaggle) or {DEVKIT_LIST} "
            f"next to {DEVKIT_CLASSES} (development kit)"
        ),
        found="neither",
        hint="give it with --lists, or --lists none to list val without labels",
    )


def _folders_above(tree: Tree, base: str) -> list[str]:
    """Return the folders above the root if it is inside Kaggle's tree, whose list is next to the outermost folder."""
    kaggle = PurePosixPath(_KAGGLE_FOLDERS[0]).parts
    if (tree.root.resolve() / base).parts[-2:] != kaggle[-2:]:
        return []
    return ["/".join([".."] * depth) for depth in range(1, len(kaggle) - len(PurePosixPath(base).parts) + 1)]


def _read_classes(path: ListFile) -> dict[str, str]:
    """Read lines with an image and its class: Kaggle's CSV, or ``ILSVRC2012_val_00000001.JPEG n01751748``."""
    listed: dict[str, str] = {}
    if path.name.lower().endswith(".csv"):
        rows = read_rows(path, ("imageid", "predictionstring"), "ImageId and PredictionString")
        lines = enumerate((f"{row['imageid']} {row['predictionstring']}" for row in rows), start=2)
    else:
        lines = enumerate(read_lines(path), start=1)
    for number, line in lines:
        image, *words = line.split() or [""]
        if not image:
            continue
        if not words or not _WNID.match(words[0]):
            raise UsageError(
                place=f"{path}, line {number}",
                expected="an image and its class such as n01751748",
                found=shorten(line),
                hint="class numbers mean nothing without their list",
            )
        listed[PurePosixPath(image).stem] = words[0]
    return listed


def _read_devkit(path: ListFile) -> dict[str, str]:
    """Read the development kit's list. Line i has the class number of image i, as ``meta.mat`` numbers the classes.

    These numbers differ from the sorted order of the WordNet ids.
    """
    if not isinstance(path, Path):
        raise UsageError(
            place=path, expected="the development kit as files", found="one in a zip file", hint="unpack it"
        )
    classes = _read_devkit_classes(path.with_name(DEVKIT_CLASSES))
    listed = {}
    for number, line in enumerate(filter(None, read_lines(path)), start=1):
        name = classes.get(int(line)) if line.isdecimal() and len(line) < 10 else None
        if name is None:
            raise UsageError(
                place=f"{path}, line {number}", expected=f"a class number of {DEVKIT_CLASSES}", found=shorten(line)
            )
        listed[f"ILSVRC2012_val_{number:08d}"] = name
    return listed


def _read_devkit_classes(path: Path) -> dict[int, str]:
    if not path.is_file():
        raise UsageError(place=path, expected=f"the names of the class numbers in {DEVKIT_LIST}", found="no such file")
    read = import_target("scipy.io:loadmat", what=f"the development kit's {DEVKIT_CLASSES}")
    try:
        synsets = read(path, squeeze_me=True, variable_names=["synsets"])["synsets"]
        return {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in synsets if int(one["num_children"]) == 0}
    except Exception as error:  # scipy raises errors of many kinds
        raise UsageError(f"expected the development kit's classes, {shorten(str(error))}", place=path) from error


def _add_test(tree: Tree, found: TreeContents, folder: str, choice: DatasetFilter) -> None:
    """Add the images of test, whose classes are not public, if the user asked for the split by name."""
    paths = tree.paths(folder, IMAGE.holds)
    if paths and "test" not in choice.splits:
        found.notes.append(f"test is left out, since its classes are not public ({counted(len(paths), 'image')})")
    elif paths:
        found.rows += [{"path": path, "split": "test"} for path in paths]
        found.notes.append("test has no labels, since its classes are not public: build it with --label-from none")
