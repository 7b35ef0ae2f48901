"""The data module for Lightning. Its name resolves on first use, so that importing the package loads no Lightning."""

from typing import TYPE_CHECKING, Any

from shardspec.registry import Entry, resolve

if TYPE_CHECKING:
    from readers.lightning.module import PackedDataModule

_NAMES = {"PackedDataModule": Entry("readers.lightning.module:PackedDataModule", "lightning")}

__all__ = ["PackedDataModule"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = resolve("name", name, _NAMES)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
