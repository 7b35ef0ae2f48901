"""The recipe: all options that affect the bytes of the dataset. It is checked when created, and frozen."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from os import PathLike
from typing import Any

from packer.recipe.buckets import Bucket, parse_buckets
from packer.recipe.checks import (
    SAMPLING,
    check_value,
    documented,
    kinds_of,
    option,
    parse_bytes,
    plain_value,
    unread_options,
)
from packer.recipe.parsing import (
    ENCODINGS,
    VIDEO_ENCODINGS,
    StepSpec,
    encodings_with,
    parse_field_encoding,
    video_encodings_with,
)
from shardspec.codecs import video_types
from shardspec.errors import Problems, UsageError
from shardspec.fields import field_name
from shardspec.formats import FORMATS
from shardspec.layout import describe_url, is_url
from shardspec.schema import NamedConfig, class_name, describe_wrong_classes
from shardspec.wording import did_you_mean, list_some, shorten

PRESETS: Mapping[str, tuple[str, ...]] = {
    "faces": ("decode", "faces"),
    "images": ("decode", "resize"),
    "sound": ("sound",),
}
"""The built-in steps of each preset, in order."""

_CHAINS = {preset: tuple(map(StepSpec, steps)) for preset, steps in PRESETS.items()}

_TAKEN: Mapping[str, tuple[str, ...]] = {"sound": ("sound",)}
"""Names of the media that a step takes, if they are not images and videos."""

DEFAULT_FACE_SIZE = 224
ALIGNED_SIZES: Mapping[str, int] = {
    "arcface": 112,
    "deepfakebench": 256,
    "auto-avsr-4": 96,
    "auto-avsr-68": 96,
    "av-hubert": 96,
}
"""Values of ``align_as``, and the default side of each project's crops in pixels."""

OF_PARTS: Mapping[str, str | None] = {"auto-avsr-4": None, "auto-avsr-68": "68", "av-hubert": "68"}
"""Values of ``align_as`` that define crops of a part of a face, and the value of ``landmarks`` that they need."""

DETECTORS = ("auto", "openvino", "torch")
"""Values of ``detector`` that select MTCNN."""

_SMALLEST_FOUND = 20
"""Smallest face that MTCNN detects, in pixels. Boxes and custom detectors may have smaller ones."""

DEFAULT_ENCODING, DEFAULT_VIDEO_ENCODING = "jpeg", "h264"
DEFAULT_QUALITY = 95
DEFAULT_SUBSAMPLING = "420"
DEFAULT_GOP = 4
"""Frames from one key frame to the next: a clip decodes 1.5 frames before its first one, on average."""
MOST_OVERLAP = 16
"""Segments that a frame is in at most. Each of them has an encoder with its own frames."""
TRACK_RULES = ("track", "main")
"""Values of ``choose`` that keep one track per video."""

TEXT_LISTS = (
    *("root", "drop", "text", "int", "float", "intervals", "include", "exclude", "encode_field"),
    *("license", "citation"),
)
"""Options that may be repeated."""

MAX_SIZE = 8192
"""Largest side of resized images in pixels; one takes 200 MB."""


@documented
@dataclass(frozen=True)
class Recipe:
    """Options of a build that affect its output. Each is an option of ``packer build`` and a key of a recipe file.

    Raises
    ------
    UsageError
        If a value is invalid; the message lists everything that is wrong.
    """

    preset: str = option("images", "pipeline to run on each item", choices=tuple(PRESETS))
    format: str = option("lmdb", "format of the shards", choices=tuple(sorted(FORMATS)))

    label_from: str = option(
        "auto",
        "source of labels: 'folder' (first folder level), 'none', or a column of the table, of --fields-from-path or of "
        "--sidecars; 'auto' uses the column 'label' if it exists",
    )
    classes: tuple[str, ...] = option(
        (),
        "classes in the order of their numbers, separated by commas (default: those of the source, sorted)",
        metavar="NAME,…",
        commas=True,
    )
    classes_from: str | None = option(
        None,
        "take the classes from a packed dataset, a text file with a name per line, or JSON",
        metavar="DATASET",
        path=True,
    )
    label_names: str | None = option(None, "tables: column with the class names of numeric labels", metavar="COLUMN")
    path_column: str = option(
        "path", "tables: column with the path; in Parquet files with embedded images, the column with the images"
    )
    path_suffix: str | None = option(
        None, "tables: suffix to append to each path, such as .jpg, if the column holds ids", metavar="SUFFIX"
    )
    limit: int | None = option(None, "pack only the first N items", metavar="N", minimum=1)

    every: int | None = option(None, "videos: keep every N-th frame (default: 1)", metavar="N", minimum=1)
    fps: float | None = option(
        None, "videos: sample frames at this rate, in frames per second", metavar="RATE", above=0
    )
    resample_fps: float | None = option(
        None,
        "videos: take the frame nearest to each tick of this rate, in frames per second; a frame may be repeated",
        metavar="RATE",
        above=0,
    )
    frames: int | None = option(None, "videos: keep N evenly spaced frames", metavar="N", minimum=1)
    keyframes: bool = option(False, "videos: keep only key frames")
    audio: int | None = option(
        None,
        "rate of the sound in samples per second (usually 16000). videos: store the sound of each frame's interval in "
        "the field audio, mono and 16 bits; sound files: resample to this rate (default: that of the file)",
        metavar="RATE",
        minimum=1000,
        maximum=192_000,
    )
    require_audio: bool = option(False, "reject items without sound")
    channels: str = option(
        "mono", "sound files: mix the channels into one, or keep them, as (C, N)", choices=("mono", "keep")
    )
    sample: str = option(
        "frame",
        "videos: make a sample of each frame; of each track of a face, or each whole video, as a video in the field video; "
        "or of pieces of --seconds of either (segment)",
        choices=("frame", "track", "item", "segment"),
    )
    seconds: float | None = option(
        None,
        "--sample segment, and sound files: cut pieces of S seconds (default of sound: the whole file)",
        metavar="S",
        above=0,
    )
    hop: float | None = option(
        None,
        "--sample segment, and sound files: seconds from the start of one piece to the next (default: --seconds)",
        metavar="S",
        above=0,
    )
    rest: str = option(
        "drop",
        "sound files: drop what is left after the last whole piece, or pad it with zeros to a piece",
        choices=("drop", "pad"),
    )
    most_seconds: float = option(
        30.0, "--sample track and item: divide samples that are longer than S seconds", metavar="S", above=0
    )

    resize: str = option(
        "shorter",
        "images: scale the shorter side to --size, both sides to exactly --size, or crop and scale to a shape of --buckets",
        choices=("shorter", "exact", "bucket", "none"),
    )
    buckets: str | None = option(
        None,
        "shapes of --resize bucket: WIDTHxHEIGHT,… or a rule such as area=512²,step=64,max-ratio=2; each image gets the "
        "shape that crops the least, and the field bucket names it",
        metavar="SHAPES",
    )
    size: int | None = option(
        None,
        "side in pixels (default: images unchanged, faces 224 or the size of --align-as)",
        metavar="PX",
        minimum=1,
        maximum=MAX_SIZE,
    )

    crop: str = option(
        "face",
        "faces: cut the face, or 96 pixels around the mouth, the nose or the eyes on a template (--align-as)",
        choices=("face", "mouth", "nose", "eyes", "left-eye", "right-eye"),
    )
    margin: float = option(
        0.3, "faces: margin on each side of the box, relative to its longer side", metavar="SHARE", minimum=0
    )
    choose: str = option(
        "all",
        "faces: keep all faces of a frame, the largest, the one with the best score, the most central, or the one under "
        "the mask of --also (masked); of a video, keep the longest track (track) or the one with the largest area (main)",
        choices=("all", "largest", "best", "central", "masked", *TRACK_RULES),
    )
    smooth: int | None = option(
        None,
        "faces: steady the crops of a face in a video: average its size, shape and angle over N sampled frames of its "
        "track (odd; 13 removes the detector's jitter), and follow its motion",
        metavar="N",
        minimum=3,
    )
    fill: int | None = option(
        None,
        "faces: interpolate a face of a video where its track misses up to N sampled frames in a row (field "
        "interpolated)",
        metavar="N",
        minimum=1,
    )
    crop_per: str = option(
        "frame",
        "faces: cut each frame by its own box, or all frames of a track by one square: the smallest around all boxes of "
        "the track (track), or that of their median (track-median)",
        choices=("frame", "track", "track-median"),
    )
    min_face: int = option(
        40, "faces: smallest shorter side of a box to keep, in pixels of the frame", metavar="PX", minimum=1
    )
    min_score: float = option(0.95, "faces: lowest detector score of a face to keep", metavar="P", minimum=0, maximum=1)
    detector: str = option(
        "auto",
        "faces: runtime of MTCNN (auto, openvino or torch), or module:function that returns another detector",
        metavar="NAME",
    )
    device: str = option("cpu", "faces: device of the detector; for MTCNN, any but cpu needs the torch runtime")
    parity: bool = option(False, "faces: search the whole image pyramid from 20 px on, as facenet-pytorch does")
    keep_faceless: bool = option(
        False, "faces: keep the whole frames, resized, of an item without faces, with landmarks_valid false"
    )
    landmarks: str = option(
        "5",
        "faces: landmarks to store: the detector's 5 points, dlib's 68, or a face mesh",
        choices=("5", "68", "mesh"),
    )
    landmark_model: str | None = option(None, "faces: .tflite file for --landmarks mesh", metavar="FILE", path=True)
    align: bool = option(False, "faces: rotate and scale the crop so that the 5 points fit the usual template")
    align_as: str | None = option(
        None,
        "faces: crop as InsightFace's norm_crop (arcface, --size 112) or DeepfakeBench's preprocessing (deepfakebench, "
        "--size 256) would, given the same 5 points; with --crop mouth, as auto_avsr or AV-HuBERT (default: auto-avsr-68 "
        "with --landmarks 68, else auto-avsr-4, which needs 5 points)",
        choices=tuple(ALIGNED_SIZES),
    )

    boxes_from: str | None = option(
        None, "faces: column with the path of another item whose face boxes crop this one", metavar="COLUMN"
    )
    boxes: str | None = option(
        None,
        "faces: use these boxes instead of a detector: a packed dataset (of crops, or of packer detect), a table, or a "
        "folder of JSON files",
        metavar="FILE",
        path=True,
    )
    boxes_scale: float = option(
        1.0,
        "faces: scale the coordinates in --boxes by this factor (2 if they belong to half-size frames)",
        metavar="S",
        above=0,
    )
    also: str | None = option(
        None,
        "column with the path of a second image or video, such as a mask, which is cropped or resized like the first "
        "and stored without loss in the field COLUMN_image",
        metavar="COLUMN",
    )
    also_missing: str = option(
        "invalid",
        "for rows without a path in the column of --also: set COLUMN_image_valid to false (invalid), or store a valid "
        "image of zeros, such as the mask of a real video (zero)",
        choices=("invalid", "zero"),
    )
    also_resample: str | None = option(
        None,
        "resize masks and other extra images by area averaging (default for faces) or nearest pixel (for images); "
        "required if a packed dataset has extra images",
        choices=("area", "nearest"),
    )

    encode: str = option(
        None,
        "encoding of images (default: jpeg), or of videos with --sample track, item and segment (h264, av1, ffv1; default: "
        "h264); masks and other extra images are stored without loss",
        choices=(*ENCODINGS, *VIDEO_ENCODINGS),
        usual=DEFAULT_ENCODING,
    )
    encode_field: tuple[str, ...] = option(
        (),
        "encoding of another field of images or videos, with an optional quality, such as ir_image=jpeg:90, "
        "depth_image=png or ir_video=av1:30 (repeatable)",
        metavar="FIELD=HOW",
    )
    quality: int = option(
        None,
        f"quality of {' and '.join(encodings_with('quality'))}, 1 to 100 (default: {DEFAULT_QUALITY}); of videos, less is "
        "better: h264 0 to 51 (QP; default: 21), av1 1 to 63 (CRF; default: 25)",
        metavar="Q",
        minimum=0,
        maximum=100,
        usual=DEFAULT_QUALITY,
    )
    gop: int | None = option(
        None,
        "largest number of frames from one key frame to the next in videos: fewer make clips faster to read and files "
        "larger (default: 4)",
        metavar="N",
        minimum=1,
    )
    subsampling: str = option(
        DEFAULT_SUBSAMPLING, "chroma subsampling of JPEG, and of h264 (420 or 444)", choices=("420", "422", "444")
    )
    progressive: str = option(
        "keep",
        "keep progressive JPEGs that need no change, or rewrite them as baseline (same pixels, decoded 3 times faster)",
        choices=("keep", "baseline"),
    )
    restart_markers: bool = option(
        False,
        "write restart markers into encoded JPEGs, so that readers decode only the region of a random crop",
    )
    steps: tuple[StepSpec, ...] = option(
        (), "run these steps instead of the preset's: names or module:function, separated by commas"
    )

    shard_size: int | None = option(
        None,
        "largest size of a shard in bytes of encoded samples (default: 256MB, from 32MB on in the first shards)",
        metavar="SIZE",
        bytes=True,
    )
    shuffle: int | None = option(None, "store the samples in a random order with this seed", metavar="SEED", minimum=0)

    include: tuple[str, ...] = option(
        (),
        "folders: pack only files that match a .gitignore pattern, such as '*.png', 'train/*/*.jpg' or 'train/' "
        "(repeatable)",
        metavar="GLOB",
    )
    exclude: tuple[str, ...] = option(
        (),
        "folders: ignore files and folders that match a .gitignore pattern (repeatable)",
        metavar="GLOB",
    )
    fields_from_path: str | None = option(
        None,
        "folders and archives: take fields from the path below SOURCE or in the archive, such as "
        "'{split}/{label}/{person}_{clip}.mp4'; * matches any characters, ** any folders",
        metavar="PATTERN",
    )
    sidecars: bool = option(
        False,
        "folders: take fields from NAME.txt (field text) or NAME.json next to each item",
    )
    frame_folders: float | None = option(
        None,
        "folders and tables: treat a folder of images as a video at this rate in frames per second; the last number in "
        "a file name is the frame's",
        metavar="FPS",
        minimum=0.001,
    )
    root: tuple[str, ...] = option(
        (),
        "tables: folder, or URL in a store, that holds the files and to which paths are relative (default: the table's "
        "folder); folders: another folder into which links may lead (repeatable)",
        metavar="DIR",
        path=True,
        url=True,
    )
    keys: str | None = option(
        None,
        "archives: pack only these keys, with labels or other columns (.json, .txt, or a table with a column 'key')",
        metavar="FILE",
        path=True,
    )
    unquoted: bool = option(
        False,
        "tables: take quotation marks in a CSV or TSV file as ordinary characters",
    )
    drop: tuple[str, ...] = option((), "column of a table, a path or sidecars to ignore (repeatable)", metavar="COLUMN")
    text: tuple[str, ...] = option(
        (),
        "column of a table, a path or sidecars to read as text, even if it looks like numbers (repeatable)",
        metavar="COLUMN",
    )
    intervals: tuple[str, ...] = option(
        (),
        "videos: column with a list of [start, end] in seconds; its field says whether the frame's time lies in one "
        "of them, start included (repeatable)",
        metavar="COLUMN",
    )
    # Last, because they hide the builtin types in the lines after them.
    int: tuple[str, ...] = option((), "column to read as integers (repeatable)", metavar="COLUMN")
    float: tuple[str, ...] = option((), "column to read as floats (repeatable)", metavar="COLUMN")

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", StepSpec.parse_all(self.steps))
        if self.encode is None:
            encoding = DEFAULT_ENCODING if self.sample == "frame" else DEFAULT_VIDEO_ENCODING
            object.__setattr__(self, "encode", encoding)
        if self.quality is None:
            video = video_types().get(str(self.encode))
            *_, usual = (DEFAULT_QUALITY,) if video is None or video.quality is None else video.quality
            object.__setattr__(self, "quality", usual)
        problems = Problems(of_options=True)
        settle(self, problems)
        if self.crop != "face" and self.align_as is None and "faces" in self._used():
            object.__setattr__(self, "align_as", "auto-avsr-68" if self.landmarks == "68" else "auto-avsr-4")
        options = vars(self)
        given = [
            spec.name for spec in fields(self) if options[spec.name] not in (spec.default, spec.metadata.get("usual"))
        ]
        self._check_videos(problems)
        chosen = [name for name in SAMPLING if name in given]
        if len(chosen) > 1:
            problems.add(chosen[-1], expected=f"at most one of {', '.join(SAMPLING)}", found=" and ".join(chosen))
        if self.audio is not None and (self.frames is not None or self.keyframes):
            found = "frames" if self.frames is not None else "keyframes"
            problems.add("audio", expected="frames that follow one another: every, fps or resample_fps", found=found)
        if isinstance(self.detector, str) and not self.has_custom_detector and self.detector not in DETECTORS:
            like = did_you_mean(self.detector, DETECTORS)
            known = ", ".join(DETECTORS)
            problems.add("detector", expected=f"{known} or module:function", found=f"{shorten(self.detector)}{like}")
        if self.parity and self.has_custom_detector:
            problems.add("parity", f"read only with detector {', '.join(DETECTORS)}, found {self.detector}")
        if self.detector == "openvino" and self.device != "cpu":
            problems.add(
                "detector", f"openvino runs on the CPU only, found device {self.device}", hint="take --detector torch"
            )
        if self.landmarks == "mesh" and self.landmark_model is None:
            problems.add(
                "landmark_model",
                expected="the path of a face mesh's .tflite file with landmarks mesh",
                found="none",
                hint="MediaPipe's face_landmark.tflite is one (docs/howto/landmarks.md says where it is)",
            )
        looks = self.boxes is None and not self.has_custom_detector
        if type(self.min_face) is int and 1 <= self.min_face < _SMALLEST_FOUND and looks:
            problems.add("min_face", expected=f"{_SMALLEST_FOUND} or more without boxes", found=self.min_face)
        if self.choose == "masked" and self.also is None:
            problems.add("choose", expected="also, the column of the masks, with choose masked", found="none")
        if self.classes and self.classes_from is not None:
            problems.add("classes", expected="either classes or classes_from", found="both")
        used = self._used()
        self._check_tracks(problems)
        self._check_parts(problems)
        if self.align_as == "arcface" and isinstance(self.size, int) and self.size % 112 and self.size % 128:
            problems.add("size", expected="a multiple of 112 or 128 with align_as arcface", found=self.size)
        if self.sidecars and self.frame_folders is not None:
            problems.add("sidecars", expected="either sidecars or frame_folders", found="both")
        self._check_encodings(problems)
        self._check_buckets(problems)
        for name, problem in unread_options(options, given, used):
            problems.add(name, problem)
        problems.raise_as(UsageError)
        if self.size is None and "faces" in used:
            object.__setattr__(self, "size", ALIGNED_SIZES.get(str(self.align_as), DEFAULT_FACE_SIZE))

    def _check_videos(self, problems: Problems) -> None:
        """Check the options for samples of several frames, and settle those that depend on the encoding."""
        if self.sample == "frame":
            if self.encode in VIDEO_ENCODINGS:
                problems.add("encode", f"{self.encode} is for videos", hint="add --sample track, item or segment")
            elif self.quality == 0:
                problems.add("quality", expected="1 or more", found=0)
            return
        video = video_types().get(str(self.encode))
        if video is None:
            known = ", ".join(VIDEO_ENCODINGS)
            problems.add("encode", expected=f"one of {known} with sample {self.sample}", found=self.encode)
        if self.encode == "h264" and self.subsampling == "422":
            problems.add("subsampling", expected="420 or 444 with encode h264", found="422")
        if video is not None and video.quality is not None:
            low, high, _ = video.quality
            if isinstance(self.quality, int) and not low <= self.quality <= high:
                problems.add("quality", expected=f"{low} to {high} with encode {self.encode}", found=self.quality)
        if self.gop is None and self.encode in video_encodings_with("gop"):
            object.__setattr__(self, "gop", DEFAULT_GOP)
        if self.sample == "segment" and self.seconds is None:
            problems.add("seconds", expected="the length of a piece with sample segment, such as 2", found="none")
        if isinstance(self.hop, Real) and isinstance(self.seconds, Real) and self.seconds > MOST_OVERLAP * self.hop:
            problems.add(
                "hop",
                expected=f"at least {self.seconds / MOST_OVERLAP:g} with seconds {self.seconds:g}, so that a frame is in "
                f"at most {MOST_OVERLAP} pieces, which are encoded at the same time",
                found=self.hop,
            )

    def _check_parts(self, problems: Problems) -> None:
        """Check the options for crops of a part of a face."""
        if self.align_as not in ALIGNED_SIZES:
            return
        of_parts = self.align_as in OF_PARTS
        if of_parts and self.crop == "face":
            problems.add("crop", expected=f"mouth, or another part, with align_as {self.align_as}", found="face")
        if not of_parts and self.crop != "face":
            problems.add("align_as", expected=f"{', '.join(OF_PARTS)} with crop {self.crop}", found=self.align_as)
        needed = OF_PARTS.get(str(self.align_as))
        if needed is not None and self.landmarks != needed:
            problems.add(
                "landmarks",
                expected=f"{needed} with align_as {self.align_as}",
                found=self.landmarks,
                hint="choose auto-avsr-4, which needs five points",
            )

    def _check_tracks(self, problems: Problems) -> None:
        """Check the options for crops that are steady over a track."""
        if isinstance(self.smooth, int) and self.smooth % 2 == 0:
            problems.add(
                "smooth", expected="an odd number, so that the frame is in the middle of its window", found=self.smooth
            )
        if self.crop_per == "track" and (self.align or self.align_as is not None):
            problems.add(
                "crop_per",
                "an aligned crop follows the points of a face, not the square around all boxes of its track",
                hint="choose track-median",
            )

    def _check_buckets(self, problems: Problems) -> None:
        if self.resize != "bucket" or "resize" not in self._used():
            return
        if self.buckets is None:
            problems.add("buckets", expected="shapes for resize bucket, such as area=512²,step=64", found="none")
            return
        try:
            _ = self.shapes
        except UsageError as error:
            problems.add("buckets", expected=error.expected, found=error.found)

    def _check_encodings(self, problems: Problems) -> None:
        names: list[str] = []
        for text in self.encode_field:
            try:
                name, _ = parse_field_encoding(text, self._encoding_options)
            except UsageError as error:
                problems.add("encode_field", str(error))
                continue
            if name in names:
                problems.add("encode_field", expected=f"one encoding of {name}", found="two")
            names.append(name)

    @property
    def chain(self) -> tuple[StepSpec, ...]:
        """The steps of the recipe: `steps` if set, otherwise the steps of the preset."""
        return self.steps or _CHAINS[self.preset]

    @property
    def reads_sound(self) -> bool:
        """True if the items are sound files."""
        return "sound" in self.media

    @property
    def media(self) -> tuple[str, ...]:
        """Names of the media of the items, which the first step that reads files takes (`packer.vision.media.MEDIA`)."""
        return next((_TAKEN[step] for step in self._used() if step in _TAKEN), ("image", "video"))

    def options_in_use(self) -> dict[str, Any]:
        """Return the options that a step or source reads, as JSON."""
        unread = {name for name, _ in unread_options(vars(self), [spec.name for spec in fields(self)], self._used())}
        if self.path_column == type(self).path_column:  # a folder has none
            unread.add("path_column")
        return {name: value for name, value in self.to_json().items() if name not in unread}

    def _used(self) -> list[str]:
        """Return the names of the steps that run; none if the preset is invalid."""
        return [step.use for step in self.steps] or list(PRESETS.get(str(self.preset), ()))

    @property
    def field_codecs(self) -> dict[str, NamedConfig]:
        """Codecs of fields of images or videos in `encode_field`."""
        return dict(parse_field_encoding(text, self._encoding_options) for text in self.encode_field)

    @property
    def _encoding_options(self) -> dict[str, Any]:
        return {
            "videos": self.sample != "frame",
            "encode": self.encode,
            "quality": self.quality,
            "subsampling": self.subsampling,
            "gop": self.gop or DEFAULT_GOP,
        }

    @property
    def shapes(self) -> tuple[Bucket, ...]:
        """Shapes that images are cropped and scaled to; empty unless `resize` is ``"bucket"``."""
        return () if self.resize != "bucket" else parse_buckets(str(self.buckets), MAX_SIZE)

    @property
    def resizes(self) -> bool:
        """True if the step 'resize' changes images."""
        return self.resize == "bucket" or (self.size is not None and self.resize != "none")

    @property
    def numbers_classes(self) -> bool:
        """True if the recipe has a list of classes."""
        return bool(self.classes) or self.classes_from is not None

    @property
    def detects(self) -> bool:
        """True if faces are detected, and not given as boxes."""
        return self.boxes is None and any(step.use in ("detect", "faces") for step in self.chain)

    @property
    def has_custom_detector(self) -> bool:
        """True if the detector is named as ``module:function``."""
        return ":" in str(self.detector)

    @property
    def also_field(self) -> str | None:
        """Field of the second image, or None."""
        return None if self.also is None else f"{field_name(self.also)}_image"

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON."""
        out = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {**out, "steps": [step.to_json() for step in self.steps]}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Recipe":
        """Create a recipe from the options of a file, a command line, or keyword arguments. Sizes may be strings.

        Raises
        ------
        UsageError
            If a key is unknown, or a value is invalid.
        """
        known = {spec.name: spec for spec in fields(cls)}
        refuse_unknown(options, known)
        values: dict[str, Any] = {
            name: parse_bytes(value, name) if known[name].metadata.get("bytes") and value is not None else value
            for name, value in options.items()
        }
        return cls(**values)


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Raise `UsageError` if a name is not that of an option. The message lists the known ones."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        advice = did_you_mean(unknown[0], known) or f": expected one of {', '.join(known)}"
        raise UsageError(f"unknown option {list_some(list(map(shorten, unknown)))}{advice}")


def settle(options: Any, problems: Problems) -> None:
    """Convert the options of a dataclass to plain values, and check each by itself."""
    for spec in fields(options):
        meta = spec.metadata
        value = plain_value(getattr(options, spec.name), meta.get("choices", ()))
        if spec.name in TEXT_LISTS:
            value = as_texts(spec.name, value, problems)
        elif spec.name == "classes":
            value = _as_classes(value, problems)
        elif meta.get("path") and isinstance(value, PathLike):
            value = str(value)
        object.__setattr__(options, spec.name, value)
        if meta.get("path") and not meta.get("url"):
            for path in [value] if isinstance(value, str) else value or ():
                if is_url(str(path)):
                    problems.add(spec.name, describe_url(path))
        if not meta.get("own_check"):
            check_value(spec.name, value, kinds_of(spec), meta, problems)


def as_texts(name: str, value: Any, problems: Problems) -> tuple[str, ...]:
    """Return one or several texts without repetitions."""
    texts = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str | PathLike) and str(text) for text in texts):
        problems.add(name, expected="a text, or a list of texts", found=shorten(value))
        return ()
    return tuple(dict.fromkeys(map(str, texts)))


def _as_classes(value: Any, problems: Problems) -> tuple[str, ...]:
    """Return class names from a list, or from a text with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        problems.add("classes", expected="a list of names, or names separated by commas", found=shorten(value))
        return ()
    names = [class_name(name.strip()) for name in names]
    wrong = describe_wrong_classes(names) if names else None
    if wrong is not None:
        problems.add("classes", wrong)
    return tuple(names)
