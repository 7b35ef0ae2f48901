"""``readers.show``: draw samples as the network gets them."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from readers.arguments import as_count
from readers.drawing.draw import FRAMES_MAX, draw
from readers.drawing.images import ImageFrames, Scale, as_array, as_image, is_tensor
from readers.drawing.sheet import Sheet, columns_for
from shardspec.errors import UsageError
from shardspec.layout import given_path
from shardspec.wording import list_some, shorten

DEFAULT_COUNT = 64
_CELL, _STRIP_CELL = 224, 112
_SHOWN_CLASSES = 2
"""Number of classes of a soft label in a caption."""


@dataclass(frozen=True)
class Drawing:
    """A sheet of samples. A notebook shows it.

    Attributes
    ----------
    image : PIL.Image.Image
        RGB.
    samples : int
        Number of samples.
    """

    image: Image.Image
    samples: int

    def _repr_png_(self) -> bytes:
        """Return the sheet as PNG, for notebooks."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sheet to an image file in the format of its suffix; `UsageError` if that fails."""
        try:
            self.image.save(given_path("path", path))
        except (OSError, ValueError) as error:
            raise UsageError(
                option="path", expected="an image file that can be written", found=path, hint=error
            ) from error


def show(
    samples: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    count: int = DEFAULT_COUNT,
    field: str = "image",
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    columns: int | None = None,
    cell: int | None = None,
    plain: bool = False,
) -> Drawing:
    """Draw samples as the network gets them, with their geometry, masks and labels.

    ``landmarks``, ``hull``, ``regions`` and ``boxes`` are drawn onto the image, the person's left in blue and the right in
    red. Masks (fields called ``mask``, ``*_mask`` or ``*_image``) tint it. Clips and views become strips of frames.

    Parameters
    ----------
    samples : dict, sequence of dict, dataset, tensor, or (images, labels)
        A batch of a `Loader` or a DataLoader; one sample or several, such as ``[ds[5], ds[5]]``; or a dataset, of which
        the first samples are drawn. Images are (H, W, 3) or (3, H, W), uint8 or floating-point, on any device. Floats
        range from 0 to 1 or from 0 to 255, or are normalised.
    path : path, optional
        File to write, in the format of its suffix.
    count : int
        Largest number of samples to draw.
    field : str
        Field of the images.
    classes : sequence of str, optional
        Names of the labels, such as ``ds.classes``; by default those of the dataset.
    mean, std : sequence of float, optional
        Normalisation of the images. By default ImageNet's, as in `readers.augment.Normalize`, if images have values
        below 0.
    columns : int, optional
        Number of samples in a row of the sheet.
    cell : int, optional
        Side of the square for each image in pixels, 16 or more; by default at most 224, or 112 for frames of clips.
    plain : bool
        Whether to leave out geometry and masks.

    Returns
    -------
    Drawing
        The sheet, as the attribute ``image``. A notebook shows it as the last line of a cell.

    Raises
    ------
    UsageError
        If there are no images, or an argument is invalid.
    """
    count = as_count("count", count)
    columns = None if columns is None else as_count("columns", columns)
    cell = None if cell is None else as_count("cell", cell, 16, "pixels")
    if classes is None:
        classes = getattr(samples, "classes", None)
    chosen = list(_samples(samples, count, field))
    if not chosen:
        raise UsageError(option="samples", expected="one or more", found="none")
    images = [as_image(sample[field], field) for sample in chosen]
    scale = Scale([image.frames for image in images], mean, std)
    side = cell or _cell_for(images)
    size = (side, max(_width(image, side) for image in images))
    across = min(len(chosen), columns or max(1, round(columns_for(len(chosen)) * side / size[1])))
    sheet = Sheet(across, -(-len(chosen) // across), size)
    for place, (sample, image) in enumerate(zip(chosen, images, strict=True)):
        drawn = draw(sample, image, scale, side, field, plain=plain)
        sheet.put(place, drawn, _caption(sample, place, image, classes))
    drawing = Drawing(sheet.image, len(chosen))
    if path is not None:
        drawing.save(path)
    return drawing


def _cell_for(images: Sequence[ImageFrames]) -> int:
    """Return the side of a cell in which the largest image has its own size, or a multiple of it, if possible."""
    most = _STRIP_CELL if any(image.strip for image in images) else _CELL
    side: int = max(max(image.frames.shape[1:3]) for image in images)
    return max(16, min(most, side * max(1, most // side)))


def _width(image: ImageFrames, side: int) -> int:
    """Return the width of an image's cell: a square, or the frames that are shown side by side."""
    count, height, width, _ = image.frames.shape
    frame: int = -(-side * width // max(height, width))
    return int(max(side, min(count, FRAMES_MAX) * frame))


def _samples(given: Any, count: int, field: str) -> Iterator[Mapping[str, Any]]:
    """Yield the first samples as dicts of arrays, tensors and Python values."""
    if isinstance(given, Mapping):
        if field not in given:
            raise UsageError(
                option="field",
                expected=f"the field of the images, one of {list_some(list(map(str, given)))}",
                found=shorten(field),
            )
        yield from _rows_of(given, count, field) if _is_batch(given, field) else [given]
    elif is_tensor(given) or isinstance(given, np.ndarray):
        yield from _samples({field: given}, count, field)
    elif isinstance(given, tuple | list) and given and _is_pair(given):
        yield from _samples({field: given[0], "label": given[1]}, count, field)
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "batch_size"):
        for i in range(min(count, len(given))):
            sample = given[i]
            if isinstance(sample, tuple | list):  # like most datasets of torchvision
                sample = dict(zip((field, "label"), sample, strict=False))
            elif not isinstance(sample, Mapping):
                sample = {field: sample}
            if field not in sample:
                known = list_some(list(map(str, sample)))
                raise UsageError(
                    option="field", expected=f"the field of the images, one of {known}", found=shorten(field)
                )
            yield sample
    else:
        raise UsageError(
            option="samples",
            expected="a batch, samples or a dataset",
            found=type(given).__name__,
            hint="of a Loader give a batch, next(iter(loader))",
        )


def _is_pair(given: Sequence[Any]) -> bool:
    """Return whether a sequence is (images, labels) or (image, label), and not several samples."""
    ndim = getattr(given[0], "ndim", 0)
    return len(given) == 2 and (ndim >= 4 or (ndim >= 2 and np.ndim(given[1]) == 0))


def _is_batch(given: Mapping[str, Any], field: str) -> bool:
    """Return whether a dict is a batch.

    In a sample, some value is a text or a single number, or the image has three axes.
    """
    if any(isinstance(value, str | int | float) or getattr(value, "ndim", None) == 0 for value in given.values()):
        return False
    ndim = getattr(given[field], "ndim", None)
    return ndim is None or ndim >= 4


def _rows_of(batch: Mapping[str, Any], count: int, field: str) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a batch, without fields that do not have a value for each sample."""
    length = len(batch[field])
    columns = {name: value for name, value in batch.items() if hasattr(value, "__len__") and len(value) == length}
    for row in range(min(count, length)):
        yield {name: value[row] for name, value in columns.items()}


def _caption(sample: Mapping[str, Any], place: int, image: ImageFrames, classes: Sequence[str] | None) -> list[str]:
    """Return the key, or the number in the batch; and the label, with the number of frames if some are not shown."""
    below = []
    if "label" in sample:
        below.append(_label(as_array(sample["label"]), classes))
    if len(image.frames) > FRAMES_MAX:
        below.append(f"{FRAMES_MAX} of {len(image.frames)} frames")
    key = sample.get("key")
    return [key if isinstance(key, str) else f"sample {place}", ", ".join(below)]


def _label(value: Any, classes: Sequence[str] | None) -> str:
    """Return the name of a label; for a soft label, the classes with the largest shares."""

    def name(number: int) -> str:
        return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)

    array = np.asarray(value)
    if array.dtype.kind in "biu" and array.ndim == 0:
        return name(int(array))
    if array.dtype.kind == "f" and array.ndim == 1:
        largest = np.argsort(-array, kind="stable")[:_SHOWN_CLASSES].tolist()
        return ", ".join(f"{array[i]:.2f} {name(i)}" for i in largest if array[i] > 0)
    return shorten(value) if array.ndim == 0 else ""
