"""Zip files as sources: what is packed is what the unpacked files give."""

import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import known_trees as trees
from support.archives import encoded, write_zip
from support.command import file_of, run_packer

import packer
from packer.sources import member_bytes
from packer.sources.archives import zip_directory
from readers import open_dataset
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout

METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def build(source: Any, out: Path, **options: Any) -> Any:
    packer.build(source, out, progress=False, **{"engine": "inline", **options})
    return open_dataset(out)


def rejects(out: Path) -> dict[str, str]:
    lines = map(json.loads, file_of(out, "rejects.jsonl").read_text("utf-8").splitlines())
    return {line["item"]: line["reason"] for line in lines}


@pytest.mark.parametrize("method", METHODS)
def test_a_zip_gives_the_images_of_the_unpacked_folder(tmp_path: Path, method: str) -> None:
    members = [(f"{cls}/{number}.jpg", encoded(number)) for number, cls in enumerate(["cat", "dög"] * 5)]
    path = write_zip(tmp_path / "pets.zip", [*members, ("readme.txt", b"x")], METHODS[method])
    zipfile.ZipFile(path).extractall(tmp_path / "pets")
    zipped = build(path, tmp_path / "a", label_from="folder")
    plain = build(tmp_path / "pets", tmp_path / "b", label_from="folder")
    packer.export(tmp_path / "a", tmp_path / "files-a", progress=False)
    packer.export(tmp_path / "b", tmp_path / "files-b", progress=False)
    assert sorted(file.read_bytes() for file in (tmp_path / "files-a").rglob("*.jpg")) == sorted(
        data for _, data in members
    )
    assert zipped.classes == plain.classes == ("cat", "dög")
    labels = {f"pets.zip!{row['source']}": int(row["label"]) for row in plain}
    assert {row["source"]: int(row["label"]) for row in zipped} == labels


def test_several_zips_are_one_source(tmp_path: Path) -> None:
    for part in range(3):
        write_zip(tmp_path / "in" / f"part_{part}.zip", [(f"test/p{part}/x.jpg", encoded(part))])
    for source in (tmp_path / "in", tmp_path / "in" / "part_{0..2}.zip"):
        out = tmp_path / f"out-{source.name}"
        dataset = build(source, out, fields_from_path="{split}/{person}/*", label_from="person")
        assert [row["source"] for row in dataset] == [f"part_{part}.zip!test/p{part}/x.jpg" for part in range(3)]
        assert dataset.classes == ("p0", "p1", "p2")
        assert {row["split"] for row in dataset} == {"test"}


def test_names_in_both_encodings(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "a.zip", [("n\N{LATIN SMALL LETTER O WITH DIAERESIS}.jpg", encoded(0)), ("QQ.jpg", encoded(1))]
    )
    path.write_bytes(path.read_bytes().replace(b"QQ.jpg", b"\x94\x81.jpg"))  # code page 437, without the flag of UTF-8
    assert [row["source"] for row in build(path, tmp_path / "out")] == ["a.zip!nö.jpg", "a.zip!öü.jpg"]


def test_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    path = write_zip(tmp_path / "a.zip", [(f"{number}.jpg", encoded(number)) for number in range(4)])
    assert b"PK\x06\x06" in path.read_bytes()  # the end of a zip64 directory
    monkeypatch.undo()
    assert len(build(path, tmp_path / "out")) == 4
    assert not rejects(tmp_path / "out")


def test_a_large_stored_video_is_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.make_celeb_df(tmp_path / "tree")
    video = (tmp_path / "tree" / "Celeb-real" / "id0_0000.mp4").read_bytes()
    path = write_zip(tmp_path / "a.zip", [("a.mp4", video)])
    monkeypatch.setattr(member_bytes, "_read_zipped", lambda *_: pytest.fail("the whole video was read into memory"))
    assert len(build(path, tmp_path / "out", frames=2)) == 2


def test_what_cannot_be_read_is_a_reject_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    image = encoded(0)
    link = zipfile.ZipInfo("link.jpg")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.jpg", image)
        archive.writestr("../up.jpg", image)
        archive.writestr("/root.jpg", image)
        archive.writestr("inner.zip", b"PK")
        archive.writestr("sub/inner.tar.gz", b"")
        archive.writestr(link, "good.jpg")
        archive.writestr("squeezed.jpg", image, zipfile.ZIP_BZIP2)
        archive.writestr("secret.jpg", image)
        archive.writestr("other.jpg", image)
        archive.writestr("__MACOSX/._good.jpg", b"x")
        archive.getinfo("secret.jpg").flag_bits |= 1
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("other.jpg", image)
    with pytest.raises(TooManyRejectsError):
        build(path, tmp_path / "out")
    reasons = {name.removeprefix("a.zip!"): reason for name, reason in rejects(tmp_path / "out").items()}
    for name, part in {
        "../up.jpg": "leads out",
        "/root.jpg": "leads out",
        "inner.zip": "archive within",
        "sub/inner.tar.gz": "archive within",
        "link.jpg": "link",
        "squeezed.jpg": "bzip2",
        "secret.jpg": "encrypted",
        "other.jpg": "again",
    }.items():
        assert part in reasons.pop(name)
    assert not reasons
    assert [row["source"] for row in open_dataset(tmp_path / "out")] == ["a.zip!good.jpg", "a.zip!other.jpg"]
    assert not (tmp_path / "up.jpg").exists()


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_directory, "MAX_UNPACKED_BYTES", 10**6)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.jpg", encoded(0))
        archive.writestr("honest.jpg", bytes(2 * 10**6))
        archive.writestr("lying.jpg", bytes(50 * 10**6))
        archive.getinfo("lying.jpg").file_size = 1000
    with pytest.raises(TooManyRejectsError):
        build(path, tmp_path / "out")
    found = rejects(tmp_path / "out")
    assert "at most 1000000 bytes" in found["a.zip!honest.jpg"]
    assert "1000 bytes with the checksum" in found["a.zip!lying.jpg"]


@pytest.mark.parametrize("keep", [0, 10, 400])
def test_a_zip_that_is_cut_off_is_one_line(tmp_path: Path, keep: int) -> None:
    path = write_zip(tmp_path / "a.zip", [(f"{number}.jpg", encoded(number)) for number in range(3)])
    path.write_bytes(path.read_bytes()[:keep])
    done = run_packer("build", path, tmp_path / "out", expect=3)
    assert "a.zip" in done.stderr


def test_an_empty_zip_and_one_without_its_beginning_spoil_no_others(tmp_path: Path) -> None:
    source = tmp_path / "zips"
    source.mkdir()
    zipfile.ZipFile(source / "a.zip", "w").close()
    path = write_zip(source / "b.zip", [(f"{number}.jpg", encoded(number)) for number in range(3)])
    path.write_bytes(path.read_bytes()[30:])
    with pytest.raises(TooManyRejectsError):
        build(source, tmp_path / "out")
    assert [row["source"] for row in open_dataset(tmp_path / "out")] == ["b.zip!1.jpg", "b.zip!2.jpg"]
    assert "damaged" in rejects(tmp_path / "out")["b.zip!0.jpg"]


def zip_folders(tree: Path, out: Path, method: int) -> Path:
    """Each folder of a tree as a zip file, as datasets are published, next to the tree's other files."""
    out.mkdir(parents=True)
    for place in sorted(tree.iterdir()):
        if place.is_dir():
            files = sorted(path for path in place.rglob("*") if path.is_file())
            members = [(path.relative_to(tree).as_posix(), path.read_bytes()) for path in files]
            write_zip(out / f"{place.name}.zip", members, method)
        else:
            (out / place.name).write_bytes(place.read_bytes())
    return out


@pytest.mark.parametrize(("name", "make"), [("dfdc", trees.make_dfdc), ("celeb-df", trees.make_celeb_df)])
def test_a_published_dataset_in_zips_has_the_digest_of_the_unpacked_one(tmp_path: Path, name: str, make: Any) -> None:
    tree = make(tmp_path / "unpacked" / "data")
    zips = zip_folders(tree, tmp_path / "zipped" / "data", zipfile.ZIP_DEFLATED)
    digests = []
    for root in (tree, zips):
        found = packer.list_dataset(name, root, root.parent / "rows.csv", progress=False)
        out = root.parent / "out"
        build(root.parent / "rows.csv", out, root=root, frames=2, preset="images", label_from="label")
        assert not rejects(out)
        digests.append((found.rows, found.missing, found.unlisted, Layout(out).load().digest))
    assert digests[0] == digests[1]


@pytest.fixture
def celeba(tmp_path: Path) -> Iterator[Path]:
    """CelebA as it is published: a zip file of the images, and a table of their attributes."""
    root = tmp_path / "celeba"
    write_zip(root / "img_align_celeba.zip", [(f"img_align_celeba/{n:06d}.jpg", encoded(n)) for n in range(1, 7)])
    lines = ["image_id,Smiling,Male", *(f"{n:06d}.jpg,{1 if n % 2 else -1},1" for n in range(1, 7))]
    (root / "list_attr_celeba.csv").write_text("\n".join(lines) + "\n")
    return root


def test_a_table_of_files_that_are_still_zipped(celeba: Path, tmp_path: Path) -> None:
    images = celeba / "img_align_celeba"
    options = {"root": images, "path_column": "image_id", "label_from": "Smiling"}
    zipped = build(celeba / "list_attr_celeba.csv", tmp_path / "a", **options)
    zipfile.ZipFile(celeba / "img_align_celeba.zip").extractall(celeba)
    build(celeba / "list_attr_celeba.csv", tmp_path / "b", **options)
    assert len(zipped) == 6
    assert Layout(tmp_path / "a").load().digest == Layout(tmp_path / "b").load().digest


def test_a_table_whose_zip_is_damaged_is_refused(celeba: Path, tmp_path: Path) -> None:
    data = (celeba / "img_align_celeba.zip").read_bytes()
    (celeba / "img_align_celeba.zip").write_bytes(data[:-30])
    with pytest.raises(UsageError, match="img_align_celeba"):
        build(celeba / "list_attr_celeba.csv", tmp_path / "a", root=celeba, path_column="image_id")
