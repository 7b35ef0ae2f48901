"""``packer inspect --statistics``: mean and standard deviation of the channels of a dataset's images."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.analysis.compute.compute import compute
from packer.jobs.progress import ProgressListener
from packer.jobs.result import Result
from packer.workspace.folder import output_folder
from shardspec.columns import PIXEL_STATISTICS, ChannelStatistics, channel_statistics
from shardspec.registry import import_target
from shardspec.wording import counted


@dataclass(frozen=True, repr=False)
class PixelStatistics(Result):
    """Mean and standard deviation of each channel.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    samples : int
    channels : ChannelStatistics
    """

    path: Path
    samples: int
    channels: ChannelStatistics

    def describe(self) -> str:
        """Describe them, as `readers.augment.Normalize` takes them."""
        numbers = [", ".join(f"{value:.6f}" for value in values) for values in (self.channels.mean, self.channels.std)]
        return (
            f"{self.path}: {counted(self.samples, 'sample')}, {counted(self.channels.pixels, 'pixel')}\n"
            f"mean: {numbers[0]}\nstd: {numbers[1]}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        facts = {name: list(getattr(self.channels, name)) for name in ("mean", "std")}
        return {"path": str(self.path), "samples": self.samples, "pixels": self.channels.pixels, **facts}


def pixel_statistics(dataset: str | os.PathLike[str], *, progress: bool | ProgressListener = True) -> PixelStatistics:
    """Return mean and standard deviation of the channels of all pixels, for levels scaled to 0 to 1.

    The exact sums of each image are stored as the column ``pixel_statistics``, as `packer.compute` with
    ``"statistics"`` does. So ``Normalize(stats=ds)`` knows them, also those of a part of the dataset.

    Parameters
    ----------
    dataset : path
        A packed dataset with images.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    PixelStatistics

    Raises
    ------
    UsageError, DatasetError, BuildLockedError, BuildError
        See `compute`.
    """
    path = output_folder(dataset, "dataset")
    compute(path, "statistics", progress=progress)
    opened = import_target("readers:open_dataset", what="statistics", extra="torch")(path)
    return PixelStatistics(Path(dataset), len(opened), channel_statistics(opened.column(PIXEL_STATISTICS)))
