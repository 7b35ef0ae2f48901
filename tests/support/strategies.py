"""Hypothesis strategies for the documents of the contract."""

from typing import Any

from hypothesis import strategies as st

from shardspec.entries import About, Column, Counts, FileEntry, Generation, Shard
from shardspec.formats import FORMATS
from shardspec.formats.npy import npy_files
from shardspec.manifest import Manifest
from shardspec.schema import DTYPES, Field, NamedConfig, Schema

names = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
sizes = st.integers(0, 1000)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
licenses = st.sampled_from(["CC-BY-4.0", "MIT OR Apache-2.0", "https://example.org/terms?v=1"])
abouts = st.builds(
    About,
    title=texts,
    description=texts,
    license=st.lists(licenses, max_size=2).map(tuple),
    citation=st.lists(texts.filter(bool), max_size=2).map(tuple),
    homepage=st.sampled_from(["", "https://example.org/é"]),
)


@st.composite
def fields(draw: st.DrawFn, name: str | None = None) -> Field:
    """A field of any kind."""
    chosen = draw(names) if name is None else name
    kind = draw(st.sampled_from(["fixed", "ragged", "blob", "array", "image", "text", "class"]))
    dtype = draw(st.sampled_from(DTYPES))
    tail = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    if kind == "fixed":
        layout = draw(st.none() | st.sampled_from(["5", "68"]))
        return Field(chosen, "fixed", dtype, tail, layout=layout)
    if kind == "class":
        classes = tuple(draw(st.lists(texts, max_size=4, unique=True)))
        return Field(chosen, "fixed", draw(st.sampled_from(["|u1", "<i4", "<i8"])), (), classes=classes)
    if kind == "ragged":
        return Field(chosen, "ragged", dtype, (None, *tail))
    if kind == "blob":
        return Field(chosen, "bytes", "|u1", (None,))
    if kind == "array":
        return Field(chosen, "bytes", dtype, (None, None, *tail))
    if kind == "image":
        side = draw(st.none() | st.integers(1, 64))
        codec = draw(st.sampled_from(["jpeg", "png", "webp", "raw"]))
        return Field(chosen, "bytes", "|u1", (side, side, 3), NamedConfig(codec, draw(json_objects)))
    return Field(chosen, "text", "|u1", (None,), NamedConfig(draw(st.sampled_from(["utf8", "json"]))))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema of one to five fields."""
    chosen = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    return Schema(tuple(draw(fields(name)) for name in chosen))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A manifest that keeps every rule of the contract."""
    schema = draw(schemas())
    row_bits = sum(field.least_bits for field in schema)
    generations = []
    number = 0
    for _ in range(draw(st.integers(1, 2))):
        shards = []
        for _ in range(draw(st.integers(0, 3))):
            name = f"shard-{number:05d}"
            number += 1
            tails = draw(
                st.lists(st.sampled_from([".lmdb", ".idx", "/image.bin", "/label.npy"]), min_size=1, unique=True)
            )
            samples = draw(st.integers(0, 10**9))
            least = -(-samples * row_bits // 8)  # each file alone could hold so many samples
            files = tuple(
                FileEntry(name + tail, draw(st.integers(least, 2**60)), draw(digests)) for tail in sorted(tails)
            )
            shards.append(Shard(name, samples, draw(st.integers(1, 10**6)), files))
        packed, rejected = draw(sizes), draw(sizes)
        counts = Counts(
            packed + rejected,
            packed,
            rejected,
            draw(sizes),
            sum(s.samples for s in shards),
            *(draw(sizes) for _ in range(3)),
        )
        kind = draw(st.sampled_from(["build", "convert", "merge", "split"]))
        generations.append(
            Generation(kind, draw(digests), draw(json_objects), draw(json_objects), counts, tuple(shards))
        )
    others = draw(st.lists(st.from_regex(r"index/[a-z]{1,8}\.npy", fullmatch=True), max_size=3, unique=True))
    files = tuple(FileEntry(name, draw(sizes), draw(digests)) for name in others)
    beside = draw(st.lists(st.sampled_from(schema.names), max_size=len(schema) - 1, unique=True))
    samples = sum(shard.samples for generation in generations for shard in generation.shards)
    columns = tuple(draw(_columns(schema[name], samples)) for name in beside)
    format = draw(st.sampled_from(sorted(FORMATS)))
    return Manifest(format, schema, tuple(generations), files, draw(json_objects), columns, draw(abouts))


@st.composite
def _columns(draw: st.DrawFn, field: Field, samples: int) -> Column:
    """A column of a field."""
    name = f"columns/{field.name}-{draw(digests)[:16]}"
    least = samples * (field.row_bytes if field.is_fixed else 8) + 8
    files = [FileEntry(f"{name}/{file}", draw(st.integers(least, 2**62)), draw(digests)) for file in npy_files(field)]
    return Column(name, field.name, samples, tuple(files))
