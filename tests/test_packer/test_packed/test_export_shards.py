"""``packer export --to mds`` and ``--to litdata``: shards that the libraries open, with the stored bytes of images."""

import io
import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.builds import QUIET
from support.command import run_packer
from support.datasets import every_kind_schema, values_for, write_dataset
from support.errors import raises
from support.packed_files import read_all, samples_of, write_faces
from support.tar_streams import stream_tars

from packer import convert, export
from packer.packed.export.shards import LitDataShards, MDSShards
from shardspec.errors import BuildError, UsageError

ROWS = 12
SIZE = 8000


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Face datasets by codec, and one with every kind of field."""
    root = tmp_path_factory.mktemp("export")
    for codec in ("jpeg", "png", None):
        write_faces(root / str(codec), ROWS, codec=codec)
    write_dataset(root / "every", "lmdb", every_kind_schema(), values_for(every_kind_schema(), 9), shard_rows=4)
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


def numbers(data: bytes, count: int, start: int = 0) -> list[int]:
    return list(struct.unpack_from(f"<{count}I", data, start))


def mds_samples(root: Path) -> Iterator[dict[str, bytes]]:
    """The encoded values of an MDS dataset, by the description of the format alone."""
    index = json.loads((root / "index.json").read_bytes())
    assert index["version"] == 2
    for shard in index["shards"]:
        data = (root / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        (count,) = numbers(data, 1)
        assert count == shard["samples"]
        ends = numbers(data, count + 1, 4)
        config = json.loads(data[4 * (count + 2) : ends[0]])
        assert config == {name: shard[name] for name in config}
        for begin, end in pairwise(ends):
            varying = numbers(data, config["column_sizes"].count(None), begin)
            at, sizes, sample = begin + 4 * len(varying), iter(varying), {}
            for name, size in zip(config["column_names"], config["column_sizes"], strict=True):
                size = next(sizes) if size is None else size
                sample[name] = data[at : at + size]
                at += size
            assert at == end
            yield sample


def litdata_samples(root: Path) -> Iterator[dict[str, bytes]]:
    """The serialized values of a LitData dataset, by the description of the format alone."""
    index = json.loads((root / "index.json").read_bytes())
    names = json.loads(json.loads(index["config"]["data_spec"])[1]["context"])
    assert len(names) == len(index["config"]["data_format"])
    for chunk in index["chunks"]:
        data = (root / chunk["filename"]).read_bytes()
        (count,) = numbers(data, 1)
        ends = numbers(data, count + 1, 4)
        assert (count, ends[-1] - ends[0], ends[-1]) == (chunk["chunk_size"], chunk["chunk_bytes"], len(data))
        for begin, end in pairwise(ends):
            sizes = numbers(data, len(names), begin)
            starts = np.cumsum([begin + 4 * len(names), *sizes]).tolist()
            assert starts[-1] == end
            yield {name: data[a:b] for name, a, b in zip(names, starts, starts[1:], strict=False)}


READ = {"mds": mds_samples, "litdata": litdata_samples}


@pytest.mark.parametrize("to", READ)
@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_shards_hold_the_stored_bytes_and_are_the_same_at_any_run(
    tmp_path: Path, faces: Path, codec: str, to: str
) -> None:
    run_packer("export", faces / codec, tmp_path / "a", "--to", to, "--shard-size", SIZE, "--quiet")
    result = export(faces / codec, tmp_path / "b", to=to, shard_size="8kB", progress=False)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert (result.samples, result.table, result.found_finished) == (ROWS, None, False)
    shards = [path for path in (tmp_path / "a").iterdir() if path.suffix in (".mds", ".bin")]
    assert len(shards) == result.shards > 1
    assert all(path.stat().st_size < SIZE + 3000 for path in shards)  # beside the samples: offsets, and MDS's columns
    found, stored = list(READ[to](tmp_path / "a")), read_all(faces / codec)
    assert [sample["image"] for sample in found] == stored["image"]
    assert [sample["key"] for sample in found] == stored["key"]
    assert [int.from_bytes(sample["label"], "little") for sample in found] == stored["label"].tolist()
    head = 16 if to == "litdata" else 0  # dtype, axes, two sides
    for name in ("landmarks", "matrix"):
        assert [sample[name][head:] for sample in found] == [value.tobytes() for value in stored[name]]
    record = json.loads((tmp_path / "a" / "export.json").read_bytes())
    assert record["classes"] == {"label": ["real", "fake"]}
    assert export(faces / codec, tmp_path / "a", to=to, shard_size=SIZE, progress=False).found_finished
    for how in ({"to": to}, {}, {"to": "mds" if to == "litdata" else "litdata", "shard_size": SIZE}):
        with pytest.raises(UsageError, match=f"found one with --to {to} --shard-size 8000"):
            export(faces / codec, tmp_path / "a", progress=False, **how)
    with raises(UsageError, expected="a new or empty folder", found="an export of another dataset"):
        export(faces / "None", tmp_path / "a", to=to, shard_size=SIZE, progress=False)


def test_an_interrupted_export_leaves_nothing_and_starts_anew(
    tmp_path: Path, faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, kind in (("mds", MDSShards), ("litdata", LitDataShards)):

        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(kind, "close", fail)
            with pytest.raises(BuildError, match="No space left"):
                export(faces / "jpeg", tmp_path / module, to=module, progress=False)
        assert [path.name for path in tmp_path.iterdir() if module in path.name] == []
        (tmp_path / f".{module}.exporting").mkdir()
        (tmp_path / f".{module}.exporting" / "chunk-0-0.bin").write_bytes(b"of a killed process")
        assert export(faces / "jpeg", tmp_path / module, to=module, progress=False).samples == ROWS
        assert sorted(path.name for path in tmp_path.iterdir() if module in path.name) == [module]


def test_tar_files_are_those_of_convert_and_open_in_webdataset(tmp_path: Path, faces: Path) -> None:
    made = run_packer(
        "export", faces / "jpeg", tmp_path / "tars", "--to", "webdataset", "--shard-size", "1kB", "--quiet"
    )
    done = export(faces / "jpeg", tmp_path / "tars", to="webdataset", shard_size="1kB", progress=False)
    assert done.found_finished
    assert done.shards > 1
    assert f"{ROWS} samples, {done.shards} shards" in made.stdout
    convert(faces / "jpeg", tmp_path / "converted", format="webdataset", shard_size="1kB", **QUIET)
    tars = sorted((tmp_path / "tars").glob("shard-*.tar"))
    assert [tar.read_bytes() for tar in tars] == [(tmp_path / "converted" / tar.name).read_bytes() for tar in tars]
    found = stream_tars(tars)
    images = [sample["image"] for sample in samples_of(faces / "jpeg")]
    assert all(np.array_equal(sample["jpg"], image) for sample, image in zip(found, images, strict=True))


def assert_alike(found: Any, expected: Any, name: str) -> None:
    """A value as a library gives it is that of the dataset."""
    if isinstance(expected, str):
        assert found == expected.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), name
    elif isinstance(expected, dict | list):
        assert (json.loads(found) if isinstance(found, str) else found) == expected, name
    elif isinstance(expected, bytes):
        assert bytes(found) == expected, name
    elif isinstance(found, bytes | memoryview | Image.Image) or type(found).__module__ == "torch":  # an image
        if isinstance(found, bytes | memoryview):
            found = Image.open(io.BytesIO(found))
        found = np.asarray(found) if isinstance(found, Image.Image) else np.moveaxis(np.asarray(found), 0, -1)
        assert np.abs(found.astype(int) - expected).mean() < 2, name
    else:
        assert np.array_equal(np.asarray(found), expected, equal_nan=expected.dtype.kind == "f"), name


@pytest.mark.external
@pytest.mark.usefixtures("leaks_allowed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("data", ["jpeg", "png", "None", "every"])
def test_streaming_opens_it(tmp_path: Path, faces: Path, data: str) -> None:
    streaming = pytest.importorskip("streaming")
    export(faces / data, tmp_path / "out", to="mds", shard_size=SIZE, progress=False)
    dataset = streaming.StreamingDataset(local=str(tmp_path / "out"), shuffle=False, batch_size=4)
    expected = samples_of(faces / data)
    assert dataset.num_samples == len(expected)
    for row, sample in enumerate(expected):
        found = dataset[row]
        assert found.keys() == sample.keys()
        for name, value in sample.items():
            assert_alike(found[name], value, name)


@pytest.mark.external
@pytest.mark.usefixtures("leaks_allowed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("data", ["jpeg", "png", "None", "every"])
def test_litdata_opens_it(tmp_path: Path, faces: Path, data: str) -> None:
    litdata = pytest.importorskip("litdata")
    export(faces / data, tmp_path / "out", to="litdata", shard_size=SIZE, progress=False)
    dataset = litdata.StreamingDataset(str(tmp_path / "out"), shuffle=False)
    expected = samples_of(faces / data)
    assert len(dataset) == len(expected)
    for row, sample in enumerate(expected):
        found = dataset[row]
        assert found.keys() == sample.keys()
        for name, value in sample.items():
            assert_alike(found[name], value, name)
