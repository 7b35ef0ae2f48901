"""Codecs: what they encode comes back, and what is no value or no encoding is a `CodecError`."""

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from skimage import data as photographs
from support.errors import raises
from support.strategies import fields, json_values

from shardspec.codecs import CODECS, codec_for, codecs_of
from shardspec.errors import CodecError, UsageError
from shardspec.schema import DTYPES, KINDS, Field, NamedConfig

IMAGES = ("jpeg", "png", "webp", "webp-lossless")
LOSSLESS = ("png", "webp-lossless", "raw")


def image_field(codec: str, side: int | None = None, **configuration: Any) -> Field:
    """A field of encoded images."""
    return Field("image", "bytes", "|u1", (side, side, 3), NamedConfig(codec, configuration))


def text_field(codec: str) -> Field:
    """A field of texts."""
    return Field("note", "text", "|u1", (None,), NamedConfig(codec))


def portrait(side: int = 64) -> Any:
    """A part of a photograph, (side, side + 8, 3)."""
    return photographs.astronaut()[40 : 40 + side, 180 : 188 + side]


def test_the_table_holds_every_codec_of_the_schema_and_no_other() -> None:
    assert set(CODECS) == {codec for kind in KINDS for codec in codecs_of(kind)}


@given(st.data())
def test_raw_arrays_round_trip_bit_for_bit(data: st.DataObject) -> None:
    field = data.draw(fields().filter(lambda f: f.codec.name == "raw" and (f.kind != "bytes" or len(f.shape) > 1)))
    shape = tuple(data.draw(st.integers(0, 6)) if axis is None else axis for axis in field.shape)
    if field.kind == "ragged" and not field.row_bytes:
        shape = (0, *shape[1:])  # rows without a byte cannot be counted
    value = data.draw(hnp.arrays(field.numpy_dtype, shape))
    codec = codec_for(field)
    encoded = bytes(codec.encode(value))
    decoded = codec.decode(encoded)
    assert decoded.dtype == field.numpy_dtype
    assert decoded.shape == shape
    assert decoded.tobytes() == value.tobytes()
    out = np.empty(shape, field.numpy_dtype)
    assert codec.decode(memoryview(encoded), out) is out
    assert out.tobytes() == value.tobytes()


@given(hnp.arrays(st.sampled_from([">f4", ">i8", "<f4"]), hnp.array_shapes(min_dims=2, max_dims=2)))
def test_raw_bytes_are_little_endian_and_in_c_order(value: Any) -> None:
    little = value.astype(value.dtype.newbyteorder("<"))
    codec = codec_for(Field("x", "fixed", little.dtype.str, value.shape))
    assert bytes(codec.encode(np.asfortranarray(little))) == little.tobytes(order="C")


@given(st.binary())
def test_blobs_round_trip(value: bytes) -> None:
    codec = codec_for(Field("blob", "bytes", "|u1", (None,)))
    assert codec.decode(codec.encode(bytearray(value))) == value
    with raises(CodecError, place="field 'blob'", found="str"):
        codec.encode("text")


@given(st.data(), st.binary(max_size=40))
def test_raw_bytes_of_another_length_are_an_error_or_a_value_of_the_field(data: st.DataObject, encoded: bytes) -> None:
    field = data.draw(fields().filter(lambda f: f.codec.name == "raw"))
    try:
        decoded = codec_for(field).decode(encoded)
    except CodecError as error:
        assert field.name in str(error)  # noqa: PT017 -- either may come of it
        return
    if not isinstance(decoded, bytes):
        assert decoded.dtype == field.numpy_dtype
        assert all(axis in (None, found) for axis, found in zip(field.shape, decoded.shape, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_do_not_fit_their_field_are_refused(dtype: str) -> None:
    codec = codec_for(Field("x", "fixed", dtype, (2, 3)))
    other = "<f8" if dtype != "<f8" else "<f4"
    for value in (np.zeros((3, 2), dtype), np.zeros(6, dtype), np.zeros((2, 3), other), "text", None):
        with pytest.raises(CodecError, match="'x'"):
            codec.encode(value)


@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape"))
)
def test_texts_round_trip_even_if_they_are_not_utf8(value: str) -> None:
    codec = codec_for(text_field("utf8"))
    assert codec.decode(codec.encode(value)) == value


def test_a_path_that_no_file_system_allows_is_refused() -> None:
    for value in ("\ud800", b"bytes", 3, None):
        with pytest.raises(CodecError, match="'note'"):
            codec_for(text_field("utf8")).encode(value)


@given(json_values)
def test_documents_round_trip_to_the_canonical_spelling(value: Any) -> None:
    codec = codec_for(text_field("json"))
    encoded = bytes(codec.encode(value))
    assert codec.decode(encoded) == value
    assert bytes(codec.encode(codec.decode(encoded))) == encoded
    assert json.loads(encoded) == value


def test_invalid_json_is_refused() -> None:
    codec = codec_for(text_field("json"))
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (float("nan"), {1, 2}, object(), endless, deep, {"a": "\ud800"}):
        with pytest.raises(CodecError, match="'note'"):
            codec.encode(value)
    for data in (b"", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(CodecError, match="'note'"):
            codec.decode(data)


@pytest.mark.parametrize("codec_name", [*IMAGES, "raw"])
def test_images_round_trip(codec_name: str) -> None:
    picture = portrait()
    codec = codec_for(image_field(codec_name))
    encoded = bytes(codec.encode(picture))
    decoded = codec.decode(encoded)
    assert decoded.dtype == np.uint8
    assert decoded.shape == picture.shape
    if codec_name in LOSSLESS:
        assert np.array_equal(decoded, picture)
    else:
        assert np.abs(decoded.astype(int) - picture).mean() < 4
        assert len(encoded) < picture.nbytes / 2
    out = np.empty_like(decoded)
    assert codec.decode(memoryview(encoded), out) is out
    assert np.array_equal(out, decoded)


@pytest.mark.parametrize("codec_name", IMAGES)
def test_others_can_read_the_images(codec_name: str) -> None:
    picture = portrait()
    codec = codec_for(image_field(codec_name))
    with Image.open(io.BytesIO(bytes(codec.encode(picture)))) as image:
        assert image.format is not None
        assert image.format.lower() == codec_name.removesuffix("-lossless")
        assert image.size == (picture.shape[1], picture.shape[0])
        assert np.abs(np.asarray(image.convert("RGB")).astype(int) - picture).mean() < 4


@pytest.mark.parametrize(
    ("codec_name", "low", "high"),
    [
        ("jpeg", {"quality": 30}, {"quality": 95}),
        ("webp", {"quality": 30}, {"quality": 95}),
        ("png", {"level": 9}, {"level": 0}),
        ("jpeg", {"subsampling": "420"}, {"subsampling": "444"}),
    ],
)
def test_the_configuration_counts_and_is_not_needed_to_decode(codec_name: str, low: Any, high: Any) -> None:
    picture = portrait()
    small = bytes(codec_for(image_field(codec_name, **low)).encode(picture))
    large = bytes(codec_for(image_field(codec_name, **high)).encode(picture))
    assert len(small) < len(large)
    plain = codec_for(image_field(codec_name))
    assert np.abs(plain.decode(small).astype(int) - picture).mean() < 12


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (37, 64), (64, 37)])
def test_png_files_of_others_and_ours_decode_alike(shape: tuple[int, int]) -> None:
    picture = np.ascontiguousarray(photographs.astronaut()[: shape[0], : shape[1]])
    codec = codec_for(image_field("png"))
    ours = bytes(codec.encode(picture))
    with Image.open(io.BytesIO(ours)) as image:
        image.verify()
    files = [ours]
    for options in ({"compress_level": 0}, {"optimize": True}):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG", **options)
        files.append(file.getvalue())
    palette = io.BytesIO()
    Image.fromarray(picture).quantize(8).save(palette, "PNG")
    for data in files:
        assert np.array_equal(codec.decode(data), picture)
    assert np.array_equal(codec.decode(palette.getvalue()), Image.open(palette).convert("RGB"))
    for place in (*range(16, 33), 45, len(ours) - 20):  # sides and form; the compressed rows and their checksum
        damaged = bytearray(ours)
        damaged[place] ^= 1
        with pytest.raises(CodecError, match="'image'"):
            codec.decode(bytes(damaged))


@pytest.mark.parametrize("codec_name", IMAGES)
def test_data_that_is_not_an_image_is_refused(codec_name: str) -> None:
    codec = codec_for(image_field(codec_name, 16))
    picture = portrait(24)[:16, :16]
    wrong = [
        picture[:, :8],
        picture[..., 0],
        np.dstack([picture, picture[..., :1]]),
        picture.astype(np.float32),
        picture.astype(np.int64),
        None,
        "x",
        picture[:0],
    ]
    for value in wrong:
        with pytest.raises(CodecError, match="'image'"):
            codec.encode(value)
    codec.encode(picture[::-1])


@pytest.mark.parametrize(("codec_name", "most"), [("jpeg", 65_500), ("webp", 16_383), ("webp-lossless", 16_383)])
def test_an_image_too_large_for_its_format_is_refused(
    codec_name: str, most: int, capfd: pytest.CaptureFixture[str]
) -> None:
    codec = codec_for(image_field(codec_name))
    assert codec.encode(np.zeros((1, most, 3), np.uint8))
    with pytest.raises(CodecError, match=f"expected sides of at most {most} pixels, found {most + 1} x 1$"):
        codec.encode(np.zeros((1, most + 1, 3), np.uint8))
    assert not capfd.readouterr().err


@pytest.mark.parametrize("codec_name", IMAGES)
def test_bytes_that_are_not_an_image_are_refused(codec_name: str) -> None:
    codec = codec_for(image_field(codec_name))
    whole = bytes(codec.encode(portrait()))
    other = bytes(codec_for(image_field("png" if codec_name != "png" else "webp")).encode(portrait()))
    for data in (b"", b"text", whole[: len(whole) // 8], other):
        with pytest.raises(CodecError, match="'image'") as caught:
            codec.decode(data)
        assert " object at " not in str(caught.value)
    with pytest.raises(CodecError, match="'image'"):
        codec.decode(whole, np.empty((8, 8, 3), np.uint8))


@pytest.mark.parametrize("codec_name", IMAGES)
def test_damaged_images_never_do_more_than_raise_codec_errors(codec_name: str) -> None:
    codec = codec_for(image_field(codec_name))
    whole = bytearray(codec.encode(portrait(32)))
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            damaged[place] = int(rng.integers(256))
        try:
            decoded = codec.decode(bytes(damaged[: int(rng.integers(1, len(whole) + 1))]))
        except CodecError:
            continue
        assert decoded.dtype == np.uint8
        assert decoded.ndim == 3


def test_an_unknown_codec_is_reported_with_those_that_are_known() -> None:
    field = object.__new__(Field)
    object.__setattr__(field, "codec", NamedConfig("pickle"))
    with pytest.raises(
        UsageError,
        match="unknown codec 'pickle': expected one of av1, ffv1, h264, jpeg, json, png, raw, utf8, webp, webp-lossless",
    ):
        codec_for(field)
