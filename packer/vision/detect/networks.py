"""MTCNN's three networks as data: layers, and weights prepared for a runtime.

The published networks take ``(pixel - 127.5) / 128``, end in separate heads with a two-way softmax, and flatten in
(width, height, channel) order. Three exact rewritings make them cheaper and simpler for every runtime. The
normalisation is folded into the first convolution (no convolution is padded, so every pixel gets it). The heads are
joined into one with the difference of the two logits (``sigmoid(b - a)`` is the softmax's second value). The first
dense layer's columns are put into (channel, height, width) order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

CROP_SIZES = {"rnet": 24, "onet": 48}  # side of the square crop that the net takes, pixels; P-net takes any size >= 12
OUTPUTS = {
    "pnet": 5,
    "rnet": 5,
    "onet": 15,
}  # box corrections (4), points (O-net: 5 x, then 5 y), face logit (1), in this order


@dataclass(frozen=True, slots=True)
class Pool:
    """Max pooling; the last window may hang over the edge (ceil mode)."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A convolution without padding at stride 1, or a fully connected layer, then PReLU if there are slopes.

    Attributes
    ----------
    weight : ndarray, float32
        (out, in, k, k) for a convolution; (out, in) for a fully connected layer, which flattens (channel, height,
        width).
    bias, slope : ndarray, (out,), float32
        ``slope`` is None in the head.
    """

    weight: FloatArray
    bias: FloatArray
    slope: FloatArray | None


Layer = Pool | Dense

# names of the published layers; a pair of numbers is a pooling (size, stride)
_LAYERS: dict[str, tuple[str | tuple[int, int], ...]] = {
    "pnet": ("conv1", (2, 2), "conv2", "conv3"),
    "rnet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", "dense4"),
    "onet": ("conv1", (3, 2), "conv2", (3, 2), "conv3", (2, 2), "conv4", "dense5"),
}
_HEADS = {
    "pnet": ("conv4_2", "conv4_1"),
    "rnet": ("dense5_2", "dense5_1"),
    "onet": ("dense6_2", "dense6_3", "dense6_1"),
}
_DENSE_SIDES = {"dense4": 3, "dense5": 3}  # side of the feature map that the first dense layer flattens


def build_networks(nets: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, tuple[Layer, ...]]:
    """Prepare the published parameters, ``Weights.nets``: networks of RGB pixels in [0, 255] with one joined head.

    Inputs of ``pnet``, ``rnet`` and ``onet`` are (N, 3, H, W) float32, outputs have the columns of ``OUTPUTS``.
    """
    return {name: _build(name, nets[name]) for name in _LAYERS}


def _build(name: str, parameters: Mapping[str, FloatArray]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for layer in _LAYERS[name]:
        if isinstance(layer, tuple):
            layers.append(Pool(*layer))
            continue
        weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
        if layer == "conv1":
            weight, bias = _fold_normalisation(weight, bias)
        if layer in _DENSE_SIDES:
            weight = _channels_first(weight, _DENSE_SIDES[layer])
        layers.append(Dense(weight, bias, parameters[f"prelu{layer[-1]}.weight"]))
    weights = [parameters[f"{head}.weight"] for head in _HEADS[name]]
    biases = [parameters[f"{head}.bias"] for head in _HEADS[name]]
    weights[-1], biases[-1] = weights[-1][1:] - weights[-1][:1], biases[-1][1:] - biases[-1][:1]
    layers.append(Dense(np.concatenate(weights), np.concatenate(biases), None))
    return tuple(layers)


def _fold_normalisation(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Make the convolution accept pixels x instead of ``(x - 127.5) / 128``."""
    exact = weight.astype(np.float64)
    shifted = bias - 127.5 / 128 * exact.sum((1, 2, 3))
    return (exact / 128).astype(np.float32), shifted.astype(np.float32)


def _channels_first(weight: FloatArray, side: int) -> FloatArray:
    """Reorder columns from (width, height, channel), as the published nets flatten, to (channel, height, width)."""
    columns = weight.reshape(len(weight), side, side, -1).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(columns.reshape(len(weight), -1))
