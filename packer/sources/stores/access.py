"""Settings for the stores of sources, and the state that stands for an object's."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardspec.errors import UsageError
from shardspec.stores import Store, check_sendable, names_store
from shardspec.stores.store import StoredObject
from shardspec.wording import shorten

_SETTINGS = "FACEPACK_SOURCE_OPTIONS"
"""Environment variable with settings for the stores of sources, which workers inherit as they do those of AWS."""
_OF_SERVERS = ("client_options", "connections")
"""Settings that apply to web servers and other kinds of stores, too."""


@contextmanager
def sharing_settings(options: Mapping[str, Any] | None, out: str | os.PathLike[str]) -> Iterator[None]:
    """Use settings for the stores of sources while the block runs, also in workers that it starts.

    Parameters
    ----------
    options : mapping, optional
        See `Store`.
    out : path or URL
        The output. If it is in a store, only sources in a store of that kind take all of the settings.
    """
    scheme = urlsplit(str(out)).scheme if names_store(out) else ""
    before = os.environ.get(_SETTINGS)
    try:
        os.environ[_SETTINGS] = json.dumps([scheme, dict(check_sendable(options or {}))])
    except UsageError:  # they may be those of the output only
        os.environ[_SETTINGS] = ""
    try:
        yield
    finally:
        os.environ.pop(_SETTINGS, None)
        if before is not None:
            os.environ[_SETTINGS] = before


def shared_settings() -> tuple[str, dict[str, Any]]:
    """Return the scheme of the output, or an empty text, and the settings that `sharing_settings` shares.

    Raises
    ------
    UsageError
        If the settings cannot be sent to workers.
    """
    text = os.environ.get(_SETTINGS, '["", {}]')
    if not text:
        raise UsageError(
            option="storage_options",
            expected="text, numbers, booleans, and dicts and lists of them, which workers can read",
            found="a function or another object",
            hint="use keys, or a profile with `credential_process`",
        )
    scheme, options = json.loads(text)
    return scheme, options


def source_store(url: str) -> Store:
    """Open the store of a source, with the settings that are shared.

    Raises
    ------
    UsageError
        If the URL is invalid, or if the settings cannot be sent to workers.
    """
    scheme, options = shared_settings()
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
