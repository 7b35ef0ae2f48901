"""Frames that wait between the search for faces and the cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from packer.recipe import Recipe
from packer.steps.chain import ITEM, NEIGHBOURS, SAMPLED, Sample
from packer.steps.companion import CompanionFile
from packer.steps.encode import KEPT
from packer.steps.faces.search import takes_decoded

MOST_BYTES = 2**28
"""Memory limit for waiting frames: 43 frames of 1920 x 1080 pixels. Further frames are decoded a second time."""


class WaitingFrames:
    """Holds frames in memory, or decodes them again. Both yield the same pixels.

    Parameters
    ----------
    file : CompanionFile or None
        The file of the frames. None if they cannot be decoded again; all frames are then held in memory.
    """

    def __init__(self, file: CompanionFile | None) -> None:
        self._file = file
        self._bytes = 0

    def hold(self, sample: Sample) -> Sample:
        """Return the frame to keep while it waits: without its image if the memory limit is reached."""
        size = sample["image"].nbytes
        if self._file is not None and self._bytes + size > MOST_BYTES:
            return drop_image(sample)
        self._bytes += size
        return sample

    def release(self, sample: Sample) -> Sample | None:
        """Return a frame with its image; None if it cannot be decoded again. Indices must be in ascending order."""
        if sample["image"] is not None:
            self._bytes -= sample["image"].nbytes
            return sample
        assert self._file is not None
        frame = self._file.frame(sample["frame"])
        return None if frame is None else {**sample, "image": frame.image}


def drop_image(sample: Sample) -> Sample:
    """Return a frame without its image."""
    return {**sample, "image": None, KEPT: None}


@contextmanager
def open_waiting(recipe: Recipe, first: Sample) -> Iterator[WaitingFrames]:
    """Make the `WaitingFrames` of a sample's item. Its file is opened again when the first frame is needed."""
    if not takes_decoded(recipe):  # other steps may have changed the frames
        yield WaitingFrames(None)
        return
    sampled, near = first.get(SAMPLED), first.get(NEIGHBOURS) or {}
    indices = None if sampled is None else tuple(sorted({*sampled, *chain.from_iterable(near.values())}))
    file = CompanionFile("second pass", first[ITEM].file, indices)
    try:
        yield WaitingFrames(file)
    finally:
        file.close()
