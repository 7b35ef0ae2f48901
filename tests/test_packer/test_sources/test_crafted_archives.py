"""Crafted archives: rejects, some other items, or one clear error; never a crash, a hang or another error."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.archives import (
    REC_MAGIC,
    encoded,
    npy,
    rec_header,
    samples,
    write_faces,
    write_lmdb,
    write_parquet,
    write_rec,
    write_tar,
    write_zip,
)
from support.command import file_of, run_packer
from support.fuzz import thirds

import packer
from packer.sources.archives.listing import ArchiveFile, ArchiveListing, ListedArchive
from packer.sources.archives.lmdb import list_keys
from packer.sources.archives.recordio import list_records
from packer.sources.archives.webdataset import list_tar
from packer.sources.archives.zip import list_zip
from packer.sources.member_bytes import close_contents, opener, parse_npy, read_member
from shardspec.errors import ItemError, UsageError


def list_file(path: Path, list_one: Callable[[ListedArchive], ArchiveListing]) -> ArchiveListing:
    stat = path.stat()
    return list_one(ListedArchive(ArchiveFile(path.name, path), stat.st_size, stat.st_mtime_ns))


def read_all(found: ArchiveListing) -> int:
    """Read every member that was listed, and count those that could be read."""
    count = 0
    try:
        for item in found.items:
            if item.member is None:
                assert item.reject
                continue
            try:
                assert len(read_member(str(item.path), item.member)) == item.bytes
                source = opener(item.file)
                assert callable(source)
                with source() as file:
                    assert len(file.read()) == item.bytes
                count += 1
            except ItemError:
                assert item.member.kind in ("gzip", "zip")
    finally:
        close_contents()
    return count


@pytest.fixture(scope="module")
def archives(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, Callable[[ListedArchive], ArchiveListing]]]:
    root = tmp_path_factory.mktemp("archives")
    members = samples(0, 4, "a/")
    pairs = {f"a/{number}.jpg".encode(): encoded(number, (64, 64), "PNG") for number in range(40)}
    pairs |= {f"k{number}".encode(): bytes(number) for number in range(60)}
    long = [(f"{'long/' * 30}{name}", data) for name, data in members]
    cut = {number: rec_header(1, number, encoded(number) + REC_MAGIC * 3) for number in range(6)}
    return {
        "gnu": (write_tar(root / "gnu.tar", long, format=tarfile.GNU_FORMAT), list_tar),
        "pax": (write_tar(root / "pax.tar", long, format=tarfile.PAX_FORMAT), list_tar),
        "gzip": (write_tar(root / "a.tgz", members), list_tar),
        "zip": (write_zip(root / "stored.zip", members), list_zip),
        "deflated": (write_zip(root / "deflated.zip", members, zipfile.ZIP_DEFLATED), list_zip),
        "lmdb": (write_lmdb(root / "a.lmdb", pairs, folder=False), list_keys),
        "rec": (write_rec(root / "cut.rec", cut), list_records),
        "faces": (write_faces(root / "faces", 3, 2) / "train.rec", list_records),
    }


@pytest.mark.parametrize("name", ["gnu", "pax", "gzip", "zip", "deflated", "lmdb", "rec", "faces"])
@given(data=st.data())
def test_changed_bytes_give_items_or_rejects(name: str, archives: Any, data: st.DataObject) -> None:
    path, list_one = archives[name]
    whole = path.read_bytes()
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        new = data.draw(
            st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8), REC_MAGIC]))
        )
        broken[place : place + len(new)] = new
    stop = data.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))
    crafted = path.with_name(f"crafted-{path.name}")
    crafted.write_bytes(broken[:stop])
    if path.with_suffix(".idx").exists() and data.draw(st.booleans()):
        crafted.with_suffix(".idx").write_bytes(path.with_suffix(".idx").read_bytes())
    else:
        crafted.with_suffix(".idx").unlink(missing_ok=True)
    read_all(list_file(crafted, list_one))


@pytest.mark.parametrize("name", ["gnu", "pax", "gzip", "zip", "deflated", "lmdb", "rec", "faces"])
def test_a_whole_archive_gives_every_item(name: str, archives: Any) -> None:
    found = list_file(*archives[name])
    wanted = {"lmdb": 40, "rec": 6, "faces": 6}.get(name, 4)
    assert [item.reject for item in found.items] == [None] * wanted
    assert read_all(found) == wanted


@pytest.mark.parametrize("name", ["gnu", "pax", "rec", "faces"])
@pytest.mark.parametrize("third", thirds(range(3)))
def test_samples_before_a_cut_are_packed_and_the_rest_is_one_reject(name: str, third: int, archives: Any) -> None:
    """Every cut of the file gives the items that are whole before it, and says why there are no more."""
    path, list_one = archives[name]
    data = path.read_bytes()
    whole = list_file(path, list_one).items
    cut = path.with_name(f"cut-{path.name}")
    end = len(data.rstrip(b"\0"))  # before the end mark of a tar, and the zeros behind it
    for stop in range(third * 257, end, 3 * 257):
        cut.write_bytes(data[:stop])
        found = list_file(cut, list_one).items
        ends = [max(a + b for a, b in zip(i.member.place[::2], i.member.place[1::2], strict=True)) for i in whole]
        kept = [item for item in found if item.reject is None]
        assert [item.member.place for item in kept] == [item.member.place for item in whole[: len(kept)]]
        assert len(kept) in (sum(end <= stop for end in ends), sum(end <= stop for end in ends) - 1)
        rejects = [item for item in found if item.reject is not None]
        if name in ("gnu", "pax"):
            assert len(rejects) in (1, 2)
            assert rejects[-1].name.endswith("!(rest)")
            assert "cut off" in str(rejects[-1].reject)


def tar_of(path: Path, *infos: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, data in infos:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return path


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


REFUSED = {
    "a symbolic link": ([(named("0.jpg", tarfile.SYMTYPE, "/etc/passwd"), b"")], "found a link"),
    "a hard link": ([(named("0.jpg", tarfile.LNKTYPE, "1.jpg"), b"")], "found a link"),
    "a device": ([(named("0.jpg", tarfile.CHRTYPE), b"")], "found a device"),
    "an absolute name": ([(named("/0.jpg"), b"x")], "leads out"),
    "a name that leads out": ([(named("a/../../0.jpg"), b"x")], "leads out"),
    "a field twice": ([(named("0.jpg"), b"x"), (named("0.JPG"), b"y")], "once"),
    "no image": ([(named("0.txt"), b"x"), (named("0.cls"), b"1")], "expected an image or a video, found txt, cls"),
    "a pickle": ([(named("0.jpg"), b"x"), (named("0.pyd"), b"x")], "no pickle"),
    "a torch file": ([(named("0.jpg"), b"x"), (named("0.pth"), b"x")], "no pickle"),
    "no JSON": ([(named("0.jpg"), b"x"), (named("0.json"), b"{")], "expected JSON, found a syntax error: "),
    "deep JSON": ([(named("0.jpg"), b"x"), (named("0.json"), b"[" * 200_000)], "expected at most 32 levels"),
    "nested JSON": ([(named("0.jpg"), b"x"), (named("0.json"), b"[" * 600 + b"]" * 600)], "expected at most 32 levels"),
    "infinite JSON": ([(named("0.jpg"), b"x"), (named("0.json"), b'{"a": Infinity}')], "finite"),
    "no text": ([(named("0.jpg"), b"x"), (named("0.txt"), b"\xff\xfe")], "UTF-8"),
    "a long text": ([(named("0.jpg"), b"x"), (named("0.txt"), bytes(2 << 20))], "at most 1048576 bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_sample_of_a_tar_that_is_refused(tmp_path: Path, what: str) -> None:
    infos, reason = REFUSED[what]
    path = tar_of(tmp_path / "a.tar", *infos, (named("9.jpg"), encoded(9)))
    first, last = list_file(path, list_tar).items
    assert reason in str(first.reject)
    assert (last.name, last.reject) == ("a.tar!9.jpg", None)


def test_members_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    infos = [(named(name), b"x") for name in ("README", ".hidden.jpg", "a/._0.jpg", "__meta__.json")]
    folder = (named("a", tarfile.DIRTYPE), b"")
    found = list_file(tar_of(tmp_path / "a.tar", folder, *infos, (named("./a/0.jpg"), encoded(0))), list_tar)
    assert ([item.name for item in found.items], found.ignored.count) == (["a.tar!a/0.jpg"], 4)


def test_members_apart_from_their_sample_reject_it(tmp_path: Path) -> None:
    names = ["0.jpg", "1.jpg", "0.cls", "1.cls", "2.cls", "2.jpg"]
    found = list_file(tar_of(tmp_path / "a.tar", *((named(name), b"1") for name in names)), list_tar)
    assert [item.reject is None for item in found.items] == [False, False, False, False, True]
    assert "next to each other" in str(found.items[0].reject)


def test_a_sparse_member_is_a_reject(tmp_path: Path) -> None:
    info = named("0.jpg")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "0.jpg"}
    assert "sparse" in str(list_file(tar_of(tmp_path / "a.tar", (info, b"x")), list_tar).items[0].reject)


def test_a_size_that_lies_ends_the_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.jpg", b"x")])
    for size in (b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"elephants!!!"):
        data = bytearray(path.read_bytes())
        data[124:136] = size
        data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 8 * 32)
        path.write_bytes(data)
        (rest,) = list_file(path, list_tar).items
        assert rest.reject


def test_many_long_names_in_a_row_end_the_archive(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", [("n" * 200 + ".jpg", b"x")], format=tarfile.GNU_FORMAT).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[:1024] * 2000 + data[1024:])
    (rest,) = list_file(tmp_path / "a.tar", list_tar).items
    assert "extended header" in str(rest.reject)


def test_concatenated_tars_are_not_read_as_one(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", [("0.jpg", encoded(0))]).read_bytes()
    (tmp_path / "a.tar").write_bytes(data * 2)
    picture, rest = list_file(tmp_path / "a.tar", list_tar).items
    assert picture.reject is None
    assert "several tar files" in str(rest.reject)


def test_a_gzip_bomb_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.sources.archives.tar._EXPANSION_FREE_BYTES", 1 << 20)
    head = write_tar(tmp_path / "a.tar", [("0.jpg", encoded(0)), ("1.jpg", bytes(40 << 20))]).read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(head))
    found = list_file(tmp_path / "a.tar.gz", list_tar).items
    assert [item.reject is None for item in found] == [True, False]
    assert "times the bytes" in str(found[-1].reject)


def test_a_sample_of_very_many_members_is_a_reject(tmp_path: Path) -> None:
    many = [(f"0.{number}.jpg", b"") for number in range(1500)]
    large = [(f"1.{number}.txt", bytes(1 << 20)) for number in range(20)]
    path = write_tar(tmp_path / "a.tar", [*many, *large, ("2.jpg", encoded(2))])
    assert ["at most 1000" in str(item.reject) for item in list_file(path, list_tar).items] == [True, True, False]


@pytest.mark.parametrize("flag", [1, 7, 1 << 20, 2**32 - 1])
def test_a_label_longer_than_its_record_is_a_reject(tmp_path: Path, flag: int) -> None:
    header = flag.to_bytes(4, "little") + bytes(20)
    path = write_rec(tmp_path / "a.rec", {0: header, 1: rec_header(3, 1, encoded(1))}, index=False)
    first, last = list_file(path, list_records).items
    assert "numbers of its label" in str(first.reject)
    assert (last.reject, last.columns) == (None, {"cls": 3})


def test_records_after_damage_are_found_by_the_index(tmp_path: Path) -> None:
    path = write_rec(tmp_path / "a.rec", {n: rec_header(n, n, encoded(n)) for n in range(5)})
    data = bytearray(path.read_bytes())
    second = int(path.with_suffix(".idx").read_text().splitlines()[1].split()[1])
    data[second] ^= 1
    path.write_bytes(data)
    found = {item.name: item.reject for item in list_file(path, list_records).items}
    assert [name for name, reject in found.items() if reject is None] == [f"a.rec!{n}" for n in (0, 2, 3, 4)]
    assert {"a.rec!1", "a.rec!(rest)"} <= found.keys()
    path.with_suffix(".idx").unlink()
    assert [item.reject is None for item in list_file(path, list_records).items] == [True, False]


ZIP = b"PK\x05\x06" + bytes(18)
"""An empty zip, which `numpy.load` opens as a set of arrays."""


@pytest.mark.parametrize(
    "data",
    [
        npy([{"a": 1}]),
        npy(0)[:-1],
        npy(0) + b"x",
        b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 9000,
        b"\x93NUMPY\x01\x00",
        npy(0).replace(b"'<i8'", b"'<M8'"),
        npy([1.0]).replace(b"(1,)", b"(9999999999999,)"),
        ZIP,
    ],
)
def test_a_crafted_array_is_refused(data: bytes) -> None:
    with pytest.raises(ItemError):
        parse_npy(data)


def test_a_crafted_parquet_file_is_one_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", 20)
    data = path.read_bytes()
    for stop in (0, 3, len(data) // 2, len(data) - 5):
        path.write_bytes(data[:stop])
        with pytest.raises(UsageError, match="expected a Parquet file"):
            packer.build(path, tmp_path / "out", progress=False)


def test_the_valid_items_of_a_hostile_archive_are_packed(tmp_path: Path) -> None:
    infos = [entry for what in REFUSED for entry in REFUSED[what][0][:1]]
    members = [
        (named(f"{number}/{info.name.strip('/')}", info.type, info.linkname), data)
        for number, (info, data) in enumerate(infos)
    ]
    (tmp_path / "tars").mkdir()
    tar_of(tmp_path / "tars" / "a.tar", *members)
    write_tar(tmp_path / "tars" / "b.tar", samples(0, 5))
    (tmp_path / "tars" / "c.tar").write_bytes(b"no tar at all" * 100)
    run_packer("build", tmp_path / "tars", tmp_path / "out", "--quiet", "--max-rejects", "99%")
    lines = [json.loads(line) for line in file_of(tmp_path / "out", "items.jsonl").read_text().splitlines()]
    packed = [line["item"] for line in lines if line["state"] == "packed"]
    assert packed == [f"b.tar!{number:04d}.jpg" for number in range(5)]
    assert "has changed" not in file_of(tmp_path / "out", "rejects.jsonl").read_text()
    del lines[-1]["source_digest"]
    assert lines[-1] == {"item": "c.tar!(rest)", "state": "rejected", "samples": 0, "frames": 0}
