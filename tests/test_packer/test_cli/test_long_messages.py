"""Messages and reasons stay short, whatever is in the source, and say where and what to do."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.builds import QUIET
from support.command import file_of, read_jsonl, run_packer
from support.media import scene, write_image

from packer import build, merge
from shardspec.errors import UsageError


def png_of(number: int) -> bytes:
    """An image of some 100 kB."""
    file = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (200, 200, 3), np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


def test_images_in_place_of_paths(tmp_path: Path) -> None:
    """As texts: bytes would be images in a table."""
    values = [png_of(number).hex() for number in range(4)]
    pq.write_table(pa.table({"photo": values, "label": [0, 1, 0, 1]}), tmp_path / "t.parquet")
    call = (tmp_path / "t.parquet", tmp_path / "out", "--path-column", "photo")
    done = run_packer("build", *call, expect=3)
    assert "row 0 (counted from 0): expected a path in column 'photo', found " in done.stderr
    assert len(done.stdout) + len(done.stderr) < 2500
    (rejects,) = (tmp_path / "out").rglob("rejects*.jsonl")
    assert len(read_jsonl(rejects)) == 4
    assert rejects.stat().st_size < 4000
    assert all(path.stat().st_size < 10_000 for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_messages_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "def fail(samples):\n    for sample in samples:\n        raise ValueError('no' * 10**6)\n        yield\n"
        "def damaged(samples):\n    for sample in samples:\n        for _ in range(99):\n            sample['_report'].add_damage('x' * 999)\n"
        "            sample['_report'].skip(0, 'dark' * 10**5)\n        yield sample\n"
    )
    write_image(tmp_path / "in" / "a.png", scene(0, (24, 16)))
    call = (tmp_path / "in", tmp_path / "out", "--quiet")
    done = run_packer("build", *call, "--steps", "decode,loud:fail", python_path=tmp_path, expect=3)
    assert "loud:fail: ValueError: nono" in done.stderr
    assert len(done.stderr) < 1500
    run_packer("build", *call, "--steps", "decode,loud:damaged", "--overwrite", python_path=tmp_path)
    lines = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert {line["kind"] for line in lines} == {"frames", "damage"}
    assert all(len(line["reason"]) < 1100 for line in lines)


def test_the_error_for_a_column_of_bytes_offers_a_cure(tmp_path: Path) -> None:
    write_image(tmp_path / "0.png", scene(0, (24, 16)))
    pq.write_table(pa.table({"path": ["0.png"], "thumb": [b"\x00\x01"], "n": [1]}), tmp_path / "t.parquet")
    call = (tmp_path / "t.parquet", tmp_path / "out", "--quiet")
    done = run_packer("build", *call, expect=2, process=True)
    assert (
        "which worker processes can read from the plan, found 'thumb' (bytes): build with --engine inline"
        in done.stderr
    )
    run_packer("build", *call, "--engine", "inline")


def test_the_error_for_a_struct_with_bytes_offers_a_cure(tmp_path: Path) -> None:
    write_image(tmp_path / "0.png", scene(0, (24, 16)))
    table = pa.table({"path": ["0.png"], "photo": [{"bytes": png_of(0), "path": "x"}]})
    pq.write_table(table, tmp_path / "t.parquet")
    done = run_packer("build", tmp_path / "t.parquet", tmp_path / "out", expect=2)
    assert "column 'photo', row 0 (counted from 0): expected values that can be written as JSON, " in done.stderr
    assert "leave the column out of the source" in done.stderr
    assert len(done.stderr) < 400


@pytest.mark.parametrize(
    ("name", "found"), [("b.wav", "a sound file"), ("b.png", "an image"), ("b", "a file without suffix")]
)
def test_the_files_that_also_names_next_to_a_video(tmp_path: Path, name: str, found: str) -> None:
    from packer import Recipe
    from packer.builds.planning.listing import list_items
    from packer.sources.opening import open_source

    for file in ("a.mp4", name):
        (tmp_path / file).write_bytes(b"x")
    (tmp_path / "t.csv").write_text(f"path,sound\na.mp4,{name}\n")
    recipe = Recipe(preset="faces", also="sound")
    (item,) = list_items(open_source(tmp_path / "t.csv", tmp_path / "out", recipe), recipe).items
    assert item.reject == f"column 'sound', '{name}': expected a video like 'a.mp4', found {found}"


def test_inspect_says_how_many_classes_it_leaves_out(tmp_path: Path) -> None:
    rows = [{"image": scene(0, (8, 8)), "label": f"class {number:02d}"} for number in range(20)]
    build(rows, tmp_path / "many", **QUIET)
    reported = run_packer("inspect", tmp_path / "many").stdout
    assert "20 classes: class 00, class 01" in reported
    assert "class 07 and 12 more" in reported
    build(rows[:8], tmp_path / "few", **QUIET)
    reported = run_packer("inspect", tmp_path / "few").stdout
    assert "8 classes: class 00" in reported
    assert "more" not in reported


def test_many_columns_and_classes(tmp_path: Path) -> None:
    write_image(tmp_path / "0.png", scene(0, (24, 16)))
    names = [f"column_{number:04d}" for number in range(2000)]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 2000) + "\n")
    for options in (
        [],
        ["--path-column", "column_0001", "--label-from", "x"],
        ["--path-column", "column_0001", "--text", "x"],
    ):
        done = run_packer("build", tmp_path / "t.csv", tmp_path / "out", *options, expect=2)
        assert "and 199" in done.stderr
        assert len(done.stderr) < 600
    image = scene(0, (8, 8))
    build([{"image": image, "label": f"{number:04d}"} for number in range(500)], tmp_path / "classes", **QUIET)
    build([{"image": image, "label": 3, **dict.fromkeys(names, 1)}], tmp_path / "columns", **QUIET)
    with pytest.raises(UsageError, match="more differences") as caught:
        merge([tmp_path / "classes", tmp_path / "columns"], tmp_path / "out", **QUIET)
    assert len(str(caught.value)) < 2000
    with pytest.raises(UsageError) as caught:
        merge([tmp_path / "columns", tmp_path / "classes"], tmp_path / "out", **QUIET)
    assert len(str(caught.value)) < 2000
    build([{"image": image, "label": f"{number:04d}"} for number in range(300)], tmp_path / "fewer", **QUIET)
    with pytest.raises(UsageError) as caught:
        build([{"image": image, "label": f"{number:04d}"} for number in range(300)], tmp_path / "columns", **QUIET)
    assert len(str(caught.value)) < 2000


def test_long_patterns_names_and_columns(tmp_path: Path) -> None:
    """Each of them in one message, none longer than a screen."""
    for number in range(4):
        name = f"{number:02d}{'n' * 200}.png"
        write_image(tmp_path / "in" / ("f" * 200) / ("g" * 200) / name, scene(0, (8, 8)))
    patterns = [f"{number}{'x' * 3000}" for number in range(20)]
    made = build(tmp_path / "in", tmp_path / "out", exclude=patterns, **QUIET)
    (line,) = made.notes
    assert "and 12 more match no file or folder" in line
    for options in (
        {"exclude": patterns[1:]},  # another plan
        {"include": patterns},
        {"fields_from_path": "{a}/" * 500},
        {"fields_from_path": f"{{{'a' * 5000}}}"},
        {"fields_from_path": "**/{label}_{n}.png", "label_from": "l" * 5000},
        {"label_from": "l" * 5000},
        {"text": "t" * 5000, "sidecars": True},
        {"sidecars": True},
    ):
        with pytest.raises(UsageError) as caught:
            build(tmp_path / "in", tmp_path / "out", **options, **QUIET)
        assert len(str(caught.value)) < 2000
    write_image(tmp_path / "0.png", scene(0, (8, 8)))
    for columns in (["k" * 9999, "K" * 9999], ["Key" + "!" * 9999], ["i" * 9999]):
        (tmp_path / "t.csv").write_text(
            ",".join(["path", *columns]) + "\n" + ",".join(["0.png", *["1x"] * len(columns)])
        )
        with pytest.raises(UsageError) as caught:
            build(tmp_path / "t.csv", tmp_path / "table", int=[columns[0]], **QUIET)
        assert len(str(caught.value)) < 2000
