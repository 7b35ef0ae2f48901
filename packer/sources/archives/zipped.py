"""Find files of a folder that are still in zip files there, as if each zip file had been unpacked where it is."""

import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from packer.sources.archives.member import MEMBER_MARK, Member
from packer.sources.archives.zip_directory import ZipDamage, ZipEntry, zip_entries
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.item import Item
from packer.sources.member_bytes import read_member
from packer.workspace.shared_files import listing_folders
from shardspec.errors import ItemError, UsageError


class ZippedFile(NamedTuple):
    """A file in a zip file, whose `state` is that of the zip file when it was listed."""

    archive: Path
    state: os.stat_result
    entry: ZipEntry

    @property
    def name(self) -> str:
        """The last part of the file's path."""
        return self.entry.name.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.archive}{MEMBER_MARK}{self.entry.name}"

    def item(self, index: int, name: str) -> Item:
        """Return the item for the file; a reject if it cannot be read."""
        entry, member = self.entry, Member("zip", self.entry.place, self.state.st_size)
        path = str(self.archive)
        return Item(index, name, path, entry.size, self.state.st_mtime_ns, reject=entry.fault, member=member)

    def read(self) -> bytes:
        """Return the content of the file.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        try:
            if self.entry.fault is not None:
                raise OSError(self.entry.fault)
            return read_member(str(self.archive), Member("zip", self.entry.place, self.state.st_size))
        except ItemError as error:
            raise OSError(str(error)) from error


class ZippedFiles:
    """The files in the zip files of a folder.

    If the folder does not exist, it may itself be in a zip file in the nearest folder above it that exists.

    Parameters
    ----------
    files : LocalFiles
        The files to search.
    """

    def __init__(self, folder: Path, files: LocalFiles = LOCAL) -> None:
        self._home = next(place for place in (folder, *folder.parents) if files.is_folder(place))
        below = folder.relative_to(self._home).as_posix()
        self._below = "" if below == "." else f"{below}/"
        self._files = files

    @cached_property
    def by_path(self) -> dict[str, ZippedFile]:
        """The files by their path below the folder, with ``/``.

        Raises
        ------
        UsageError
            If a zip file cannot be read.
        BuildError
            If the folder cannot be listed.
        """
        found: dict[str, ZippedFile] = {}
        for archive in self._archives():
            with self._files.reading(archive):
                state = archive.stat()
                try:
                    for entry in zip_entries(archive):
                        if not entry.name.startswith(self._below):
                            continue
                        name, file = entry.name.removeprefix(self._below), ZippedFile(archive, state, entry)
                        first = found.setdefault(name, file)
                        if first is not file:
                            both = f"expected this file once, found it in {first.archive.name} and {archive.name}"
                            fault = entry.fault if first.archive == archive else both
                            found[name] = first._replace(entry=first.entry._replace(fault=fault))
                except ZipDamage as damage:
                    raise UsageError(str(damage), place=archive) from damage
        return found

    def _archives(self) -> list[Path]:
        with listing_folders():
            found = [self._home / name for name, *_ in self._files.scan(self._home)]
            return sorted(path for path in found if path.suffix.lower() == ".zip" and self._files.is_file(path))
