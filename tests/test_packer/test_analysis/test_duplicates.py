"""``packer duplicates``: samples that look the same, and leaks."""

import csv
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data as photographs
from support.command import run_packer
from support.errors import raises
from support.media import write_image
from support.packed_files import write_faces

import packer
from packer.analysis.duplicates.pixels import distance
from packer.analysis.duplicates.search import connect, near_hashes, near_vectors
from readers import open_dataset
from shardspec.errors import UsageError
from shardspec.layout import Layout

NAMES = ("astronaut", "chelsea", "coffee", "rocket", "camera", "coins", "hubble_deep_field", "immunohistochemistry")
HERE: dict[str, Any] = {"workers": 0, "progress": False}
SPLIT: dict[str, Any] = {"engine": "inline", "progress": False}
BUILD: dict[str, Any] = {"engine": "inline", "progress": False, "label_from": "folder", "encode": "png"}


def images() -> dict[str, Any]:
    """Different images, at most 320 pixels wide."""
    found = {}
    for name in NAMES:
        image = getattr(photographs, name)()
        image = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
        width = min(320, image.shape[1])
        size = (width, image.shape[0] * width // image.shape[1])
        found[name] = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return found


def copies(image: Any) -> dict[str, Any]:
    """Copies that should be found."""
    height, width = image.shape[:2]
    _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])
    return {
        "equal": image,
        "jpeg": cv2.imdecode(jpeg, cv2.IMREAD_COLOR),
        "half": cv2.resize(image, (width // 2, height // 2), interpolation=cv2.INTER_AREA),
        "bright": cv2.convertScaleAbs(image, alpha=1.2),
        "dark": cv2.convertScaleAbs(image, alpha=0.8),
        "crop": image[height // 20 : -(height // 20), width // 20 : -(width // 20)],
        "caption": np.concatenate([image[: height * 7 // 8], np.zeros_like(image[height * 7 // 8 :])]),
        "banner": np.concatenate([np.full_like(image[: height // 8], 255), image[height // 8 :]]),
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of all images as ``real``, and a test set of copies of the first three, one of them ``fake``.

    Both have a black image and a grey one, which are no copies of each other.
    """
    root = tmp_path_factory.mktemp("duplicates")
    for part in ("train", "test"):
        write_image(root / part / "real/black.png", np.zeros((64, 64, 3), np.uint8))
        noise = np.random.default_rng(len(part)).integers(99, 102, (64, 64, 3), np.uint8)
        write_image(root / part / "real/grey.png", noise)
    for name, image in images().items():
        write_image(root / f"train/real/{name}.png", image)
    for number, name in enumerate(NAMES[:3]):
        for kind, copy in copies(images()[name]).items():
            label = "fake" if number == 2 and kind == "jpeg" else "real"
            write_image(root / f"test/{label}/{name}_{kind}.png", copy)
    write_image(root / "test/fake/other.png", np.ascontiguousarray(images()["hubble_deep_field"][::-1]))
    for part in ("train", "test"):
        packer.build(root / part, root / f"{part}_ds", **BUILD)
    return root


def merged(built: Path, out: Path) -> Path:
    """Both sets in one dataset."""
    packer.merge([built / "train_ds", built / "test_ds"], out, classes="unite", engine="inline", progress=False)
    return out


def sources_of(root: Path) -> dict[str, str]:
    """The file of each key."""
    dataset = open_dataset(root)
    return dict(zip(dataset.column("key"), dataset.column("source"), strict=True))


def test_leaks_between_datasets_are_found_with_their_conflicts(built: Path) -> None:
    found = packer.duplicates([built / "train_ds", built / "test_ds"], **HERE)
    train, test = sources_of(built / "train_ds"), sources_of(built / "test_ds")
    pairs = {(Path(train[pair.one.key]).stem, Path(test[pair.other.key]).stem): pair for pair in found.pairs}
    expected = {(name, f"{name}_{kind}") for name in NAMES[:3] for kind in copies(np.zeros((64, 64, 3), np.uint8))}
    assert set(pairs) == expected | {("black", "black")}
    assert found.leaks
    assert {names for names, pair in pairs.items() if pair.distance == 0 and names[0] in NAMES} >= {
        (name, f"{name}_equal") for name in NAMES[:3]
    }
    assert [Path(test[pair.other.key]).stem for pair in found.conflicts] == ["coffee_jpeg"]
    assert len(found.groups) == 4
    assert pairs["black", "black"].distance == 0


def test_across_none_compares_all_samples_of_several_datasets(built: Path) -> None:
    between = packer.duplicates([built / "train_ds", built / "test_ds"], **HERE)
    found = packer.duplicates([built / "train_ds", built / "test_ds"], across="none", **HERE)
    inside = [pair for pair in found.pairs if pair.one.dataset == pair.other.dataset]
    assert found.leaks
    assert inside
    assert {(pair.one, pair.other) for pair in between.pairs} <= {(pair.one, pair.other) for pair in found.pairs}
    assert not packer.duplicates(built / "test_ds", across="none", **HERE).leaks


def test_the_command_ends_with_3_and_writes_the_pairs(built: Path, tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    ran = run_packer(
        "duplicates", built / "train_ds", built / "test_ds", "-o", table, "--json", "--workers", 0, expect=3
    )
    found = json.loads(ran.stdout)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found["pairs"]) == 25
    assert [row["key_b"] for row in rows] == [pair["other"]["key"] for pair in found["pairs"]]
    assert sum(row["different_labels"] == "1" for row in rows) == 1
    wrong = table.with_suffix(".txt")
    assert "pairs.txt" in run_packer("duplicates", built / "test_ds", "-o", wrong, expect=2).stderr
    assert not wrong.exists()


def test_one_dataset_without_leaks_ends_with_0(built: Path, tmp_path: Path) -> None:
    ran = run_packer("duplicates", built / "train_ds", "--workers", 0)
    assert "no duplicates" in ran.stdout


def test_stored_hashes_find_the_same(built: Path, tmp_path: Path) -> None:
    whole = merged(built, tmp_path / "all")
    before = packer.duplicates(whole, across="none", **HERE)
    packer.compute(whole, ["hash", "digest"], **HERE)
    after = packer.duplicates(whole, across="none", **HERE)
    assert before.to_json()["pairs"] == after.to_json()["pairs"]
    assert not after.leaks


def test_groups_are_stored_and_split_by(built: Path, tmp_path: Path) -> None:
    whole = merged(built, tmp_path / "all")
    found = packer.duplicates(whole, across="none", column="duplicate_group", **HERE)
    numbers = dict(zip(open_dataset(whole).column("key"), open_dataset(whole).column("duplicate_group"), strict=True))
    for group in found.groups:
        assert len({int(numbers[sample.key]) for sample in group}) == 1
    assert len(set(numbers.values())) == len(numbers) - sum(len(group) - 1 for group in found.groups)
    packer.duplicates(whole, across="none", column="duplicate_group", **HERE)
    parts = packer.split(
        whole, tmp_path / "parts", by="duplicate_group", ratios="train=0.5,test=0.5", engine="inline", progress=False
    )
    again = packer.duplicates([part.result.path for part in parts.parts], **HERE)
    assert not again.pairs
    with raises(UsageError, option="column"):
        packer.duplicates(whole, column="label", **HERE)


def test_across_a_field_of_one_dataset(built: Path, tmp_path: Path) -> None:
    whole = merged(built, tmp_path / "all")
    keys, split = open_dataset(whole).column("key"), ["train"] * len(open_dataset(built / "train_ds"))
    split += ["test"] * (len(keys) - len(split))
    packer.add(whole, {"key": keys, "split": split}, progress=False)
    found = packer.duplicates(whole, across="split", **HERE)
    assert found.leaks
    assert all({pair.one.across, pair.other.across} == {"train", "test"} for pair in found.pairs)
    assert len(found.pairs) == 25
    with raises(UsageError, option="across"):
        packer.duplicates(whole, across="image", **HERE)


def test_vectors_are_compared_by_their_cosine(built: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        packer.copy(built / f"{part}_ds", tmp_path / part, progress=False)
        keys = open_dataset(tmp_path / part).column("key")
        vectors = rng.normal(size=(len(keys), 64)).astype(np.float32)
        vectors[3] = np.arange(64) * (2 if part == "test" else 1)
        packer.add(tmp_path / part, {"key": keys, "embedding": vectors}, progress=False)
    found = packer.duplicates([tmp_path / "train", tmp_path / "test"], by="embedding", within=0.2, progress=False)
    assert [(pair.one.row, pair.other.row) for pair in found.pairs] == [(3, 3)]
    with raises(UsageError, option="within"):
        packer.duplicates(tmp_path / "train", by="embedding", progress=False)
    for option, wrong in (("within", "x"), ("within", 3), ("workers", "x"), ("workers", -1), ("column", 5)):
        with raises(UsageError, option=option):
            packer.duplicates(tmp_path / "train", progress=False, **{option: wrong})
    with raises(UsageError, option="by"):
        packer.duplicates(tmp_path / "train", by="label", within=0.2, progress=False)
    with raises(UsageError, option="by"):
        packer.duplicates(tmp_path / "train", by="label", progress=False)
    packer.add(tmp_path / "test", {"key": keys, "embedding": vectors[:, :5]}, replace=True, progress=False)
    with raises(UsageError, option="by", expected=f"vectors of 64 numbers as in {tmp_path / 'train'}", found=5):
        packer.duplicates([tmp_path / "train", tmp_path / "test"], by="embedding", within=0.2, progress=False)


def test_frames_of_a_track_count_as_one_and_share_a_number(tmp_path: Path) -> None:
    """Two tracks of one person, and one of another, with a vector for each track, as `identity` makes them."""
    write_faces(tmp_path / "faces", 12, "npy")
    vectors = np.eye(8, dtype=np.float32)[[0, 0, 5]] + [[0], [0.01], [0]]
    keys = open_dataset(tmp_path / "faces").column("key")
    source = [int(key[:8]) for key in keys]
    packer.add(tmp_path / "faces", {"key": keys, "face": vectors[source].astype(np.float32)}, progress=False)
    found = packer.duplicates(tmp_path / "faces", by="face", within=0.1, column="person", progress=False)
    assert [{pair.one.key[:8], pair.other.key[:8]} for pair in found.pairs] == [{"00000000", "00000001"}]
    person = open_dataset(tmp_path / "faces").column("person")
    assert [len({int(person[row]) for row in range(12) if source[row] in some}) for some in ((0, 1), (2,))] == [1, 1]
    assert len(set(person.tolist())) == 2
    parts = packer.split(tmp_path / "faces", tmp_path / "parts", by="person", ratios="a=0.5,b=0.5", **SPLIT)
    persons = [set(open_dataset(part.result.path).column("person").tolist()) for part in parts.parts]
    assert persons[0].isdisjoint(persons[1])


def test_no_dataset_and_one_twice_are_errors(built: Path) -> None:
    for wrong in ([], [built / "train_ds"] * 2, [built / "train_ds", f"{built}/test_ds/../train_ds/"]):
        with raises(UsageError, option="datasets"):
            packer.duplicates(wrong, progress=False)
    assert Layout(built / "train_ds").load().columns == ()


def test_near_hashes_are_those_of_a_search_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 600, dtype=np.uint64)
    for row in range(300):
        flips = rng.choice(64, row % 12, replace=False)
        hashes[300 + row] = hashes[row] ^ np.uint64(sum(1 << int(bit) for bit in flips))
    group = np.arange(600) % 7
    bits = np.bitwise_count(hashes[:, None] ^ hashes[None])
    exact = {
        (one, other) for one, other in np.argwhere(bits <= 7).tolist() if one < other and group[one] != group[other]
    }
    ones, others = near_hashes(hashes, group)
    found = set(zip(ones.tolist(), others.tolist(), strict=True))
    assert exact <= found
    assert all(bits[one, other] <= 8 and group[one] != group[other] for one, other in found)


def test_near_vectors_are_those_of_a_search_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.analysis.duplicates.search._BLOCK", 16)
    rng = np.random.default_rng(0)
    vectors, group = rng.normal(size=(100, 4)), np.arange(100) % 3
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    expected = {(a, b) for a in range(100) for b in range(a + 1, 100) if cosine[a, b] >= 0.9 and group[a] != group[b]}
    found = near_vectors(vectors, group, 0.1)
    assert set(zip(found.ones.tolist(), found.others.tolist(), strict=True)) == expected
    np.testing.assert_allclose(found.distance, 1 - cosine[found.ones, found.others], atol=1e-6)


def test_rows_are_connected_through_others() -> None:
    assert connect(10, np.array([5, 1, 2, 7]), np.array([1, 2, 9, 8])).tolist() == [0, 1, 1, 2, 3, 1, 4, 5, 5, 1]


def test_images_without_structure_are_never_alike() -> None:
    black = np.zeros((64, 64), np.uint8)
    photo = cv2.resize(photographs.camera(), (64, 64), interpolation=cv2.INTER_AREA)
    assert distance(black, black) == 2
    assert distance(black, photo) > 0.9
    assert distance(photo, photo) == pytest.approx(0, abs=1e-5)
