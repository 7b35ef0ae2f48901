"""Change what a manifest says about its dataset."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from packer.workspace.card import refresh_card
from packer.workspace.durable import write_durably
from packer.workspace.folder import changing
from shardspec.entries import About
from shardspec.layout import Layout
from shardspec.manifest import Manifest


def change_about(path: Path, change: Callable[[About], About]) -> Manifest:
    """Replace the section ``about`` in one step, then the card if the dataset has one, and return the manifest.

    If the process is killed between them, the same call writes the card. An edited card stays as it is.

    Raises
    ------
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the folder cannot be written.
    """
    with changing(path) as (_, manifest):
        layout = Layout(path)
        changed = replace(manifest, about=change(manifest.about))
        if changed != manifest:
            write_durably(layout.manifest, changed.dumps())
        refresh_card(layout, changed)
        return changed
