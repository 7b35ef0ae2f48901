"""Object stores and web servers that hold datasets, by their URLs.

Only this module uses the client libraries `obstore <https://developmentseed.org/obstore/>`_ (extra ``remote``) and
``huggingface_hub`` (extra ``hf``). After a process has used obstore, obstore hangs in forked children of that process;
start them with ``spawn``.
"""

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from shardspec.errors import StoreError, UsageError
from shardspec.layout import is_url
from shardspec.registry import import_target
from shardspec.wording import LONG, cut, shorten

SCHEMES = ("s3", "gs", "az", "http", "https")

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


class StoredObject(NamedTuple):
    """An object of a store.

    Attributes
    ----------
    name : str
        Its key below the store's URL, without a leading slash.
    bytes : int
    etag : str or None
        Changes whenever the object is replaced.
    """

    name: str
    bytes: int
    etag: str | None


class Store:
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
        if parts.scheme not in SCHEMES or not parts.netloc:
            known = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, "hf"))
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
            self._store = from_url(self.url, client_options=client, retry_config=retry, **given)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a store cannot be pickled, because it holds credentials: make it from its URL in each process")

    def place(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}"

    def stat(self, name: str) -> StoredObject | None:
        """Return size and ETag of an object, or None if it does not exist."""
        with self._reporting(name):
            try:
                return _stored(self._client.head(self._store, name))
            except FileNotFoundError:
                return None

    def list(self) -> Iterator[StoredObject]:
        """Yield all objects in the order of the UTF-8 bytes of their names."""
        with self._reporting(""):  # the web pages of some stores make an empty object for the place itself
            found = [_stored(meta) for page in self._client.list(self._store) for meta in page if meta["path"]]
        yield from sorted(found, key=lambda one: one.name.encode())

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
        """Yield the content of an object in pieces.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        StoreError
            If it cannot be read.
        """
        sent, left = 0, _RESTARTS
        while True:
            skip = sent
            with self._reporting(name):
                try:
                    for chunk in self._client.get(self._store, name).stream(min_chunk_size=_CHUNK_BYTES):
                        piece = memoryview(chunk)[skip:]
                        skip -= len(chunk) - len(piece)
                        sent += len(piece)
                        yield piece
                    return
                except Exception as error:
                    if not left or not any(text in str(error) for text in _WITHOUT_RANGES):
                        raise
                    left -= 1

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
            self._client.put(self._store, name, content)
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
                self._client.delete(self._store, names)

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
                raise StoreError("The bucket does not exist.", place=place, hint="check its name") from None
            if isinstance(error, FileNotFoundError):
                raise
            kind = type(error).__name__
            text = cut(str(error).partition(_DEBUG)[0].strip(), LONG)
            if _METADATA in text:
                raise StoreError("no credentials were found", place=place, hint=_ACCESS) from None
            raise StoreError(text, place=place, hint=_RENEW if _EXPIRED in text else _HINTS.get(kind)) from None


class Hub:
    """A dataset repository of the Hugging Face Hub, or a folder in it, with the calls of `Store`.

    Everything is read from the commit that the revision named at the first call. `put` uploads the content of large
    files, and `commit` makes all changes visible at once.

    Parameters
    ----------
    url : str
        ``hf://datasets/ORG/NAME[@REVISION][/FOLDER]``. By default, the revision is the branch ``main``.
    options : mapping of str to str, optional
        ``token`` and ``endpoint``. By default, huggingface_hub takes them from ``HF_TOKEN``, the token of ``hf auth
        login``, and ``HF_ENDPOINT``.

    Raises
    ------
    UsageError
        If the URL or an option is invalid.
    MissingDependencyError
        If huggingface_hub or obstore is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        found = _HUB_URL.match(url)
        if found is None:
            raise UsageError(expected="hf://datasets/ORG/NAME[@REVISION][/FOLDER]", found=shorten(url))
        given = dict(options or {})
        for name in given.keys() - {"token", "endpoint"}:
            raise UsageError(option="storage_options", expected="token and endpoint for hf://", found=shorten(name))
        self.url = url.rstrip("/")
        repository, revision, folder = found.groups()
        self._folder = f"{folder.strip('/')}/" if folder and folder.strip("/") else ""
        self._revision = revision or "main"
        self._where: Mapping[str, str] = {"repo_id": repository, "repo_type": "dataset"}
        api = import_target("huggingface_hub:HfApi", what=self.url, extra="hf")
        self._library: Any = import_module("huggingface_hub")
        self._library.utils.disable_progress_bars()  # one for each file, beside that of the command
        # huggingface_hub reads this variable only when it is imported.
        endpoint = given.get("endpoint") or os.environ.get("HF_ENDPOINT")
        self._api: Any = api(endpoint=endpoint, token=given.get("token"))
        self._changes: dict[str, Any] = {}
        self._lock = Lock()
        self._commit: str | None = None
        self._files: Store | None = None

    def __repr__(self) -> str:
        return f"Hub({self.url!r})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a store cannot be pickled, because it holds credentials: make it from its URL in each process")

    def place(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def stat(self, name: str) -> StoredObject | None:
        """Return size and ETag of a file, or None if it does not exist."""
        return next((one for one in self._listed(self._api.get_paths_info, paths=[self._folder + name])), None)

    def list(self) -> Iterator[StoredObject]:
        """Yield all files in the order of the UTF-8 bytes of their names. The ETag of a large file is its SHA-256."""
        found = self._listed(self._api.list_repo_tree, path_in_repo=self._folder.rstrip("/") or None, recursive=True)
        yield from sorted(found, key=lambda one: one.name.encode())

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a small file (`Store.read`)."""
        return self._opened().read(name, most)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Yield the content of a file in pieces (`Store.chunks`)."""
        yield from self._opened().chunks(name)

    def put(self, name: str, content: Path | bytes | IO[bytes]) -> None:
        """Upload a file from a path, from bytes or from an open file. The path must exist until `commit`.

        A repository that does not exist is made, as a private one.
        """
        with self._reporting(name):
            with self._lock:
                if self._find() is None:
                    self._api.create_repo(**self._where, private=True, exist_ok=True)
                    self._commit = None
            given = str(content) if isinstance(content, Path) else content
            added = self._library.CommitOperationAdd(self._folder + name, given)
            self._api.preupload_lfs_files(additions=[added], revision=self._revision, **self._where)
            if not isinstance(content, Path | bytes) and added.path_or_fileobj is content:
                # A small file, which the commit will contain. Others have been uploaded and replaced by no bytes.
                content.seek(0)
                added.path_or_fileobj = content.read()
        self._changes[name] = added

    def delete(self, names: Iterable[str]) -> None:
        """Delete some files at the next `commit`, unless they are written before it."""
        for name in names:
            self._changes[name] = self._library.CommitOperationDelete(self._folder + name)

    @property
    def is_changed(self) -> bool:
        """True if there is something to commit."""
        return bool(self._changes)

    def commit(self) -> None:
        """Make all changes visible, in one commit, unless another client has changed the branch meanwhile."""
        with self._reporting(""):
            self._api.create_commit(
                operations=list(self._changes.values()),
                commit_message="Copy a packed dataset",
                revision=self._revision,
                parent_commit=self._find(),
                **self._where,
            )
        self._changes, self._commit, self._files = {}, None, None

    def _listed(self, request: Any, **arguments: Any) -> Iterator[StoredObject]:
        with self._reporting(""):
            revision = self._find()
            if revision is None:
                return
            try:
                for one in request(**self._where, revision=revision, **arguments):
                    if hasattr(one, "blob_id"):  # not a folder
                        etag = one.blob_id if one.lfs is None else one.lfs.sha256
                        yield StoredObject(one.path.removeprefix(self._folder), one.size, etag)
            except self._library.errors.EntryNotFoundError:
                return

    def _find(self) -> str | None:
        """Return the commit that is read, or None if there is no such repository."""
        if self._commit is None:
            missing = self._library.errors.RepositoryNotFoundError
            try:
                self._commit = self._api.dataset_info(self._where["repo_id"], revision=self._revision).sha
            except missing as error:
                if type(error) is not missing:  # access to it must be requested
                    raise
        return self._commit

    def _opened(self) -> Store:
        """Return the web server that has the files, whose downloads resume (`Store`)."""
        with self._lock, self._reporting(""):
            if self._files is None:
                commit = self._find()
                if commit is None:
                    raise FileNotFoundError(self.url)
                token = self._api.token or self._library.get_token()
                headers = {"authorization": f"Bearer {token}"} if token else {}
                url = f"{self._api.endpoint}/datasets/{self._where['repo_id']}/resolve/{commit}/{self._folder}"
                self._files = Store(url, {"client_options": {"default_headers": headers}})
            return self._files

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Turn errors of the client into a `StoreError` with the URL."""
        try:
            yield
        except (FileNotFoundError, GeneratorExit, KeyboardInterrupt, MemoryError, StoreError):
            raise
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            text = str(error)
            if status is not None:
                said = getattr(error, "server_message", None)
                text = f"The server answered {status} ({type(error).__name__})" + (f": {said}" if said else "")
            text = cut(" ".join(text.split()) or type(error).__name__, LONG)
            hint = LOG_IN if status in (401, 403, 404) else "check the network, then repeat the command to resume"
            raise StoreError(text, place=self.place(name) if name else self.url, hint=hint) from None


def open_store(url: str, options: Mapping[str, Any] | None = None) -> Store | Hub:
    """Open the store that a URL names."""
    return Hub(url, options) if url.startswith("hf://") else Store(url, options)


_HUB_URL = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:pr/\d+|convert/[\w.-]+)|[^/]+))?(?:/(.*))?\Z")
LOG_IN = "check the name, and log in by `hf auth login` or set HF_TOKEN to a token that may do this"
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Codes of S3 and Google, and of Azure, for a bucket that does not exist."""
_ACCESS = "check the credentials in the environment or in `storage_options`, and the permissions of the bucket"
_EXPIRED = "ExpiredToken"
"""Code of S3 for credentials that have expired, among other errors of status 400."""
_RENEW = "renew the credentials, then repeat the command to resume"
_HINTS: Mapping[str, str] = {
    "PermissionDeniedError": _ACCESS,
    "UnauthenticatedError": _ACCESS,
    "GenericError": "check the endpoint and the network, then repeat the command to resume",
}


def _stored(meta: Mapping[str, Any]) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["e_tag"])


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


def names_store(place: str | os.PathLike[str]) -> bool:
    """Return whether an argument is the URL of a store, and not a path or a ``file://`` URL."""
    return isinstance(place, str) and is_url(local_path(place))


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


def local_path(text: str) -> str:
    """Return the path of a ``file://`` URL; return any other text unchanged."""
    parts = urlsplit(text) if text.lower().startswith("file://") else None
    return text if parts is None else url2pathname(parts.path)
