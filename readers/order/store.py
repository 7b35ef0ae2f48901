"""Where a dataset that is read is stored."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Store:
    """A packed dataset, or the part of it that is read.

    Attributes
    ----------
    bytes : int
        Bytes that an epoch reads if it reads all fields.
    digest : str
        Identity of the whole dataset (`shardspec.manifest.Manifest.digest`).
    """

    root: Path
    bytes: int
    digest: str
