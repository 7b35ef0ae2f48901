"""Describe a packed dataset by its manifest."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packer.jobs.result import Result
from packer.packed.browse.remote import browsed_folder
from shardspec.entries import total
from shardspec.errors import DatasetError
from shardspec.layout import layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.wording import counted, list_some, one_line, program


class GenerationNote(NamedTuple):
    """One addition to a dataset.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"write"``, ``"update"``, ``"retry"``, ``"convert"``, ``"copy"``, ``"merge"`` or ``"split"``.
    finished : str or None
        Time in UTC; None if it is not recorded.
    version : str or None
        The version of this project that made it.
    items, rejected, samples : int
        Counts of these items alone. A retried item counts if the retry packed it.
    replaced, gone : int
        Earlier items that were packed again, or dropped.
    removed : int
        Samples of these items, which were removed from the dataset.
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

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "GenerationNote":
        """Read an unchecked note of the wall clock."""
        texts = [note.get(name) for name in ("kind", "finished", "version")]
        kind, finished, version = (text if isinstance(text, str) else None for text in texts)
        numbers = [note.get(name) for name in ("items", "rejected", "samples", "replaced", "gone", "removed")]
        counts = (number if isinstance(number, int) else 0 for number in numbers)
        return cls(kind or "not known", finished, version, *counts)

    def describe(self) -> str:
        """Describe the facts."""
        gone = f", {self.replaced} replaced, {self.gone} gone ({counted(self.removed, 'sample')} removed)"
        when, kind, version = map(one_line, (self.finished or "time not known", self.kind, self.version or "not known"))
        return (
            f"{when}, {kind} by version {version}: "
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
    """

    path: Path | str
    manifest: Manifest
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON.

        Returns
        -------
        dict
            ``path``, ``format``, ``samples``, ``items``, ``packed_items``, ``rejected_items`` and the other counts
            summed over the generations, ``fields``, ``shards``, ``columns``, ``bytes``, ``digest``, ``about``,
            ``problem``, ``fingerprints``, ``history``, and ``recipe``, ``runtime`` and ``wall_clock`` of the last
            generation.
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
                {"field": column.field, "name": column.name, "bytes": column.bytes} for column in manifest.columns
            ],
            "bytes": manifest.stored_bytes,
            "digest": manifest.digest,
            "about": manifest.about.to_json(),
            "problem": self.problem,
            "fingerprints": [generation.fingerprint for generation in manifest.generations],
            "history": [note._asdict() for note in self.history],
            "recipe": dict(manifest.generations[-1].recipe),
            "runtime": dict(manifest.generations[-1].runtime),
            "wall_clock": dict(manifest.wall_clock),
        }

    @property
    def history(self) -> tuple[GenerationNote, ...]:
        """Additions in order: the first build, and each later one as it was then."""
        generations, clock = self.manifest.generations, self.manifest.wall_clock
        noted = clock.get("history")
        if isinstance(noted, list):
            return tuple(GenerationNote.of(note) for note in noted if isinstance(note, dict))
        # A convert, a merge and a split do not say when their inputs were packed.
        alone = len(generations) == 1 and "job" not in clock
        return tuple(
            GenerationNote.of(
                {
                    "kind": generation.kind,
                    "finished": clock.get("finished") if alone else None,
                    "version": generation.runtime.get("facepack"),
                    "items": generation.counts.items,
                    "rejected": generation.counts.rejected_items,
                    "samples": generation.counts.samples,
                }
            )
            for generation in generations
        )

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
            *([f"title: {one_line(manifest.about.title)}"] if manifest.about.title else []),
            *([f"license: {', '.join(manifest.about.license)}"] if manifest.about.license else []),
            *([f"problem: {self.problem} ({program()} verify looks for all)"] if self.problem else []),
            f"digest: {facts['digest']}",
            "fields:",
        ]
        for field in manifest.schema:
            shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
            extra = f", {counted(len(field.classes), 'class')}: {list_some(field.classes)}" if field.classes else ""
            extra += f", layout {field.layout}" if field.layout else ""
            extra += ", column" if field.name not in manifest.shard_schema else ""
            lines.append(f"  {field.name}: {field.kind} {field.dtype} {shape}, {field.codec.name}{extra}")
        return "\n".join(lines)


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
    path, problem = browsed_folder(dataset), ""
    layout = layout_at(path)
    manifest = layout.load()
    try:
        layout.check_sizes(manifest.entries if layout.is_local else manifest.files)
    except DatasetError as error:
        problem = str(error)
    return InspectReport(place_of(path), manifest, problem)
