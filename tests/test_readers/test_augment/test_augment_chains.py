"""Modules of other libraries, and functions, in a chain for batches."""

import kornia.augmentation as K  # noqa: N812 -- as its own documentation does
import pytest
import torch
from support.errors import raises
from support.faces import portrait
from torchvision.transforms import v2

from readers.augment import BatchCompose, BatchCrop, BatchFlip, BatchMixUp, BatchNormalize
from readers.augment.batched import BatchModule
from readers.augment.libraries.torch_random import TorchDraws
from shardspec.errors import UsageError

SEEDS = torch.arange(3) * 31


def batch_of():
    """Three portraits of 64 pixels, each darker than the one before, as the readers give them."""
    image = torch.from_numpy(portrait()[:192:3, :192:3].copy())
    return {"image": torch.stack([image, image // 2, image // 3]).permute(0, 3, 1, 2), "label": torch.arange(3)}


class UnitColours(torch.nn.Module):
    """Stands for Kornia's colour operations: floating images from 0 to 1 alone, and what is above is cut off."""

    def forward(self, image):
        if not image.is_floating_point():
            raise TypeError(f"Expected input of [torch.float32, torch.float64]. Got {image.dtype}")
        return (image * 1.1).clamp(0, 1)


TO_UNIT = BatchNormalize((0, 0, 0), (1, 1, 1))
NORMALIZE = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SAME = torch.nn.Hardtanh(0, 1)  # cuts off, as colours of other libraries do, and changes nothing from 0 to 1


@pytest.mark.parametrize("begin", [[BatchCrop(50)], [BatchCrop(50, (0.8, 1))], [BatchFlip()], [BatchFlip(), TO_UNIT]])
@pytest.mark.parametrize("change", [K.ColorJiggle(p=1.0), v2.RandomInvert(0.0), v2.Lambda(lambda image: image)])
def test_images_are_in_the_range_that_each_module_expects(begin, change):
    """A change by nothing, whatever stands around it, changes nothing: not by a factor of 255 either."""
    batch = batch_of()
    expected = BatchCompose([*begin, BatchNormalize()])(batch, SEEDS)["image"]
    for start, end in ((begin, BatchNormalize()), ([BatchCompose(begin)], NORMALIZE)):
        found = BatchCompose([*start, change, end])(batch, SEEDS)["image"]
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
        assert 0.7 < float(found.std()) < 1.6


@pytest.mark.parametrize("image", [lambda image: image, lambda image: image.float(), lambda image: image.float() / 255])
def test_the_range_of_floating_images_is_detected(image):
    batch, chain = batch_of(), BatchCompose([BatchFlip(p=0), SAME, BatchNormalize()])
    if batch["image"].dtype == image(batch["image"]).dtype:
        chain = BatchCompose([BatchFlip(p=0), BatchNormalize()])
    expected = BatchNormalize()(batch)["image"]
    for _ in range(2):
        found = chain({**batch, "image": image(batch["image"])})["image"]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("end", [BatchNormalize(), K.ColorJiggle(p=1.0)])
@pytest.mark.parametrize("begin", [BatchNormalize(), BatchCompose([TO_UNIT, NORMALIZE])])
def test_normalised_images_are_neither_normalised_again_nor_cut_off(begin, end):
    with pytest.raises(UsageError, match=r"found (others: they were already )?normalised"):
        BatchCompose([begin, end])(batch_of())


def test_a_module_that_takes_no_uint8_is_refused_with_the_cure():
    with pytest.raises(
        UsageError, match=r"UnitColours failed with .*put BatchNormalize\(\(0, 0, 0\), \(1, 1, 1\)\) befo"
    ):
        BatchCompose([BatchFlip(), UnitColours(), BatchNormalize()])(batch_of())


def test_functions_get_only_the_image():
    chain = BatchCompose([BatchFlip(p=0), lambda image: image // 2])
    assert torch.equal(chain(batch_of())["image"], batch_of()["image"] // 2)
    with raises(UsageError, place="BatchCompose", found="int"):
        BatchCompose([len])(batch_of())
    with pytest.raises(UsageError, match=r"<lambda> failed with .*functions in BatchCompose get the image alone"):
        BatchCompose([lambda batch: batch["image"]])(batch_of())


@pytest.mark.parametrize("noise", [K.RandomGaussianNoise(p=1.0), v2.GaussianNoise()])
def test_draws_of_other_modules_depend_on_the_seeds_alone(noise):
    chain = BatchCompose([TO_UNIT, noise])
    state = torch.get_rng_state()
    first, second = chain(batch_of(), SEEDS), chain(batch_of(), SEEDS)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first["image"], second["image"])
    assert not torch.equal(chain(batch_of(), SEEDS + 1)["image"], first["image"])
    assert not torch.equal(chain(batch_of())["image"], chain(batch_of())["image"])


@pytest.mark.parametrize(
    "once", [v2.ColorJitter(0.2), v2.RandomErasing(1.0), K.RandomHorizontalFlip(same_on_batch=True)]
)
def test_a_module_that_draws_once_for_a_batch_warns_once(once):
    chain = BatchCompose([TO_UNIT, once])
    with pytest.warns(UserWarning, match=r"draws once for all images of a batch; to draw for each, (give|leave)"):
        chain(batch_of(), SEEDS)
    chain(batch_of(), SEEDS)


def test_values_that_are_made_floating_alone_are_normalised():
    chain = BatchCompose([v2.ToDtype(torch.float32), BatchNormalize()])
    black = {"image": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}
    for batch in (black, batch_of(), black):
        torch.testing.assert_close(chain(batch)["image"], BatchNormalize()(batch)["image"])


def test_modules_of_a_nested_chain_draw_by_their_places_in_the_whole_chain():
    """Its modules draw by their places in the whole chain."""
    noise, gray = v2.GaussianNoise(clip=False), {"image": torch.full((3, 3, 8, 8), 0.5)}
    first, second, nested = (
        BatchCompose(chain)(gray, SEEDS)["image"]
        for chain in ([noise], [BatchFlip(p=0), noise], [BatchFlip(p=0), BatchCompose([noise])])
    )
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.equal(second, nested)
    twice = BatchCompose([BatchCompose([noise]) for _ in range(2)])(gray, SEEDS)["image"]
    assert not torch.allclose(twice - first, first - 0.5, atol=1e-3)


class Keep(BatchModule):
    """A module of a user's own that gives one tensor two names."""

    def forward(self, batch, seeds=None):
        return {**batch, "clean": batch["image"]}


@pytest.mark.parametrize("keep", [Keep(), BatchCompose([Keep()])])
def test_a_tensor_of_two_names_is_not_written_to(keep):
    chain = BatchCompose([keep, BatchMixUp(num_classes=3, alpha=1.0)])
    batch = TO_UNIT(batch_of())  # floating images are mixed in place
    found = chain.forward_({name: value.clone() for name, value in batch.items()}, SEEDS)
    assert torch.equal(found["clean"], batch["image"])
    assert not torch.equal(found["image"], batch["image"])


@pytest.mark.parametrize(
    "normalize",
    [
        v2.Normalize((-0.5,) * 3, (0.5,) * 3),
        v2.LinearTransformation(2 * torch.eye(192), torch.zeros(192)),
        K.Normalize(-0.5 * torch.ones(3), 0.5 * torch.ones(3)),
        K.Denormalize(0.5 * torch.ones(3), 2 * torch.ones(3)),
    ],
)
def test_normalised_images_without_a_value_below_0_count_as_normalised(normalize):
    batch = {"image": torch.full((2, 3, 8, 8), 200, dtype=torch.uint8)}
    with pytest.raises(UsageError, match="found others: they were already normalised"):
        BatchCompose([TO_UNIT, normalize, BatchNormalize()])(batch)


def test_denormalised_images_may_be_normalised():
    mean, std = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
    back = BatchCompose([BatchNormalize(), K.Denormalize(mean, std), BatchNormalize()])
    expected = BatchNormalize()(batch_of())["image"]
    torch.testing.assert_close(back(batch_of())["image"], expected, atol=1e-4, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_generator_serves_a_device_by_either_name():
    with TorchDraws(3):
        first, second = torch.rand(9, device="cuda"), torch.rand(9, device=f"cuda:{torch.cuda.current_device()}")
    assert not torch.equal(first, second)
