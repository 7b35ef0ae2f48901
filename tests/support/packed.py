"""The contents of a packed dataset's folder, byte for byte and value by value."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from shardspec.codecs import codec_for
from shardspec.entries import total
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.manifest import Manifest
from support.command import file_of
from support.datasets import manifest_document, open_shard, read_rows


def fingerprints(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a dataset; of the manifest without its wall-clock section."""
    assert not (root / BUILD_FOLDER).exists()
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.name == "manifest.json":
                document = manifest_document(root)
                del document["wall_clock"]
                data = json.dumps(document).encode()
            found[path.relative_to(root).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def check_whole(root: Path) -> Manifest:
    """Every file in the manifest has its size and digest there, there is no other file, and the items add up."""
    layout = Layout(root)
    manifest = layout.load()
    entries = manifest.entries
    for entry in entries:
        layout.check_digest(entry)
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {"README.md"}
    assert files == {"manifest.json", *(entry.name for entry in entries)}
    counts = total(manifest.generations)
    items = [json.loads(line) for line in file_of(layout.root, "items.jsonl").read_text("utf-8").split("\n") if line]
    rejects = [
        json.loads(line) for line in file_of(layout.root, "rejects.jsonl").read_text("utf-8").split("\n") if line
    ]
    gone = sum(item["state"] in ("gone", "removed") for item in items)
    assert counts.items == len(items) - gone == counts.packed_items + counts.rejected_items
    assert counts.packed_items == sum(item["state"] == "packed" for item in items)
    assert {reject["item"] for reject in rejects if reject["kind"] == "item"} == {
        item["item"] for item in items if item["state"] == "rejected"
    }
    assert counts.samples == sum(item["samples"] for item in items) == manifest.samples
    return manifest


def read_samples(root: Path) -> list[dict[str, Any]]:
    """Every sample, decoded, in the stored order."""
    manifest = Layout(root).load()
    schema = manifest.shard_schema
    codecs = {field.name: codec_for(field) for field in schema if not field.is_fixed}
    samples = []
    for number, shard in enumerate(manifest.shards):
        reader = open_shard(root, manifest, number)
        columns = read_rows(reader, schema, range(shard.samples))
        reader.close()
        for row in range(shard.samples):
            samples.append(
                {
                    field.name: columns[field.name][row]
                    if field.is_fixed
                    else codecs[field.name].decode(columns[field.name][row])
                    for field in schema
                }
            )
    return samples


def encoded_values(root: Path, field: str) -> dict[str, bytes]:
    """The encoded bytes of a field that is not fixed, by the samples' keys."""
    manifest = Layout(root).load()
    found = {}
    for number, shard in enumerate(manifest.shards):
        reader = open_shard(root, manifest, number)
        columns = read_rows(reader, manifest.shard_schema, range(shard.samples), list(dict.fromkeys(["key", field])))
        reader.close()
        found.update(zip((key.decode() for key in columns["key"]), columns[field], strict=True))
    return found


def stored_images(path: Path) -> list[bytes]:
    """The bytes of every image of an npy dataset, in order."""
    found = []
    for shard in sorted(path.glob("shard-*")):
        data, ends = (shard / "image.bin").read_bytes(), np.load(shard / "image.offsets.npy")
        found += [data[start:stop] for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    return found
