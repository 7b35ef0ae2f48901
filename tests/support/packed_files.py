"""Packed datasets with images and geometry that a face dataset could have."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.packed_rows import PackedRows
from packer.assembly.samples import PackedSamples
from shardspec.columns import Columns
from shardspec.manifest import Manifest
from shardspec.schema import Schema
from support.datasets import face_schema, values_for, write_dataset
from support.media import photograph


def face_columns(rows: int, *, codec: str | None = None, size: int = 32, groups: int = 3, seed: int = 0) -> Columns:
    """Values of `face_schema`: crops of a photograph, points inside them, keys and sources as a build makes them."""
    schema = face_schema(size, codec)
    rng = np.random.default_rng(seed)
    photo = photograph("astronaut")
    corners = rng.integers(0, min(photo.shape[:2]) - size, (rows, 2)).tolist()
    images = [photo[y : y + size, x : x + size] for y, x in corners]
    columns = values_for(schema, rows)
    columns["key"] = [f"{row % groups:08d}-{row // groups:06d}" for row in range(rows)]
    columns["source"] = [f"person{row % groups}/vidéo {row % groups}.mp4" for row in range(rows)]
    columns["image"] = images if codec else np.stack(images) if images else columns["image"]
    columns["landmarks"] = rng.uniform(0, size, (rows, 5, 2)).astype("<f4")
    columns["hull"] = rng.uniform(0, size, (rows, 16, 2)).astype("<f4")
    for name, boxes in (("regions", 4), ("box", 1)):
        corner = rng.uniform(0, size / 2, (rows, boxes, 2))
        values = np.concatenate([corner, corner + rng.uniform(1, size / 2, (rows, boxes, 2))], axis=2).astype("<f4")
        columns[name] = values if name == "regions" else values[:, 0]
    columns["matrix"] = np.tile(np.array([[0.5, 0, 3], [0, 0.5, -4]], "<f4"), (rows, 1, 1))
    columns["score"] = rng.uniform(0.9, 1, rows).astype("<f4")
    columns["frame"] = np.arange(rows) * 10
    columns["time"] = np.arange(rows) / 2.5
    columns["track"] = np.full(rows, -1)
    return columns


def write_faces(
    root: Path, rows: int = 12, format: str = "lmdb", *, shard_rows: int | None = 5, **more: Any
) -> Manifest:
    """A packed dataset of `face_columns`. It is written once a process, and then copied."""
    made, manifest = _write_faces(rows, format, shard_rows, tuple(sorted(more.items())))
    shutil.copytree(made, root, dirs_exist_ok=True)
    return manifest


@cache
def _write_faces(
    rows: int, format: str, shard_rows: int | None, more: tuple[tuple[str, Any], ...]
) -> tuple[Path, Manifest]:
    root = Path(tempfile.mkdtemp(prefix="packer-tests-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    given = dict(more)
    schema: Schema = face_schema(given.get("size", 32), given.get("codec"))
    return root, write_dataset(root, format, schema, face_columns(rows, **given), shard_rows=shard_rows)


def files_below(root: Path) -> dict[str, bytes]:
    """The contents of all files in a folder, by their paths in it."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def read_all(root: Path) -> Columns:
    """The encoded rows of a dataset."""
    rows = PackedRows.of(root)
    columns = rows.read(np.arange(len(rows)), rows.schema.names)
    out = {name: c if isinstance(c, np.ndarray) else [bytes(value) for value in c] for name, c in columns.items()}
    rows.close()
    return out


def samples_of(root: Path) -> list[dict[str, Any]]:
    """All samples of a dataset, decoded."""
    samples = PackedSamples(root)
    found = samples.read(range(len(samples)))
    samples.rows.close()
    return found
