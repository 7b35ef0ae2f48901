"""Base of all datasets: samples, batches, collation and samplers."""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import zip_longest
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Dataset

from readers.dataset.chain import CHUNK_ROWS, Chain, check_sample, probe_layout, rows_of, store
from readers.dataset.collate import Batch, SampleList, allocate_batch, collate_samples
from readers.decode.plans import DecodePlan
from readers.decode.values import BatchLayout, allocate_values
from readers.drawing.notebook import SampleRow
from readers.formats.pool import RowsOfShards
from readers.order.order import WINDOW_BLOCKS, Blocks, MixtureShares, Order, SampledRows, Shuffle, count_occurrences
from readers.order.sampler import OrderSampler, RankSampler
from readers.order.shuffle_choice import (
    AnyShuffle,
    ShuffleChoice,
    StoredData,
    check_cache,
    choose_apart,
    choose_shuffle,
    ranks_together,
    warn_of_small_cache,
)
from readers.seeding import SampledIndex, mix_array
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray, evenly
from shardspec.errors import UsageError
from shardspec.wording import shorten

_PROBES = 4
_SHOWN = 8


class SampleDataset(Dataset[dict[str, Any]]):
    """A map-style dataset that is read by the batch. A subclass defines its length and how its rows are read.

    Parameters
    ----------
    transform : callable, optional
        Sample transform (`readers.transforms`).
    """

    def __init__(self, transform: AnyTransform | None = None) -> None:
        self._transforms = Chain(() if transform is None else (transform,))
        self._layout: BatchLayout | None = None
        self._collates = False

    # Defined by subclasses.

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def blocks(self) -> Blocks | None:
        """Runs of rows that are cheap to read together; None if there are none."""
        return None

    @property
    def shares(self) -> MixtureShares | None:
        """Shares of a mixture's datasets in a shuffled epoch; None if it visits every row once."""
        return None

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the values before the transform."""
        raise NotImplementedError

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read rows without the transform, row i into place ``at[i]`` of a batch of `raw_layout`."""
        raise NotImplementedError

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """Packed datasets that hold the samples, with the bytes that an epoch reads of each; empty if unknown."""
        return ()

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes of a stored sample."""
        return sum(store.bytes for store in self.stored) / max(1, len(self))

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows of packed datasets that a read of some rows touches. Yields nothing if they are not in files."""
        yield from ()

    def origins(self, picks: SampledRows) -> SampledRows:
        """Return the rows in the base dataset and the seeds, which together key the transforms' random draws."""
        return picks if picks.keys is None else SampledRows(picks.keys, picks.seeds, picks.epoch)

    def describe(self, row: int) -> str:
        """Describe where a row comes from, for messages."""
        raise NotImplementedError

    @property
    def nesting(self) -> int:
        """Number of nested datasets, among this one and its bases, that may repeat rows."""
        return 0

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of ``label``; empty if there is no such field, or its classes have no names."""
        return ()

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Fields with a number or a text per sample, which `column` returns without reading images."""
        layout = self.raw_layout
        return tuple(n for n, v in layout.items() if v.shape == () or (v.shape is None and not v.image))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of the whole dataset: an array, (N, *shape), or a list if the shape varies.

        Missing numbers are masked (`numpy.ma`), missing texts are None.
        """
        raise NotImplementedError

    def item_numbers(self) -> IntArray:
        """Return the number of each sample's item, such as its video: int64, (N,). Reads the column ``key``."""
        return np.fromiter((_item_of(key) for key in self.column("key")), np.int64, len(self))

    # Common to all datasets.

    def find(self, key: str) -> int:
        """Return the row of the sample with a key; the first one if rows are repeated. Reads the column ``key``.

        Raises
        ------
        UsageError
            If no sample has the key.
        """
        if not isinstance(key, str):
            raise UsageError(option="key", expected="a text such as '00000003-000012'", found=shorten(key))
        keys = list(self.column("key"))
        try:
            return keys.index(key)
        except ValueError:
            raise UsageError(
                option="key", expected=f"that of one of the {len(self)} samples", found=shorten(key)
            ) from None

    def show(self, rows: Sequence[int] | IntArray | None = None) -> SampleRow:
        """Show some samples: in a notebook, images with their geometry and a table of the fields.

        Samples are shown as `__getitem__` returns them. `readers.show` draws to files and windows.

        Parameters
        ----------
        rows : sequence of int, optional
            By default eight, spread over the dataset.

        Raises
        ------
        IndexError
            If a row does not exist.
        """
        chosen = evenly(len(self), _SHOWN) if rows is None else rows
        numbers = [int(row) for row in chosen]
        samples = tuple(self.__getitems__(numbers)) if numbers else ()
        return SampleRow(tuple(numbers), samples, repr(self), self.classes)

    def _repr_html_(self) -> str:
        """Show some samples in a notebook."""
        return self.show()._repr_html_()

    def with_transform(self, transform: AnyTransform | None) -> Self:
        """Return the same dataset with a further transform after its existing ones."""
        if transform is None:
            return self
        other = copy(self)
        other._transforms = self._transforms.then(transform)
        other._layout = None
        return other

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """Return the same samples, transforms and draws with other decode plans.

        This lets you split a dataset once, and crop differently for training and validation. Parts, clips and datasets
        with other labels have this method too.

        Parameters
        ----------
        decode : dict of str to DecodePlan, or None
            All plans (`readers.open_dataset`), which replace those of this dataset; None or ``{}`` for none.

        Raises
        ------
        UsageError
            If this is a mixture, or an argument is invalid.
        """
        raise UsageError(
            option="decode",
            expected="a packed dataset, or a view of one",
            found=type(self).__name__,
            hint="give the plans to the datasets that it consists of",
        )

    @property
    def has_transform(self) -> bool:
        """True if samples are transformed after reading."""
        return len(self._transforms) > 0

    @property
    def layout(self) -> BatchLayout:
        """Layout of the values in a batch. With a transform, a few samples are transformed to find out."""
        if not self.has_transform:
            return self.raw_layout
        if self._layout is None:
            self._layout = self._probe()
        return self._layout

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        if not isinstance(index, SupportsIndex):
            raise TypeError(
                f"expected one index, found {type(index).__name__}: "
                "use subset(rows) for a part, or read_batch(rows) for a batch"
            )
        # A sampled index is an int that carries its seed and epoch, so it is passed on as it is.
        return self.__getitems__([index if isinstance(index, int) else index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples at some indices, read as one batch."""
        picks = self._picks(indices)
        columns = self._collates and not self.has_transform
        out = allocate_batch(self.raw_layout, len(picks)) if columns else allocate_values(self.raw_layout, len(picks))
        self.read_raw(picks, out, np.arange(len(picks)))
        samples = list(rows_of(out, 0, len(picks)))
        if columns:
            return SampleList(samples, out)
        if not self.has_transform:
            return samples
        return list(self._transform(samples, picks))

    def __add__(self, other: Dataset[dict[str, Any]]) -> ConcatDataset[dict[str, Any]]:
        """Concatenate datasets, as in torch. For `Loader` and samplers use `readers.MixedDataset`."""
        if isinstance(other, SampleDataset) and "label" in self.raw_layout and "label" in other.raw_layout:
            check_classes("datasets", {"the first": self, "the second": other})
        return super().__add__(other)

    def read_batch(self, indices: Sequence[int] | IntArray) -> Columns:
        """Return the samples at some indices as columns: a stacked array per field, or a list if its shape varies."""
        out = allocate_values(self.layout, len(indices))
        self.read_picks(self._picks(indices), out, np.arange(len(indices)))
        return out

    def read_picks(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read picked rows, row i into place ``at[i]`` of a batch of `layout`."""
        if not self.has_transform:
            self.read_raw(picks, out, at)
            return
        layout = self.layout
        for first in range(0, len(picks), CHUNK_ROWS):
            part = picks.part(first, first + CHUNK_ROWS)
            scratch = allocate_values(self.raw_layout, len(part))
            self.read_raw(part, scratch, np.arange(len(part)))
            places = at[first : first + CHUNK_ROWS].tolist()
            # memory in which a transform may create its image
            images = [out["image"][place] for place in places] if _is_stacked(layout, "image") else [None] * len(part)
            for i, sample in enumerate(self._transform(rows_of(scratch, 0, len(part)), part, images)):
                try:
                    store(sample, out, places[i], layout, images[i])
                except Exception as error:
                    error.add_note(self.describe(int(part.rows[i])))
                    raise

    @property
    def collate(self) -> Callable[[Sequence[dict[str, Any]]], Batch]:
        """Function for a DataLoader's ``collate_fn`` that turns samples into batches like those of a `Loader`.

        Reading this property announces that samples will be collated, so that worker processes read straight into
        shared memory.
        """
        self._collates = True
        return self._collate

    def _collate(self, samples: Sequence[dict[str, Any]]) -> Batch:
        return collate_samples(samples, self.layout)

    def order(
        self,
        shuffle: Shuffle = "full",
        seed: int = 0,
        window: int = WINDOW_BLOCKS,
        weights: npt.ArrayLike | None = None,
        draws: int | None = None,
    ) -> Order:
        """Return the order of every epoch over this dataset (`readers.order.order.Order`)."""
        try:
            weighed = None if weights is None else np.ma.asarray(weights, np.float64).filled(0)
        except (TypeError, ValueError) as error:
            raise UsageError(option="weights", expected="a number for each sample", hint=error) from error
        if shuffle == "blocks" and weighed is None and self.blocks is not None:
            check_cache(self.stored, window)
        return Order(len(self), shuffle, seed, self.blocks, window, weighed, draws, self.shares)

    def sampler(
        self,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: AnyShuffle = "auto",
        drop_last: bool = False,
        window: int = WINDOW_BLOCKS,
        weights: npt.ArrayLike | None = None,
        draws: int | None = None,
    ) -> OrderSampler:
        """Return a sampler for torch's DataLoader over this dataset.

        It has the methods `set_epoch`, `state_dict` and `load_state_dict` of `readers.Loader`.

        Parameters
        ----------
        seed : int, 0 to 2**64 - 1
            Seed of the order and of seeded transforms.
        rank, world_size : int
            0 <= rank < world_size.
        shuffle : {"auto", "full", "blocks", False}
            ``"auto"`` is decided now, by this machine's memory (`readers.Loader`). With several ranks it is ``"full"``,
            because a sampler cannot communicate with the other ranks.
        drop_last : bool
            Make the ranks' lengths equal by leaving out the last few samples instead of repeating the first few.
        window : int
            Blocks that ``"blocks"`` mixes with each other.
        weights : float array, (N,), optional
            Relative probabilities of draws with replacement (`readers.class_balanced_weights`). A masked weight is 0.
        draws : int, optional
            Length of a weighted epoch; by default the number of samples.
        """
        choice: ShuffleChoice | None = None
        if shuffle == "auto":
            alone = max(world_size, ranks_together()) == 1
            choose = choose_shuffle if alone else choose_apart
            choice = choose(self.stored, self.blocks is not None)
        order = self.order("full" if shuffle == "auto" else shuffle, seed, window, weights, draws)
        kind = OrderSampler if world_size == 1 else RankSampler
        made = kind(order, rank, world_size, drop_last, choice)
        warn_of_small_cache(self.stored, made._progress.order)
        return made

    def _picks(self, indices: Sequence[int] | IntArray) -> SampledRows:
        """Return rows with the seeds and the epoch that their indices carry.

        Indices without a seed (of torch's own samplers) get one from torch's generator, so that transforms differ from
        epoch to epoch and follow ``torch.manual_seed``. A repeated index counts as another occurrence of its row.
        """
        length = len(self)
        given = np.asarray(indices)
        if given.dtype.kind not in "iu" and given.size:  # a mask, for example, would be read as rows 0 and 1
            raise UsageError(
                option="indices", expected="integers", found=given.dtype, hint="a mask's rows are np.flatnonzero(mask)"
            )
        rows = given.astype(np.int64).reshape(-1)
        if len(rows) and not (-length <= rows.min() and rows.max() < length):
            wrong = next(int(row) for row in rows if not -length <= row < length)
            raise IndexError(f"index {wrong}: expected {-length} to {length - 1}")
        rows = np.where(rows < 0, rows + length, rows)
        first = indices[0] if len(rows) else None
        if isinstance(first, SampledIndex) and all(getattr(i, "epoch", None) == first.epoch for i in indices):
            return _sampled_picks(rows, indices, first.epoch)  # type: ignore[arg-type] # checked above
        drawn = (
            torch.randint(1 << 62, (len(rows),), device="cpu").numpy() if self.draws_at_random else np.zeros(len(rows))
        )
        return SampledRows(rows, drawn.astype(np.uint64), 0)

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return self._transforms.seeded

    def _transform(
        self,
        samples: Iterable[dict[str, Any]],
        picks: SampledRows,
        images: Sequence[npt.NDArray[Any] | None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the transformed samples; an error carries the sample's key and shard.

        `images` is memory that the transforms may use for the images.
        """
        rngs = self._transforms.generators(self.origins(picks))  # together, while their code is in the CPU cache
        for i, sample in enumerate(samples):
            try:
                transformed = self._transforms(sample, rngs[i], None if images is None else images[i])
            except StopIteration as error:  # would become another error, without the note
                other = RuntimeError("the transform raised StopIteration")
                other.add_note(self.describe(int(picks.rows[i])))
                raise other from error
            except Exception as error:
                error.add_note(self.describe(int(picks.rows[i])))
                raise
            yield transformed

    def _probe(self) -> BatchLayout:
        """Find the layout of transformed samples by transforming a few samples spread over the dataset."""
        count = min(_PROBES, len(self))
        if count == 0:
            raise UsageError(expected="one sample or more to try the transform on", found="an empty dataset")
        rows = evenly(len(self), count)
        picks = SampledRows(rows, np.zeros(count, np.uint64), 0)
        raw = allocate_values(self.raw_layout, count)
        self.read_raw(picks, raw, np.arange(count))
        samples = list(rows_of(raw, 0, count))
        shapes = [{n: np.shape(v) if isinstance(v, np.ndarray) else None for n, v in s.items()} for s in samples]
        outputs = list(self._transform(samples, picks))
        for row, output in zip(rows.tolist(), outputs, strict=True):
            try:
                check_sample(output)
            except Exception as error:
                error.add_note(self.describe(row))
                raise
        return probe_layout(self.raw_layout, shapes, outputs)


def _item_of(key: str) -> int:
    """Return the item's number in a sample's key: ``"00000003-000012"`` belongs to item 3."""
    item, separator, _ = key.partition("-")
    if not separator or not item.isdecimal():
        raise UsageError(
            option="key", expected="an item's number, '-' and the sample's number within it", found=shorten(key)
        )
    return int(item)


def _is_stacked(layout: BatchLayout, name: str) -> bool:
    return name in layout and layout[name].shape is not None


def check_dataset(name: str, dataset: Any) -> None:
    """Check that a value is a dataset of readers; the message explains how to read several datasets as one."""
    if isinstance(dataset, SampleDataset):
        return
    remedy = "use open_dataset(path), its subset(rows) or split(fractions), or torch's own DataLoader"
    if isinstance(dataset, ConcatDataset | list | tuple):
        remedy = "to read several datasets as one, use MixedDataset([a, b])"
    raise UsageError(option=name, expected="a dataset of readers", found=type(dataset).__name__, hint=remedy)


def check_classes(user: str, datasets: Mapping[str, SampleDataset]) -> None:
    """Check that a label means the same class in all given datasets, by their names for messages."""
    (name, first), *others = datasets.items()
    for other_name, other in others:
        if other.classes == first.classes:
            continue
        ours, theirs = first.classes, other.classes
        label = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
        raise UsageError(
            place=user,
            expected="the same classes in all, since labels are their numbers",
            found=(
                f"label {label} as {_class_at(ours, label)} in {name} (of {len(ours)}), and as "
                f"{_class_at(theirs, label)} in {other_name} (of {len(theirs)})"
            ),
            hint="number both by one list with ds.with_classes([...]) (in packing: --classes-from DATASET), give the classes "
            "common names with ds.map_labels({...}), or leave out 'label' with fields=",
        )


def _class_at(classes: Sequence[str], label: int) -> str:
    return reprlib.repr(classes[label]) if label < len(classes) else "no class"


def _sampled_picks(rows: IntArray, indices: Sequence[SampledIndex], epoch: int) -> SampledRows:
    """Return the picks of sampled indices. Copies of a row get different seeds, even if a sampler repeats one index."""
    picks = SampledRows(rows, np.array([i.seed for i in indices], np.uint64), epoch)
    occurrences = np.array([i.occurrence for i in indices], np.int64)
    if occurrences.any():
        picks = picks.again(occurrences, level=0)
    if len(np.unique(rows)) == len(rows):
        return picks
    return picks.again(count_occurrences(mix_array(rows, 0) ^ picks.seeds), level=0)
