"""Search for images that look the same: by digests and hashes, and then on the pixels."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.analysis.compute.function import open_function
from packer.analysis.compute.job import ComputeJob, has_computed
from packer.analysis.duplicates.candidates import equal_rows, near_rows, united
from packer.analysis.duplicates.opened import OpenedDataset
from packer.analysis.duplicates.pixels import SIDE, keep_alike, thumbnails
from packer.analysis.duplicates.search import Pairs
from packer.analysis.measures.hash import WHOLE
from packer.jobs.progress import ProgressListener
from packer.workspace.scratch import TemporaryFiles
from shardspec.columns import IntArray
from shardspec.stores import local_path

_FUNCTIONS = ("hash", "digest")


def pairs_by_pixels(
    opened: Sequence[OpenedDataset],
    group: IntArray,
    within: float,
    workers: int,
    listener: ProgressListener,
) -> Pairs:
    """Find pairs of images with equal pixels, or with near hashes and correlated pixels."""
    hashes, has_hash, digests = [], [], []
    for one in opened:
        found = _computed(one, workers, listener)
        hashes.append(found["hash"][0])
        has_hash.append(found["hash"][1])
        digests.append(found["digest"][0])
    digest = np.ascontiguousarray(np.concatenate(digests)).view("V32").ravel()
    rows = np.flatnonzero(np.concatenate(has_hash))
    equal = equal_rows(digest, group)
    known = np.concatenate(hashes)[rows]
    parts = [known[:, :WHOLE], *np.hsplit(known[:, WHOLE:], known.shape[1] - WHOLE)]  # each compared with its like
    ones, others = united(equal, *(near_rows(part, rows, group) for part in parts))
    same = digest[ones] == digest[others]
    involved = np.unique(np.concatenate([ones[~same], others[~same]]))
    luma, start = np.empty((0, SIDE, SIDE), np.uint8), 0
    for one in opened:
        own = involved[(involved >= start) & (involved < start + len(one.dataset))] - start
        luma = np.concatenate([luma, thumbnails(one.with_fields(["image"]), own)])
        start += len(one.dataset)
    alike = keep_alike((ones[~same], others[~same]), luma, involved, within)
    zero = np.zeros(np.count_nonzero(same), np.float32)
    return Pairs(
        np.concatenate([ones[same], alike.ones]),
        np.concatenate([others[same], alike.others]),
        np.concatenate([zero, alike.distance]),
    )


def _computed(
    one: OpenedDataset, workers: int, listener: ProgressListener
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]:
    """Return hashes and digests with their validity: stored ones, or else computed in a temporary folder."""
    missing = [name for name in _FUNCTIONS if not has_computed(one.dataset.manifest, open_function(name))]
    found = {name: (one.dataset.column(name), one.known(name)) for name in _FUNCTIONS if name not in missing}
    if missing:
        functions = tuple(map(open_function, missing))
        job = ComputeJob(
            local_path(one.given), tuple(missing), functions, workers=workers, storage_options=one.storage_options
        )
        with ExitStack() as stack:
            files = TemporaryFiles()
            stack.callback(files.close)
            for name, (_, values) in job.values(files.path, listener, lambda name, function: None).items():
                found[name] = np.array(values.data), values.valid
    return found
