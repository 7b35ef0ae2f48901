"""Detect the kind of a member by its first bytes, if its name does not tell."""

_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"BM")
_PICKLE, _PROTOCOLS = 0x80, range(2, 6)

SNIFFED_BYTES = 16


def is_pickle(data: bytes) -> bool:
    """Return whether bytes begin like a pickle of protocol 2 or later."""
    return len(data) >= 2 and data[0] == _PICKLE and data[1] in _PROTOCOLS


def seems_picture(data: bytes) -> bool:
    """Return whether bytes begin like a picture."""
    return data.startswith(_PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
