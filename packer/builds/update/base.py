"""The dataset that a build updates: in its folder, or in a store."""

from packer.builds.job import BuildRequest
from packer.recipe.options import read_shared_settings
from packer.workspace.folder import committed
from shardspec.errors import UsageError
from shardspec.layout import MANIFEST_NAME, Layout, layout_at
from shardspec.manifest import Manifest
from shardspec.registry import import_target


def find_base(request: BuildRequest) -> tuple[Layout, Manifest | None]:
    """Return the layout of the dataset that a build updates, and its manifest, or None if there is no dataset.

    Of a dataset in a store, index and reports are downloaded into the cache, and shards are read in part.

    Raises
    ------
    UsageError
        If there is no dataset in a store whose rejects can be tried again.
    """
    layout = Layout(request.out)
    if request.store is None:
        return layout, committed(layout)
    if request.store.stat(MANIFEST_NAME) is None:
        if request.options.update:
            return layout, None
        raise UsageError(
            place=request.store.url, expected="a packed dataset whose rejects can be tried again", found="none"
        )
    open_dataset = import_target("packer.sources.stores.packed:partial_folder", what="a dataset in a store")
    options = read_shared_settings()[1] or None
    layout = layout_at(open_dataset(request.store.url, storage_options=options, whole_shards=True))
    return layout, layout.load()
