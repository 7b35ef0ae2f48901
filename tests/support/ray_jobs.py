"""Every job on small data, one after another in one process, ``python -m support.ray_jobs FOLDER FORMAT ENGINE NODES``.

Prints a JSON object: the fingerprints of the dataset that each job has made, by the job's name. If `support.places` watches,
each job has its own log, with a number as its name.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from support.media import scene, write_image
from support.packed import check_whole, fingerprints
from support.places import NODES, PLACES


def write_source(root: Path, last: int) -> None:
    """Images of two classes, always with the same times; those whose numbers end in 50 are damaged at first."""
    for number in range(last):
        path = root / "ab"[number % 2] / f"{number:03d}.png"
        if not path.exists():
            write_image(path, scene(number, (24, 18)))
        if number % 100 == 50 and last <= 100:
            path.write_bytes(path.read_bytes()[:40])
        os.utime(path, (10**9 + number, 10**9 + number))


def mend_source(root: Path) -> None:
    """Replace the damaged images."""
    for path in root.rglob("*50.png"):
        number = int(path.stem)
        write_image(path, scene(number, (24, 18)))
        os.utime(path, (2 * 10**9, 2 * 10**9))


def run(folder: Path, format: str, engine: str, nodes: int) -> None:
    """Run every job, and print the fingerprints."""
    import packer

    if engine == "ray":
        import ray

        ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
    source, out, other, found = folder / "source", folder / "out", folder / "other", {}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    how: dict[str, Any] = {"engine": engine, "progress": False}
    if engine == "ray":
        how["workers"] = nodes

    def note(job: str, root: Path) -> None:
        check_whole(root)
        found[job] = fingerprints(root)

    def all_nodes(count: int) -> None:
        os.environ[NODES] = str(count)
        if PLACES in os.environ:
            os.environ[PLACES] = str(Path(os.environ[PLACES]).with_name(f"{len(found)}"))

    recipe: dict[str, Any] = {"size": 16, "label_from": "folder", "format": format, "shard_size": "20kB"}
    write_source(folder / "source2", 100)
    packer.build(folder / "source2", other, **recipe, engine="inline", progress=False)
    write_source(source, 100)
    all_nodes(nodes)
    packer.build(source, out, **recipe, **how)
    note("build", out)
    mend_source(source)
    all_nodes(1)
    packer.build(source, out, retry_rejects=True, **recipe, **how)
    note("retry", out)
    write_source(source, 200)
    all_nodes(nodes)
    packer.build(source, out, update=True, **recipe, **how)
    note("update", out)
    all_nodes(nodes)
    packer.merge([out, other], folder / "merged", **how)
    note("merge", folder / "merged")
    all_nodes(nodes)
    packer.convert(out, folder / "converted", format="npy" if format == "lmdb" else "lmdb", **how)
    note("convert", folder / "converted")
    all_nodes(nodes)
    packer.split(out, folder / "split", ratios={"train": 0.9, "test": 0.1}, by="label", **how)
    for part in ("train", "test"):
        note(f"split/{part}", folder / "split" / part)
    print(json.dumps(found))


if __name__ == "__main__":
    folder, format, engine, nodes = sys.argv[1:]
    run(Path(folder), format, engine, int(nodes))
