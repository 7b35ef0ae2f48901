"""Draw sound: its waveform above its spectrogram."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.schema import Field, Schema

SOUND_SIDE = 224
"""Default side of a drawing in pixels."""

_FULL_SCALE = 2**15
_WINDOW = 512
_FLOOR_DB = 80.0
"""Range of the spectrogram below its loudest value."""
_BACKGROUND, _WAVE = (11, 13, 16), (88, 166, 255)


def sound_field(schema: Schema) -> Field | None:
    """Return the field ``audio`` of a dataset of packed sound files, (N,) or (C, N) int16; None for other datasets."""
    field = schema.by_name.get("audio")
    if field is None or "audio_rate" not in schema or any(other.is_image for other in schema):
        return None
    return field if field.dtype == "<i2" and len(field.shape) in (1, 2) else None


def draw_sound(samples: npt.NDArray[Any], side: int = SOUND_SIDE) -> npt.NDArray[np.uint8]:
    """Draw a square: in the upper third the waveform, below it the spectrogram.

    Parameters
    ----------
    samples : ndarray, (N,) or (C, N)
        Integers of 16 bits, or floating point numbers from -1 to 1. Channels are mixed.
    side : int
        Height and width in pixels.

    Returns
    -------
    ndarray, (side, side, 3), uint8, RGB
        Time from left to right; in the spectrogram, frequency from 0 at the bottom to half the rate, in decibels.
    """
    mono = np.nan_to_num(np.atleast_2d(samples).mean(axis=0, dtype=np.float32))
    if np.asarray(samples).dtype.kind in "iu":
        mono /= _FULL_SCALE
    out = np.full((side, side, 3), _BACKGROUND, np.uint8)
    if not mono.size:
        return out
    tall = side // 3
    edges = np.linspace(0, len(mono), side + 1).astype(np.int64)
    starts = np.minimum(edges[:-1], len(mono) - 1)
    low, high = np.minimum.reduceat(mono, starts), np.maximum.reduceat(mono, starts)
    rows = np.arange(tall)[:, None]
    top, bottom = (np.rint((1 - np.clip(level, -1, 1)) / 2 * (tall - 1)) for level in (high, low))
    out[:tall][(rows >= top) & (rows <= bottom)] = _WAVE
    out[tall:] = _colours(_spectrogram(mono, side - tall, side))
    return out


def _spectrogram(mono: npt.NDArray[np.float32], height: int, width: int) -> npt.NDArray[np.float64]:
    """Return levels from 0 to 1, (height, width), with the highest frequency first."""
    padded = np.pad(mono, (0, max(0, _WINDOW - len(mono))))
    starts = np.linspace(0, len(padded) - _WINDOW, width).astype(np.int64)
    windows = padded[starts[:, None] + np.arange(_WINDOW)] * np.hanning(_WINDOW)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    level = 10 * np.log10(power / max(power.max(), 1e-12) + 1e-12)
    shown = np.linspace(power.shape[1] - 1, 0, height).astype(np.int64)
    scaled: npt.NDArray[np.float64] = np.clip(level.T[shown] / _FLOOR_DB + 1, 0, 1)
    return scaled


def _colours(levels: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Colour levels from 0 to 1: black, violet, orange, white."""
    stops = np.linspace(0, 1, 4)
    tones = np.array([(11, 13, 16), (110, 40, 130), (250, 140, 60), (255, 255, 230)], np.float64)
    return np.stack([np.interp(levels, stops, tones[:, channel]) for channel in range(3)], axis=-1).astype(np.uint8)
