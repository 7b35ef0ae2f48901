"""``packer.detect``: detections as a dataset of their own."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

from packer.builds.build import build
from packer.builds.pieces.share import ShareResult
from packer.builds.result import BuildResult
from packer.jobs.progress import ProgressListener
from packer.recipe import Recipe, refuse_unknown
from packer.recipe.checks import unread_options
from packer.recipe.keywords import DetectKeywords
from packer.recipe.options import OPTION_NAMES
from packer.sources.base import Source

_OF_IMAGES = (
    "preset",
    "steps",
    "also",
    "encode",
    "encode_field",
    "quality",
    "gop",
    "sample",
    "seconds",
    "hop",
    "most_seconds",
    "subsampling",
    "progressive",
    "restart_markers",
)
_NOT_DETECTING = {name for name, _ in unread_options(vars(Recipe()), OPTION_NAMES, ("decode", "detect"))}
DETECT_OPTIONS = tuple(name for name in OPTION_NAMES if name not in {*_OF_IMAGES, *_NOT_DETECTING})
"""The options of the build that matter here, as keyword arguments and on the command line."""


@overload
def detect(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    share: None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[DetectKeywords],
) -> BuildResult: ...
@overload
def detect(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    share: str,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[DetectKeywords],
) -> ShareResult: ...
def detect(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    share: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[DetectKeywords],
) -> BuildResult | ShareResult:
    """Detect the faces of a source, and pack their boxes without images, for later builds with ``boxes``.

    This is `build` with ``preset="faces", steps="decode,detect"``, including resume and reports. A sample is a face in
    a frame, or a frame without a face.

    Parameters
    ----------
    source : path, sequence of mapping, or Source
        A folder, a table or rows, as for `build`.
    out : path or str
        Output folder or URL, as for `build`; must be new, empty, or hold an unfinished job to resume.
    share : str, optional
        Pack only share K of N, such as 2/8, into pieces for `packer.merge` (see `build`).
    storage_options : mapping, optional
        See `build`.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.
    **options
        Attributes of `Recipe` for the items, frames, detector and shards, and all attributes of `BuildOptions`.

    Returns
    -------
    BuildResult or ShareResult
        A `ShareResult` with `share`.

    Raises
    ------
    UsageError
        If the call is invalid, or the folder holds other files.
    ResumeMismatchError
        If the folder holds the unfinished job of another call.
    BuildLockedError
        If another process is building in the folder.
    BuildError
        If the job cannot continue. Repeat the call to resume.
    TooManyRejectsError
        If the job finished with more rejects than allowed, or if no item could be read.
    """
    refuse_unknown(options, (*DETECT_OPTIONS, "storage_options", "progress"))
    chosen: dict[str, Any] = {"preset": "faces", "steps": "decode,detect", **options}
    return build(source, out, share=share, storage_options=storage_options, progress=progress, **chosen)
