"""The source with files in stores."""

import contextvars
from collections.abc import Callable
from dataclasses import replace

from packer.sources.base import Listing, Source
from packer.sources.stores.files import StoredFiles
from shardspec.stores.store import StoredObject


class StoredSource:
    """A source with files in stores, which is opened when it is listed.

    Parameters
    ----------
    open_from : callable
        Opens the source, given the files.
    is_read : callable
        See `StoredFiles`.
    """

    def __init__(self, open_from: Callable[[StoredFiles], Source], is_read: Callable[[StoredObject], bool]) -> None:
        self._open = open_from
        self._is_read = is_read

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items. Paths that `Listing.stored` has stand for URLs."""
        files = StoredFiles(self._is_read)
        with files.showing_urls():
            source = self._open(files)
            # In a context of its own, because the objects have been counted already.
            listing = contextvars.Context().run(source.list_items, label_from, path_column)
        return replace(listing, stored=files)
