"""``packer describe``: what a packed dataset's manifest says about it, from its title to its biases."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer.jobs.result import Result
from packer.recipe.checks import checked
from packer.recipe.recipe import as_texts
from packer.workspace.card import CARD_KEPT, is_card_kept
from packer.workspace.describing import change_about
from packer.workspace.folder import output_folder
from shardspec.entries import About
from shardspec.errors import Problems, UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.wording import program


@dataclass(frozen=True, repr=False)
class Description(Result):
    """Entries of a manifest about its dataset.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    manifest : Manifest
    """

    path: Path
    manifest: Manifest

    @property
    def about(self) -> About:
        """Title, description, licences, citations and homepage."""
        return self.manifest.about

    def describe(self) -> str:
        """Describe all entries, a line each; further lines of a text are indented."""
        if not self.about:
            hint = f"{program()} describe {self.path} --title … --license … adds them"
            return f"{self.path}: no title, licence or citation ({hint})"
        kept = [CARD_KEPT] if is_card_kept(Layout(self.path)) else []
        return "\n".join([f"{self.path}: digest {self.manifest.digest}", *describe_about(self.about), *kept])

    def to_json(self) -> dict[str, Any]:
        """Return the path, the dataset's digest, and the entries as JSON."""
        return {"path": str(self.path), "digest": self.manifest.digest, "about": self.about.to_json()}


def describe_about(about: About) -> list[str]:
    """Return a line for each entry of the section. Further lines of a text are indented."""
    entries = [
        (name, text)
        for name, value in about.to_json().items()
        for text in ([value] if isinstance(value, str) else value)
    ]
    return [f"{name}: " + "\n  ".join(text.strip().splitlines()) for name, text in entries]


def describe(
    dataset: str | os.PathLike[str],
    *,
    title: str | None = None,
    description: str | None = None,
    license: str | Sequence[str] | None = None,
    citation: str | Sequence[str] | None = None,
    homepage: str | None = None,
    creator: str | Sequence[str] | None = None,
    limitations: str | None = None,
    biases: str | None = None,
    use_cases: str | None = None,
    social_impact: str | None = None,
    sensitive: str | None = None,
    synthetic: str | None = None,
    derived_from: str | Sequence[str] | None = None,
) -> Description:
    """Return what a dataset's manifest says about it, after changing the entries that are given.

    The manifest is replaced in one step. No other file of the dataset changes but its card, if it has one and nobody has
    edited it. The digest stays, and readers that have the dataset open continue.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    title, description, homepage : str, optional
        New values; ``""`` removes the entry.
    license, citation : str or sequence of str, optional
        New values, in place of all old ones; ``""`` removes them. A licence is an SPDX identifier or the URL of terms,
        and a citation BibTeX or text.
    creator : str or sequence of str, optional
        Who made the dataset: names of people, or ``Organization: NAME``; ``""`` removes them.
    limitations : str, optional
        For responsible AI: where the data must not be used, or are known to fail.
    biases : str, optional
        For responsible AI: what the data show too much or too little of.
    use_cases : str, optional
        For responsible AI: what the data are meant for, and for what that was tested.
    social_impact : str, optional
        For responsible AI: whom the data may help or harm.
    sensitive : str, optional
        For responsible AI: which personal or sensitive information the data contain.
    synthetic : str, optional
        ``yes`` if samples were generated, also in part; ``no`` if none was.
    derived_from : str or sequence of str, optional
        Names or URLs of the datasets that the samples come from, in place of all old ones.

    Returns
    -------
    Description

    Raises
    ------
    UsageError
        If a value is invalid.
    DatasetError
        If the dataset cannot be read.
    BuildLockedError
        If another process is at work in the folder.
    BuildError
        If the manifest cannot be written.
    """
    path, problems = output_folder(dataset, "dataset"), Problems(of_options=True)
    changes: dict[str, Any] = {
        "title": title,
        "description": description,
        "homepage": homepage,
        "limitations": limitations,
        "biases": biases,
        "use_cases": use_cases,
        "social_impact": social_impact,
        "sensitive": sensitive,
        "synthetic": synthetic,
    }
    changes = {name: checked(name, value, str | None) for name, value in changes.items()}
    lists = {"license": license, "citation": citation, "creator": creator, "derived_from": derived_from}
    for name, value in lists.items():
        changes[name] = () if value in ("", [""]) else None if value is None else as_texts(name, value, problems)
    changes = {name: value for name, value in changes.items() if value is not None}
    if not problems:
        About(**changes).check(problems)
    problems.raise_as(UsageError)
    if not changes:
        return Description(path, Layout(path).load())
    return Description(path, change_about(path, lambda about: replace(about, **changes)))
