"""The part of a packed dataset that a condition selects, as a dataset of its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import time

import numpy as np
from filelock import FileLock, Timeout

from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener
from packer.packed.browse.columns import ColumnArray
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.copy.places import DatasetPlace, Folder
from packer.packed.copy.transfer import prepare, transfer
from packer.packed.plan import Input, open_input, shards_of
from packer.packed.split.part import ItemsOfRows, plan_part
from packer.recipe.options import BuildOptions
from packer.workspace.durable import remove_tree
from readers.conditions import rows_where
from shardspec.columns import IntArray
from shardspec.entries import FileEntry, Shard
from shardspec.errors import UsageError
from shardspec.layout import MANIFEST_NAME
from shardspec.manifest import Manifest
from shardspec.wording import list_some, shorten

SPLIT = "split"
"""The field that names the official split of each sample."""

_TEMPORARY, _LOCK = "packer-copy-", "lock"
_STARTING_S = 60
"""A folder this young may be that of a process that has not locked it yet."""


def copy_part(
    source: DatasetPlace,
    data: bytes,
    out: Path,
    choice: Mapping[str, str],
    *,
    work: Path,
    listener: ProgressListener,
    overwrite: bool = False,
) -> Manifest:
    """Write a dataset of the selected samples to a folder, and return its manifest.

    Parameters
    ----------
    source : DatasetPlace
    data : bytes
        The manifest of the dataset in `source`.
    out : Path
    choice : mapping of str to str
        ``where``, ``split`` or both.
    work : Path
        Folder for the needed files of a dataset in a store. Files that are in it already are used. It is deleted at the
        end, and kept if the same call can resume.
    listener : ProgressListener
    overwrite : bool
        Whether to replace a dataset in `out`.
    """
    manifest = Manifest.loads(data, source.place(MANIFEST_NAME))
    browsed = (
        BrowsedDataset(source.root)
        if isinstance(source, Folder)
        else _FetchedDataset(source, data, manifest, Folder(work), listener)
    )
    with _until_done(work) if isinstance(browsed, _FetchedDataset) else nullcontext():
        rows = _select(browsed, source.name, choice)
        if isinstance(browsed, _FetchedDataset):
            shards = manifest.shards
            browsed.fetch([shards[number] for number in shards_of([shard.samples for shard in shards], rows)])
        one = open_input(browsed.path, out)
        options = {"format": manifest.format, "shard_size": None, "shuffle": None, **choice}
        plan = plan_part("copy", one, options, rows, ItemsOfRows(one, rows))
        return Job(plan, out, BuildOptions(overwrite=overwrite), listener).run().manifest


@contextmanager
def _until_done(work: Path) -> Iterator[None]:
    """Delete a folder at the end, unless the same call can resume."""
    try:
        yield
    except UsageError:
        remove_tree(work)
        raise
    remove_tree(work)


class _FetchedDataset(BrowsedDataset):
    """A dataset in a store, whose files are fetched when they are needed.

    Parameters
    ----------
    local : Folder
        Where the files go.
    """

    def __init__(
        self, source: DatasetPlace, data: bytes, manifest: Manifest, local: Folder, listener: ProgressListener
    ) -> None:
        prepare(local, data, manifest, overwrite=True)
        self._transfer = partial(transfer, source, local, listener=listener)
        self._local, self._here = local, set[str]()
        in_shards = {entry.name for shard in manifest.shards for entry in shard.files}
        self._fetch_files([entry for entry in manifest.entries if entry.name not in in_shards])
        local.commit(data)
        super().__init__(local.root, verify="off")

    def column(self, name: str) -> ColumnArray:
        """Return a small field of all samples. Fields that are not in the index are read from all shards."""
        if self.pool.layout.find_index(self.manifest, name) is None:
            self.fetch(self.manifest.shards)
        return super().column(name)

    def fetch(self, shards: Iterable[Shard]) -> None:
        """Fetch shards that are not here yet."""
        self._fetch_files([entry for shard in shards for entry in shard.files])

    def _fetch_files(self, entries: Sequence[FileEntry]) -> None:
        missing = [entry for entry in entries if entry.name not in self._here]
        if missing:
            self._transfer(entries=missing, present=self._local.names())
            self._here.update(entry.name for entry in missing)


def _select(dataset: BrowsedDataset, place: str, choice: Mapping[str, str]) -> IntArray:
    rows = np.arange(len(dataset))
    if "split" in choice:
        if SPLIT not in dataset.small_fields:
            raise UsageError(
                option="split",
                expected=f"a dataset with a field {SPLIT!r} of text",
                found=f"none in {place}",
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
    return same and job.get("digests") == [Input(Path(), manifest).digest]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder, which is deleted at the end, and delete those of killed processes."""
    with TemporaryDirectory(prefix=_TEMPORARY, ignore_cleanup_errors=True) as name:
        own = Path(name)
        with FileLock(own / _LOCK):
            for other in own.parent.glob(f"{_TEMPORARY}*"):
                with suppress(OSError, Timeout):
                    if other.lstat().st_uid == own.lstat().st_uid and time() - other.lstat().st_mtime > _STARTING_S:
                        with FileLock(other / _LOCK, blocking=False):
                            rmtree(other)
            yield own
