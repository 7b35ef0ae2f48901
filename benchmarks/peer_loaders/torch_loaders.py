"""torch's DataLoader, two workers, over files, LMDB and HDF5 as people write them: one sample at a time, collated."""

import pickle
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.recipes import Finished, reference
from benchmarks.peer_loaders.shared import NAMES, Decoded, crop, encoded


def pack_files(source: SourceImages, root: Path) -> None:
    """A file per image: ``.jpg``, or ``.npy`` for raw crops."""
    for row in range(len(source)):
        if source.kind == "raw":
            np.save(root / f"{row:08d}.npy", source.pixels(row))
        else:
            (root / f"{row:08d}.jpg").write_bytes(source.encoded(row))


def pack_lmdb(source: SourceImages, root: Path) -> None:
    """One environment, a pickled sample per key."""
    with lmdb.open(str(root / "data.lmdb"), map_size=1 << 36, subdir=False) as env, env.begin(write=True) as txn:
        for row in range(len(source)):
            sample = (encoded(source, row), source.landmarks[row], row)
            txn.put(b"%08d" % row, pickle.dumps(sample))


def pack_hdf5(source: SourceImages, root: Path) -> None:
    """One file: arrays, chunked by sample; JPEGs as variable-length bytes."""
    with h5py.File(root / "data.h5", "w") as file:
        count = len(source)
        if source.kind == "raw":
            shape = (count, *source.pixels(0).shape)
            images = file.create_dataset("image", shape, np.uint8, chunks=(1, *shape[1:]))
        else:
            images = file.create_dataset("image", (count,), h5py.vlen_dtype(np.uint8))
        for row in range(count):
            images[row] = source.pixels(row) if source.kind == "raw" else np.frombuffer(source.encoded(row), np.uint8)
        file["landmarks"] = source.landmarks
        file["label"] = np.arange(count)


class _Rows(Dataset[tuple[Any, ...]]):
    """A dataset of these; files open in the worker that reads."""

    def __init__(self, source: SourceImages, root: Path, recipe: str = "") -> None:
        self.kind = source.kind
        self.root = root
        self.rows = len(source)
        self.landmarks = source.landmarks
        self.decode = Finished(source.kind, recipe) if recipe else Decoded(source.kind)
        self.reference = reference(recipe) if recipe else None
        self.opened: Any = None

    def __len__(self) -> int:
        return self.rows


class FileRows(_Rows):
    """Images through Pillow, as torchvision's ImageFolder opens them."""

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        if self.kind == "raw":
            return np.load(self.root / f"{row:08d}.npy"), self.landmarks[row], row
        with Image.open(self.root / f"{row:08d}.jpg") as file:
            picture = file.convert("RGB")
        if self.reference is not None:
            return self.reference(picture), self.landmarks[row], row
        image = np.array(picture)
        if self.kind.startswith("photo"):
            image = crop(image, np.random.default_rng())
        return image, self.landmarks[row], row


class LMDBRows(_Rows):
    """A transaction and a pickle per sample."""

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        if self.opened is None:
            path = str(self.root / "data.lmdb")
            self.opened = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, meminit=False)
        with self.opened.begin() as txn:
            return self.decode(*pickle.loads(txn.get(b"%08d" % row)))


class HDF5Rows(_Rows):
    """A slice of each dataset per sample."""

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        if self.opened is None:
            self.opened = h5py.File(self.root / "data.h5", "r")
        image = self.opened["image"][row]
        if self.kind != "raw":
            return self.decode(image.tobytes(), self.opened["landmarks"][row], self.opened["label"][row])
        return image, self.opened["landmarks"][row], int(self.opened["label"][row])


def _open(rows: type[_Rows], source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    loader: Any = DataLoader(
        rows(SourceImages(Path(source), kind), Path(root), recipe),
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )
    return Batches(lambda epoch: loader, NAMES)


def open_files(source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    """Over files."""
    return _open(FileRows, source, kind, root, batch, recipe)


def open_lmdb(source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    """Over LMDB."""
    return _open(LMDBRows, source, kind, root, batch, recipe)


def open_hdf5(source: str, kind: str, root: str, batch: int) -> Batches:
    """Over HDF5."""
    return _open(HDF5Rows, source, kind, root, batch)
