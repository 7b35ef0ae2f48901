"""Open a sound file, and find out whether it is cut off where libav does not notice."""

import struct
from os import SEEK_END

import av.audio.stream
import av.container

from packer.vision.decode.container import choose_audio, open_input
from packer.vision.decode.limits import MediaFile, SoundError, open_media

# libavformat's demuxers for these files and no others, as for videos.
_DEMUXERS = "wav,w64,aiff,flac,mp3,aac,mov,ogg,nistsphere"
_LENGTH_MARKS = (b"Xing", b"Info", b"VBRI")
_PAGE = struct.Struct("<4s22xB")  # of an Ogg page: its mark, and the number of its segments
_PAGE_BYTES_MAX = 27 + 255 + 255 * 255


def open_sound(source: MediaFile) -> tuple[av.container.InputContainer, av.audio.stream.AudioStream]:
    """Open a sound file, and choose its stream as `open_audio` does. The caller closes the container.

    Raises
    ------
    SoundError
        If libav cannot open the file, or if it has no stream of sound.
    OSError
        If the file cannot be read at all (missing, not permitted).
    """
    container = open_input(source, "sound file", SoundError, _DEMUXERS)
    stream = choose_audio(container)
    if stream is None:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "no stream at all"
        container.close()
        raise SoundError(expected="a stream of sound that libav knows", found=kinds)
    return container, stream


def announces_length(source: MediaFile) -> bool:
    """Return whether an MP3 file has a header with its length. Otherwise libav estimates it from the bit rate."""
    with open_media(source) as file:
        head = file.read(10)
        tag = 0
        if head[:3] == b"ID3":  # its length, in 7 bits of each byte (ID3v2.4, 3.1)
            tag = 10 + sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
        file.seek(tag)
        frame = file.read(256)  # the mark follows the side information, which ends before byte 40
    return any(0 < frame.find(mark) <= 40 for mark in _LENGTH_MARKS)


def ends_in_page(source: MediaFile) -> bool:
    """Return whether an Ogg file ends within a page (RFC 3533, 6)."""
    with open_media(source) as file:
        size = file.seek(0, SEEK_END)
        file.seek(max(0, size - _PAGE_BYTES_MAX))
        data = file.read()
    at = data.rfind(b"OggS")
    page = data[at:] if at >= 0 else b""
    if len(page) < _PAGE.size:
        return True
    _, segments = _PAGE.unpack_from(page)
    table = page[_PAGE.size : _PAGE.size + segments]
    return bool(len(table) < segments or len(page) < _PAGE.size + segments + sum(table))
