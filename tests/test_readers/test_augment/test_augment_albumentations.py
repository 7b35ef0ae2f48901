"""The adapter for Albumentations pipelines."""

from importlib.metadata import PackageNotFoundError

import albumentations as A  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
from support.faces import face_sample

from readers.augment import Albumentations
from readers.augment.libraries import albumentations as adapter
from readers.seeding import sample_rng
from readers.transforms import is_seeded
from shardspec.errors import MissingDependencyError, UsageError


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


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, r"found none: pip install \"facepack\[augment\]\""),
        ({"albumentations": "2.1.0"}, r"expected Albumentations 2\.0\.0 to 2\.0\.8, found 2\.1\.0"),
        ({"albumentations": "1.4.24"}, "found 1.4.24"),
        (
            {"albumentations": "2.0.14", "albumentationsx": "2.0.14"},
            r"found AlbumentationsX 2\.0\.14, .* AGPL-3\.0 .* pip uninstall albumentationsx",
        ),
    ],
)
def test_other_libraries_and_versions_are_refused(monkeypatch, installed, message):
    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(adapter, "version", version)
    with pytest.raises(MissingDependencyError, match=message):
        Albumentations([A.HorizontalFlip()])
