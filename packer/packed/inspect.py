"""What a packed dataset holds, from its manifest alone."""

from pathlib import Path
from typing import Any

from shardspec.entries import total
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.plurals import counted
from shardspec.wording import list_some


def describe(path: Path) -> dict[str, Any]:
    """The facts of a dataset, as JSON.

    Returns
    -------
    dict
        ``format``, ``samples``, ``items``, ``packed_items``, ``rejected_items`` and the other counts summed over the
        generations, ``fields``, ``shards``, ``bytes``, ``digest``, ``fingerprints``.
    """
    manifest = Layout(path).load()
    return {
        "path": str(path),
        "format": manifest.format,
        **total(manifest.generations).to_json(),
        "fields": manifest.schema.to_json()["fields"],
        "shards": [
            {"name": shard.name, "samples": shard.samples, "bytes": shard.bytes, "block_rows": shard.block_rows}
            for shard in manifest.shards
        ],
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "digest": manifest.digest,
        "fingerprints": [generation.fingerprint for generation in manifest.generations],
        "recipe": dict(manifest.generations[-1].recipe),
        "runtime": dict(manifest.generations[-1].runtime),
        "wall_clock": dict(manifest.wall_clock),
    }


def render(path: Path) -> str:
    """The facts of a dataset, for people."""
    manifest: Manifest = Layout(path).load()
    facts = describe(path)
    lines = [
        f"{path}: {counted(facts['samples'], 'sample')}, {manifest.format}, {counted(len(manifest.shards), 'shard')}, {facts['bytes'] / 1e6:.1f} MB",
        f"items: {facts['items']} = {facts['packed_items']} packed + {facts['rejected_items']} rejected; "
        f"{counted(facts['frames_without_sample'], 'frame')} without a sample, {counted(facts['damaged_items'], 'damaged video')}, "
        f"{counted(facts['ignored_files'], 'file')} ignored, {counted(facts['progressive_jpegs'], 'progressive JPEG')} found",
        f"digest: {facts['digest']}",
        "fields:",
    ]
    for field in manifest.schema:
        shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
        extra = f", {len(field.classes)} classes: {list_some(field.classes)}" if field.classes else ""
        extra += f", layout {field.layout}" if field.layout else ""
        lines.append(f"  {field.name}: {field.kind} {field.dtype} {shape}, {field.codec.name}{extra}")
    return "\n".join(lines)
