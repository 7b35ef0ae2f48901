"""The adapter for Albumentations pipelines."""

from importlib.metadata import PackageNotFoundError

import albumentations as A  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.faces import assert_same, face_sample, in_frame

from readers.augment import Albumentations
from readers.augment.libraries import albumentations as adapter
from readers.seeding import sample_rng
from readers.transforms import is_seeded
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.points import LAYOUTS, REGION_FLIP, flip_permutation, hull_flip_permutation

EVERY = pytest.mark.parametrize("layout", list(LAYOUTS))

AFFINE = st.lists(
    st.sampled_from(
        [
            A.HorizontalFlip(),
            A.VerticalFlip(),
            A.Transpose(),
            A.RandomRotate90(),
            A.Rotate((-40, 40)),
            A.Affine(scale=(0.8, 1.2), translate_percent=(-0.1, 0.1), shear=(-10, 10), p=0.9),
            A.RandomCrop(120, 100, pad_if_needed=True),
            A.CenterCrop(150, 150, pad_if_needed=True),
            A.PadIfNeeded(300, 280),
            A.D4(),
            A.GaussianBlur(),
            A.CoarseDropout(),
            A.OneOf([A.HorizontalFlip(p=1), A.RandomBrightnessContrast(p=1)]),
        ]
    ),
    min_size=1,
    max_size=4,
    unique_by=id,
)


@EVERY
@given(transforms=AFFINE, seed=st.integers(0, 2**30))
def test_everything_moves_together(layout, transforms, seed):
    """Any affine pipeline keeps shapes, the matrix maps back, and left and right are swapped exactly if it mirrors."""
    sample = face_sample(layout)
    transform = Albumentations(transforms)
    found = transform(sample, sample_rng(seed, 0, 0))
    for name in ("landmarks", "hull", "regions", "matrix"):
        assert found[name].shape == sample[name].shape, name
        assert found[name].dtype == sample[name].dtype, name
    mirrored = np.linalg.det(found["matrix"][:, :2].astype(float)) < 0
    order = flip_permutation(layout) if mirrored else np.arange(LAYOUTS[layout].count)
    hull_order = hull_flip_permutation(layout) if mirrored else np.arange(len(sample["hull"]))
    np.testing.assert_allclose(
        in_frame(found, found["landmarks"])[order], in_frame(sample, sample["landmarks"]), atol=0.01
    )
    np.testing.assert_allclose(in_frame(found, found["hull"])[hull_order], in_frame(sample, sample["hull"]), atol=0.01)
    rows = REGION_FLIP if mirrored else np.arange(4)
    left, top, right, bottom = sample["regions"][rows].T.astype(np.float64)
    for x, y in ((left, top), (right, top), (left, bottom), (right, bottom)):
        corner = (
            in_frame(sample, np.stack([x, y], 1)) @ found["matrix"][:, :2].T.astype(np.float64) + found["matrix"][:, 2]
        )
        assert (corner >= found["regions"][:, :2] - 0.02).all()
        assert (corner <= found["regions"][:, 2:] + 0.02).all()
    assert found["image"].shape[:2] == found["mask"].shape
    assert_same(Albumentations(transforms)(sample, sample_rng(seed, 0, 0)), found)


def test_transforms_of_one_pipeline_draw_apart():
    """With Compose.set_random_seed every transform would start at the same number: both flips or none."""
    transform = Albumentations([A.HorizontalFlip(), A.VerticalFlip()])
    sample = face_sample()
    found = set()
    for row in range(40):
        matrix = transform(sample, sample_rng(0, 0, row))["matrix"]
        found.add((bool(matrix[0, 0] < 0), bool(matrix[1, 1] < 0)))
    assert len(found) == 4


def test_points_that_a_transform_drops_are_an_error():
    class Forgetful(A.HorizontalFlip):
        def apply_to_keypoints(self, keypoints, **params):
            return keypoints[:-1]

    with pytest.raises(
        UsageError,
        match=r"expected 75 points back from \['Forgetful'\], found 74: .* drops .* keypoint_remapping_method='direct'",
    ):
        Albumentations([Forgetful(p=1)])(face_sample(), sample_rng(0, 0, 0))


def test_compose_gives_its_transforms_and_its_probability():
    never = Albumentations(A.Compose([A.InvertImg(p=1)], p=0))
    assert is_seeded(never)
    assert np.array_equal(never(face_sample(), sample_rng(0, 0, 0))["image"], face_sample()["image"])
    assert repr(never) == "Albumentations(['InvertImg'])"


def test_albumentationsx_is_named(monkeypatch):
    monkeypatch.setattr(adapter, "version", {"albumentationsx": "2.0.14", "albumentations": "2.0.14"}.__getitem__)
    with pytest.raises(
        MissingDependencyError, match=r"found AlbumentationsX 2\.0\.14, .* AGPL-3\.0 .* pip uninstall albumentationsx"
    ):
        Albumentations([A.HorizontalFlip()])


@pytest.mark.parametrize(
    ("found", "message"),
    [("2.1.0", r"expected Albumentations 2\.0\.0 to 2\.0\.8, found 2\.1\.0"), ("1.4.24", "found 1.4.24")],
)
def test_other_versions_are_refused(monkeypatch, found, message):
    def version(name):
        if name == "albumentations":
            return found
        raise PackageNotFoundError(name)

    monkeypatch.setattr(adapter, "version", version)
    with pytest.raises(MissingDependencyError, match=message):
        adapter.load_albumentations()


def test_a_missing_library_is_named(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(adapter, "version", version)
    with pytest.raises(MissingDependencyError, match=r"found none: pip install \"facepack\[augment\]\""):
        adapter.load_albumentations()
