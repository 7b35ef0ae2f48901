"""FaceForensics++ with FaceShifter and DeepFakeDetection, in the folders of its download script."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from packer.known.tree import DatasetFilter, Tree, TreeContents, join, read_json
from shardspec.errors import UsageError
from shardspec.wording import list_some, shorten

ORIGINALS, FORGERIES = "original_sequences", "manipulated_sequences"
ACTORS_METHOD = "DeepFakeDetection"
"""The only method without official splits; its originals are in ``original_sequences/actors``."""

OFFICIAL_PAIRS: Mapping[str, int] = {"train": 360, "val": 70, "test": 70}
"""Number of pairs in each official list. Each video of a pair is the donor of a forgery of the other."""

_NAME = re.compile(r"\d+\Z")
_PAIR = re.compile(r"(\d+)_(\d+)\Z")
_ACTORS = re.compile(r"(\d+)_(\d+)__(.+)__[^_]+\Z")
_ACTOR = re.compile(r"(\d+)__(.+)\Z")
_IMAGES = {"images", "frames"}


class ListEntry(NamedTuple):
    """Entry of a YouTube video in the official lists."""

    split: str
    partner: str


class MethodVideos(NamedTuple):
    """Videos of one method, or of one kind of originals, at one compression: paths by name."""

    method: str
    folder: str
    videos: dict[str, str]


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find originals and forgeries, with masks. The official lists name pairs of originals, which imply forgeries."""
    base = tree.locate(
        lambda folder: bool({ORIGINALS, FORGERIES} & set(tree.folders(folder))),
        f"folders {ORIGINALS}/ and {FORGERIES}/ (FaceForensics++)",
    )
    there = tree.folders(join(base, FORGERIES))
    methods = choice.pick("methods", there)
    if not choice.methods and methods != [ACTORS_METHOD]:
        methods = [name for name in methods if name != ACTORS_METHOD]
    if ACTORS_METHOD in methods and choice.splits:
        raise UsageError(
            "leave out --splits, or list it by itself", option="splits", place=f"{ACTORS_METHOD} has no official split"
        )
    if methods == [ACTORS_METHOD] and (choice.lists is not None or choice.no_lists):
        raise UsageError("leave out --lists", option="lists", place=f"{ACTORS_METHOD} has no official lists")
    found = TreeContents()
    compressions = _compressions(tree, choice, base)
    if methods != [ACTORS_METHOD]:
        members, absent = _members(tree, choice, base)
        if not absent:
            _note_pairs(found, members)
        for compression in compressions:
            originals = _part(tree, "real", join(base, ORIGINALS, "youtube"), compression)
            parts = [_part(tree, name, join(base, FORGERIES, name), compression) for name in methods]
            parts = [part for part in parts if part.method != ACTORS_METHOD]
            _add_pairs(tree, found, choice, members, originals, parts, compression)
        found.forget_unlisted(absent)
    if ACTORS_METHOD in methods:
        found.notes.append(f"{ACTORS_METHOD} has no official split: its rows have none")
        for compression in compressions:
            originals = _part(tree, "real", join(base, ORIGINALS, "actors"), compression)
            part = _part(tree, ACTORS_METHOD, join(base, FORGERIES, ACTORS_METHOD), compression)
            _add_actors(tree, found, originals, part, compression)
    elif ACTORS_METHOD in there and not choice.methods:
        found.notes.append(
            f"{ACTORS_METHOD} is left out, since it has no official split: --methods {ACTORS_METHOD} lists it"
        )
    found.sort_by_original()
    return found


def _compressions(tree: Tree, choice: DatasetFilter, base: str) -> list[str]:
    sources = [join(base, kind, name) for kind in (ORIGINALS, FORGERIES) for name in tree.folders(join(base, kind))]
    kinds = {
        (name, kind)
        for source in sources
        for name in tree.folders(source)
        if name != "masks"
        for kind in tree.folders(join(source, name))
    }
    there = sorted({name for name, kind in kinds if kind == "videos"})
    if not there:
        images = _IMAGES & {kind for _, kind in kinds}
        found = f"folders {', '.join(sorted(images))} alone: download the videos (-t videos)" if images else "none"
        raise UsageError(place=tree.root, expected="videos in METHOD/COMPRESSION/videos", found=found)
    return choice.pick_compressions(there, "present")


def _members(tree: Tree, choice: DatasetFilter, base: str) -> tuple[dict[str, ListEntry], list[str]]:
    """Read each video's split and partner from the lists ``SPLIT.json``, and return absent lists of unwanted splits."""
    members: dict[str, ListEntry] = {}
    absent: list[str] = []
    if choice.no_lists:
        return members, absent
    for split in OFFICIAL_PAIRS:
        places = (join(base, "splits"), base, join(base, "dataset/splits"), "splits", "")
        path = tree.official_list(choice, f"{split}.json", places)
        if path is None or path.name != f"{split}.json":
            if choice.wants(split):
                advice = "download dataset/splits of github.com/ondyari/FaceForensics"
                raise tree.missing_list(choice, f"{split}.json", advice)
            absent.append(f"{split}.json")
            continue
        for pair in read_json(path, list):
            names = [name for name in pair if isinstance(name, str)] if isinstance(pair, list) else []
            if len(names) != 2 or names != pair or not all(map(_NAME.match, names)):
                raise UsageError(place=path, expected="pairs of names such as ['071', '054']", found=shorten(pair))
            for name, partner in (names, reversed(names)):
                if name in members:
                    raise UsageError(place=path, expected="each video in one pair", found=f"{shorten(name)} in two")
                members[name] = ListEntry(split, partner)
    if not members:
        raise UsageError(
            place=choice.lists or tree.root, expected="pairs in train.json, val.json and test.json", found="none"
        )
    return members, absent


def _note_pairs(found: TreeContents, members: Mapping[str, ListEntry]) -> None:
    pairs = {split: sum(member.split == split for member in members.values()) // 2 for split in OFFICIAL_PAIRS}
    if members and pairs != OFFICIAL_PAIRS:
        expected, has = (
            ", ".join(f"{split} {count}" for split, count in counts.items()) for counts in (OFFICIAL_PAIRS, pairs)
        )
        found.notes.append(f"the splits are not the official ones: expected pairs {expected}, found {has}")


def _part(tree: Tree, method: str, source: str, compression: str) -> MethodVideos:
    folder = join(source, compression, "videos")
    return MethodVideos(method, folder, tree.videos(folder))


def _add_pairs(
    tree: Tree,
    found: TreeContents,
    choice: DatasetFilter,
    members: Mapping[str, ListEntry],
    originals: MethodVideos,
    parts: Sequence[MethodVideos],
    compression: str,
) -> None:
    """Add the videos of YouTube and their forgeries ``TARGET_DONOR``, which show the target."""
    partners = {name: {member.partner} for name, member in members.items()}
    if choice.no_lists:
        for match in (_PAIR.match(name) for part in parts for name in part.videos):
            if match:
                partners.setdefault(match[1], set()).add(match[2])
                partners.setdefault(match[2], set()).add(match[1])
    groups = {name: "_".join(sorted({name, *others})) for name, others in partners.items()}

    def row(name: str, label: str, method: str, path: str) -> dict[str, Any]:
        split = members[name].split if members else None
        facts = {"path": path, "label": label, "split": split, "original": originals.videos.get(name)}
        return {**facts, "method": method, "compression": compression, "group": groups.get(name)}

    wanted = {name for name, member in members.items() if choice.wants(member.split)}
    for name in _compare(found, originals, wanted, members):
        found.rows.append(row(name, "real", "real", originals.videos[name]))
    forged = {f"{name}_{member.partner}": name for name, member in members.items()}
    for part in parts:
        names = _compare(found, part, {name for name, target in forged.items() if target in wanted}, forged)
        pairs = [(match[0], match[1], match[2]) for match in map(_PAIR.match, names) if match]
        masks = _masks(tree, found, part, [name for name, _, _ in pairs])
        for name, target, donor in pairs:
            facts = row(target, "fake", part.method, part.videos[name])
            found.rows.append({**facts, "mask": masks.get(name), "donor": donor})


def _compare(found: TreeContents, part: MethodVideos, wanted: Collection[str], listed: Collection[str]) -> list[str]:
    """Return the existing videos among the wanted ones, or all without lists, and record missing and unlisted ones."""
    if not listed:
        return list(part.videos)
    found.missing += [join(part.folder, f"{name}.mp4") for name in sorted(set(wanted) - set(part.videos))]
    found.unlisted += [path for name, path in part.videos.items() if name not in listed]
    return [name for name in part.videos if name in wanted]


def _add_actors(tree: Tree, found: TreeContents, originals: MethodVideos, part: MethodVideos, compression: str) -> None:
    """Add the actors' videos and their forgeries ``TARGET_DONOR__SCENE__ID``, whose original is ``TARGET__SCENE``."""
    for name, path in originals.videos.items():
        match = _ACTOR.match(name)
        person = match[1] if match else None
        row = {"path": path, "label": "real", "original": path, "method": "real", "compression": compression}
        found.rows.append({**row, "person": person})
    masks = _masks(tree, found, part, list(part.videos))
    for name, path in part.videos.items():
        match = _ACTORS.match(name)
        if match is None:
            found.unlisted.append(path)
            continue
        target, donor, scene = match.groups()
        facts: dict[str, Any] = {"path": path, "label": "fake", "original": originals.videos.get(f"{target}__{scene}")}
        facts |= {"mask": masks.get(name), "method": part.method, "compression": compression}
        found.rows.append({**facts, "person": target, "donor": donor})


def _masks(tree: Tree, found: TreeContents, part: MethodVideos, names: Sequence[str]) -> dict[str, str]:
    """Return the masks of a method's videos, which all compressions share."""
    masks = tree.videos(join(PurePosixPath(part.folder).parents[1].as_posix(), "masks/videos"))
    without = [name for name in names if name not in masks]
    if without:
        which = list_some(without) if masks else "masks/videos is missing"
        found.notes.append(f"{part.method}: {len(without)} of {len(names)} forgeries without a mask ({which})")
    return masks
