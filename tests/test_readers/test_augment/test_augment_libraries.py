"""The adapters for torchvision and Albumentations: all of a sample moves together, and every draw is seeded."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import albumentations as A  # noqa: N812 -- as its own documentation does
import kornia.augmentation as K  # noqa: N812 -- as its own documentation does
import numpy as np
import pytest
import torch
from support.errors import raises
from support.faces import assert_same, face_sample
from torchvision import transforms as v1
from torchvision.transforms import v2

from readers import Loader, open_dataset
from readers.augment import (
    Albumentations,
    BatchCompose,
    Compose,
    HorizontalFlip,
    Normalize,
    OneOf,
    Torchvision,
    VerticalFlip,
)
from readers.decode.values import BFLOAT16
from readers.seeding import sample_rng
from readers.transforms import is_seeded
from shardspec.errors import UsageError
from shardspec.points import REGION_FLIP, flip_permutation, hull_flip_of

WIDTH, HEIGHT = 112, 96
LANDMARKS = np.array([[40.3, 36.7], [70.2, 38.1], [55.9, 52.4], [44, 66], [68, 66.5]], np.float32)
ANGLES = np.linspace(0, 6, 27)
OUTLINE = np.stack([56 + 20 * np.cos(ANGLES), 50 + 25 * np.sin(ANGLES)], axis=-1).astype(np.float32)
REGIONS = np.array([[60, 30, 80, 45], [30, 30, 50, 45], [50, 40, 60, 60], [40, 60, 72, 74]], np.float32)

# Whether they bend the image, so that no matrix can follow.
STRAIGHT, BENT = False, True
TORCHVISION = [
    (v2.RandomHorizontalFlip(1.0), STRAIGHT),
    (v2.RandomVerticalFlip(1.0), STRAIGHT),
    ([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)], STRAIGHT),
    (v2.RandomApply([v2.RandomHorizontalFlip(1.0)]), STRAIGHT),
    (v2.Compose([v2.RandomResizedCrop(90, (0.8, 1)), v2.RandomHorizontalFlip(), v2.RandomRotation(20)]), STRAIGHT),
    (v2.RandomRotation(40), STRAIGHT),
    (v2.RandomRotation(40, v2.InterpolationMode.BILINEAR, expand=True), STRAIGHT),
    (v2.RandomRotation(30, expand=True, center=[30, 30]), STRAIGHT),
    (v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10), STRAIGHT),
    (v2.RandomPerspective(0.3, 1.0), BENT),
    (v2.ElasticTransform(60.0), BENT),
    (v2.RandomCrop(90, padding=12), STRAIGHT),
    (v2.RandomCrop(120, padding=12, padding_mode="reflect"), STRAIGHT),
    (v2.CenterCrop(80), STRAIGHT),
    (v2.RandomResizedCrop(60, (0.6, 1)), STRAIGHT),
    (v2.Resize((48, 56)), STRAIGHT),
    (v2.Resize((200, 300), v2.InterpolationMode.NEAREST_EXACT), STRAIGHT),
    (v2.Pad([3, 5, 7, 9]), STRAIGHT),
    (v2.RandomZoomOut(p=1), STRAIGHT),
    (v2.ScaleJitter((96, 96)), STRAIGHT),
    (v2.RandomShortestSize(60), STRAIGHT),
    (v2.RandomResize(40, 90), STRAIGHT),
]
ALBUMENTATIONS = [
    (A.HorizontalFlip(p=1), STRAIGHT),
    (A.VerticalFlip(p=1), STRAIGHT),
    (A.Transpose(p=1), STRAIGHT),
    (A.D4(p=1), STRAIGHT),
    (A.OneOf([A.Sequential([A.HorizontalFlip(p=1), A.Resize(80, 70)])], p=1), STRAIGHT),
    (A.RandomRotate90(p=1), STRAIGHT),
    (A.Rotate((-40, 40), p=1), STRAIGHT),
    (A.SafeRotate((-40, 40), p=1), STRAIGHT),
    (A.Affine(scale=(0.8, 1.2), rotate=(-20, 20), shear=(-10, 10), translate_percent=(-0.1, 0.1), p=1), STRAIGHT),
    (A.Perspective(p=1), BENT),
    (A.RandomCrop(80, 80), STRAIGHT),
    (A.RandomResizedCrop((60, 60), (0.6, 1.0)), STRAIGHT),
    (A.RandomSizedCrop((60, 80), (50, 50)), STRAIGHT),
    (A.Resize(48, 56), STRAIGHT),
    (A.RandomScale((0.3, 0.5), p=1), STRAIGHT),
    (A.LongestMaxSize(64), STRAIGHT),
    (A.SmallestMaxSize(64), STRAIGHT),
    (A.PadIfNeeded(140, 150), STRAIGHT),
    (A.CropAndPad(percent=0.1, p=1), STRAIGHT),
    (A.ElasticTransform(60, 8, p=1), BENT),
    (A.GridDistortion(p=1), BENT),
    (A.OpticalDistortion(p=1), BENT),
    (A.ThinPlateSpline((0.02, 0.05), p=1), BENT),
    (A.GridElasticDeform((4, 4), 2, p=1), BENT),
]
EVERY = [
    *[pytest.param(Torchvision, *case, id=f"v2-{n}") for n, case in enumerate(TORCHVISION)],
    *[pytest.param(lambda t: Albumentations([t]), *case, id=f"A-{n}") for n, case in enumerate(ALBUMENTATIONS)],
]


def painted(bent: bool) -> dict[str, np.ndarray]:
    """An image in which each pixel shows where it was: red is twice its column, green twice its row, blue 255.

    The masks show the same in whole pixels, up to numbers beyond what uint8 holds.
    """
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    sample = {
        "image": np.stack([2 * x + 1, 2 * y + 1, np.full_like(x, 255)], axis=-1).astype(np.uint8),
        "landmarks": LANDMARKS.copy(),
        "hull": OUTLINE.copy(),
        "regions": REGIONS.copy(),
        "boxes": REGIONS[::-1].copy(),
        "label_mask": (1 + x + WIDTH * y).astype(np.int32),
    }
    if not bent:
        sample["matrix"] = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    for value in sample.values():
        value.flags.writeable = False
    return sample


def shown(image: np.ndarray, point: np.ndarray) -> np.ndarray | None:
    """Which place of the old image an image shows at a point; None at its rim and where it was filled."""
    x, y = np.floor(point - 0.5).astype(int)
    if not (0 <= x < image.shape[1] - 1 and 0 <= y < image.shape[0] - 1):
        return None
    pixels = image[y : y + 2, x : x + 2].astype(float)
    if (pixels[..., 2] < 250).any():
        return None
    right, down = point - 0.5 - (x, y)
    row = pixels[0] * (1 - down) + pixels[1] * down
    return (row[0] * (1 - right) + row[1] * right)[:2] / 2


def is_mirrored(image: np.ndarray) -> bool:
    """Whether an image of `painted` shows a mirror image: right and down have changed sides."""
    (red_down, red_right), (green_down, green_right) = (np.gradient(image[..., k].astype(float)) for k in (0, 1))
    turns = np.sign(red_right * green_down - red_down * green_right)
    return turns[image[..., 2] == 255].sum() < 0


@pytest.mark.parametrize(("adapter", "transform", "bent"), EVERY)
def test_geometry_stays_on_the_marked_pixels(adapter, transform, bent):
    adapted, seen = adapter(transform), 0
    for row in range(3):
        sample = painted(bent)
        found = adapted(sample, sample_rng(0, 0, row))
        mirrored = is_mirrored(found["image"])
        old = relabelled(sample) if mirrored else sample
        for name in ("landmarks", "hull"):
            assert found[name].shape == sample[name].shape
            for place, point in zip(old[name], found[name], strict=True):
                there = shown(found["image"], point)
                if there is not None:
                    np.testing.assert_allclose(there, place, atol=0.75)
                    seen += 1
        if not bent:
            check_matrix(old, found)
        check_mask(found)
    assert seen > 40


def relabelled(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The points in the order in which a mirrored image names them."""
    orders = {"landmarks": flip_permutation("5"), "hull": hull_flip_of(27), "regions": REGION_FLIP}
    return sample | {name: sample[name][order] for name, order in orders.items()}


def check_matrix(old: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """The matrix maps old points to new ones, and regions are the upright boxes around their mapped corners."""
    matrix = found["matrix"].astype(np.float64)
    np.testing.assert_allclose(found["landmarks"], old["landmarks"] @ matrix[:, :2].T + matrix[:, 2], atol=0.02)
    corners = old["regions"][:, [[0, 1], [2, 1], [2, 3], [0, 3]]] @ matrix[:, :2].T + matrix[:, 2]
    expected = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    np.testing.assert_allclose(found["regions"], expected, atol=0.05)
    unswapped = old["boxes"][:, [[0, 1], [2, 1], [2, 3], [0, 3]]] @ matrix[:, :2].T + matrix[:, 2]
    expected = np.concatenate([unswapped.min(axis=1), unswapped.max(axis=1)], axis=1)
    np.testing.assert_allclose(found["boxes"], expected, atol=0.05)


def check_mask(found: dict[str, np.ndarray]) -> None:
    """The mask has old numbers only, and shows the place that the image shows there."""
    image, mask = found["image"].astype(float), found["label_mask"]
    assert mask.dtype == np.int32
    assert mask.shape == image.shape[:2]
    both = (mask > 0) & (image[..., 2] == 255)
    assert both.sum() > 500
    row, column = np.divmod(mask[both] - 1, WIDTH)
    off = np.abs(image[both][:, :2] / 2 - np.stack([column, row], axis=-1) - 0.5)
    assert np.quantile(off, 0.98) < 1.6  # the nearest pixel; at a rim, an image is blended with what it was filled with


@pytest.mark.parametrize("grid", [(2, 2), (3, 4), (5, 5), (8, 8)])
def test_points_go_with_their_tiles(grid):
    """No tile is mirrored, so left and right stay, whichever seams the reference triangles lie across."""
    shuffle, sample = Albumentations([A.RandomGridShuffle(grid, p=1)]), painted(BENT)
    for row in range(60):
        found = shuffle(sample, sample_rng(0, 0, row))
        for name in ("landmarks", "hull"):
            (x, y), (old_x, old_y) = (np.floor(points[name]).astype(int).T for points in (found, sample))
            assert np.array_equal(found["image"][y, x], sample["image"][old_y, old_x])


@pytest.mark.parametrize("shrink", [A.Resize(12, 14), A.Affine(scale=0.1, p=1)])
def test_a_small_mirror_image_is_mirrored_too(shrink):
    sample = painted(STRAIGHT)
    found = Albumentations([A.HorizontalFlip(p=1), shrink])(sample, sample_rng(0, 0, 0))
    check_matrix(relabelled(sample), found)


@pytest.mark.parametrize(
    "scale",
    [A.RandomScale((0.3, 0.5), p=1), A.RandomScale((-0.6, -0.3), p=1), A.LongestMaxSize(65), A.SmallestMaxSize(65)],
)
def test_points_reach_the_end_of_an_image_of_whole_pixels(scale):
    """Sides are rounded, so they grow by other numbers than the one that was drawn: half a pixel, at the far end."""
    found = Albumentations([scale])(painted(STRAIGHT), sample_rng(0, 0, 0))
    height, width = found["image"].shape[:2]
    expected = [[width / WIDTH, 0, 0], [0, height / HEIGHT, 0]]
    np.testing.assert_allclose(found["matrix"], expected, atol=1e-4)


@pytest.mark.parametrize(
    "paint",
    [
        Torchvision(v2.RandomErasing(1.0, (0.5, 0.5), (1, 1))),
        Albumentations([A.Erasing((0.5, 0.5), (1, 1), p=1)]),
    ],
)
def test_painted_areas_keep_their_mask(paint):
    sample = painted(STRAIGHT)
    found = paint(sample, sample_rng(0, 0, 0))
    assert (found["image"][..., 2] == 0).mean() > 0.4
    assert np.array_equal(found["label_mask"], sample["label_mask"])


@pytest.mark.parametrize(
    "shrink",
    [
        Torchvision(v2.Resize((HEIGHT // 4, WIDTH // 4))),
        Torchvision(v2.Resize(HEIGHT // 4, max_size=WIDTH // 4)),
        Torchvision(v2.RandomResizedCrop((HEIGHT // 4, WIDTH // 4), (1, 1), (WIDTH / HEIGHT, WIDTH / HEIGHT))),
        Albumentations([A.Resize(HEIGHT // 4, WIDTH // 4)]),
        Albumentations([A.RandomScale((-0.75, -0.75), p=1)]),
    ],
)
def test_small_masks_are_of_the_nearest_pixel(shrink):
    """Of the four pixels at the middle of the sixteen that one replaces, and not of the first of the sixteen."""
    found = shrink(painted(STRAIGHT), sample_rng(0, 0, 0))["label_mask"]
    row, column = np.divmod(found - 1, WIDTH)
    y, x = 4 * np.mgrid[: HEIGHT // 4, : WIDTH // 4] + 2
    assert np.abs([row + 0.5 - y, column + 0.5 - x]).max() == 0.5


ADAPTED = [
    pytest.param(
        Torchvision([v2.RandomRotation(20), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3)]), id="torchvision"
    ),
    pytest.param(
        Albumentations([A.Rotate((-20, 20), p=1), A.HorizontalFlip(), A.ColorJitter(p=1)]), id="albumentations"
    ),
]


@pytest.mark.parametrize("adapted", ADAPTED)
def test_draws_depend_on_seed_epoch_and_row_alone(adapted):
    """Neither on the thread, nor on other samples, nor on torch's generator, which stays as it is."""
    assert is_seeded(adapted)
    sample, rows = face_sample("68"), range(12)
    state = torch.get_rng_state()
    expected = [adapted(sample, sample_rng(3, 1, row)) for row in rows]
    assert torch.equal(torch.get_rng_state(), state)
    again = pickle.loads(pickle.dumps(adapted))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda row: again(sample, sample_rng(3, 1, row)), reversed(rows)))
    for one, other in zip(found, reversed(expected), strict=True):
        assert_same(one, other)
    assert 2 < sum(np.linalg.det(one["matrix"][:, :2]) < 0 for one in found) < 10
    assert len({one["image"].tobytes() for one in found}) == 12


@pytest.mark.parametrize("layout", ["5", "68"])
@pytest.mark.parametrize(
    ("flips", "ours"),
    [
        (Torchvision(v2.RandomHorizontalFlip(1.0)), HorizontalFlip(1)),
        (Torchvision(v2.RandomVerticalFlip(1.0)), VerticalFlip(1)),
        (Albumentations([A.HorizontalFlip(p=1)]), HorizontalFlip(1)),
        (Albumentations([A.VerticalFlip(p=1)]), VerticalFlip(1)),
    ],
)
def test_their_flips_are_our_flips(layout, flips, ours):
    sample = face_sample(layout)
    found, expected = flips(sample, sample_rng(0, 0, 0)), ours(sample, sample_rng(0, 0, 0))
    for name in ("image", "mask"):
        assert np.array_equal(found[name], expected[name])
    for name in ("landmarks", "hull", "regions", "boxes", "matrix"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-3)


@pytest.mark.parametrize("crop", [Torchvision(v2.CenterCrop(20)), Albumentations([A.CenterCrop(20, 20)])])
def test_points_outside_the_image_are_kept(crop):
    sample = face_sample()
    found = crop(sample, sample_rng(0, 0, 0))
    np.testing.assert_allclose(found["landmarks"], sample["landmarks"] - 102, atol=1e-3)


@pytest.mark.parametrize("bend", [Torchvision(v2.ElasticTransform()), Albumentations([A.ElasticTransform(p=1)])])
def test_far_and_nan_points_do_not_stop_an_elastic_transform(bend):
    sample = face_sample()
    del sample["matrix"]
    points = np.array([[np.nan, 3], [1e9, -1e9], [-40, 300], [50, 60], [np.inf, 0]], np.float32)
    found = bend(sample | {"landmarks": points}, sample_rng(0, 0, 0))["landmarks"]
    assert np.array_equal(np.isfinite(found), np.isfinite(points))
    np.testing.assert_allclose(found[1:4], points[1:4], rtol=1e-6, atol=30)


@pytest.mark.parametrize("adapted", [Torchvision(v2.RandomInvert(1.0)), Albumentations([A.InvertImg(p=1)])])
def test_colour_transforms_change_only_the_image(adapted):
    sample = face_sample()
    found = adapted(sample, sample_rng(0, 0, 0))
    assert np.array_equal(found["image"], 255 - sample["image"])
    for name in ("landmarks", "hull", "regions", "boxes", "matrix"):
        assert found[name] is sample[name]
    assert np.array_equal(found["mask"], sample["mask"])


def test_pure_tensors_may_come_last():
    sample = face_sample()
    flips = [v2.RandomHorizontalFlip(1.0), v2.Compose([v2.ToPureTensor()])]
    found, expected = (Torchvision(flips[:count])(sample, sample_rng(0, 0, 0)) for count in (2, 1))
    assert_same(found, expected)


def test_floating_images_come_back_as_ours_make_them():
    sample, rng = face_sample(), sample_rng(0, 0, 0)
    to_float = v2.ToDtype(torch.float32, scale=True)
    expected = Normalize()(sample, rng)["image"]
    theirs = Torchvision([to_float, v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])(sample, rng)["image"]
    assert np.array_equal(theirs, expected)
    np.testing.assert_allclose(Albumentations([A.Normalize()])(sample, rng)["image"], expected, atol=1e-5)
    half = Torchvision([to_float, v2.ToDtype(torch.bfloat16)])(sample, rng)["image"]
    assert half.dtype == BFLOAT16
    with pytest.raises(UsageError, match=r"Torchvision: .* Put v2.ToDtype\(torch.float32, scale=True\) before it"):
        Torchvision(v2.Normalize((0.5,), (0.5,)))(sample, rng)


def test_masks_of_any_dtype_keep_their_values():
    picture = np.zeros((8, 8, 3), np.uint8)
    values = np.arange(64).reshape(8, 8)
    masks = {
        "bool_mask": values % 2 > 0,
        "wide_mask": values.astype(np.int64) * 3,
        "float_mask": values / 64,
        "deep_mask": np.stack([values, values + 1], axis=-1).astype(np.uint16) * 500,
    }
    flip = Torchvision(v2.RandomHorizontalFlip(1.0))
    found = flip({"image": picture} | masks, sample_rng(0, 0, 0))
    for name, mask in masks.items():
        assert found[name].dtype == mask.dtype
        assert np.array_equal(found[name], mask[:, ::-1])
    with pytest.raises(UsageError, match=r"float32 can hold .* found int64 with others in 'mask': renumber them"):
        flip({"image": picture, "mask": np.full((8, 8), 2**24 + 1)}, sample_rng(0, 0, 0))


@pytest.mark.parametrize(
    ("adapted", "message"),
    [
        (Torchvision(v2.RandAugment()), r"cannot move masks and points: use readers.augment.RandAugment"),
        (Torchvision(v2.SanitizeKeyPoints()), r"expected \d+ points back from \['SanitizeKeyPoints'\]"),
        (Torchvision(v2.ToPILImage()), "expected the image back as a tensor .*, found Image"),
        (Torchvision(v2.RandomPerspective(0.3, 1.0)), "this pipeline bends the image"),
        (Albumentations([A.GridDistortion(p=1)]), "this pipeline bends the image"),
    ],
)
def test_transforms_that_cannot_move_a_field_are_refused(adapted, message):
    sample = face_sample()
    if "SanitizeKeyPoints" in message:
        sample["landmarks"] = sample["landmarks"] - 100
    with pytest.raises(UsageError, match=message):
        adapted(sample, sample_rng(0, 0, 0))


def test_images_without_geometry_take_what_moves_no_points():
    sample = {"image": face_sample()["image"]}
    assert Torchvision(v2.RandAugment())(sample, sample_rng(0, 0, 0))["image"].shape == (224, 224, 3)


class Own(v2.Transform):
    """A transform of samples that happens to be a module of torchvision's kind."""

    def forward(self, sample):
        return {**sample, "image": sample["image"] // 2}


class OwnColours(v2.Transform):
    """A transform of images, as torchvision's documentation says to write one."""

    def transform(self, inpt, params):
        return inpt // 2


BARE = [
    (OwnColours(), "Torchvision(OwnColours(…))"),
    (v2.RandomHorizontalFlip(), "Torchvision(v2.RandomHorizontalFlip(…))"),
    (v2.Compose([v2.RandomInvert()]), "Torchvision(v2.Compose(…))"),
    (v1.Compose([]), "Torchvision(v2.Compose(…)), with v2 from torchvision.transforms"),
    (A.HorizontalFlip(), "Albumentations([A.HorizontalFlip(…)])"),
    (A.Compose([A.HorizontalFlip()]), "Albumentations([…])"),
]


@pytest.mark.parametrize(("bare", "line"), BARE)
def test_the_error_for_a_bare_library_transform_shows_a_working_line(raw_path, bare, line):
    dataset = open_dataset(raw_path)
    for use, begin in (
        (lambda: open_dataset(raw_path, transform=bare), "transform="),
        (lambda: Loader(dataset, 4, sample_transform=bare), "sample_transform="),
        (lambda: Loader(dataset, 4, views=[bare, None]), "transform="),
        (lambda: Compose([bare]), ""),
        (lambda: OneOf([bare]), ""),
    ):
        with raises(UsageError, hint=f"write {begin}readers.augment.{line}") as caught:
            use()
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("bare", "listed"),
    [(K.RandomAffine(15.0), "[K.RandomAffine(…)]"), (torch.nn.Sequential(K.RandomInvert()), "[…]")],
)
def test_the_error_for_a_bare_kornia_augmentation_advises_batches(raw_path, bare, listed):
    with raises(UsageError, hint=f"write batch_transform=readers.augment.BatchCompose({listed})"):
        open_dataset(raw_path, transform=bare)


@pytest.mark.parametrize(
    ("bare", "line"),
    [
        (v2.RandomHorizontalFlip(), "batch_transform=readers.augment.BatchCompose([v2.RandomHorizontalFlip(…)])"),
        (K.RandomAffine(15.0), "batch_transform=readers.augment.BatchCompose([K.RandomAffine(…)])"),
        (torch.nn.Sequential(K.RandomInvert()), "batch_transform=readers.augment.BatchCompose([…])"),
        (A.HorizontalFlip(), "sample_transform=readers.augment.Albumentations([A.HorizontalFlip(…)])"),
    ],
)
def test_the_error_for_a_bare_module_for_batches_shows_a_working_line(raw_path, bare, line):
    with raises(UsageError, option="batch_transform", hint=f"write {line}"):
        Loader(open_dataset(raw_path), 4, batch_transform=bare)


def test_albumentations_are_refused_in_a_chain_for_batches():
    with raises(UsageError, hint="write sample_transform=readers.augment.Albumentations([A.HorizontalFlip(…)])"):
        BatchCompose([A.HorizontalFlip()])


def test_the_lines_work_in_a_loader(raw_path):
    dataset = open_dataset(raw_path)
    for transform in (Torchvision(v2.RandomHorizontalFlip(1.0)), Own()):
        epochs = [
            [batch["image"] for batch in Loader(dataset, 8, sample_transform=transform, workers=workers, seed=1)]
            for workers in (1, 3)
        ]
        for one, other in zip(*epochs, strict=True):
            assert torch.equal(one, other)
