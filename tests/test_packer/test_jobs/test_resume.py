"""What a second call finds in the folder: nothing, an unfinished build, a finished one, or something else."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import numpy as np
import pytest
from support.builds import OPTIONS, TESTS, parts_of, write_images
from support.command import environment, file_of, read_jsonl, run_packer, start_packer
from support.errors import raises
from support.media import scene, write_image
from support.packed import check_whole, fingerprints
from support.processes import wait_for
from support.steps import LOG, read_log

import packer
from packer import convert
from packer.builds.planning.plan import TASK_ITEMS
from packer.workspace import Workspace, append_line
from packer.workspace.durable import read_record, write_record
from readers import open_dataset
from shardspec.errors import (
    BuildError,
    BuildLockedError,
    NotADatasetError,
    ResumeMismatchError,
    TooManyRejectsError,
    UsageError,
)
from shardspec.layout import Layout

Build = Any


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two tasks of small images."""
    return write_images(tmp_path / "source", [f"{n:02d}.png" for n in range(TASK_ITEMS + 4)])


class Stop(KeyboardInterrupt):
    """Ends a build in the middle, as Ctrl-C does."""


def stop_at(name: str) -> Any:
    """A step that ends the build at an item."""

    def step(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if sample["source"] == name:
                raise Stop
            yield sample

    return step


def build(source: Any, out: Path, **options: Any) -> Any:
    """Build in this process."""
    return packer.build(source, out, **{"size": 16, "engine": "inline", "progress": False, **options})


def begin(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Leave a build unfinished, its first task done."""
    with monkeypatch.context() as patch:
        import packer.steps.scale as module

        whole = module.resize_shorter
        seen: list[int] = []

        def interrupted(image: Any, size: int) -> Any:
            seen.append(1)
            if len(seen) > TASK_ITEMS + 1:
                raise Stop
            return whole(image, size)

        patch.setattr(module, "resize_shorter", interrupted)
        with pytest.raises(Stop):
            build(source, out, **options)
    assert [path.name for path in parts_of(out)] == ["part-000000"]


def test_an_unfinished_build_goes_on_and_has_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    result = build(source, out, engine="processes", workers=2)
    assert result.resumed
    assert result.manifest.wall_clock["sessions"] == 2
    assert result.manifest.wall_clock["tasks_run"] == 2
    build(source, tmp_path / "whole")
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_a_plan_that_is_still_the_same_is_not_written_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some mounts of shared folders keep what is replaced, and deleted soon after."""
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    space = Workspace(out / ".build")
    whole = space.items.read_bytes()
    replace = os.replace

    def resume() -> list[str]:
        written = []

        def note(old: Any, new: Any) -> None:
            written.append(Path(new).name)
            replace(old, new)

        def stop(*_: Any) -> None:
            raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", note)
            patch.setattr("packer.jobs.job.Job._make", stop)
            with pytest.raises(Stop):
                build(source, out)
        assert space.items.read_bytes() == whole
        return [name for name in written if name in (space.plan.name, space.items.name)]

    assert resume() == []
    for spoiled in (whole[:-1], whole + b"{}", b" " * len(whole)):
        space.items.write_bytes(spoiled)
        assert resume() == [space.items.name]
    write_record(space.plan, {**read_record(space.plan), "made_on": {}})
    assert resume() == [space.plan.name]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"size": 17}, "option size: was 16, now 17"),
        ({"quality": 80}, "option quality: was 95, now 80"),
        ({"format": "npy"}, "option format: was 'lmdb', now 'npy'"),
        ({"limit": 5}, "option limit: was None, now 5"),
        ({"steps": ["decode", "resize"]}, "option steps: was [], now ['decode', 'resize']"),
        ({"shuffle": 3}, "option shuffle: was None, now 3"),
    ],
)
def test_another_recipe_is_an_error_that_names_the_difference(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reported: str
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    before = sorted(path.name for path in out.rglob("*"))
    with pytest.raises(ResumeMismatchError) as caught:
        build(source, out, **change)
    assert reported in str(caught.value)
    assert "repeat the original command to resume it, or add --overwrite to discard it" in str(caught.value)
    assert sorted(path.name for path in out.rglob("*")) == before
    build(source, out, overwrite=True, **change)
    build(source, tmp_path / "whole", **change)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_after_an_upgrade_the_versions_to_install_are_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    plan = Workspace(out / ".build").plan
    begun = read_record(plan)
    older = {**begun, "runtime": {**begun["runtime"], "numpy": "1.0.0", "pillow": "9.0"}, "fingerprint": "0" * 64}
    write_record(plan, older)
    with pytest.raises(ResumeMismatchError) as caught:
        build(source, out)
    assert f"runtime numpy: was '1.0.0', now '{np.__version__}'" in str(caught.value)
    assert "install numpy 1.0.0, pillow 9.0 and repeat the original command" in str(caught.value)
    assert "or add --overwrite to discard it and start again" in str(caught.value)
    build(source, out, overwrite=True)
    check_whole(out)


class Listener:
    """Keeps the lines for the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_progress(self, progress: Any) -> None:
        """Progress is of no interest."""

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def test_an_unfinished_build_goes_on_with_another_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished of equal items is kept, under their new numbers; everything else is packed anew."""
    out, listener = tmp_path / "out", Listener()
    begin(source, out, monkeypatch)
    write_image(source / "99.png", scene(99, (24, 18)))
    write_image(source / "000.png", scene(97, (24, 18)))
    (source / "00.png").unlink()
    write_image(source / "01.png", scene(98, (24, 18)))
    os.utime(source / "05.png", ns=(0, 0))
    decoded: list[str] = []
    with monkeypatch.context() as patch:
        note_decoded(patch, decoded)
        result = build(source, out, progress=listener)
    assert result.resumed
    (line,) = (line for line in listener.lines if "has changed" in line)
    for part in ("'00.png' gone", "'000.png' and 1 more new", "'01.png' and 1 more changed"):
        assert part in line
    assert sorted(decoded) == ["000.png", "01.png", "05.png", *(f"{n}.png" for n in range(32, 36)), "99.png"]
    build(source, tmp_path / "whole")
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_an_unfinished_overwrite_goes_on_with_another_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build(source, out, size=8)
    begin(source, out, monkeypatch, overwrite=True)
    write_image(source / "000.png", scene(97, (24, 18)))
    decoded: list[str] = []
    with monkeypatch.context() as patch:
        note_decoded(patch, decoded)
        build(source, out, overwrite=True)
    assert sorted(decoded) == ["000.png", *(f"{n}.png" for n in range(32, 36))]
    build(source, tmp_path / "whole")
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def note_decoded(patch: pytest.MonkeyPatch, names: list[str]) -> None:
    """Note the names of the items that are worked on."""
    from packer.builds.work import BuildWork

    whole = BuildWork._pack

    def noted(work: Any, item: Any, *more: Any) -> Any:
        names.append(item.name)
        return whole(work, item, *more)

    patch.setattr(BuildWork, "_pack", noted)


def test_a_crash_while_parts_are_put_aside(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever plan comes next, no part counts for the items of another."""
    import packer.jobs.start as module

    for attempt, name in enumerate(("discard", "append_line")):
        out = tmp_path / f"out-{attempt}"
        begin(source, out, monkeypatch)
        write_image(source / "000.png", scene(97, (24, 18)))
        with monkeypatch.context() as patch:

            def stop(*_: Any, **__: Any) -> None:
                raise Stop

            patch.setattr(module, name, stop)
            with pytest.raises(Stop):
                build(source, out)
        (source / "000.png").unlink()
        build(source, out)
        build(source, tmp_path / f"whole-{attempt}")
        assert fingerprints(out) == fingerprints(tmp_path / f"whole-{attempt}")


def test_another_library_is_an_error_that_names_the_difference(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    import packer.builds.provenance as runtime

    installed = runtime.library_version
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "library_version", lambda name: "0.0.1" if name == "pillow" else installed(name))
        with pytest.raises(ResumeMismatchError, match=r"runtime pillow: was '.*', now '0\.0\.1'"):
            build(source, out)
    build(source, out)


@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_step_is_a_difference(source: Path, tmp_path: Path, finished: bool) -> None:
    """Its file is looked at, not its time; what the module imports is not."""
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "helper.py").write_text("LIMIT = 1\n")
    (steps / "mine.py").write_text("import helper\n\ndef keep(samples):\n    yield from samples\n")
    env = environment(python_path=steps)
    call = ("build", source, tmp_path / "out", "--steps", "decode,mine:keep", "--quiet", "--engine", "inline")
    if finished:
        run_packer(*call, env=env)
    else:
        (source / "33.png").write_bytes(b"no image")
        run_packer(*call, "--on-error", "fail", env=env, expect=1)
        assert (tmp_path / "out" / ".build" / "plan.json").exists()
    os.utime(steps / "mine.py", ns=(0, 0))
    (steps / "helper.py").write_text("LIMIT = 2\n")
    if finished:
        run_packer(*call, env=env)
    (steps / "mine.py").write_text("def keep(samples):\n    yield from list(samples)\n")
    reported = run_packer(*call, env=env, expect=None)
    assert reported.returncode in (1, 2)
    assert "runtime file of step mine:keep: was '" in reported.stderr
    assert "source: " not in reported.stderr


def test_what_does_not_decide_the_bytes_may_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    (source / "notes.txt").write_text("no item")
    build(source, out, engine="processes", workers=3, item_timeout=77, max_rejects=1)
    check_whole(out)


def test_a_finished_build_is_found_in_a_read_only_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was converted. Nothing may be made there; that whoever runs this may be root is why no mode is set."""
    made = packer.build(source, tmp_path / "out", size=16, progress=False, engine="inline")
    convert(tmp_path / "out", tmp_path / "npy", format="npy", progress=False, engine="inline")

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    found = packer.build(source, tmp_path / "out", size=16, progress=False, engine="inline")
    assert (found.found_finished, found.manifest) == (True, made.manifest)
    assert convert(tmp_path / "out", tmp_path / "npy", format="npy", progress=False, engine="inline").found_finished
    with pytest.raises(BuildError, match="cannot be written: Permission denied"):
        packer.build(source, tmp_path / "out", size=17, progress=False, engine="inline")


def test_a_finished_build_is_found_and_left_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert build(source, out, engine="processes", workers=4).resumed
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with raises(
        UsageError,
        expected="a new or empty folder",
        found="a packed dataset (made by another plan: option size: was 16, now 17)",
    ):
        build(source, out, size=17)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"quality": 80, "shuffle": 3}, "option quality: was 95, now 80; option shuffle: was None, now 3"),
        ({"steps": ["decode", "resize"]}, "option steps: was [], now ['decode', 'resize']"),
        ({"limit": 5}, "option limit: was None, now 5; source: '05.png' and 30 more gone"),
    ],
)
def test_a_finished_build_of_another_recipe_names_the_difference(
    source: Path, tmp_path: Path, change: dict[str, Any], reported: str
) -> None:
    out = tmp_path / "out"
    build(source, out)
    before = fingerprints(out)
    with pytest.raises(UsageError) as caught:
        build(source, out, **change)
    assert f"found a packed dataset (made by another plan: {reported}): choose another folder" in str(caught.value)
    assert fingerprints(out) == before


def test_a_finished_build_of_another_source_names_the_difference(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build(source, out)
    os.utime(source / "05.png", ns=(0, 0))
    with pytest.raises(UsageError, match=r"source: '05\.png' changed \(its size, time or columns\)"):
        build(source, out)
    write_image(source / "99.png", scene(99, (24, 18)))
    (source / "00.png").unlink()
    with pytest.raises(
        UsageError, match=r"another plan: source: '00\.png' gone; source: '99\.png' new; source: '05\.png' changed"
    ):
        build(source, out)
    import packer.builds.provenance as runtime

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "library_version", lambda _: "0.0.1")
        with pytest.raises(UsageError, match=r"runtime pillow: was '.*', now '0\.0\.1'"):
            build(source, out)


def test_a_finished_build_with_too_many_rejects_says_so_each_time(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png"])
    (tmp_path / "source" / "b.png").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(TooManyRejectsError, match=r"1 of 2 items \(50.0%\) were rejected, more than 5.0%"):
            build(tmp_path / "source", tmp_path / "out")
        check_whole(tmp_path / "out")
    assert build(tmp_path / "source", tmp_path / "out", max_rejects="50%").resumed


def test_a_build_that_gave_nothing_says_why_each_time(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "b.png").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            TooManyRejectsError,
            match=r"the only item yielded no sample, so nothing was packed: 'b\.png', decode: expected an image",
        ):
            build(tmp_path / "source", tmp_path / "out", max_rejects=1)
        (why,) = read_jsonl(tmp_path / "out" / ".build" / "rejects.jsonl")
        assert (why["item"], why["step"]) == ("b.png", "decode")
        assert {path.name for path in (tmp_path / "out").rglob("*")} == {".build", "lock", "rejects.jsonl"}
    write_images(tmp_path / "source", ["a.png"])
    build(tmp_path / "source", tmp_path / "out", max_rejects=1)
    check_whole(tmp_path / "out")
    assert not (tmp_path / "out" / ".build").exists()


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_reading_what_an_empty_build_left_says_where_the_reasons_are(tmp_path: Path, command: str) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "b.png").write_bytes(b"")
    run_packer("build", source, out, expect=3)
    reported = f"found a build that packed nothing, because no item yielded a sample: the reasons are in {out}/.build/rejects.jsonl"
    assert reported in run_packer(command, out, expect=2).stderr
    with pytest.raises(NotADatasetError, match=re.escape(reported)):
        open_dataset(out)
    if command == "inspect":
        assert reported in run_packer("build", out, tmp_path / "again", expect=2).stderr


def test_an_overwrite_that_gave_nothing_leaves_the_old_dataset_and_its_reasons(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    before = fingerprints(out)
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(5):
        (bad / f"{number}.png").write_bytes(b"")
    done = run_packer("build", bad, out, "--overwrite", expect=3)
    assert done.stdout == ""
    assert "none of the 5 items yielded a sample, so nothing was packed: '0.png', decode: " in done.stderr
    assert f"(all reasons: {out}/.build/rejects.jsonl)" in done.stderr
    assert [line["item"] for line in read_jsonl(out / ".build" / "rejects.jsonl")] == [f"{n}.png" for n in range(5)]
    reported = run_packer("verify", out).stdout
    assert (
        f".build holds a build that packed nothing, because no item yielded a sample: the reasons are in {out}/.build/"
        in reported
    )
    assert "resume" not in reported
    assert build(source, out).found_finished
    assert fingerprints(out) == before


def test_leftovers_of_a_kill_behind_the_commit_are_cleared(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    (out / ".build" / "parts").mkdir(parents=True)
    (out / ".build" / "plan.json").write_text("{}")
    build(source, out)
    check_whole(out)
    assert not (out / ".build").exists()


@pytest.mark.parametrize("format", ["lmdb", "npy"])
def test_overwrite_replaces_the_dataset_and_nothing_else(source: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / "out"
    build(source, out, size=8, shard_size=4000, format=format)
    assert len(Layout(out).load().shards) > 1
    build(source, out, overwrite=True, format=format)
    build(source, tmp_path / "whole", format=format)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")
    place = (file_of(out, "shard-00000") if format == "npy" else out / "index") / "mine.npy"
    place.write_bytes(b"mine")
    (out / "preview.png").write_bytes(b"mine")
    before = sorted(out.rglob("*"))
    with pytest.raises(UsageError, match="which no build made"):
        build(source, out, overwrite=True, size=9, format=format)
    assert sorted(out.rglob("*")) == before
    place.unlink()
    (out / "preview.png").unlink()
    check_whole(out)


def test_an_unfinished_replacement_waits_beside_the_old_dataset(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build(source, out, size=8)
    old = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    begin(source, out, monkeypatch, overwrite=True)
    check_old = {path: path.stat().st_mtime_ns for path in out.rglob("*") if ".build" not in path.parts}
    assert check_old == old
    with pytest.raises(UsageError, match=r"is to replace it: add --overwrite to resume it"):
        build(source, out)
    assert build(source, out, size=8).manifest.samples == TASK_ITEMS + 4
    begun = parts_of(out)[0]
    assert begun.exists(), "the finished dataset was asked for, and what is to replace it was thrown away"
    result = build(source, out, overwrite=True)
    assert result.manifest.wall_clock["tasks_run"] == 2
    assert result.manifest.wall_clock["sessions"] == 2
    build(source, tmp_path / "whole")
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_an_unfinished_replacement_gives_way_to_another(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build(source, out, size=8)
    begin(source, out, monkeypatch, overwrite=True)
    build(source, out, size=9, overwrite=True)
    build(source, tmp_path / "whole", size=9)
    assert fingerprints(out) == fingerprints(tmp_path / "whole")


def test_overwrite_takes_a_damaged_manifest_for_nothing_of_ours(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(source, out)
    (out / "manifest.json").write_text("{")
    with pytest.raises(BuildError, match=r"expected a JSON document.*to build here, move the folder away"):
        build(source, out, overwrite=True)
    assert file_of(out, "shard-00000.lmdb").exists()


def test_two_builds_at_once(mixed: Path, reference: Path, tmp_path: Path) -> None:
    """The second is refused, the first goes on undisturbed, whichever that is."""
    out = tmp_path / "out"
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    builds = [start_packer("build", mixed, out, *OPTIONS, "--workers", 1, env=env) for _ in range(3)]
    reported = [build.communicate(timeout=300)[1] for build in builds]
    statuses = sorted(build.returncode for build in builds)
    # One that comes late enough finds the finished dataset.
    assert statuses[0] == 0
    for build, message in zip(builds, reported, strict=True):
        if build.returncode:
            assert build.returncode == 1
            assert "another build is at work in this folder" in message
            assert "wait until it has finished, or stop it" in message
    assert fingerprints(out) == fingerprints(reference)


def test_a_lock_that_is_held_is_an_error_and_nothing_is_touched(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".build").mkdir(parents=True)
    with filelock.FileLock(out / ".build" / "lock"), pytest.raises(BuildLockedError):
        build(source, out)
    build(source, out)
    check_whole(out)


def test_a_verdict_is_remembered_over_a_resume(tmp_path: Path) -> None:
    """An item that was found to bring down workers is not tried again by the next session."""
    names = [*(f"{n:02d}.png" for n in range(TASK_ITEMS + 2)), "00-bad.png"]
    write_images(tmp_path / "source", names)
    env = environment(python_path=TESTS, **{LOG: str(tmp_path / "log")})
    steps = ("--steps", "decode,support.steps:kill_itself,support.steps:slow", "--workers", 1, "--quiet")
    first = start_packer("build", tmp_path / "source", tmp_path / "out", *steps, env=env)
    verdicts = tmp_path / "out" / ".build" / "verdicts.jsonl"
    wait_for("the verdict", lambda: verdicts.exists() and verdicts.read_text().endswith("\n"))
    first.kill()
    first.communicate()
    assert len(read_log(tmp_path / "log")) == 5
    run_packer("build", tmp_path / "source", tmp_path / "out", *steps, env=env)
    assert len(read_log(tmp_path / "log")) == 5
    (reject,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert reject["item"] == "00-bad.png"


@pytest.mark.parametrize("left", [-4, 0])
def test_parts_that_are_damaged_are_reported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    part = parts_of(out)[0]
    part.write_bytes(part.read_bytes()[:left])
    with raises(BuildError, place=str(part), found="a damaged one"):
        build(source, out)
    part.unlink()
    build(source, out)
    check_whole(out)


def test_a_full_disk_is_reported_when_a_part_is_flushed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("packer.assembly.piece_writer.os", SimpleNamespace(fsync=full))
        with pytest.raises(BuildError, match=r"cannot be written: No space left on device"):
            build(source, tmp_path / "out")
    build(source, tmp_path / "out")
    check_whole(tmp_path / "out")


def test_a_cut_line_of_the_journal_costs_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    begin(source, out, monkeypatch)
    with (out / ".build" / "journal.jsonl").open("a") as file:
        file.write('{"did":"ta')
    append_line(out / ".build" / "verdicts.jsonl", {"item": 3, "step": "worker", "reason": "was slow"})
    with (out / ".build" / "verdicts.jsonl").open("a") as file:
        file.write('{"item": 4, "st')
    result = build(source, out, max_rejects=1)
    assert result.counts.packed_items == TASK_ITEMS + 4
    check_whole(out)
