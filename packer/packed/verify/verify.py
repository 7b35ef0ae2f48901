"""``packer verify``: compare a packed dataset with its manifest."""

import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.verify.shard import check_keys, check_shard
from packer.recipe.checks import checked
from packer.workspace.scratch import TemporaryFiles
from readers.formats.indexed import IndexedReader, storage_of
from readers.formats.machine import available_processors
from readers.formats.mapping import without_advice
from readers.formats.npy import map_npy
from readers.formats.shards import open_shard
from readers.staging.folder import CacheFolder
from readers.staging.layout import cache_folder, dataset_layout
from shardspec.entries import CARD_NAME, Column, FileEntry, Shard, total
from shardspec.errors import DatasetChangedError, DatasetError, MissingDependencyError, StoreError, system_reason
from shardspec.formats import FORMATS
from shardspec.layout import (
    BUILD_FOLDER,
    INDEX_FOLDER,
    ITEMS_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    Layout,
    given_path,
    is_url,
)
from shardspec.manifest import Manifest
from shardspec.stores import local_path
from shardspec.wording import counted

_TICK_S = 1.0
"""Longest time between two reports of progress."""

_CONTRADICTS = "the manifest contradicts this file, whose digest it has"


@dataclass(frozen=True, repr=False)
class VerifyReport(Result):
    """Result of a comparison with the manifest: the files compared, and every difference.

    Attributes
    ----------
    path : Path or str
        The dataset's folder as given, or its URL.
    deep : bool
        Whether every value was decoded.
    files, shards, samples, bytes : int
        The numbers that the manifest names.
    digest : str
        The dataset's identity, by its manifest.
    unlisted : tuple of str
        Names in the folder that the manifest does not mention. They are not part of the dataset, and not a problem.
    problems : tuple of str
        Empty if the dataset matches its manifest.
    build : str or None
        Description of the working folder of a build, if one is left; otherwise None.
    columns : int
        Number of added fields.
    """

    path: Path | str
    deep: bool
    files: int
    shards: int
    samples: int
    bytes: int
    digest: str
    unlisted: tuple[str, ...]
    problems: tuple[str, ...]
    build: str | None = None
    columns: int = 0

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def describe(self) -> str:
        """Return all problems; if there are none, what was compared and what else is in the folder."""
        if self.problems:
            listed = "".join(f"\n  {problem}" for problem in self.problems)
            return f"{self.path}: {counted(len(self.problems), 'problem')}:{listed}"
        how = "every value decoded" if self.deep else "--deep decodes every value as well"
        columns = f" and {counted(self.columns, 'column')}" if self.columns else ""
        text = (
            f"{self.path}: {counted(self.samples, 'sample')} in {counted(self.shards, 'shard')}{columns}, "
            f"{counted(self.files, 'file')}, {self.bytes / 1e6:.1f} MB as the manifest says ({how})"
        )
        if self.unlisted:
            text += f"\nnot part of the dataset: {', '.join(self.unlisted)}"
        if self.build is not None:
            text += f"\n{BUILD_FOLDER} holds {self.build}; to drop it, delete {BUILD_FOLDER}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        values = {name: value for name, value in vars(self).items() if name != "build"}
        values |= {"path": str(self.path), "unlisted": list(self.unlisted)}
        return {**values, "ok": self.ok, "problems": list(self.problems)}


def verify(
    dataset: str | os.PathLike[str], *, deep: bool = False, progress: bool | ProgressListener = True
) -> VerifyReport:
    """Compare every file of a packed dataset with its manifest, by size and SHA-256, and the manifest with itself.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or a URL. From a store, every file is downloaded again, whatever the cache holds.
    deep : bool
        Whether to decode every value of every sample, too, and check shapes, dtypes, ranges, that keys are unique, and
        that the index equals the shards. Of a damaged shard, the samples that cannot be read are named.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    VerifyReport

    Raises
    ------
    DatasetError
        If there is no readable manifest, or if another dataset replaced this one meanwhile. Everything else is in the
        report.
    StoreError
        If a store cannot be read.
    MissingDependencyError
        If a library that reads the format is not installed.
    """
    listener, deep = listener_of(progress), checked("deep", deep, bool)
    with _stored(dataset) as layout:
        return _verify(layout, deep, listener)


@contextmanager
def _stored(dataset: str | os.PathLike[str]) -> Iterator[Layout]:
    """Yield the layout of a dataset. Files in a store are downloaded to a cache that is new and deleted afterwards."""
    given = local_path(dataset) if isinstance(dataset, str) else dataset
    if not isinstance(given, str) or not is_url(given):
        yield Layout(given_path("dataset", given))
        return
    folder = CacheFolder(cache_folder())
    folder.make()
    fresh = TemporaryFiles(folder.root)
    try:
        yield dataset_layout(given, cache=fresh.path, name="dataset")
    finally:
        fresh.close()


def _verify(layout: Layout, deep: bool, listener: ProgressListener) -> VerifyReport:
    manifest = layout.load()
    if FORMATS[manifest.format].stored is not None:
        storage_of(manifest.format)  # a library that this machine lacks is not a problem of the dataset
    entries = manifest.entries
    problems: dict[str, str] = {}
    with (
        Stage(listener, "hashing", len(entries), "files") as stage,
        closing(_parallel(lambda entry: _check_file(layout, entry), entries, stage)) as results,
    ):
        for entry, found in results:
            if found:
                problems[entry.name] = found
            stage.advance()
    listed = [problems[entry.name] for entry in entries if entry.name in problems]
    whole = [part for part in manifest.parts if not any(entry.name in problems for entry in part.files)]
    listed += _check_manifest(layout, manifest)
    doubted = {part.name: text for part in whole if (text := _check_open(layout, manifest, part))}
    listed += doubted.values()
    listed += _check_files(layout, manifest, problems)
    if deep:
        parts = [part for part in manifest.parts if part.name not in doubted]
        listed += _check_deep(layout, manifest, parts, problems, listener)
    if listed and layout.load().entries != manifest.entries:
        raise DatasetError(
            place=layout.shown,
            expected="one dataset all the time",
            found="that another took its place meanwhile",
            hint="run the command again",
        )
    sizes = sum(entry.bytes for entry in entries)
    unlisted = _unlisted(layout, entries) if layout.is_local else ()
    listed = [text.replace(str(layout.root), layout.shown) for text in listed]
    return VerifyReport(
        layout.root if layout.is_local else layout.shown,
        deep,
        len(entries),
        len(manifest.shards),
        manifest.samples,
        sizes,
        manifest.digest,
        unlisted,
        tuple(dict.fromkeys(listed)),
        layout.describe_build() if BUILD_FOLDER in unlisted else None,
        len(manifest.columns),
    )


def _parallel(
    check: Callable[[Any], Any], subjects: Iterable[Any], stage: Stage
) -> Generator[tuple[Any, Any], None, None]:
    """Yield ``(subject, check(subject))`` as the checks end, in threads: hashing and decoding release the GIL.

    Closing the generator cancels the checks that have not begun.
    """
    pool = ThreadPoolExecutor(available_processors())
    try:
        futures = {pool.submit(check, subject): subject for subject in subjects}
        left = set(futures)
        while left:
            done, left = wait(left, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            if not done:
                stage.advance(0)
            for future in done:
                yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _check_file(layout: Layout, entry: FileEntry) -> str:
    try:
        release = layout.hold([entry])
        try:
            layout.check_digest(entry)
        finally:
            release()
    except (StoreError, DatasetChangedError):
        raise
    except DatasetError as error:
        return str(error)
    except OSError as error:
        return f"{layout.file(entry)}: expected a file that can be read, found: {system_reason(error)}"
    return ""


def _check_manifest(layout: Layout, manifest: Manifest) -> Iterator[str]:
    """Check that facts that the manifest states twice agree."""
    names = Counter(shard.name for shard in manifest.shards)
    for name in (name for name, count in names.items() if count > 1):
        yield f"{layout.manifest}: expected every shard once, found {name} {names[name]} times"
    for shard in manifest.shards:
        own = layout.shard(shard, manifest.format).name
        if not any(entry.name.split("/")[0] == own for entry in shard.files):
            yield f"{layout.manifest}: shard {shard.name}: expected {own} among its files, found none of that name"
    index = {entry.own_name for entry in manifest.files if entry.own_name.startswith(f"{INDEX_FOLDER}/")}
    expected = {f"{INDEX_FOLDER}/{field.name}.npy" for field in manifest.shard_schema if field.is_scalar}
    for name in sorted(index ^ expected):
        what = "expected an index of this field, found none" if name in expected else "there is no such scalar field"
        yield f"{layout.root / name}: {what}"


def _check_open(layout: Layout, manifest: Manifest, shard: Shard | Column) -> str:
    """Check that a shard, or column, with the right digest opens and has the samples that it should have."""
    release = layout.hold(shard.files)
    try:
        reader = open_shard(layout, manifest, shard)
        if isinstance(reader, IndexedReader):
            reader.check_index()
        reader.close()
    except MissingDependencyError as error:
        return str(error)
    except DatasetError as error:
        return (
            f"{without_advice(error)}: its SHA-256 matches, so the manifest's other entries for it are wrong: "
            "edited later, or written wrong"
        )
    finally:
        release()
    return ""


def _check_files(layout: Layout, manifest: Manifest, problems: dict[str, str]) -> Iterator[str]:
    """Check shapes and dtypes of the index, and the lines of the reports against the counts."""
    layout.require(entry for entry in manifest.files if entry.name not in problems)
    for field in manifest.schema:
        entry = layout.find_index(manifest, field.name)
        if entry is None or entry.name in problems or not field.is_scalar:
            continue
        try:
            map_npy(layout.file(entry), field.numpy_dtype, (manifest.samples,))
        except DatasetError as error:
            yield f"{without_advice(error)}: {_CONTRADICTS}"
    counts = total(manifest.generations)
    entry = manifest.find_file(ITEMS_NAME)
    if entry is not None and entry.name not in problems:
        path = layout.file(entry)
        items = Counter(line.get("state") for line in _lines(path))
        found_items = (items.total() - items["gone"] - items["removed"], items["packed"], items["rejected"])
        if found_items != (counts.items, counts.packed_items, counts.rejected_items):
            yield (
                f"{path}: expected {counts.items} items, {counts.packed_items} packed and {counts.rejected_items} "
                f"rejected, found {found_items[0]}, {found_items[1]} and {found_items[2]}: {_CONTRADICTS}"
            )
    entry = manifest.find_file(REJECTS_NAME)
    if entry is not None and entry.name not in problems:
        path = layout.file(entry)
        kinds = Counter(line.get("kind") for line in _lines(path))
        if (kinds["item"], kinds["damage"]) != (counts.rejected_items, counts.damaged_items):
            yield (
                f"{path}: expected {counts.rejected_items} rejects and {counts.damaged_items} damaged items, "
                f"found {kinds['item']} and {kinds['damage']}: {_CONTRADICTS}"
            )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a report. A line that is not an object counts as an empty object."""
    with path.open("rb") as file:
        for line in file:
            try:
                document = json.loads(line)
            except ValueError:
                document = None
            yield document if isinstance(document, dict) else {}


def _check_deep(
    layout: Layout,
    manifest: Manifest,
    parts: list[Shard | Column],
    problems: dict[str, str],
    listener: ProgressListener,
) -> list[str]:
    ends = np.cumsum([shard.samples for shard in manifest.shards]).tolist()
    starts = {shard.name: end - shard.samples for shard, end in zip(manifest.shards, ends, strict=True)}
    starts |= {column.name: 0 for column in manifest.columns}
    scalars = [field.name for field in manifest.shard_schema if field.is_scalar]
    found_index = {name: _usable_index(layout, manifest, name, problems) for name in scalars}
    index = {name: values for name, values in found_index.items() if values is not None}
    faults: dict[str, list[str]] = {}
    keys: dict[str, Any] = {}

    def check(part: Shard | Column) -> tuple[list[str], Any]:
        return check_shard(layout, manifest, part, starts[part.name], index if isinstance(part, Shard) else {})

    shards = [part for part in parts if isinstance(part, Shard)]
    with (
        Stage(listener, "decoding", sum(shard.samples for shard in shards), "samples") as stage,
        closing(_parallel(check, parts, stage)) as results,
    ):
        for part, (found, digests) in results:
            faults[part.name], keys[part.name] = found, digests
            stage.advance(part.samples if isinstance(part, Shard) else 0)  # a column has values of the same samples
    ordered = [text for part in parts for text in faults[part.name]]
    if "key" in manifest.shard_schema:
        ordered += check_keys([(shard, starts[shard.name], keys[shard.name]) for shard in shards], layout, manifest)
    return ordered


def _usable_index(layout: Layout, manifest: Manifest, name: str, problems: dict[str, str]) -> Any:
    """Map the index of a field; return None if there is none, or it is unusable."""
    entry = layout.find_index(manifest, name)
    if entry is None or entry.name in problems:
        return None
    try:
        return map_npy(layout.file(entry), manifest.schema[name].numpy_dtype, (manifest.samples,))
    except DatasetError:
        return None


def _unlisted(layout: Layout, entries: Sequence[FileEntry]) -> tuple[str, ...]:
    known = {entry.name.split("/")[0] for entry in entries} | {MANIFEST_NAME, CARD_NAME}
    return tuple(sorted(path.name for path in layout.root.iterdir() if path.name not in known))
