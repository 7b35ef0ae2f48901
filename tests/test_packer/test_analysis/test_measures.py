"""The built-in functions of ``packer compute``."""

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from support.command import run_packer
from support.errors import raises
from support.media import photograph, write_image

import packer
from packer.analysis.measures.digest import Digest
from packer.analysis.measures.face import MODEL, Face, pose_of, share_outside
from packer.analysis.measures.hash import PerceptualHash
from packer.analysis.measures.quality import Quality
from packer.vision.geometry.align import warp
from readers import open_dataset
from readers.augment import Normalize
from shardspec.errors import UsageError

ASTRONAUT = np.array([[205.0, 101.7], [246.8, 103.7], [224.7, 129.0], [201.7, 139.2], [245.3, 141.9]])
"""Eyes, nose and corners of the mouth in the photograph."""
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")


def batch(*images: Any) -> Any:
    """Images as a batch of the `Loader`: one tensor in channels_last memory, or a list if the sizes differ."""
    tensors = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images]
    return torch.stack(tensors) if len({one.shape for one in tensors}) == 1 else tensors


def recompressed(image: Any, quality: int = 30) -> Any:
    """The image after JPEG."""
    file = BytesIO()
    Image.fromarray(image).save(file, "jpeg", quality=quality)
    return np.asarray(Image.open(file))


def test_sharpness_falls_with_blur_and_compares_between_sizes() -> None:
    photo = photograph("astronaut")
    blurred = [cv2.GaussianBlur(photo, (0, 0), sigma) for sigma in (2, 4, 8)]
    half = cv2.resize(photo, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    sharp, *less, of_half = Quality()(batch(photo, *blurred, half))["sharpness"]
    assert sharp > less[0] > less[1] > less[2] > 0
    assert of_half == pytest.approx(sharp, rel=0.01)


def test_quality_of_known_images() -> None:
    grey = np.full((8, 8, 3), 100, np.uint8)
    halves = np.zeros((8, 8, 3), np.uint8)
    halves[:, 4:] = 255
    found = Quality()(batch(grey, halves))
    assert found["brightness"].tolist() == [100, 127.5]
    assert found["contrast"].tolist() == [0, 127.5]
    assert found["clipped"].tolist() == [0, 1]
    assert found["sharpness"][0] == 0
    assert found["colourfulness"].tolist() == [0, 0]


def test_colourfulness_is_that_of_the_paper() -> None:
    photo = photograph("coffee")
    red, green, blue = np.moveaxis(photo.astype(np.float64), 2, 0)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    expected = np.hypot(red_green.std(), yellow_blue.std()) + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean())
    assert Quality()(batch(photo))["colourfulness"][0] == pytest.approx(expected, rel=1e-5)


def test_hashes_of_copies_are_near_and_those_of_others_far() -> None:
    photos = [photograph(name) for name in PHOTOGRAPHS]
    height, width = photos[0].shape[:2]
    copies = [
        recompressed(photos[0]),
        cv2.resize(photos[0], None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
        cv2.convertScaleAbs(photos[0], alpha=1, beta=-40),
        photos[0][height // 20 : -height // 20, width // 20 : -width // 20],
    ]
    found = PerceptualHash()(batch(*photos, *copies))["hash"].data

    def bits(one: Any, other: Any) -> int:
        return int(np.bitwise_count(one[:, None] ^ other[None]).min())

    assert all(bits(found[0], copy) <= 8 for copy in found[4:])
    assert all(bits(found[0], other) >= 16 for other in found[1:4])


def test_an_image_without_structure_has_no_hash() -> None:
    noise = np.random.default_rng(0).integers(100, 104, (64, 64, 3), np.uint8)
    assert PerceptualHash()(batch(noise, photograph("rocket")[:64, :64]))["hash"].mask[:, 0].tolist() == [True, False]


def test_a_digest_is_that_of_size_and_pixels() -> None:
    photo = photograph("chelsea")
    expected = hashlib.sha256(np.array(photo.shape[:2], "<i4").tobytes() + photo.tobytes()).digest()
    turned = np.ascontiguousarray(photo.reshape(photo.shape[1], photo.shape[0], 3))
    found = Digest()(batch(photo, photo, turned))["digest"]
    assert found[0].tobytes() == found[1].tobytes() == expected
    assert found[2].tobytes() != expected


def turned(yaw: float, pitch: float, roll: float) -> Any:
    """Five points of the mean face, turned by degrees."""
    b, a, c = np.radians([-yaw, -pitch, roll])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return (MODEL @ (about_z @ about_x @ about_y).T)[:, :2] * 50 + 100


def test_pose_of_synthetic_rotations() -> None:
    rng = np.random.default_rng(1)
    for angles in rng.uniform((-80, -50, -170), (80, 50, 170), (50, 3)):
        assert pose_of(turned(*angles)) == pytest.approx(angles, abs=1e-4)


def test_signs_of_the_angles_are_those_of_the_image() -> None:
    """A face that turns to the right of the image has its nose nearer to its eye there; one that looks up, higher."""
    straight, right, up = turned(0, 0, 0), turned(30, 0, 0), turned(0, 20, 0)
    assert right[2, 0] - right[:2, 0].mean() > 5
    assert up[2, 1] - up[:2, 1].mean() < straight[2, 1] - straight[:2, 1].mean()
    clockwise = turned(0, 0, 20)
    assert clockwise[1, 1] > clockwise[0, 1]


def test_a_face_is_measured_in_pixels_of_its_source() -> None:
    points = torch.from_numpy(np.stack([turned(0, 0, 0)] * 3)).float()
    matrix = torch.tensor([[0.5, 0, 3], [0, 0.5, -4]]).repeat(3, 1, 1)
    valid = torch.tensor([True, False, True])
    image = torch.full((3, 3, 64, 64), 200, dtype=torch.uint8)
    found = Face()(image, points, valid, matrix)
    assert found["eye_distance"].tolist() == pytest.approx([100, None, 100])
    assert found["yaw"].mask.tolist() == [False, True, False]
    assert "outside" not in Face()(image, points, valid)


@pytest.mark.parametrize("angle", [0, 20])
def test_the_share_outside_of_the_frame(angle: float) -> None:
    photo = np.clip(photograph("chelsea"), 40, 255)
    height, width = photo.shape[:2]
    for centre in ((width / 2, height / 2), (0, 0), (width, height), (width - 60, 90)):
        matrix = cv2.getRotationMatrix2D(centre, angle, 0.8)
        matrix[:, 2] += 64 - np.array(centre)
        crop = recompressed(warp(photo, matrix, 128), 90)
        y, x = np.mgrid[:128, :128] + 0.5
        frame = np.linalg.inv(np.vstack([matrix, [0, 0, 1]])) @ np.stack([x.ravel(), y.ravel(), np.ones(128 * 128)])
        inside = (frame[:2] >= 0).all(0) & (frame[0] <= width) & (frame[1] <= height)
        assert share_outside(crop, matrix) == pytest.approx(1 - inside.mean(), abs=0.02)


def test_embeddings_of_one_face_are_near_and_those_of_no_face_far() -> None:
    pytest.importorskip("dlib")
    from packer.analysis.measures.identity import WITHIN, Identity

    photo = photograph("astronaut")
    copies = [photo, recompressed(photo), cv2.convertScaleAbs(photo, beta=-40), photograph("chelsea")[:300, :400]]
    turn = cv2.getRotationMatrix2D((220, 110), 25, 0.6)
    copies.append(cv2.warpAffine(photo, turn, (512, 512)))
    points = np.array([ASTRONAUT] * len(copies))
    points[-1] = ASTRONAUT @ turn[:, :2].T + turn[:, 2]
    valid = torch.tensor([True] * len(copies) + [False])
    points = np.concatenate([points, points[:1]])
    found = Identity()(batch(*copies, photo), torch.from_numpy(points), valid)["identity"]
    unit = found.data[:-1] / np.linalg.norm(found.data[:-1], axis=1, keepdims=True)
    near = 1 - unit @ unit[0]
    assert found.mask.any(axis=1).tolist() == [False] * len(copies) + [True]
    assert near[[1, 2, 4]].max() < WITHIN < near[3]


def test_tracks_are_embedded_by_the_faces_whose_eyes_are_farthest_apart() -> None:
    pytest.importorskip("dlib")
    from packer.analysis.measures.identity import Identity

    small, turned_away, missing = ASTRONAUT / 2, ASTRONAUT * (0.3, 1), ASTRONAUT * np.nan
    assert np.argsort(-Identity.rank(np.stack([missing, small, ASTRONAUT, turned_away]))).tolist() == [2, 1, 3, 0]


def test_statistics_are_those_of_all_pixels(tmp_path: Path) -> None:
    photos = [photograph(name) for name in PHOTOGRAPHS]
    for number, photo in enumerate(photos):
        write_image(tmp_path / f"in/{number}.png", photo)
    packer.build(tmp_path / "in", tmp_path / "out", encode="png", engine="inline", progress=False)
    found = json.loads(run_packer("inspect", tmp_path / "out", "--statistics", "--json", "--quiet").stdout)
    pixels = np.concatenate([photo.reshape(-1, 3) for photo in photos]) / 255
    np.testing.assert_allclose(found["mean"], pixels.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found["std"], pixels.std(0), rtol=1e-9)
    dataset = open_dataset(tmp_path / "out")
    assert Normalize(stats=dataset).mean == tuple(found["mean"])
    one = Normalize(stats=dataset.subset([2]))
    np.testing.assert_allclose(one.std, (photos[2].reshape(-1, 3) / 255).std(0), rtol=1e-9)
    packer.drop_field(tmp_path / "out", "pixel_statistics", progress=False)
    with raises(UsageError, option="stats"):
        Normalize(stats=open_dataset(tmp_path / "out"))
