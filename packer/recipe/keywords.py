"""Options of a build as keyword arguments, so that type checkers find misspelt names and wrong values.

Made from `Recipe` and `BuildOptions` by ``UPDATE_KEYWORDS=1 pytest tests/test_types.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from packer.recipe.parsing import StepSpec


class DetectKeywords(TypedDict, total=False):
    """Options of `packer.detect`."""

    format: Literal["hdf5", "lmdb", "npy", "parquet", "tfrecord", "webdataset"]
    label_from: str
    classes: str | Sequence[str]
    classes_from: str | PathLike[str] | None
    label_names: str | None
    path_column: str
    path_suffix: str | None
    limit: int | None
    every: int | None
    fps: float | None
    resample_fps: float | None
    frames: int | None
    keyframes: bool
    audio: int | None
    fill: int | None
    min_face: int
    min_score: float
    detector: str
    device: str
    parity: bool
    shard_size: str | int | None
    shuffle: int | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    fields_from_path: str | None
    sidecars: bool
    frame_folders: float | None
    root: str | PathLike[str] | Sequence[str | PathLike[str]]
    keys: str | PathLike[str] | None
    unquoted: bool
    drop: str | Sequence[str]
    text: str | Sequence[str]
    intervals: str | Sequence[str]
    workers: int | Literal["auto"]
    engine: Literal["inline", "processes", "ray"]
    workers_per_node: int | None
    ray_address: str | None
    ray_gpus: float
    shared_detector: bool | None
    item_timeout: float
    on_error: Literal["skip", "fail"]
    max_rejects: float | str
    overwrite: bool
    work: str | PathLike[str] | None
    update: bool
    changed: Literal["keep", "replace"]
    gone: Literal["keep", "drop"]
    new_classes: bool
    retry_rejects: bool | str
    title: str | None
    description: str | None
    license: str | Sequence[str]
    citation: str | Sequence[str]
    homepage: str | None
    int: str | Sequence[str]
    float: str | Sequence[str]


class BuildKeywords(DetectKeywords, total=False):
    """Options of `packer.build`."""

    preset: Literal["faces", "images", "sound"]
    require_audio: bool
    channels: Literal["mono", "keep"]
    sample: Literal["frame", "track", "item", "segment"]
    seconds: float | None
    hop: float | None
    rest: Literal["drop", "pad"]
    most_seconds: float
    resize: Literal["shorter", "exact", "bucket", "none"]
    buckets: str | None
    size: int | None
    crop: Literal["face", "mouth", "nose", "eyes", "left-eye", "right-eye"]
    margin: float
    choose: Literal["all", "largest", "best", "central", "masked", "track", "main"]
    smooth: int | None
    crop_per: Literal["frame", "track", "track-median"]
    keep_faceless: bool
    landmarks: Literal["5", "68", "mesh", 5, 68]
    landmark_model: str | PathLike[str] | None
    align: bool
    align_as: Literal["arcface", "deepfakebench", "auto-avsr-4", "auto-avsr-68", "av-hubert"] | None
    boxes_from: str | None
    boxes: str | PathLike[str] | None
    boxes_scale: float
    also: str | None
    also_missing: Literal["invalid", "zero"]
    also_resample: Literal["area", "nearest"] | None
    encode: Literal["jpeg", "png", "webp", "webp-lossless", "raw", "av1", "ffv1", "h264"]
    encode_field: str | Sequence[str]
    quality: int
    gop: int | None
    subsampling: Literal["420", "422", "444", 420, 422, 444]
    progressive: Literal["keep", "baseline"]
    restart_markers: bool
    steps: str | Sequence[str | Mapping[str, Any] | StepSpec | Callable[..., Any]]
