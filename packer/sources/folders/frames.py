"""Folders of frames: the pictures in a folder as the frames of one video."""

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from packer.sources.item import Frames, FramesState, Item, is_picture
from packer.sources.walking import scan
from packer.vision.faults import may_pass
from packer.workspace.fresh import ask_each
from shardspec.errors import BuildError, UsageError, system_reason
from shardspec.wording import list_some, shorten

_NUMBER = re.compile(r"([0-9]+)")

_SHOWN = 3
"""Names of pictures in a reason."""


class _NoFrameError(ValueError):
    """A picture that is no frame; the message says why."""


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

    The frames are in the order of the numbers in their names: ``2.jpg`` is before ``10.jpg``. Names that differ in more
    than their numbers have no order, and so the folder is a reject, as it is where a picture leads out of the source.

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
    names = sorted(pictures, key=_in_order)

    def look(name: str) -> os.stat_result:
        return _look(folder, name, roots)

    try:
        _check_names(names)
        state = FramesState(ask_each(Path(folder), look, names))
    except _NoFrameError as error:
        return Item(index, name, folder, columns=columns, reject=str(error))
    frames = Frames("frames", tuple(names), state.digest, float(rate))
    return Item(index, name, folder, state.bytes, state.mtime_ns, columns, member=frames)


def pictures_in(folder: str | Path) -> list[str]:
    """The names of the pictures directly in a folder, known by their suffixes; hidden files are none.

    Raises
    ------
    BuildError
        If the folder cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise BuildError(f"{folder}: cannot be listed: {system_reason(error)}") from error

    entries = scan(folder, fail)
    return [name for name, is_folder, _ in entries if not is_folder and not name.startswith(".") and is_picture(name)]


def begins_anew(names: Sequence[str]) -> bool:
    """Whether the last number in the names of frames falls on the way, as where a folder holds several videos."""
    last = [int(numbers[-1]) for numbers in map(_NUMBER.findall, names) if numbers]
    return any(after < before for before, after in pairwise(last))


def refuse_pictures_in_root(root: Path, example: str) -> None:
    """Refuse pictures that lie directly in a source whose folders are videos.

    Raises
    ------
    UsageError
        Always.
    """
    raise UsageError(
        f"frame_folders: expected the pictures in folders below the source, one for each video, found "
        f"{shorten(example)} directly in {root}: give the folder above it"
    )


def _in_order(name: str) -> tuple[list[str | int], str]:
    """What sorts names by their numbers; numbers and other texts take turns, so like is compared with like."""
    parts = _NUMBER.split(name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise _NoFrameError("expected a folder of pictures, found none in it")
    shapes: dict[str, str] = {}
    for name in names:
        shapes.setdefault(_NUMBER.sub("#", name), name)
    if len(shapes) > 1:
        shown = list_some(list(map(shorten, list(shapes.values())[:_SHOWN])))
        more = " and others" if len(shapes) > _SHOWN else ""
        raise _NoFrameError(
            f"expected frames whose names differ in their numbers alone, found {shown}{more}: "
            "choose some with --include or --exclude"
        )


def _look(folder: str, name: str, roots: Sequence[Path]) -> os.stat_result:
    """What the system says of a picture, which is a regular file inside the roots."""
    path = os.path.join(folder, name)  # noqa: PTH118 -- many
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            target = Path(path).resolve(strict=True)
            if not any(target.is_relative_to(root) for root in roots):
                raise _NoFrameError(
                    f"frame {shorten(name)}: expected a file inside the source, found a symbolic link that leaves it: "
                    "name the folder it leads to with --root DIR"
                )
            found = os.stat(path)
    except (OSError, RuntimeError) as error:
        if may_pass(error):  # the plan depends on what is listed
            raise BuildError(f"{path}: cannot be examined: {error}: run the same command again") from error
        raise _NoFrameError(f"frame {shorten(name)}: expected a file, found {system_reason(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise _NoFrameError(f"frame {shorten(name)}: expected a regular file, found something else")
    return found
