"""The faces of one frame, found by a detector or given by the user."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

NO_TRACK = -1


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame, in frame pixels.

    Attributes
    ----------
    boxes : ndarray, (N, 4), float32
        Left, top, right, bottom.
    scores : ndarray, (N,), float32
    points : ndarray, (N, 5, 2), float32
        Right eye, left eye, nose, right and left corner of the mouth (the person's). NaN where a face has none.
    tracks : ndarray, (N,), int64, or None
        `NO_TRACK` for none; None where nobody has looked for tracks.
    """

    boxes: FloatArray
    scores: FloatArray
    points: FloatArray
    tracks: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)
