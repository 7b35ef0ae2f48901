"""Readers of packed datasets for training. Names resolve on first use, so that importing the package loads no torch.

from readers import Loader, open_dataset

dataset = open_dataset("packed/", fields=["image", "label"])
for batch in Loader(dataset, batch_size=256, seed=0):
    batch["image"]  # (256, 3, H, W) uint8, channels_last
"""

from typing import TYPE_CHECKING, Any

from shardspec.registry import Entry, resolve

if TYPE_CHECKING:
    from readers.clips import ClipDataset
    from readers.crops import CenterCrop, RandomResizedCrop, Resize
    from readers.datasets import (
        HDF5Dataset,
        LMDBDataset,
        NpyDataset,
        PackedDataset,
        ParquetDataset,
        TFRecordDataset,
        open_dataset,
    )
    from readers.diagnosis import diagnose
    from readers.loader import Loader
    from readers.mixed import MixedDataset
    from readers.plans import Whole
    from readers.sampler import class_balanced_weights
    from readers.seeding import sample_rng
    from readers.subset import Subset

_NAMES = {
    "CenterCrop": Entry("readers.crops:CenterCrop", "pack"),
    "ClipDataset": Entry("readers.clips:ClipDataset", "torch"),
    "HDF5Dataset": Entry("readers.datasets:HDF5Dataset", "torch"),
    "LMDBDataset": Entry("readers.datasets:LMDBDataset", "torch"),
    "Loader": Entry("readers.loader:Loader", "torch"),
    "MixedDataset": Entry("readers.mixed:MixedDataset", "torch"),
    "NpyDataset": Entry("readers.datasets:NpyDataset", "torch"),
    "PackedDataset": Entry("readers.datasets:PackedDataset", "torch"),
    "ParquetDataset": Entry("readers.datasets:ParquetDataset", "torch"),
    "RandomResizedCrop": Entry("readers.crops:RandomResizedCrop", "pack"),
    "Resize": Entry("readers.crops:Resize", "pack"),
    "Subset": Entry("readers.subset:Subset", "torch"),
    "TFRecordDataset": Entry("readers.datasets:TFRecordDataset", "torch"),
    "Whole": Entry("readers.plans:Whole"),
    "class_balanced_weights": Entry("readers.sampler:class_balanced_weights", "torch"),
    "diagnose": Entry("readers.diagnosis:diagnose", "torch"),
    "open_dataset": Entry("readers.datasets:open_dataset", "torch"),
    "sample_rng": Entry("readers.seeding:sample_rng"),
}

__all__ = [
    "CenterCrop",
    "ClipDataset",
    "HDF5Dataset",
    "LMDBDataset",
    "Loader",
    "MixedDataset",
    "NpyDataset",
    "PackedDataset",
    "ParquetDataset",
    "RandomResizedCrop",
    "Resize",
    "Subset",
    "TFRecordDataset",
    "Whole",
    "class_balanced_weights",
    "diagnose",
    "open_dataset",
    "sample_rng",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = resolve("name", name, _NAMES)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
