"""Processes that a build starts: their end, and their last words."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.command import COMMAND_LIMIT_S, environment
from support.processes import PATIENCE_S

from packer.jobs import child as child_module
from packer.jobs.child import AnswerQueue, Child, SyncChild


def test_its_end_does_not_wait_for_what_left_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that a step has started in a session of its own holds the pipe open."""
    (tmp_path / "leaver.py").write_text(
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '10000'], start_new_session=True)\n"
        'print(f\'{{"event": "ready", "left": {left.pid}}}\', flush=True)\n'
        "left.wait()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child_module, "_READER_JOIN_S", 0.05)
    answers = AnswerQueue()
    child = Child(["leaver"], tmp_path / "log", answers)
    _, message = answers.get(timeout=PATIENCE_S)
    try:
        ending = threading.Thread(target=child.end)
        ending.start()
        ending.join(PATIENCE_S)
        ended = not ending.is_alive()
    finally:
        os.kill(message["left"], signal.SIGKILL)
        ending.join()
        child._reader.join()
    assert ended


def test_a_wait_ends_though_a_signal_is_handled_as_its_time_is_over() -> None:
    answers = AnswerQueue()
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.2))
    late = threading.Timer(PATIENCE_S, answers.put, [(None, {"event": "late"})])  # a wait that never ends would fail
    late.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(queue.Empty):
            answers.get(timeout=0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
        late.cancel()
        late.join()


def test_answers_come_in_order_and_a_wait_for_none_ends() -> None:
    answers = AnswerQueue()
    for number in range(3):
        answers.put((number, {}))
    assert [answers.get(timeout=0)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.01)
    later = threading.Timer(0.05, answers.put, [(3, {})])
    later.start()
    assert answers.get(timeout=PATIENCE_S)[0] == 3
    later.join()


def test_what_libraries_print_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["hello", "[1]", "{}", '{"event": "ready"}', "7", '{"event": "cut']
    (tmp_path / "greeter.py").write_text(f"print({chr(10).join(lines)!r}, end='')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with SyncChild(["greeter"]) as child:
        assert [child.answer(PATIENCE_S) for _ in range(2)] == [{"event": "ready"}, {"event": "died"}]
        assert child.answer(0) is None
        assert child.describe_death() == "exit status 0"


def test_what_breaks_the_detecting_process_from_outside_is_in_its_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")  # the process waits here while its other thread listens
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"a number without a descriptor"[:20])
        done = subprocess.run(
            [sys.executable, "-m", "packer.jobs.detector", tmp_path, "5"],
            stdin=theirs,
            env=environment(),
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    assert done.returncode == -signal.SIGKILL
    assert "Traceback" in done.stderr
    assert "IndexError" in done.stderr
