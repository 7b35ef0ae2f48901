"""The MTCNN detector: a pyramid for P-net, then R-net and O-net on P-net's proposals.

The arithmetic of boxes follows facenet-pytorch's conventions and rounds to float32. Boxes are (n, 4) float32: left, top,
right, bottom. As in the reference, some steps take ends as inclusive (width = right - left + 1) and some do not.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.vision.detect.interface import Detections, Faces, are_boxes, overlap, touch_frame
from packer.vision.detect.networks import PreparedFrame, build_networks, load_weights, make_runtime, resolve_runtime

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_CELL, _STRIDE = 12, 2  # side of a P-net cell's box and step between cells, pixels of the level
_LEVEL_IOU, _MERGE_IOU = 0.5, 0.7  # facenet-pytorch models/utils/detect_face.py
_MAX_MATRIX = 1024  # boxes whose pairwise overlaps are held at once; if there are more, each is compared with the rest


class Detector:
    """Finds faces in RGB images, as ``facenet_pytorch.MTCNN(keep_all=True).detect(landmarks=True)`` does.

    Parameters
    ----------
    runtime : {"auto", "openvino", "torch"}
        The library that runs the networks. "auto" is OpenVINO on the CPU where it is installed, else torch.
    min_face : float
        Side of the smallest face to look for, pixels, at least 1: it sets the finest level of the pyramid, and so all
        others.
    thresholds : tuple of three floats in (0, 1)
        Least face probability after P-, R- and O-net.
    factor : float
        Ratio of one pyramid level to the next, in (0, 1).
    device : str
        ``"cpu"``, or for torch ``"cuda"``, ``"cuda:1"`` ...
    threads : int
        Math threads. For torch they are set for the whole process.
    skip_levels : int
        Finest pyramid levels to leave out; the others stay as they are (see ``dataset``).

    Raises
    ------
    ValueError
        If an argument is out of its range, or if the device cannot be used here.
    MissingDependencyError
        If the runtime's library or mtcnn, whose weights are used, is not installed.

    Attributes
    ----------
    weights : dict of str to str
        ``name``, ``sha256`` and ``license`` of the weights.

    Notes
    -----
    A frame's result depends on the frame and the detector's settings alone (for the same library versions and kind of
    processor): the frames of a batch share nothing. Not safe across threads, fork or pickle: make one per process.
    """

    def __init__(
        self,
        runtime: str = "auto",
        min_face: float = 20,
        thresholds: tuple[float, float, float] = (0.6, 0.7, 0.7),
        factor: float = 0.709,
        device: str = "cpu",
        threads: int = 1,
        *,
        skip_levels: int = 0,
    ) -> None:
        _check_settings(min_face, thresholds, factor, threads, skip_levels)
        name = resolve_runtime(runtime, device)
        weights = load_weights()
        self._runtime = make_runtime(name, build_networks(weights.nets), device=device, threads=threads)
        self.weights = weights.declared
        self._min_face = min_face
        self._thresholds = thresholds
        self._factor = factor
        self._skip_levels = skip_levels
        self._description = {
            "detector": "mtcnn",
            "weights": weights.declared["name"],
            "weights_sha256": weights.declared["sha256"],
            "min_face": float(min_face),
            "skip_levels": skip_levels,
            "thresholds": [float(threshold) for threshold in thresholds],
            "factor": float(factor),
            "threads": threads,
        } | self._runtime.describe()

    @classmethod
    def dataset(cls, min_face: float = 40, **options: Any) -> "Detector":
        """Make a detector that looks for faces of a wanted size and not for smaller ones: many times faster.

        The pyramid is that of the default settings, from 20-pixel faces on, without its finest levels: it starts at the
        largest 20 / factor**k that is at most sqrt(2) * ``min_face``. So the remaining levels, and with them the boxes,
        are those of the full detector.

        Parameters
        ----------
        min_face : float
            Side of the smallest wanted face, pixels. Smaller ones may be found too.
        **options
            As for ``Detector``, but for ``skip_levels``.
        """
        factor = options.get("factor", 0.709)
        _check_settings(min_face, (0.6, 0.7, 0.7), factor, 1, 0)
        finest = max(math.sqrt(2) * min_face / 20, 1)
        return cls(min_face=20, skip_levels=math.floor(math.log(finest) / -math.log(factor)), **options)

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the boxes, as JSON values."""
        return dict(self._description)

    def new_frame(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Return uninitialised memory for a frame, (height, width, 3) uint8, that is uploaded as fast as possible."""
        return self._runtime.new_frame(height, width)

    def detect(self, frames: npt.NDArray[np.uint8] | Iterable[npt.NDArray[np.uint8]]) -> Detections:
        """Find the faces in each frame.

        Parameters
        ----------
        frames : ndarray, (B, H, W, 3), uint8, or iterable of ndarray, (H, W, 3), uint8
            RGB. Frames of an iterable may differ in size. A frame less than 12 pixels wide or high (in dataset mode,
            less than the finest level's face) holds no face.

        Returns
        -------
        Detections
            ``offsets`` has one entry more than there are frames.

        Raises
        ------
        TypeError, ValueError
            If a frame has another dtype or shape.
        """
        if isinstance(frames, np.ndarray) and frames.ndim != 4:
            raise ValueError(
                "expected frames as an array (B, H, W, 3) or a sequence of (H, W, 3), "
                f"found one array of shape {frames.shape}"
                + ("; pass [frame] for a single image" if frames.ndim == 3 else "")
            )
        return Detections.of_frames([self._detect(_check_frame(i, frame)) for i, frame in enumerate(frames)])

    def _detect(self, image: npt.NDArray[np.uint8]) -> Faces:
        height, width = image.shape[:2]
        scales = self._scales(height, width)
        boxes = np.empty((0, 4), np.float32)
        scores = np.empty(0, np.float32)
        points = np.empty((0, 5, 2), np.float32)
        if scales:
            frame = self._runtime.open(image)
            boxes = self._propose(frame, height, width, scales)
            boxes, scores, values = self._refine("rnet", frame, boxes, height, width)
            keep = nms(boxes, scores, _MERGE_IOU)
            boxes = square(regress(boxes[keep], values[keep, :4], inclusive=1))
            boxes, scores, values = self._refine("onet", frame, boxes, height, width)
            points = _points(boxes, values[:, 4:14])
            boxes = regress(boxes, values[:, :4], inclusive=1)
            keep = min_nms(boxes, scores, _MERGE_IOU)
            keep = keep[are_boxes(boxes[keep]) & touch_frame(boxes[keep], height, width)]
            boxes, scores, points = boxes[keep], scores[keep], points[keep]
            order = descending((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
            boxes, scores, points = boxes[order], scores[order], points[order]
        return Faces(boxes, scores, points)

    def _scales(self, height: int, width: int) -> list[float]:
        """Return the scale of each pyramid level, by the reference's arithmetic."""
        scale = _CELL / self._min_face
        side = min(height, width) * scale
        scales = []
        while side >= _CELL:
            scales.append(scale)
            scale *= self._factor
            side *= self._factor
        return scales[self._skip_levels :]

    def _propose(self, frame: PreparedFrame, height: int, width: int, scales: list[float]) -> FloatArray:
        """Return the boxes, (n, 4), that P-net proposes, best first, squared."""
        min_logit = _logit(self._thresholds[0])
        corners, values = [], []
        for scale in scales:
            y, x, outputs = frame.propose(int(height * scale + 1), int(width * scale + 1), min_logit)
            cells = np.stack([x, y], axis=1).astype(np.float32) * np.float32(_STRIDE) + np.float32(1)
            ends = np.concatenate([cells, cells + np.float32(_CELL - 1)], axis=1)
            level = np.floor(ends / np.float32(scale))
            keep = nms(level, _sigmoid(outputs[:, 4]), _LEVEL_IOU)
            corners.append(level[keep])
            values.append(outputs[keep])
        boxes, outputs = np.concatenate(corners), np.concatenate(values)
        keep = nms(boxes, _sigmoid(outputs[:, 4]), _MERGE_IOU)
        return square(regress(boxes[keep], outputs[keep, :4], inclusive=0))

    def _refine(
        self, net: str, frame: PreparedFrame, boxes: FloatArray, height: int, width: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the boxes that a net accepts, with their scores and the net's outputs."""
        windows, valid = crop_windows(boxes, width, height)
        threshold = self._thresholds[1 if net == "rnet" else 2]
        # Boxes that are cut to the same window tie. A network's outputs may differ in the last digit between the first
        # and the last row of a call, so each window is run once.
        distinct, places = np.unique(windows[valid], axis=0, return_inverse=True)
        values = frame.refine(net, distinct)[places.reshape(-1)]
        scores = _sigmoid(values[:, -1])
        passed = scores > np.float32(threshold)
        return boxes[valid][passed], scores[passed], values[passed]


def _points(boxes: FloatArray, values: FloatArray) -> FloatArray:
    """Compute five points, (n, 5, 2), in frame pixels from O-net's fractions: five x, then five y."""
    width, height = boxes[:, 2:3] - boxes[:, 0:1] + np.float32(1), boxes[:, 3:4] - boxes[:, 1:2] + np.float32(1)
    x = width * values[:, :5] + boxes[:, 0:1] - np.float32(1)
    y = height * values[:, 5:] + boxes[:, 1:2] - np.float32(1)
    return np.stack([x, y], axis=2)


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def _sigmoid(logits: FloatArray) -> FloatArray:
    """Return the probability of a face: the second value of the softmax over the reference's two logits."""
    with np.errstate(over="ignore"):  # exp(-x) may become inf, whose sigmoid is 0
        return np.float32(1) / (np.float32(1) + np.exp(-logits))


def _check_settings(
    min_face: float, thresholds: tuple[float, float, float], factor: float, threads: int, skip_levels: int
) -> None:
    problems = []
    if not 1 <= min_face < math.inf:
        problems.append(f"expected min_face of at least 1 pixel, found {min_face!r}")
    if len(thresholds) != 3 or not all(0 < threshold < 1 for threshold in thresholds):
        problems.append(f"expected three thresholds in (0, 1), found {thresholds!r}")
    if not 0 < factor < 1:
        problems.append(f"expected a factor in (0, 1), found {factor!r}")
    if threads < 1:
        problems.append(f"expected at least one thread, found {threads!r}")
    if skip_levels < 0:
        problems.append(f"expected skip_levels of at least 0, found {skip_levels!r}")
    if problems:
        raise ValueError("; ".join(problems))


def _check_frame(index: int, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the frame, C-contiguous, or raise an error that says what is wrong with it."""
    where = f"frame {index}: expected an RGB image as an array (H, W, 3) of uint8"
    if not isinstance(frame, np.ndarray):
        raise TypeError(
            f"{where}, found {type(frame).__name__}; use np.asarray(image.convert('RGB')) for Pillow images"
        )
    if frame.dtype != np.uint8:
        raise TypeError(f"{where}, found dtype {frame.dtype}; scale to [0, 255] and convert")
    if frame.ndim == 2 or (frame.ndim == 3 and frame.shape[2] == 1):
        raise ValueError(f"{where}, found a grey one of shape {frame.shape}; repeat it three times along the last axis")
    if frame.ndim == 3 and frame.shape[2] != 3 and frame.shape[0] == 3:
        raise ValueError(f"{where}, found shape {frame.shape}, colours first; use frame.transpose(1, 2, 0)")
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"{where}, found shape {frame.shape}")
    return np.ascontiguousarray(frame)


def square(boxes: FloatArray) -> FloatArray:
    """Grow the shorter side of each box to the longer one, about the centre."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    side = np.maximum(width, height)
    half = np.float32(0.5)
    left = boxes[:, 0] + width * half - side * half
    top = boxes[:, 1] + height * half - side * half
    return np.stack([left, top, left + side, top + side], axis=1)


def regress(boxes: FloatArray, corrections: FloatArray, inclusive: int) -> FloatArray:
    """Move each edge by a fraction of the box's size; ``inclusive`` (0 or 1) is added to the size."""
    width = boxes[:, 2:3] - boxes[:, 0:1] + np.float32(inclusive)
    height = boxes[:, 3:4] - boxes[:, 1:2] + np.float32(inclusive)
    moved: FloatArray = boxes + corrections * np.concatenate([width, height, width, height], axis=1)
    return moved


def crop_windows(boxes: FloatArray, width: int, height: int) -> tuple[IntArray, BoolArray]:
    """Return the pixels of a (height, width) image that each box covers.

    Boxes count pixels from one and their ends are inclusive, so box [1, 1, 20, 20] covers pixels [0, 20).

    Returns
    -------
    windows : ndarray, (n, 4), int64
        Left, top, right, bottom (exclusive), clipped to the image.
    valid : ndarray, (n,), bool
        False where no part of the box is inside the image. (The reference skips such crops without dropping their
        boxes, so that its later results belong to the wrong boxes; callers here drop both.)
    """
    whole = np.trunc(np.clip(boxes, -(2.0**31), 2.0**31)).astype(np.int64)
    left, top = np.maximum(whole[:, 0], 1) - 1, np.maximum(whole[:, 1], 1) - 1
    right, bottom = np.minimum(whole[:, 2], width), np.minimum(whole[:, 3], height)
    return np.stack([left, top, right, bottom], axis=1), (right > left) & (bottom > top)


def nms(boxes: FloatArray, scores: FloatArray, threshold: float) -> IntArray:
    """Non-maximum suppression by intersection over union, as ``torchvision.ops.nms``, ties included.

    Returns the indices of the boxes that stay, best score first (equal scores: in their order).
    """
    return _suppress(boxes, np.argsort(-scores, kind="stable"), threshold, inclusive=0, minimum=False)


def min_nms(boxes: FloatArray, scores: FloatArray, threshold: float) -> IntArray:
    """Non-maximum suppression by intersection over the smaller area, ends inclusive: the reference's last step."""
    return _suppress(boxes, descending(scores), threshold, inclusive=1, minimum=True)


def descending(values: FloatArray) -> IntArray:
    """Return the indices that sort values from the largest to the smallest, equal values in the reference's order.

    The reference reads numpy's default sort from its end. So of two equal values, the later one comes first; the order
    of more than three depends on the processor's instructions. A stable sort would keep another of several equal faces.
    """
    return np.argsort(values)[::-1]


def _suppress(boxes: FloatArray, order: IntArray, threshold: float, inclusive: int, minimum: bool) -> IntArray:
    boxes, count = boxes[order], len(order)
    limit = _round_down(threshold)
    overlaps = partial(overlap, inclusive=inclusive, minimum=minimum)
    alive = np.ones(count, np.bool_)
    matrix = overlaps(boxes[:, None], boxes[None]) > limit if count <= _MAX_MATRIX else None
    kept = []
    for i in range(count):
        if not alive[i]:
            continue
        kept.append(i)
        alive &= ~(overlaps(boxes[i], boxes) > limit if matrix is None else matrix[i])
    return order[np.array(kept, np.int64)]


def _round_down(threshold: float) -> np.float32:
    """Return the largest float32 up to the threshold: torchvision compares with the double."""
    nearest = np.float32(threshold)
    return nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(0))
