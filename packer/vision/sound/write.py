"""Write sound as the bytes of a file."""

import io
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

_CODECS = {"wav": "pcm_s16le", "flac": "flac"}
_LAYOUTS = {1: "mono", 2: "stereo"}


def sound_bytes(samples: npt.NDArray[np.int16], rate: int, kind: str) -> bytes:
    """Return a WAV or FLAC file with every sample.

    Parameters
    ----------
    samples : ndarray, (C, N), int16
    rate : int
        Samples a second.
    kind : {"wav", "flac"}
    """
    channels = len(samples)
    layout = _LAYOUTS.get(channels, f"{channels}c")
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as output:
        stream = output.add_stream(_CODECS[kind], rate=rate, layout=layout)
        step = stream.codec_context.frame_size or 4096
        for first in range(0, samples.shape[1], step):
            block = np.ascontiguousarray(samples[:, first : first + step].T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(block, "s16", layout)
            frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), first
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return file.getvalue()
