"""What a notebook shows of datasets, samplers and loaders: what, how many, and from where."""

from readers import Loader, MixedDataset, open_dataset


def test_reprs(raw_path, face_path):
    dataset = open_dataset(raw_path)
    fields = f"NpyDataset({str(raw_path)!r}): 60 samples (key, image, label, landmarks), npy, 4 shards"
    assert repr(dataset) == fields
    assert repr(dataset.subset(range(9))) == f"Subset: 9 samples of {fields}"
    labels = open_dataset(raw_path, fields=["label"])
    assert repr(labels) == f"NpyDataset({str(raw_path)!r}): 60 samples (label), npy, 4 shards"
    mixed = MixedDataset([dataset, dataset.subset([0])], weights=[3, 1], length=8)
    assert repr(mixed) == f"MixedDataset: epochs of 8 samples, 6 from {fields}; 2 from Subset: 1 samples of {fields}"
    faces = open_dataset(face_path)
    clips = faces.clips(2, by=None)
    assert repr(clips) == f"ClipDataset: 0 clips of 2 samples each, none from 40 of 40 videos, from {faces!r}"
    sampler = dataset.sampler(seed=3, rank=1, world_size=2)
    assert repr(sampler) == "RankSampler: 30 samples an epoch, order 'full', seed 3, rank 1 of 2"


def test_a_loader_is_shown_without_reading(raw_path):
    def never(sample):
        raise AssertionError

    dataset = open_dataset(raw_path, transform=never).subset(range(20))
    shown = repr(Loader(dataset, 8, workers=1, device="cpu"))
    expected = "Loader: 3 batches of 8 an epoch, order 'auto', seed 0, rank 0 of 1, 1 thread, to cpu, from Subset: 20 "
    assert shown.startswith(expected)
