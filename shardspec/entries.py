"""Entries of a manifest: generations, shards, columns, files and counts.

Only these classes and `shardspec.manifest.Manifest` know the manifest's keys.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardspec.problems import Problems

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
NAME_MAX = 255
"""Largest number of characters of a file or folder name; a path may have four times as many."""
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
ASIDE = "next-"
"""Prefix, once or more, of the file names of a dataset that replaces another in its folder, until that is removed."""

COLUMNS_FOLDER = "columns"
"""Folder of all columns."""

BUILD_KINDS = ("build", "update", "retry")
"""Kinds of generations made from the items of a source."""

_FILE_KEYS = {"name": str, "bytes": int, "sha256": str}
_SHARD_KEYS = {"name": str, "samples": int, "block_rows": int, "files": list}


def strip_aside(name: str) -> str:
    """Return the name of a file or shard without `ASIDE`."""
    while name.startswith(ASIDE):
        name = name.removeprefix(ASIDE)
    return name


@dataclass(frozen=True)
class FileEntry:
    """A file of the dataset.

    Attributes
    ----------
    name : str
        Relative to the dataset's folder, with ``/``.
    bytes : int
    sha256 : str
        64 hexadecimal digits.
    """

    name: str
    bytes: int
    sha256: str

    @property
    def own_name(self) -> str:
        """Name without `ASIDE`."""
        return strip_aside(self.name)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "FileEntry | None":
        """Read an entry. Names that could lead out of the folder are problems."""
        if not problems.check_keys(document, _FILE_KEYS):
            return None
        name = document["name"]
        if not SAFE_NAME.match(name):
            problems.add("name", expected="a plain relative path", found=f"{name!r}")
        if len(name) > NAME_MAX and (len(name) > 4 * NAME_MAX or max(map(len, name.split("/"))) > NAME_MAX):
            problems.add("name", expected=f"at most {NAME_MAX} characters", found=len(name), hint=f"{name!r}")
        if document["bytes"] < 0:
            problems.add("bytes", expected="0 or more", found=document["bytes"])
        if not SHA256.match(document["sha256"]):
            problems.add("sha256", expected="64 hexadecimal digits", found=f"{document['sha256']!r}")
        return cls(document["name"], document["bytes"], document["sha256"])


@dataclass(frozen=True)
class Shard:
    """A shard.

    Attributes
    ----------
    name : str
        ``"shard-00000"`` and so on. With the format's suffix it names the file or folder to open.
    samples : int
        Number of rows.
    block_rows : int
        Rows of one unit that is cheap to read whole (row group, chunk); the last may be shorter.
    files : tuple of FileEntry
        Every file of the shard, sorted by name.
    """

    name: str
    samples: int
    block_rows: int
    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the shard as a JSON object."""
        return {
            "name": self.name,
            "samples": self.samples,
            "block_rows": self.block_rows,
            "files": [entry.to_json() for entry in self.files],
        }

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Shard | None":
        """Read a shard entry."""
        if not problems.check_keys(document, _SHARD_KEYS):
            return None
        if not SAFE_NAME.match(document["name"]) or "/" in document["name"]:
            problems.add("name", expected="a plain name", found=f"{document['name']!r}")
        if document["samples"] < 0:
            problems.add("samples", expected="0 or more", found=document["samples"])
        if document["block_rows"] < 1:
            problems.add("block_rows", expected="1 or more", found=document["block_rows"])
        if not document["files"]:
            problems.add("files", expected="at least one file")
        files = read_entries(FileEntry, document["files"], "files", problems)
        own = (document["name"] + ".", document["name"] + "/")
        for position, entry in enumerate(files):
            if not entry.name.startswith(own):
                found = f"expected a file or folder called {document['name']!r}, found {entry.name!r}"
                problems.add(f"files[{position}].name", found)
        return cls(document["name"], document["samples"], document["block_rows"], files)


@dataclass(frozen=True)
class Column:
    """A field stored outside the shards, with a value for every row, in files of the npy format.

    Readers open it like a shard with one field and all rows.

    Attributes
    ----------
    name : str
        The folder of its files, relative to the dataset's: ``"columns/score-0123456789abcdef"``.
    field : str
        The field's name. Its folder bears another name, so that the files of a column and of the one that replaces it
        can lie side by side.
    samples : int
        Rows of the dataset.
    files : tuple of FileEntry
        Every file of the column, sorted by name.
    """

    name: str
    field: str
    samples: int
    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the column as a JSON object."""
        return {
            "name": self.name,
            "field": self.field,
            "samples": self.samples,
            "files": [entry.to_json() for entry in self.files],
        }

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Column | None":
        """Read a column's entry."""
        if not problems.check_keys(document, {"name": str, "field": str, "samples": int, "files": list}):
            return None
        folder, _, own = strip_aside(document["name"]).partition("/")
        if folder != COLUMNS_FOLDER or not SAFE_NAME.match(own) or "/" in own or len(own) > NAME_MAX:
            problems.add("name", expected=f"a folder in {COLUMNS_FOLDER}", found=f"{document['name']!r}")
        if document["samples"] < 0:
            problems.add("samples", expected="0 or more", found=document["samples"])
        files = read_entries(FileEntry, document["files"], "files", problems)
        return cls(document["name"], document["field"], document["samples"], files)


@dataclass(frozen=True)
class Counts:
    """Counts of the items of a generation, where ``items == packed_items + rejected_items``.

    Attributes
    ----------
    items, packed_items, rejected_items : int
    ignored_files : int
        Files of a folder whose suffix is not that of an image or video; they do not count as items.
    samples : int
    frames_without_sample : int
        Frames of packed items that gave no sample (no face in them).
    damaged_items : int
        Packed videos that could be read only up to some frame.
    progressive_jpegs : int
        Samples whose image came as a progressive JPEG and was not encoded again: the recipe's ``progressive`` says
        how they are stored. Older manifests lack it; it then counts as 0.
    """

    items: int
    packed_items: int
    rejected_items: int
    ignored_files: int
    samples: int
    frames_without_sample: int
    damaged_items: int
    progressive_jpegs: int

    def to_json(self) -> dict[str, int]:
        """Return the counts as a JSON object."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Counts | None":
        """Read counts. A wrong sum is a problem."""
        names = tuple(cls.__dataclass_fields__)
        if not problems.check_keys(document, dict.fromkeys(names, int)):
            return None
        counts = cls(**document)
        for name in names:
            if getattr(counts, name) < 0:
                problems.add(name, expected="0 or more", found=getattr(counts, name))
        if counts.items != counts.packed_items + counts.rejected_items:
            problems.add("items", expected="packed_items + rejected_items", found=counts)
        return counts


@dataclass(frozen=True)
class Generation:
    """Output of one plan. The first build is a generation; an update or a retry adds another.

    An item counts in the generation that packed it, or that first rejected it.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"write"``; ``"update"`` and ``"retry"``, which add to a dataset new items, and rejected ones that
        now work; ``"convert"``, ``"merge"``, ``"split"``.
    fingerprint : str
        SHA-256 of the plan.
    recipe : dict
        The resolved recipe: every key with its value.
    runtime : dict
        Whatever else decided the bytes: library versions, the detector's runtime.
    counts : Counts
    shards : tuple of Shard
    """

    kind: str
    fingerprint: str
    recipe: Mapping[str, Any]
    runtime: Mapping[str, Any]
    counts: Counts
    shards: tuple[Shard, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the generation as a JSON object."""
        return {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "recipe": dict(self.recipe),
            "runtime": dict(self.runtime),
            "counts": self.counts.to_json(),
            "shards": [shard.to_json() for shard in self.shards],
        }

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Generation | None":
        """Read a generation."""
        expected = {"kind": str, "fingerprint": str, "recipe": dict, "runtime": dict, "counts": dict, "shards": list}
        if not problems.check_keys(document, expected):
            return None
        with problems.at("counts"):
            counts = Counts.from_json(document["counts"], problems)
        shards = read_entries(Shard, document["shards"], "shards", problems)
        if counts is None or len(shards) != len(document["shards"]):
            return None
        found = sum(shard.samples for shard in shards)
        if found != counts.samples:
            problems.add("counts.samples", expected=f"the sum over the shards, {found}", found=counts.samples)
        return cls(document["kind"], document["fingerprint"], document["recipe"], document["runtime"], counts, shards)


def read_entries(kind: Any, documents: list[Any], place: str, problems: Problems) -> tuple[Any, ...]:
    """Read a list of entries of one kind, without those that cannot be read."""
    entries = []
    trial = Problems()
    for position, document in enumerate(documents):
        if problems.full:
            break
        entry = kind.from_json(document, trial)
        if trial:  # read once more, to report the problems with their place
            trial = Problems()
            with problems.at(f"{place}[{position}]"):
                entry = kind.from_json(document, problems)
        if entry is not None:
            entries.append(entry)
    return tuple(entries)


def total(generations: Iterable[Generation]) -> Counts:
    """Return the sum of all counts."""
    counts = [generation.counts.to_json() for generation in generations]
    return Counts(**{name: sum(count[name] for count in counts) for name in Counts.__dataclass_fields__})
