"""Packed datasets that are read, each with its place, size and identity."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Store:
    """A packed dataset, or the part of it that is read.

    Attributes
    ----------
    root : Path
    bytes : int
        Bytes that an epoch reads if it reads all fields.
    digest : str
        The dataset's identity (`shardspec.manifest.Manifest.digest`), whatever part of it is read.
    """

    root: Path
    bytes: int
    digest: str
