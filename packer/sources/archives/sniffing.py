"""Detect the kind of a member by its first bytes, if its name does not tell."""

from packer.vision.media import file_type

_PICKLE, _PROTOCOLS = 0x80, range(2, 6)

SNIFFED_BYTES = 16


def is_pickle(data: bytes) -> bool:
    """Return whether bytes begin like a pickle of protocol 2 or later."""
    return len(data) >= 2 and data[0] == _PICKLE and data[1] in _PROTOCOLS


def seems_picture(data: bytes) -> bool:
    """Return whether bytes begin like a picture."""
    return file_type(data) not in (None, "Netpbm")  # a text may begin like the latter, such as "P1 left"
