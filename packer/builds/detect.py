"""``packer.detect``: the build that packs where the faces are, without images."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from packer.builds.build import build
from packer.builds.result import BuildResult
from packer.jobs.progress import ProgressListener
from packer.recipe import refuse_unknown
from packer.recipe.checks import SAMPLING
from packer.recipe.options import BuildOptions
from packer.sources.base import Source

_OF_RECIPE = (
    *("format", "label_from", "classes", "classes_from", "label_names", "path_column", "keys", "limit"),
    *SAMPLING,
    *("min_face", "min_score", "fill", "detector", "device", "parity", "shard_size", "shuffle"),
    *(
        "include",
        "exclude",
        "fields_from_path",
        "sidecars",
        "frame_folders",
        "root",
        "unquoted",
        "drop",
        "text",
        "int",
        "float",
    ),
)
DETECT_OPTIONS = (*_OF_RECIPE, *(spec.name for spec in fields(BuildOptions)))
"""The options of the build that matter here, as keyword arguments and on the command line."""


def detect(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    progress: bool | ProgressListener = True,
    **options: Any,
) -> BuildResult:
    """Find the faces of a source and pack where they are, without images: later builds take them as ``boxes``.

    It is the build ``preset="faces", steps="decode,detect"``, with its resume and reports. A sample is a face in a
    frame, or a frame without a face.

    Parameters
    ----------
    source : path, sequence of mapping, or Source
        A folder, a table or rows, as for `build`.
    out : path
        Folder of the dataset: new, empty, or with the job to resume.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.
    **options
        Attributes of `Recipe` that choose items, frames, the detector and the shards, and those of `BuildOptions`.

    Returns
    -------
    BuildResult

    Raises
    ------
    UsageError
        If the call is invalid, or the folder holds something else.
    ResumeMismatchError
        If another job was begun in the folder.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the job cannot continue. The same call resumes.
    TooManyRejectsError
        If it finished with more rejects than allowed, or if no item could be read.
    """
    refuse_unknown(options, (*DETECT_OPTIONS, "progress"))
    return build(source, out, progress=progress, preset="faces", steps="decode,detect", **options)
