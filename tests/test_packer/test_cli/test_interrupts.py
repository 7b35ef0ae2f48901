"""Ctrl-C and ``kill``, however often they come: exit status 130, and one line that says how to go on."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS, write_images
from support.command import environment, run_packer, start_packer
from support.hooks import at_start_of
from support.packed import check_whole
from support.processes import is_alive, wait_for, workers_of
from support.steps import LOG, read_log

from packer.cli import main

# Under nohup, commands go on ignoring SIGHUP.
SIGNS = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]

AT_THE_END = """
import builtins
class Late:
    def __init__(self):
        self.kill, self.process = os.kill, os.getpid()
    def __del__(self):
        self.kill(self.process, {number})
builtins.late = Late()
"""
"""Has a process get a signal in the last moment of all, when Python takes its modules apart."""

WHILE_CLOSING = """
from packer.jobs.engines.processes import ProcessesEngine
close = ProcessesEngine.close
def closing(engine):
    for _ in range({times}):
        os.kill(os.getpid(), signal.{sign})
    close(engine)
ProcessesEngine.close = closing
"""
"""Has a build get signals while it ends its workers."""


def running(folder: Path, *hook: Path) -> Any:
    """A build that hangs over an item in two workers."""
    write_images(folder / "source", [f"{number:02d}-bad.png" for number in range(40)])
    env = environment(python_path=[*hook, TESTS], **{LOG: str(folder / "log")})
    steps = ("--steps", "decode,support.steps:log_items,support.steps:hang", "--workers", 2)
    build = start_packer("build", folder / "source", folder / "out", *steps, env=env)
    wait_for("both workers at work", lambda: len(read_log(folder / "log")) == 2 and len(workers_of(build.pid)) == 2)
    return build


def check_interrupted(build: Any) -> None:
    """It has ended with 130 and one line, and so have its workers."""
    _, reported = build.communicate(timeout=300)
    assert build.returncode == 130, reported
    assert reported.count("packer: interrupted") == 1, reported
    assert reported.count("run the same command again to resume (packer build ") == 1, reported
    assert "Traceback" not in reported
    assert "KeyboardInterrupt" not in reported


@pytest.mark.parametrize("sign", SIGNS)
def test_repeated_signals_to_the_whole_process_group(tmp_path: Path, builds: list[Any], sign: signal.Signals) -> None:
    builds.append(running(tmp_path))
    workers = workers_of(builds[0].pid)
    while builds[0].poll() is None:
        os.killpg(builds[0].pid, sign)
    check_interrupted(builds[0])
    wait_for("the workers' end", lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("sign", SIGNS)
def test_signals_while_workers_are_ending(tmp_path: Path, builds: list[Any], sign: signal.Signals) -> None:
    code = WHILE_CLOSING.format(sign=sign.name, times=1 if sign == signal.SIGTERM else 4)
    builds.append(running(tmp_path, at_start_of(tmp_path / "site", "packer", code)))
    workers = workers_of(builds[0].pid)
    os.kill(builds[0].pid, sign)
    check_interrupted(builds[0])
    wait_for("the workers' end", lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("sign", SIGNS)
def test_a_signal_in_the_last_moment_of_an_interrupted_build(
    tmp_path: Path, builds: list[Any], sign: signal.Signals
) -> None:
    builds.append(running(tmp_path, at_start_of(tmp_path / "site", "packer", AT_THE_END.format(number=int(sign)))))
    os.kill(builds[0].pid, sign)
    check_interrupted(builds[0])


@pytest.mark.parametrize("sign", SIGNS)
def test_a_signal_after_the_end_of_a_finished_build_changes_nothing(tmp_path: Path, sign: signal.Signals) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    env = environment(python_path=at_start_of(tmp_path / "site", "packer", AT_THE_END.format(number=int(sign))))
    assert "interrupted" not in run_packer("build", source, tmp_path / "out", env=env).stderr
    check_whole(tmp_path / "out")


def test_a_call_in_another_program_leaves_its_signals_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(sign) for sign in SIGNS]
    assert main([]) == 2
    assert [signal.getsignal(sign) for sign in SIGNS] == before
    with pytest.raises(SystemExit):
        main(["build", "--no-such-option"])
    assert [signal.getsignal(sign) for sign in SIGNS] == before
    assert "usage" in capsys.readouterr().out
