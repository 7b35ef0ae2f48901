"""Object stores and web servers."""

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlsplit

from shardspec.errors import ObjectDeniedError, StoreError, UsageError
from shardspec.registry import import_target
from shardspec.stores.daemons import call_interruptibly
from shardspec.wording import LONG, cut

_SCHEMES = ("s3", "gs", "az", "http", "https")
_CHUNK_BYTES = 4 << 20
_READ_TIMEOUT_S = 60
"""Time without any data after which a request is repeated from the last byte received."""
_CONNECT_TIMEOUT_S = 10
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15
"""Pauses before retries: each is random, between the first number and three times the pause before it."""
_PATIENCE_S = 120.0
"""Time for which a failing request is repeated: a store may be away for a minute. The number of retries has no limit."""
_RETRIES = 10**6
_RESTARTS = 5
_WITHOUT_RANGES = ("Content-Range header not present", "non-partial response")
"""Parts of obstore's messages about a server that sends a whole file in place of its rest. Such a download restarts."""
_DEBUG = "\n\nDebug source:"
_METADATA = "//169.254.169.254/"
"""Server of a cloud's virtual machines that is asked for credentials if there are no others."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Codes of S3 and Google, and of Azure, for a bucket that does not exist."""
_ACCESS = "check the credentials in the environment or in `storage_options`, and the permissions of the bucket"
_GONE = re.compile("status code: 4(?:10|51)")
"""Part of obstore's messages about web pages that were removed (410), also by law (451)."""
_EXPIRED = "ExpiredToken"
"""Code of S3 for credentials that have expired, among other errors of status 400."""
_REFUSED = re.compile("status code: 40[013]")
"""Part of obstore's messages about refused requests other than for an object. A request without body has no code of S3."""
_RENEW = "renew the credentials, then repeat the command to resume"
_DENIED = ("PermissionDeniedError", "UnauthenticatedError")
_HINTS: Mapping[str, str] = {
    "NotSupportedError": "download the file first",
    "GenericError": "check the endpoint and the network, then repeat the command to resume",
}


class StoredObject(NamedTuple):
    """An object of a store.

    Attributes
    ----------
    name : str
        Its key below the store's URL, without a leading slash.
    bytes : int
    etag : str
        Changes whenever the object is replaced. For a web server that sends none, it is the time of the last change.
    """

    name: str
    bytes: int
    etag: str


class Remote:
    """Base of the classes of stores."""

    url: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a store cannot be pickled, because it holds credentials: make it from its URL in each process")

    def place(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"


class Store(Remote):
    """The objects below a URL.

    Requests that fail for a passing reason (no connection, 5xx, a response that ends early or stops for 60 s) are
    repeated for `patience_s`, after longer and longer pauses. A download continues from the last byte received.

    Parameters
    ----------
    url : str
        ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``, ``az://CONTAINER/PREFIX``, or ``http(s)://HOST/PATH``, which can
        be read but not listed or written.
    options : mapping of str to str, optional
        Credentials, region, endpoint and others by the names of obstore, such as ``{"endpoint": "http://nas:9000"}``. By
        default they are taken from environment variables such as ``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``,
        ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS`` and ``AZURE_STORAGE_ACCOUNT_NAME``, and for S3 from the
        profile files of the AWS command line. Messages and ``repr`` never show them.
    patience_s : float
        Seconds for which a failing request is repeated.

    Raises
    ------
    UsageError
        If the URL is invalid, or holds a password.
    MissingDependencyError
        If obstore is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, *, patience_s: float = _PATIENCE_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            known = ", ".join(f"{scheme}://" for scheme in (*_SCHEMES, "hf"))
            raise UsageError(expected=f"a path or a URL that begins with {known}", found=url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: remove user, password, query and "
                "fragment from the URL. Credentials come from the environment or from `storage_options`."
            )
        self.url = url.rstrip("/")
        given = dict(options or {})
        client: dict[str, Any] = {
            "read_timeout": f"{_READ_TIMEOUT_S}s",
            "timeout": "24h",
            "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
        }
        client |= given.pop("client_options", {})
        if parts.scheme == "s3":
            given = {**_profile(), "checksum_algorithm": "SHA256", **given}
            endpoint = str(given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", ""))
            client.setdefault("allow_http", endpoint.startswith("http://"))
        client.setdefault("allow_http", parts.scheme == "http")
        backoff = {
            "init_backoff": timedelta(seconds=_PAUSE_S),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
            "base": 3,
        }
        retry = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=patience_s), "backoff": backoff}
        from_url = import_target("obstore.store:from_url", what=self.url, extra="remote")
        self._client: Any = import_module("obstore")
        with self._reporting(""):
            # obstore decodes the path, but those of buckets are names of objects as they are.
            address = self.url if parts.scheme.startswith("http") else quote(self.url, ":/")
            self._store = from_url(address, client_options=client, retry_config=retry, **given)

    def stat(self, name: str) -> StoredObject | None:
        """Return size and ETag of an object, or None if it does not exist."""
        with self._reporting(name):
            try:
                return _stored(call_interruptibly(self._client.head, self._store, name))
            except FileNotFoundError:
                return None

    def list(self) -> Iterator[StoredObject]:
        """Yield all objects."""
        with self._reporting(""):
            pages = self._client.list(self._store)
            while (page := call_interruptibly(next, pages, None)) is not None:
                # The web pages of some stores make an empty object for the place itself.
                yield from (_stored(meta) for meta in page if meta["path"])

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a small object.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        StoreError
            If it has more than `most` bytes, or cannot be read.
        """
        data = bytearray()
        for chunk in self.chunks(name):
            data += chunk
            if len(data) > most:
                raise StoreError(place=self.place(name), expected=f"at most {most} bytes", found="more")
        return bytes(data)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Return the content of an object in pieces (`get`)."""
        return self.get(name)[1]

    def get(self, name: str, span: tuple[int, int] | None = None) -> tuple[StoredObject, Iterator[memoryview]]:
        """Request an object, or its bytes from `span[0]` to `span[1]` (exclusive).

        Returns
        -------
        object : StoredObject
            The whole object when the request was sent.
        chunks : iterator of memoryview
            The bytes, which are read as they are needed.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        ObjectDeniedError
            If the store refuses access to it.
        StoreError
            If it cannot be read, also while the chunks are read.
        """
        with self._reporting(name):
            answer = self._request(name, _options(span))
        return _stored(answer.meta), self._stream(name, answer, span)

    def _request(self, name: str, options: Mapping[str, Any]) -> Any:
        return call_interruptibly(partial(self._client.get, self._store, name, options=options))

    def _stream(self, name: str, answer: Any, span: tuple[int, int] | None) -> Iterator[memoryview]:
        sent, restarts, skip, etag = 0, 0, 0, answer.meta["e_tag"]
        while True:
            begun = sent
            with self._reporting(name):
                try:
                    if answer is None:
                        answer = self._request(name, _options(span, sent - skip))
                    if answer.meta["e_tag"] != etag:
                        raise StoreError("It was replaced while it was read.", place=self.place(name))
                    stream = iter(answer.stream(min_chunk_size=_CHUNK_BYTES))
                    while (chunk := call_interruptibly(next, stream, None)) is not None:
                        piece = memoryview(chunk)[skip:]
                        skip -= len(chunk) - len(piece)
                        sent += len(piece)
                        yield piece
                    return
                except Exception as error:
                    whole = any(text in str(error) for text in _WITHOUT_RANGES)
                    restarts += whole
                    # The client repeats requests only in the first minutes of a transfer.
                    if restarts > _RESTARTS or (sent == begun and not whole):
                        raise
                    answer, skip = None, sent if whole else 0

    def download(self, name: str, path: Path, span: tuple[int, int] | None = None) -> StoredObject:
        """Write an object to a file, or a part of it to the same place in the file (`get`)."""
        found, chunks = self.get(name, span)
        with path.open("wb" if span is None or not path.exists() else "r+b") as file:
            file.seek(0 if span is None else span[0])
            file.writelines(chunks)
        return found

    def put(self, name: str, content: Path | bytes | IO[bytes]) -> None:
        """Write an object from a path, from bytes or from an open file, and check its size.

        It takes the place of an object with that name. Other clients never see a partial object. S3 checks the SHA-256
        that is sent along, if the server implements it.
        """
        if isinstance(content, bytes):
            size = len(content)
        else:
            size = (content.stat() if isinstance(content, Path) else os.fstat(content.fileno())).st_size
        with self._reporting(name):
            call_interruptibly(self._client.put, self._store, name, content)
        found = self.stat(name)
        if found is None or found.bytes != size:
            raise StoreError(
                place=self.place(name),
                expected=f"an object of {size} bytes after the upload",
                found="none" if found is None else found.bytes,
            )

    def delete(self, names: Iterable[str]) -> None:
        """Delete some objects."""
        names = list(names)
        if names:
            with self._reporting(names[0]):
                call_interruptibly(self._client.delete, self._store, names)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Turn errors of the client into a `StoreError` with the URL."""
        place = self.place(name) if name else self.url
        try:
            yield
        except (GeneratorExit, KeyboardInterrupt, MemoryError, StoreError):
            raise
        except Exception as error:
            if any(code in str(error) for code in _NO_BUCKET):
                raise StoreError("the bucket does not exist", place=place, hint="check its name") from None
            if isinstance(error, FileNotFoundError):
                raise
            kind = type(error).__name__
            text = cut(str(error).partition(_DEBUG)[0].strip(), LONG)
            if _METADATA in text:
                raise StoreError("no credentials were found", place=place, hint=_ACCESS) from None
            refused = kind in _DENIED or _GONE.search(text)
            hint = _RENEW if _EXPIRED in text else _ACCESS if _REFUSED.search(text) else _HINTS.get(kind)
            raise (ObjectDeniedError if refused else StoreError)(text, place=place, hint=hint) from None


def _options(span: tuple[int, int] | None, start: int = 0) -> dict[str, Any]:
    """Return the options of a request for the bytes from `start` of an object or of a part of it."""
    if span is not None:
        return {"range": (span[0] + start, span[1])}
    return {"range": {"offset": start}} if start else {}


def _stored(meta: Mapping[str, Any]) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())


def _profile() -> dict[str, str]:
    """Return the settings of the AWS profile that is selected in the environment.

    obstore reads the environment, but not the files of the AWS command line. Keys in the environment win.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    name = os.environ.get("AWS_PROFILE", "default")
    home = Path.home() / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(os.environ.get(variable, home / file), "utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise UsageError(f"The AWS profile {name!r} cannot be read: {cut(str(error), LONG)}") from None
        found |= dict(parser[section]) if section in parser else {}
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
        "endpoint_url": "endpoint",
    }
    return {names[key]: value for key, value in found.items() if key in names}
