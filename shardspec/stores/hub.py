"""Dataset repositories of the Hugging Face Hub."""

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar

from shardspec.errors import StoreError, UsageError
from shardspec.registry import import_target
from shardspec.stores.store import (
    CONNECTIONS_VARIABLE,
    LONGEST_PAUSE_S,
    PATIENCE_S,
    PAUSE_S,
    Remote,
    Store,
    StoredObject,
)
from shardspec.wording import LONG, cut, shorten

_HUB_URL = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:pr/\d+|convert/[\w.-]+)|[^/]+))?(?:/(.*))?\Z")
_PASSING = (408, 500, 502, 503, 504)
"""Statuses of answers that a request may have only for a while."""
_TOO_MANY = 429
"""Status of the Hub's answers to many ranks that begin together."""
_WINDOW_S = 330.0
"""Time for which downloads are repeated: the Hub counts requests for five minutes."""
T = TypeVar("T")
LOG_IN = "check the name, and log in by `hf auth login` or set HF_TOKEN to a token that may do this"


class Hub(Remote):
    """A dataset repository of the Hugging Face Hub, or a folder in it, with the calls of `Store`.

    Everything is read from the commit that the revision named at the first call. `put` uploads the content of large
    files, and `commit` makes all changes visible at once.

    Parameters
    ----------
    url : str
        ``hf://datasets/ORG/NAME[@REVISION][/FOLDER]``. By default, the revision is the branch ``main``.
    options : mapping of str to str, optional
        ``token`` and ``endpoint``. By default, huggingface_hub takes them from ``HF_TOKEN``, the token of ``hf auth
        login``, and ``HF_ENDPOINT``. ``connections`` as for `Store`, but one by default, since the Hub counts requests.

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
        for name in given.keys() - {"token", "endpoint", "connections"}:
            expected = "token, endpoint and connections for hf://"
            raise UsageError(option="storage_options", expected=expected, found=shorten(name))
        self._connections = given.get("connections") or os.environ.get(CONNECTIONS_VARIABLE) or 1
        self.url = url.rstrip("/")
        repository, revision, folder = found.groups()
        self._folder = f"{folder.strip('/')}/" if folder and folder.strip("/") else ""
        self._revision = revision or "main"
        self._where: Mapping[str, Any] = {"repo_id": repository, "repo_type": "dataset"}
        api = import_target("huggingface_hub:HfApi", what=self.url, extra="hf")
        self._library: Any = import_module("huggingface_hub")
        self._library.utils.disable_progress_bars()  # one for each file, in addition to that of the command
        # huggingface_hub reads this variable only when it is imported.
        endpoint = given.get("endpoint") or os.environ.get("HF_ENDPOINT")
        self._api: Any = api(endpoint=endpoint, token=given.get("token"))
        self._changes: dict[str, Any] = {}
        self._lock = Lock()
        self._commit: str | None = None
        self._files: Store | None = None

    def stat(self, name: str) -> StoredObject | None:
        """Return size and ETag of a file, or None if it does not exist."""
        return next((one for one in self._listed(self._api.get_paths_info, paths=[self._folder + name])), None)

    def list(self) -> Iterator[StoredObject]:
        """Yield all files. The ETag of a large file is its SHA-256."""
        return self._listed(self._api.list_repo_tree, path_in_repo=self._folder.rstrip("/") or None, recursive=True)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a small file (`Store.read`)."""
        return self._opened().read(name, most)

    def chunks(self, name: str, size: int = 0) -> Iterator[memoryview]:
        """Yield the content of a file in pieces (`Store.chunks`)."""
        yield from self._opened().chunks(name, size)

    def download(self, name: str, path: Path, span: tuple[int, int] | None = None) -> StoredObject:
        """Write a file, or a part of it, to a file on this machine (`Store.download`)."""
        return self._opened().download(name, path, span)

    def put(self, name: str, content: Path | bytes | IO[bytes]) -> None:
        """Upload a file from a path, from bytes or from an open file. The path must exist until `commit`.

        A repository that does not exist is made, as a private one.
        """
        with self._reporting(name):
            with self._lock:
                if self._find() is None:
                    self._send(self._api.create_repo, **self._where, private=True, exist_ok=True)
                    self._commit = None
            given = str(content) if isinstance(content, Path) else content
            added = self._library.CommitOperationAdd(self._folder + name, given)
            self._send(self._api.preupload_lfs_files, additions=[added], revision=self._revision, **self._where)
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
            self._send(
                self._api.create_commit,
                False,  # without an answer, the commit may have been made
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
                for one in self._send(lambda: list(request(**self._where, revision=revision, **arguments))):
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
                self._commit = self._send(
                    self._api.dataset_info, repo_id=self._where["repo_id"], revision=self._revision
                ).sha
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
                options = {"client_options": {"default_headers": headers}, "connections": self._connections}
                self._files = Store(url, options, patience_s=_WINDOW_S)
            return self._files

    def _send(self, request: Callable[..., T], is_repeatable: bool = True, **arguments: Any) -> T:
        """Call a function of the library, and call it again if it fails for a passing reason.

        The pauses are those of `Store`, or those that the Hub asks for. The latter do not count towards the patience, for
        eleven minutes. A request that is not repeatable is repeated only if the Hub has refused it.
        """
        begin, pause = time.monotonic(), PAUSE_S
        deadline = begin + PATIENCE_S
        while True:
            try:
                return request(**arguments)
            except Exception as error:
                response = getattr(error, "response", None)
                status = getattr(response, "status_code", None)
                lost = "TransportError" in {kind.__name__ for kind in type(error).__mro__}  # of httpx: no answer
                if status != _TOO_MANY and not (is_repeatable and (lost or status in _PASSING)):
                    raise
                asked = self._asked_pause({} if response is None else response.headers)
                if time.monotonic() > min(deadline, begin + 2 * _WINDOW_S):
                    raise
                deadline += asked
                pause = random.uniform(PAUSE_S, min(3 * pause, LONGEST_PAUSE_S))  # noqa: S311
                time.sleep(max(asked, pause))

    def _asked_pause(self, headers: Mapping[str, str]) -> float:
        """Return the seconds after which the Hub answers again, as it says; otherwise 0."""
        limit = self._library.utils.parse_ratelimit_headers(headers)
        text = headers.get("retry-after", "")
        return float(text) if text.isdigit() else 0.0 if limit is None or limit.remaining else limit.reset_in_seconds

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
