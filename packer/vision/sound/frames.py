"""The decoded frames of a stream of sound."""

from collections.abc import Iterator

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer

from packer.vision.decode.limits import VideoError
from packer.vision.faults import may_pass
from shardspec.errors import system_reason
from shardspec.wording import counted


class AudioFrames:
    """Iterates over the decoded frames of a stream of sound. A packet that does not decode is left out and counted.

    Attributes
    ----------
    is_cut_off : bool
        Whether the last packet so far is incomplete, or does not decode.

    Raises
    ------
    VideoError
        If the file cannot be read, for a reason that may pass.
    """

    def __init__(self, container: InputContainer, stream: AudioStream) -> None:
        self._container, self._stream = container, stream
        self._failures, self._failure, self._stopped = 0, "", ""
        self.is_cut_off = False

    @property
    def problems(self) -> list[str]:
        """Descriptions of what could not be read or decoded so far."""
        found = [self._stopped] if self._stopped else []
        if self._failures:
            found.append(f"{counted(self._failures, 'packet')} did not decode ({self._failure})")
        return found

    def __iter__(self) -> Iterator[AudioFrame]:
        context = self._stream.codec_context
        try:
            for packet in self._container.demux(self._stream):
                if packet.size:
                    self.is_cut_off = packet.is_corrupt
                try:
                    # A packet without content is the last one: the decoder returns what it still holds.
                    yield from context.decode(packet if packet.size else None)
                except MemoryError:  # also one of libav's own errors
                    raise
                except av.error.FFmpegError as error:
                    if not isinstance(error, EOFError):
                        self._failures += 1
                        self._failure = system_reason(error)
                        self.is_cut_off = True
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            if may_pass(error):
                raise VideoError(f"reading stopped: {system_reason(error)}") from error
            self._stopped = f"reading stopped: {system_reason(error)}"
            self.is_cut_off = True
