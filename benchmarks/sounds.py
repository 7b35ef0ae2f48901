"""Sound files packed and read, compared with soundfile and soxr in ``__getitem__``.

    python -m benchmarks.sounds --folder /somewhere

Made MP3 files (seeded tones and noise, 44.1 kHz, stereo, 128 kbit/s) are packed as pieces of two seconds at 16 kHz, mono,
by two worker processes. An epoch reads every piece once, in random order, in batches of 32. *DataLoader* has two workers
that are kept; each item opens its file, seeks, decodes two seconds, mixes the channels and resamples (soxr, HQ). Both
run in turn, round after round, after an epoch that is not counted.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

import packer
from benchmarks.measure import machine, versions
from readers import Loader, open_dataset

OWN_RATE, RATE, PIECE_S, BATCH, THREADS = 44100, 16000, 2.0, 32, 2
LIBRARIES = ("av", "soundfile", "soxr", "torch", "numpy")


def make(folder: Path, files: int, seconds: int) -> None:
    """Write the MP3 files."""
    folder.mkdir(parents=True, exist_ok=True)
    times = np.arange(seconds * OWN_RATE) / OWN_RATE
    for number in range(files):
        rng = np.random.default_rng(number)
        tones = [np.sin(2 * np.pi * rng.uniform(100, 4000) * times) for _ in range(3)]
        sound = 0.2 * np.sum(tones, axis=0) + 0.02 * rng.standard_normal((2, len(times)))
        with av.open(str(folder / f"{number:03d}.mp3"), "w") as output:
            stream = output.add_stream("libmp3lame", rate=OWN_RATE, layout="stereo", bit_rate=128_000)
            frame = av.AudioFrame.from_ndarray(sound.astype(np.float32), "fltp", "stereo")
            frame.sample_rate, frame.time_base, frame.pts = OWN_RATE, Fraction(1, OWN_RATE), 0
            output.mux(stream.encode(frame))
            output.mux(stream.encode())


class Pieces(torch.utils.data.Dataset[torch.Tensor]):
    """The usual dataset: each item is decoded when it is asked for."""

    def __init__(self, folder: Path, seconds: int) -> None:
        count = int(seconds / PIECE_S)
        self._items = [(str(path), n * PIECE_S) for path in sorted(folder.glob("*.mp3")) for n in range(count)]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> torch.Tensor:
        import soundfile
        import soxr

        path, start_s = self._items[index]
        with soundfile.SoundFile(path) as file:
            file.seek(round(start_s * file.samplerate))
            samples = file.read(round(PIECE_S * file.samplerate), dtype="float32", always_2d=True)
            resampled = soxr.resample(samples.mean(axis=1), file.samplerate, RATE)
        return torch.from_numpy(np.ascontiguousarray(resampled, np.float32))


def consume(batches: Iterable[Any]) -> int:
    """Read an epoch; the number of pieces."""
    return sum(len(batch["audio"] if isinstance(batch, dict) else batch) for batch in batches)


def rates(arms: dict[str, Callable[[int], Iterable[Any]]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of sound that each arm reads in a second, by round."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, epoch in arms.items():
            begin = time.perf_counter()
            pieces = consume(epoch(number))
            if number:
                found[name].append(pieces * PIECE_S / (time.perf_counter() - begin))
    return found


def main() -> None:
    """Make the files, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=lambda path: Path(path).absolute(), required=True)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    source, out = arguments.folder / "mp3", arguments.folder / "packed"
    if not source.exists():
        make(source, arguments.files, arguments.seconds)
    hours, packed_s = arguments.files * arguments.seconds / 3600, []
    for _ in range(3):
        shutil.rmtree(out, ignore_errors=True)
        begin = time.perf_counter()
        packer.build(source, out, preset="sound", audio=RATE, seconds=PIECE_S, workers=2, progress=False)
        packed_s.append(time.perf_counter() - begin)
    print(f"packed {hours:.2f} h: {60 * hours / statistics.median(packed_s):.2f} hours a minute, of {packed_s}")
    loader = Loader(open_dataset(out, ["audio"]), BATCH, workers=THREADS, seed=0)
    usual = torch.utils.data.DataLoader(
        Pieces(source, arguments.seconds), BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True
    )

    def epoch(number: int) -> Iterable[Any]:
        loader.set_epoch(number)
        return loader

    for name, found in rates({"Loader": epoch, "DataLoader": lambda _: usual}, arguments.rounds).items():
        print(f"{name}: {statistics.median(found):.0f} s of sound a second ({min(found):.0f} to {max(found):.0f})")
    print(machine(), versions(LIBRARIES))


if __name__ == "__main__":
    main()
