"""The items of folders whose pictures are the frames of videos."""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from packer.sources.folders.frames import Frames, FramesError, FramesState, frame_numbers
from packer.sources.item import Item, is_picture
from packer.sources.walking import scan
from packer.vision.faults import may_pass
from packer.workspace.fresh import ask_each
from shardspec.errors import BuildError, UsageError, system_reason
from shardspec.wording import shorten

_ASKED = 16
"""Pictures that one thread asks for: to hand them over one by one takes as long as to ask."""


def frames_item(
    index: int,
    name: str,
    folder: str,
    pictures: Iterable[str],
    rate: float,
    roots: Sequence[Path],
    columns: Mapping[str, Any] | None = None,
) -> Item:
    """The item of a folder whose pictures are the frames of a video.

    The frames are in the order of their numbers (`frame_numbers`). A folder whose pictures have none is a reject, and so
    is one in which a picture leads out of the source.

    Parameters
    ----------
    index, name, columns
        See `Item`.
    folder : str
        Its path, absolute.
    pictures : iterable of str
        Names of the pictures in it.
    rate : float, frames per second
    roots : sequence of Path
        Folders outside which no file may lie, without links.

    Raises
    ------
    BuildError
        If a picture cannot be examined, for a reason that may pass.
    """
    names = sorted(pictures)  # in any listing the same reason is found first

    def look(some: Sequence[str]) -> list[os.stat_result]:
        return [_look(folder, name, roots) for name in some]

    try:
        if not names:
            raise FramesError("expected a folder of pictures, found none in it")
        names = [name for _, name in sorted(zip(frame_numbers(names), names, strict=True))]
        some = (names[first : first + _ASKED] for first in range(0, len(names), _ASKED))
        state = FramesState(chain.from_iterable(ask_each(Path(folder), look, some)))
    except FramesError as error:
        return Item(index, name, folder, columns=columns, reject=str(error))
    frames = Frames("frames", tuple(names), state.digest, float(rate))
    return Item(index, name, folder, state.bytes, state.mtime_ns, columns, member=frames)


def pictures_in(folder: str | Path) -> list[str]:
    """The names of the pictures directly in a folder, known by their suffixes; hidden files are none.

    Raises
    ------
    FramesError
        If the folder cannot be listed.
    BuildError
        If that is for a reason that may pass.
    """

    def fail(error: OSError) -> None:
        if may_pass(error):
            raise BuildError(
                f"{folder}: cannot be listed: {system_reason(error)}: run the same command again"
            ) from error
        raise FramesError(f"expected a folder that can be listed, found: {system_reason(error)}") from error

    entries = scan(folder, fail)
    return [name for name, is_folder, _ in entries if not is_folder and not name.startswith(".") and is_picture(name)]


def refuse_pictures_in_root(root: Path, example: str) -> None:
    """Refuse pictures that lie directly in a source whose folders are videos.

    Raises
    ------
    UsageError
        Always.
    """
    raise UsageError(
        f"frame_folders: expected the pictures in folders below the source, one for each video, found "
        f"{shorten(example)} directly in {root}: give the folder above it, or --exclude what is no frame"
    )


def _look(folder: str, name: str, roots: Sequence[Path]) -> os.stat_result:
    """What the system says of a picture, which is a regular file inside the roots."""
    path = os.path.join(folder, name)  # noqa: PTH118 -- many
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            target = Path(path).resolve(strict=True)
            if not any(target.is_relative_to(root) for root in roots):
                raise FramesError(
                    f"frame {shorten(name)}: expected a file inside the source, found a symbolic link that leaves it: "
                    "name the folder it leads to with --root DIR"
                )
            found = os.stat(path)
    except (OSError, RuntimeError) as error:
        if may_pass(error):  # the plan depends on what is listed
            raise BuildError(f"{path}: cannot be examined: {error}: run the same command again") from error
        raise FramesError(f"frame {shorten(name)}: expected a file, found {system_reason(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise FramesError(f"frame {shorten(name)}: expected a regular file, found something else")
    return found
