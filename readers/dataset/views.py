"""Several views of each sample, augmented separately: for contrastive and self-supervised training."""

from collections.abc import Sequence

import numpy as np

from readers.arguments import as_count
from readers.dataset.base import SampleDataset
from readers.dataset.derived import DerivedDataset, stacked, ungrouped
from readers.decode.values import BatchLayout
from readers.order.order import SampledRows
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray
from shardspec.errors import UsageError
from shardspec.wording import shorten


class ViewDataset(DerivedDataset):
    """Several views of each sample: fields get a leading axis of views, ``image`` (V, H, W, 3).

    The views of a sample have separate draws, in random decode plans and in transforms; the first view has the draws of
    the sample without views. Numbers and text come once, from the first view.

    Parameters
    ----------
    views : int or sequence of callable
        Number of views; or the transform of each view, after those of `base`, with None for no transform.

    Raises
    ------
    UsageError
        If there are no views, or they differ in fields, shapes or dtypes.
    """

    def __init__(self, base: SampleDataset, views: int | Sequence[AnyTransform | None]) -> None:
        super().__init__(base)
        if isinstance(views, Sequence) and not isinstance(views, str):
            transforms: Sequence[AnyTransform | None] = views
            as_count("views", len(views), unit="transform")
        elif callable(views):
            raise UsageError(
                option="views", expected="a number, or a list of transforms", found=f"{shorten(views)} without a list"
            )
        else:
            transforms = [None] * as_count("views", views)
        self._views = [base.with_transform(transform) for transform in transforms]
        self._once = frozenset(name for name, value in base.raw_layout.items() if value.shape == ())
        self._stacked: BatchLayout | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} samples in {len(self._views)} views, of {self.base!r}"

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset with an axis of views, except for numbers and text."""
        if self._stacked is None:
            first, *others = [view.layout for view in self._views]
            for number, other in enumerate(others, 1):
                differing = [name for name in {**first, **other} if first.get(name) != other.get(name)]
                if differing:
                    name = differing[0]
                    raise UsageError(
                        option="views",
                        expected="the same fields, shapes and dtypes in all",
                        found=(
                            f"{name!r} {first.get(name, 'missing')} in the first and {other.get(name, 'missing')} in "
                            f"number {number}"
                        ),
                        hint="resize or convert it by the view's transform",
                    )
            self._stacked = stacked(first, len(self._views), self._once)
        return self._stacked

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read each view with its transforms, sample i into place ``at[i]``."""
        count, layout = len(self._views), self._views[0].layout
        with ungrouped(out, layout, at, count, self._once, texts_once=True) as columns:
            for number, view in enumerate(self._views):
                occurrences = np.full(len(picks), number, np.int64)
                view.read_picks(picks.again(occurrences, self.nesting), columns, at * count + number)

    with_decode = SampleDataset.with_decode  # the views are made from the base dataset

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return super().draws_at_random or any(view.draws_at_random for view in self._views)

    @property
    def nesting(self) -> int:
        """Nesting of the base dataset, plus one."""
        return 1 + self.base.nesting
