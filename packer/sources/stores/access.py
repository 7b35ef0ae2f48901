"""The stores of sources, and the state of a file that stands for an object's."""

import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit

from packer.recipe.options import read_shared_settings
from shardspec.errors import UsageError
from shardspec.stores import Store
from shardspec.stores.store import StoredObject
from shardspec.wording import shorten

_OF_SERVERS = ("client_options", "connections")
"""Settings that apply to web servers and other kinds of stores, too."""


def source_store(url: str) -> Store:
    """Open the store of a source, with the settings that are shared.

    Raises
    ------
    UsageError
        If the URL is invalid, or if the settings cannot be sent to workers.
    """
    scheme, options = read_shared_settings()
    if is_web(url) or scheme not in ("", urlsplit(url).scheme):
        options = {name: value for name, value in options.items() if name in _OF_SERVERS}
    return Store(url, options)


def time_of(etag: str) -> int:
    """Return a modification time in nanoseconds that stands for an ETag, in the fingerprint and in files.

    It has 31 bits of the ETag's SHA-256, in steps of two seconds, which all file systems can store.
    """
    # Azure puts quotation marks around the ETag in some answers only.
    digest = hashlib.sha256(etag.removeprefix("W/").strip('"').encode()).digest()
    return (1 + int.from_bytes(digest[:4], "big") // 2) * 2 * 10**9


def set_state(path: Path, found: StoredObject) -> None:
    """Give a file the size of an object and the time that stands for its ETag."""
    os.truncate(path, found.bytes)
    os.utime(path, ns=(time_of(found.etag),) * 2)


def check_url(url: str) -> str:
    """Return the URL of a source without a slash at its end.

    Raises
    ------
    UsageError
        If it is not a URL of a store whose objects can be sources.
    MissingDependencyError
        If the client library is not installed.
    """
    if url.startswith("hf://"):
        raise UsageError(
            option="source",
            expected="a path, or s3://, gs://, az:// or http(s)://",
            found=shorten(url),
            hint="download the files with `hf download`",
        )
    return source_store(url).url


def is_web(url: str) -> bool:
    """Return whether a URL is that of a web server, whose files cannot be listed."""
    return url.startswith("http")
