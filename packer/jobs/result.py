"""Results of the functions of `packer`: the base class, and the result of a job."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardspec.manifest import Manifest
from shardspec.wording import counted


class Result(ABC):
    """Result of a call. Its ``repr`` is one line."""

    @abstractmethod
    def describe(self) -> str:
        """Return the text that the command prints."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the JSON that the command prints with ``--json``."""

    def _headline(self) -> str:
        return self.describe().partition("\n")[0].rstrip(":")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._headline()}>"


@dataclass(frozen=True, repr=False)
class JobResult(Result):
    """The dataset that a job made.

    Attributes
    ----------
    path : Path or str
        The dataset's folder, or its URL.
    manifest : Manifest
    resumed : bool
        Whether an earlier call had done some of the work.
    found_finished : bool
        Whether an earlier call had done all of the work, so that this one did nothing.
    """

    path: Path | str
    manifest: Manifest
    resumed: bool
    found_finished: bool = False

    def describe(self) -> str:
        """Describe the dataset in one line, and whether the job was finished already."""
        done = f"finished already, {self._done_again()}: " if self.found_finished else ""
        return f"{self.path}: {done}{self._contents()}"

    def _done_again(self) -> str:
        """Describe what the call did to a dataset that an earlier call had finished."""
        return "nothing was done"

    def to_json(self) -> dict[str, Any]:
        """Return the dataset's folder, digest and counts, and `found_finished`, as JSON."""
        manifest = self.manifest
        facts = {"out": str(self.path), "digest": manifest.digest, "samples": manifest.samples, **self._facts()}
        return {**facts, "shards": len(manifest.shards), "found_finished": self.found_finished}

    def _facts(self) -> dict[str, Any]:
        """Return further facts of this kind of job, as JSON."""
        return {}

    def _headline(self) -> str:
        return f"{self.path}: {self._contents()}"

    def _contents(self) -> str:
        shards, size = self.manifest.shards, sum(shard.bytes for shard in self.manifest.shards)
        cut = counted(len(shards), f"{self.manifest.format} shard")
        return f"{counted(self.manifest.samples, 'sample')} in {cut} ({size / 1e6:.1f} MB)"
