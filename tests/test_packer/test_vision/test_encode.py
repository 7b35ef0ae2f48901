"""JPEGs are encoded by another library than the codec's, and are the same bytes."""

import numpy as np
import pytest
import skimage.data

from packer.vision.encode import jpeg_encoder
from shardspec.codecs.image import JPEGCodec
from shardspec.errors import CodecError
from shardspec.schema import Field, NamedConfig


def codec(quality: int, subsampling: str) -> JPEGCodec:
    configuration = {"quality": quality, "subsampling": subsampling}
    return JPEGCodec(Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("jpeg", configuration)))


@pytest.mark.parametrize("subsampling", ["444", "422", "420"])
@pytest.mark.parametrize("quality", [1, 75, 95, 96, 100])
def test_the_bytes_are_those_of_the_codec(quality: int, subsampling: str) -> None:
    slow = codec(quality, subsampling)
    quick = jpeg_encoder(slow)
    picture = skimage.data.astronaut()
    noise = np.random.default_rng(0).integers(0, 256, (61, 47, 3), np.uint8)
    for image in (picture[:1, :1], picture[:17, :33], picture[::2, 5:300], noise, np.asfortranarray(noise)):
        assert bytes(quick(image)) == bytes(slow.encode(image))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, 65_501, 3), np.uint8),
    ],
)
def test_images_that_the_codec_refuses_are_refused_alike(image: np.ndarray) -> None:
    slow = codec(95, "420")
    with pytest.raises(CodecError) as expected:
        slow.encode(image)
    with pytest.raises(CodecError) as found:
        jpeg_encoder(slow)(image)
    assert str(found.value) == str(expected.value)
