"""Object stores and web servers that hold datasets, by their URLs.

Only this package uses the client libraries `obstore <https://developmentseed.org/obstore/>`_ (extra ``remote``) and
``huggingface_hub`` (extra ``hf``). After a process has used obstore, obstore hangs in forked children of that process;
start them with ``spawn``.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from shardspec.errors import UsageError
from shardspec.layout import is_url
from shardspec.stores.hub import LOG_IN, Hub
from shardspec.stores.store import Store
from shardspec.wording import shorten

__all__ = ["LOG_IN", "Hub", "Store", "check_sendable", "local_path", "names_store", "open_store", "writable_store"]


def open_store(url: str, options: Mapping[str, Any] | None = None) -> Store | Hub:
    """Open the store that a URL names."""
    return Hub(url, options) if url.startswith("hf://") else Store(url, options)


def check_sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of settings for a store that other processes use, to which they are sent as JSON.

    Raises
    ------
    UsageError
        If JSON has no form of a value.
    """
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise UsageError(
                option="storage_options",
                expected="text, numbers, booleans, and dicts and lists of them, which other processes can read",
                found=f"{shorten(name)}: {type(value).__name__}",
                hint='write durations as text, such as "30s", and use keys, or a profile with `credential_process`, '
                "in place of functions",
            ) from None
    return dict(options)


def names_store(place: str | os.PathLike[str]) -> bool:
    """Return whether an argument is the URL of a store, and not a path or a ``file://`` URL."""
    place = local_path(place)
    return isinstance(place, str) and is_url(place)


def writable_store(out: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store | Hub | None:
    """Return the store of an output's URL, or None for a path or a ``file://`` URL.

    Parameters
    ----------
    options : mapping, optional
        See `Store`.

    Raises
    ------
    UsageError
        If it is the URL of a web server, or invalid.
    MissingDependencyError
        If the client library is not installed.
    """
    if not names_store(out):
        return None
    if str(out).startswith("http"):
        raise UsageError(
            option="out", expected="a folder, s3://, gs://, az:// or hf://", found=f"{shorten(str(out))}, a web server"
        )
    return open_store(str(out), options)


def local_path(place: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a ``file://`` URL; return anything else unchanged."""
    if isinstance(place, str) and place.lower().startswith("file://"):
        from urllib.request import url2pathname  # it loads http.client and ssl, 15 ms

        return url2pathname(urlsplit(place).path)
    return place
