"""Archives of images as other people's programs write them."""

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from support.media import scene

REC_MAGIC = struct.pack("<I", 0xCED7230A)


def encoded(number: int, size: tuple[int, int] = (32, 24), kind: str = "JPEG") -> bytes:
    """One of many different images, as the bytes of a file."""
    out = io.BytesIO()
    Image.fromarray(scene(number, size)).save(out, kind)
    return out.getvalue()


def npy(value: Any) -> bytes:
    """The bytes of a ``.npy`` file."""
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w", **options: Any) -> Path:
    """A tar by Python's ``tarfile``; compressed by gzip if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    squeezed = path.name.endswith((".gz", ".tgz"))
    with tarfile.open(path, "w:gz" if squeezed else mode, **options) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_zip(path: Path, members: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    """A zip file by Python's ``zipfile``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def samples(start: int, stop: int, folder: str = "") -> list[tuple[str, bytes]]:
    """The members of samples with an image, a class, JSON, a text and an array each."""
    found = []
    for number in range(start, stop):
        key = f"{folder}{number:04d}"
        facts = {"caption": f"scene {number}", "key": f"k{number}", "width": 32, "tags": ["a", number]}
        found += [
            (f"{key}.cls", str(number % 3).encode()),
            (f"{key}.emb.npy", npy(np.full(4, number, np.float32))),
            (f"{key}.jpg", encoded(number)),
            (f"{key}.json", json.dumps(facts).encode()),
            (f"{key}.txt", f"text {number} é".encode()),
        ]
    return found


def write_lmdb(path: Path, pairs: Mapping[bytes, bytes], *, folder: bool = True) -> Path:
    """An LMDB by its own library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=1 << 26, subdir=folder) as env, env.begin(write=True) as transaction:
        for key, value in pairs.items():
            transaction.put(key, value)
    return path


def rec_header(label: float | Sequence[float], number: int, data: bytes) -> bytes:
    """What ``mxnet.recordio.pack`` returns: ``struct.pack("IfQQ", flag, label, id, id2)``, labels as float32, data."""
    if isinstance(label, int | float):
        return struct.pack("<IfQQ", 0, label, number, 0) + data
    return struct.pack("<IfQQ", len(label), 0.0, number, 0) + np.asarray(label, "<f4").tobytes() + data


def rec_record(data: bytes) -> bytes:
    """A record as dmlc-core's ``RecordIOWriter::WriteRecord`` writes it: cut at each aligned magic number within."""
    cuts = [at for at in range(0, len(data) // 4 * 4, 4) if data[at : at + 4] == REC_MAGIC]
    starts, stops = [0, *(at + 4 for at in cuts)], [*cuts, len(data)]
    out = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        flag = 0 if not cuts else 1 if number == 0 else 3 if number == len(cuts) else 2
        piece = data[start:stop]
        out.append(REC_MAGIC + struct.pack("<I", flag << 29 | len(piece)) + piece + bytes(-len(piece) % 4))
    return b"".join(out)


def write_rec(path: Path, records: Mapping[int, bytes], *, index: bool = True) -> Path:
    """``train.rec`` and ``train.idx`` as ``mxnet.recordio.MXIndexedRecordIO`` writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines, at = [], 0
    with path.open("wb") as file:
        for key, data in records.items():
            lines.append(f"{key}\t{at}\n")
            at += file.write(rec_record(data))
    if index:
        path.with_suffix(".idx").write_text("".join(lines))
    return path


def write_faces(folder: Path, people: int, each: int) -> Path:
    """InsightFace's layout: record 0 has the ranges, then the images, then a range for each person."""
    stop = 1 + people * each
    records = {0: rec_header((stop, stop + people), 0, b"")}
    for number in range(1, stop):
        records[number] = rec_header(((number - 1) // each, 0.0), number, encoded(number))
    for person in range(people):
        first = 1 + person * each
        records[stop + person] = rec_header((first, first + each), stop + person, b"")
    write_rec(folder / "train.rec", records)
    (folder / "property").write_text(f"{people},112,112")
    return folder


def write_parquet(path: Path, rows: int, *, names: Sequence[str] | None = None, **columns: Any) -> Path:
    """Images as Hugging Face's ``datasets`` stores them, 8 rows in a row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "image": [{"bytes": encoded(number), "path": f"{number}.jpg"} for number in range(rows)],
            "label": [number % 2 for number in range(rows)],
            **columns,
        }
    )
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    if names is not None:
        features["label"] = {"_type": "ClassLabel", "names": list(names)}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=8)
    return path
