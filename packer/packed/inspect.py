"""What packed datasets hold, and which groups of samples several of them share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packer.assembly.groups import read_groups
from shardspec.entries import total
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.wording import counted, list_some


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


class Leak(NamedTuple):
    """A group that occurs in several datasets.

    Attributes
    ----------
    group : str
    samples : dict of str to int
        Samples of the group in each dataset that has any, by the dataset's path as it was given.
    """

    group: str
    samples: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """The leak as JSON."""
        return {"group": self.group, "samples": self.samples}


class Leaks(NamedTuple):
    """What a comparison of datasets found.

    Attributes
    ----------
    found : list of Leak
        By name.
    without : int
        Samples without a value, which were not compared.
    """

    found: list[Leak]
    without: int


def find_leaks(paths: Sequence[Path], by: str) -> Leaks:
    """The groups that are in more than one of some datasets. Groups are compared by their value, as text.

    Parameters
    ----------
    paths : sequence of Path
        Two packed datasets or more.
    by : str
        The field that says which samples belong together: ``"source"``, or a column such as a person's name.

    Raises
    ------
    UsageError
        Fewer than two datasets, or one of them twice, or one without the field.
    DatasetError
    """
    if len(paths) < 2:
        raise UsageError(f"expected two packed datasets or more to compare by {by!r}, found {len(paths)}")
    places: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in places:
            raise UsageError(
                f"expected different datasets to compare, found one twice: {places[path.resolve()]}, {path}"
            )
        places[path.resolve()] = path
    found: dict[str, dict[str, int]] = {}
    without = 0
    for path in paths:
        groups = read_groups(path, by)
        without += groups.without
        for name, size in zip(groups.names, groups.sizes().tolist(), strict=True):
            found.setdefault(name, {})[str(path)] = size
    return Leaks([Leak(name, samples) for name, samples in sorted(found.items()) if len(samples) > 1], without)


def render_leaks(leaks: Leaks, paths: Sequence[Path], by: str) -> str:
    """The leaks for people."""
    together = ", ".join(map(str, paths))
    rest = f" ({counted(leaks.without, 'sample')} without a value not compared)" if leaks.without else ""
    if not leaks.found:
        return f"{together}: no {by} occurs in more than one{rest}"
    lines = [
        f"  {leak.group!r}: " + ", ".join(f"{counted(size, 'sample')} in {path}" for path, size in leak.samples.items())
        for leak in leaks.found
    ]
    return "\n".join(
        [f"{together}: LEAK: {counted(len(leaks.found), 'value')} of {by} in more than one{rest}:", *lines]
    )
