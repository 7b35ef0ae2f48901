"""Options of a build that do not affect the bytes of the samples."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from packer.recipe.checks import documented, option
from packer.recipe.engines import ENGINES, MOST_WORKERS, check_workers
from packer.recipe.recipe import Recipe, settle
from shardspec.entries import About
from shardspec.errors import Problems, UsageError
from shardspec.stores import check_sendable, names_store
from shardspec.wording import shorten

_SETTINGS = "FACEPACK_SOURCE_OPTIONS"
"""Environment variable with settings for the stores of sources, which workers inherit as they do those of AWS."""


def parse_share(text: str | float) -> float:
    """Parse a share such as ``0.05`` or ``"5%"``. The text ``"1"`` is ambiguous (1% or 100%) and refused."""
    if text == "1":
        raise UsageError(
            option="max_rejects", expected="a share such as 5% or 0.05", found="'1'", hint="write 1% or 100%"
        )
    try:
        value = float(str(text).removesuffix("%")) / (100 if str(text).endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        meant = f": write {value:g}% if percent is meant" if 1 < value <= 100 and not str(text).endswith("%") else ""
        raise UsageError(option="max_rejects", expected="a share such as 5% or 0.05", found=f"{shorten(text)}{meant}")
    return value


def _able(what: str) -> str:
    return " or ".join(name for name, engine in ENGINES.items() if getattr(engine, what))


@documented
@dataclass(frozen=True)
class BuildOptions:
    """Options of ``packer build`` that affect how a build runs and what the manifest says about the dataset.

    Raises
    ------
    UsageError
        If a value is invalid.
    """

    workers: str | int = option(
        "auto",
        "number of worker processes; 'auto' depends on the usable cores and memory",
        metavar="N",
        own_check=True,
    )
    engine: str = option(
        "processes",
        "run the work in this process (inline), in worker processes, or on all nodes of a Ray cluster (ray)",
        choices=tuple(ENGINES),
    )
    workers_per_node: int | None = option(
        None,
        "ray: workers per node (default: as cores, memory and, with --device cuda, GPUs allow)",
        metavar="N",
        minimum=1,
        maximum=MOST_WORKERS,
    )
    ray_address: str | None = option(None, "ray: address of the cluster (default: chosen by Ray)", metavar="ADDRESS")
    ray_gpus: float = option(
        1.0,
        "ray: GPUs for the workers that share a detector with --device cuda; less than 1 shares a GPU",
        metavar="N",
        own_check=True,
    )
    shared_detector: bool | None = option(
        None,
        "faces: run the detector in one extra process for all workers (default: for any --device but cpu)",
    )
    item_timeout: float = option(1800.0, "time limit for one item in seconds", metavar="S", own_check=True)
    on_error: str = option(
        "skip",
        "skip and list an item that yields no sample, or fail the build",
        choices=("skip", "fail"),
    )
    max_rejects: float = option(
        0.05, "exit with status 3 if a larger share of the items is rejected", metavar="SHARE", parse=parse_share
    )
    overwrite: bool = option(False, "replace the packed dataset or unfinished build in the output folder")
    work: str | None = option(
        None,
        "if OUT is a URL: local folder, or URL, for the unfinished build, which is removed at the end; needs room for all "
        "encoded samples (default: NAME.work in the current folder, where NAME is the end of the URL; with engine ray, "
        "--update or --retry-rejects OUT/.build/work)",
        metavar="PLACE",
        path=True,
        url=True,
    )
    update: bool = option(False, "add the items of the source that the packed dataset in the output folder lacks")
    changed: str = option(
        "keep",
        "with --update: keep the samples of items whose files have changed, or replace them",
        choices=("keep", "replace"),
    )
    gone: str = option(
        "keep",
        "with --update: keep the samples of items that the source no longer has, or drop them",
        choices=("keep", "drop"),
    )
    new_classes: bool = option(False, "with --update: append new classes to those of the dataset")
    retry_rejects: bool | str = option(
        False,
        "process rejected items of the packed dataset in the output folder again, all or those whose step or reason "
        "contains REASON; --min-score, --min-face and --item-timeout may change",
        metavar="REASON",
        optional=True,
    )
    title: str | None = option(None, "title of the dataset", metavar="TEXT")
    description: str | None = option(None, "what the dataset holds, in a few sentences", metavar="TEXT")
    license: tuple[str, ...] = option(
        (), "SPDX identifier of the dataset's licence, such as CC-BY-4.0, or the URL of its terms (repeatable)"
    )
    citation: tuple[str, ...] = option(
        (), "BibTeX entry, or text, by which to cite the dataset (repeatable)", metavar="TEXT"
    )
    homepage: str | None = option(None, "URL of the dataset's page", metavar="URL")

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_rejects", parse_share(self.max_rejects))
        problems = Problems(of_options=True)
        settle(self, problems)
        if not problems:
            About(**self.about).check(problems)
        problems.raise_as(UsageError)
        self._check_growing()
        self._check_workers()

    def _check_growing(self) -> None:
        """Check the options for an existing dataset in the output folder."""
        if self.retry_rejects == "":
            raise UsageError(option="retry_rejects", expected="true, false, or a part of a reason", found="''")
        if self.overwrite and self.grows:
            raise UsageError(option="overwrite", expected="either this or update and retry_rejects", found="both")
        if self.new_classes and not self.grows:
            raise UsageError("read only with update or retry_rejects, found neither", option="new_classes")
        for name in ("changed", "gone"):
            value = getattr(self, name)
            if value != "keep" and not self.update:
                raise UsageError(f"read only with `update`, found {shorten(value)} without it", option=name)

    def _check_workers(self) -> None:
        """Check the options for workers against the abilities of the engine."""
        check_workers(self.workers)
        timeout = self.item_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise UsageError(option="item_timeout", expected="more than 0 seconds", found=shorten(timeout))
        can = ENGINES[self.engine]
        if self.shared_detector and not can.shares_detector:
            raise UsageError(
                option="shared_detector",
                expected=f"the {_able('shares_detector')} engine",
                found=f"{self.engine}, which detects by itself",
            )
        if not can.many_workers and str(self.workers) not in ("auto", "1"):
            raise UsageError(option="workers", expected=f"auto or 1 with engine {self.engine}", found=self.workers)
        if not can.limits_items and timeout != BuildOptions.item_timeout:
            raise UsageError(
                f"read only by the {_able('limits_items')} engine, found engine {self.engine}", option="item_timeout"
            )
        if self.workers_per_node is not None and not can.many_hosts:
            raise UsageError(
                f"read only by the {_able('many_hosts')} engine, found engine {self.engine}",
                option="workers_per_node",
                hint="take --workers",
            )
        for name in ("ray_address", "ray_gpus"):
            if self.engine != "ray" and getattr(self, name) != getattr(BuildOptions, name):
                raise UsageError(f"read only by the ray engine, found engine {self.engine}", option=name)
        gpus = self.ray_gpus
        if isinstance(gpus, bool) or not isinstance(gpus, int | float) or not (0 < gpus < 1 or gpus == 1):
            raise UsageError(option="ray_gpus", expected="more than 0, at most 1", found=shorten(gpus))
        can.check_usable(self.engine)

    @property
    def about(self) -> Mapping[str, Any]:
        """The entries of the manifest's section ``about`` that were given."""
        values = {spec.name: getattr(self, spec.name, None) for spec in fields(About)}
        return {name: value for name, value in values.items() if value not in (None, ())}

    @property
    def grows(self) -> bool:
        """True if the build adds to a dataset in the output folder."""
        return self.update or self.retry_rejects is not False


BUILD_OPTION_NAMES = frozenset(spec.name for spec in fields(BuildOptions))

OPTION_NAMES = tuple(spec.name for kind in (Recipe, BuildOptions) for spec in fields(kind))
"""Options of a build, as keyword arguments, on the command line and in a recipe file."""


@contextmanager
def share_settings(options: Mapping[str, Any] | None, out: str | os.PathLike[str]) -> Iterator[None]:
    """Use settings for the stores of sources while the block runs, also in workers that it starts.

    Parameters
    ----------
    options : mapping, optional
        See `Store`.
    out : path or URL
        The output. If it is in a store, only sources in a store of that kind take all of the settings.
    """
    scheme = urlsplit(str(out)).scheme if names_store(out) else ""
    before = os.environ.get(_SETTINGS)
    try:
        os.environ[_SETTINGS] = json.dumps([scheme, dict(check_sendable(options or {}))])
    except UsageError:  # they may be those of the output only
        os.environ[_SETTINGS] = ""
    try:
        yield
    finally:
        os.environ.pop(_SETTINGS, None)
        if before is not None:
            os.environ[_SETTINGS] = before


def read_shared_settings() -> tuple[str, dict[str, Any]]:
    """Return the scheme of the output, or an empty text, and the settings that `share_settings` shares.

    Raises
    ------
    UsageError
        If the settings cannot be sent to workers.
    """
    text = os.environ.get(_SETTINGS, '["", {}]')
    if not text:
        raise UsageError(
            option="storage_options",
            expected="text, numbers, booleans, and dicts and lists of them, which workers can read",
            found="a function or another object",
            hint="use keys, or a profile with `credential_process`",
        )
    scheme, options = json.loads(text)
    return scheme, options
