"""Whole builds: the same bytes whatever runs them, and every option that decides the bytes."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.builds import IMAGES, OPTIONS, TESTS, write_images
from support.command import environment, file_of, read_jsonl, run_packer
from support.media import CODECS, scene, write_image, write_video
from support.packed import check_whole, encoded_values, fingerprints, read_samples
from support.steps import add_measures

import packer
from packer.sources.base import Listing
from packer.sources.item import Item
from packer.vision.decode.image import decode_image
from packer.vision.geometry.resize import resize_shorter
from shardspec.entries import strip_tag
from shardspec.errors import UsageError
from shardspec.layout import Layout


def build(source: Any, out: Path, **options: Any) -> list[dict[str, Any]]:
    """Build in this process and return the samples."""
    packer.build(source, out, **{"engine": "inline", "progress": False, **options})
    check_whole(out)
    return read_samples(out)


class TestSameBytes:
    def test_at_any_number_of_workers(self, mixed: Path, reference: Path, tmp_path: Path) -> None:
        run_packer("build", mixed, tmp_path / "out", *OPTIONS, "--workers", 5)
        assert fingerprints(tmp_path / "out") == fingerprints(reference)

    def test_shuffled(self, mixed: Path, reference: Path, tmp_path: Path) -> None:
        keys = []
        for name, seed in (("a", 7), ("b", 8)):
            run_packer("build", mixed, tmp_path / name, *OPTIONS, "--shuffle", seed)
            check_whole(tmp_path / name)
            keys.append([sample["key"] for sample in read_samples(tmp_path / name)])
        plain = {s["key"]: s for s in read_samples(reference)}
        assert keys[0] != keys[1] != list(plain)
        assert sorted(keys[0]) == sorted(keys[1]) == list(plain)
        for sample in read_samples(tmp_path / "a"):
            assert np.array_equal(sample["image"], plain[sample["key"]]["image"])
            assert sample["label"] == plain[sample["key"]]["label"]

    def test_from_another_folder_and_another_working_directory(
        self, mixed: Path, reference: Path, tmp_path: Path
    ) -> None:
        link = tmp_path / "elsewhere"
        link.symlink_to(mixed, target_is_directory=True)
        run_packer("build", "elsewhere", "out", *OPTIONS, cwd=tmp_path)
        assert fingerprints(tmp_path / "out") == fingerprints(reference)


class TestContents:
    def test_every_item_gives_what_is_in_it(self, mixed: Path, reference: Path) -> None:
        samples = read_samples(reference)
        assert len({sample["key"] for sample in samples}) == len(samples)
        by_source: dict[str, list[dict[str, Any]]] = {}
        for sample in samples:
            by_source.setdefault(sample["source"], []).append(sample)
        assert len(by_source) == IMAGES + 3
        frames = {name: [int(s["frame"]) for s in group] for name, group in by_source.items()}
        assert frames["real/clip.mp4"] == [0, 6, 12, 18]
        assert frames["fake/deep/clip.MOV"] == frames["fake/clip.webm"] == [0, 6, 12]
        times = [float(s["time"]) for s in by_source["real/clip.mp4"]]
        assert times == pytest.approx([0, 0.24, 0.48, 0.72], abs=1e-6)
        assert Layout(reference).load().schema["label"].classes == ("fake", "real")
        for name, group in by_source.items():
            assert {int(s["label"]) for s in group} == {int(name.startswith("real/"))}
            if not name.lower().endswith(("mp4", "mov", "webm")):
                assert (int(group[0]["frame"]), float(group[0]["time"])) == (0, 0.0)
            if name.endswith(".PNG"):
                expected = resize_shorter(decode_image((mixed / name).read_bytes()).image, 32)
                assert np.abs(group[0]["image"].astype(int) - expected).mean() < 8

    def test_the_index_holds_every_scalar_field(self, reference: Path) -> None:
        samples = read_samples(reference)
        layout = Layout(reference)
        scalars = [f.name for f in layout.load().schema if f.is_fixed and not f.shape]
        assert set(scalars) == {"label", "frame", "time", "frame_position"}
        for name in scalars:
            assert np.load(file_of(layout.root, f"index/{name}.npy")).tolist() == [
                sample[name].item() for sample in samples
            ]

    def test_shards_hold_what_was_asked_for(self, reference: Path) -> None:
        shards = Layout(reference).load().shards
        assert len(shards) > 3
        assert [strip_tag(shard.name) for shard in shards] == [f"shard-{k:05d}" for k in range(len(shards))]
        assert [shard.name for shard in shards] == sorted(shard.name for shard in shards)
        values = {name: list(encoded_values(reference, name).values()) for name in ("key", "source", "image")}
        lengths = [sum(map(len, row)) + 8 * 3 for row in zip(*values.values(), strict=True)]
        start = 0
        for shard in shards:
            held = sum(lengths[start : start + shard.samples])
            assert held <= 30_000
            if shard is not shards[-1]:
                assert held + lengths[start + shard.samples] > 30_000
            start += shard.samples

    def test_a_jpeg_that_needs_nothing_keeps_its_bytes(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        plain = write_image(source / "plain.jpg", scene(0, (50, 40)), quality=60)
        grey = write_image(source / "grey.jpg", scene(1, (50, 40))[..., 0], quality=60)
        small = write_image(source / "small.jpg", scene(2, (48, 32)), quality=60)
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = write_image(source / "turned.jpg", scene(3, (50, 40)), quality=60, exif=exif)
        write_image(source / "other.png", scene(4, (50, 40)))
        samples = build(source, tmp_path / "out")
        keys = {sample["source"]: sample["key"] for sample in samples}
        stored = encoded_values(tmp_path / "out", "image")
        for path in (plain, grey, small):
            assert stored[keys[path.name]] == path.read_bytes()
        assert stored[keys["turned.jpg"]] != turned.read_bytes()
        shapes = {sample["source"]: sample["image"].shape for sample in samples}
        assert shapes["turned.jpg"] == (50, 40, 3)
        assert shapes["grey.jpg"] == (40, 50, 3)
        assert Image.open(io.BytesIO(stored[keys["other.png"]])).format == "JPEG"
        # An image that has the size already keeps its bytes as well; the others do not.
        build(source, tmp_path / "sized", size=32)
        stored = encoded_values(tmp_path / "sized", "image")
        assert stored[keys["small.jpg"]] == small.read_bytes()
        assert stored[keys["plain.jpg"]] != plain.read_bytes()

    @pytest.mark.parametrize("encode", ["png", "raw", "webp", "jpeg"])
    def test_images_are_encoded_as_asked(self, tmp_path: Path, encode: str) -> None:
        source = write_images(tmp_path / "source", ["a.png", "b.png"])
        for format in ("lmdb", "npy"):
            samples = build(source, tmp_path / format, encode=encode, format=format)
            for number, sample in enumerate(samples):
                difference = np.abs(sample["image"].astype(int) - scene(number, (24, 18)))
                assert difference.max() == 0 if encode in ("png", "raw") else difference.mean() < 12
            field = Layout(tmp_path / format).load().schema["image"]
            assert field.kind == ("fixed" if encode == "raw" else "bytes")
            assert field.shape == (18, 24, 3)

    def test_raw_images_of_several_sizes_come_back(self, tmp_path: Path) -> None:
        images = [scene(0, (24, 18)), scene(1, (18, 24)), scene(2, (9, 30))]
        for number, picture in enumerate(images):
            write_image(tmp_path / "source" / f"{number}.png", picture)
        samples = build(tmp_path / "source", tmp_path / "out", encode="raw")
        assert Layout(tmp_path / "out").load().schema["image"].shape == (None, None, 3)
        for sample, picture in zip(samples, images, strict=True):
            assert np.array_equal(sample["image"], picture)

    @pytest.mark.parametrize(
        ("options", "shape"),
        [
            ({"size": 16, "resize": "shorter"}, (16, 21, 3)),
            ({"size": 16, "resize": "exact"}, (16, 16, 3)),
            ({"resize": "none"}, (18, 24, 3)),
        ],
    )
    def test_images_are_resized_as_asked(self, tmp_path: Path, options: dict[str, Any], shape: tuple[int, ...]) -> None:
        source = write_images(tmp_path / "source", ["a.png"])
        (sample,) = build(source, tmp_path / "out", **options)
        assert sample["image"].shape == shape

    @pytest.mark.parametrize(
        ("codec", "sampling", "expected"),
        [
            *((codec, {"every": 5}, [0, 5, 10, 15, 20]) for codec in CODECS),
            ("libx264", {"frames": 3}, [4, 12, 20]),
            ("libvpx-vp9", {"fps": 5.0}, [0, 5, 10, 15, 20]),
            ("libx264", {"keyframes": True}, [0, 12]),
            ("mpeg4", {"keyframes": True}, [0, 12]),
        ],
    )
    def test_videos_are_sampled_as_asked(
        self, tmp_path: Path, codec: str, sampling: dict[str, Any], expected: list[int]
    ) -> None:
        suffix = {"libx264": ".mp4", "libvpx-vp9": ".webm", "mpeg2video": ".mpg", "mpeg4": ".avi"}[codec]
        write_video(tmp_path / "source" / f"clip{suffix}", codec=codec)
        samples = build(tmp_path / "source", tmp_path / "out", **sampling)
        found = [int(sample["frame"]) for sample in samples]
        if "keyframes" in sampling:
            expected, found = [0, 12], [index for index in found if index != 23]  # some encoders close with one more
        assert found == expected
        samples = samples[: len(expected)]
        times = [float(sample["time"]) for sample in samples]
        assert np.diff(times) == pytest.approx(np.diff(expected) / 25, abs=2e-3)

    def test_the_limit_takes_the_first_items(self, mixed: Path, reference: Path, tmp_path: Path) -> None:
        samples = build(mixed, tmp_path / "out", size=32, every=6, label_from="folder", limit=5)
        items = read_jsonl(file_of(reference, "items.jsonl"))[:5]
        assert read_jsonl(file_of(tmp_path / "out", "items.jsonl")) == items
        assert {sample["source"] for sample in samples} == {item["item"] for item in items}
        # Class names are those of the whole source: a limit is for a look, and labels must not change with it.
        assert Layout(tmp_path / "out").load().schema["label"].classes == ("fake", "real")


class TestSteps:
    def test_a_users_step_by_name(self, tmp_path: Path) -> None:
        source = write_images(tmp_path / "source", [f"{n}.png" for n in range(40)])
        steps = "decode,support.steps:add_measures"
        env = environment(python_path=TESTS)
        run_packer("build", source, tmp_path / "out", "--steps", steps, "--workers", 2, "--quiet", env=env)
        check_whole(tmp_path / "out")
        samples = read_samples(tmp_path / "out")
        schema = Layout(tmp_path / "out").load().schema
        kinds = {name: schema[name].kind for name in ("mean", "bright", "peaks", "note", "facts", "blob")}
        assert list(kinds.values()) == ["fixed", "fixed", "ragged", "text", "text", "bytes"]
        for number, sample in enumerate(samples):
            picture = scene(int(sample["source"].split(".")[0]), (24, 18))
            assert sample["mean"] == pytest.approx(picture.mean(axis=(0, 1)), rel=1e-5)
            assert sample["bright"] == (picture.mean() > 100)
            assert sample["peaks"].tolist() == np.flatnonzero(picture.max(axis=(1, 2)) > 200).tolist()
            assert sample["note"] == f"of {sample['source']}"
            assert sample["facts"] == {"height": 18}
            assert sample["blob"] == picture[0].tobytes()
            assert sample["key"] == f"{number:08d}-000000"

    def test_a_users_step_as_a_function(self, tmp_path: Path) -> None:
        source = write_images(tmp_path / "source", ["a.png", "b.png"])

        def mirror(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            for sample in samples:
                yield sample
                yield {**sample, "image": sample["image"][:, ::-1]}

        result = packer.build(
            source, tmp_path / "out", steps=["decode", mirror, add_measures], encode="png", progress=False
        )
        assert result.counts.samples == 4
        samples = read_samples(tmp_path / "out")
        assert np.array_equal(samples[0]["image"][:, ::-1], samples[1]["image"])
        assert [sample["key"] for sample in samples[:2]] == ["00000000-000000", "00000000-000001"]
        with pytest.raises(UsageError, match="steps passed as functions need engine='inline'"):
            packer.build(source, tmp_path / "no", steps=["decode", mirror], engine="processes", progress=False)
        assert not (tmp_path / "no").exists()

    def test_a_step_may_run_programs_that_read_and_print(self, tmp_path: Path) -> None:
        source = write_images(tmp_path / "source", ["a.png", "b.png"])
        env = environment(python_path=TESTS)
        for engine in ("processes", "inline"):
            steps = ("--steps", "decode,support.steps:read_input", "--engine", engine)
            limit = ("--item-timeout", "60") if engine == "processes" else ()
            done = run_packer("build", source, tmp_path / engine, *steps, *limit, "--json", "--quiet", env=env)
            assert '"samples": 2' in done.stdout

    def test_a_step_in_the_current_folder_is_found(self, tmp_path: Path) -> None:
        source = write_images(tmp_path / "source", ["a.png"])
        (tmp_path / "my_steps.py").write_text("def same(samples):\n    yield from samples\n")
        command = Path(sys.executable).with_name("packer")
        assert command.exists()
        for extra in (["--dry-run"], ["--engine", "inline", "--overwrite"], ["--overwrite"]):
            done = subprocess.run(
                [command, "build", source, "out", "--steps", "decode,my_steps:same", "--quiet", *extra],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr


class TestPython:
    def test_rows_with_arrays(self, tmp_path: Path) -> None:
        rows = [
            {
                "image": scene(n, (20, 16)),
                "quad": np.arange(4, dtype=np.float32) + n,
                "name": f"n{n}",
                "label": "ab"[n % 2],
            }
            for n in range(5)
        ]
        samples = build(rows, tmp_path / "out", encode="png")
        assert [sample["source"] for sample in samples] == [f"row-{n:08d}" for n in range(5)]
        for number, sample in enumerate(samples):
            assert np.array_equal(sample["image"], rows[number]["image"])
            assert np.array_equal(sample["quad"], rows[number]["quad"])
            assert (sample["name"], int(sample["label"])) == (f"n{number}", number % 2)
        with pytest.raises(
            UsageError, match=r"found 'image' \(ndarray\), 'quad' \(ndarray\): build with --engine inline"
        ):
            packer.build(rows, tmp_path / "other", progress=False, engine="processes")
        assert not (tmp_path / "other").exists()

    def test_rows_with_paths_are_relative_to_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_images(tmp_path / "images", ["a.png"])
        monkeypatch.chdir(tmp_path)
        (sample,) = build([{"path": "images/a.png", "age": 3}], tmp_path / "out")
        assert (sample["source"], int(sample["age"])) == ("images/a.png", 3)

    def test_a_source_of_ones_own(self, tmp_path: Path) -> None:
        write_images(tmp_path, ["a.png", "b.png"])

        class Own:
            def list_items(self, label_from: str, path_column: str) -> Listing:
                paths = [tmp_path / "a.png", tmp_path / "b.png"]
                items = [
                    Item(i, f"own-{i}.png", str(path), path.stat().st_size, columns={"shot": 10 * i})
                    for i, path in enumerate(paths)
                ]
                return Listing(items)

        samples = build(Own(), tmp_path / "out", engine="processes")
        assert [(s["source"], int(s["shot"])) for s in samples] == [("own-0.png", 0), ("own-1.png", 10)]

    def test_the_result_shows_what_was_made_and_a_second_call_finds_it(self, mixed: Path, tmp_path: Path) -> None:
        options: dict[str, Any] = {"size": 32, "limit": 4, "engine": "inline", "progress": False}
        first = packer.build(mixed, tmp_path / "out", **options)
        assert (first.path, first.resumed, first.found_finished) == (tmp_path / "out", False, False)
        assert (first.counts.items, first.counts.packed_items) == (4, 4)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
        second = packer.build(mixed, tmp_path / "out", **options)
        assert (second.resumed, second.found_finished) == (True, True)
        assert second.manifest == first.manifest
        size = sum(shard.bytes for shard in first.manifest.shards) / 1e6
        made = f"4 samples in 1 lmdb shard ({size:.1f} MB) from 4 of 4 items, 0 rejected"
        assert repr(second) == f"<BuildResult {tmp_path}/out: {made}>"
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before

    def test_a_recipe_object_stands_for_its_options(self, mixed: Path, tmp_path: Path) -> None:
        recipe = packer.Recipe(size=32, limit=2)
        result = packer.build(mixed, tmp_path / "out", recipe=recipe, engine="inline", progress=False)
        assert result.manifest.generations[0].recipe["size"] == 32
        with pytest.raises(UsageError, match="either a recipe or its options, found both: size"):
            packer.build(mixed, tmp_path / "out", recipe=recipe, size=3)

    def test_a_dry_run_counts_videos_if_each_gives_as_many_frames(self, tmp_path: Path) -> None:
        for number in range(14):
            write_video(tmp_path / f"in/{number:02}.mp4", frames=4 if number else 200, number=number)
        found = packer.dry_run(tmp_path / "in", tmp_path / "out", frames=3, encode="raw", size=16, progress=False)
        assert found.tried_items < 14
        assert found.samples == 42

    def test_a_dry_run_takes_what_a_build_takes(self, tmp_path: Path) -> None:
        def every_frame_twice(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            for sample in samples:
                yield sample
                yield dict(sample)

        rows = [{"image": np.full((8, 8, 3), number, np.uint8)} for number in range(6)]
        found = packer.dry_run(rows, tmp_path / "out", steps=[every_frame_twice], encode="raw", max_rejects=0.5)
        assert isinstance(found, packer.Estimate)
        assert (found.plan.items, found.samples, found.tried_rejects) == (6, 12, 0)
        assert "tried 6 items: 12 samples, 0 rejects" in found.describe()
        wrong: dict[str, Any]
        for wrong in ({"steps": ["decoed"]}, {"quiet": True}, {"recipe": packer.Recipe(), "size": 3}):
            with pytest.raises(UsageError):
                packer.dry_run(rows, tmp_path / "out", **wrong)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("name", "value", "reported"),
        [
            ("worker", 2, r"unknown option 'worker'; did you mean 'workers'"),
            ("progres", False, r"unknown option 'progres'; did you mean 'progress'"),
        ],
    )
    def test_a_name_that_is_none_here_is_answered_with_what_is(
        self, mixed: Path, tmp_path: Path, name: str, value: Any, reported: str
    ) -> None:
        more: dict[str, Any]
        for more in ({}, {"recipe": packer.Recipe()}):
            with pytest.raises(UsageError, match=reported):
                packer.build(mixed, tmp_path / "out", **{name: value}, **more)
        assert not (tmp_path / "out").exists()
