"""Describe a packed dataset by its manifest."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packer.builds.records import read_history
from packer.jobs.result import Result
from packer.sources.stores.packed import partial_folder
from readers.drawing.sound import sound_field
from readers.formats.npy import map_npy
from shardspec.entries import REMOVE, total
from shardspec.errors import DatasetError
from shardspec.layout import Layout, layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.wording import counted, list_some, one_line, program


class GenerationNote(NamedTuple):
    """One addition to a dataset.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"write"``, ``"update"``, ``"retry"``, ``"remove"``, ``"convert"``, ``"copy"``, ``"merge"`` or
        ``"split"``.
    finished : str or None
        Time in UTC; None if it is not recorded.
    version : str or None
        The version of this project that made it.
    items, rejected, samples : int
        Counts of these items alone. A retried item counts if the retry packed it.
    replaced, gone : int
        Earlier items that were packed again, or dropped.
    removed : int
        Samples of these items, which were removed from the dataset; for ``"remove"``, all that it removed.
    because : str
        Why samples were removed; empty if it was not said.
    """

    kind: str
    finished: str | None
    version: str | None
    items: int
    rejected: int
    samples: int
    replaced: int = 0
    gone: int = 0
    removed: int = 0
    because: str = ""

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "GenerationNote":
        """Read an unchecked note of the wall clock."""
        texts = [note.get(name) for name in ("kind", "finished", "version", "because")]
        kind, finished, version, because = (text if isinstance(text, str) else None for text in texts)
        names = ("items", "rejected", "samples", "replaced", "gone", "removed")
        counts = {name: note[name] for name in names if isinstance(note.get(name), int)}
        made = cls(kind or "not known", finished, version, 0, 0, 0, because=because or "")
        return made._replace(**counts)

    def describe(self) -> str:
        """Describe the facts."""
        gone = f", {self.replaced} replaced, {self.gone} gone ({counted(self.removed, 'sample')} removed)"
        when, kind, version = map(one_line, (self.finished or "time not known", self.kind, self.version or "not known"))
        done = f"{when}, {kind} by version {version}: "
        if self.kind == REMOVE:
            return f"{done}{counted(self.removed, 'sample')} removed{self.because and f' ({one_line(self.because)})'}"
        return (
            f"{done}"
            f"{counted(self.items, 'item')} ({self.rejected} rejected), {counted(self.samples, 'sample')}"
            f"{gone if self.replaced or self.gone else ''}"
        )


@dataclass(frozen=True, repr=False)
class InspectReport(Result):
    """Summary of a dataset's manifest, and the first problem with its files.

    Attributes
    ----------
    path : Path or str
        The dataset's folder, or its URL.
    manifest : Manifest
    problem : str
        The first file that is missing or has another size than in the manifest; empty if there is none.
    frames, seconds : int and float, or None
        Frames and length of all videos, or the length of all sounds, together; None if the samples are neither, or the
        index is missing.
    """

    path: Path | str
    manifest: Manifest
    problem: str = ""
    frames: int | None = None
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON.

        Returns
        -------
        dict
            ``path``, ``format``, ``samples``, ``items``, ``packed_items``, ``rejected_items`` and the other counts
            summed over the generations, ``fields``, ``shards``, ``columns``, ``bytes``, ``digest``, ``about``,
            ``problem``, ``frames``, ``seconds``, ``fingerprints``, ``history``, and ``recipe``, ``runtime`` and
            ``wall_clock`` of the last generation.
        """
        manifest = self.manifest
        return {
            "path": str(self.path),
            "format": manifest.format,
            **total(manifest.generations).to_json(),
            "fields": manifest.schema.to_json()["fields"],
            "shards": [
                {"name": shard.name, "samples": shard.samples, "bytes": shard.bytes, "block_rows": shard.block_rows}
                for shard in manifest.shards
            ],
            "columns": [
                {"field": column.field, "name": column.name, "bytes": column.bytes, "computed": dict(column.computed)}
                for column in manifest.columns
            ],
            "bytes": manifest.stored_bytes,
            "digest": manifest.digest,
            "about": manifest.about.to_json(),
            "problem": self.problem,
            "frames": self.frames,
            "seconds": self.seconds,
            "fingerprints": [generation.fingerprint for generation in manifest.generations],
            "history": [note._asdict() for note in self.history],
            "recipe": dict(manifest.newest.recipe),
            "runtime": dict(manifest.newest.runtime),
            "wall_clock": dict(manifest.wall_clock),
        }

    @property
    def history(self) -> tuple[GenerationNote, ...]:
        """Additions in order: the first build, and each later one as it was then."""
        return tuple(GenerationNote.of(note) for note in read_history(self.manifest) if isinstance(note, dict))

    def describe_history(self) -> str:
        """Describe the history: when, what, by which version."""
        lines = [
            f"{self.path}: {counted(self.manifest.samples, 'sample')}, packed in {counted(len(self.history), 'step')}:"
        ]
        lines += [f"  {note.describe()}" for note in self.history]
        return "\n".join(lines)

    def describe(self) -> str:
        """Describe the facts."""
        manifest, facts = self.manifest, self.to_json()
        lines = [
            f"{self.path}: {counted(facts['samples'], 'sample')}, {manifest.format}, "
            f"{counted(len(manifest.shards), 'shard')}, {facts['bytes'] / 1e6:.1f} MB",
            f"items: {facts['items']} = {facts['packed_items']} packed + {facts['rejected_items']} rejected; "
            f"{counted(facts['frames_without_sample'], 'frame')} without a sample, "
            f"{counted(facts['damaged_items'], 'damaged video')}, "
            f"{facts['ignored_files']} ignored, "
            f"{counted(facts['progressive_jpegs'], 'progressive JPEG')} found",
            *([] if self.frames is not None or self.seconds is None else [f"sound: {_describe_hours(self.seconds)}"]),
            *([f"title: {one_line(manifest.about.title)}"] if manifest.about.title else []),
            *([f"license: {', '.join(manifest.about.license)}"] if manifest.about.license else []),
            *([f"problem: {self.problem} ({program()} verify looks for all)"] if self.problem else []),
            *([self._describe_videos()] if self.frames is not None else []),
            f"digest: {facts['digest']}",
            "fields:",
        ]
        computed = {column.field: column.computed for column in manifest.columns if column.computed}
        for field in manifest.schema:
            shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
            extra = f", {counted(len(field.classes), 'class')}: {list_some(field.classes)}" if field.classes else ""
            extra += f", layout {field.layout}" if field.layout else ""
            extra += ", column" if field.name not in manifest.shard_schema else ""
            extra += _describe_computed(computed[field.name]) if field.name in computed else ""
            lines.append(f"  {field.name}: {field.kind} {field.dtype} {shape}, {field.codec.name}{extra}")
        return "\n".join(lines)

    def _describe_videos(self) -> str:
        """Describe the length of a dataset of videos, and their bytes a second."""
        frames, seconds = self.frames or 0, self.seconds or 0.0
        rate = f", {self.manifest.stored_bytes / seconds / 1e3:,.1f} kB a second" if seconds else ""
        return f"videos: {counted(frames, 'frame')}, {seconds:,.1f} s{rate}"


def _describe_hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _describe_computed(record: Mapping[str, Any]) -> str:
    """Describe the function that computed a column."""
    options = "".join(f",{name}={json.dumps(value)}" for name, value in record["options"].items())
    version = record["version"]
    return f", computed by {one_line(record['function'] + options)}, version {one_line(version[:12]) or 'not known'}"


def inspect(dataset: str | os.PathLike[str]) -> InspectReport:
    """Describe a packed dataset by its manifest. Of other files, only existence and size are checked.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or a URL, of which only manifest, index and reports are downloaded.

    Returns
    -------
    InspectReport

    Raises
    ------
    DatasetError
        If there is no manifest that can be read.
    """
    path, problem = partial_folder(dataset), ""
    layout = layout_at(path)
    manifest = layout.load()
    try:
        layout.check_sizes(manifest.entries if layout.is_local else manifest.files)
    except DatasetError as error:
        problem = str(error)
    frames, seconds = None, None
    if not problem and any(field.is_encoded_video for field in manifest.schema):
        frames, seconds = _sum(layout, manifest, "frames"), _sum(layout, manifest, "seconds")
    elif not problem and sound_field(manifest.schema) is not None:
        seconds = _sum(layout, manifest, "seconds")
    return InspectReport(place_of(path), manifest, problem, None if frames is None else int(frames), seconds)


def _sum(layout: Layout, manifest: Manifest, name: str) -> float | None:
    """Return the sum of a field of numbers, by its index; None if there is none."""
    entry = layout.find_index(manifest, name)
    if entry is None:
        return None
    return float(map_npy(layout.file(entry), manifest.schema[name].numpy_dtype, (manifest.samples,)).sum())
