"""VoxCeleb2: ``{dev,test}/mp4/idNNNNN/VIDEO/NNNNN.mp4`` and ``vox2_meta.csv``; the sound alone is in ``aac``.

The layout is that of the archives of www.robots.ox.ac.uk/~vgg/data/voxceleb, as ``hyperion/data_prep/voxceleb2.py`` of
github.com/hyperion-ml/hyperion reads it. Archives also unpack to ``mp4`` without ``dev`` or ``test``.
"""

import re
from collections.abc import Mapping

from packer.known.tree import DatasetFilter, ListFile, Tree, TreeContents, join, read_rows
from packer.vision.media import is_picture
from shardspec.wording import list_some

METADATA = "vox2_meta.csv"
SPLITS: Mapping[str, str] = {"dev": "train", "test": "test"}
"""Splits by the name of their folder: dev means development, with which one trains."""

_PERSON = re.compile(r"id\d+\Z")


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the clips of every person. Without a folder of its split, a person's split is that of the metadata."""
    base = tree.locate(
        lambda folder: bool(_places(tree, folder)),
        "folders dev/mp4/ and test/mp4/, or mp4/, with a folder idNNNNN for each person (VoxCeleb2)",
    )
    path = next((join(folder, METADATA) for folder in (base, "") if tree.has(join(folder, METADATA))), None)
    people = {} if path is None else _read_people(tree.file(path))
    found = TreeContents()
    there, unknown = set[str](), list[str]()
    for folder, of_folder in _places(tree, base):
        found.unlisted += tree.paths(folder, is_picture)
        for person in tree.each(tree.folders(folder), "people"):
            gender, of_person = people.get(person, (None, None))
            split = of_folder or of_person
            there.add(person)
            if split is None or (path is not None and person not in people):
                unknown.append(person)
            if not choice.wants(split or ""):
                continue
            for video in tree.folders(join(folder, person)):
                row = {"split": split, "person": person, "gender": gender, "clip": f"{person}/{video}"}
                clips = tree.videos(join(folder, person, video)).values()
                found.rows += [{"path": clip, **row} for clip in clips]
    if path is None:
        found.notes.append(f"{METADATA} does not exist: clips have no gender, and missing people are not counted")
    lacking = [name for name, (_, split) in people.items() if name not in there and choice.wants(split or "")]
    for what, names in (
        (f"people of {METADATA} without a folder", lacking),
        (f"people who are not in {METADATA}" if people else "people without a split", sorted(set(unknown))),
    ):
        if names:
            found.notes.append(f"{what}: {len(names)}: {list_some(names, 3)}")
    return found


def _places(tree: Tree, base: str) -> list[tuple[str, str | None]]:
    """Return the folders of people, with their split if their path has it."""
    places = [(join(base, split), SPLITS[split]) for split in SPLITS] + [(base, None)]
    found = [(join(folder, "mp4") if tree.folders(join(folder, "mp4")) else folder, split) for folder, split in places]
    return [(folder, split) for folder, split in found if any(map(_PERSON.match, tree.folders(folder)))]


def _read_people(path: ListFile) -> dict[str, tuple[str | None, str | None]]:
    """Read each person's gender and split."""
    rows = read_rows(path, ("voxceleb2id", "gender", "set"), "VoxCeleb2 ID, Gender and Set")
    return {row["voxceleb2id"]: (row["gender"] or None, SPLITS.get(row["set"].lower())) for row in rows}
