"""``--refill``: replace a sampled frame that has no face that counts by a nearby frame."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain

from packer.recipe import Recipe
from packer.steps.chain import ITEM, NEIGHBOURS, SAMPLED, Sample
from packer.steps.companion import CompanionFile, CompanionImages, open_companion
from packer.steps.faces.frame import FrameFaces
from packer.steps.faces.search import FaceSearch, ItemSearch

Found = tuple[Sample, FrameFaces]
"""A frame with its faces."""


class Refill:
    """Possible substitutes for the sampled frames of one video, read in a separate pass over the file.

    The pass begins when the first substitute is needed. Frames that are damaged in this pass are left out.

    Parameters
    ----------
    first : dict
        A sample of the item.
    near : mapping of int to tuple of int
        Possible substitutes of each sampled frame, in ascending order (`packer.vision.decode.sampling.neighbours`).
    file : CompanionFile
        The item's file.
    search : ItemSearch
        Finds the faces of the substitutes.
    also : CompanionImages or None
        The companion images of the substitutes.
    """

    def __init__(
        self,
        first: Sample,
        near: Mapping[int, tuple[int, ...]],
        file: CompanionFile,
        search: ItemSearch,
        also: CompanionImages | None,
    ) -> None:
        self._first = first
        self._near = near
        self._file = file
        self._search = search
        self._waiting = iter(near)
        self._positions = {place: position for position, place in enumerate(near)}
        self.also = also

    def missing(self, frame: int | None) -> Iterator[int]:
        """Yield the sampled frames that the decoder left out before `frame`; None is the end of the video."""
        for place in self._waiting:
            if place == frame:
                return
            yield place

    def look(self, place: int, counts: Callable[[FrameFaces], bool]) -> tuple[Found | None, list[FrameFaces]]:
        """Search the frames near a sampled frame for faces. Sampled frames must be passed in order.

        Parameters
        ----------
        counts : callable
            Returns whether any of a frame's faces counts.

        Returns
        -------
        found : tuple or None
            The nearest frame with a face that counts (the earlier of two at the same distance); None if there is none.
        faces : list of FrameFaces
            The faces of all frames that were searched.
        """
        best: Found | None = None
        seen: list[FrameFaces] = []
        before = [index for index in self._near[place] if index < place]
        for sample, faces in self._faces(place, before):
            seen.append(faces)
            if counts(faces):
                best = sample, faces
        reach = None if best is None else place - best[0]["frame"]
        after = [index for index in self._near[place] if index > place and (reach is None or index - place < reach)]
        for sample, faces in self._faces(place, after):
            seen.append(faces)
            if counts(faces):
                return (sample, faces), seen
        return best, seen

    def _faces(self, place: int, indices: list[int]) -> list[Found]:
        """Return the frames with these indices whose faces are known, as samples with the position of `place`."""
        frames = [frame for frame in map(self._file.frame, indices) if frame is not None]
        first = {**self._first, "frame_position": self._positions[place]}
        samples = [{**first, "image": f.image, "frame": f.index, "time": f.time} for f in frames]
        found = self._search.faces(samples) if samples else []
        return [(s, faces) for s, faces in zip(samples, found, strict=True) if isinstance(faces, FrameFaces)]


@contextmanager
def refilling(recipe: Recipe, search: FaceSearch, given: ItemSearch, first: Sample) -> Iterator[Refill | None]:
    """Open the `Refill` of an item, if the recipe asks for it and the item is a video.

    `given` is the search for the sampled frames. If it looks up boxes from the user, substitutes use it too.
    """
    near: Mapping[int, tuple[int, ...]] | None = first.get(NEIGHBOURS)
    if near is None:
        yield None
        return
    item = first[ITEM]
    indices = tuple(chain.from_iterable(near.values()))
    file = CompanionFile("refill", item.file, indices)
    sample = {**first, SAMPLED: indices}
    try:
        with (
            search.of_item(item, indices) if recipe.boxes is None else nullcontext(given) as faces,
            open_companion(recipe, sample) as also,
        ):
            yield Refill(first, near, file, faces, also)
    finally:
        file.close()
