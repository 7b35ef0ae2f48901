"""The dataset of a job in an object store: uploads of finished shards, and the commit."""

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packer.assembly.shard import published_shard
from packer.jobs.mirror import check_place, check_writable, is_ours
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.transfers import Transfers
from packer.workspace import Workspace
from packer.workspace.card import is_generated, make_card
from packer.workspace.durable import read_record, write_record
from packer.workspace.folder import output_folder, remove_shards
from packer.workspace.remote import DEFAULT_WORK, RemoteFiles
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import host
from shardspec.entries import CARD_NAME, COLUMNS_FOLDER, FileEntry, Shard, strip_tag, tagged_start
from shardspec.errors import BuildError, BuildLockedError, DatasetError, StoreError, UsageError
from shardspec.formats import get_format
from shardspec.layout import BUILD_FOLDER, INDEX_FOLDER, ITEMS_NAME, MANIFEST_NAME, PLAN_NAME, REJECTS_NAME, Layout
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.stores import Hub, Store, names_store, writable_store
from shardspec.wording import list_some, program

_MARK = f"{BUILD_FOLDER}/upload.json"
"""Object that marks an unfinished upload. It says whose the upload is."""
_MARK_BYTES_MAX = 1 << 16
_TAKEN = "another build has begun to upload to the same place: this build stops"
_CARD_BYTES_MAX = 1 << 20
_PROBE_S = 10
"""Seconds for which the first request is repeated."""
_REPORTS = "|".join(map(re.escape, (ITEMS_NAME, REJECTS_NAME, CARD_NAME)))
_OURS = re.compile(rf"(?:shard-[0-9]+[./].+|{INDEX_FOLDER}/[^/]+\.npy|{COLUMNS_FOLDER}/[^/]+/[^/]+|{_REPORTS})\Z")
"""Names, without tags, of the objects that an upload writes."""


class _File(NamedTuple):
    """A file to upload.

    Attributes
    ----------
    folder : Path
    entry : FileEntry
        Its name is that of the object.
    name : str
        The file's name in the folder.
    """

    folder: Path
    entry: FileEntry
    name: str


class Upload:
    """The place of a job's dataset in an object store, while the job works in a folder of this machine.

    Each shard is uploaded when it is finished, and its local files are deleted. The manifest is written last, so an
    unfinished dataset cannot be opened. The workspace records what was uploaded to which place, and an object in the
    store says which workspace that is.

    Parameters
    ----------
    url : str
    options : mapping, optional
        See `Store`. Requests are sent at once, so that wrong credentials are reported before any work.
    work : RemoteFiles, optional
        If the workspace is in a store, too: then workers upload the shards that they write.

    Attributes
    ----------
    manifest : Manifest or None
        Manifest of the dataset in the store.

    Raises
    ------
    StoreError
        If the store cannot be read.
    DatasetError
        If its manifest is invalid.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, work: RemoteFiles | None = None) -> None:
        Store(url, options, patience_s=_PROBE_S).stat(MANIFEST_NAME)  # a misspelt endpoint is no store that is away
        self._store = Store(url, options)
        self.url = self._store.url
        self._record: dict[str, str] = {}
        self._transfers = Transfers[_File, None](self._send)
        self.work = work
        self.manifest: Manifest | None = None
        self._sizes: dict[str, int] = {}
        self._marked: str | None = None
        self._left: list[str] = []
        self._look()
        if work is not None:
            place = Store(work.work.url, options, patience_s=_PROBE_S)
            check_place(place)
            if self.manifest is None:  # the credentials of a finished dataset may only read
                check_writable(place)

    def check(self, space: Workspace, overwrite: bool) -> None:
        """Check that the place holds nothing except a dataset, and no unfinished upload of another workspace.

        Raises
        ------
        UsageError
            If it does. With `overwrite`, unfinished uploads are allowed.
        """
        mark, self._marked = _find_mark(self._store)
        self._look()  # again, and after the mark: a commit in between has removed or changed the mark
        here = self._describe(space)
        if self.work is not None:
            del here["host"]  # any host may resume it
        strange = {name: mark.get(name) for name in here} != here and mark.get("id") != self._state(space).get("id")
        self._left = self._find_workspaces(mark)
        if mark and strange and not overwrite:
            found, how = f"one that host {mark.get('host')} uploads from {mark.get('work')}", "resume its build there"
            if names_store(str(mark.get("work"))):
                found, how = f"one whose workspace is {mark['work']}", "repeat its command to resume it"
            raise UsageError(
                place=self.url,
                expected="a place without an unfinished dataset",
                found=found,
                hint=f"{how}, choose another place, or discard it with `overwrite`",
            )
        known = set(self._left)
        others = [name for name in self._find_others() if name not in known and not (mark and _is_uploaded(name))]
        if overwrite and self.manifest is not None:  # somebody has deleted the mark; a name with a tag is no user's own
            others = [name for name in others if not (tagged_start(name) and _is_uploaded(name))]
        if others:
            raise UsageError(
                place=self.url,
                expected="a place that is new, empty, or holds a dataset",
                found=f"other objects ({list_some(others)})",
                hint="choose another place",
            )

    def begin(self, space: Workspace) -> None:
        """Begin or resume the upload of a workspace. Shards that were uploaded to another place are written again."""
        state = self._state(space)
        if state.get("url") != self.url or read_mark(self._store).get("id") != state["id"]:
            remove_shards(space)
            state = {"url": self.url, "id": uuid.uuid4().hex}
            write_record(space.upload, state)
        else:
            with suppress(StoreError):  # some servers do not have this request, and some users not the permission
                self._store.abort_uploads(_is_uploaded)  # of a process that was killed: invisible, and paid for
        self._record = state
        with suppress(FileNotFoundError):  # stores that report it
            self._store.delete([f"{_MARK}.none"])  # the permission is needed in the end
        self._store.put_if(_MARK, json.dumps({"id": state["id"], **self._describe(space)}).encode(), self._marked)
        if read_mark(self._store).get("id") != state["id"]:
            raise BuildLockedError(_TAKEN, place=self.url)
        plans = [name for name in self._left if name.endswith(f"/{PLAN_NAME}")]
        for names in (plans, [name for name in self._left if name not in plans]):  # without a plan, no job is resumed
            self._store.delete(names)
        self._sizes = {name: size for name, size in self._sizes.items() if name not in set(self._left)}

    def place(self, published: Path) -> Shard | None:
        """Upload the remaining files of a published shard in the background, and return the shard's manifest entry.

        Return None if no shard was published, or if one of its files is neither in the folder nor in the store.

        Parameters
        ----------
        published : Path
            See `packer.assembly.shard.write_shard`. Files that were uploaded are no longer in it.

        Raises
        ------
        StoreError, BuildError
            If an earlier upload has failed.
        """
        shard = published_shard(published)
        if shard is None:
            return None
        left = [entry for entry in shard.files if (published / entry.name).exists()]
        if any(self._sizes.get(entry.name) != entry.bytes for entry in shard.files if entry not in left):
            return None
        for entry in left:
            self._transfers.add(_File(published, entry, entry.name))
        return shard

    def commit(
        self, manifest: Manifest, space: Workspace, listener: ProgressListener, check: Callable[..., None]
    ) -> None:
        """Upload the other files, wait for all uploads, write the manifest and the card, and delete the replaced dataset.

        Parameters
        ----------
        check : callable
            Called after each file, and with ``at_once=True`` before the manifest is written; raises if this process must
            stop.

        Raises
        ------
        StoreError
            If the store fails for longer than its retries last.
        BuildLockedError
            If another workspace has begun to upload to the same place.
        """
        for entry in manifest.files:
            self._transfers.add(_File(space.final, entry, entry.own_name))
        for column in manifest.columns:
            for entry in column.files:
                if self._sizes.get(entry.name) != entry.bytes:
                    self._transfers.add(_File(space.columns / column.field, entry, PurePosixPath(entry.name).name))
        with Stage(listener, "uploading", self._transfers.left, "files") as stage:
            for file, _ in self._transfers.results():
                check()
                stage.advance(size=file.entry.bytes)
        state = {**self._record, "manifest": manifest.dumps().decode()}
        write_record(space.upload, state)
        check(at_once=True)
        if not self.finish(space):
            raise BuildLockedError(_TAKEN, place=self.url)

    def finish(self, space: Workspace) -> bool:
        """Commit an upload of which only the commit is left, or has been interrupted, and return whether it is done."""
        state = self._state(space)
        if state.get("url") != self.url or "manifest" not in state:
            return False
        manifest = Manifest.loads(state["manifest"].encode(), str(space.upload))
        if read_mark(self._store).get("id") != state["id"]:  # deleted last, or replaced by another build
            return self.manifest == manifest
        if self.manifest != manifest:
            self._store.put(MANIFEST_NAME, manifest.dumps())
        self._put_card(space, manifest)
        if self.work is not None:
            self._sizes = self._list()  # workers have added to it
        kept = {_MARK, MANIFEST_NAME, CARD_NAME, *(entry.name for entry in manifest.entries)}
        self._store.delete([name for name in self._sizes if name not in kept])
        self._store.delete([_MARK])
        self._marked = None
        self.manifest = manifest
        return True

    def discard(self, space: Workspace) -> None:
        """Delete what a workspace has uploaded but not committed, and its mark."""
        self._look()
        if self.manifest is not None and read_mark(self._store).get("id") == self._state(space).get("id", ""):
            self._store.delete([*filter(_is_uploaded, self._find_others()), _MARK])

    def _put_card(self, space: Workspace, manifest: Manifest) -> None:
        """Upload the card of a dataset if its format has one. A card that a person has edited stays."""
        card = self._read(CARD_NAME, _CARD_BYTES_MAX) if CARD_NAME in self._sizes else None
        if card is not None and not is_generated(card):
            return
        if get_format(manifest.format).card:
            files = tuple(replace(entry, name=entry.own_name) for entry in manifest.files)
            self._store.put(CARD_NAME, make_card(Layout(space.final), replace(manifest, files=files)))
        elif card is not None:
            self._store.delete([CARD_NAME])

    def replace_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest of the finished dataset by one with the same files."""
        self._store.put(MANIFEST_NAME, manifest.dumps())
        self.manifest = manifest

    def abandon(self) -> None:
        """Delete the mark if nothing has been uploaded."""
        with suppress(StoreError):  # an error is being raised already
            if not self._find_others() and read_mark(self._store).get("id") == self._record["id"]:
                self._store.delete([_MARK])

    def close(self) -> None:
        """Begin no further uploads."""
        self._transfers.close()

    def _send(self, file: "_File") -> None:
        layout, entry = Layout(file.folder), file.entry
        path = file.folder / file.name
        try:
            layout.check_digest(replace(entry, name=file.name))
        except DatasetError as error:
            path.unlink(missing_ok=True)
            raise BuildError(error, hint="run the same command again, which writes it again") from error
        self._store.put(entry.name, path)
        if file.name == entry.name:  # of a shard: the other files are small, and needed for the card
            path.unlink()

    def _look(self) -> None:
        """Read the manifest, and list the objects."""
        data = self._read(MANIFEST_NAME, MANIFEST_BYTES_MAX)
        self.manifest = None if data is None else Manifest.loads(data, self._store.place(MANIFEST_NAME))
        self._sizes = self._list()

    def _list(self) -> dict[str, int]:
        """Return the sizes of all objects but those of the workspace, which may be below the dataset's place."""
        below = None if self.work is None else f"{self.work.work.url}/".removeprefix(f"{self.url}/")
        return {one.name: one.bytes for one in self._store.list() if below is None or not one.name.startswith(below)}

    def _find_workspaces(self, mark: Mapping[str, Any]) -> list[str]:
        """Return the names of the objects below the dataset's place that other builds left in their workspaces."""
        places = {self._store.place(DEFAULT_WORK), str(mark.get("work"))}
        starts = [f"{place.removeprefix(f'{self.url}/')}/" for place in places if place.startswith(f"{self.url}/")]
        return [
            name
            for name in self._sizes
            if any(name.startswith(start) and is_ours(name.removeprefix(start)) for start in starts)
        ]

    def _find_others(self) -> list[str]:
        """Return the names of objects that belong neither to the dataset nor to the mark."""
        entries = () if self.manifest is None else self.manifest.entries
        known = {_MARK, MANIFEST_NAME, *(entry.name for entry in entries)}
        known |= set() if self.manifest is None else {CARD_NAME}
        return [name for name in self._sizes if name not in known]

    def _state(self, space: Workspace) -> dict[str, Any]:
        """Return what the workspace has recorded about its upload: place, identity, and in the end the manifest."""
        try:
            return read_record(space.upload)
        except FileNotFoundError:
            return {}

    def _describe(self, space: Workspace) -> dict[str, str]:
        return {"host": host(), "work": str(space.out) if self.work is None else self.work.work.url}

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            return self._store.read(name, most)
        except FileNotFoundError:
            return None


def output_place(out: str | os.PathLike[str]) -> tuple[Path, Upload | None]:
    """Return the folder to work in, and for a URL the upload. Then the workspace is below the URL, too.

    Raises
    ------
    UsageError, StoreError, DatasetError
        See `output_folder`, `output_store` and `Upload`.
    """
    store = output_store(out)
    if store is None:
        return output_folder(out), None
    scratch = TemporaryFiles()
    work = Store(store.place(DEFAULT_WORK))
    return scratch.path / "dataset", Upload(store.url, work=RemoteFiles(work, store, scratch=scratch))


def output_store(out: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store | None:
    """Return the store of an output's URL, or None for a path.

    Raises
    ------
    UsageError
        If it is the URL of a web server or the Hub, or invalid.
    """
    store = writable_store(out, options)
    if isinstance(store, Hub):
        raise UsageError(
            option="out",
            expected="a folder, s3://, gs:// or az://",
            found=store.url,
            hint=f"write to a local folder, and publish it with {program()} copy",
        )
    return store


def _is_uploaded(name: str) -> bool:
    """Return whether an upload may have written an object."""
    return _OURS.match(strip_tag(name)) is not None


def read_mark(store: Store) -> dict[str, Any]:
    """Return ``host`` and ``work`` of the unfinished upload to a place; nothing if there is none."""
    return _find_mark(store)[0]


def _find_mark(store: Store) -> tuple[dict[str, Any], str | None]:
    """Return the mark (`read_mark`) and its ETag."""
    data, etag = store.read_small(_MARK, _MARK_BYTES_MAX)
    with suppress(ValueError):
        found = json.loads(data)
        return found if isinstance(found, dict) else {}, etag
    return {}, etag
