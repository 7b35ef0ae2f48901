"""Object stores and web servers."""

import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import BoundedSemaphore
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlsplit

from shardspec.errors import ObjectDeniedError, StoreError, UsageError
from shardspec.registry import import_target
from shardspec.stores.checksums import Checksum, azure_checksum
from shardspec.stores.daemons import Daemons, call_interruptibly
from shardspec.wording import LONG, cut, shorten

CONNECTIONS = 16
"""Requests at a time for parts of large objects, unless the user chooses. One stream of S3 brings about 90 MB/s."""
CONNECTIONS_VARIABLE = "FACEPACK_CONNECTIONS"
_SCHEMES = ("s3", "gs", "az", "http", "https")
_SETTINGS = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Prefixes of the environment variables of each store."""
_ENDPOINT = re.compile(r"(?:(?:aws|google|azure)_)?(?:storage_)?endpoint(?:_url)?(?:_s3)?\Z", re.IGNORECASE)
"""Settings that name a server. obstore panics if one has no scheme."""
_RANGE_BYTES = 4 << 20
_FIRST_BYTES = 1 << 18
"""Bytes that a web server is asked for until it is known to send ranges."""
_CHUNK_BYTES = 1 << 20
_PAGE_OBJECTS = 1000
"""Objects of a listing that are requested at a time. Stores send at most so many."""
_READ_TIMEOUT_S = 60
"""Time without any data after which a request is repeated from the last byte received."""
_CONNECT_TIMEOUT_S = 10
PAUSE_S, LONGEST_PAUSE_S = 0.25, 15
"""Pauses before retries: each is random, between the first number and three times the pause before it."""
PATIENCE_S = 120.0
"""Time for which a failing request is repeated: a store may be away for a minute. The number of retries has no limit."""
_RETRIES = 10**6
_RESTARTS = 5
_MD5 = re.compile(r'"?([0-9a-f]{32})"?\Z')
"""ETag that is an MD5 digest, at S3 and Google Cloud Storage, if the object is not encrypted with a customer's key."""
_WITHOUT_RANGES = ("Content-Range header not present", "non-partial response", "Range request not supported")
"""Parts of obstore's messages about a server that sends a whole file in place of its rest. Such a download restarts."""
_CUT = "response body error"
"""Part of messages about an answer that ended early."""
_TOO_SHORT = re.compile("status code: 416|object was only|Range Not Satisfiable")
"""Parts of messages about a range that begins after the end of the object."""
_DEBUG = "\n\nDebug source:"
_UNSENT, _REASON = "error sending request", re.compile(r'(?:message|error): "([^"]+)"')
"""End of messages about a connection that failed, and the reason among the details after `_DEBUG`."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Codes of S3 and Google, and of Azure, for a bucket that does not exist."""
_SKEWED = re.compile("RequestTimeTooSkewed|Request date header too old")
"""Code of S3, and a part of Azure's message, for a request that was signed at another time than the store's."""
_CLOCK = "the clock of this machine differs from that of the store: set the clock, then repeat the command to resume"
_ACCESS = "check the credentials in the environment or in `storage_options`, and the permissions of the bucket"
_GONE = re.compile("status code: 4(?:10|51)")
"""Part of obstore's messages about web pages that were removed (410), also by law (451)."""
_EXPIRED = "ExpiredToken"
"""Code of S3 for credentials that have expired, among other errors of status 400."""
_REFUSED = re.compile("status code: 40[013]")
"""Part of obstore's messages about refused requests other than for an object. A request without body has no code of S3."""
_ANOTHER = ("AlreadyExistsError", "PreconditionError")
"""obstore's errors about a condition of a write that does not hold."""
_UNCONDITIONAL = re.compile("NotImplemented|NotSupported|status code: 501")
"""Parts of errors about a store, or a setting of it, without conditional writes."""
_UNANSWERED = re.compile("kind: (?:Timeout|Interrupted)")
"""Part of errors about a request that may have been carried out. The client repeats it only if it has no condition."""
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
        default, those for S3 are found as by the AWS command line (`shardspec.stores.aws.Account`), and others are taken
        from environment variables such as ``GOOGLE_APPLICATION_CREDENTIALS`` and ``AZURE_STORAGE_ACCOUNT_NAME``.
        Messages and ``repr`` never show them. ``connections`` is the number of requests at a time for the parts of large
        objects, by default ``$FACEPACK_CONNECTIONS`` or 16.
    patience_s : float
        Seconds for which a failing request is repeated.

    Raises
    ------
    UsageError
        If the URL is invalid, or holds a password.
    MissingDependencyError
        If obstore is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, *, patience_s: float = PATIENCE_S) -> None:
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
        self._connections = _connections(given.pop("connections", None))
        self._threads = Daemons(self._connections, "download")
        weakref.finalize(self, self._threads.close).atexit = False
        self._slots = BoundedSemaphore(2 * self._connections)
        self._has_ranges = None if parts.scheme.startswith("http") else True
        self._has_conditions = True
        self._account: Any = None
        self._signs = True
        client: dict[str, Any] = {
            "read_timeout": f"{_READ_TIMEOUT_S}s",
            "timeout": "24h",
            "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
        }
        client |= given.pop("client_options", {})
        from_url = import_target("obstore.store:from_url", what=self.url, extra="remote")
        endpoints = [value for name, value in given.items() if "client" not in name]
        if parts.scheme == "s3":
            self._account = import_target("shardspec.stores.aws:Account", what=self.url, extra="remote")(
                self.url, given
            )
            given = {"checksum_algorithm": "SHA256", **given, **self._account.options()}
            endpoints.append(self._account.endpoint)
        prefix = _SETTINGS.get(parts.scheme)
        variables = {name: os.environ[name] for name in os.environ if prefix and name.startswith(prefix)}
        if self._account is None:
            endpoints += variables.values()
        for name, value in {**variables, **given}.items():
            if _ENDPOINT.match(name) and not str(value).startswith(("http://", "https://")):
                raise UsageError(
                    place=self.url, expected=f"an address such as http://nas:9000 as {name}", found=shorten(value)
                )
        client.setdefault("allow_http", any(str(one).startswith("http://") for one in (url, *endpoints)))
        backoff = {
            "init_backoff": timedelta(seconds=PAUSE_S),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
            "base": 3,
        }
        retry = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=patience_s), "backoff": backoff}
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
            except Exception as error:
                if type(error).__name__ in _DENIED or _REFUSED.search(str(error)):
                    # An answer without body does not say why. That of the same request with body does.
                    with suppress(FileNotFoundError):
                        self.get(name, (0, 1))
                raise

    def list(self) -> Iterator[StoredObject]:
        """Yield all objects. The next thousand are requested while the caller works."""
        with self._reporting(""):
            pages, requests = self._client.list(self._store, chunk_size=_PAGE_OBJECTS), Daemons(1, "listing")
            ahead = requests.submit(next, pages, None)
            try:
                while (page := ahead.result()) is not None:
                    ahead = requests.submit(next, pages, None)
                    # The web pages of some stores make an empty object for the place itself.
                    yield from (_stored(meta) for meta in page if meta["path"])
            finally:
                requests.close()

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a small object.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        StoreError
            If it has more than `most` bytes, or cannot be read.
        """
        replaced = 0
        while True:
            data = bytearray()
            try:
                for chunk in self.get(name)[1]:
                    data += chunk
                    if len(data) > most:
                        raise StoreError(place=self.place(name), expected=f"at most {most} bytes", found="more")
                return bytes(data)
            except _ReplacedError:
                replaced += 1
                if replaced > _RESTARTS:
                    raise

    def chunks(self, name: str, size: int = 0) -> Iterator[memoryview]:
        """Return the content of an object, whose digest the caller compares, in pieces.

        If the object is replaced while it is read, pieces of both are returned: many servers behind one address send
        different ETags for one content.

        Parameters
        ----------
        size : int
            Bytes of the object, if they are known: parts of a large one are then requested by several connections.
        """
        if size <= 2 * _RANGE_BYTES or self._connections == 1 or self._has_ranges is False:
            return self._get(name, None, strict=False)[1]
        return self._ranges(name, size)

    def _ranges(self, name: str, size: int) -> Iterator[memoryview]:
        """Yield the content of an object, with the next ranges requested ahead.

        All objects of the store together have a limited number of ranges in memory, and each has at least one.
        """
        first = _RANGE_BYTES if self._has_ranges else _FIRST_BYTES
        edges = [0, *range(first, size, _RANGE_BYTES), size]
        sent, spans = 0, pairwise(edges)
        pending: deque[tuple[Future[bytes], bool]] = deque()

        def request() -> bool:
            has_slot = self._slots.acquire(blocking=False)
            span = next(spans, None) if has_slot or not pending else None
            if span is not None:
                pending.append((self._threads.submit(self._range, name, span), has_slot))
            elif has_slot:
                self._slots.release()
            return span is not None

        def free(future: "Future[bytes]", has_slot: bool) -> None:
            future.cancel()
            if has_slot:
                self._slots.release()

        try:
            while request() or pending:
                while self._has_ranges and request():
                    pass
                try:
                    data = pending[0][0].result()
                    self._has_ranges = True
                except StoreError as error:
                    if _TOO_SHORT.search(str(error)):  # its digest will be wrong
                        return
                    if not _is_without_ranges(error):
                        raise
                    self._has_ranges = False
                    for chunk in self._get(name, None, strict=False)[1]:
                        yield chunk[sent:]
                        sent -= min(sent, len(chunk))
                    return
                free(*pending.popleft())
                sent += len(data)
                yield memoryview(data)
        finally:
            for one in pending:
                free(*one)

    def _range(self, name: str, span: tuple[int, int]) -> bytes:
        return b"".join(self._get(name, span, strict=False)[1])

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
        return self._get(name, span, strict=True)

    def part(self, name: str, span: tuple[int, int]) -> bytes:
        """Return a part of an object, also from a server that sends the whole object in place of its end (`get`)."""
        try:
            return b"".join(self.get(name, span)[1])
        except StoreError as error:
            if not _is_without_ranges(error):
                raise
            return b"".join(self.get(name)[1])[slice(*span)]

    def _get(
        self, name: str, span: tuple[int, int] | None, *, strict: bool
    ) -> tuple[StoredObject, Iterator[memoryview]]:
        with self._reporting(name):
            answer = self._request(name, _options(span))
        return _stored(answer.meta), self._stream(name, answer, span, strict)

    def _request(self, name: str, options: Mapping[str, Any]) -> Any:
        return call_interruptibly(partial(self._client.get, self._store, name, options=options))

    def _stream(self, name: str, answer: Any, span: tuple[int, int] | None, strict: bool) -> Iterator[memoryview]:
        sent, restarts, skip, etag = 0, 0, 0, answer.meta["e_tag"]
        while True:
            begun = sent
            with self._reporting(name):
                try:
                    if answer is None:
                        answer = self._request(name, _options(span, sent - skip))
                    if strict and answer.meta["e_tag"] != etag:
                        raise _ReplacedError("It was replaced while it was read.", place=self.place(name))
                    stream = iter(answer.stream(min_chunk_size=_CHUNK_BYTES))
                    while (chunk := call_interruptibly(next, stream, None)) is not None:
                        piece = memoryview(chunk)[skip:]
                        skip -= len(chunk) - len(piece)
                        sent += len(piece)
                        yield piece
                    return
                except _ReplacedError:
                    raise
                except Exception as error:
                    whole = _is_without_ranges(error)
                    restarts += whole or sent == begun
                    # The client repeats requests only in the first minutes of a transfer, and only at one server.
                    if restarts > _RESTARTS or (sent == begun and not whole and _CUT not in str(error)):
                        raise
                    answer, skip = None, sent if whole else 0

    def download(self, name: str, path: Path, span: tuple[int, int] | None = None) -> StoredObject:
        """Write an object to a file, or a part of it to the same place in the file (`get`).

        A whole object is compared with the digest or checksum that the store has of it, if any, and downloaded again if
        it differs.
        """
        replaced = damaged = 0
        while True:
            found, chunks = self.get(name, span)
            try:
                with path.open("wb" if span is None or not path.exists() else "r+b") as file:
                    file.seek(0 if span is None else span[0])
                    file.writelines(chunks)
                if span is None:
                    self._compare(name, found, path)
                return found
            except _ReplacedError:  # or one of many servers sent another ETag for the same content
                replaced += 1
                if replaced > _RESTARTS:
                    raise
            except _DamagedError:
                damaged += 1
                if damaged > 1:
                    raise

    def _compare(self, name: str, found: StoredObject, path: Path) -> None:
        """Compare a downloaded file with what the store knows of the object."""
        scheme, md5 = self.url.partition(":")[0], _MD5.match(found.etag)
        known: Checksum | None = None
        if scheme in ("s3", "gs") and md5 is not None:
            known = Checksum("MD5", bytes.fromhex(md5[1]))
        if self._account is not None and (known is None or known.of_file(path) != known.value):
            known = self._account.checksum(name, found.etag)
            if known is not None and known.parts is not None and known.of_file(path) != known.value:
                known = self._account.checksum(name, found.etag, exact=True)
        elif scheme == "az" and self._signs:
            known, self._signs = azure_checksum(self._store, name, found.etag, self.place(name))
        value = None if known is None else known.of_file(path)
        if known is not None and value is not None and value != known.value:
            raise _DamagedError(
                place=self.place(name),
                expected=f"the {known.algorithm} {known.value.hex()} that the store has",
                found=value.hex(),
                hint="repeat the command; if that does not help, write the object again",
            )

    def abort_uploads(self, is_ours: Callable[[str], Any]) -> None:
        """Abort the unfinished multipart uploads of some objects, given a function of the name. Only at S3."""
        if self._account is not None:
            self._account.abort_uploads(is_ours)

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

    def read_small(self, name: str, most: int) -> tuple[bytes, str | None]:
        """Return the content and the ETag of an object for `put_if`; no bytes if it has more than `most`, or does not exist."""
        try:
            found, chunks = self.get(name)
        except FileNotFoundError:
            return b"", None
        return b"".join(chunks) if found.bytes <= most else b"", found.etag

    def put_if(self, name: str, content: bytes, etag: str | None) -> bool:
        """Write a small object if the stored one still has this ETag, or, with None, if there is none.

        If several processes try, only the first succeeds. At a store without conditional writes, several that start at
        the same moment may succeed.

        Returns
        -------
        bool
            Whether it was written. False may also mean that the response was lost: read the object to find out.
        """
        put, is_silent = partial(self._client.put, self._store, name, content), False
        with self._reporting(name):
            while True:
                try:
                    meta = call_interruptibly(self._client.head, self._store, name)
                except FileNotFoundError:
                    meta = {}
                if _plain(_stored(meta).etag if meta else None) != _plain(etag):
                    return False
                known = {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}
                try:
                    call_interruptibly(partial(put, mode=known or "create") if self._has_conditions else put)
                    return True
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                    if text.startswith(_ANOTHER):
                        return False
                    if self._has_conditions and _UNCONDITIONAL.search(text):
                        self._has_conditions = False
                    elif is_silent or not _UNANSWERED.search(text):
                        raise
                    else:
                        is_silent = True

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
            said, _, details = str(error).partition(_DEBUG)
            text, reasons = cut(said.strip(), LONG), _REASON.findall(details)
            text += f" ({reasons[-1]})" if reasons and said.endswith(_UNSENT) else ""
            if self._account is not None and self._account.problem is not None:
                raise self._account.problem from None
            refused = kind in _DENIED or _GONE.search(text)
            hint = _RENEW if _EXPIRED in text else _ACCESS if _REFUSED.search(text) else _HINTS.get(kind)
            hint = _CLOCK if _SKEWED.search(text) else hint
            raise (ObjectDeniedError if refused else StoreError)(text, place=place, hint=hint) from None


class _ReplacedError(StoreError):
    """An object was replaced while it was read."""


class _DamagedError(StoreError):
    """A downloaded file is not the object."""


def _is_without_ranges(error: Exception) -> bool:
    return any(text in str(error) for text in _WITHOUT_RANGES)


def _connections(given: Any) -> int:
    text = given if given is not None else os.environ.get(CONNECTIONS_VARIABLE) or CONNECTIONS
    with suppress(ValueError, TypeError):
        if int(text) >= 1:
            return int(text)
    raise UsageError(option="connections", expected="a number of 1 or more", found=shorten(text))


def _options(span: tuple[int, int] | None, start: int = 0) -> dict[str, Any]:
    """Return the options of a request for the bytes from `start` of an object or of a part of it."""
    if span is not None:
        return {"range": (span[0] + start, span[1])}
    return {"range": {"offset": start}} if start else {}


def _plain(etag: str | None) -> str | None:
    """Return an ETag without quotation marks, which some answers of Azure lack."""
    return None if etag is None else etag.removeprefix("W/").strip('"')


def _stored(meta: Mapping[str, Any]) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())
