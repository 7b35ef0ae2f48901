"""Our readers: formats × ways of reading × raw and JPEG pictures, beside the limits of the same run.

``python -m benchmarks.readers --folder /somewhere --json out.json``. The method is in ``benchmarks/README.md``. Ways of reading:

- *Loader*: `readers.Loader` with its defaults; *unchecked*: without the format's own checksums; *blocks*: blockwise order;
  *fresh*: no buffer is used twice, as where the training loop keeps its batches; *fast*: fast inverse
  transform and fast upsampling.
- *DataLoader*: torch's DataLoader over our dataset, two worker processes; *DataLoader over a memmap*: the same over the shortest
  dataset that anybody would write.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.contender import Batches
from benchmarks.data import SIZE, Source, add_arguments, make_source, pack_ours, rows_of
from benchmarks.limits import limits_of
from benchmarks.measure import Entry, document, measure_group, table, write
from readers import Loader, RandomResizedCrop, Whole, open_dataset
from readers.ring import Ring
from shardspec.formats import FORMATS

FIELDS = ["image", "landmarks", "label"]
BLOCKWISE = ("hdf5", "parquet", "tfrecord")
"""Formats whose single rows are dear; they are read blockwise."""


def plan_of(kind: str, fast: bool) -> dict[str, Any]:
    """How pictures of a kind are decoded."""
    if kind in ("photo", "photo500"):
        return {"image": RandomResizedCrop(SIZE, fast_dct=fast, fast_upsampling=fast, flip=0.5)}
    return {"image": Whole(fast, fast)} if fast else {}


def loader(
    source: str,
    kind: str,
    root: str,
    batch: int,
    shuffle: str = "full",
    checksums: bool = True,
    fast: bool = False,
    fresh: bool = False,
    repeats: int = 1,
) -> Batches:
    """`readers.Loader` over a packed dataset; `repeats` makes long epochs, by an index that lists each row so often."""
    torch.set_num_threads(1)
    dataset = open_dataset(root, FIELDS, checksums=checksums, decode=plan_of(kind, fast))
    whole: Any = dataset if repeats == 1 else _repeated(dataset, repeats)
    made = Loader(whole, batch, shuffle=shuffle, drop_last=True)  # type: ignore[arg-type] # from JSON

    if fresh:  # a ring that keeps nothing: what a loop that keeps its batches makes of it, without room for them all
        made._buffers = Ring(batch, 0)

    def batches(epoch: int) -> Iterable[Any]:
        made.set_epoch(epoch)
        return made

    return Batches(batches)


def _repeated(dataset: Any, repeats: int) -> Any:
    return dataset.subset(np.tile(np.arange(len(dataset)), repeats))


def data_loader(source: str, kind: str, root: str, batch: int, shuffle: str = "full", fast: bool = False) -> Batches:
    """Torch's DataLoader over a packed dataset, with our sampler and collate."""
    dataset = open_dataset(root, FIELDS, decode=plan_of(kind, fast))
    sampler = dataset.sampler(shuffle=shuffle)  # type: ignore[arg-type] # from JSON
    made: DataLoader[Any] = DataLoader(
        dataset,
        batch,
        sampler=sampler,
        collate_fn=dataset.collate,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )

    def batches(epoch: int) -> Iterable[Any]:
        sampler.set_epoch(epoch)
        return made

    return Batches(batches)


class MemmapDataset(Dataset[tuple[Any, ...]]):
    """Raw crops in one ``.npy`` file, read a sample at a time."""

    def __init__(self, source: Source) -> None:
        self._path = source.folder / "pixels.npy"
        self._landmarks = source.landmarks
        self._images: Any = None

    def __len__(self) -> int:
        return len(self._landmarks)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if self._images is None:
            self._images = np.load(self._path, mmap_mode="r")
        return np.array(self._images[index]), self._landmarks[index], index


def memmap_loader(source: str, kind: str, batch: int) -> Batches:
    """Torch's DataLoader over a memmap."""
    made: DataLoader[Any] = DataLoader(
        MemmapDataset(Source(Path(source), kind)),
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )
    return Batches(lambda epoch: made, ("image", "landmarks", "label"))


def entries_of(kind: str, folder: Path, source: Path, batch: int, formats: list[str]) -> list[Entry]:
    """Our rows of a kind."""
    entries = []
    for format in formats:
        root = folder / f"{kind}-{format}"
        facts = pack_ours(Source(source, kind), root, format)
        options = {"source": str(source), "kind": kind, "root": str(root), "batch": batch}
        options["shuffle"] = "blocks" if format in BLOCKWISE else "full"
        ways: dict[str, dict[str, Any]] = {"": {}}
        if format in BLOCKWISE and kind == "raw":
            ways["unchecked"] = {"checksums": False}
        if format == "npy":
            way = "fresh" if kind == "raw" else "fast"
            ways[way] = {way: True}
        for way, more in ways.items():
            name = f"Loader, {format}" + (", blocks" if format in BLOCKWISE else "") + (f", {way}" if way else "")
            entries.append(Entry(name, "benchmarks.readers:loader", options | more, ours=True, facts=facts))
        if format in ("npy", "lmdb"):
            name = f"DataLoader over {format}"
            entries.append(Entry(name, "benchmarks.readers:data_loader", options, ours=True, facts=facts))
    if kind == "raw":
        options = {"source": str(source), "kind": kind, "batch": batch}
        entries.append(Entry("DataLoader over a memmap", "benchmarks.readers:memmap_loader", options))
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--formats", nargs="*", choices=sorted(FORMATS), default=sorted(FORMATS))
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    make_source(source, tuple(arguments.kinds), rows_of(arguments))
    groups = []
    for kind in arguments.kinds:
        formats = arguments.formats if kind == "raw" else [f for f in arguments.formats if f in ("npy", "lmdb")]
        entries = entries_of(kind, arguments.folder, source, arguments.batch, formats)
        if arguments.only:
            entries = [entry for entry in entries if entry.name.startswith(tuple(arguments.only))]
        entries = limits_of(kind, source, arguments.batch) + entries
        groups.append(measure_group(kind, entries, arguments.rounds, arguments.settle))
        print(table(groups[-1]), flush=True)
    settings = {"rows": rows_of(arguments), "batch": arguments.batch, "rounds": arguments.rounds}
    write(document("readers", settings, groups), arguments.json)


if __name__ == "__main__":
    main()
