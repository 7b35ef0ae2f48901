"""``packer preview``: a contact sheet of samples with their geometry."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.samples import PackedSamples
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.browse.columns import spread_over
from packer.packed.browse.dataset import BrowsedDataset
from packer.recipe.checks import checked
from packer.sources.stores.packed import partial_folder
from packer.vision.faults import describe_error
from packer.workspace.output import check_output, write_output
from readers.drawing.draw import draw
from readers.drawing.geometry import GEOMETRY
from readers.drawing.images import ImageFrames, Scale, as_array, as_image, normalisation_of
from readers.drawing.sheet import Sheet, columns_for
from readers.drawing.sound import draw_sound, sound_field
from readers.drawing.values import describe_value
from readers.seeding import check_seed, sample_rng
from readers.transforms import AnyTransform, call_transform, check_transform
from shardspec.columns import IntArray, evenly, missing_in
from shardspec.errors import UsageError
from shardspec.fields import is_mask_name
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest
from shardspec.registry import import_target
from shardspec.schema import Field, Schema
from shardspec.wording import LONG, counted, cut, did_you_mean, list_some, shorten

DEFAULT_COUNT = 64
DEFAULT_CELL = 224
"""Side in pixels of the square that each image is fitted into."""

_CHUNK = 64
_STRIP = 6
"""Frames of a video on a sheet."""
"""Samples read at once."""
_AS_STORED = Scale(())


@dataclass(frozen=True, repr=False)
class PreviewResult(Result):
    """A contact sheet, and the samples that it shows.

    Attributes
    ----------
    path : Path
        The file.
    rows : tuple of int
        Rows of the samples, in the order shown.
    """

    path: Path
    rows: tuple[int, ...]

    def describe(self) -> str:
        """Describe the sheet in one line."""
        rows = f"rows {min(self.rows)} to {max(self.rows)}"
        return f"{self.path}: {counted(len(self.rows), 'sample')}, {rows}, each above its key"

    def to_json(self) -> dict[str, Any]:
        """Return the sheet and its rows as JSON."""
        return {"out": str(self.path), "samples": len(self.rows), "rows": list(self.rows)}


def preview(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    count: int = DEFAULT_COUNT,
    all: bool = False,
    start: int | None = None,
    seed: int | None = None,
    columns: int | None = None,
    cell: int = DEFAULT_CELL,
    plain: bool = False,
    one_per: str | None = None,
    transform: str | AnyTransform | None = None,
    progress: bool | ProgressListener = True,
) -> PreviewResult:
    """Write a contact sheet of samples as PNG, replacing the file if it exists.

    ``landmarks``, ``hull``, ``regions`` and ``boxes`` are drawn onto the images, and masks (fields called ``mask``,
    ``*_mask`` or ``*_image``) tint them. `view` filters samples, and shows tracks, originals and rejected items.

    Parameters
    ----------
    dataset : path
        A packed dataset with an image or a sound in each sample. Sounds are drawn as waveform and spectrogram.
    out : path
        File of the sheet, ``.png``, in an existing folder outside the dataset.
    count : int
        Samples to show, at least 1, drawn evenly over the classes and from all over the dataset.
    all : bool
        Whether to ignore `count` and show all samples from `start` on.
    start : int, optional
        Show adjacent rows from this one on, at least 0.
    seed : int, optional
        Show rows drawn at random with this seed, in ascending order. Also the seed of `transform`.
    columns : int, optional
        Images per row of the sheet, at least 1; by default about as many as the sheet has rows.
    cell : int
        Side of the square that each image is fitted into, in pixels, at least 16.
    plain : bool
        Whether to leave out geometry and masks.
    one_per : str, optional
        Show the middle sample of each value of this field of text or single values, such as of each video
        (``source``).
    transform : str or callable, optional
        A transform of `readers`, or its name as ``"module:name"``. Show the samples as they leave it in epoch 0, with
        the random draws of a `readers.Loader` with this seed (0 by default). Normalised images are shown as they were
        before.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    PreviewResult

    Raises
    ------
    UsageError
        If nothing can be shown, the transform fails, or the sheet would be too large, or its folder cannot be written.
    BuildError
        If the disk is full.
    DatasetError
        If the dataset cannot be read.
    """
    path, sheet_path = partial_folder(dataset), given_path("out", out)
    check_output(sheet_path, ".png", datasets=[path])
    given, count = checked("start", start, int | None, minimum=0), checked("count", count, int, minimum=1)
    cell, columns = checked("cell", cell, int, minimum=16), checked("columns", columns, int | None, minimum=1)
    seed = checked("seed", seed, int | None, minimum=0)
    all, plain = checked("all", all, bool), checked("plain", plain, bool)
    one_per = checked("one_per", one_per, str | None)
    most, start = None if all else count, given or 0
    augment = None if transform is None else _Augmentation(transform, seed or 0)
    manifest = Layout(path).load()
    field, captioned = shown_field(manifest.schema, path), _captioned(manifest)
    shown, see = field.name, as_image if field.is_image or field.is_encoded_video else _see_sound
    wanted = [shown, *_wanted(manifest.schema, captioned, geometry=not plain)]
    samples = PackedSamples(path, list(dict.fromkeys(wanted)) if augment is None else None)
    is_spread = given is None and seed is None and not all
    browsed = BrowsedDataset(path) if is_spread or one_per is not None else None
    found = np.arange(len(samples)) if browsed is None or one_per is None else _one_per(browsed, one_per)
    if browsed is not None and is_spread:
        places = sorted(spread_over(browsed.labels()[found], count))
    else:
        places = _choose(len(found), most, start, seed)
    rows = [int(found[place]) for place in places]
    if not rows:
        raise UsageError(place=path, expected=f"samples from row {start} on", found=f"{len(found)} in all")
    sheet = _new_sheet(len(rows), columns, cell)
    with Stage(listener_of(progress), "drawing", len(rows), "samples") as stage:
        for first in range(0, len(rows), _CHUNK):
            chunk = rows[first : first + _CHUNK]
            read = [_strip(one, manifest.schema) for one in samples.read(chunk)]
            if augment is None:
                images = [draw(one, see(one[shown], shown), _AS_STORED, cell, shown, plain=plain) for one in read]
            else:
                images = augment.draw(read, chunk, shown, cell, see, plain=plain)
            for place, (sample, image) in enumerate(zip(read, images, strict=True), first):
                sheet.put(place, image, _caption(sample, samples.schema, rows[place], captioned))
                stage.advance()
    _write(sheet, sheet_path)
    return PreviewResult(sheet_path, tuple(rows))


def shown_field(schema: Schema, path: Path) -> Field:
    """Return the field ``image``, or else the first field of images, of videos, or of sound."""
    images = [field for field in schema if field.is_image] + [field for field in schema if field.is_encoded_video]
    sound = sound_field(schema)
    images += [] if sound is None else [sound]
    if not images:
        raise UsageError(place=path, expected="a field with images or sound", found=", ".join(schema.names))
    return next((field for field in images if field.name in ("image", "video")), images[0])


def _strip(sample: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Return a sample with a few frames of its videos, from the first to the last, and their values."""
    in_time = [name for name in sample if schema[name].is_encoded_video or schema[name].in_time]
    return {
        **sample,
        **{name: [sample[name][at] for at in evenly(len(sample[name]), _STRIP)] for name in in_time},
    }


def _see_sound(value: Any, name: str) -> ImageFrames:
    return as_image(draw_sound(as_array(value)), name)


def _one_per(dataset: BrowsedDataset, one_per: str) -> IntArray:
    """Return the middle row of each value of a field."""
    if one_per not in dataset.small_fields:
        known = list_some(dataset.small_fields)
        like = did_you_mean(one_per, dataset.small_fields)
        raise UsageError(
            option="one_per",
            expected=f"a field of text or single values, of {known}",
            found=f"{shorten(one_per)}{like}",
        )
    column = dataset.column(one_per)
    rows = np.flatnonzero(~missing_in(column))
    _, groups, sizes = np.unique(np.ma.getdata(column)[rows], return_inverse=True, return_counts=True)
    by_group = np.argsort(groups, kind="stable")
    middle: IntArray = rows[by_group[np.cumsum(sizes) - sizes + (sizes - 1) // 2]]
    return np.sort(middle)


def _new_sheet(count: int, columns: int | None, cell: int) -> Sheet:
    across = min(count, columns or columns_for(count))
    return Sheet(across, -(-count // across), cell)


def _write(sheet: Sheet, path: Path) -> None:
    file = io.BytesIO()
    sheet.image.save(file, "PNG")
    write_output(path, file.getvalue())


class _Augmentation:
    """Draws samples as they leave a transform. The first chunk decides how floating point values become pixels."""

    def __init__(self, transform: str | AnyTransform, seed: int) -> None:
        found = import_target(transform, what="--transform") if isinstance(transform, str) else transform
        check_transform("transform", found)
        self._transform: AnyTransform = found
        self._seed = check_seed(seed)
        self._scale: Scale | None = None

    def draw(
        self,
        samples: Sequence[Mapping[str, Any]],
        rows: Sequence[int],
        field: str,
        cell: int,
        see: Callable[[Any, str], ImageFrames],
        *,
        plain: bool,
    ) -> list[npt.NDArray[np.uint8]]:
        changed = [self._changed(sample, row, field) for sample, row in zip(samples, rows, strict=True)]
        images = [see(sample[field], field) for sample in changed]
        if self._scale is None:
            self._scale = Scale([picture.frames for picture in images], *normalisation_of(self._transform))
        return [
            draw(sample, picture, self._scale, cell, field, plain=plain)
            for sample, picture in zip(changed, images, strict=True)
        ]

    def _changed(self, sample: Mapping[str, Any], row: int, field: str) -> dict[str, Any]:
        own = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        try:
            changed = call_transform(self._transform, own, sample_rng(self._seed, 0, row))
        except Exception as error:
            raise UsageError(f"{cut(describe_error(error), LONG)} (row {row})", option="transform") from error
        if not isinstance(changed, dict) or field not in changed:
            found = list_some(list(map(str, changed))) if isinstance(changed, dict) else type(changed).__name__
            raise UsageError(option="transform", expected=f"a sample with the field {field!r}", found=found)
        return changed


def _wanted(schema: Schema, captioned: Sequence[str], geometry: bool) -> list[str]:
    names = ["key", "source", "frame", "label", "landmarks_valid", *captioned]
    names += [*GEOMETRY, *filter(is_mask_name, schema.names)] if geometry else []
    names += [mark for name in names if (mark := schema.validity(name)) is not None]
    return [name for name in names if name in schema]


def _captioned(manifest: Manifest) -> list[str]:
    """Return the added columns that captions show: text and single values."""
    fields = [manifest.schema[column.field] for column in manifest.columns]
    return [field.name for field in fields if field.kind == "text" or field.is_scalar]


def _choose(total: int, count: int | None, start: int, seed: int | None) -> list[int]:
    left = max(0, total - start)
    number = left if count is None else min(count, left)
    if seed is None:
        return list(range(start, start + number))
    drawn = np.random.Generator(np.random.PCG64(seed)).choice(left, number, replace=False)
    return sorted((start + drawn).tolist())


def _caption(sample: Mapping[str, Any], schema: Schema, row: int, columns: Sequence[str]) -> list[str]:
    """Return the key (or the row), then class, source, frame and the values of `columns`, without missing values."""
    sample = {name: value for name, value in sample.items() if sample.get(schema.validity(name) or "", True)}
    lines, below = [str(sample.get("key", f"row {row}"))], []
    if "label" in sample:
        below.append(_value(schema["label"], sample["label"]))
    if "source" in sample:
        below.append(str(sample["source"]))
    if "frame" in sample and np.ndim(sample["frame"]) == 0:
        below.append(f"frame {int(sample['frame'])}")
    further = (name for name in columns if name in sample and name not in ("label", "source", "frame"))
    below += [_value(schema[name], sample[name]) for name in further]
    return [*lines, ", ".join(below)] if below else lines


def _value(field: Field, value: Any) -> str:
    text = describe_value(value, field.classes)
    return text if field.classes is not None and text in field.classes else f"{field.name} {text}"
