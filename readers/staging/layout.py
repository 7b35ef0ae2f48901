"""The layout of a remote dataset, whose files are in a cache folder when they are used."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from readers.staging.client import StagerClient, StagerLostError, client_of
from readers.staging.server import settings
from shardspec.entries import FileEntry
from shardspec.errors import DatasetChangedError, StoreError, UsageError
from shardspec.layout import Layout, given_path, is_url, opened, parse_size
from shardspec.stores import check_sendable, local_path
from shardspec.wording import program, shorten

CACHE_VARIABLE, SIZE_VARIABLE = "FACEPACK_CACHE", "FACEPACK_CACHE_SIZE"
_ATTEMPTS = 3


@dataclass(frozen=True)
class CachedLayout(Layout):
    """Paths of a remote dataset in a cache folder, and requests to the stager to download the files.

    A pickle holds no credentials: another process uses what the stager has, or its own environment.

    Attributes
    ----------
    url : str
    key : str
        Name of the dataset's folder in the cache: a digest of the manifest.
    cache : Path
        The user's cache folder.
    size : int or None
        Bytes that the cache may hold, as the user gave it.
    limit : int
        Bytes that the cache may hold.
    options : dict
        Credentials and others for the store (`shardspec.stores.Store`).
    """

    url: str
    key: str
    cache: Path
    size: int | None
    limit: int
    options: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _kept: list[StagerClient] = field(default_factory=list, repr=False, compare=False)
    """The connection, which is open as long as a layout needs it."""

    is_local = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "options": {}, "_kept": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def shown(self) -> str:
        """The URL."""
        return self.url

    def require(self, entries: Iterable[FileEntry]) -> None:
        """Wait until files are in the cache."""
        self._get(entries, pin=False)

    def hold(self, entries: Iterable[FileEntry]) -> Callable[[], None]:
        """Wait until files are in the cache, and keep them until the returned function is called."""
        client, names = self._get(entries, pin=True)
        return lambda: client.tell("free", key=self.key, names=names)

    def doubt(self, entries: Iterable[FileEntry]) -> None:
        """Have files checked again, and replaced if they are damaged, before their next use."""
        self.client().tell("doubt", key=self.key, names=[entry.name for entry in entries])

    def client(self) -> StagerClient:
        """Return this process's connection to a stager that has opened the dataset."""
        client = client_of(self.cache)
        self._kept[:] = [client]
        if self.key not in client.attached:
            found = client.ask("attach", key=self.key)
            if found is None:
                found = client.ask(
                    "open", waits_for=self.url, args=[self.url, self.size, self.options, settings(), True]
                )
            if found["key"] != self.key:
                raise DatasetChangedError(
                    place=self.url,
                    expected="the dataset that was opened",
                    found="another in its place",
                    hint="open it again",
                )
            client.attached[self.key] = found
        return client

    def check_room(self, needed: int, hint: str) -> None:
        """Check that the cache holds a number of bytes at a time; `UsageError` if it does not."""
        if needed > self.limit:
            raise UsageError(
                place=self.url,
                expected=f"a cache of {needed} bytes or more (set {SIZE_VARIABLE})",
                found=self.limit,
                hint=hint,
            )

    def _get(self, entries: Iterable[FileEntry], pin: bool) -> tuple[StagerClient, list[str]]:
        names = [entry.name for entry in entries]
        for _ in range(_ATTEMPTS):
            try:
                client = self.client()
                client.ask("get", waits_for="/".join([self.url, *names[:1]]), key=self.key, names=names, pin=pin)
            except StagerLostError:
                continue
            return client, names
        raise StoreError(f"The stager ended {_ATTEMPTS} times; {self.cache} has its log", place=self.url)


def dataset_layout(
    place: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    name: str = "path",
    *,
    patient: bool = False,
) -> Layout:
    """Return the layout of a packed dataset in a folder or, by a URL, in a store.

    Parameters
    ----------
    place : path or str
        A folder, or a URL (`shardspec.stores.Store`, `shardspec.stores.Hub`).
    cache : path, optional
        Folder for the files of a remote dataset; by default ``$FACEPACK_CACHE``, or ``~/.cache``.
    cache_size : int or str, optional
        Bytes that the cache may hold, such as ``"500GB"``; by default ``$FACEPACK_CACHE_SIZE``, or 90 % of what is free.
    storage_options : mapping, optional
        Credentials, region and endpoint; by default from the environment.
    name : str
        Name of the argument, for messages.
    patient : bool
        Whether a store that does not answer is certainly only away, because another process has opened the dataset.

    Raises
    ------
    UsageError
        If an argument is invalid, or the cache is too small for two shards.
    NotADatasetError, ManifestError, VersionError
        If there is no dataset at a URL.
    StoreError
        If a store cannot be read.
    """
    given = local_path(place) if isinstance(place, str) else place
    if not isinstance(given, str) or not is_url(given):
        for option, value in {"cache": cache, "cache_size": cache_size, "storage_options": storage_options}.items():
            if value is not None:
                raise UsageError(option=option, expected="a dataset in a store", found=f"the folder {shorten(given)}")
        return Layout(given_path(name, given).absolute())
    folder = cache_folder(cache)
    wanted = cache_size if cache_size is not None else os.environ.get(SIZE_VARIABLE)
    size = None if wanted is None else parse_size(wanted, "cache_size")[0]
    options = check_sendable(storage_options or {})
    for _ in range(_ATTEMPTS):
        try:
            client = client_of(folder)
            found = client.ask("open", waits_for=given, args=[given, size, options, settings(), patient])
        except StagerLostError:
            continue
        client.attached[found["key"]] = found
        root = Path(found["root"])
        return CachedLayout(root, given, found["key"], folder, size, found["limit"], options, [client])
    raise StoreError(f"The stager ended {_ATTEMPTS} times; {folder} has its log", place=given)


def find_dataset(
    place: str | os.PathLike[str], name: str, storage_options: Mapping[str, Any] | None = None
) -> Path | CachedLayout:
    """Return the folder of a packed dataset as it was given; for a URL, its layout in the cache (`dataset_layout`)."""
    layout = dataset_layout(place, storage_options=storage_options, name=name)
    if isinstance(layout, CachedLayout):
        return layout
    return given_path(name, local_path(place) if isinstance(place, str) else place)


def dataset_folder(place: str | os.PathLike[str], name: str = "dataset") -> Path:
    """Return the folder of a packed dataset; for a URL, its folder in the cache, with all files.

    Parameters
    ----------
    place : path or str
        A folder, or a URL.
    name : str
        Name of the argument, for messages.

    Raises
    ------
    UsageError
        If the cache does not hold the whole dataset.
    DatasetError
        If the dataset cannot be read.
    """
    layout = find_dataset(place, name)
    if isinstance(layout, Path):
        return layout
    entries = layout.load().entries
    needed = sum(entry.bytes for entry in entries)
    layout.check_room(needed, f"or copy it to a disk that holds it first ('{program()} copy')")
    layout.hold(entries)
    opened[layout.root] = layout
    return layout.root


def cache_folder(given: str | os.PathLike[str] | None = None, name: str = "cache") -> Path:
    """Return the cache folder: that of the argument `name`, or by default ``$FACEPACK_CACHE``, or ``~/.cache``."""
    default = os.environ.get(CACHE_VARIABLE) or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return given_path(name, given or default).absolute()
