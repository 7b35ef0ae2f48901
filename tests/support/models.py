"""Stand-ins for models whose weights are not part of the project."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
from openvino import opset13 as ops

STRIDES = (8, 16, 32)
BRIGHT = 200
"""The mean of a cell's pixels, in [0, 255], above which the stand-ins for detectors see a face there."""

_FLOAT, _INT64 = 1, 7
"""Types of elements in ONNX."""


def write_mesh(path: Path, count: int = 468, score: float = 5.0, side: int = 192) -> Path:
    """A network that gives the same points for any image: its corners and middle, over and over."""
    picture = ops.parameter([1, side, side, 3], np.float32, name="image")
    nothing = ops.reduce_mean(ops.multiply(picture, np.float32(0)), np.array([1, 2, 3]), keep_dims=False)
    spots = np.array([[0, 0, 0], [side, 0, 0], [side / 2, side / 2, 0], [0, side, 0], [side, side, 0]], np.float32)
    points = np.resize(spots, (count, 3)).reshape(1, 1, 1, -1)
    outputs = [ops.add(nothing, points), ops.add(nothing, np.full((1, 1, 1, 1), score, np.float32))]
    openvino.save_model(openvino.Model(outputs, [picture]), path, compress_to_fp16=False)
    return path


def write_scrfd(path: Path, sides: Sequence[float], points: Sequence[float]) -> Path:
    """A network with SCRFD's outputs: each cell of 8 x 8 pixels that is bright has a face, at its first anchor.

    `sides` (4) and `points` (10) are the face's, relative to the anchor, in strides.
    """
    graph = _Graph()
    heads: list[list[str]] = [[], [], []]
    for stride in STRIDES:
        cells = graph.pool(stride)
        slope, bias = _logit(stride, 127.5, 128)
        scores = graph.add("Sigmoid", [graph.convolve(cells, [bias, -50], [slope, 0])])
        outputs = (scores, graph.convolve(cells, [*sides] * 2), graph.convolve(cells, [*points] * 2))
        for head, output, width in zip(heads, outputs, (1, 4, 10), strict=True):
            head.append(graph.as_rows(output, [-1, width]))
    return graph.write(path, [name for head in heads for name in head])


def write_yunet(path: Path, box: Sequence[float], points: Sequence[float]) -> Path:
    """A network with YuNet's outputs: each cell of 8 x 8 pixels that is bright has a face.

    `box` (4) are the centre's offset from the cell, in strides, and the logarithms of width and height in strides;
    `points` (10) are offsets from the cell, in strides.
    """
    graph = _Graph()
    outputs = []
    for stride in STRIDES:
        cells = graph.pool(stride)
        slope, bias = _logit(stride, 0, 1)
        heads = {
            "cls": (graph.add("Sigmoid", [graph.convolve(cells, [bias], [slope])]), 1),
            "obj": (graph.add("Sigmoid", [graph.convolve(cells, [50])]), 1),
            "bbox": (graph.convolve(cells, box), 4),
            "kps": (graph.convolve(cells, points), 10),
        }
        outputs += [graph.as_rows(head, [1, -1, width], f"{name}_{stride}") for name, (head, width) in heads.items()]
    return graph.write(path, outputs)


def _logit(stride: int, shift: float, scale: float) -> tuple[float, float]:
    """Slope and bias of a cell's logit, for pixels that the detector has shifted and divided; only small cells matter."""
    return (0.2 * scale, 0.2 * (shift - BRIGHT)) if stride == STRIDES[0] else (0, -50)


class _Graph:
    """Writes a network of a few operators in ONNX's format, without its package."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._weights: list[bytes] = []
        self._names = 0

    def pool(self, side: int) -> str:
        """The mean of each square of pixels of the network's input."""
        return self.add("AveragePool", ["input"], kernel_shape=[side, side], strides=[side, side])

    def convolve(self, cells: str, biases: Sequence[float], slopes: Sequence[float] | None = None) -> str:
        """For each cell, as many numbers as there are biases; a slope is that of the cell's mean over the colours."""
        weights = np.zeros((len(biases), 3, 1, 1), np.float32)
        weights += np.reshape(slopes or [0] * len(biases), (-1, 1, 1, 1)) / 3
        return self.add("Conv", [cells, self._constant(weights), self._constant(np.array(biases, np.float32))])

    def as_rows(self, maps: str, shape: Sequence[int], name: str = "") -> str:
        """Rows of numbers, cell after cell."""
        last = self.add("Transpose", [maps], perm=[0, 2, 3, 1])
        return self.add("Reshape", [last, self._constant(np.array(shape, np.int64))], name)

    def add(self, operator: str, inputs: Sequence[str], name: str = "", **lists: Sequence[int]) -> str:
        """Add an operator, and return its output."""
        name = name or self._name()
        attributes = [
            _field(1, key) + b"".join(_field(8, number) for number in numbers) + _field(20, 7)
            for key, numbers in lists.items()
        ]
        texts = b"".join(_field(1, text) for text in inputs) + _field(2, name) + _field(4, operator)
        self._nodes.append(texts + b"".join(_field(5, attribute) for attribute in attributes))
        return name

    def write(self, path: Path, outputs: Sequence[str]) -> Path:
        """Write the network, with these outputs."""
        graph = b"".join(_field(1, node) for node in self._nodes) + _field(2, "network")
        graph += b"".join(_field(5, weight) for weight in self._weights)
        graph += _field(11, _value("input", [1, 3, "height", "width"]))
        graph += b"".join(_field(12, _value(name, ["rows"])) for name in outputs)
        path.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 13)))
        return path

    def _constant(self, values: npt.NDArray[Any]) -> str:
        name = self._name()
        kind = _FLOAT if values.dtype == np.float32 else _INT64
        tensor = b"".join(_field(1, size) for size in values.shape) + _field(2, kind) + _field(8, name)
        self._weights.append(tensor + _field(9, values.tobytes()))
        return name

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"


def _value(name: str, sizes: Sequence[int | str]) -> bytes:
    """A tensor of float32 in ONNX's format; a size may have a name."""
    sides = [_field(1, size) if isinstance(size, int) else _field(2, size) for size in sizes]
    shape = b"".join(_field(1, side) for side in sides)
    return _field(1, name) + _field(2, _field(1, _field(1, _FLOAT) + _field(2, shape)))


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
