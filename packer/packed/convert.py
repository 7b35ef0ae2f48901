"""``packer convert``: the same samples in another format, bit for bit."""

import os

from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import JobResult
from packer.packed.plan import open_input, plan_copy
from packer.recipe.options import BuildOptions
from packer.workspace.folder import output_folder
from readers.staging.layout import dataset_folder


def convert(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str,
    shard_size: str | int | None = None,
    shuffle: int | None = None,
    workers: str | int = "auto",
    engine: str = "processes",
    overwrite: bool = False,
    progress: bool | ProgressListener = True,
) -> JobResult:
    """Write a copy of a packed dataset in another format. Nothing is decoded; the same call again resumes.

    The manifest keeps the record of how the samples were made (recipe, library versions, counts, fingerprint), except
    format, shard size and shuffle. So a chain of conversions back to the first format ends with the same shards and
    manifest.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path
        A folder that is new, empty, or holds the conversion to resume.
    format : str
        Format of the new shards. A name in `shardspec.formats.FORMATS`.
    shard_size : int or str, optional
        Encoded bytes per shard, at least 1, also as ``"256MB"`` or ``"64MiB"``; by default as the dataset was packed.
    shuffle : int, optional
        Seed of a new stored order, at least 0.
    workers : int or "auto"
        Number of worker processes; ``"auto"`` chooses it by the usable cores and memory.
    engine : {"processes", "inline", "ray"}
        Where the work runs: in worker ``"processes"``, ``"inline"`` in this process, or on the Ray cluster that
        ``RAY_ADDRESS`` names.
    overwrite : bool
        Whether to replace the packed dataset or unfinished job in the folder.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    JobResult

    Raises
    ------
    UsageError
        If the call is invalid, or if the folder holds something else.
    DatasetError
        If the dataset cannot be read, or one of its files does not match the manifest.
    ResumeMismatchError
        If the folder holds another unfinished job.
    BuildLockedError
        If another process works in the folder.
    BuildError
        If the job cannot continue. The same call resumes it.
    """
    target = output_folder(out)
    inputs = [open_input(dataset_folder(dataset), target)]
    plan = plan_copy("convert", inputs, {"format": format, "shard_size": shard_size, "shuffle": shuffle})
    options = BuildOptions(workers=workers, engine=engine, overwrite=overwrite)
    return Job(plan, target, options, listener_of(progress)).run()
