"""``packer export``: write plain files of images or sound, and a table."""

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.samples import PackedSamples
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.browse.tracks import sound_rate
from packer.packed.export.names import NAMES, SOUNDS, SUFFIXES
from packer.packed.export.tables import TABLES, ExportTable
from packer.recipe.checks import checked
from packer.steps.encode import SOUND_FIELDS
from packer.workspace import Workspace
from packer.workspace.durable import fsync_folder, fsync_tree
from packer.workspace.folder import locked, output_folder, refuse_files
from readers.drawing.sound import sound_field
from readers.formats.machine import available_processors
from readers.staging.layout import dataset_folder
from shardspec.codecs import codec_for
from shardspec.errors import UsageError
from shardspec.fields import RESERVED
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.registry import import_target, resolve
from shardspec.schema import NO_CLASS, Field, NamedConfig
from shardspec.wording import counted, shorten

PATH_COLUMN = "path"
RECORD_NAME = "export.json"
"""The file that records what was exported, by which the same call finds the export finished."""

_STAGING = ".exporting"
"""Suffix of the hidden folder in which an export is written."""

PREFIX = "packed_"
"""Prefix of columns that ``packer build`` would write itself."""

_BATCH_ROWS = 64


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """Result of an export.

    Attributes
    ----------
    path : Path
    table : Path
        The table's file in the folder.
    samples, images : int
        Samples, and images, videos or sounds written as files.
    found_finished : bool
        Whether everything existed already, so that this call did nothing.
    noun : str
        What one of `images` is: ``"image"``, ``"sound"``, or ``"file"`` if there are videos.
    """

    path: Path
    table: Path
    samples: int
    images: int
    found_finished: bool = False
    noun: str = "image"

    def describe(self) -> str:
        """Describe the folder in one line."""
        done = "finished already, nothing was done: " if self.found_finished else ""
        return f"{self.path}: {done}{counted(self.samples, 'sample')}, {counted(self.images, self.noun)}, {self.table.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the folder and its counts as JSON."""
        counts = {"samples": self.samples, "images": self.images}
        return {"out": str(self.path), "table": str(self.table), **counts, "found_finished": self.found_finished}


def export(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    table: str = "csv",
    names: str = "key",
    sound: str = "wav",
    progress: bool | ProgressListener = True,
) -> ExportResult:
    """Write a packed dataset as plain files and a table that ``packer build`` can read.

    Files are named like ``<class>/<key>.jpg``, or as in the source. Encoded images and videos keep their stored bytes,
    raw images become PNG, and the sound of a video a WAV file. Packed sound files become WAV or FLAC, with every
    sample. The table has a column ``path``, the name of the class as ``label``, numbers and text unchanged,
    arrays as JSON and blobs as base64. A field that a build writes itself, such as ``key``, is called ``packed_key`` in
    the table, so that a new build keeps both.

    One call at a time writes into a folder next to `out`, which is renamed at the end. An interrupted export starts
    again. A file ``export.json`` records which dataset was exported, so that the same call does nothing a second time.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path
        A folder that is new, empty, or holds the same export.
    table : {"csv", "jsonl", "parquet"}
        Type of the table. Reading CSV turns a text column of integers into integers, and empty text into missing
        values. The other two types are exact.
    names : {"key", "source"}
        Whether to name files by class and key, or by the field ``source``, the path of the original in its
        source. If several samples come from one original, add the number of the frame or row. The suffix fits the
        stored image.
    sound : {"wav", "flac"}
        Type of the files of a dataset of sound.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    ExportResult

    Raises
    ------
    UsageError
        If the folder holds something other than this export, or an option is invalid.
    DatasetError
        If the dataset is damaged.
    BuildLockedError
        If another process exports into the same folder.
    BuildError
        If a file cannot be written.
    """
    source, target, listener = dataset_folder(dataset), output_folder(out), listener_of(progress)
    table_class = resolve("table", table, TABLES)
    checked("names", names, str, choices=tuple(NAMES))
    checked("sound", sound, str, choices=SOUNDS)
    manifest = Layout(source).load()
    record = {"digest": manifest.digest, "table": table, "names": names}
    is_of_sound = sound_field(manifest.schema) is not None
    has_videos = any(field.is_encoded_video for field in manifest.schema)
    noun = "sound" if is_of_sound else "file" if has_videos else ExportResult.noun
    if is_of_sound:
        record["sound"] = sound
    if target.resolve() == source.resolve():
        raise UsageError(
            place=target, expected="a folder outside the dataset", found="the dataset itself", hint="choose another"
        )
    refuse_files(target)
    if _is_written(target):
        return _find_finished(target, record, noun)
    samples = PackedSamples(source)
    with closing(samples.rows), _staged(target, listener.on_message) as folder:
        if _is_written(target):  # by a call that has just ended
            return _find_finished(target, record, noun)
        columns = _Columns(samples, names, manifest, sound)
        with closing(table_class(folder / f"table.{table}", columns.kinds())) as rows:
            images = _write(samples, folder, columns, rows, listener)
        document = {**record, "samples": len(samples), "images": images}
        (folder / RECORD_NAME).write_text(json.dumps(document) + "\n", "ascii")
    return ExportResult(target, target / f"table.{table}", len(samples), images, noun=noun)


class _SpaceBeside(Workspace):
    """Workspace next to its folder, which appears only at the end."""

    @property
    def out(self) -> Path:
        return self.root.with_name(self.root.name[1 : -len(_STAGING)])


@contextmanager
def _staged(target: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Hold the lock of an export's folder, and yield a folder that takes its place once the record is in it.

    Files of a killed call, whose lock no process holds any more, are removed.
    """
    space = _SpaceBeside(target.with_name(f".{target.name}{_STAGING}"))
    with locked(space, say) as lock:
        try:
            space.sweep()
            folder = space.attempt(space.root / "files")
            folder.mkdir()
            yield folder
            if (folder / RECORD_NAME).exists():
                fsync_tree(folder)  # a crash of the machine must not leave a finished export with empty files
                lock.check(at_once=True)
                os.replace(folder, target)
                fsync_folder(target.parent)
        finally:
            if not lock.is_lost:
                space.remove()


def _is_written(target: Path) -> bool:
    return target.exists() and any(target.iterdir())


def _find_finished(target: Path, record: Mapping[str, str], noun: str) -> ExportResult:
    try:
        found = json.loads((target / RECORD_NAME).read_bytes())
        digest, samples, images = found["digest"], int(found["samples"]), int(found["images"])
    except (OSError, ValueError, KeyError, TypeError):
        what = "something else"
    else:
        if all(found.get(name) == value for name, value in record.items()):
            return ExportResult(target, target / f"table.{record['table']}", samples, images, True, noun)
        chosen = " ".join(
            f"--{name} {shorten(found.get(name))}" for name in ("table", "names", "sound") if name in found
        )
        what = "an export of another dataset" if digest != record["digest"] else f"one with {chosen}".replace("'", "")
    raise UsageError(place=target, expected="a new or empty folder", found=what, hint="choose another folder")


def _write(
    samples: PackedSamples, root: Path, columns: "_Columns", table: ExportTable, listener: ProgressListener
) -> int:
    """Write images and rows, and return the number of images."""
    images = 0
    with (
        ThreadPoolExecutor(available_processors()) as pool,
        Stage(listener, "exporting", len(samples), "samples") as shown,
    ):
        for first in range(0, len(samples), _BATCH_ROWS):
            numbers = range(first, min(first + _BATCH_ROWS, len(samples)))
            encoded = samples.read_encoded(numbers)
            rows, files = [], []
            for place, number in enumerate(numbers):
                row, paths = columns.row({name: values[place] for name, values in encoded.items()}, number)
                rows.append(row)
                rate = int(encoded["audio_rate"][place]) if "audio_rate" in encoded else 0
                files += [(root / path, field, encoded[field.name][place], rate) for field, path in paths]
            for folder in {path.parent for path, *_ in files}:
                folder.mkdir(parents=True, exist_ok=True)
            for _ in pool.map(lambda file: columns.write(*file), files):
                images += 1
            table.write(rows)
            shown.advance(len(numbers))
    return images


class _Columns:
    """Turns samples into rows of the table, and names the files of their images and sounds."""

    def __init__(self, samples: PackedSamples, names: str, manifest: Manifest, sound: str) -> None:
        schema = samples.schema
        self._images = [field for field in schema if field.is_image or field.is_encoded_video]
        self._images.sort(key=lambda field: field.name not in ("image", "video"))
        self._rate = sound_rate(manifest) if any(field.is_encoded_video for field in schema) else None
        reserved, codec = RESERVED, self._images[0].codec.name if self._images else "raw"
        if (of_sound := sound_field(schema)) is not None:
            self._images, codec = [of_sound], sound
            reserved |= set(SOUND_FIELDS)
        self._codecs = {field.name: codec_for(field) for field in schema if field.kind == "text"}
        self._files = NAMES[names](samples, codec)
        # A missing value is null in the table, so that the column that marks it can be left out.
        self._marks = {f.name: mark for f in schema if f.is_small and (mark := schema.validity(f.name)) is not None}
        self._fields = [field for field in schema if field.name not in self._marks.values()]
        taken = {PATH_COLUMN, *schema.names} - reserved
        self._names: dict[str, str] = {}
        for field in self._fields:
            name = field.name if field not in self._images and not self._is_sound(field) else f"{field.name}_path"
            while name in reserved or name == PATH_COLUMN or (name != field.name and name in taken):
                name = PREFIX + name
            self._names[field.name] = PATH_COLUMN if field in self._images[:1] else name
            taken.add(name)

    def kinds(self) -> dict[str, str]:
        """Return each column with ``"text"`` or its dtype."""
        return {self._names[field.name]: self._kind(field) for field in self._fields}

    def row(self, encoded: Mapping[str, Any], number: int) -> tuple[dict[str, Any], list[tuple[Field, str]]]:
        """Return a sample's row of the table, and the paths of its images."""
        row: dict[str, Any] = {}
        stem, suffix = self._files.name(encoded, number)
        paths = [
            (field, f"{stem}.{field.name}{SUFFIXES[field.codec.name][0]}" if place else f"{stem}{suffix}")
            for place, field in enumerate(self._images)
        ]
        paths += [(field, f"{stem}.wav") for field in self._fields if self._is_sound(field)]
        where = {field.name: path for field, path in paths}
        for field in self._fields:
            mark = self._marks.get(field.name)
            known = mark is None or bool(encoded[mark])
            value = where.get(field.name) or (self._value(field, encoded[field.name]) if known else None)
            row[self._names[field.name]] = value
        return row, paths

    def _is_sound(self, field: Field) -> bool:
        """Return whether a field becomes a WAV file: the sound of a video."""
        return field.name == "audio" and self._rate is not None

    def write(self, path: Path, field: Field, data: Any, rate: int) -> None:
        """Write the file of an image, a video or a sound, which has its own `rate` if that is not 0."""
        if not field.is_image and not field.is_encoded_video:
            samples = np.atleast_2d(data if field.is_fixed else codec_for(field).decode(data))
            write: Any = import_target("packer.vision.sound.write:sound_bytes", what="sound", extra="pack")
            data = write(samples, rate or self._rate, path.suffix[1:])
        elif field.codec.name == "raw":
            image = data if field.is_fixed else codec_for(field).decode(data)
            data = codec_for(Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("png"))).encode(image)
        with path.open("xb") as file:
            file.write(data)

    def _kind(self, field: Field) -> str:
        single = field.is_scalar and not field.classes
        return field.dtype if single else "text"

    def _value(self, field: Field, data: Any) -> Any:
        if field.kind == "text":
            return self._codecs[field.name].decode(data) if field.codec.name == "utf8" else bytes(data).decode()
        if field.kind == "bytes" and len(field.shape) == 1:
            return base64.b64encode(data).decode()
        value = np.asarray(data) if field.is_fixed else codec_for(field).decode(data)
        if field.is_scalar:
            if field.classes and 0 <= value < len(field.classes):
                return field.classes[int(value)]
            if field.classes and value == NO_CLASS:
                return None  # as a text, a build of the table would take it for the name of a class
            return str(value) if field.classes else value.item()
        return json.dumps(value.tolist())
