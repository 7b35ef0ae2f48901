"""``packer convert``: the same samples in another format, bit for bit."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from packer.jobs.job import JobResult
from packer.jobs.row_job import run_row_job
from packer.packed.plan import arrange_whole, open_input, plan_of
from packer.packed.row_reports import write_reports
from packer.recipe.options import BuildOptions


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str,
    shard_size: int | None = None,
    shuffle: int | None = None,
    progress: bool = True,
    **how: Any,
) -> JobResult:
    """Write a packed dataset once more in another format. Nothing is decoded; the same call again resumes.

    What the manifest says of the samples' making (recipe, library versions, counts, fingerprint) is kept, but for the format,
    the shard size and the shuffle; so a chain of conversions ends with the shards and the manifest that it began with.

    Parameters
    ----------
    source : path
        A packed dataset.
    out : path
        A new or empty folder, or that of the conversion to go on with.
    format : str
        A name in `shardspec.formats.FORMATS`.
    shard_size : int, optional
        Encoded bytes of a shard; by default as it was packed.
    shuffle : int, optional
        Seed of a new stored order.
    **how
        ``workers``, ``engine`` and ``overwrite`` of `packer.recipe.options.BuildOptions`.

    Raises
    ------
    DatasetError
        The source cannot be read, or a file of it is not what its manifest says.
    UsageError, ResumeMismatchError, BuildLockedError, BuildError
        See `packer.jobs.row_job.run_row_job`.
    """
    target = Path(out).absolute()
    inputs = [open_input(Path(source), target)]
    plan = plan_of("convert", inputs, {"format": format, "shard_size": shard_size, "shuffle": shuffle})
    arrangement = arrange_whole(plan, partial(write_reports, inputs=inputs))
    return run_row_job(arrangement, target, BuildOptions(**how), shown=progress)
