"""``packer croissant``: a description of a packed dataset in Croissant 1.1, for search engines and other loaders."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packer.jobs.result import Result
from packer.packed.publish.card import edited
from packer.packed.publish.card_fields import MEANINGS, Facts, describe_shape, public_options
from packer.recipe.checks import checked
from packer.workspace.output import check_output, write_output
from shardspec.errors import UsageError
from shardspec.formats.parquet import parquet_column
from shardspec.layout import MANIFEST_NAME, Layout, given_path, sha256_file
from shardspec.manifest import sha256_json
from shardspec.schema import Field, Schema
from shardspec.wording import counted, list_some, program, shorten

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "name": {"@container": "@language"},
    "description": {"@container": "@language"},
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{
        name: f"cr:{name}"
        for name in (
            *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
            *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
            *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
            *("sdVersion", "separator", "source", "subField", "transform"),
        )
    },
}
"""The context that the specification recommends: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html."""

_CONFORMS_TO = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]

_TYPES = {"|b1": "sc:Boolean", "<f2": "cr:Float16", "<f4": "cr:Float32", "<f8": "cr:Float64"} | {
    f"{'|' if bits == 8 else '<'}{letter}{bits // 8}": f"cr:{name}{bits}"
    for letter, name in (("i", "Int"), ("u", "UInt"))
    for bits in (8, 16, 32, 64)
}
"""Types of numbers by dtype."""

_MEDIA = {
    ".parquet": "application/x-parquet",
    ".tar": "application/x-tar",
    ".h5": "application/x-hdf5",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".md": "text/markdown",
}
_SAID = {
    "limitations": "rai:dataLimitations",
    "biases": "rai:dataBiases",
    "sensitive": "rai:personalSensitiveInformation",
    "use_cases": "rai:dataUseCases",
    "social_impact": "rai:dataSocialImpact",
    "synthetic": "rai:hasSyntheticData",
    "derived_from": "prov:wasDerivedFrom",
}
"""Property of each entry for responsible AI. With ``prov:wasGeneratedBy``, which is always written, these are the fields
that NeurIPS's track of evaluations and datasets demands since 2026."""
_ORGANIZATION = "organization:"

_VERSION = "1.0.0+"
"""Start of ``sdVersion``, the version of the description. The rest is the start of the description's SHA-256."""
_DIGITS = 16
_SHARDS = "shards"


@dataclass(frozen=True, repr=False)
class Croissant(Result):
    """A description of a dataset in Croissant.

    Attributes
    ----------
    path : Path or None
        The file that was written.
    document : dict
        The JSON-LD document.
    missing : tuple of str
        Entries that Croissant demands and the dataset lacks.
    missing_responsible : tuple of str
        Entries for responsible AI that the dataset lacks, and that conferences such as NeurIPS demand.
    """

    path: Path | None
    document: dict[str, Any]
    missing: tuple[str, ...]
    missing_responsible: tuple[str, ...]

    def describe(self) -> str:
        """Return the document, or the name of the file it was written to and what it lacks."""
        if self.path is None:
            return _dumps(self.document).removesuffix("\n")
        lacks = [
            f"without {list_some(names, len(names))}, which {who}"
            for names, who in ((self.missing, "Croissant demands"), (self.missing_responsible, "NeurIPS demands"))
            if names
        ]
        without = f", {' and '.join(lacks)}: add with {program()} describe" if lacks else ""
        return f"{self.path}: Croissant 1.1 written{without}"

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        out = None if self.path is None else str(self.path)
        lacks = {"missing": list(self.missing), "missing_responsible": list(self.missing_responsible)}
        return {"out": out, **lacks, "document": self.document}


def croissant(
    dataset: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None, url: str | None = None
) -> Croissant:
    """Describe a packed dataset in Croissant 1.1, with the fields for responsible AI.

    All files are listed with their SHA-256. Of a Parquet dataset, loaders of Croissant can read the records.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path, optional
        A ``.json`` or ``.jsonld`` file in a folder above the dataset or, with `url`, anywhere outside the dataset. A
        file with another text than one of this function is never replaced.
    url : str, optional
        URL of the published folder, before every file's name; by default names are relative to the folder of `out`, or
        to the dataset's.

    Returns
    -------
    Croissant

    Raises
    ------
    UsageError
        If `url` is not a URL, or if `out` is in a wrong folder, cannot be written, or was edited.
    DatasetError
        If the dataset cannot be read.
    """
    layout = Layout(given_path("dataset", dataset))
    url = checked("url", url, str | None)
    if url is not None and not url.startswith(("https://", "http://")):
        raise UsageError(option="url", expected="a URL that begins with https:// or http://", found=shorten(url))
    path = None if out is None else given_path("out", out)
    if path is not None:
        check_output(path, ".json", ".jsonld", datasets=[layout.root])
    base = ""
    if url is not None:
        base = f"{url.rstrip('/')}/"
    elif path is not None:
        root, folder = layout.root.resolve(), path.absolute().parent.resolve()
        if not root.is_relative_to(folder):
            raise UsageError(
                place=path,
                expected=f"a file in a folder above {layout.root}, since it names files relative to itself",
                found=f"one in {folder}",
                hint="choose another folder, or give `url`",
            )
        base = f"{root.relative_to(folder).as_posix()}/"
    facts = Facts(layout, layout.load())
    document = _document(facts, base)
    missing = tuple(name for name in ("description", "license", "url", "creator") if name not in document)
    responsible = tuple(name for name, key in _SAID.items() if key not in document)
    document["sdVersion"] = _version(document)
    if path is None:
        return Croissant(None, document, missing, responsible)
    if path.exists() and not _is_generated(path.read_bytes()):
        raise edited(path)
    write_output(path, _dumps(document).encode())
    return Croissant(path, document, missing, responsible)


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _version(document: dict[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "sdVersion"}
    return _VERSION + sha256_json(rest)[:_DIGITS]


def _is_generated(data: bytes) -> bool:
    """Return whether a description is as it was generated."""
    try:
        document = json.loads(data)
        return isinstance(document, dict) and document.get("sdVersion") == _version(document)
    except (ValueError, RecursionError):
        return False


def _document(facts: Facts, base: str) -> dict[str, Any]:
    manifest, about = facts.manifest, facts.manifest.about
    links = [text if "://" in text else f"https://spdx.org/licenses/{text}.html" for text in about.license]
    date = str(manifest.wall_clock.get("finished", ""))[:10]
    entries = {
        "name": about.title or facts.layout.root.absolute().name,
        "description": about.description,
        "license": links[0] if len(links) == 1 else links,
        "url": about.homepage or (base if "://" in base else ""),
        "creator": [_creator(text) for text in about.creator],
        "citeAs": "\n\n".join(about.citation),
        "dateCreated": date,
        "datePublished": date,
        "identifier": f"sha256:{manifest.digest}",
        "version": f"1.0.0+{manifest.digest[:_DIGITS]}",
    }
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CONFORMS_TO,
        **{name: value for name, value in entries.items() if value},
        **dict(_responsible(facts)),
        "distribution": list(_files(facts, base)),
        **dict(_structure(facts)),
    }


def _responsible(facts: Facts) -> Iterator[tuple[str, Any]]:
    """Yield the fields for responsible AI: https://docs.mlcommons.org/croissant/docs/croissant-rai-spec.html."""
    counts, generations, about = facts.counts, facts.manifest.generations, facts.manifest.about
    for name in ("limitations", "biases", "use_cases", "social_impact"):
        if text := getattr(about, name):
            yield _SAID[name], text
    if about.synthetic:
        yield _SAID["synthetic"], about.synthetic == "yes"
    if about.derived_from:
        yield _SAID["derived_from"], [{"@id": t} if "://" in t else {"sc:name": t} for t in about.derived_from]
    yield (
        "prov:wasGeneratedBy",
        [{"@type": "prov:Activity", "prov:label": f"facepack: {one.kind}"} for one in generations],
    )
    yield (
        "rai:dataCollection",
        f"Packed by facepack from {counted(counts.items, 'item')} (images, videos or rows): {counts.packed_items} gave "
        f"{counted(counts.samples, 'sample')}.",
    )
    lost = [f"{step}: {reason} ({counted(count, 'item')})" for step, reason, count in facts.rejects]
    yield (
        "rai:dataCollectionMissingData",
        f"{counted(counts.rejected_items, 'item')} rejected, {counted(counts.frames_without_sample, 'frame')} of videos "
        f"without a sample. {'; '.join(lost)}".strip(),
    )
    yield (
        "rai:dataPreprocessingProtocol",
        [
            f"{one.kind}: {json.dumps(public_options(one), ensure_ascii=False, sort_keys=True)}; "
            + ", ".join(f"{name} {version}" for name, version in one.runtime.items())
            for one in generations
        ],
    )
    sensitive = [about.sensitive, "The images show faces of people." if facts.shows_faces else ""]
    if any(sensitive):
        yield _SAID["sensitive"], list(filter(None, sensitive))
    if facts.shows_faces:
        yield "rai:machineAnnotationTools", ["Face boxes and landmarks are those of a detector or of given boxes."]


def _creator(text: str) -> dict[str, str]:
    if text.lower().startswith(_ORGANIZATION):
        return {"@type": "sc:Organization", "name": text[len(_ORGANIZATION) :].strip()}
    return {"@type": "sc:Person", "name": text}


def _files(facts: Facts, base: str) -> Iterator[dict[str, Any]]:
    manifest, path = facts.manifest, facts.layout.manifest
    listed = [(entry.name, entry.bytes, entry.sha256) for entry in manifest.entries]
    for name, size, digest in (*listed, (MANIFEST_NAME, path.stat().st_size, sha256_file(path))):
        yield {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": base + name,
            "contentSize": f"{size} B",
            "encodingFormat": _MEDIA.get(PurePosixPath(name).suffix, "application/octet-stream"),
            "sha256": digest,
        }
    if manifest.format == "parquet":
        # mlcroissant reads the tables of a file set from a folder alone, and then the set must not name its files.
        held = {"containedIn": [{"@id": f"{shard.name}.parquet"} for shard in manifest.shards]} if "://" in base else {}
        yield {
            "@type": "cr:FileSet",
            "@id": _SHARDS,
            "name": _SHARDS,
            **held,
            "encodingFormat": _MEDIA[".parquet"],
            "includes": "shard-*.parquet" if "://" in base else f"{base}shard-*.parquet",
        }


def _structure(facts: Facts) -> Iterator[tuple[str, Any]]:
    """Yield the records. Croissant can read those of Parquet alone, so fields in other formats are only named."""
    manifest, classes = facts.manifest, list(_classes(facts.manifest.schema))
    if manifest.format != "parquet":
        yield (
            "variableMeasured",
            [
                {"@type": "sc:PropertyValue", "name": field.name, "description": _describe(field)}
                for field in manifest.schema
            ],
        )
        yield "recordSet", classes
        return
    fields = [_field(field) for field in manifest.shard_schema if parquet_column(field).storage != "none"]
    key = {"key": {"@id": "samples/key"}} if "key" in manifest.shard_schema else {}
    yield (
        "recordSet",
        [{"@type": "cr:RecordSet", "@id": "samples", "name": "samples", **key, "field": fields}, *classes],
    )


def _classes(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield a record set for each list of classes."""
    for field in schema:
        if field.classes:
            name = f"{field.name}_classes"
            yield {
                "@type": "cr:RecordSet",
                "@id": name,
                "name": name,
                "dataType": "sc:Enumeration",
                "key": {"@id": f"{name}/number"},
                "field": [
                    {"@type": "cr:Field", "@id": f"{name}/number", "name": "number", "dataType": "sc:Integer"},
                    {"@type": "cr:Field", "@id": f"{name}/name", "name": "name", "dataType": "sc:Text"},
                ],
                "data": [{f"{name}/number": number, f"{name}/name": text} for number, text in enumerate(field.classes)],
            }


def _describe(field: Field) -> str:
    kind = "text" if field.kind == "text" else f"{field.numpy_dtype.name}, {describe_shape(field)}, {field.codec.name}"
    return f"{MEANINGS.get(field.name, 'Value of the sample')} ({kind})"


def _field(field: Field) -> dict[str, Any]:
    storage = parquet_column(field).storage
    described: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"samples/{field.name}",
        "name": field.name,
        "description": _describe(field),
        "dataType": _type(field),
    }
    if field.kind in ("fixed", "ragged") and field.shape and storage == "list":
        shape = ",".join("-1" if axis is None else str(axis) for axis in field.shape)
        described |= {"isArray": True, "arrayShape": shape}
    source: dict[str, Any] = {"fileSet": {"@id": _SHARDS}, "extract": {"column": field.name}}
    return {**described, "source": source | ({"transform": {"jsonPath": "bytes"}} if storage == "image" else {})}


def _type(field: Field) -> str:
    storage = parquet_column(field).storage
    if storage == "image":
        return "sc:ImageObject"
    return _TYPES[field.dtype] if storage in ("list", "primitive", "none") else "sc:Text"
