"""The dataset of a job in an object store: uploads of finished shards, and the commit."""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packer.assembly.shard import published_shard
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.transfers import Transfers
from packer.workspace import Workspace
from packer.workspace.durable import read_record, write_record
from packer.workspace.folder import remove_shards
from packer.workspace.replacement import set_aside, unused_prefix
from packer.workspace.shared_files import host
from shardspec.entries import ASIDE, FileEntry, Shard
from shardspec.errors import BuildError, BuildLockedError, DatasetError, StoreError, UsageError
from shardspec.layout import BUILD_FOLDER, CARD_NAME, INDEX_FOLDER, ITEMS_NAME, MANIFEST_NAME, REJECTS_NAME, Layout
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.stores import Store
from shardspec.wording import list_some

_MARK = f"{BUILD_FOLDER}/upload.json"
"""Object that marks an unfinished upload. It says whose the upload is."""
_MARK_BYTES_MAX = 1 << 16
_PROBE_S = 10
"""Seconds for which the first request is repeated."""
_REPORTS = "|".join(map(re.escape, (ITEMS_NAME, REJECTS_NAME, CARD_NAME)))
_OURS = re.compile(rf"(?:{ASIDE})*(?:shard-[0-9]+[./].+|{INDEX_FOLDER}/[^/]+\.npy|{_REPORTS})\Z")
"""Names of the objects that an upload writes before the manifest."""


class _File(NamedTuple):
    """A file to upload.

    Attributes
    ----------
    folder : Path
    entry : FileEntry
    prefix : str
        Prefix of the object's name.
    deletes : bool
        Whether the file is deleted after the upload.
    """

    folder: Path
    entry: FileEntry
    prefix: str
    deletes: bool


class Upload:
    """The place of a job's dataset in an object store, while the job works in a folder of this machine.

    Each shard is uploaded when it is finished, and its local files are deleted. The manifest is written last, so an
    unfinished dataset cannot be opened. The workspace records what was uploaded to which place, and an object in the
    store says which workspace that is.

    If the dataset replaces another one, its names must not be those of the old objects, which stay until the new manifest
    is in place. So the names of its shards begin with `shardspec.entries.ASIDE`, unless those of the old shards do. The
    other files are small: they are uploaded under such names, and once more under their own when the old ones are gone.

    Parameters
    ----------
    url : str
    options : mapping, optional
        See `Store`. Requests are sent at once, so that wrong credentials are reported before any work.

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

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        Store(url, options, patience_s=_PROBE_S).stat(MANIFEST_NAME)  # a misspelt endpoint is no store that is away
        self._store = store = Store(url, options)
        self.url = store.url
        self._record: dict[str, str] = {}
        self._transfers = Transfers[_File, None](self._send)
        data = self._read(MANIFEST_NAME, MANIFEST_BYTES_MAX)
        self.manifest = None if data is None else Manifest.loads(data, store.place(MANIFEST_NAME))
        self._sizes = {one.name: one.bytes for one in store.list()}

    def check(self, space: Workspace, overwrite: bool) -> None:
        """Check that the place holds nothing except a dataset, and no unfinished upload of another workspace.

        Raises
        ------
        UsageError
            If it does. With `overwrite`, unfinished uploads are allowed.
        """
        mark, here = self._read_mark(), self._describe(space)
        strange = {name: mark.get(name) for name in here} != here and mark.get("id") != self._state(space).get("id")
        if mark and strange and not overwrite:
            raise UsageError(
                place=self.url,
                expected="a place without an unfinished dataset",
                found=f"one that host {mark.get('host')} uploads from {mark.get('work')}",
                hint="resume its build there, choose another place, or discard it with `overwrite`",
            )
        others = [name for name in self._find_others() if not (mark and _OURS.match(name))]
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
        if state.get("url") != self.url or self._read_mark().get("id") != state["id"]:
            remove_shards(space)
            state = {"url": self.url, "id": uuid.uuid4().hex, **self._find_prefixes()}
            write_record(space.upload, state)
        else:
            with suppress(StoreError):  # some servers do not have this request, and some users not the permission
                self._store.abort_uploads(_OURS.match)  # of a process that was killed: invisible, and paid for
        self._record = state
        with suppress(FileNotFoundError):  # stores that report it
            self._store.delete([f"{_MARK}.none"])  # the permission is needed in the end
        self._store.put(_MARK, json.dumps({"id": state["id"], **self._describe(space)}).encode())

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
        prefix = self._record["shards"]
        left = [entry for entry in shard.files if (published / entry.name).exists()]
        if any(self._sizes.get(prefix + entry.name) != entry.bytes for entry in shard.files if entry not in left):
            return None
        for entry in left:
            self._transfers.add(_File(published, entry, prefix, True))
        return shard

    def commit(
        self, manifest: Manifest, space: Workspace, listener: ProgressListener, check: Callable[[], None]
    ) -> Manifest:
        """Upload the other files, wait for all uploads, write the manifest, and delete the replaced dataset.

        Parameters
        ----------
        check : callable
            Called after each file; raises if this process must stop.

        Returns
        -------
        Manifest
            The manifest with the names in the store.

        Raises
        ------
        StoreError
            If the store fails for longer than its retries last.
        BuildLockedError
            If another workspace has begun to upload to the same place.
        """
        for entry in manifest.files:
            self._transfers.add(_File(space.final, entry, self._record["files"], False))
        with Stage(listener, "uploading", self._transfers.left, "files") as stage:
            for file, _ in self._transfers.results():
                check()
                stage.advance(size=file.entry.bytes)
        manifest = replace(set_aside(manifest, self._record["shards"]), files=manifest.files)
        state = {**self._record, "manifest": manifest.dumps().decode()}
        write_record(space.upload, state)
        if not self.finish(space) or self.manifest is None:
            raise BuildLockedError(
                "another build has begun to upload to the same place: this build stops", place=self.url
            )
        return self.manifest

    def finish(self, space: Workspace) -> bool:
        """Commit an upload of which only the commit is left, or has been interrupted, and return whether it is done."""
        state = self._state(space)
        if state.get("url") != self.url or "manifest" not in state:
            return False
        manifest = Manifest.loads(state["manifest"].encode(), str(space.upload))
        if self._read_mark().get("id") != state["id"]:  # deleted last, or replaced by another build
            return self.manifest == manifest
        aside = set_aside(manifest, state["files"], shards=False)
        if self.manifest != manifest:
            self._store.put(MANIFEST_NAME, aside.dumps())
            kept = {_MARK, MANIFEST_NAME, *(entry.name for one in (aside, manifest) for entry in one.entries)}
            self._store.delete([name for name in self._sizes if name not in kept])
            if aside != manifest:
                for entry in manifest.files:
                    self._store.put(entry.name, space.final / entry.name)
                self._store.put(MANIFEST_NAME, manifest.dumps())
        if aside != manifest:
            self._store.delete([entry.name for entry in aside.files])
        self._store.delete([_MARK])
        self.manifest = manifest
        return True

    def replace_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest of the finished dataset by one with the same files."""
        self._store.put(MANIFEST_NAME, manifest.dumps())
        self.manifest = manifest

    def abandon(self) -> None:
        """Delete the mark if nothing has been uploaded."""
        with suppress(StoreError):  # an error is being raised already
            if not self._find_others() and self._read_mark().get("id") == self._record["id"]:
                self._store.delete([_MARK])

    def close(self) -> None:
        """Begin no further uploads."""
        self._transfers.close()

    def _send(self, file: "_File") -> None:
        layout, entry = Layout(file.folder), file.entry
        path = layout.file(entry)
        try:
            layout.check_digest(entry)
        except DatasetError as error:
            path.unlink(missing_ok=True)
            raise BuildError(error, hint="run the same command again, which writes it again") from error
        self._store.put(file.prefix + entry.name, path)
        if file.deletes:
            path.unlink()

    def _find_others(self) -> list[str]:
        """Return the names of objects that belong neither to the dataset nor to the mark."""
        entries = () if self.manifest is None else self.manifest.entries
        known = {_MARK, MANIFEST_NAME, *(entry.name for entry in entries)}
        return [name for name in self._sizes if name not in known]

    def _find_prefixes(self) -> dict[str, str]:
        """Return prefixes with which no new name of a shard or of another file is that of an object to be replaced."""
        if self.manifest is None:
            return {"shards": "", "files": ""}
        unused = unused_prefix(self.manifest)
        return {
            "shards": "" if all(one.name.startswith(ASIDE) for one in self.manifest.shards) else unused,
            "files": unused,
        }

    def _state(self, space: Workspace) -> dict[str, Any]:
        """Return what the workspace has recorded about its upload: place, identity, and in the end the manifest."""
        try:
            return read_record(space.upload)
        except FileNotFoundError:
            return {}

    def _read_mark(self) -> dict[str, Any]:
        data = self._read(_MARK, _MARK_BYTES_MAX)
        with suppress(ValueError):
            found = json.loads(data or b"{}")
            return found if isinstance(found, dict) else {}
        return {}

    def _describe(self, space: Workspace) -> dict[str, str]:
        return {"host": host(), "work": str(space.out)}

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            return self._store.read(name, most)
        except FileNotFoundError:
            return None
