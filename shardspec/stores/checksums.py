"""Digests and checksums of objects that stores know, compared with downloaded files."""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shardspec.errors import StoreError
from shardspec.registry import import_target

_CHUNK_BYTES = 1 << 20
_SIGNED_FOR = timedelta(minutes=10)
_TIMEOUT_S = 60
_RETRIES = 6
_PASSING = (429, 500, 502, 503, 504)
"""Statuses of answers after which a request is repeated, after the pause that Retry-After asks for."""


class Checksum(NamedTuple):
    """A digest or checksum.

    Attributes
    ----------
    algorithm : {"MD5", "SHA1", "SHA256", "CRC32", "CRC32C", "CRC64NVME"}
    value : bytes
    parts : tuple of int or None
        If given, `value` is the digest of the digests of parts of these sizes.
    """

    algorithm: str
    value: bytes
    parts: tuple[int, ...] | None = None

    def of_file(self, path: Path) -> bytes:
        """Return the digest or checksum of this kind of a file."""
        with path.open("rb") as file:
            if self.parts is None:
                return _hash(self.algorithm, _chunks(file, path.stat().st_size))
            digests = [_hash(self.algorithm, _chunks(file, size)) for size in self.parts]
            return _hash(self.algorithm, iter(digests))


def azure_checksum(store: Any, name: str, etag: str, place: str) -> tuple[Checksum | None, bool]:
    """Return the MD5 that Azure sends in a header, if it has one, which obstore does not return.

    Parameters
    ----------
    store : obstore.store.AzureStore
    name, etag : str
        The object. If it has another ETag now, nothing is returned.
    place : str
        Its URL, for messages.

    Returns
    -------
    checksum : Checksum or None
    signs : bool
        False if requests cannot be signed, as with a SAS token.
    """
    http, retry = (import_target(one, what=place, extra="remote") for one in ("urllib3:PoolManager", "urllib3:Retry"))
    try:
        url = import_module("obstore").sign(store, "GET", name, _SIGNED_FOR)  # one for HEAD allows nothing
    except Exception:
        return None, False
    retries = retry(_RETRIES, backoff_factor=0.5, status_forcelist=_PASSING)
    try:
        answer = http(retries=retries).request("HEAD", url, headers={"If-Match": etag}, timeout=_TIMEOUT_S)
    except import_target("urllib3.exceptions:HTTPError", what=place) as error:
        # Its text has the signed URL.
        raise StoreError(f"The checksum cannot be requested ({type(error).__name__})", place=place) from None
    md5 = answer.headers.get("content-md5") if answer.status == 200 else None
    return Checksum("MD5", base64.b64decode(md5)) if md5 else None, True


def _chunks(file: Any, most: int) -> Iterator[bytes]:
    while most and (chunk := file.read(min(most, _CHUNK_BYTES))):
        most -= len(chunk)
        yield chunk


def _hash(algorithm: str, chunks: Iterator[bytes]) -> bytes:
    if not algorithm.startswith("CRC"):
        digest = hashlib.new(algorithm, usedforsecurity=False)
        for chunk in chunks:
            digest.update(chunk)
        return digest.digest()
    name = algorithm.lower()
    add: Callable[[bytes, int], int] = zlib.crc32
    if name != "crc32":
        add = import_target(f"awscrt.checksums:{name}", what=f"the checksum {algorithm}", extra="remote")
    return reduce(lambda crc, chunk: add(chunk, crc), chunks, 0).to_bytes(8 if name == "crc64nvme" else 4, "big")
