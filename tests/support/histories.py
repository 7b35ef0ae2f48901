"""Decoding files in a separate process, after other files."""

import gc
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.vision.decode.limits import VideoError
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from support.command import REPOSITORY, environment

Decoded = dict[str, tuple[list[tuple[int, str]], str | None]]
"""By file: each frame's index and digest, and the damage."""


def decode_apart(
    files: Sequence[Path], before: Mapping[Path, Path] | None = None, *, collect_every: int = 0, **env: str
) -> Decoded:
    """Decode files in a new process, each after another file, which `before` gives.

    Garbage is collected after a number of frames, again and again; never for 0.
    """
    script = "import sys; from support.histories import main; main(*sys.argv[1:])"
    pairs = json.dumps([(str(file), str((before or {}).get(file, ""))) for file in files])
    done = subprocess.run(
        [sys.executable, "-c", script, str(collect_every)],
        env=environment(python_path=REPOSITORY / "tests", **env),
        input=pairs,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: ([(index, digest) for index, digest in frames], damage)
        for name, (frames, damage) in json.loads(done.stdout).items()
    }


def main(collect_every: str) -> None:
    """What the process does."""
    gc.disable()
    gc.freeze()
    found: dict[str, Any] = {}
    for file, before in json.load(sys.stdin):
        if before:
            decode(before, int(collect_every))
        found[os.path.basename(file)] = decode(file, int(collect_every))  # noqa: PTH119 -- to be a key
    json.dump(found, sys.stdout)


def decode(path: str, collect_every: int) -> tuple[list[tuple[int, str]], str | None]:
    """Every frame that is given, and the reported damage."""
    frames: list[tuple[int, str]] = []
    try:
        with VideoReader(path, Sampling(every=1)) as reader:
            for frame in reader:
                frames.append((frame.index, hashlib.sha256(frame.image.tobytes()).hexdigest()))
                if collect_every and len(frames) % collect_every == 0:
                    gc.collect()
            return frames, reader.damage
    except VideoError as error:
        return frames, str(error)
