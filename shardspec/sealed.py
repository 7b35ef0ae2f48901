"""JSON documents whose first line has the SHA-256 of the rest, so that damage is found."""

import hashlib
import re
from typing import Any

CHECKSUM = "sha256"
"""Key of the checksum."""
_FIRST_LINES = re.compile(rb'\{\n "sha256": "[0-9a-f]{64}",\n')


def seal(text: str) -> bytes:
    """Return the bytes of a JSON object that is not empty, with its checksum as the first key."""
    body = text.removeprefix("{").lstrip("\n").encode()
    return f'{{\n "{CHECKSUM}": "{hashlib.sha256(body).hexdigest()}",\n'.encode() + body


def is_intact(data: bytes, checksum: Any) -> bool:
    """Return whether bytes that `seal` returned are unchanged, given the checksum in them."""
    first = _FIRST_LINES.match(data)
    return first is not None and hashlib.sha256(memoryview(data)[first.end() :]).hexdigest() == checksum
