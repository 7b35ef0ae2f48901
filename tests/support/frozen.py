"""Small datasets, one for each kind of source and command, whose contents are compared with those of earlier versions.

``python -m support.frozen`` in ``tests/`` writes the digests of the present code to ``tests/test_packer/frozen.json``. Do
so only if a change of the bytes is meant, and say so in the changelog.
"""

import json
import os
import tarfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np

import packer
from shardspec.layout import Layout
from support.builds import QUIET
from support.command import file_of, read_jsonl
from support.media import cut_file, scene, write_image
from support.sound import write_sound
from support.written import sample

FROZEN = Path(__file__).parents[1] / "test_packer" / "frozen.json"
TIME_S = 1_700_000_000
"""Modification time of all files, because times are part of a plan."""

How = dict[str, Any]


def write_folder(root: Path, names: str = "abcdefghij", first: int = 0) -> Path:
    """Images of several formats and sizes in two classes, and one that is damaged."""
    for number, name in enumerate(names, first):
        folder = root / ("real" if number % 3 else "fake")
        size = (40 + number % 4, 36 + number % 3)
        suffix, options = (("jpg", {"quality": 90}), ("png", {}), ("bmp", {}))[number % 3]
        write_image(folder / f"{name}.{suffix}", scene(number, size), **options)
    cut_file(write_image(root / "real" / "damaged.png", scene(3, (40, 36))), 0.5)
    return set_times(root)


def write_clip(path: Path, frames: int = 9) -> Path:
    """A lossless video, so that its pixels do not depend on an encoder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    still = scene(0, (48, 40))
    with av.open(str(path), "w") as output:
        stream = output.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 40, "bgr0"
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.roll(still, 3 * index, axis=1)), "rgb24")
            frame = frame.reformat(format="bgr0")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def set_times(root: Path) -> Path:
    """Give all files below a folder the same modification time."""
    for path in [root, *root.rglob("*")]:
        os.utime(path, (TIME_S, TIME_S))
    return root


def build(source: Path, out: Path, **how: Any) -> Path:
    """Build in this process, with several tasks and shards; rejects are allowed."""
    packer.build(source, out, **{"shard_size": 20_000, "max_rejects": 1.0, "label_from": "folder", **QUIET, **how})
    return out


def kept(at: Path) -> Path:
    """A folder whose images are stored as they are."""
    return build(write_folder(at / "source"), at / "out")


def resized(at: Path) -> Path:
    """Varying shapes, encoded as JPEG, in a seeded order."""
    return build(write_folder(at / "source"), at / "out", size=24, format="parquet", shuffle=5)


def exact(at: Path) -> Path:
    """Pixels of one shape."""
    how: How = {"size": 16, "resize": "exact", "encode": "raw", "format": "npy"}
    return build(write_folder(at / "source"), at / "out", **how)


def frames(at: Path) -> Path:
    """Frames of videos as PNG."""
    write_clip(at / "source" / "real" / "clip.mkv")
    write_clip(at / "source" / "fake" / "clip.mkv", 5)
    return build(set_times(at / "source"), at / "out", every=2, encode="png", format="tfrecord")


def items(at: Path) -> Path:
    """Whole videos without loss."""
    write_clip(at / "source" / "real" / "clip.mkv")
    write_clip(at / "source" / "fake" / "clip.mkv", 5)
    return build(set_times(at / "source"), at / "out", sample="item", encode="ffv1", format="webdataset")


def segments(at: Path) -> Path:
    """Pieces of videos that overlap."""
    write_clip(at / "source" / "real" / "clip.mkv", 20)
    how: How = {"sample": "segment", "seconds": 0.2, "hop": 0.12, "encode": "ffv1"}
    return build(set_times(at / "source"), at / "out", **how)


def sounds(at: Path) -> Path:
    """Pieces of lossless sound files with two channels, at their own rate, so that no resampler decides a sample."""
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 8000))
    for number, name in enumerate(("fake/a.wav", "fake/b.flac", "real/c.wav", "real/d.flac")):
        write_sound(at / "source" / name, noise[:, : 8000 - 900 * number], 8000)
    how: How = {"preset": "sound", "seconds": 0.25, "hop": 0.2, "rest": "pad", "channels": "keep"}
    return build(set_times(at / "source"), at / "out", **how)


def table(at: Path) -> Path:
    """A table with columns of several types."""
    source = write_folder(at / "source")
    lines = [
        f"{path.relative_to(source)},{n % 2},{n / 4},note {n}" for n, path in enumerate(sorted(source.rglob("*.*")))
    ]
    (at / "table.csv").write_text("\n".join(["path,label,weight,note", *lines]) + "\n")
    set_times(at)
    return build(at / "table.csv", at / "out", root=source, label_from="label", size=16, format="hdf5")


def archive(at: Path) -> Path:
    """A tar archive."""
    source = write_folder(at / "source")
    with tarfile.open(at / "images.tar", "w") as file:
        for path in sorted(source.rglob("*.*")):
            file.add(path, path.relative_to(source).as_posix())
    set_times(at)
    return build(at / "images.tar", at / "out", size=16, format="webdataset")


def boxes(at: Path) -> Path:
    """Face crops by given boxes."""
    source = write_folder(at / "source")
    found = [
        {"path": path.relative_to(source).as_posix(), "frame": 0, "x0": 4 + n, "y0": 5, "x1": 24 + n, "y1": 27.5}
        for n, path in enumerate(sorted(source.rglob("*.*")))
    ]
    (at / "boxes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    set_times(at)
    return build(source, at / "out", preset="faces", min_face=10, boxes=at / "boxes.jsonl", size=24, encode="png")


def packed(at: Path) -> Path:
    """A packed dataset as the source of another."""
    return build(exact(at / "first"), at / "out", size=8, encode="png", label_from="none")


def updated(at: Path) -> Path:
    """A dataset that grew, lost and changed items."""
    source = write_folder(at / "source")
    out = build(source, at / "out", size=16)
    write_folder(source, "klm", 10)
    (source / "real" / "b.png").unlink()
    write_image(source / "real" / "e.png", scene(9, (50, 30)))
    os.utime(source / "real" / "e.png", (TIME_S + 1, TIME_S + 1))
    return build(source, out, size=16, update=True, changed="replace", gone="drop")


def retried(at: Path) -> Path:
    """A dataset whose rejected item could be packed later."""
    source = write_folder(at / "source")
    out = build(source, at / "out", size=16)
    write_image(source / "real" / "damaged.png", scene(3, (40, 36)))
    set_times(source)
    return build(source, out, size=16, retry_rejects=True)


def converted(at: Path) -> Path:
    """A dataset in another format and order."""
    packer.convert(resized(at / "first"), at / "out", format="lmdb", shuffle=3, shard_size=8_000, **QUIET)
    return at / "out"


def merged(at: Path) -> Path:
    """Two datasets with different classes."""
    how: How = {"size": 16, "shuffle": None}
    first = build(write_folder(at / "a"), at / "first", **how)
    (at / "b").mkdir()
    write_folder(at / "b" / "in", "xyz", 20)
    (at / "b" / "in" / "fake").rename(at / "b" / "in" / "synthetic")
    second = build(set_times(at / "b" / "in"), at / "second", **how)
    packer.merge([first, second], at / "out", classes="unite", **QUIET)
    return at / "out"


def divided(at: Path) -> Path:
    """The first part of a split."""
    packer.split(kept(at / "first"), at / "out", by="source", ratios="train=0.7,test=0.3", seed=4, **QUIET)
    return at / "out" / "train"


def written(at: Path) -> Path:
    """Samples of Python code."""
    with packer.Writer(at / "out", shard_size=8_000) as writer:
        for number in range(12):
            writer.write(**sample(number))
    return at / "out"


def called(at: Path) -> Path:
    """Samples of a function."""
    packer.pack("support.written:make", range(12), at / "out", shard_size=8_000, max_rejects=1.0, **QUIET)
    return at / "out"


DATASETS: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        kept,
        resized,
        exact,
        frames,
        items,
        segments,
        sounds,
        table,
        archive,
        boxes,
        packed,
        updated,
        retried,
        converted,
        merged,
        divided,
        written,
        called,
    )
}


def describe(out: Path) -> dict[str, Any]:
    """What must stay: the dataset's digest, its index, items and rejects."""
    layout = Layout(out)
    manifest = layout.load()
    files = {entry.own_name: entry.sha256[:16] for entry in manifest.files if entry.own_name.startswith("index/")}
    items, rejects = (
        read_jsonl(path) if path.exists() else []
        for path in (file_of(layout.root, "items.jsonl"), file_of(layout.root, "rejects.jsonl"))
    )
    generations = [[one.kind, one.counts.to_json()] for one in manifest.generations]
    return {
        "digest": manifest.digest,
        "samples": manifest.samples,
        "files": files,
        "items": items,
        "rejects": [[one["item"], one["step"]] for one in rejects],
        "generations": generations,
    }


def main() -> None:
    """Write the digests of all datasets."""
    os.environ["PACKER_SMALLEST_SIZE"] = "1"  # as in the tests
    found = {}
    for name, made in DATASETS.items():
        with TemporaryDirectory() as folder:
            found[name] = describe(made(Path(folder)))
    FROZEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
