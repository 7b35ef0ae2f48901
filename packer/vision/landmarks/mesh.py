"""MediaPipe's face mesh from a ``.tflite`` file that the user supplies, run by OpenVINO."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.crop import bilinear
from packer.vision.landmarks import agrees
from packer.vision.landmarks.shape import BOX_SIDE, upright_matrix, upright_outline
from packer.vision.openvino import core, new_request, openvino
from shardspec.errors import UsageError

# Ratio of the side of the model's image to that of MTCNN's box. MediaPipe cuts 1.5 times the longer side of the mesh
# that it found before; on 105 faces of five photographs and a video, this is the ratio that reproduces itself by that
# rule.
_MARGIN = 1.35
_LEAST_SCORE = 0.5
_LAYOUTS = {468 * 3: "468", 478 * 3: "478"}


class FaceMesh:
    """Runs the mesh on the face turned upright by the five points; fulfils `LandmarkProvider`.

    Parameters
    ----------
    model : str or Path
        A TensorFlow Lite file with an image (1, S, S, 3) in [0, 1] as input and, among its outputs, 468 or 478 points
        times x, y, z in pixels of that image and one face score (a logit): ``face_landmark.tflite`` of MediaPipe.

    Attributes
    ----------
    layout : str
        ``"468"`` or ``"478"``, as the file has it.

    Raises
    ------
    UsageError
        If the file does not exist, cannot be read by OpenVINO, or has other inputs and outputs.
    """

    layout: str

    def __init__(self, model: str | Path) -> None:
        path = Path(model)
        if not path.is_file():
            raise UsageError(place="--landmark-model", expected="a .tflite file", found=f"nothing at {path}")
        try:
            network = core().read_model(path)
        except RuntimeError as error:
            raise UsageError(f"--landmark-model: OpenVINO cannot read {path}: {str(error).strip()[-300:]}") from error
        self._size = _input_size(network, path)
        self._points, self._score, self.layout = _outputs(network, path)
        self._request = new_request(network)
        self._input = np.empty((1, self._size, self._size, 3), np.float32)

    def __call__(self, image: npt.NDArray[np.uint8], points5: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], bool]:
        matrix = upright_matrix(points5, _centre(points5), _MARGIN * BOX_SIDE, self._size)
        np.multiply(bilinear(image, matrix, self._size), np.float32(1 / 255), out=self._input[0], dtype=np.float32)
        self._request.infer([self._input], share_inputs=True)
        found = self._request.get_output_tensor(self._points).data.reshape(-1, 3)[:, :2]
        logit = float(self._request.get_output_tensor(self._score).data.ravel()[0])
        points = apply(invert(matrix), found).astype(np.float32)
        sure = logit > math.log(_LEAST_SCORE / (1 - _LEAST_SCORE))
        return points, sure and agrees(points, self.layout, points5)


def _centre(points5: npt.ArrayLike) -> tuple[float, float]:
    """Return the centre of the model's image in the mean frame; its x is that of the face's estimated outline.

    On a turned head the points are near the front edge. An image around their centre would contain half a head and half
    a background, and the mesh would spread over both.
    """
    outline = upright_outline(points5)[:, 0]
    return (float(outline.min() + outline.max()) / 2, 0.0)


def _input_size(network: openvino.Model, path: Path) -> int:
    shapes = [port.partial_shape for port in network.inputs]
    shape: list[int] = list(shapes[0].to_shape()) if len(shapes) == 1 and shapes[0].is_static else []
    if len(shape) != 4 or shape[0] != 1 or shape[1] != shape[2] or shape[3] != 3:
        raise UsageError(
            place="--landmark-model", expected="one input (1, S, S, 3)", found=f"{list(map(str, shapes))} in {path}"
        )
    return shape[1]


def _outputs(network: openvino.Model, path: Path) -> tuple[int, int, str]:
    """Find the outputs that are the points and the score, and the layout of the points."""
    sizes = [math.prod(port.shape) if port.partial_shape.is_static else 0 for port in network.outputs]
    points = [at for at, size in enumerate(sizes) if size in _LAYOUTS]
    scores = [at for at, size in enumerate(sizes) if size == 1]
    if not points or not scores:
        raise UsageError(
            place="--landmark-model",
            expected="outputs of 1404 (468 points) or 1434 (478 points) and of 1 value",
            found=f"{sizes} in {path}",
        )
    return points[0], scores[0], _LAYOUTS[sizes[points[0]]]
