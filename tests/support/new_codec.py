"""A codec that this project does not have, and a program that adds it to the table and uses it everywhere.

Run as ``python -m support.new_codec FOLDER``: the folder gets datasets in all formats. All that makes the codec known is
the entry that `register` adds.
"""

import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.codecs import CODECS, CodecEntry, ImageType
from shardspec.codecs.base import check_image, check_sides
from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import Field

NAME, SUFFIX, MAGIC = "zpix", ".zpix", b"ZPIX"
_HEADER = struct.Struct("<4sII")


class ZpixCodec:
    """Zlib over the pixels, after a magic word and the sides. Configuration: ``quality``, over 10 zlib's level."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> Buffer:
        """The encoded bytes of an image."""
        image = check_image(self.field, value)
        level = min(9, int(self.field.codec.configuration["quality"]) // 10)
        return _HEADER.pack(MAGIC, *image.shape[:2]) + zlib.compress(image.tobytes(), level)

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Height and width by the header."""
        if len(data) < _HEADER.size or bytes(data[:4]) != MAGIC:
            raise CodecError(f"field {self.field.name!r}: expected {NAME} bytes")
        _, height, width = _HEADER.unpack_from(data)
        return height, width

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
        """The image."""
        height, width = self.sides(data)
        check_sides(self.field, height, width)
        pixels = zlib.decompressobj().decompress(bytes(data[_HEADER.size :]), height * width * 3)
        if len(pixels) != height * width * 3:
            raise CodecError(f"field {self.field.name!r}: expected {height * width} pixels, found fewer")
        image = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        if out is None:
            return image
        out[...] = image
        return out


def register() -> None:
    """Add the codec to the table, as a line there would."""
    image = ImageType(NAME, (SUFFIX,), re.compile(MAGIC), options=("quality",))
    CODECS[NAME] = CodecEntry("support.new_codec:ZpixCodec", image=image)


def main(folder: Path) -> None:
    """Build, check, inspect, convert, read, export and draw datasets, and build from files of the codec.

    Nothing of `packer` or `readers` is imported before the codec is in the table.
    """
    import packer
    import readers
    from packer.cli import main as command
    from shardspec.formats import FORMATS

    rng = np.random.default_rng(0)
    expected = {f"{number}.png": rng.integers(0, 256, (24, 32, 3), np.uint8) for number in range(5)}
    source = folder / "source" / "a"
    source.mkdir(parents=True)
    for name, image in expected.items():
        _write_png(source / name, image)

    def check(path: Path) -> None:
        # Not deep: the comparison with other libraries runs in a process that does not know the codec.
        report = packer.verify(path, progress=False)
        assert not report.problems, report.problems
        assert NAME in packer.inspect(path).describe()
        dataset = readers.open_dataset(path, fields=["image", "source"])
        stored = dataset.schema["image"].codec
        assert (stored.name, stored.configuration) == (NAME, {"quality": 70})
        for sample in dataset:
            wanted = expected[Path(sample["source"]).with_suffix(".png").name]
            assert np.array_equal(np.asarray(sample["image"]), wanted)

    quick = {"progress": False, "engine": "inline"}
    for name in FORMATS:
        built = folder / name
        words = ["build", str(source.parent), str(built), "--format", name, "--encode", NAME, "--quality", "70"]
        assert command([*words, "--label-from", "folder", "--engine", "inline"]) == 0
        check(built)

    packed = folder / "npy"
    packer.convert(folder / "lmdb", folder / "converted", format="parquet", **quick)
    check(folder / "converted")
    cropped = readers.open_dataset(packed, fields=["image"], decode={"image": readers.Resize(16)})
    assert tuple(cropped[0]["image"].shape) == (16, 16, 3)
    packer.preview(packed, folder / "sheet.png")
    packer.export(packed, folder / "files", names="source", progress=False)
    files = sorted((folder / "files").rglob(f"*{SUFFIX}"))
    assert len(files) == len(expected)
    built_again = packer.build(files[0].parent.parent, folder / "again", encode=NAME, quality=70, **quick)
    assert built_again.manifest.samples == len(expected)
    check(folder / "again")
    fields = {"image": packer.Image(NAME, quality=70)}
    with packer.Writer(folder / "written", fields=fields, progress=False) as writer:
        for file in files:
            writer.write(image=file.read_bytes())
    stored = readers.open_dataset(folder / "written", fields=["image"], decode={"image": readers.Encoded()})
    assert [bytes(sample["image"]) for sample in stored] == [file.read_bytes() for file in files]


def _write_png(path: Path, image: npt.NDArray[np.uint8]) -> None:
    from PIL import Image

    Image.fromarray(image).save(path)


if __name__ == "__main__":
    register()
    main(Path(sys.argv[1]))
