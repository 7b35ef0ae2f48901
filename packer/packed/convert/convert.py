"""``packer convert``: the same samples in another format, bit for bit; or frames as tracks, and tracks as frames."""

import os

from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import JobResult
from packer.jobs.upload import output_place
from packer.packed.plan import open_input, plan_copy
from packer.recipe.options import BuildOptions
from packer.sources.stores.packed import partial_folder
from shardspec.codecs import video_types
from shardspec.errors import UsageError
from shardspec.registry import import_target


def convert(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    sample: str | None = None,
    encode: str | None = None,
    quality: int | None = None,
    gop: int | None = None,
    subsampling: str | None = None,
    most_seconds: float | None = None,
    shard_size: str | int | None = None,
    shuffle: int | None = None,
    workers: str | int = "auto",
    engine: str = "processes",
    overwrite: bool = False,
    progress: bool | ProgressListener = True,
) -> JobResult:
    """Write a copy of a packed dataset in another format, or with other samples. The same call again resumes.

    Without `sample`, nothing is decoded. The manifest keeps the record of how the samples were made (recipe, library
    versions, counts, fingerprint), except format, shard size and shuffle. So a chain of conversions back to the first
    format ends with the same shards and manifest.

    With `sample`, frames become tracks or videos as `packer.build` makes them, without its detector, or tracks become
    frames. Items, rejects and the values of all fields stay. Numbers and texts that are the same in all frames of a
    sample are stored once; all others get a first axis of T. The images are encoded again, which is exact only from and to
    encodings without loss.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    out : path or str
        A folder that is new, empty, or holds the conversion to resume; or a URL, as for `packer.build`.
    format : str, optional
        Format of the new shards, with `sample` by default the dataset's. A name in `shardspec.formats.FORMATS`.
    sample : {"frame", "track", "item"}, optional
        Samples of the new dataset, if they change: frames, tracks of a face, or whole videos.
    encode : str, optional
        With `sample`: encoding of the images (default: jpeg) or videos (default: h264), as in `packer.build`.
    quality, gop, subsampling
        With `sample`: see `packer.Recipe`.
    most_seconds : float, optional
        With `sample`: divide tracks and videos that are longer than this, in seconds (default: 30).
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
        A `BuildResult` with `sample`.

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
    target, upload = output_place(out)
    inputs = [open_input(partial_folder(dataset, whole_shards=True), target if upload is None else upload.url)]
    options = BuildOptions(workers=workers, engine=engine, overwrite=overwrite)
    given = {"encode": encode, "quality": quality, "gop": gop, "subsampling": subsampling, "most_seconds": most_seconds}
    given = {name: value for name, value in given.items() if value is not None}
    if sample is not None:
        given |= {"shard_size": shard_size, "shuffle": shuffle, **({} if format is None else {"format": format})}
        regroup = import_target("packer.packed.convert.regroup:regroup", what="--sample", extra="pack")
        made: JobResult = regroup(inputs[0], target, sample, given, options, listener_of(progress), upload)
        return made
    for name in given:
        frames = inputs[0].manifest.schema.holds_tracks and encode not in video_types()
        samples = "frame" if frames else "track or item"
        raise UsageError("read only with `sample`", option=name, hint=f"choose `sample` {samples}")
    if format is None:
        raise UsageError(option="format", expected="a format, or `sample` for other samples", found="neither")
    plan = plan_copy("convert", inputs, {"format": format, "shard_size": shard_size, "shuffle": shuffle})
    return Job(plan, target, options, listener_of(progress), upload).run()
