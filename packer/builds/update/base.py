"""The dataset that a build updates: in its folder, or in a store."""

from packer.builds.job import BuildRequest
from packer.recipe.options import read_shared_settings
from packer.workspace.folder import committed
from readers.staging.layout import dataset_layout
from shardspec.errors import UsageError
from shardspec.layout import MANIFEST_NAME, Layout, opened
from shardspec.manifest import Manifest
from shardspec.wording import list_some, program


def find_base(request: BuildRequest) -> tuple[Layout, Manifest | None]:
    """Return the layout of the dataset that a build updates, and its manifest, or None if there is no dataset.

    Of a dataset in a store, everything but the shards is downloaded into the cache.

    Raises
    ------
    UsageError
        If a dataset in a store has fields that are stored outside the shards, or if there is none whose rejects can be
        tried again.
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
    layout = dataset_layout(request.store.url, storage_options=read_shared_settings()[1] or None)
    base = layout.load()
    if base.columns:
        raise UsageError(
            place=layout.shown,
            expected="a dataset without added fields",
            found=list_some([column.field for column in base.columns]),
            hint=f"update a local copy, and replace the dataset with {program()} copy --overwrite",
        )
    layout.hold(base.files)
    opened[layout.root] = layout
    return layout, base
