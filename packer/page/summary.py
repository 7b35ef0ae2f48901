"""Summarize a dataset for a page: content and origin, sizes, and warnings."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from packer.packed.browse.columns import MAX_TEXTS
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.inspect.inspect import InspectReport
from packer.packed.inspect.leaks import find_leaks
from packer.page.counts import megabytes
from packer.recipe.command_line import changed_options, option_words
from readers.drawing.values import printable
from shardspec.columns import allocate, evenly, fill_missing
from shardspec.entries import Generation, total
from shardspec.errors import ShardspecError, UsageError
from shardspec.schema import Field
from shardspec.wording import counted, list_some, shorten

_SIZED, _SIZED_REMOTE = 2000, 100
"""Number of samples whose bytes are measured."""
_UNEVEN = 10
"""Warn if the largest class has this many times the samples of the smallest."""
_MANY_REJECTS = 0.05


def describe(dataset: BrowsedDataset) -> dict[str, Any]:
    """Return the facts of a dataset, for the template."""
    manifest = dataset.manifest
    counts = total(manifest.generations)
    fields, estimated = _field_sizes(dataset)
    beside = [
        (counts.frames_without_sample, "frames of packed items without a sample"),
        (counts.damaged_items, "damaged videos, packed up to the damage"),
        (counts.ignored_files, "other files ignored"),
        (counts.progressive_jpegs, "samples from progressive JPEGs"),
    ]
    stated = {"title": manifest.about.title or "", "licence": ", ".join(manifest.about.license)}
    return {
        "stated": {name: printable(text) for name, text in stated.items() if text},
        "path": printable(str(dataset.place)),
        "name": printable(dataset.name),
        "samples": len(dataset),
        "counts": counts,
        "beside": [(count, what) for count, what in beside if count],
        "format": manifest.format,
        "shards": counted(len(manifest.shards), "shard"),
        "bytes": megabytes(manifest.stored_bytes),
        "digest": manifest.digest,
        "history": InspectReport(dataset.path, manifest).history,
        "recipes": [_made(generation) for generation in manifest.generations[-5:]],
        "fields": fields,
        "estimated": estimated,
    }


def _field_sizes(dataset: BrowsedDataset) -> tuple[list[dict[str, str]], int]:
    """Return every field with its encoded bytes, and the number of samples they are estimated from; 0 if exact."""
    rows = evenly(len(dataset), _SIZED_REMOTE if dataset.is_remote else _SIZED)
    if dataset.sample is not None:
        rows = dataset.sample
    varying = [field for field in dataset.schema if not field.is_fixed]
    sums = dict.fromkeys((field.name for field in varying), 0)
    for start in range(0, len(rows), 500) if varying else ():
        some = rows[start : start + 500]
        out = allocate(varying, len(some))
        dataset.pool.read(some, [field.name for field in varying], out, np.arange(len(some)))
        for name in sums:
            sums[name] += sum(len(value) for value in out[name])
    whole = len(rows) == len(dataset)
    sizes = []
    for field in dataset.schema:
        if field.is_fixed:
            bytes = field.row_bytes * len(dataset)
        else:
            bytes = round(sums[field.name] * len(dataset) / max(1, len(rows)))
        about = "" if field.is_fixed or whole else "about "
        joined = ", joined" if field.name in dataset.joined else ""
        sizes.append({"name": field.name, "kind": _kind(field) + joined, "bytes": about + megabytes(bytes)})
    return sizes, 0 if whole or not varying else len(rows)


def find_faults(dataset: BrowsedDataset) -> Iterator[str]:
    """Yield warnings, one line each."""
    counts = total(dataset.manifest.generations)
    if counts.items and counts.rejected_items > _MANY_REJECTS * counts.items:
        share = 100 * counts.rejected_items / counts.items
        yield f"{counts.rejected_items} of {counts.items} items were rejected ({share:.0f} %)"
    if counts.damaged_items:
        yield f"{counted(counts.damaged_items, 'video')} could be read only up to some frame"
    if counts.progressive_jpegs:
        many = counted(counts.progressive_jpegs, "image")
        yield f"{many} came as progressive JPEGs: where they are stored as they came, they decode slowly"
    yield from _uneven_classes(dataset)
    valid = "landmarks_valid" in dataset.small_fields and dataset.field("landmarks_valid").dtype == "|b1"
    if valid and len(dataset):
        wrong = len(dataset) - int(np.count_nonzero(dataset.numbers("landmarks_valid")))
        if wrong:
            yield f"{counted(wrong, 'sample')} without valid landmarks"
    yield from _repeats(dataset)


def find_shared(datasets: Sequence[BrowsedDataset]) -> Iterator[str]:
    """Yield a warning about sources that occur in several datasets, because a test on such data is meaningless."""
    with_source = [dataset for dataset in datasets if "source" in dataset.schema]
    if len(with_source) < 2:
        return
    far = sum(part.bytes for dataset in with_source if dataset.is_remote for part in dataset.manifest.parts)
    if far:
        yield f"not compared: the sources of these datasets, which may need a download of {megabytes(far)}"
        return
    try:
        found = find_leaks([dataset.path for dataset in with_source], by="source", progress=False).found
    except ShardspecError as error:
        yield printable(str(error))
        return
    if found:
        named = list_some([printable(shorten(leak.group)) for leak in found], 5)
        yield f"{counted(len(found), 'source')} in more than one of these datasets: {named}"


def _uneven_classes(dataset: BrowsedDataset) -> Iterator[str]:
    if not dataset.classes or "label" not in dataset.small_fields:
        return
    classes = len(dataset.classes)
    labels = fill_missing(dataset.column("label"))
    sizes = np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
    empty = [name for name, size in zip(dataset.classes, sizes.tolist(), strict=True) if not size]
    if empty:
        which = "class" if len(empty) == 1 else counted(len(empty), "class")
        yield f"no sample of {which} {list_some(empty)}"
    there = np.flatnonzero(sizes)
    if len(there) > 1 and sizes[there].max() >= _UNEVEN * sizes[there].min():
        most, least = (dataset.classes[int(there[pick(sizes[there])])] for pick in (np.argmax, np.argmin))
        yield (
            f"classes of very different size: {sizes[there].max()} samples of {printable(most)}, "
            f"{sizes[there].min()} of {printable(least)}"
        )


def _repeats(dataset: BrowsedDataset) -> Iterator[str]:
    """Yield warnings about repeated keys, sources that may be copies, and a source with most of the samples."""
    if len(dataset) > MAX_TEXTS or dataset.is_remote:
        return
    if "key" in dataset.schema and dataset.schema["key"].kind == "text":
        keys = dataset.texts("key")
        count = len(dataset) - len(keys.names)
        if count:
            example = keys.names[int(np.argmax(np.bincount(keys.codes) > 1))]
            yield f"{counted(count, 'sample')} with the key of an earlier one, such as {printable(shorten(example))}"
    with_source = "source" in dataset.small_fields and dataset.field("source").kind == "text"
    if not with_source or not len(dataset):
        return
    texts = dataset.texts("source")
    folders: dict[str, list[str]] = {}
    for name in texts.names.tolist():
        folders.setdefault(PurePosixPath(name).name, []).append(name)
    alike = [names for names in folders.values() if len(names) > 1]
    if alike:
        pair = " and ".join(shorten(name) for name in alike[0][:2])
        yield (
            f"{counted(len(alike), 'file name')} in several folders, perhaps copies of one recording: {printable(pair)}"
        )
    counts = np.bincount(texts.codes)
    most = int(counts.max())
    if len(texts.names) > 1 and most > len(dataset) / 2:
        name = texts.names[int(counts.argmax())]
        yield f"more than half of the samples ({most}) come from one source, {printable(shorten(name))}"


def _made(generation: Generation) -> dict[str, Any]:
    return {
        "command": f"{generation.kind} {_options(generation.recipe)}".strip(),
        "runtime": [
            (printable(str(name)), printable(str(version))) for name, version in sorted(generation.runtime.items())
        ],
        "fingerprint": generation.fingerprint,
    }


def _options(recipe: Mapping[str, Any]) -> str:
    options = changed_options(recipe)
    try:
        text = shlex.join(option_words(options))
    except UsageError:
        text = json.dumps(options)
    return printable(text)


def _kind(field: Field) -> str:
    shape = " × ".join("?" if axis is None else str(axis) for axis in field.shape)
    if field.kind == "text":
        return "text" if field.codec.name == "utf8" else field.codec.name
    if field.is_image:
        return f"{'raw' if field.is_fixed else field.codec.name} image, {shape}"
    classes = f", {counted(len(field.classes), 'class')}" if field.classes else ""
    return f"{field.numpy_dtype.name}{', ' + shape if shape else ''}{classes}"
