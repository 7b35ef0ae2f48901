"""Items for folders whose images are the frames of videos."""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from packer.sources.files import LOCAL, FileState, LocalFiles
from packer.sources.folders.frames import Frames, FramesError, FramesState, frame_numbers
from packer.sources.item import Item
from packer.vision.faults import stop_if_passing
from packer.vision.media import IMAGE, medium_of
from packer.workspace.shared_files import map_threaded
from shardspec.errors import UsageError, system_reason
from shardspec.wording import shorten

_ASKED = 16
"""Images per request to a thread. Passing them one by one would take as long as examining them."""


def frames_item(
    index: int,
    name: str,
    folder: str,
    images: Iterable[str],
    rate: float,
    roots: Sequence[Path],
    columns: Mapping[str, Any] | None = None,
    files: LocalFiles = LOCAL,
) -> Item:
    """Return the item for a folder whose images are the frames of a video.

    The frames are in the order of their numbers (`frame_numbers`). The folder is a reject if its images have no
    numbers, or if one of them leads out of the source.

    Parameters
    ----------
    index, name, columns
        See `Item`.
    folder : str
        Absolute path of the folder.
    images : iterable of str
        Names of the images in the folder.
    rate : float, frames per second
    roots : sequence of Path
        Folders that no file may leave, with resolved links.

    Raises
    ------
    BuildError
        If an image cannot be examined because of a temporary fault.
    """
    names = sorted(images)  # so that the first fault does not depend on the order of the listing

    def look(some: Sequence[str]) -> list[FileState]:
        return [_look(folder, name, roots, files) for name in some]

    try:
        if not names:
            raise FramesError("expected a folder of images, found none in it")
        names = [name for _, name in sorted(zip(frame_numbers(names), names, strict=True))]
        some = (names[first : first + _ASKED] for first in range(0, len(names), _ASKED))
        state = FramesState(
            chain.from_iterable(map_threaded(look, some) if files.is_slow(Path(folder)) else map(look, some))
        )
    except FramesError as error:
        return Item(index, name, folder, columns=columns or {}, reject=str(error))
    frames = Frames("frames", tuple(names), state.digest, float(rate))
    return Item(index, name, folder, state.bytes, state.mtime_ns, columns or {}, member=frames)


def images_in(folder: str | Path, files: LocalFiles = LOCAL) -> list[str]:
    """Return the names of the images directly in a folder, by suffix and without hidden files.

    Raises
    ------
    FramesError
        If the folder cannot be listed.
    BuildError
        If the folder cannot be listed because of a temporary fault.
    """
    try:
        return [
            name
            for name, is_folder, _ in files.scan(folder)
            if not is_folder and not name.startswith(".") and medium_of(name) is IMAGE
        ]
    except OSError as error:
        stop_if_passing(error, folder, "listed")
        raise FramesError(f"expected a folder that can be listed, found: {system_reason(error)}") from error


def refuse_images_in_root(root: Path, example: str) -> None:
    """Refuse images directly in a source whose folders are videos.

    Raises
    ------
    UsageError
        Always.
    """
    raise UsageError(
        option="frame_folders",
        expected="the images in folders below the source, one for each video",
        found=f"{shorten(example)} directly in {root}",
        hint="use the folder above it, or --exclude images that are not frames",
    )


def _look(folder: str, name: str, roots: Sequence[Path], files: LocalFiles) -> FileState:
    path = os.path.join(folder, name)  # noqa: PTH118 -- many
    try:
        found = files.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            target = Path(files.resolve(path))
            if not any(target.is_relative_to(root) for root in roots):
                raise FramesError(
                    f"frame {shorten(name)}: expected a file inside the source, found a symbolic link that leaves it: "
                    "name the folder it leads to with --root DIR"
                )
            found = files.stat(path)
    except (OSError, RuntimeError) as error:
        stop_if_passing(error, path)
        raise FramesError(f"frame {shorten(name)}: expected a file, found {system_reason(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise FramesError(f"frame {shorten(name)}: expected a regular file, found something else")
    return found
