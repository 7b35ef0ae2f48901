"""Samples for `packer.Writer` and `packer.pack`, as functions that worker processes import."""

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from support.media import scene
from support.steps import log_line


def jpeg(number: int, size: tuple[int, int] = (24, 18), **options: Any) -> bytes:
    """An encoded image."""
    file = io.BytesIO()
    Image.fromarray(scene(number, size)).save(file, **{"format": "JPEG", "quality": 85, **options})
    return file.getvalue()


def sample(number: int) -> dict[str, Any]:
    """Values of every kind that a sample can show by itself."""
    return {
        "image": jpeg(number) if number % 2 else scene(number, (24, 18)),
        "label": ("cat", "dog", "über")[number % 3],
        "embedding": np.arange(4, dtype=np.float32) + number,
        "points": np.full((number % 4, 2), number, np.int16),
        "ids": list(range(number % 3 + 1)),
        "count": number,
        "share": number / 8,
        "good": number % 2 == 0,
        "note": f"note {number}\n人脸",
        "facts": {"number": number, "more": [None, "x"]},
        "blob": bytes([number % 256]) * (number % 5),
    }


def make(number: int) -> Iterator[dict[str, Any]]:
    """One to three samples; none for every tenth input, an error for another tenth."""
    if number % 10 == 9:
        return
    for part in range(number % 3 + 1):
        if number % 10 == 8 and part:
            raise RuntimeError(f"no sample of {number}")
        yield sample(number + part)


def make_and_log(number: int) -> list[dict[str, Any]]:
    """One sample, after a line in the log."""
    log_line(str(number))
    return [sample(number)]


def kill_itself(number: int) -> dict[str, Any]:
    """Bring down the process over one input."""
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": number}


def describe(given: Any) -> dict[str, Any]:
    """What kind of value arrived."""
    return {"kind": type(given).__name__, "text": repr(given)}


def misfit(number: int) -> Any:
    """Values that nothing can store, or that are no samples."""
    return {
        0: {"x": 1},
        1: 5,
        2: "text",
        3: [1],
        4: {"x": None},
        5: {"x": object()},
        6: {"X": 1},
        7: {"x": 1, "key": "mine"},
        8: {"y": 2},
        9: {"x": "text"},
        10: {"x": 1},
    }[number]


def name_of_file(path: Path) -> dict[str, Any]:
    """The image of a file, with its bytes."""
    return {"image": path.read_bytes(), "name": path.name}
