"""Small videos with sound, and sound files, written with PyAV."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio.resampler import AudioResampler

CLICK_S = 1.0
"""Time of the click in `click`, in seconds."""


def click(rate: int, seconds: float = 2.0) -> npt.NDArray[np.float64]:
    """Faint noise with a click of half a millisecond, whose peak is at `CLICK_S`."""
    out = 0.003 * np.random.default_rng(0).standard_normal(int(seconds * rate))
    shape = 0.8 * np.hanning(rate // 4000 * 2 + 1)
    first = round(CLICK_S * rate) - len(shape) // 2
    out[first : first + len(shape)] = shape
    return out


def write_talk(
    path: Path,
    *,
    codec: str | None = "aac",
    rate: int = 48000,
    offset: float = 0.0,
    hole: tuple[float, float] = (0.0, 0.0),
    wave: npt.NDArray[np.float64] | None = None,
    fps: Fraction | int = 25,
    frames: int = 50,
    stamps: Sequence[int] | None = None,
    options: Mapping[str, str] | None = None,
) -> Path:
    """A grey video with sound.

    Parameters
    ----------
    codec : str or None
        Of the sound; None for a video without sound.
    offset : float, seconds
        When the sound begins.
    hole : tuple of float, seconds
        A part of the sound that is left out, from its beginning on.
    wave : ndarray, (N,) or (2, N), optional
        The samples, from -1 to 1, in both channels or in each. By default `click`.
    stamps : sequence of int, optional
        Times of the frames in milliseconds.
    options : mapping, optional
        Of the container.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unit = 1 / Fraction(fps) if stamps is None else Fraction(1, 1000)
    codecs = {".webm": "libvpx", ".avi": "mpeg4"}  # an AVI with B-frames begins with another time than 0
    with av.open(str(path), "w", options=dict(options or {})) as output:
        video = output.add_stream(codecs.get(path.suffix, "libx264"), rate=Fraction(fps))
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.codec_context.time_base = unit
        sound = None if codec is None else output.add_stream(codec, rate=rate, layout="stereo")
        for number in range(frames):
            grey = np.full((48, 64, 3), 3 * number % 256, np.uint8)
            picture = av.VideoFrame.from_ndarray(grey, "rgb24").reformat(format="yuv420p")
            picture.pts, picture.time_base = number if stamps is None else stamps[number], unit
            output.mux(video.encode(picture))
        output.mux(video.encode())
        if sound is not None:
            samples = np.broadcast_to(click(rate) if wave is None else wave, (2, len(np.atleast_2d(click(rate))[0])))
            whole = np.round(samples.T * 32767).astype(np.int16)
            to_codec, step = AudioResampler(sound.format.name, "stereo", rate), sound.codec_context.frame_size or 1000
            for first in range(0, len(whole), step):
                if hole[0] <= first / rate < hole[1]:
                    continue
                block = av.AudioFrame.from_ndarray(whole[first : first + step].reshape(1, -1), "s16", "stereo")
                block.sample_rate, block.time_base = rate, Fraction(1, rate)
                block.pts = first + round(offset * rate)
                for frame in to_codec.resample(block):
                    output.mux(sound.encode(frame))
            output.mux(sound.encode())
    return path


def straight(path: Path, rate: int) -> tuple[npt.NDArray[np.int16], float]:
    """The whole sound of a file in one go, mono, and the time of its first sample."""
    with av.open(str(path)) as container:
        resampler, parts, start = AudioResampler("s16", "mono", rate), [], None
        for frame in container.decode(audio=0):
            start = float(frame.pts * frame.time_base) if start is None else start
            frame.pts = None
            parts += resampler.resample(frame)
        parts += resampler.resample(None)
    assert start is not None
    return np.concatenate([part.to_ndarray()[0] for part in parts]), start


SOUND_CODECS = {
    ".wav": "pcm_s16le",
    ".flac": "flac",
    ".mp3": "libmp3lame",
    ".m4a": "aac",
    ".opus": "libopus",
    ".ogg": "flac",
    ".oga": "libopus",
    ".aif": "pcm_s16be",
    ".aiff": "pcm_s16be",
    ".aac": "aac",
}
"""The usual codec of each suffix. Vorbis has no encoder of one channel in PyAV, so that an .ogg holds FLAC."""


def write_sound(
    path: Path, wave: npt.NDArray[np.float64], rate: int, *, options: Mapping[str, str] | None = None, codec: str = ""
) -> Path:
    """Write a sound file of the type that the suffix names.

    Parameters
    ----------
    wave : ndarray, (N,) or (C, N)
        From -1 to 1.
    options : mapping, optional
        Of the container.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.atleast_2d(wave)
    layout = "mono" if len(samples) == 1 else "stereo"
    kind = {".m4a": "mp4", ".aac": "adts", ".aif": "aiff", ".oga": "ogg"}.get(path.suffix.lower())
    with av.open(str(path), "w", format=kind, options=dict(options or {})) as output:
        stream = output.add_stream(codec or SOUND_CODECS[path.suffix.lower()], rate=rate, layout=layout)
        to_codec, step = AudioResampler(stream.format.name, layout, rate), stream.codec_context.frame_size or 1024
        whole = np.round(samples.T * 32767).astype(np.int16)
        for first in range(0, len(whole), step):
            block = av.AudioFrame.from_ndarray(whole[first : first + step].reshape(1, -1), "s16", layout)
            block.sample_rate, block.time_base, block.pts = rate, Fraction(1, rate), first
            for frame in to_codec.resample(block):
                output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def tone(hertz: float, seconds: float, rate: int, loud: float = 0.5) -> npt.NDArray[np.float64]:
    """A sine wave."""
    return loud * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
