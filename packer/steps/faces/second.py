"""The second picture or video of an item, cut as the first is."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.steps.chain import Sample
from packer.steps.faces.crop import FaceCutter
from packer.steps.second import SecondPictures, second_pictures


class SecondCutter:
    """Cuts the second picture or video of an item as the first was cut.

    Parameters
    ----------
    cutter : FaceCutter
    field : str
        The field of the second picture.
    pictures : SecondPictures
    """

    def __init__(self, cutter: FaceCutter, field: str, pictures: SecondPictures) -> None:
        self._cutter = cutter
        self._field = field
        self._pictures = pictures

    def cut(self, sample: Sample, matrix: npt.NDArray[np.float32], *, whole: bool = False) -> Sample:
        """The second picture's field and its validity: black and false where there is none.

        `whole` says that the matrix is that of `FaceCutter.keep_whole`.
        """
        picture = self.picture(sample)
        valid = self._pictures.is_valid(picture)
        return {self._field: self._cutter.cut_also(picture, matrix, whole=whole), f"{self._field}_valid": valid}

    def picture(self, sample: Sample) -> npt.NDArray[np.uint8] | None:
        """See `SecondPictures`."""
        return self._pictures.picture(sample)


@contextmanager
def cutting_second(recipe: Recipe, cutter: FaceCutter, first: Sample) -> Iterator[SecondCutter | None]:
    """Open what cuts the second picture or video of an item, if the recipe has one.

    Parameters
    ----------
    recipe : Recipe
    cutter : FaceCutter
    first : dict
        The item's first sample.
    """
    if recipe.also_field is None:
        yield None
        return
    with second_pictures(first, zero=recipe.also_missing == "zero") as pictures:
        yield SecondCutter(cutter, recipe.also_field, pictures)
