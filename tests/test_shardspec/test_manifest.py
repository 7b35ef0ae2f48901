"""The manifest: its JSON, its identity, and what it says to documents that lie."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import json_values, manifests

from shardspec.entries import Counts, FileEntry, Generation, Shard
from shardspec.errors import ManifestError, VersionError
from shardspec.layout import Layout
from shardspec.manifest import SPEC_VERSION, Manifest, canonical_json
from shardspec.schema import Field, Schema

ZEROS = "0" * 64


def small() -> dict[str, Any]:
    """A manifest's document, small and right."""
    shard = Shard("shard-00000", 3, 2, (FileEntry("shard-00000.lmdb", 10, ZEROS),))
    counts = Counts(4, 3, 1, 0, 3, 0, 0, 0)
    generation = Generation("build", ZEROS, {"size": 1}, {"numpy": "2"}, counts, (shard,))
    schema = Schema((Field("label", "fixed", "<i8", ()),))
    manifest = Manifest("lmdb", schema, (generation,), (FileEntry("index/label.npy", 5, ZEROS),), {"seconds": 1.5})
    return manifest.to_json()


def loads(document: Any) -> Manifest:
    """Read a document as if from a file."""
    return Manifest.loads(json.dumps(document).encode(), "here/manifest.json")


@given(manifests())
def test_a_manifest_round_trips(manifest: Manifest) -> None:
    data = manifest.dumps()
    found = Manifest.loads(data, "here")
    assert found == manifest
    assert found.dumps() == data
    assert found.digest == manifest.digest
    assert found.samples == sum(shard.samples for shard in found.shards)


@given(manifests())
def test_anyone_can_compute_the_digest_from_the_document(manifest: Manifest) -> None:
    document = json.loads(json.dumps(manifest.to_json()))
    shards = [
        [entry["name"], entry["sha256"]]
        for generation in document["generations"]
        for shard in generation["shards"]
        for entry in shard["files"]
    ]
    columns = [[entry["name"], entry["sha256"]] for c in document.get("columns", ()) for entry in c["files"]]
    hashed = {"schema": document["schema"], "shards": shards} | ({"columns": columns} if columns else {})
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert manifest.digest == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_depends_on_schema_and_shards_only() -> None:
    document = small()
    digest = loads(document).digest
    document["wall_clock"] = {}
    document["about"] = {"title": "Faces", "license": ["MIT"]}
    document["generations"][0]["recipe"] = {}
    document["files"][0]["sha256"] = "1" * 64
    assert loads(document).digest == digest
    document["generations"][0]["shards"][0]["files"][0]["sha256"] = "1" * 64
    assert loads(document).digest != digest


@pytest.mark.parametrize(("prefix", "tag"), [("next-next-", ""), ("", "-0123456789abcdef"), ("next-", "-" + 16 * "f")])
def test_the_digest_and_the_look_up_of_files_ignore_tags_and_prefixes_of_names(prefix: str, tag: str) -> None:
    schema = Schema((Field("label", "fixed", "<i8", ()),))

    def made(prefix: str, tag: str) -> Manifest:
        file = FileEntry(f"{prefix}shard-00000{tag}.lmdb", 4096, "ab" * 32)
        shard = Shard(f"{prefix}shard-00000{tag}", 1, 1, (file,))
        generation = Generation("build", "cd" * 32, {}, {}, Counts(1, 1, 0, 0, 1, 0, 0, 0), (shard,))
        names = (f"{prefix}items{tag}.jsonl", f"{prefix}index/label{tag}.npy")
        return Manifest("lmdb", schema, (generation,), tuple(FileEntry(name, 1, "ef" * 32) for name in names), {})

    named, plain = made(prefix, tag), made("", "")
    assert named.digest == plain.digest
    for found, name in zip(named.files, ("items.jsonl", "index/label.npy"), strict=True):
        assert named.find_file(name) == found
        assert Layout(Path()).find_index(named, "label") == named.files[1]


def test_a_manifest_of_an_earlier_version_lists_the_card_which_may_have_been_edited() -> None:
    schema = Schema((Field("label", "fixed", "<i8", ()),))
    shard = Shard("shard-00000", 1, 1, (FileEntry("shard-00000.lmdb", 4096, ZEROS),))
    generation = Generation("build", ZEROS, {}, {}, Counts(1, 1, 0, 0, 1, 0, 0, 0), (shard,))
    files = (FileEntry("README.md", 10, ZEROS), FileEntry("items.jsonl", 5, ZEROS))
    data = Manifest("lmdb", schema, (generation,), files, {}).dumps()
    assert Manifest.loads(data, "here").files == files[1:]


@given(st.data())
def test_any_document_is_a_manifest_or_a_manifest_error(data: st.DataObject) -> None:
    document = json.loads(json.dumps(data.draw(manifests()).to_json()))
    places = list(_places(document))
    path = data.draw(st.sampled_from(places))
    value = data.draw(json_values)
    broken = copy.deepcopy(document)
    target: Any = broken
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    try:
        found = loads(broken)
    except (ManifestError, VersionError) as error:
        assert str(error).startswith("here/manifest.json: ")  # noqa: PT017 -- either may come of it
    else:
        assert isinstance(found.digest, str)


def _places(document: Any, path: tuple[Any, ...] = ()) -> Any:
    """Paths to every value of a document."""
    if path:
        yield path
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in entries:
        yield from _places(value, (*path, key))


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_manifest_raise_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match="here"):
        Manifest.loads(data, "here")


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b"{" * 10, b"\xff\xfe{}", b"[]", b"null", b"1" * 10_000, b'{"a": NaN}']
)
def test_hostile_bytes_are_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match="here"):
        Manifest.loads(data, "here")


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../other.lmdb", "shard-00000/../../x", "..", ".", "", "a//b", "a/", "./a", ".hidden",
        "a/.hidden", "a\\b", "C:x", "a\0b", "a\n", "a b", "ä", "~/x", "-x",
    ],
)  # fmt: skip
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    document = small()
    document["files"][0]["name"] = name
    with pytest.raises(ManifestError, match=r"files\[0\].name: expected a plain relative path"):
        loads(document)
    document = small()
    document["generations"][0]["shards"][0]["files"][0]["name"] = name
    with pytest.raises(
        ManifestError, match=r"generations\[0\].shards\[0\].files\[0\].name: expected a plain relative path"
    ):
        loads(document)
    document = small()
    document["generations"][0]["shards"][0]["name"] = name
    with pytest.raises(ManifestError, match=r"generations\[0\].shards\[0\].name: expected a plain name"):
        loads(document)


def test_a_newer_version_is_a_version_error_that_says_what_to_do() -> None:
    document = small()
    for version in (SPEC_VERSION + 1, 10**40):
        document["spec_version"] = version
        with pytest.raises(
            VersionError, match=f"expected spec_version {SPEC_VERSION} or less, found {version}: update"
        ):
            loads(document)
    # A newer version may have any keys; the version is looked at first.
    with pytest.raises(VersionError):
        loads({"spec_version": SPEC_VERSION + 1, "everything": "else"})


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
def test_a_nonexistent_version_is_refused(version: Any) -> None:
    document = small()
    document["spec_version"] = version
    with pytest.raises(ManifestError, match="spec_version"):
        loads(document)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 1, "format: expected str, found int"),
        (("format",), "tar", "format: expected one of"),
        (("files",), {}, "files: expected list, found dict"),
        (("files", 0, "bytes"), -1, "files[0].bytes: expected 0 or more"),
        (("files", 0, "bytes"), 1.5, "files[0].bytes: expected int"),
        (("files", 0, "sha256"), "0" * 63, "files[0].sha256"),
        (("files", 0, "sha256"), "G" * 64, "files[0].sha256"),
        (("files", 0, "name"), "shard-00000.lmdb", "once"),
        (("generations",), [], "generations: expected at least one"),
        (("generations", 0, "counts", "items"), 5, "expected packed_items + rejected_items"),
        (("generations", 0, "counts", "samples"), 4, "counts.samples: expected the sum over the shards, 3"),
        (("generations", 0, "counts", "ignored_files"), -1, "ignored_files"),
        (("generations", 0, "shards", 0, "samples"), -3, "samples: expected 0 or more"),
        (("generations", 0, "shards", 0, "block_rows"), 0, "block_rows: expected 1 or more"),
        (("generations", 0, "shards", 0, "files"), [], "files: expected at least one"),
        (("generations", 0, "shards", 0, "files", 0, "name"), "other.lmdb", "files[0].name"),
        (("schema", "fields"), [], "at least one"),
        (("surprise",), 1, "surprise: unknown key"),
    ],
)  # fmt: skip
def test_a_rule_that_is_broken_is_reported_with_its_place(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = small()
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(ManifestError) as caught:
        loads(document)
    assert message in str(caught.value)


def test_every_problem_is_reported_at_once() -> None:
    document = small()
    document["files"][0].update(name="/x", bytes=-1, sha256="?")
    document["generations"][0]["shards"][0].update(samples=-1, block_rows=0)
    document["generations"].append(7)
    document["schema"]["fields"][0]["dtype"] = "O"
    with pytest.raises(ManifestError) as caught:
        loads(document)
    for part in (
        "files[0].name",
        "files[0].bytes",
        "files[0].sha256",
        "shards[0].samples",
        "shards[0].block_rows",
        "generations[1]",
        "dtype",
    ):
        assert part in str(caught.value), part


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))
