"""Our Loader beside those of other projects, on the same samples, in turn, in one run.

    python -m benchmarks.peers --folder /somewhere --json out.json

The method, and how the others are installed, is in ``benchmarks/README.md``. A loader that is not installed is a row
with the error of its import. Each kind of samples is measured in groups that fit into the page cache; the limits and our Loader are in
every group.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import KINDS, PHOTOS, SourceImages, add_arguments, make_source, pack_ours, rows_of, settings_of
from benchmarks.limits import limits_of
from benchmarks.measure import Entry, artefact, disk_mb, document, measure_group, versions, write
from benchmarks.readers import our_entry
from benchmarks.tables import group_text
from shardspec.formats import FORMATS

LIBRARIES = (
    "ffcv",
    "nvidia-dali-cuda130",
    "spdl",
    "torchdata",
    "grain",
    "turboloader",
    "pylance",
    "litdata",
    "mosaicml-streaming",
    "webdataset",
    "datasets",
    "torchvision",
    "Pillow",
    "opencv-python-headless",
    "simplejpeg",
    "torch",
    "numpy",
    "lmdb",
    "h5py",
)


@dataclass(frozen=True)
class Peer:
    """A loader of another project.

    Attributes
    ----------
    module, pack, open : str
        Where its two functions are.
    kinds : tuple of str
        The kinds of samples that it can read.
    """

    name: str
    module: str
    kinds: tuple[str, ...] = KINDS
    pack: str = "pack"
    open: str = "open"

    def root(self, kind: str, folder: Path) -> Path:
        """Its own folder: a format of ours may have the name of a peer, such as WebDataset."""
        return folder / f"{kind}-peer-{self.name.replace(' ', '-').lower()}"

    def entry(self, kind: str, folder: Path, source: Path, batch: int, recipe: str = "") -> Entry:
        """Its row; the data are packed first if they are not there."""
        root = self.root(kind, folder)
        facts = pack_peer(self, SourceImages(source, kind), root)
        options = {"source": str(source), "kind": kind, "root": str(root), "batch": batch}
        if recipe:
            options["recipe"] = recipe
        return Entry(self.name, f"{_PACKAGE}.{self.module}:{self.open}", options, facts=facts)


_PACKAGE = "benchmarks.peer_loaders"
_FFCV = Peer("FFCV", "ffcv_loader")
_DALI = Peer("DALI", "dali_loader")
_DALI_TAR = Peer("DALI over tar files", "dali_loader", ("raw",), "pack_tar", "open_tar")
_SPDL = Peer("SPDL", "spdl_loader", kinds=("raw", "jpeg"))
_SPDL_SIMPLEJPEG = Peer("SPDL with simplejpeg", "spdl_loader", ("jpeg", *PHOTOS), open="open_simplejpeg")
_NODES = Peer("torchdata nodes", "nodes_loader")
_GRAIN = Peer("Grain", "grain_loader")
_LANCE = Peer("Lance", "lance_loader")
_TURBO = Peer("TurboLoader", "turbo_loader")
_TURBO_ARRAYS = Peer("TurboLoader over arrays", "turbo_loader", ("raw",), "pack_arrays", "open_arrays")
_LITDATA = Peer("LitData", "litdata_loader")
_STREAMING = Peer("MosaicML Streaming", "streaming_loader")
_WEBDATASET = Peer("WebDataset", "webdataset_loader")
_DATASETS = Peer("Hugging Face datasets", "huggingface_loader")
_FILES = Peer("DataLoader over files", "torch_loaders", pack="pack_files", open="open_files")
_LMDB = Peer("DataLoader over LMDB", "torch_loaders", pack="pack_lmdb", open="open_lmdb")
_HDF5 = Peer("DataLoader over HDF5", "torch_loaders", pack="pack_hdf5", open="open_hdf5")
PEERS = (
    *(_FFCV, _DALI, _DALI_TAR, _SPDL, _SPDL_SIMPLEJPEG, _NODES, _GRAIN, _TURBO, _TURBO_ARRAYS, _LANCE, _DATASETS),
    *(_LITDATA, _STREAMING, _WEBDATASET, _FILES, _LMDB, _HDF5),
)
RECIPES: Mapping[str, Sequence[Peer]] = {
    "jitter": (_FILES, _LMDB, _FFCV, _DALI, _SPDL_SIMPLEJPEG),
    "randaugment": (_FILES, _LMDB, _SPDL_SIMPLEJPEG),
}
"""The whole recipes of photos (`benchmarks.peer_loaders.recipes`), and the loaders that have them; of the others, those
whose samples go through the same Python code as here.
"""
PER_GROUP = 4
"""Most peers of a group by default: so many fit into the page cache together with ours at 1.5 GB for each."""


def pack_peer(peer: Peer, source: SourceImages, root: Path, **options: Any) -> dict[str, float]:
    """Pack the source as a peer does, in a process of its own, unless that was done; seconds and MB, if it worked.

    The options are those of the peer's function.
    """
    facts = root.with_name(root.name + ".facts.json")
    if facts.exists():
        found: dict[str, float] = json.loads(facts.read_text())
        return found
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    process = multiprocessing.get_context("spawn").Process(
        target=_pack, args=(peer, source.folder, source.kind, root, options)
    )
    start = time.perf_counter()
    process.start()
    process.join()
    if process.exitcode != 0:
        return {}
    found = {"pack_s": time.perf_counter() - start, "disk_mb": disk_mb(root)} if any(root.iterdir()) else {}
    facts.write_text(json.dumps(found))
    return found


def _pack(peer: Peer, source: Path, kind: str, root: Path, options: Mapping[str, Any]) -> None:
    with contextlib.suppress(ImportError):  # the row will say that it is not installed
        module = importlib.import_module(f"{_PACKAGE}.{peer.module}")
        getattr(module, peer.pack)(SourceImages(source, kind), root, **options)
        return
    raise SystemExit(1)


def ours(kind: str, folder: Path, source: Path, batch: int, formats: Sequence[str], ways: bool) -> list[Entry]:
    """Our Loader over some formats and, with `ways`, in further ways over the first of them."""
    entries = []
    for format in formats:
        root = folder / f"{kind}-{format}"
        given = (kind, source, root, batch, pack_ours(SourceImages(source, kind), root, format))
        entries.append(our_entry(f"Loader, {format}", *given))
        if ways and format == formats[0]:
            way = "fresh" if kind == "raw" else "fast"
            entries.append(our_entry(f"Loader, {format}, {way}", *given, **{way: True}))
        if ways and format == formats[0] and kind == "photo500":  # smaller images get no markers
            root = folder / f"{kind}-{format}-restart-markers"
            facts = pack_ours(SourceImages(source, kind), root, format, restart_markers=True)
            given = (kind, source, root, batch, facts)
            for way, fast in (("restart markers", False), ("restart markers, fast", True)):
                entries.append(our_entry(f"Loader, {format}, {way}", *given, fast=fast))
    return entries


def long_epochs(folder: Path, source: Path, batch: int, repeats: int) -> list[Entry]:
    """Raw crops, in epochs that visit every row several times, so that the costs of an epoch's start weigh less."""
    root = folder / "raw-npy"
    pack_ours(SourceImages(source, "raw"), root, "npy")
    options = {"source": str(source), "kind": "raw", "batch": batch, "root": str(root), "repeats": repeats}
    mine = Entry("Loader, npy", "benchmarks.reader_arms:loader", options, ours=True, checked=False)
    theirs = options | {"root": str(_FFCV.root("raw", folder))}
    peer = Entry(_FFCV.name, f"{_PACKAGE}.ffcv_loader:open", theirs, checked=False)
    return [*limits_of("raw", source, batch), mine, peer]


def with_recipe(
    recipe: str, folder: Path, source: Path, batch: int, formats: Sequence[str], only: Sequence[str] | None
) -> list[Entry]:
    """Photos through the whole recipe of training, to normalised floating numbers; of the peers, all or those chosen."""
    entries = limits_of("photo", source, batch)[:1]
    for entry in ours("photo", folder, source, batch, formats, False):
        entry.options["recipe"] = recipe
        entries.append(entry)
    chosen = [peer for peer in RECIPES[recipe] if only is None or peer.name.startswith(tuple(only))]
    return entries + [peer.entry("photo", folder, source, batch, recipe) for peer in chosen]


def groups_of(kind: str, only: Sequence[str] | None, size: int) -> list[Sequence[Peer]]:
    """The peers that read a kind, or those whose names have a prefix, in groups; one empty group if there are none."""
    chosen = [p for p in PEERS if kind in p.kinds and (only is None or p.name.startswith(tuple(only)))]
    return [chosen[first : first + size] for first in range(0, len(chosen), size)] or [[]]


def main() -> None:
    """Pack, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--formats", nargs="+", choices=sorted(FORMATS), default=["npy", "lmdb"], help="of our Loader")
    parser.add_argument(
        "--recipes", nargs="*", choices=sorted(RECIPES), default=sorted(RECIPES), help="of photos, if they are measured"
    )
    parser.add_argument("--only-recipes", action="store_true", help="nothing but the recipes")
    parser.add_argument("--group", type=int, default=PER_GROUP, help="most peers of a group")
    parser.add_argument(
        "--long", type=int, default=6, help="times that long epochs of raw crops visit each row; 0: none"
    )
    arguments = parser.parse_args()
    folder, batch = arguments.folder, arguments.batch
    source = folder / "source"
    make_source(source, tuple(arguments.kinds), rows_of(arguments))
    groups: list[dict[str, Any]] = []
    settings = settings_of(arguments) | {"long": arguments.long, "peers": versions(LIBRARIES)}
    out = artefact(arguments.json, "peers")

    def add(name: str, entries: Sequence[Entry]) -> None:
        groups.append(measure_group(name, entries, arguments.rounds, arguments.settle))
        print(group_text(groups[-1]) + "\n", flush=True)
        write(document("peers", settings, groups), out)  # a run that is stopped keeps what it has so far

    for kind in () if arguments.only_recipes else arguments.kinds:
        for number, peers in enumerate(groups_of(kind, arguments.only, arguments.group)):
            formats = arguments.formats[:1] if number else arguments.formats
            entries = limits_of(kind, source, batch) + ours(kind, folder, source, batch, formats, not number)
            entries += [peer.entry(kind, folder, source, batch) for peer in peers]
            add(f"{kind} ({number + 1})", entries)
    for recipe in arguments.recipes if "photo" in arguments.kinds else ():
        entries = with_recipe(recipe, folder, source, batch, arguments.formats, arguments.only)
        add(f"photo, {recipe}", entries)
    if "raw" in arguments.kinds and arguments.long and not arguments.only_recipes:
        add(f"raw, epochs of {arguments.long} visits", long_epochs(folder, source, batch, arguments.long))


if __name__ == "__main__":
    main()
