"""Workers that are started before all is known that they need: they are used, replaced, and never left behind."""

import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.builds import write_pictures
from support.command import environment, run_packer
from support.hooks import at_start_of, before_each
from support.packed import check_whole, fingerprints
from support.processes import PATIENCE_S, is_alive

from packer.jobs.child import Answers, Child
from packer.jobs.engines.standby_workers import StandbyWorkers

STANDBY = "'PACKER_LATER' in os.environ"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standby") / "pictures"
    write_pictures(folder, [f"{number:02d}.png" for number in range(70)])
    return folder


@pytest.fixture(scope="module")
def expected(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    out = tmp_path_factory.mktemp("expected") / "out"
    run_packer("build", pictures, out, "--workers", "1", "--engine", "inline")
    return fingerprints(out)


@pytest.mark.parametrize(
    ("deed", "started"),
    [
        ("", "ss"),
        (f"if {STANDBY}: sys.exit(1)", "ssll"),
        (f"if {STANDBY}: os.kill(os.getpid(), signal.SIGKILL)", "ssll"),
    ],
    ids=["alive", "ended", "killed"],
)
def test_those_that_live_do_the_work_and_others_are_replaced(
    tmp_path: Path, pictures: Path, expected: object, deed: str, started: str
) -> None:
    count = f"open({str(tmp_path / 'started')!r}, 'a').write('s' if {STANDBY} else 'l')"
    env = environment(python_path=at_start_of(tmp_path / "site", "packer.jobs.worker", f"{count}\n{deed}"))
    run_packer("build", pictures, tmp_path / "out", "--workers", "2", env=env)
    check_whole(tmp_path / "out")
    assert fingerprints(tmp_path / "out") == expected
    assert sorted((tmp_path / "started").read_text()) == sorted(started)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 2),
        (["--engine", "inline"], 2),
        (["--shard-size", "none"], 2),
        (["--unknown"], 2),
    ],
)
def test_none_is_left_by_a_call_that_ends_before_its_work(
    tmp_path: Path, pictures: Path, options: list[str], status: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "something.txt").write_text("else")
    started, waited = tmp_path / "started", tmp_path / "waited"
    note = f"open({str(started)!r}, 'a').write(str(os.getpid()) + chr(10))"
    worker = at_start_of(tmp_path / "worker", "packer.jobs.worker", note)
    # The command goes on once its worker runs, and has written its number.
    wait = (
        f"import time\nwhile not (os.path.exists({str(started)!r}) and os.path.getsize({str(started)!r})):\n"
        f"    time.sleep(0.005)\nopen({str(waited)!r}, 'w').close()"
    )
    # The event is that of an import statement: `import_module`, with which the command itself is imported, has none.
    command = before_each(tmp_path / "command", "packer", "import", "arguments[0] == 'packer.cli.arguments'", wait)
    join = (command / "sitecustomize.py").read_text() + (worker / "sitecustomize.py").read_text()
    (command / "sitecustomize.py").write_text(join)
    run_packer("build", pictures, out, *options, env=environment(python_path=command), expect=status)
    processes = [int(process) for process in started.read_text().split()]
    assert processes
    assert waited.exists()
    assert not any(map(is_alive, processes))


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 0), (["SOURCE", "OUT", "--dry-run"], 0)])
def test_none_is_started_by_a_call_that_makes_nothing(
    tmp_path: Path, pictures: Path, words: list[str], status: int
) -> None:
    log = tmp_path / "processes"
    deed = f"open({str(log)!r}, 'a').write(repr(arguments[1]) + chr(10))"
    env = environment(python_path=before_each(tmp_path / "hooks", "packer", "subprocess.Popen", "True", deed))
    places = {"SOURCE": pictures, "OUT": tmp_path / "out"}
    run_packer("build", *(places.get(word, word) for word in words), env=env, expect=status)
    assert "packer.jobs.worker" not in (log.read_text() if log.exists() else "")
    run_packer("build", pictures, tmp_path / "out", "--quiet", env=env)
    assert "packer.jobs.worker" in log.read_text()


def write_module(folder: Path, name: str, *lines: str) -> None:
    """A module that may be on standby: it takes its streams, and then does what the lines say."""
    begin = (
        "import json, os, sys",
        "from packer.jobs.process import LATER, take_streams, wait_to_begin",
        "requests, answers = take_streams()",
    )
    (folder / f"{name}.py").write_text("\n".join((*begin, *lines)) + "\n")


def test_one_that_waits_ends_with_its_parent() -> None:
    with closing(StandbyWorkers()) as standby:
        standby.start(1)
        (process,) = standby._waiting
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) in (0, -signal.SIGKILL)
        process.stdin = None


def test_only_a_command_of_the_same_module_takes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("greeter", "other"):
        write_module(
            tmp_path,
            name,
            "if later := os.environ.get(LATER):",
            "    wait_to_begin(requests)",
            "print('last words')",
            "print(json.dumps({'event': str(later), 'name': os.environ['NAME']}), file=answers)",
        )
    monkeypatch.syspath_prepend(tmp_path)
    answers = Answers()
    with closing(StandbyWorkers("greeter")) as standby:
        standby.start(1)
        for command, event in ((["other"], "None"), (["greeter"], "1"), (["greeter"], "None")):
            child = Child(command, tmp_path / "log", answers, variables={"NAME": "x"}, standby=standby)
            assert answers.get(timeout=PATIENCE_S)[1] == {"event": event, "name": "x"}
            assert answers.get(timeout=PATIENCE_S)[1] == {"event": "died"}
            assert child.describe_death() == "exit status 0: last words"
            child.end()


def test_it_begins_with_arguments_and_folders_that_were_not_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(
        tmp_path,
        "listener",
        "arguments = wait_to_begin(requests)",
        "loaded = [name for name in ('one', 'two', 'missing') if name in sys.modules]",
        "import late",
        "message = {'event': 'begun', 'more': arguments, 'loaded': loaded, 'late': late.PLACE}",
        "print(json.dumps(message), file=answers)",
    )
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("")
    for folder in ("later", "last"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "late.py").write_text(f"PLACE = {folder!r}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "last"), *sys.path, str(tmp_path / "later")])
    with closing(StandbyWorkers("listener")) as standby:
        standby.start(1)
        standby.have_imported(["one", "two", "missing"])
        standby.start(2)
        # The folder that was the last, as the current one is, may come first now, as that of a recipe does.
        monkeypatch.setattr(sys, "path", [str(tmp_path / "later"), *sys.path])
        for command in (["listener", "ab"], ["listener", "a", "b", "c"]):
            answers = Answers()
            child = Child(command, tmp_path / "log", answers, standby=standby)
            expected = {"event": "begun", "more": command[1:], "loaded": ["one", "two"], "late": "later"}
            assert answers.get(timeout=PATIENCE_S)[1] == expected
            child.end()
        assert not standby._waiting


def test_one_that_has_died_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, "listener", "wait_to_begin(requests)", "print(json.dumps({'event': 'begun'}), file=answers)")
    monkeypatch.syspath_prepend(tmp_path)
    answers = Answers()
    with closing(StandbyWorkers("listener")) as standby:
        standby.start(2)
        first, second = standby._waiting
        first.kill()
        first.wait(PATIENCE_S)
        with pytest.raises(FileNotFoundError):
            standby.take(["listener"], tmp_path / "missing" / "log", {})  # it stays in the list, and so ends
        child = Child(["listener"], tmp_path / "log", answers, standby=standby)
        assert child.process is second
        assert answers.get(timeout=PATIENCE_S)[1] == {"event": "begun"}
        child.end()


@pytest.mark.parametrize(("pictures_of", "started"), [(32, 1), (33, 2)])
def test_a_second_one_is_started_for_a_second_task(tmp_path: Path, pictures_of: int, started: int) -> None:
    rows = [{"path": f"{number}.png"} for number in range(pictures_of)]
    seen = tmp_path / "started"
    code = f"open({str(seen)!r}, 'a').write('e')"
    env = environment(python_path=at_start_of(tmp_path / "site", "packer.jobs.worker", code))
    (tmp_path / "table.csv").write_text("path\n" + "".join(f"{row['path']}\n" for row in rows))
    write_pictures(tmp_path, [row["path"] for row in rows])
    run_packer("build", tmp_path / "table.csv", tmp_path / "out", "--workers", "2", env=env)
    assert seen.read_text() == started * "e"
