"""Change what a manifest says about its dataset."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from packer.workspace.durable import write_durably
from packer.workspace.folder import changing
from shardspec.entries import About
from shardspec.layout import Layout
from shardspec.manifest import Manifest


def change_about(path: Path, change: Callable[[About], About]) -> Manifest:
    """Replace the section ``about`` in one step, and return the manifest. No other file is touched.

    Raises
    ------
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the folder cannot be written.
    """
    with changing(path) as (_, manifest):
        changed = replace(manifest, about=change(manifest.about))
        if changed != manifest:
            write_durably(Layout(path).manifest, changed.dumps())
        return changed
