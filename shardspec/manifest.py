"""The manifest, which makes a folder a packed dataset.

All of it except ``wall_clock`` and ``about`` is a function of the source, the recipe and the library versions, so two
builds of one plan differ only in these sections.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardspec.entries import CARD_NAME, REMOVE, UNSAID, About, Column, FileEntry, Generation, Shard, read_entries
from shardspec.errors import ManifestError, Problems, SchemaError, VersionError
from shardspec.formats import FORMATS
from shardspec.formats.npy import npy_files
from shardspec.schema import Field, Schema
from shardspec.wording import found_instead, shorten

SPEC_VERSION = 1
"""Version of the contract. A reader refuses a greater one."""
MANIFEST_BYTES_MAX = 1 << 27
"""Largest size of ``manifest.json``, enough for 700,000 files."""
SAMPLES_MAX = 1 << 40
"""Largest number of samples of a dataset."""
CHECKSUM = "sha256"
"""Key of the checksum of a JSON document (`seal`)."""
_FIRST_LINES = re.compile(rb'\{\n "sha256": "[0-9a-f]{64}",\n')
_FAR_OFF, _FAR_OFF_BYTES = 16, 1 << 24
"""A manifest is refused if the samples of a shard need more than `_FAR_OFF` times the shard's bytes plus
`_FAR_OFF_BYTES`. The shard's reader finds smaller differences."""


@dataclass(frozen=True)
class Manifest:
    """Content of ``manifest.json``, which describes a packed dataset.

    Attributes
    ----------
    format : str
        A name in the table of formats.
    schema : Schema
        All fields, with those of the columns last.
    generations : tuple of Generation
        At least one. The rows of the dataset are those of all shards, in order.
    files : tuple of FileEntry
        Index and reports.
    wall_clock : dict
        Facts that differ between runs: times, machine, workers.
    columns : tuple of Column
        Fields stored outside the shards, in the order of the schema.
    about : About
        Title, licence and citation, which may change while everything else stays.
    """

    format: str
    schema: Schema
    generations: tuple[Generation, ...]
    files: tuple[FileEntry, ...] = ()
    wall_clock: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    about: About = UNSAID

    @cached_property
    def shard_schema(self) -> Schema:
        """Fields stored in the shards."""
        if not self.columns:
            return self.schema
        beside = {column.field for column in self.columns}
        return Schema(tuple(field for field in self.schema if field.name not in beside))

    @property
    def parts(self) -> "tuple[Shard | Column, ...]":
        """The shards, then the columns."""
        return (*self.shards, *self.columns)

    @property
    def stored_bytes(self) -> int:
        """Size of all shards and columns in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files except the manifest."""
        return (*(entry for part in self.parts for entry in part.files), *self.files)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Shards of all generations, in order."""
        return tuple(shard for generation in self.generations for shard in generation.shards)

    @property
    def newest(self) -> Generation:
        """The last generation that packed samples."""
        packed = (one for one in reversed(self.generations) if one.kind != REMOVE)
        return next(packed, self.generations[-1])

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(shard.samples for shard in self.shards)

    def find_file(self, name: str) -> FileEntry | None:
        """Return the index or report with this name, without its tag, or None."""
        return next((entry for entry in self.files if entry.own_name == name), None)

    @cached_property
    def digest(self) -> str:
        """Identity of the dataset: SHA-256 over the schema and the digests of the files of all shards and columns.

        The hashed text is the canonical JSON (see `canonical_json`) of
        ``{"schema": <schema>, "shards": [[file name, file sha256], ...]}``, with files in the manifest's order and
        names without tags. If there are columns, ``"columns"`` lists their files in the same form.
        """
        document: dict[str, Any] = {"schema": self.schema.to_json(), "shards": _digests(self.shards)}
        document |= {"columns": _digests(self.columns)} if self.columns else {}
        return sha256_json(document)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON object, with `columns` and `about` only if there are any."""
        columns = {"columns": [column.to_json() for column in self.columns]} if self.columns else {}
        return {
            "spec_version": SPEC_VERSION,
            "format": self.format,
            "schema": self.schema.to_json(),
            "generations": [generation.to_json() for generation in self.generations],
            **columns,
            **({"about": self.about.to_json()} if self.about else {}),
            "files": [entry.to_json() for entry in self.files],
            "wall_clock": dict(self.wall_clock),
        }

    def dumps(self) -> bytes:
        """Return the bytes of ``manifest.json``, with their checksum.

        Raises
        ------
        ManifestError
            If readers would not accept so many bytes.
        """
        data = seal(json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        if len(data) > MANIFEST_BYTES_MAX:
            raise ManifestError(
                expected=f"a manifest of at most {MANIFEST_BYTES_MAX} bytes", found=len(data), hint="take larger shards"
            )
        return data

    @classmethod
    def from_json(cls, document: Any, where: str) -> "Manifest":
        """Read a manifest.

        Raises
        ------
        VersionError
            If the manifest has a newer version of the contract.
        ManifestError
            If the manifest breaks the contract. The message lists every problem.
        """
        if isinstance(document, dict) and type(document.get("spec_version")) is int:
            version = document["spec_version"]
            if version > SPEC_VERSION:
                raise VersionError(
                    place=where,
                    expected=f"spec_version {SPEC_VERSION} or less",
                    found=version,
                    hint="update this package to read it",
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
        columns: tuple[Column, ...] = ()
        about: About | None = None
        if problems.check_keys(document, expected, optional={"columns": list, "about": dict}):
            if document["spec_version"] < 1:
                problems.add("spec_version", expected=f"1 to {SPEC_VERSION}", found=document["spec_version"])
            if document["format"] not in FORMATS:
                problems.add("format", expected=f"one of {', '.join(FORMATS)}", found=f"{document['format']!r}")
            with problems.at("schema"):
                schema = Schema.from_json(document["schema"], problems)
            if not document["generations"]:
                problems.add("generations", expected="at least one")
            generations = read_entries(Generation, document["generations"], "generations", problems)
            listed = read_entries(FileEntry, document["files"], "files", problems)
            files = tuple(entry for entry in listed if entry.own_name != CARD_NAME)  # earlier versions list the card
            if "columns" in document:
                if not document["columns"]:
                    problems.add("columns", expected="at least one column, or no such key")
                columns = read_entries(Column, document["columns"], "columns", problems)
            if "about" in document:
                with problems.at("about"):
                    about = About.from_json(document["about"], problems)
            names = [e.name for g in generations for s in g.shards for e in s.files] + [e.name for e in files]
            names += [e.name for column in columns for e in column.files]
            if len(set(names)) != len(names):
                problems.add("", expected="every file name once", found="one more than once")
            if schema is not None and not problems:
                shards = [shard for generation in generations for shard in generation.shards]
                _check_columns(schema, columns, sum(shard.samples for shard in shards), problems)
                if not problems:
                    beside = {column.field for column in columns}
                    _check_samples([field for field in schema if field.name not in beside], shards, problems)
        problems.raise_as(ManifestError, where)
        if schema is None:
            raise ManifestError("no schema could be read", place=where)
        return cls(document["format"], schema, generations, files, document["wall_clock"], columns, about or UNSAID)

    @classmethod
    def loads(cls, data: bytes, where: str) -> "Manifest":
        """Read the bytes of ``manifest.json``, which messages call `where`."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"expected a JSON document, {found_instead(error)}", place=where) from error
        if isinstance(document, dict) and CHECKSUM in document:
            expected = document.pop(CHECKSUM)
            if not is_intact(data, expected):
                raise ManifestError(
                    f"damaged, or edited by hand: expected the SHA-256 {shorten(expected)} of its first line, found another",
                    place=where,
                    hint="restore it from a copy; if you edited it, delete that line",
                )
        try:
            return cls.from_json(document, where)
        except SchemaError as error:
            raise ManifestError(error, place=where) from error


def _digests(parts: Iterable[Shard | Column]) -> list[list[str]]:
    return [[entry.own_name, entry.sha256] for part in parts for entry in part.files]


def _check_columns(schema: Schema, columns: Sequence[Column], samples: int, problems: Problems) -> None:
    """Check that each column has a field, a value for every row, and files that are large enough."""
    names = [column.field for column in columns]
    if len(set(names)) != len(names):
        problems.add("columns", expected="every field once", found="one more than once")
    if len(columns) == len(schema):
        problems.add("columns", expected="a field in the shards", found="none")
    for position, column in enumerate(columns):
        with problems.at(f"columns[{position}]"):
            if column.field not in schema:
                problems.add("field", expected="a field of the schema", found=f"{column.field!r}")
                continue
            field = schema[column.field]
            if column.samples != samples:
                problems.add("samples", expected=f"those of all shards, {samples}", found=column.samples)
            expected = [f"{column.name}/{name}" for name in npy_files(field)]
            if [entry.name for entry in column.files] != expected:
                found = ", ".join(entry.name for entry in column.files[:4]) or "none"
                problems.add("files", expected=", ".join(expected), found=found)
            elif not all(
                least <= entry.bytes for least, entry in zip(_least(field, samples), column.files, strict=True)
            ):
                problems.add("files", expected=f"bytes of {samples} values", found=column.bytes)


def _least(field: Field, samples: int) -> tuple[int, ...]:
    """Return the smallest possible size of each file of a column."""
    return (samples * field.row_bytes,) if field.is_fixed else (0, 8 * (samples + 1))


def _check_samples(fields: Iterable[Field], shards: Iterable[Shard], problems: Problems) -> None:
    """Check that each shard is large enough for its samples.

    Every format stores fixed values uncompressed, and at least the lengths of other values.
    """
    bits = sum(field.least_bits for field in fields)
    for shard in shards:
        if shard.samples * bits > 8 * (shard.bytes * _FAR_OFF + _FAR_OFF_BYTES):
            held, found = 8 * shard.bytes // bits, shard.samples
            problems.add(f"shard {shard.name}", expected=f"at most {held} samples in {shard.bytes} bytes", found=found)
    samples = sum(shard.samples for shard in shards)
    if samples > SAMPLES_MAX:
        problems.add("", expected=f"at most {SAMPLES_MAX} samples", found=samples)


def seal(text: str) -> bytes:
    """Return the bytes of a JSON object that is not empty, with the SHA-256 of the rest in its first line."""
    body = text.removeprefix("{").lstrip("\n").encode()
    return f'{{\n "{CHECKSUM}": "{hashlib.sha256(body).hexdigest()}",\n'.encode() + body


def is_intact(data: bytes, checksum: Any) -> bool:
    """Return whether bytes that `seal` returned are unchanged, given the checksum in them."""
    first = _FIRST_LINES.match(data)
    return first is not None and hashlib.sha256(memoryview(data)[first.end() :]).hexdigest() == checksum


def canonical_json(document: Any) -> bytes:
    """Return a JSON document in the canonical form for digests: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_json(document: Any) -> str:
    """Return the SHA-256 of a JSON document's canonical bytes in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()
