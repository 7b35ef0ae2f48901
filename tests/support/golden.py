"""The rows of the golden shards, written out. They never change: a new version of the contract gets new ones.

``python -m support.golden FOLDER`` writes one dataset per format below FOLDER (no test does).
"""

import base64
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

from shardspec.columns import Columns
from shardspec.formats import FORMATS
from shardspec.schema import Field, Schema
from support.datasets import fixed, picture, ragged, text, write_encoded

LIBRARIES = {"hdf5": "h5py", "parquet": "pyarrow"}
"""Libraries whose versions decide the bytes."""
VERSIONS_NAME = "versions.json"

SCHEMA = Schema(
    (
        text("key"),
        text("notes", "json"),
        fixed("image", "|u1", 2, 3, 3),
        picture("photo", "png"),
        fixed("label", "<i8", classes=("real", "fake")),
        fixed("landmarks", "<f4", 5, 2, layout="5"),
        fixed("landmarks_valid", "|b1"),
        fixed("small", "|i1", 3),
        fixed("half", "<f2"),
        fixed("big", "<u8"),
        ragged("contour", "<f4", 2),
        ragged("ids", "<i2"),
        Field("blob", "bytes", "|u1", (None,)),
        picture("crop", "raw"),
    )
)

# A PNG of one red pixel.
_PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")


def golden_columns() -> Columns:
    """Three rows, encoded."""
    return {
        "key": [b"00000000-000000", b"00000000-000001", b"00000001-000000"],
        "notes": ['{"word":"人脸"}'.encode(), b"null", b"[1,2.5,true]"],
        "image": np.arange(54, dtype=np.uint8).reshape(3, 2, 3, 3),
        "photo": [_PNG, _PNG, _PNG],
        "label": np.array([0, 1, 1], "<i8"),
        "landmarks": (np.arange(30, dtype="<f4") / 4 - 3).reshape(3, 5, 2),
        "landmarks_valid": np.array([True, False, True]),
        "small": np.array([[-128, 0, 127], [1, -1, 2], [3, 4, 5]], "|i1"),
        "half": np.array([0.5, -0.0, np.inf], "<f2"),
        "big": np.array([0, 2**64 - 1, 2**63], "<u8"),
        "contour": [b"", np.array([[1, 2]], "<f4").tobytes(), np.array([[3, 4], [5, 6]], "<f4").tobytes()],
        "ids": [np.array([-1, 300, 5], "<i2").tobytes(), b"", np.array([-32768], "<i2").tobytes()],
        "blob": [b"\0\xff", b"", b"blob"],
        # One uint32 per axis, then the pixels.
        "crop": [
            np.array([1, 2, 3], "<u4").tobytes() + bytes(range(6)),
            np.array([1, 1, 3], "<u4").tobytes() + b"rgb",
            np.array([2, 1, 3], "<u4").tobytes() + bytes(range(6, 12)),
        ],
    }


def main(folder: Path) -> None:
    """Write the golden datasets."""
    for format in sorted(FORMATS):
        write_encoded(folder / format, format, SCHEMA, golden_columns())
    versions = {format: version(library) for format, library in LIBRARIES.items()}
    (folder / VERSIONS_NAME).write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
