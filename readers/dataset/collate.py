"""Collation: numpy values to the tensors of a batch, stacked per field, with images as channels_last (B, 3, H, W)."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from readers.decode.values import BFLOAT16, BatchLayout, ValueLayout
from shardspec.columns import Columns, IntArray
from shardspec.errors import SchemaError

_IMAGE_AXES = 3
_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}

Batch = dict[str, Any]
"""Field name to a tensor (B, ...), or to a list of B tensors if shapes vary, or of B texts or objects."""


class EncodedValues(list[Any]):
    """Encoded bytes of a batch's field: tensors, (N,) uint8, that stay in CPU memory."""


class SampleList(list[dict[str, Any]]):
    """Samples that were read as one batch, so that `collate` does not need to stack them again.

    Parameters
    ----------
    columns : dict
        The batch whose rows the samples are, made by `allocate_batch`.
    """

    def __init__(self, samples: Sequence[dict[str, Any]], columns: Mapping[str, Any]) -> None:
        super().__init__(samples)
        self._columns = columns
        self._read = [(sample, tuple(sample.values())) for sample in samples]

    @property
    def columns(self) -> Mapping[str, Any] | None:
        """The batch; None if the samples are no longer its rows, because a caller changed them before `collate`."""
        names = list(self._columns)
        same = len(self) == len(self._read) and all(
            sample is read and list(sample) == names and all(map(is_, sample.values(), values))
            for sample, (read, values) in zip(self, self._read, strict=True)
        )
        return self._columns if same else None


def collate_columns(columns: Mapping[str, Any], layout: BatchLayout) -> Batch:
    """Convert columns of numpy values to tensors without a copy."""
    return {name: _tensor_of_column(column, layout[name]) for name, column in columns.items()}


def collate_samples(samples: Sequence[Mapping[str, Any]], layout: BatchLayout) -> Batch:
    """Collate samples to a batch. In a worker process the tensors are in shared memory, as those of torch's collate."""
    columns = samples.columns if isinstance(samples, SampleList) else None
    if columns is not None:
        return collate_columns(columns, layout)
    if not samples:
        raise SchemaError(expected="one sample or more to collate", found="none")
    names = list(samples[0])
    for place, sample in enumerate(samples):
        if sample.keys() != samples[0].keys():
            raise SchemaError(
                expected=f"the fields {', '.join(names)} in every sample of a batch, as in its first",
                found=f"{', '.join(sample)} in {_called(sample, place)}",
                hint="give every sample the same fields",
            )
    return {name: _collate_field(name, samples, layout.get(name)) for name in names}


def _called(sample: Mapping[str, Any], place: int) -> str:
    return f"the sample with key {sample['key']!r}" if "key" in sample else f"sample {place} of the batch"


def _collate_field(name: str, samples: Sequence[Mapping[str, Any]], layout: ValueLayout | None) -> Any:
    """Collate the values of one field: stacked if the layout, or the first value of an unknown field, says so."""
    values = [sample[name] for sample in samples]
    for place, value in enumerate(values):
        try:
            check_dtype(name, value)
        except SchemaError as error:
            error.add_note(f"found in {_called(samples[place], place)}")
            raise
    first = values[0]
    # A tensor that replaces a stored array: its image is (3, H, W) already.
    if layout is None or (layout.shape is not None and isinstance(first, torch.Tensor)):
        layout = layout_of_value(first)
    if layout.shape is None:
        return _tensor_of_column(values, layout)
    model = as_array(first)
    expected = ValueLayout(model.shape, model.dtype)
    column = _empty((len(values), *model.shape), model.dtype)
    for place, value in enumerate(values):
        try:
            write_value(name, value, column, place, expected, "the first sample of the batch")
        except SchemaError as error:
            error.add_note(f"found in {_called(samples[place], place)}")
            raise
    return _tensor_of_column(column, layout)


def write_value(name: str, value: Any, column: npt.NDArray[Any], place: int, expected: ValueLayout, model: str) -> None:
    """Copy a value of a field into its place in a column; its shape and dtype must be those of `model`."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype == expected.dtype and value.shape == expected.shape:
        column[place] = value
        return
    array = as_array(value) if isinstance(value, torch.Tensor) else value
    found = as_array(array)
    # Python's numbers have no dtype: an integer may be stored among floats, but not a float among integers.
    same = found.dtype == expected.dtype
    fits = same if hasattr(array, "dtype") else same or _kind_rank(found.dtype) <= _kind_rank(expected.dtype)
    if found.shape != expected.shape or not fits:
        raise SchemaError(
            expected=f"field {name!r} as {expected}, as in {model}",
            found=f"{found.dtype} {found.shape}",
            hint="give every sample the same shape and dtype",
        )
    try:
        column[place] = array  # not `found`: numpy checks only for Python's numbers that they fit
    except (OverflowError, TypeError) as error:  # TypeError among bfloat16 values
        raise SchemaError(
            expected=f"field {name!r} as {expected.dtype}, as in {model}",
            found=array,
            hint="give every sample the same dtype",
        ) from error


def check_dtype(name: str, value: Any) -> None:
    """Refuse arrays, alone or in lists, that torch cannot convert. Text and other objects become lists in a batch."""
    if isinstance(value, list):
        for item in value:
            check_dtype(name, item)
    elif isinstance(value, np.ndarray | np.generic) and not (
        isinstance(value, np.character) or _has_tensors(value.dtype)
    ):
        raise SchemaError(
            expected=f"field {name!r} to have a dtype that torch has",
            found=value.dtype,
            hint="convert the value with astype, or return value.tolist()",
        )


@cache
def _has_tensors(dtype: np.dtype[Any]) -> bool:
    try:
        as_tensor(np.empty(0, dtype))
    except (TypeError, ValueError):  # ValueError for another byte order
        return False
    return True


def _kind_rank(dtype: np.dtype[Any] | None) -> int:
    """Return the rank of a kind of number. Numbers can be stored as any kind of the same or a higher rank."""
    return _KINDS.get("" if dtype is None else dtype.kind, len(_KINDS))


def layout_of_value(value: Any, image: bool = False) -> ValueLayout:
    """Return the layout of a value that no schema describes: arrays, tensors and numbers are stacked, the rest listed.

    `image` tells whether an array with last axes (H, W, 3) is an image. A tensor is assumed to be (3, H, W) already.
    """
    if isinstance(value, list):
        return ValueLayout(None, None, image)
    if isinstance(value, torch.Tensor):
        return ValueLayout(tuple(value.shape), as_array(value).dtype)
    if isinstance(value, np.ndarray | np.generic | bool | int | float) and not isinstance(value, np.character):
        array = np.asarray(value)
        return ValueLayout(array.shape, array.dtype, image and array.ndim >= 3 and array.shape[-1] == 3)
    return ValueLayout(None, None)


def mirrored(places: IntArray, counts: IntArray) -> IntArray:
    """Return positions in sequences of `counts` values, traversed forwards and backwards in turn: 0 1 2 1 0 1."""
    turns = np.maximum(2 * counts - 2, 1)
    within = places % turns
    return np.minimum(within, turns - within)


def _padded(values: Sequence[Any], how: str) -> npt.NDArray[Any]:
    """Stack arrays of different lengths, padded to the longest one with zeros, or by mirroring them in time."""
    arrays = [as_array(value) for value in values]
    longest = max(map(len, arrays))
    out = _empty((len(arrays), longest, *arrays[0].shape[1:]), arrays[0].dtype)
    for place, array in zip(out, arrays, strict=True):
        place[: len(array)] = array
        rest = np.arange(len(array), longest)
        place[len(array) :] = array[mirrored(rest, np.array(len(array)))] if how == "mirror" and len(array) else 0
    return out


def _tensor_of_column(column: Any, layout: ValueLayout) -> Any:
    if layout.encoded:
        return EncodedValues(_tensor_of_value(value, False) for value in column)
    if layout.stacks_equal:
        column = _stack_equal(column)
    if layout.time in ("pad", "mirror") and len(column):
        column = _padded(column, layout.time)
    if not isinstance(column, np.ndarray):
        if layout.image and len(column) > 1 and getattr(column[0], "ndim", 0) == _IMAGE_AXES:
            warn_of_sizes()
        return [_tensor_of_value(value, layout.image) for value in column]
    tensor = as_tensor(column)
    return tensor.movedim(-1, -3) if layout.image else tensor


def _stack_equal(values: Any) -> Any:
    """Stack arrays of one shape and dtype, and those of clips, which are lists of arrays; return other values unchanged."""
    if not isinstance(values, list):
        return values
    parts = [_stack_equal(value) for value in values]
    alike = {(part.shape, part.dtype) if isinstance(part, np.ndarray) else None for part in parts}
    return np.stack(parts) if len(alike) == 1 and None not in alike else values


@cache
def warn_of_sizes() -> None:
    """Warn, once in a process, that a network cannot take such a batch."""
    warnings.warn(
        "the images have different sizes, so a batch holds them as a list: pack them with --resize exact, or crop them "
        'while reading, with open_dataset(…, decode={"image": readers.RandomResizedCrop(224)})',
        stacklevel=2,
    )


def _tensor_of_value(value: Any, image: bool) -> Any:
    """Convert one value of a field of varying shape, or a clip's list of them. Text and objects are kept."""
    if isinstance(value, list):
        return [_tensor_of_value(item, image) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.writeable or min(value.strides, default=0) < 0:  # torch does not accept such memory
        value = value.copy()
    tensor = as_tensor(value)
    return tensor.movedim(-1, -3) if image else tensor


def as_array(value: Any) -> npt.NDArray[Any]:
    """Convert a value to an array; a tensor on the CPU shares its memory."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach().cpu()
    return tensor.view(torch.int16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Convert an array to a tensor that shares its memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(stored_dtype(array.dtype))).view(torch.bfloat16)
    return torch.from_numpy(array)


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype of the same size that both numpy and torch have."""
    return np.dtype(np.int16) if dtype == BFLOAT16 else dtype


def allocate_batch(layout: BatchLayout, rows: int) -> Columns:
    """Allocate columns, in a worker process in shared memory so that they can be passed to the training process."""
    return {
        name: [None] * rows if value.shape is None or value.dtype is None else _empty((rows, *value.shape), value.dtype)
        for name, value in layout.items()
    }


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    size = int(np.prod(shape, dtype=np.int64))
    if get_worker_info() is None or size == 0:
        return np.empty(shape, dtype)
    like = torch.from_numpy(np.empty(0, stored_dtype(dtype)))
    storage = like._typed_storage()._new_shared(size, device=like.device)  # type: ignore[no-untyped-call] # torch's
    array: npt.NDArray[Any] = like.new(storage).resize_(*shape).numpy()
    return array.view(dtype)
