"""The part of a packed dataset that a condition selects, as a dataset of its own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.plan import PackedInput, open_input, shards_of
from packer.packed.split.part import ItemsOfRows, plan_part
from packer.recipe.options import BuildOptions
from readers.conditions import rows_where
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.layout import Layout, opened
from shardspec.manifest import Manifest
from shardspec.wording import list_some, shorten

SPLIT = "split"
"""The field that names the official split of each sample."""


def copy_part(
    layout: Layout, out: Path, choice: Mapping[str, str], listener: ProgressListener, *, overwrite: bool = False
) -> Manifest:
    """Write a dataset of the selected samples to a folder, and return its manifest.

    Parameters
    ----------
    layout : Layout
        Of the dataset. Of a remote one, the cache gets the shards that hold selected samples, and all shards if a text is
        compared.
    out : Path
    choice : mapping of str to str
        ``where``, ``split`` or both.
    listener : ProgressListener
    overwrite : bool
        Whether to replace a dataset in `out`.
    """
    manifest = layout.load()
    if not layout.is_local:
        opened[layout.root] = layout
        in_shards = {entry.name for shard in manifest.shards for entry in shard.files}
        layout.hold([entry for entry in manifest.entries if entry.name not in in_shards])
    dataset = BrowsedDataset(layout.root, verify="digest")  # a wrong value would select a wrong sample
    rows = _select(dataset, choice)
    wanted = shards_of([shard.samples for shard in manifest.shards], rows)
    layout.hold([entry for number in wanted for entry in manifest.shards[number].files])
    one = open_input(layout.root, out)
    options = {"format": manifest.format, "shard_size": None, "shuffle": None, **choice}
    plan = plan_part("copy", one, options, rows, ItemsOfRows(one, rows))
    return Job(plan, out, BuildOptions(overwrite=overwrite), listener).run().manifest


def _select(dataset: BrowsedDataset, choice: Mapping[str, str]) -> IntArray:
    rows = np.arange(len(dataset))
    if "split" in choice:
        if SPLIT not in dataset.small_fields:
            raise UsageError(
                option="split",
                expected=f"a dataset with a field {SPLIT!r} of text",
                found=f"none in {dataset.place}",
                hint="select by another field with `where`",
            )
        rows = rows_where(dataset, f"{SPLIT} == {choice['split']!r}")
        if not len(rows):
            known = np.unique(np.ma.compressed(np.ma.asarray(dataset.column(SPLIT)))).tolist()
            raise UsageError(
                option="split", expected=f"one of {list_some(list(map(repr, known)))}", found=shorten(choice["split"])
            )
    if "where" in choice:
        rows = np.intersect1d(rows, rows_where(dataset, choice["where"]))
        if not len(rows):
            raise UsageError(
                option="where", expected="an expression that selects samples", found=f"none of {len(dataset)} selected"
            )
    return rows


def is_part(made: Manifest, manifest: Manifest, choice: Mapping[str, str]) -> bool:
    """Return whether a dataset is the selected part of the dataset with this manifest."""
    job = made.wall_clock.get("job")
    if not isinstance(job, Mapping) or job.get("kind") != "copy":
        return False
    options = job.get("options", {})
    same = all(options.get(name) == choice.get(name) for name in ("where", "split"))
    return same and job.get("digests") == [PackedInput(Path(), manifest).digest]
