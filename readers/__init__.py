"""Readers of packed datasets for training. Names resolve on first use, so that importing the package loads no torch.

from readers import Loader, open_dataset

dataset = open_dataset("packed/", fields=["image", "label"])
for batch in Loader(dataset, batch_size=256, seed=0):
    batch["image"]  # (256, 3, H, W) uint8, channels_last
"""

from typing import TYPE_CHECKING

from shardspec.registry import Entry, lazy_names

__version__: str

if TYPE_CHECKING:
    from readers.dataset.clips import ClipDataset
    from readers.dataset.mixed import MixedDataset
    from readers.dataset.packed import (
        HDF5Dataset,
        LMDBDataset,
        NpyDataset,
        PackedDataset,
        ParquetDataset,
        TFRecordDataset,
        WebDatasetDataset,
        open_dataset,
    )
    from readers.dataset.subset import Subset
    from readers.decode.crops import CenterCrop, RandomResizedCrop, Resize
    from readers.decode.plans import Encoded, Whole
    from readers.drawing.show import show
    from readers.loader.diagnosis import diagnose
    from readers.loader.loader import Loader
    from readers.order.grouped import BalancedBatches, PairBatches, PKBatches
    from readers.order.sampler import class_balanced_weights
    from readers.seeding import sample_rng
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BalancedBatches": Entry("readers.order.grouped:BalancedBatches"),
            "CenterCrop": Entry("readers.decode.crops:CenterCrop", "pack"),
            "ClipDataset": Entry("readers.dataset.clips:ClipDataset", "torch"),
            "Encoded": Entry("readers.decode.plans:Encoded"),
            "HDF5Dataset": Entry("readers.dataset.packed:HDF5Dataset", "torch"),
            "LMDBDataset": Entry("readers.dataset.packed:LMDBDataset", "torch"),
            "Loader": Entry("readers.loader.loader:Loader", "torch"),
            "MixedDataset": Entry("readers.dataset.mixed:MixedDataset", "torch"),
            "NpyDataset": Entry("readers.dataset.packed:NpyDataset", "torch"),
            "PKBatches": Entry("readers.order.grouped:PKBatches"),
            "PackedDataset": Entry("readers.dataset.packed:PackedDataset", "torch"),
            "PairBatches": Entry("readers.order.grouped:PairBatches"),
            "ParquetDataset": Entry("readers.dataset.packed:ParquetDataset", "torch"),
            "RandomResizedCrop": Entry("readers.decode.crops:RandomResizedCrop", "pack"),
            "Resize": Entry("readers.decode.crops:Resize", "pack"),
            "Subset": Entry("readers.dataset.subset:Subset", "torch"),
            "TFRecordDataset": Entry("readers.dataset.packed:TFRecordDataset", "torch"),
            "WebDatasetDataset": Entry("readers.dataset.packed:WebDatasetDataset", "torch"),
            "Whole": Entry("readers.decode.plans:Whole"),
            "class_balanced_weights": Entry("readers.order.sampler:class_balanced_weights", "torch"),
            "diagnose": Entry("readers.loader.diagnosis:diagnose", "torch"),
            "open_dataset": Entry("readers.dataset.packed:open_dataset", "torch"),
            "sample_rng": Entry("readers.seeding:sample_rng"),
            "show": Entry("readers.drawing.show:show", "pack"),
        },
    )

__all__ = [
    "BalancedBatches",
    "CenterCrop",
    "ClipDataset",
    "Encoded",
    "HDF5Dataset",
    "LMDBDataset",
    "Loader",
    "MixedDataset",
    "NpyDataset",
    "PKBatches",
    "PackedDataset",
    "PairBatches",
    "ParquetDataset",
    "RandomResizedCrop",
    "Resize",
    "Subset",
    "TFRecordDataset",
    "WebDatasetDataset",
    "Whole",
    "class_balanced_weights",
    "diagnose",
    "open_dataset",
    "sample_rng",
    "show",
]
