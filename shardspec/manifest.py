"""The manifest: the document that makes a folder a packed dataset.

Everything but ``wall_clock`` is a function of the source, the recipe and the library versions, so two builds of one
plan have the same manifest apart from that section.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardspec.entries import FileEntry, Generation, Shard, read_entries, strip_aside
from shardspec.errors import ManifestError, SchemaError, VersionError
from shardspec.formats import FORMATS
from shardspec.problems import Problems
from shardspec.schema import Schema

SPEC_VERSION = 1
"""Version of the contract. A reader refuses a greater one."""
MANIFEST_BYTES_MAX = 1 << 27
"""Largest ``manifest.json``: some 700,000 files."""
SAMPLES_MAX = 1 << 40
"""Most samples of a dataset."""
_FAR_OFF, _FAR_OFF_BYTES = 16, 1 << 24
"""A manifest is refused if the samples of a shard need more than `_FAR_OFF` times the shard's bytes plus
`_FAR_OFF_BYTES`. The shard's reader finds smaller differences."""


@dataclass(frozen=True)
class Manifest:
    """A packed dataset, as its ``manifest.json`` describes it.

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

    def find_file(self, name: str) -> FileEntry | None:
        """The file of this name that belongs to no shard; the prefix `ASIDE` does not count as part of its name."""
        return next((entry for entry in self.files if entry.own_name == name), None)

    @cached_property
    def digest(self) -> str:
        """The dataset's identity: SHA-256 over the schema and the digests of all files of all shards.

        The hashed text is the canonical JSON (see `canonical_json`) of
        ``{"schema": <schema>, "shards": [[file name, file sha256], ...]}`` with the files in the manifest's order, and
        their names without `ASIDE`.
        """
        shards = [[entry.own_name, entry.sha256] for shard in self.shards for entry in shard.files]
        return sha256_json({"schema": self.schema.to_json(), "shards": shards})

    def with_own_names(self) -> "Manifest":
        """The same manifest, with all names as they are once no other dataset gives way to this one: without `ASIDE`."""

        def own(entry: FileEntry) -> FileEntry:
            return replace(entry, name=entry.own_name)

        generations = tuple(
            replace(
                generation,
                shards=tuple(
                    replace(shard, name=strip_aside(shard.name), files=tuple(map(own, shard.files)))
                    for shard in generation.shards
                ),
            )
            for generation in self.generations
        )
        return replace(self, generations=generations, files=tuple(map(own, self.files)))

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
        """The bytes of ``manifest.json``.

        Raises
        ------
        ManifestError
            If there are more of them than a reader accepts.
        """
        data = (json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
        if len(data) > MANIFEST_BYTES_MAX:
            raise ManifestError(
                f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, found {len(data)}: take larger shards"
            )
        return data

    @classmethod
    def from_json(cls, document: Any, where: str) -> "Manifest":
        """Read a manifest.

        Raises
        ------
        VersionError
            If it was written by a newer version of the contract.
        ManifestError
            If it breaks the contract; the message lists every problem.
        """
        if isinstance(document, dict) and type(document.get("spec_version")) is int:
            version = document["spec_version"]
            if version > SPEC_VERSION:
                raise VersionError(
                    f"{where}: expected spec_version {SPEC_VERSION} or less, found {version}: "
                    "update this package to read it"
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
            generations = read_entries(Generation, document["generations"], "generations", problems)
            files = read_entries(FileEntry, document["files"], "files", problems)
            names = [e.name for g in generations for s in g.shards for e in s.files] + [e.name for e in files]
            if len(set(names)) != len(names):
                problems.add("", "expected every file name once, found one more than once")
            if schema is not None and not problems:
                _check_samples(schema, [shard for generation in generations for shard in generation.shards], problems)
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


def _check_samples(schema: Schema, shards: list[Shard], problems: Problems) -> None:
    """Check that each shard could hold about as many samples as it claims.

    Every format stores a fixed value as it is, and at least the length of any other.
    """
    bits = sum(field.least_bits for field in schema)
    for shard in shards:
        if shard.samples * bits > 8 * (shard.bytes * _FAR_OFF + _FAR_OFF_BYTES):
            held = 8 * shard.bytes // bits
            problems.add(
                f"shard {shard.name}", f"expected at most {held} samples in {shard.bytes} bytes, found {shard.samples}"
            )
    samples = sum(shard.samples for shard in shards)
    if samples > SAMPLES_MAX:
        problems.add("", f"expected at most {SAMPLES_MAX} samples, found {samples}")


def canonical_json(document: Any) -> bytes:
    """The canonical bytes of a JSON document, of which digests are taken: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_json(document: Any) -> str:
    """SHA-256 of a JSON document's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()
