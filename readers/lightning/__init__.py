"""The data module for Lightning. Its name resolves on first use, so importing the package does not load Lightning."""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

if TYPE_CHECKING:
    from readers.lightning.module import PackedDataModule
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"PackedDataModule": ImportTarget("readers.lightning.module:PackedDataModule", "lightning")}
    )

__all__ = ["PackedDataModule"]
