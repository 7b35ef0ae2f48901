"""The base class of what the functions of `packer` return, for people and for programs."""

from abc import ABC, abstractmethod
from typing import Any


class Result(ABC):
    """What a call has found or made. Its ``repr`` is one line."""

    @abstractmethod
    def describe(self) -> str:
        """The text for people that the command prints."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The JSON that the command prints with ``--json``."""

    def _headline(self) -> str:
        """The content of the ``repr``."""
        return self.describe().partition("\n")[0].rstrip(":")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._headline()}>"
