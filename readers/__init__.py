"""Readers of packed datasets for training. Names resolve on first use, so that importing the package loads no torch.

from readers import Loader, open_dataset

dataset = open_dataset("packed/", fields=["image", "label"])
for batch in Loader(dataset, batch_size=256, seed=0):
    batch["image"]  # (256, 3, H, W) uint8, channels_last
"""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

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
    from readers.decode.temporal import Frames, TemporalCrop
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
            "BalancedBatches": ImportTarget("readers.order.grouped:BalancedBatches"),
            "CenterCrop": ImportTarget("readers.decode.crops:CenterCrop", "pack"),
            "ClipDataset": ImportTarget("readers.dataset.clips:ClipDataset", "torch"),
            "Encoded": ImportTarget("readers.decode.plans:Encoded"),
            "Frames": ImportTarget("readers.decode.temporal:Frames", "pack"),
            "HDF5Dataset": ImportTarget("readers.dataset.packed:HDF5Dataset", "torch"),
            "LMDBDataset": ImportTarget("readers.dataset.packed:LMDBDataset", "torch"),
            "Loader": ImportTarget("readers.loader.loader:Loader", "torch"),
            "MixedDataset": ImportTarget("readers.dataset.mixed:MixedDataset", "torch"),
            "NpyDataset": ImportTarget("readers.dataset.packed:NpyDataset", "torch"),
            "PKBatches": ImportTarget("readers.order.grouped:PKBatches"),
            "PackedDataset": ImportTarget("readers.dataset.packed:PackedDataset", "torch"),
            "PairBatches": ImportTarget("readers.order.grouped:PairBatches"),
            "ParquetDataset": ImportTarget("readers.dataset.packed:ParquetDataset", "torch"),
            "RandomResizedCrop": ImportTarget("readers.decode.crops:RandomResizedCrop", "pack"),
            "Resize": ImportTarget("readers.decode.crops:Resize", "pack"),
            "Subset": ImportTarget("readers.dataset.subset:Subset", "torch"),
            "TFRecordDataset": ImportTarget("readers.dataset.packed:TFRecordDataset", "torch"),
            "TemporalCrop": ImportTarget("readers.decode.temporal:TemporalCrop", "pack"),
            "WebDatasetDataset": ImportTarget("readers.dataset.packed:WebDatasetDataset", "torch"),
            "Whole": ImportTarget("readers.decode.plans:Whole"),
            "class_balanced_weights": ImportTarget("readers.order.sampler:class_balanced_weights", "torch"),
            "diagnose": ImportTarget("readers.loader.diagnosis:diagnose", "torch"),
            "open_dataset": ImportTarget("readers.dataset.packed:open_dataset", "torch"),
            "sample_rng": ImportTarget("readers.seeding:sample_rng"),
            "show": ImportTarget("readers.drawing.show:show"),
        },
    )

__all__ = [
    "BalancedBatches",
    "CenterCrop",
    "ClipDataset",
    "Encoded",
    "Frames",
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
    "TemporalCrop",
    "WebDatasetDataset",
    "Whole",
    "class_balanced_weights",
    "diagnose",
    "open_dataset",
    "sample_rng",
    "show",
]
