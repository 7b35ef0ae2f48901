"""Which frames of a damaged video can be trusted.

A frame that refers to a damaged one is damaged as well, and decoders seldom say so. Within one group of pictures (a keyframe and
what follows it), everything decoded after the first damage is doubted.
"""

import numpy as np
from numpy.typing import NDArray


class Trust:
    """Keeps the first damage of each group.

    Parameters
    ----------
    keys : ndarray, (N,), bool
        Which frames are keyframes, in presentation order.
    positions : ndarray, (N,), int64
        Each frame's place in decoding order; there may be places that no frame has.
    """

    def __init__(self, keys: NDArray[np.bool_], positions: NDArray[np.int64]) -> None:
        self._groups = np.cumsum(keys)
        self._positions = positions
        self._by_position = np.argsort(positions)
        self._places = positions[self._by_position]
        self._first: dict[int, int] = {}

    def doubt(self, position: int) -> None:
        """Note damage at a place in decoding order; it belongs to the group of the frame there, or of the last one before it."""
        at = max(int(np.searchsorted(self._places, position, side="right")) - 1, 0)
        group = int(self._groups[self._by_position[at]])
        self._first[group] = min(position, self._first.get(group, position))

    def doubted(self, index: int) -> bool:
        """Whether a frame may be damaged, by its presentation order.

        A frame shown before a keyframe but decoded after it may refer to either group.
        """
        group, position = int(self._groups[index]), int(self._positions[index])
        return any(self._first.get(near, position + 1) <= position for near in (group, group + 1))
