"""lmdb: a shard is one single-file LMDB environment."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from readers.formats.checks import corrupt
from shardspec.columns import Columns, IntArray
from shardspec.errors import DatasetError, ShardCorruptError, ShardMissingError
from shardspec.manifest import Shard
from shardspec.schema import Field, Schema

_JOIN_BYTES_MAX = 4096
"""Up to this size, values are joined and copied at once; beyond it each is copied into its place, without the GIL."""


class LMDBShardReader:
    """Reads one LMDB file (`readers.formats.base`).

    Encoded values are copies: LMDB's own views end with the environment. LMDB has no checksums and trusts its pages, so a
    flipped bit of a value reads as another value, and one of a page's structure may end the process: only ``verify=`` finds
    either. What is cheap is checked: the number of entries, the file's size, the size of every fixed value. Safe to use from
    several threads; two readers of one file in one process share an environment, and none survives a fork.
    """

    descriptors = 1
    threads = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._schema = schema
        self._environment: _Environment | None = _open(path)
        try:
            self._environment.check(path, shard.samples * len(schema))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._environment is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        get = self._environment.transaction().get
        prefixes = [b"%08d/" % row for row in rows.tolist()]
        for name in fields:
            suffix = name.encode()
            try:
                values = [get(prefix + suffix) for prefix in prefixes]
            except lmdb.Error as error:
                raise corrupt(self._path, f"a value of {name!r} in every row", str(error)) from error
            if None in values:
                row = rows[values.index(None)]
                raise corrupt(self._path, f"a value of {name!r} in row {row}", "none")
            field = self._schema[name]
            if field.is_fixed:
                self._fill(field, values, out[name], at)
            else:
                column = out[name]
                for place, value in zip(at.tolist(), values, strict=True):
                    column[place] = bytes(value)

    def _fill(self, field: Field, values: list[memoryview], out: Any, at: IntArray) -> None:
        """Copy values of a fixed field into their places."""
        if any(len(value) != field.row_bytes for value in values):
            found = sorted({len(value) for value in values})
            raise corrupt(self._path, f"{field.row_bytes} bytes in every value of {field.name!r}", f"{found}")
        if field.row_bytes <= _JOIN_BYTES_MAX:
            joined = np.frombuffer(b"".join(values), field.numpy_dtype)
            out[at] = joined.reshape(len(values), *field.fixed_shape)
            return
        for place, value in zip(at.tolist(), values, strict=True):
            out[place] = np.frombuffer(value, field.numpy_dtype).reshape(field.fixed_shape)

    def close(self) -> None:
        """Let go of the environment, which is closed with its last reader."""
        if self._environment is not None:
            self._environment.release()
            self._environment = None


class _Environment:
    """An open LMDB file, shared by all of a process's readers of it: LMDB must not open one twice."""

    def __init__(self, key: tuple[int, int], path: Path) -> None:
        self.key = key
        self.users = 0
        # Reading ahead stays on: a picture is many pages, and each would be a read of its own on a disk.
        self.handle = lmdb.open(str(path), subdir=False, readonly=True, create=False, lock=False)
        self._local = threading.local()

    def transaction(self) -> Any:
        """The calling thread's read transaction; its views last until the environment is closed."""
        found = getattr(self._local, "transaction", None)
        if found is None:
            found = self._local.transaction = self.handle.begin(buffers=True)
        return found

    def check(self, path: Path, entries: int) -> None:
        """Check the number of entries, and that the file is as long as its last page says."""
        stat, info = self.handle.stat(), self.handle.info()
        if stat["entries"] != entries:
            raise corrupt(path, f"{entries} entries", f"{stat['entries']}")
        expected, found = (info["last_pgno"] + 1) * stat["psize"], path.stat().st_size
        if found != expected:
            raise corrupt(path, f"{expected} bytes", f"{found}")

    def release(self) -> None:
        """End one reader's use."""
        with _lock:
            self.users -= 1
            if self.users == 0 and _open_environments.get(self.key) is self:
                del _open_environments[self.key]
                self.handle.close()


_lock = threading.Lock()
_open_environments: dict[tuple[int, int], _Environment] = {}
"""By device and inode, which is how LMDB tells files apart."""


def _open(path: Path) -> _Environment:
    """Open a file, or use it where it is open already."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ShardMissingError(f"{path}: expected an LMDB file, found none: restore it or pack again") from None
    key = (status.st_dev, status.st_ino)
    with _lock:
        found = _open_environments.get(key)
        if found is None:
            try:
                found = _open_environments[key] = _Environment(key, path)
            except lmdb.Error as error:
                if "already open" in str(error):
                    raise DatasetError(
                        f"{path}: expected a file that this process has not opened, found it opened by other code with lmdb: close that first"
                    ) from error
                raise ShardCorruptError(
                    f"{path}: expected an LMDB file, found one that does not open: {error}"
                ) from error
        found.users += 1
        return found


def _forget_inherited() -> None:
    """In a forked child: close what the parent has open, since LMDB refuses handles of another process."""
    global _lock
    _lock = threading.Lock()
    inherited = list(_open_environments.values())
    _open_environments.clear()
    for environment in inherited:
        environment.handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
