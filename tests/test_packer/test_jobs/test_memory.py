"""Memory that runs out is the machine's fault: only an item that was tried alone is rejected, and the reason says so."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av.error
import cv2
import pytest
from PIL import Image
from support.builds import TESTS, write_images
from support.command import environment, file_of, read_jsonl, run_packer
from support.packed import check_whole
from support.steps import LOG, read_log

import packer
from packer.vision.faults import describe_error, find_memory_error
from shardspec.errors import BuildError, ItemError

Sample = dict[str, Any]


def build_with(folder: Path, steps: str) -> str:
    """Run the command with steps of `support.steps`, whatever rejects there are; its messages."""
    env = environment(python_path=TESTS, **{LOG: str(folder / "log")})
    options = ("--steps", steps, "--max-rejects", "100%", "--workers", 2)
    return run_packer("build", folder / "source", folder / "out", *options, env=env).stderr


def test_a_image_that_no_memory_suffices_for_is_rejected_with_what_it_takes(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png", "c.png"])
    Image.new("1", (12_000, 11_000)).save(tmp_path / "source" / "b-bad.png")
    reported = build_with(tmp_path, "support.steps:leave_little_memory,decode")
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert (line["item"], line["step"]) == ("b-bad.png", "worker")
    why = "memory ran out at 'b-bad.png', in decode: no memory for a PNG of 12000 × 11000 pixels, which takes 396 MB"
    assert line["reason"].startswith("brought down a worker 3 times, by itself (exit status 1: MemoryError: ")
    assert why in line["reason"]
    assert why in reported
    assert read_log(tmp_path / "log") == ["b-bad.png"] * 5  # twice in its task, three times alone
    check_whole(tmp_path / "out")


DECODE_ALL = """
import resource, sys
from pathlib import Path
from packer.vision.decode.image import decode_image

files = {path.name: path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir())}
for name in ("small.png", "small.avif"):  # loads the libraries
    decode_image(files.pop(name))
for name, data in files.items():
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (20 if name == "i.avif" else 90) * 10**6, resource.RLIM_INFINITY))
    try:
        decode_image(data)
    except MemoryError as error:
        print(name, error)
"""


def test_no_kind_of_image_is_taken_for_a_damaged_one_where_memory_is_short(tmp_path: Path) -> None:
    for name in ("small.png", "small.avif"):
        Image.new("L", (5, 4)).save(tmp_path / name)
    grey, colour = Image.new("L", (9_000, 8_000)), Image.new("RGB", (9_000, 8_000))
    for name in ("a.jpg", "b.bmp", "c.gif", "d.png", "e.tif", "f.pgm"):
        grey.save(tmp_path / name)
    colour.save(tmp_path / "g.webp", lossless=True, method=0, quality=0)
    grey.save(tmp_path / "h.tif", compression="tiff_lzw")
    Image.new("L", (3_000, 3_000)).save(tmp_path / "i.avif", speed=10)
    done = subprocess.run(
        [sys.executable, "-c", DECODE_ALL, tmp_path], env=environment(), capture_output=True, text=True, check=True
    )
    kinds = ["JPEG", "BMP", "GIF", "PNG", "TIFF", "Netpbm", "WebP", "TIFF", "AVIF"]
    for line, kind, name in zip(done.stdout.splitlines(), kinds, "abcdefghi", strict=True):
        assert line.startswith(name)
        taken = "3000 × 3000 pixels, which takes 27 MB" if kind == "AVIF" else "9000 × 8000 pixels, which takes 216 MB"
        assert f"no memory for a {kind} of {taken} decoded" in line


@pytest.mark.parametrize("what", ["nothing", "opencv", "system", "wrapped"])
def test_an_item_that_memory_is_short_for_only_for_a_while_is_packed(tmp_path: Path, what: str) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])
    reported = build_with(tmp_path, f"decode,support.steps:lack_memory_{what}")
    assert read_log(tmp_path / "log") == ["b-bad.png"] * 4
    assert "memory ran out at 'b-bad.png', in support.steps:lack_memory_" in reported
    assert read_jsonl(file_of(tmp_path / "out", "rejects.jsonl")) == []
    check_whole(tmp_path / "out")


def test_memory_that_runs_out_in_this_process_ends_the_build_and_a_resume_goes_on(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])
    short = [True]

    def lack_memory(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if "bad" in sample["source"] and short:
                raise MemoryError
            yield sample

    def build() -> Any:
        return packer.build(
            tmp_path / "source", tmp_path / "out", steps=["decode", lack_memory], engine="inline", progress=False
        )

    with pytest.raises(
        BuildError, match=r"^memory ran out at 'b-bad\.png', in .*lack_memory: MemoryError: run the same"
    ):
        build()
    short.clear()
    result = build()
    assert result.resumed
    assert result.counts.packed_items == 3


@pytest.mark.parametrize("error", [ValueError(), ItemError(), OSError(), AssertionError(), KeyError()])
def test_no_reason_is_empty(tmp_path: Path, error: Exception) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])

    def fail(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if "bad" in sample["source"]:
                raise error
            yield sample

    options: dict[str, Any] = {"engine": "inline", "progress": False, "max_rejects": 1}
    packer.build(tmp_path / "source", tmp_path / "out", steps=["decode", fail], **options)
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert line["reason"].startswith(type(error).__name__)
    assert ": (" not in line["reason"]
    assert not line["reason"].endswith(": ")


def raised_from(error: Exception, cause: Exception) -> Exception:
    """The error as it is after ``raise error from cause``."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError("out of memory error when reading image file"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("can't start new thread"),
        cv2.error("OpenCV(4.11.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 1 bytes"),
        raised_from(ItemError("the image does not decode"), MemoryError()),
        raised_from(ValueError("no"), raised_from(KeyError("x"), MemoryError("so much"))),
    ],
    ids=describe_error,
)
def test_what_says_that_memory_ran_out(error: Exception) -> None:
    assert find_memory_error(error) is not None


@pytest.mark.parametrize(
    "error",
    [
        ItemError("the note says 'out of memory'"),
        ValueError("std::bad_alloc"),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("expected a face, found none"),
    ],
    ids=describe_error,
)
def test_what_does_not(error: Exception) -> None:
    assert find_memory_error(error) is None
