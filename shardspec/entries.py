"""Entries of a manifest: generations, shards, columns, files, counts, and what it says about the dataset.

Only these classes and `shardspec.manifest.Manifest` know the manifest's keys.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from dataclasses import field as attribute
from typing import Any

from shardspec.errors import Problems
from shardspec.schema import is_utf8
from shardspec.wording import shorten

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
NAME_MAX = 255
"""Maximum length of a file or folder name in characters. A path may be four times as long."""
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
TAG_DIGITS = 16
"""Hexadecimal digits of the tag in a name: the start of a SHA-256 of the contents. So a name never has other contents."""
_TAG = re.compile(
    rf"\A(shard-[0-9]+|(?:index|columns)/[a-z][a-z0-9_]*|items|rejects)-[0-9a-f]{{{TAG_DIGITS}}}(?=[./]|\Z)"
)
_EARLIER = re.compile(r"\A(?:next-)+")
"""Start of names in datasets of earlier versions that replaced another dataset."""

CARD_NAME = "README.md"

COLUMNS_FOLDER = "columns"
"""Folder of all columns."""

BUILD_KINDS = ("build", "update", "retry")
"""Kinds of generations made from the items of a source."""

REMOVE = "remove"
"""Kind of a generation without samples, which records that samples were removed from the dataset."""

TEXT_MAX = 1 << 16
"""Most characters of a text."""
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*(?: (?:AND|OR|WITH) [A-Za-z0-9][A-Za-z0-9.+-]*)*\Z")
"""An SPDX license expression without parentheses: https://spdx.github.io/spdx-spec/v3.0.1/annexes/spdx-license-expressions."""
_WEB = re.compile(r"https?://[^\s<>\"]+\Z")

_FILE_KEYS = {"name": str, "bytes": int, "sha256": str}
_SHARD_KEYS = {"name": str, "samples": int, "block_rows": int, "files": list}


def strip_tag(name: str) -> str:
    """Return the name of a file or shard without its tag. Those of columns stay, because digests contain them."""
    own = _EARLIER.sub("", name)
    return own if own.startswith(f"{COLUMNS_FOLDER}/") else _TAG.sub(r"\1", own)


def tagged_start(name: str) -> str:
    """Return the start of a file's name up to its tag, which the files of a shard or column share; empty without a tag."""
    found = _TAG.match(name)
    return "" if found is None else found[0]


class JSONObject:
    """Base of the entries of a manifest: JSON objects whose keys are the attributes of a dataclass."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with the keys in the order of the attributes."""
        return {name: _to_json(value) for name, value in vars(self).items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, JSONObject):
        return value.to_json()
    if isinstance(value, tuple):
        return [_to_json(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class FileEntry(JSONObject):
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
        """Name without the tag, such as ``"shard-00000.lmdb"`` or ``"index/label.npy"``."""
        return strip_tag(self.name)

    def with_tag(self) -> "FileEntry":
        """Return the entry of the same file under a name with a tag: ``"index/label-0123456789abcdef.npy"``."""
        stem, dot, suffix = self.name.rpartition(".")
        return replace(self, name=f"{stem}-{self.sha256[:TAG_DIGITS]}{dot}{suffix}")

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
        return cls(**document)


class _FileGroup(JSONObject):
    """Base of shards and columns, which consist of files."""

    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files)


@dataclass(frozen=True)
class Shard(_FileGroup):
    """A shard.

    Attributes
    ----------
    name : str
        ``"shard-00000-0123456789abcdef"`` and so on. With the format's suffix it names the file or folder to open.
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
class Column(_FileGroup):
    """A field stored outside the shards, with a value for every row, in files of the npy format.

    Readers open it like a shard with one field and all rows.

    Attributes
    ----------
    name : str
        The folder of its files, relative to the dataset's: ``"columns/score-0123456789abcdef"``.
    field : str
        The field's name. The folder has a different name, so that a column and its replacement can exist at the same
        time.
    samples : int
        Rows of the dataset.
    files : tuple of FileEntry
        Every file of the column, sorted by name.
    computed : dict
        How ``packer compute`` made the values: ``function``, ``version`` and ``options``, and ``columns``, all
        fields of the same result. Empty for other columns.
    """

    name: str
    field: str
    samples: int
    files: tuple[FileEntry, ...]
    computed: Mapping[str, Any] = attribute(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the entry, without `computed` if it is empty."""
        document = super().to_json()
        if not self.computed:
            del document["computed"]
        return document

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "Column | None":
        """Read a column's entry."""
        needed = {"name": str, "field": str, "samples": int, "files": list}
        if not problems.check_keys(document, needed, optional={"computed": dict}):
            return None
        folder, _, own = strip_tag(document["name"]).partition("/")
        if folder != COLUMNS_FOLDER or not SAFE_NAME.match(own) or "/" in own or len(own) > NAME_MAX:
            problems.add("name", expected=f"a folder in {COLUMNS_FOLDER}", found=f"{document['name']!r}")
        if document["samples"] < 0:
            problems.add("samples", expected="0 or more", found=document["samples"])
        computed = document.get("computed", {})
        if "computed" in document:
            with problems.at("computed"):
                problems.check_keys(
                    computed, {"function": str, "version": str, "options": dict}, optional={"columns": list}
                )
        files = read_entries(FileEntry, document["files"], "files", problems)
        return cls(document["name"], document["field"], document["samples"], files, computed)


@dataclass(frozen=True)
class Counts(JSONObject):
    """Counts of the items of a generation, where ``items == packed_items + rejected_items``.

    Attributes
    ----------
    items, packed_items, rejected_items : int
    ignored_files : int
        Files of a folder whose suffix is not that of an image or video; they do not count as items.
    samples : int
    frames_without_sample : int
        Frames of packed items that yielded no sample, for example because they show no face.
    damaged_items : int
        Packed videos that could be read only up to some frame.
    progressive_jpegs : int
        Samples whose source image was a progressive JPEG and was not encoded again. The recipe's ``progressive`` says
        how they are stored. Older manifests lack this count; it is then 0.
    """

    items: int
    packed_items: int
    rejected_items: int
    ignored_files: int
    samples: int
    frames_without_sample: int
    damaged_items: int
    progressive_jpegs: int

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
class Generation(JSONObject):
    """Output of one plan. The first build is a generation; an update or a retry adds another.

    An item counts in the generation that packed it, or that first rejected it.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"write"``, ``"convert"``, ``"copy"``, ``"merge"`` or ``"split"`` for a new dataset. ``"update"`` adds new
        items to a dataset; ``"retry"`` adds items that were rejected before and now work. ``"remove"`` has no samples: its recipe
        says how many samples were removed from the others (``removed``), and why (``because``).
    fingerprint : str
        SHA-256 of the plan.
    recipe : dict
        The resolved recipe: every key with its value.
    runtime : dict
        Everything else that affects the bytes: library versions, the detector's runtime.
    counts : Counts
    shards : tuple of Shard
    """

    kind: str
    fingerprint: str
    recipe: Mapping[str, Any]
    runtime: Mapping[str, Any]
    counts: Counts
    shards: tuple[Shard, ...]

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


@dataclass(frozen=True)
class About(JSONObject):
    """Section ``about`` of a manifest. It belongs neither to the digest of a dataset nor to how it was made.

    Attributes
    ----------
    title, description : str
        Empty if unknown.
    license : tuple of str
        SPDX identifiers, or URLs of terms. Each one applies, to all or to a part of the samples.
    citation : tuple of str
        BibTeX entries or texts.
    homepage : str
        URL, or empty.
    creator : tuple of str
        Names of people, or of organizations after ``Organization:``.
    limitations, biases, use_cases, social_impact, sensitive : str
        For responsible AI; `packer.describe` says what they mean.
    synthetic : str
        ``"yes"`` or ``"no"``: whether samples were generated; or empty.
    derived_from : tuple of str
        Names or URLs of the datasets that the samples come from.
    """

    title: str = ""
    description: str = ""
    license: tuple[str, ...] = ()
    citation: tuple[str, ...] = ()
    homepage: str = ""
    creator: tuple[str, ...] = ()
    limitations: str = ""
    biases: str = ""
    use_cases: str = ""
    social_impact: str = ""
    sensitive: str = ""
    synthetic: str = ""
    derived_from: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != UNSAID

    def to_json(self) -> dict[str, Any]:
        """Return the entries that are not empty."""
        return {name: value for name, value in super().to_json().items() if value}

    @classmethod
    def from_json(cls, document: Any, problems: Problems) -> "About | None":
        """Read the section."""
        kinds = {spec.name: list if spec.default == () else str for spec in fields(cls)}
        if not problems.check_keys(document, {}, optional=kinds):
            return None
        if not document or not all(document.values()):
            problems.add("", expected="entries that are not empty", found=shorten(document))
        values: dict[str, Any] = {name: tuple(v) if kinds[name] is list else v for name, v in document.items()}
        about = cls(**values)
        about.check(problems)
        return about

    def check(self, problems: Problems) -> None:
        """Add a problem for each entry that is not what it should be."""
        for spec in fields(self):
            value = getattr(self, spec.name)
            for text in [value] if isinstance(value, str) else value:
                if not isinstance(text, str) or not is_utf8(text):
                    problems.add(spec.name, expected="text that can be encoded as UTF-8", found=shorten(text))
                elif not text and text is not value:
                    problems.add(spec.name, expected="texts that are not empty", found=shorten(value))
                elif len(text) > TEXT_MAX:
                    problems.add(spec.name, expected=f"at most {TEXT_MAX} characters", found=len(text))
                elif spec.name == "license" and not (_SPDX.match(text) or _WEB.match(text)):
                    expected = "an SPDX identifier such as CC-BY-4.0 (spdx.org/licenses), or the URL of the terms"
                    problems.add(spec.name, expected=expected, found=shorten(text))
                elif spec.name == "synthetic" and text not in ("", "yes", "no"):
                    problems.add(spec.name, expected="yes or no", found=shorten(text))
                elif spec.name == "homepage" and text and not _WEB.match(text):
                    problems.add(spec.name, expected="a URL that begins with https:// or http://", found=shorten(text))

    @classmethod
    def united(cls, parts: Iterable["About"]) -> "About":
        """Return the section of a dataset that contains others: all licences and citations, and any text all agree on."""
        found = list(parts)

        def join(name: str) -> Any:
            values = [getattr(one, name) for one in found]
            if getattr(UNSAID, name) == ():
                return tuple(dict.fromkeys(text for value in values for text in value))
            return values[0] if values and len(set(values)) == 1 else ""

        return cls(**{spec.name: join(spec.name) for spec in fields(cls)})


UNSAID = About()
"""The section of a dataset that says nothing of itself."""


def read_entries(kind: Any, documents: list[Any], place: str, problems: Problems) -> tuple[Any, ...]:
    """Read a list of entries of one kind, and skip entries that cannot be read."""
    entries = []
    for position, document in enumerate(documents):
        if problems.full:
            break
        with problems.at(f"{place}[{position}]"):
            entries.append(kind.from_json(document, problems))
    return tuple(entry for entry in entries if entry is not None)


def total(generations: Iterable[Generation]) -> Counts:
    """Return the sum of all counts."""
    counts = [generation.counts.to_json() for generation in generations]
    return Counts(**{name: sum(count[name] for count in counts) for name in Counts.__dataclass_fields__})
