"""The manifest: the document that makes a folder a packed dataset.

This module alone spells the manifest's keys. Everything but ``wall_clock`` is a function of the source, the recipe and the
library versions, so two builds of one plan have the same manifest apart from that section.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardspec.errors import ManifestError, SchemaError, VersionError
from shardspec.formats import FORMATS
from shardspec.problems import Problems
from shardspec.schema import Schema

SPEC_VERSION = 1
"""Version of the contract. A reader refuses a greater one."""

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class FileEntry:
    """One file of the dataset.

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

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "FileEntry | None":
        """Read an entry; a name that could leave the folder is a problem."""
        if not problems.check_keys(document, {"name": str, "bytes": int, "sha256": str}):
            return None
        if not SAFE_NAME.match(document["name"]):
            problems.add("name", f"expected a plain relative path, found {document['name']!r}")
        if document["bytes"] < 0:
            problems.add("bytes", f"expected 0 or more, found {document['bytes']}")
        if not SHA256.match(document["sha256"]):
            problems.add("sha256", f"expected 64 hexadecimal digits, found {document['sha256']!r}")
        return cls(document["name"], document["bytes"], document["sha256"])


@dataclass(frozen=True)
class Shard:
    """One shard.

    Attributes
    ----------
    name : str
        ``"shard-00000"`` and so on; with the format's suffix it is the file or folder to open.
    samples : int
    block_rows : int
        Rows per unit that is cheap to read whole (row group, chunk); the last may be shorter.
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
        """The shard as a JSON object."""
        return {
            "name": self.name,
            "samples": self.samples,
            "block_rows": self.block_rows,
            "files": [entry.to_json() for entry in self.files],
        }

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Shard | None":
        """Read a shard entry."""
        if not problems.check_keys(document, {"name": str, "samples": int, "block_rows": int, "files": list}):
            return None
        if not SAFE_NAME.match(document["name"]) or "/" in document["name"]:
            problems.add("name", f"expected a plain name, found {document['name']!r}")
        if document["samples"] < 0:
            problems.add("samples", f"expected 0 or more, found {document['samples']}")
        if document["block_rows"] < 1:
            problems.add("block_rows", f"expected 1 or more, found {document['block_rows']}")
        if not document["files"]:
            problems.add("files", "expected at least one file")
        files = _read_list(FileEntry, document["files"], "files", problems)
        for position, entry in enumerate(files):
            if not re.match(re.escape(document["name"]) + "[./]", entry.name):
                found = f"expected a file or folder called {document['name']!r}, found {entry.name!r}"
                problems.add(f"files[{position}].name", found)
        return cls(document["name"], document["samples"], document["block_rows"], files)


@dataclass(frozen=True)
class Counts:
    """What became of the items of one generation: ``items == packed_items + rejected_items``.

    Attributes
    ----------
    items, packed_items, rejected_items : int
    ignored_files : int
        Files of a folder that are no pictures or videos by suffix; they are no items.
    samples : int
    frames_without_sample : int
        Frames of packed items that gave no sample (no face in them).
    damaged_items : int
        Packed videos whose rest could not be read.
    """

    items: int
    packed_items: int
    rejected_items: int
    ignored_files: int
    samples: int
    frames_without_sample: int
    damaged_items: int

    def to_json(self) -> dict[str, int]:
        """The counts as a JSON object."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Counts | None":
        """Read counts; they must add up."""
        names = tuple(cls.__dataclass_fields__)
        if not problems.check_keys(document, dict.fromkeys(names, int)):
            return None
        counts = cls(**document)
        for name in names:
            if document[name] < 0:
                problems.add(name, f"expected 0 or more, found {document[name]}")
        if counts.items != counts.packed_items + counts.rejected_items:
            problems.add("items", f"expected packed_items + rejected_items, found {counts}")
        return counts


@dataclass(frozen=True)
class Generation:
    """What one plan made: the first build is one, appending or retrying adds another.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"convert"``, ``"merge"``, ``"split"``.
    fingerprint : str
        SHA-256 of the plan.
    recipe : dict
        The resolved recipe, every key with its value.
    runtime : dict
        What else decided the bytes: library versions, the detector's runtime.
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
        """The generation as a JSON object."""
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
        shards = _read_list(Shard, document["shards"], "shards", problems)
        if counts is None or len(shards) != len(document["shards"]):
            return None
        found = sum(shard.samples for shard in shards)
        if found != counts.samples:
            problems.add("counts.samples", f"expected the sum over the shards, {found}, found {counts.samples}")
        return cls(document["kind"], document["fingerprint"], document["recipe"], document["runtime"], counts, shards)


@dataclass(frozen=True)
class Manifest:
    """A packed dataset, as its ``manifest.json`` says it.

    Attributes
    ----------
    format : str
        A name in the table of formats.
    schema : Schema
    generations : tuple of Generation
        At least one. The dataset's rows are those of all shards, in order.
    files : tuple of FileEntry
        Files that belong to no shard: the index, the reports.
    wall_clock : dict
        What differs from run to run: times, machine, workers.
    """

    format: str
    schema: Schema
    generations: tuple[Generation, ...]
    files: tuple[FileEntry, ...] = ()
    wall_clock: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all generations, in order."""
        return tuple(shard for generation in self.generations for shard in generation.shards)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """The dataset's identity: SHA-256 over the schema and the digests of all files of all shards.

        The hashed text is the canonical JSON (see `canonical_json`) of
        ``{"schema": <schema>, "shards": [[file name, file sha256], ...]}`` with the files in the manifest's order.
        """
        shards = [[entry.name, entry.sha256] for shard in self.shards for entry in shard.files]
        return sha256_json({"schema": self.schema.to_json(), "shards": shards})

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return {
            "spec_version": SPEC_VERSION,
            "format": self.format,
            "schema": self.schema.to_json(),
            "generations": [generation.to_json() for generation in self.generations],
            "files": [entry.to_json() for entry in self.files],
            "wall_clock": dict(self.wall_clock),
        }

    def dumps(self) -> bytes:
        """The bytes of ``manifest.json``."""
        return (json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, document: Any, where: str) -> "Manifest":
        """Read a manifest.

        Raises
        ------
        VersionError
            It was written by a newer version of the contract.
        ManifestError
            It breaks the contract; every problem is listed.
        """
        if isinstance(document, dict) and type(document.get("spec_version")) is int:
            version = document["spec_version"]
            if version > SPEC_VERSION:
                raise VersionError(
                    f"{where}: expected spec_version {SPEC_VERSION} or less, found {version}: update this package to read it"
                )
        problems = Problems()
        expected = {
            "spec_version": int,
            "format": str,
            "schema": dict,
            "generations": list,
            "files": list,
            "wall_clock": dict,
        }
        schema = None
        generations: tuple[Generation, ...] = ()
        files: tuple[FileEntry, ...] = ()
        if problems.check_keys(document, expected):
            if document["spec_version"] < 1:
                problems.add("spec_version", f"expected 1 to {SPEC_VERSION}, found {document['spec_version']}")
            if document["format"] not in FORMATS:
                problems.add("format", f"expected one of {', '.join(FORMATS)}, found {document['format']!r}")
            with problems.at("schema"):
                schema = Schema.from_json(document["schema"], problems)
            if not document["generations"]:
                problems.add("generations", "expected at least one")
            generations = _read_list(Generation, document["generations"], "generations", problems)
            files = _read_list(FileEntry, document["files"], "files", problems)
            names = [e.name for g in generations for s in g.shards for e in s.files] + [e.name for e in files]
            if len(set(names)) != len(names):
                problems.add("", "expected every file name once, found one twice")
        problems.raise_as(ManifestError, where)
        if schema is None:
            raise ManifestError(f"{where}: no schema could be read")
        return cls(document["format"], schema, generations, files, document["wall_clock"])

    @classmethod
    def loads(cls, data: bytes, where: str) -> "Manifest":
        """Read the bytes of a ``manifest.json``; `where` names it in messages."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{where}: expected a JSON document, found something else ({error})") from error
        try:
            return cls.from_json(document, where)
        except SchemaError as error:
            raise ManifestError(f"{where}: {error}") from error


def canonical_json(document: Any) -> bytes:
    """The one spelling of a JSON document that digests are taken of: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_json(document: Any) -> str:
    """SHA-256 of a JSON document's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def _read_list(kind: Any, documents: list[Any], place: str, problems: Problems) -> tuple[Any, ...]:
    """Read a list of entries of one kind, leaving out those that cannot be made."""
    entries = []
    for position, document in enumerate(documents):
        with problems.at(f"{place}[{position}]"):
            entries.append(kind.from_json(document, problems))
    return tuple(entry for entry in entries if entry is not None)
