"""``packer preview``: a contact sheet of samples with their geometry or of rejected items, or an animated track."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.samples import PackedSamples
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.animation import animate
from packer.packed.browse.columns import spread_over
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.browse.originals import Originals
from packer.packed.browse.remote import browsed_folder
from packer.packed.browse.tracks import pauses_ms, sound_of, track_rows
from packer.packed.rejects import planned, report_lines
from packer.recipe.checks import checked
from packer.vision.faults import describe_error
from packer.vision.geometry.resize import resize_exact
from packer.workspace.output import check_output, write_output
from readers.drawing.geometry import GEOMETRY
from readers.drawing.images import Scale, as_image, normalisation_of
from readers.drawing.sheet import Sheet, columns_for, draw_sample, fit
from readers.drawing.show import draw_values
from readers.drawing.values import describe_value
from readers.seeding import check_seed, sample_rng
from readers.transforms import AnyTransform, call_transform, check_transform
from shardspec.columns import IntArray, missing_in
from shardspec.errors import ItemError, NotADatasetError, UsageError
from shardspec.layout import Layout, given_path
from shardspec.manifest import Manifest
from shardspec.registry import import_target
from shardspec.schema import Field, Schema
from shardspec.wording import LONG, counted, cut, did_you_mean, list_some, shorten

DEFAULT_COUNT = 64
_ANIMATED = ".webp"
DEFAULT_CELL = 224
"""Side in pixels of the square that each image is fitted into."""

_MASKS = ("beside", "over")
_NOTHING = 56
"""Grey level of an item that does not decode."""
_CHUNK = 64
"""Samples read at once."""


@dataclass(frozen=True, repr=False)
class PreviewResult(Result):
    """A contact sheet or an animation, and the samples that it shows.

    Attributes
    ----------
    path : Path
        The file.
    rows : tuple of int
        Rows of the samples, in the order shown.
    items : tuple of str
        The rejected items, if the sheet shows them instead.
    """

    path: Path
    rows: tuple[int, ...]
    items: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the sheet in one line."""
        if self.items:
            return f"{self.path}: {counted(len(self.items), 'rejected item')}, each above its name and reason"
        rows = f"rows {min(self.rows)} to {max(self.rows)}"
        if self.path.suffix.lower() == _ANIMATED:
            return f"{self.path}: a track of {counted(len(self.rows), 'sample')}, {rows}"
        return f"{self.path}: {counted(len(self.rows), 'sample')}, {rows}, each above its key"

    def to_json(self) -> dict[str, Any]:
        """Return the sheet and its rows as JSON."""
        facts = {"out": str(self.path), "samples": len(self.rows), "rows": list(self.rows)}
        return {**facts, "items": list(self.items)} if self.items else facts


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
    where: str | None = None,
    one_per: str | None = None,
    track: int | None = None,
    masks: str | None = None,
    rejects: bool = False,
    source: str | os.PathLike[str] | None = None,
    transform: str | AnyTransform | None = None,
    progress: bool | ProgressListener = True,
) -> PreviewResult:
    """Write a contact sheet of samples as PNG, or a track as animated WebP, replacing the file if it exists.

    Parameters
    ----------
    dataset : path
        A packed dataset with an image in each sample.
    out : path
        File of the sheet, ``.png``, or of the animation, ``.webp``, in an existing folder outside the dataset.
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
        Whether to leave out landmarks, hull and regions.
    where : str, optional
        Show only the samples that meet an expression, as `readers.PackedDataset.where` takes it: ``"label == 'fake'"``.
    one_per : str, optional
        Show the middle sample of each value of this field of text or single values, such as of each video
        (``source``).
    track : int, optional
        Write an animation of the samples that have the same source and track as the sample in this row, in the order of
        their frames and at their pace. If the dataset has ``audio``, the waveform is drawn below. Of the other options
        `cell`, `plain`, `masks`, `transform` and `seed` apply.
    masks : {"beside", "over"}, optional
        How to show masks and other extra images of the sample: next to its image, or as a tint of it where they are not
        black. Label maps get a colour for each value. By default, do not show them.
    rejects : bool
        Whether to show rejected items instead of samples, read from `source`, each above its name and reason. Only
        `count`, `all`, `start`, `columns` and `cell` apply to them.
    source : path, optional
        The folder or archive that the dataset was packed from. Required with `rejects`.
    transform : str or callable, optional
        A transform of `readers`, or its name as ``"module:name"``. Show the samples as they leave it in epoch 0, with
        the random draws of a `readers.Loader` with this seed (0 by default). Fields named as masks tint the images;
        normalised images are shown as they were before.
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
    path, sheet_path = browsed_folder(dataset), given_path("out", out)
    track = checked("track", track, int | None, minimum=0)
    check_output(sheet_path, ".png" if track is None else _ANIMATED, datasets=[path])
    given, count = checked("start", start, int | None, minimum=0), checked("count", count, int, minimum=1)
    cell, columns = checked("cell", cell, int, minimum=16), checked("columns", columns, int | None, minimum=1)
    seed = checked("seed", seed, int | None, minimum=0)
    all, plain, rejects = (
        checked(name, value, bool) for name, value in (("all", all), ("plain", plain), ("rejects", rejects))
    )
    where, one_per = checked("where", where, str | None), checked("one_per", one_per, str | None)
    if masks not in (None, *_MASKS):
        raise UsageError(option="masks", expected=f"one of {', '.join(_MASKS)}", found=shorten(masks))
    if masks and transform is not None:
        raise UsageError("read only without `transform`, which lets masks tint the images", option="masks")
    if rejects and source is None:
        raise UsageError(option="rejects", expected="`source`, from which rejected items are drawn", found="none")
    if source is not None and not rejects:
        raise UsageError("read only with `rejects`, which are drawn from it", option="source")
    if track is not None:
        others = {
            "rejects": rejects,
            "where": where,
            "one_per": one_per,
            "start": given,
            "all": all,
            "columns": columns,
        }
        for name in (name for name, given in others.items() if given):
            raise UsageError("not read with `track`, which selects the samples and shows one at a time", option=name)
    most = None if all or track is not None else count
    start = given or 0
    if source is not None:
        lines = [line for line in report_lines(path) if line.get("kind") == "item"]
        chosen = lines[start:] if most is None else lines[start : start + most]
        if not lines:
            raise UsageError("there are no rejected items to draw", place=path)
        if not chosen:
            raise UsageError(
                place=path, expected=f"rejected items from number {start} on", found=f"{len(lines)} in all"
            )
        sheet = _new_sheet(len(chosen), columns, cell)
        with Stage(listener_of(progress), "drawing", len(chosen), "items") as stage:
            _draw_rejects(sheet, cell, chosen, _originals(path, source), stage)
        _write(sheet, sheet_path)
        return PreviewResult(sheet_path, (), tuple(str(line.get("item")) for line in chosen))
    augment = None if transform is None else _Augmentation(transform, seed or 0)
    manifest = Layout(path).load()
    shown, captioned = image_field(manifest.schema, path).name, _captioned(manifest)
    further = _further(manifest.schema, shown) if masks else []
    wanted = [shown, *_wanted(manifest.schema, captioned, geometry=not plain), *further]
    samples = PackedSamples(path, list(dict.fromkeys(wanted)) if augment is None else None)
    is_spread = given is None and seed is None and not all
    chooses = is_spread or track is not None or where is not None or one_per is not None
    browsed = BrowsedDataset(path) if chooses else None
    if browsed is not None and track is not None:
        rows = _rows_of_track(browsed, track)
    else:
        found = np.arange(len(samples)) if browsed is None else _selected(browsed, where or "", one_per)
        if browsed is not None and is_spread:
            places = sorted(spread_over(browsed.labels()[found], count))
        else:
            places = _choose(len(found), most, start, seed)
        rows = [int(found[place]) for place in places]
        if not rows:
            selected = "" if where is None and one_per is None else ", as selected"
            raise UsageError(
                place=path, expected=f"samples from row {start} on", found=f"{len(found)} in all{selected}"
            )

    def drawn() -> Iterator[tuple[dict[str, Any], npt.NDArray[np.uint8]]]:
        with Stage(listener_of(progress), "drawing", len(rows), "samples") as stage:
            for first in range(0, len(rows), _CHUNK):
                chunk = rows[first : first + _CHUNK]
                read = samples.read(chunk)
                if augment is None:
                    images = [_draw(np.asarray(one[shown], np.uint8), one, further, masks, cell) for one in read]
                else:
                    images = augment.draw(read, chunk, shown, cell, plain=plain)
                for sample, image in zip(read, images, strict=True):
                    yield sample, image
                    stage.advance()

    if browsed is not None and track is not None:
        images = (image for _, image in drawn())
        write_output(sheet_path, animate(images, cell, pauses_ms(browsed, rows), sound_of(browsed, rows)))
    else:
        sheet = _new_sheet(len(rows), columns, cell)
        for place, (sample, image) in enumerate(drawn()):
            sheet.put(place, image, _caption(sample, samples.schema, rows[place], captioned))
        _write(sheet, sheet_path)
    return PreviewResult(sheet_path, tuple(rows))


def image_field(schema: Schema, path: Path) -> Field:
    """Return the field ``image``, or else the first field of images."""
    images = [field for field in schema if field.is_image]
    if not images:
        raise UsageError(place=path, expected="a field with images", found=", ".join(schema.names))
    return next((field for field in images if field.name == "image"), images[0])


def _rows_of_track(dataset: BrowsedDataset, row: int) -> list[int]:
    if row >= len(dataset):
        raise UsageError(option="track", expected=f"a row of the dataset, 0 to {len(dataset) - 1}", found=row)
    rows: list[int] = track_rows(dataset, row).tolist()
    return rows


def _selected(dataset: BrowsedDataset, where: str, one_per: str | None) -> IntArray:
    """Return the rows that a condition selects; with `one_per`, only the middle one of each value of that field."""
    rows = dataset.select(where).rows()
    if one_per is None:
        return rows
    if one_per not in dataset.small_fields:
        known = list_some(dataset.small_fields)
        like = did_you_mean(one_per, dataset.small_fields)
        raise UsageError(
            option="one_per",
            expected=f"a field of text or single values, of {known}",
            found=f"{shorten(one_per)}{like}",
        )
    column = dataset.column(one_per)
    rows = rows[~missing_in(column)[rows]]
    _, groups, sizes = np.unique(np.ma.getdata(column)[rows], return_inverse=True, return_counts=True)
    by_group = np.argsort(groups, kind="stable")
    middle: IntArray = rows[by_group[np.cumsum(sizes) - sizes + (sizes - 1) // 2]]
    return np.sort(middle)


def _further(schema: Schema, shown: str) -> list[str]:
    """Return the other fields to show: images, and arrays of bytes with two axes, or with a third axis of 1."""

    def is_map(field: Field) -> bool:
        return field.dtype == "|u1" and (len(field.shape) == 2 or (len(field.shape) == 3 and field.shape[2] == 1))

    return [field.name for field in schema if field.name != shown and (field.is_image or is_map(field))]


def _draw(
    image: npt.NDArray[np.uint8], sample: Mapping[str, Any], further: Sequence[str], masks: str | None, cell: int
) -> npt.NDArray[np.uint8]:
    if masks == "over":
        return draw_sample(image, sample, cell, masks=_tints(image, sample, further))
    return draw_sample(_beside(image, sample, further) if further else image, sample, cell)


def _beside(image: npt.NDArray[np.uint8], sample: Mapping[str, Any], further: Sequence[str]) -> npt.NDArray[np.uint8]:
    found = [image]
    for name in further:
        value = np.asarray(sample[name], np.uint8)
        mask = value if value.ndim == 3 else value[..., None]
        if mask.size:
            size = (image.shape[1], image.shape[0])
            found.append(resize_exact(np.repeat(mask, 3, axis=2) if mask.shape[2] == 1 else mask, size))
    return np.concatenate(found, axis=1)


def _tints(image: npt.NDArray[np.uint8], sample: Mapping[str, Any], further: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return the other images of a sample as masks: grey ones by their values, others where they are not black."""
    found = []
    for name in further:
        value = np.asarray(sample[name], np.uint8)
        if not value.size:
            continue
        channels = value.reshape(*value.shape[:2], -1)
        grey = (channels == channels[..., :1]).all()  # as --also stores label maps
        mask: npt.NDArray[Any] = channels[..., 0] if grey else channels.max(axis=2) > 0
        (height, width), (rows, columns) = image.shape[:2], mask.shape
        found.append(mask[np.ix_(np.arange(height) * rows // height, np.arange(width) * columns // width)])
    return found


def _draw_rejects(
    sheet: Sheet, cell: int, lines: Sequence[Mapping[str, Any]], originals: Originals, stage: Stage
) -> None:
    """Draw rejected items; an item that does not decode becomes an empty cell."""
    for place, line in enumerate(lines):
        name = str(line.get("item"))
        try:
            picture = draw_sample(originals.frame(name), {}, cell)
        except ItemError:
            picture = np.full((cell, cell, 3), _NOTHING, np.uint8)
        sheet.put(place, picture, [name, f"{line.get('step')}: {line.get('reason')}"])
        stage.advance()


def _originals(path: Path, source: str | os.PathLike[str]) -> Originals:
    try:
        recipes = [generation.recipe for generation in Layout(path).load().generations]
    except NotADatasetError:  # a build that is not finished
        recipes = [planned(Layout(path)).get("recipe", {})]
    return Originals(source, recipes[-1] if recipes else None)


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
        found = import_target(transform, what="transform") if isinstance(transform, str) else transform
        check_transform("transform", found)
        self._transform: AnyTransform = found
        self._seed = check_seed(seed)
        self._scale: Scale | None = None

    def draw(
        self, samples: Sequence[Mapping[str, Any]], rows: Sequence[int], field: str, cell: int, *, plain: bool
    ) -> list[npt.NDArray[np.uint8]]:
        changed = [self._changed(sample, row, field) for sample, row in zip(samples, rows, strict=True)]
        images = [as_image(sample[field], field) for sample in changed]
        if self._scale is None:
            self._scale = Scale([picture.frames for picture in images], *normalisation_of(self._transform))
        return [
            fit(draw_values(sample, picture, self._scale, cell, field, plain=plain), cell)
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
    names = ["key", "source", "frame", "label", "landmarks_valid", *(GEOMETRY if geometry else ()), *captioned]
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
