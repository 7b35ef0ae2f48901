"""Numbers of bytes as people write them."""

import re

from shardspec.errors import UsageError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_BYTES = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*\Z", re.IGNORECASE)


def parse_bytes(text: str | int, name: str = "size") -> int:
    """A number of bytes from ``"256MB"``, ``"64 MiB"``, ``1000000``; `name` is the option's, for the message."""
    match = _BYTES.match(str(text))
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(f"{name}: expected a size such as 256MB, 64MiB or a number of bytes, found {text!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])
