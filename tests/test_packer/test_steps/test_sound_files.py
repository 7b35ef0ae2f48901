"""``--preset sound``: sound files as items, whole or in pieces."""

import shutil
import subprocess
import tarfile
import wave
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from support.builds import QUIET
from support.command import file_of, read_jsonl
from support.errors import raises
from support.packed import check_whole, read_samples
from support.sound import CLICK_S, SOUND_CODECS, click, straight, tone, write_sound

import packer
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.dataset_view import DatasetView
from packer.page.view import make_app
from readers import Loader, open_dataset
from readers.augment import Compose, TimeCrop, TimeMask
from shardspec.errors import BuildError, UsageError
from shardspec.layout import Layout

RATE = 16000
BARE = (".aac",)
"""Suffixes of files that do not say how many samples their encoder added."""


def build(source: Any, out: Path, **options: Any) -> list[dict[str, Any]]:
    packer.build(source, out, **{"preset": "sound", "max_rejects": 1.0, **QUIET, **options})
    check_whole(out)
    return read_samples(out)


def rejects(out: Path) -> dict[str, str]:
    return {line["item"]: line["reason"] for line in read_jsonl(file_of(out, "rejects.jsonl"))}


def write_folder(root: Path) -> Path:
    """Six tones in two classes, of several types and lengths."""
    for number, suffix in enumerate((".wav", ".mp3", ".flac", ".m4a", ".opus", ".ogg")):
        folder = root / ("low" if number % 2 else "high")
        rate = 48000 if suffix == ".opus" else 44100
        write_sound(folder / f"{number}{suffix}", tone(300 + 200 * (number % 2), 1 + number / 4, rate), rate)
    return root


@pytest.mark.parametrize("suffix", SOUND_CODECS)
@pytest.mark.parametrize("rate", [None, RATE])
def test_every_type_is_exact_to_the_sample(tmp_path: Path, suffix: str, rate: int | None) -> None:
    own = 48000 if SOUND_CODECS[suffix] == "libopus" else 44100
    path = write_sound(tmp_path / "in" / f"a{suffix}", click(own, 2.0), own)
    (sample,) = build(tmp_path / "in", tmp_path / "out", audio=rate)
    found, at = sample["audio"], sample["audio_rate"]
    assert (found.dtype, at, sample["piece"], sample["time"]) == (np.int16, rate or own, 0, 0)
    assert sample["seconds"] == len(found) / at
    whole, _ = straight(path, at)
    assert np.array_equal(found, whole[: len(found)])
    if suffix not in BARE:
        assert len(found) == 2 * at
        assert np.abs(found.astype(np.int64)).argmax() == CLICK_S * at
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is not None:
        command = [ffmpeg, "-v", "error", "-i", str(path), "-ac", "1", "-ar", str(at), "-f", "s16le", "-"]
        other = np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, "<i2")
        # The program keeps the padding at the end of an M4A, and other versions of it may round differently.
        assert len(other) == len(found) or suffix == ".m4a"
        assert np.abs(other[: len(found)].astype(np.int64) - found).max() <= 2


def write_sphere(path: Path, samples: Any, coding: str = "pcm") -> bytes:
    """Write a NIST SPHERE file of 16 bits, as TIMIT and the Wall Street Journal corpus have; return its content."""
    kinds = {"sample_count": len(samples), "sample_rate": RATE, "channel_count": 1, "sample_n_bytes": 2}
    lines = ["NIST_1A", "   1024", *(f"{name} -i {value}" for name, value in kinds.items())]
    lines += ["sample_byte_format -s2 10", f"sample_coding -s{len(coding)} {coding}", "end_head", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode().ljust(1024) + samples.astype(">i2").tobytes())
    return path.read_bytes()


def test_sphere_files_are_packed(tmp_path: Path) -> None:
    samples = np.round(tone(440, 1.5, RATE) * 32767).astype(np.int16)
    content = write_sphere(tmp_path / "in" / "a.sph", samples)
    (tmp_path / "in" / "b.WAV").write_bytes(content)  # as TIMIT names them
    (tmp_path / "in" / "cut.sph").write_bytes(content[: len(content) // 2])
    write_sphere(tmp_path / "in" / "shorten.sph", samples, "pcm,embedded-shorten-v2.00")  # but not compressed so
    for sample in build(tmp_path / "in", tmp_path / "out"):
        assert np.array_equal(sample["audio"], samples)
        assert sample["audio_rate"] == RATE
    found = rejects(tmp_path / "out")
    assert found.keys() == {"cut.sph", "shorten.sph"}
    assert "announces 1.50 s" in found["cut.sph"]


def test_the_padding_that_itunes_notes_is_cut_off(tmp_path: Path) -> None:
    note = f" 00000000 00000400 00000000 {30000:016X}"
    path = tmp_path / "in" / "a.m4a"
    write_sound(path, tone(440, 1, 44100), 44100, options={"movflags": "use_metadata_tags"})
    with (
        av.open(str(path)) as source,
        av.open(str(tmp_path / "in" / "b.m4a"), "w", format="mp4", options={"movflags": "use_metadata_tags"}) as target,
    ):
        target.metadata["iTunSMPB"] = note
        copy = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.size:
                packet.stream = copy
                target.mux(packet)
    lengths = [len(sample["audio"]) for sample in build(tmp_path / "in", tmp_path / "out")]
    assert lengths == [44100, 30000]


@pytest.mark.parametrize("hop", [None, 0.25, 1.0])
@pytest.mark.parametrize("rest", ["drop", "pad"])
def test_pieces_are_parts_of_one_decode(tmp_path: Path, hop: float | None, rest: str) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, round(3.3 * 44100))
    write_sound(tmp_path / "in" / "a.mp3", noise, 44100)
    (whole,) = build(tmp_path / "in", tmp_path / "whole", audio=RATE)
    pieces = build(tmp_path / "in", tmp_path / "out", audio=RATE, seconds=0.5, hop=hop, rest=rest)
    total, step = len(whole["audio"]), round(RATE * (hop or 0.5))
    padded = np.pad(whole["audio"], (0, RATE))
    for number, piece in enumerate(pieces):
        start = number * step
        assert np.array_equal(piece["audio"], padded[start : start + RATE // 2])
        assert (piece["piece"], piece["time"]) == (number, start / RATE)
        assert piece["seconds"] == min(RATE // 2, total - start) / RATE
    starts = range(0, total, step)
    full = [start for start in starts if start + RATE // 2 <= total]
    part = [start for start in starts[len(full) :][:1] if full[-1] + RATE // 2 < total]
    assert len(pieces) == len(full) + (len(part) if rest == "pad" else 0)
    assert Layout(tmp_path / "out").load().schema["audio"].shape == (RATE // 2,)


def test_channels_are_kept(tmp_path: Path) -> None:
    both = np.stack([tone(440, 2, 44100), tone(880, 2, 44100, 0.25)])
    write_sound(tmp_path / "in" / "a.flac", both, 44100)
    write_sound(tmp_path / "in" / "b.wav", both, 44100)
    samples = build(tmp_path / "in", tmp_path / "out", channels="keep")
    assert [sample["audio"].shape for sample in samples] == [(2, 88200)] * 2
    assert np.array_equal(samples[0]["audio"], np.round(both * 32767))
    build(tmp_path / "in", tmp_path / "pieces", channels="keep", seconds=0.5, audio=RATE)
    (batch,) = Loader(open_dataset(tmp_path / "pieces"), batch_size=8)
    assert tuple(batch["audio"].shape) == (8, 2, RATE // 2)
    (mixed, _) = build(tmp_path / "in", tmp_path / "mono")
    assert np.abs(mixed["audio"] - samples[0]["audio"].mean(axis=0)).max() <= 1


def test_a_rate_that_changes_within_a_file_is_converted(tmp_path: Path) -> None:
    """Two MP3 streams, one after the other."""
    first = write_sound(tmp_path / "a.mp3", tone(440, 1, 44100), 44100, options={"write_xing": "0"})
    second = write_sound(tmp_path / "b.mp3", np.stack([tone(440, 1, 22050)] * 2), 22050, options={"write_xing": "0"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "c.mp3").write_bytes(first.read_bytes() + second.read_bytes())
    (sample,) = build(tmp_path / "in", tmp_path / "out", audio=RATE)
    assert 2 * RATE <= len(sample["audio"]) < 2.3 * RATE


def test_archives_have_the_same_sounds(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    how: dict[str, Any] = {
        "preset": "sound",
        "audio": 8000,
        "seconds": 0.4,
        "label_from": "folder",
        "shard_size": 30_000,
        "progress": False,
    }
    packer.build(source, tmp_path / "one", workers=1, **how)
    with tarfile.open(tmp_path / "a.tar", "w") as tar, zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for path in sorted(source.rglob("*.*")):
            tar.add(path, path.relative_to(source).as_posix())
            zipped.write(path, path.relative_to(source).as_posix())
    expected = read_samples(tmp_path / "one")
    for name in ("a.tar", "a.zip"):
        found = build(tmp_path / name, tmp_path / f"of-{name}", **how)
        assert [one["label"] for one in found] == [one["label"] for one in expected]
        assert all(np.array_equal(a["audio"], b["audio"]) for a, b in zip(found, expected, strict=True))


def test_a_table_has_columns_and_splits(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    paths = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.*"))
    rows = "".join(f"{path},{'ab'[n % 2]},speaker {n // 2}\n" for n, path in enumerate(paths))
    (tmp_path / "table.csv").write_text(f"path,label,speaker\n{rows}")
    samples = build(tmp_path / "table.csv", tmp_path / "out", root=source)
    assert [sample["speaker"] for sample in samples] == [f"speaker {n // 2}" for n in range(6)]
    packer.split(tmp_path / "out", tmp_path / "parts", by="speaker", ratios="train=0.6,test=0.4", **QUIET)
    parts = [open_dataset(tmp_path / "parts" / name) for name in ("train", "test")]
    assert sum(map(len, parts)) == 6
    assert not set(parts[0].column("speaker")) & set(parts[1].column("speaker"))


def test_updates_and_retries(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    whole = (source / "high" / "2.flac").read_bytes()
    (source / "high" / "2.flac").write_bytes(whole[: len(whole) // 2])
    assert len(build(source, tmp_path / "out", audio=RATE)) == 5
    write_sound(source / "low" / "new.mp3", tone(500, 1, 44100), 44100)
    assert len(build(source, tmp_path / "out", audio=RATE, update=True)) == 6
    (source / "high" / "2.flac").write_bytes(whole)
    assert len(build(source, tmp_path / "out", audio=RATE, retry_rejects=True)) == 7


def with_many_times(data: bytes) -> bytes:
    """An M4A file whose index announces 2²⁸ durations."""
    count = data.index(b"stts") + 8
    return data[:count] + (2**28).to_bytes(4, "big") + data[count + 4 :]


BROKEN = {
    "empty.mp3": (lambda _: b"", "an empty file"),
    "text.mp3": (lambda _: b"no sound at all\n" * 20, "does not open"),
    "half.wav": (lambda files: files[".wav"][: len(files[".wav"]) // 2], "cut off"),
    "half.flac": (lambda files: files[".flac"][: len(files[".flac"]) // 2], "announces 2.00 s"),
    "half.mp3": (lambda files: files[".mp3"][: len(files[".mp3"]) // 2], "announces 2.00 s"),
    "half.m4a": (lambda files: files[".m4a"][: len(files[".m4a"]) // 2], "does not open"),
    "index.m4a": (lambda files: with_many_times(files[".m4a"]), "asks for more memory than any needs"),
    "half.opus": (lambda files: files[".opus"][: len(files[".opus"]) // 2], "cut off"),
    "half.ogg": (lambda files: files[".ogg"][: len(files[".ogg"]) // 2], "cut off"),
    "half.aac": (lambda files: files[".aac"][: len(files[".aac"]) // 2], "cut off"),
    "silent.wav": (lambda files: files["empty"], "found none"),
}


def test_broken_files_are_rejected_with_the_reason(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 2 * 48000)
    files = {
        suffix: write_sound(tmp_path / "whole" / f"a{suffix}", noise, 48000).read_bytes()
        for suffix in (".wav", ".flac", ".mp3", ".m4a", ".opus", ".ogg", ".aac")
    }
    with wave.open(str(tmp_path / "none.wav"), "wb") as none:
        none.setparams((1, 2, 16000, 0, "NONE", ""))
    files["empty"] = (tmp_path / "none.wav").read_bytes()
    (tmp_path / "in").mkdir()
    write_sound(tmp_path / "in" / "good.wav", noise, 48000)
    for name, (make, _) in BROKEN.items():
        (tmp_path / "in" / name).write_bytes(make(files))
    assert len(build(tmp_path / "in", tmp_path / "out", audio=RATE)) == 1
    found = rejects(tmp_path / "out")
    assert found.keys() == BROKEN.keys()
    for name, (_, reason) in BROKEN.items():
        assert reason in found[name], name


def test_damage_within_a_file_is_reported(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 2 * 44100)
    small = write_sound(tmp_path / "in" / "small.mp3", noise, 44100)
    large = write_sound(tmp_path / "in" / "large.flac", noise, 44100)
    for path, count in ((small, 40), (large, 20_000)):
        content = bytearray(path.read_bytes())
        content[len(content) // 2 : len(content) // 2 + count] = b"\xaa" * count
        path.write_bytes(content)
    (sample,) = build(tmp_path / "in", tmp_path / "out")
    assert sample["source"] == "small.mp3"
    lines = {line["item"]: line["kind"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    assert lines["large.flac"] == "item"
    assert lines.get("small.mp3", "damage") == "damage"


def test_wrong_input_is_one_clear_line(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "sounds" / "a.mp3", tone(440, 1, 44100), 44100)
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "v.mp4").write_bytes(b"never read")
    with pytest.raises(BuildError, match="--rest pad"):
        packer.build(tmp_path / "sounds", tmp_path / "long", preset="sound", seconds=30, **QUIET)
    with pytest.raises(UsageError, match=r"--preset images packs \.mp4"):
        packer.build(tmp_path / "videos", tmp_path / "out", preset="sound", **QUIET)
    with pytest.raises(UsageError, match=r"--preset sound packs \.mp3"):
        packer.build(tmp_path / "sounds", tmp_path / "out", **QUIET)
    rows = [{"path": str(path)} for path in (sound, tmp_path / "picture.png", tmp_path / "videos" / "v.mp4")]
    packer.build(rows, tmp_path / "images", root=tmp_path, max_rejects=1.0, **QUIET)
    packer.build(rows, tmp_path / "sound", root=tmp_path, preset="sound", max_rejects=1.0, **QUIET)
    assert "--preset sound packs it" in rejects(tmp_path / "images")["sounds/a.mp3"]
    found = rejects(tmp_path / "sound")
    assert "--audio RATE its sound" in found["videos/v.mp4"]
    assert "--preset images packs it" in found["picture.png"]
    for wrong in ({"encode": "png"}, {"fps": 3.0}, {"size": 8}, {"hop": 1.0}, {"rest": "pad"}, {"seconds": 0.0}):
        with raises(UsageError, option=next(iter(wrong))):
            packer.build(tmp_path / "sounds", tmp_path / "out", preset="sound", **wrong, **QUIET)
    with raises(UsageError, option="seconds"):
        packer.build(tmp_path / "sounds", tmp_path / "out", seconds=1.0, **QUIET)
    with raises(UsageError, option="preset"):
        packer.build([{"path": str(sound), "piece": 3}], tmp_path / "out", root=tmp_path, preset="sound", **QUIET)


def test_a_piece_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.vision.sound.reader.MOST_BYTES", 100_000)
    write_sound(tmp_path / "in" / "a.wav", tone(440, 4, 16000), 16000)
    assert len(build(tmp_path / "in", tmp_path / "pieces", seconds=1.0)) == 4
    with pytest.raises(BuildError, match="--seconds"):
        build(tmp_path / "in", tmp_path / "out")


def test_transforms_of_sound(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    build(source, tmp_path / "out", audio=8000, label_from="folder")
    data = open_dataset(tmp_path / "out", transform=Compose([TimeCrop(4000), TimeMask(800, fields=["audio"])]))
    batches = list(Loader(data, batch_size=3, seed=0))
    for batch in batches:
        for one in batch["audio"]:
            assert one.shape == (4000,)
            assert (one == 0).sum() >= 1
    plain = next(iter(Loader(open_dataset(tmp_path / "out"), batch_size=6, shuffle=False)))
    assert isinstance(plain["audio"], list)
    assert [len(one) for one in plain["audio"]] == [round(8000 * float(s)) for s in plain["seconds"]]


def test_pages_draw_and_play_sound(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(write_folder(tmp_path / "in"), out, audio=RATE, label_from="folder", channels="keep")
    client = TestClient(make_app([DatasetView(BrowsedDataset(out))], "t", "testserver"))
    assert "/t/0/row/0/audio" in client.get("/t/0/").text
    assert client.get("/t/0/row/0/audio").headers["content-type"] == "image/png"
    assert "sound.wav" in client.get("/t/0/row/0").text
    played = client.get("/t/0/row/0/sound.wav")
    (tmp_path / "played.wav").write_bytes(played.content)
    sample = open_dataset(out)[0]
    with wave.open(str(tmp_path / "played.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (RATE, 1)
        assert file.readframes(10**7) == sample["audio"].tobytes()
    assert client.get("/t/0/row/0/track").status_code == 200
    packer.preview(out, tmp_path / "sheet.png", progress=False)
    colours = Image.open(tmp_path / "sheet.png").getcolors(10**6)
    assert colours is not None
    assert len(colours) > 20
    packer.report(out, tmp_path / "report.html", progress=False)
    assert (tmp_path / "report.html").read_text().count("data:audio/wav;base64,") == 6
    assert packer.inspect(out).seconds == pytest.approx(sum(1 + n / 4 for n in range(6)))


@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("channels", ["mono", "keep"])
def test_an_export_can_be_packed_again(tmp_path: Path, kind: str, channels: str) -> None:
    write_sound(tmp_path / "in" / "a" / "1.wav", np.stack([tone(440, 1, 8000), tone(550, 1, 8000)]), 8000)
    write_sound(tmp_path / "in" / "b" / "2.flac", np.stack([tone(330, 2, 8000), tone(550, 2, 8000)]), 8000)
    first = build(tmp_path / "in", tmp_path / "out", label_from="folder", channels=channels, seconds=0.5)
    result = packer.export(tmp_path / "out", tmp_path / "files", sound=kind, names="source", progress=False)
    assert result.images == len(first) == 6
    assert (tmp_path / "files" / "a" / f"1.piece-000000.{kind}").exists()
    second = build(tmp_path / "files" / "table.csv", tmp_path / "again", channels=channels)
    assert all(np.array_equal(a["audio"], b["audio"]) for a, b in zip(first, second, strict=True))
    assert [one["label"] for one in first] == [one["label"] for one in second]


def test_a_custom_step_follows_the_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "peaks.py").write_text(
        "def add_peak(samples):\n    for one in samples:\n        yield {**one, 'peak': int(abs(one['audio']).max())}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    write_folder(tmp_path / "in")
    samples = build(tmp_path / "in", tmp_path / "out", preset="images", steps="sound,peaks:add_peak")
    assert all(12_000 < sample["peak"] <= 2**15 for sample in samples)


def lengths(samples: Sequence[dict[str, Any]]) -> list[int]:
    return [sample["audio"].shape[-1] for sample in samples]


def test_packed_sound_is_packed_again(tmp_path: Path) -> None:
    first = build(write_folder(tmp_path / "in"), tmp_path / "out", audio=RATE, label_from="folder")
    again = build(tmp_path / "out", tmp_path / "again", format="parquet")
    assert lengths(first) == lengths(again)
