"""A packed dataset that is read while others may write into its folder."""

from shardspec.entries import Column, Shard
from shardspec.errors import DatasetChangedError
from shardspec.layout import Layout, Stamp
from shardspec.manifest import Manifest


class PackedInput:
    """A packed dataset, as it was when it was opened.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest, optional
        If it is loaded already; then it is not noticed if another dataset takes its place.
    digest : str
        What the dataset's digest must begin with.
    """

    def __init__(self, layout: Layout, manifest: Manifest | None, digest: str) -> None:
        self.layout = layout
        self.manifest: Manifest
        self._stamp: Stamp | None = None
        if manifest is None:
            self.manifest, self._stamp = layout.load_stamped()
        else:
            self.manifest = manifest
        self._standing: frozenset[tuple[str, str]] | None = None
        if digest and not self.manifest.digest.startswith(digest):
            raise self._changed()

    def check_standing(self, part: Shard | Column) -> None:
        """Check that files that are open are those of this dataset: that they still were after they had been opened.

        Raises
        ------
        DatasetChangedError
            If others have taken their place.
        """
        if self._stamp is None:
            return
        if self.layout.stamp_manifest() != self._stamp:
            found, self._stamp = self.layout.load_stamped()
            self._standing = frozenset((entry.own_name, entry.sha256) for entry in found.entries)
        if self._standing is not None and not self._standing.issuperset((e.own_name, e.sha256) for e in part.files):
            raise self._changed()

    def _changed(self) -> DatasetChangedError:
        return DatasetChangedError(
            f"{self.layout.root}: expected a packed dataset that stays as it is while it is read, found it changed or "
            "replaced: repeat the command when nobody else writes into that folder"
        )
