"""Who holds a build's folder: what a second build says, where locks are kept and where they are not."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.builds import TESTS, write_images
from support.command import environment, run_packer
from support.errors import raises
from support.listeners import Listener
from support.packed import check_whole

import packer
from packer.workspace import Workspace, lock
from packer.workspace.holder import Holder, lease_s, process_mark
from packer.workspace.lock import FolderLock
from shardspec.errors import BuildLockedError, UsageError

AS_ANOTHER = """
import os, sys
from pathlib import Path
from packer.workspace import Workspace
from packer.workspace.lock import FolderLock
from shardspec.errors import BuildError

if os.geteuid() == 0:
    os.seteuid(65534)
else:
    os.chmod(Workspace(Path(sys.argv[1])).lock, 0o444)
try:
    FolderLock(Workspace(Path(sys.argv[1])), print).acquire()
except BuildError as error:
    print(error)
"""

OTHERS = "00000000-0000-0000-0000-000000000000:1:2:3"
"""What tells a process of another machine from all others."""


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    found = Workspace(tmp_path / "out" / ".build")
    found.create()
    return found


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that may be shared by several machines, as far as this process knows."""
    monkeypatch.setattr(lock, "file_system_of", lambda _: ("/data", "nfs4"))


def hold(space: Workspace, said: list[str] | None = None) -> FolderLock:
    found = FolderLock(space, (said if said is not None else []).append)
    found.acquire()
    return found


def claim(space: Workspace, *, process: str = OTHERS, attempt: int = 1, lease_s: float = 0.5) -> None:
    """Leave the lease of another process, which renews nothing."""
    space.leases.mkdir(exist_ok=True)
    Holder(f"other-{attempt}", process=process, lease_s=lease_s).write(lease_of(space, attempt))


def lease_of(space: Workspace, attempt: int) -> Path:
    return space.leases / f"{attempt:06d}"


def in_force(space: Workspace) -> Holder | None:
    """The record of the last lease."""
    return Holder.read(max(space.leases.iterdir()))


def test_a_second_build_says_who_is_at_work(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    space = Workspace(tmp_path / "out" / ".build")
    space.create()
    program = (
        "import sys; sys.argv[1:] = ['--flag', 'a b']\n"
        "from pathlib import Path; from packer.workspace import Workspace; from packer.workspace.lock import FolderLock\n"
        f"held = FolderLock(Workspace(Path({str(space.root)!r})), print); held.acquire(); print('held', flush=True)\n"
        "input(); held.release()"
    )
    env = environment(python_path=TESTS)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], env=env, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = run_packer("build", source, tmp_path / "out", "--quiet", expect=None)
        assert done.returncode
        who = f"process {holder.pid} on {socket.gethostname().partition('.')[0]}, since 2"
        assert who in done.stderr
        assert "--flag 'a b'" in done.stderr
        space.holder.write_text(
            json.dumps({"name": "n", "host": "\x1b[2J" * 90, "node": "é\n" * 900, "command": "é\n" * 900})
        )
        text = run_packer("build", source, tmp_path / "out", "--quiet", expect=None).stderr
        assert "another build is at work" in text
        assert len(text) < 1200
        assert "\x1b" not in text
        for data in (b"", b"[]", b"{", b"\xff" * 10_000, b"[" * 5000):
            space.holder.write_bytes(data)
            assert Holder.read(space.holder) is None
        assert "its process is unknown" in run_packer("build", source, tmp_path / "out", "--quiet", expect=None).stderr
        holder.communicate("\n")
    run_packer("build", source, tmp_path / "out", "--quiet")
    check_whole(tmp_path / "out")
    assert not space.root.exists()


@pytest.mark.parametrize("kept", ["twice", "never"])
def test_a_lock_that_is_not_kept_is_recognised(space: Workspace, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    def flock(_descriptor: int, _how: int) -> None:
        if kept == "never":
            raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setenv("PACKER_LEASE_S", "3")
    said: list[str] = []
    first = hold(space, said)
    assert "supports no file locks: this build uses a lease instead" in said[0]
    with pytest.raises(BuildLockedError, match=f"process {os.getpid()} on "):
        hold(space)
    first.release()
    hold(space).release()
    found = in_force(space)
    assert found is not None
    assert found.ended


@pytest.mark.usefixtures("shared")
def test_a_lease_of_a_host_that_is_gone_is_waited_for_and_taken_over(space: Workspace) -> None:
    claim(space, lease_s=1)
    Holder("n7", host="n7", node="n7", pid=7, command="packer build").write(space.holder)
    said: list[str] = []
    held = hold(space, said)
    assert "process 7 on n7, since 1970-01-01 00:00:00: packer build" in said[0]
    assert "waiting up to 1 s" in said[0]
    held.check()
    held.release()
    found = in_force(space)
    assert found is not None
    assert found.ended
    hold(space).release()


@pytest.mark.usefixtures("shared")
def test_a_holder_on_this_machine_that_is_dead_is_not_waited_for(space: Workspace) -> None:
    dead = ":".join([*process_mark().split(":")[:3], "1"])
    claim(space, process=dead, lease_s=3600)
    said: list[str] = []
    hold(space, said).release()
    assert not said


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("data", [b"", b"null", b"\xff", b'{"name": 7}'])
def test_a_lease_without_a_record_expires(space: Workspace, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setenv("PACKER_LEASE_S", "0.5")
    claim(space)
    lease_of(space, 1).write_bytes(data)
    hold(space).release()


@pytest.mark.usefixtures("shared")
def test_of_two_that_take_a_lease_over_one_has_it(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def second(path: Any, flags: int, *more: Any) -> int:
        """Another process creates the file just before this one."""
        if flags & os.O_EXCL and Path(path) == lease_of(space, 2):
            claim(space, attempt=2)
        return really_open(path, flags, *more)

    claim(space)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", second)
        with pytest.raises(BuildLockedError, match="another build is at work in this folder"):
            hold(space)
    held = hold(space)
    claim(space, attempt=4)
    held.check()  # so soon after the last look, it does not look
    with pytest.raises(BuildLockedError, match="taken over this folder"):
        held.check(at_once=True)
    held.release()
    assert lease_of(space, 4).exists(), "the lease of the successor stays"


@pytest.mark.usefixtures("shared")
def test_a_build_that_was_taken_over_does_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b.png"])
    space = Workspace(tmp_path / "out" / ".build")
    monkeypatch.setattr(lock, "_CHECK_S", 0.0)

    def succeed(progress: packer.Progress) -> None:
        """Have another host take the folder over once the first item is done, as if this process had been stopped."""
        if progress.done:
            claim(space, attempt=2)

    with pytest.raises(BuildLockedError, match="another build has taken over this folder"):
        packer.build(source, tmp_path / "out", engine="inline", progress=Listener(succeed))
    assert lease_of(space, 2).exists(), "the lease of the successor stays"
    assert space.plan.exists()
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_on_a_local_disk_there_is_no_lease(space: Workspace) -> None:
    held = hold(space)
    assert space.holder.exists()
    assert not space.leases.exists()
    held.release()
    assert not space.holder.exists()


def test_leases_are_longer_than_what_a_shared_file_system_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("", "soon", "nan", "inf", "0", "-1"):
        monkeypatch.setenv("PACKER_LEASE_S", wrong)
        assert lease_s() == Holder("n1").lease_s == Holder.here().lease_s == 90
    monkeypatch.setenv("PACKER_LEASE_S", "6")
    assert lease_s() == Holder.here().lease_s == 6


def test_a_build_of_another_user_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:  # open to all users, which pytest's are not
        Path(folder).chmod(0o755)
        space = Workspace(Path(folder) / "out" / ".build")
        space.create()
        space.lock.touch()
        Holder("n5", host="here", node="here", pid=5, command="packer build a out").write(space.holder)
        command = [sys.executable, "-c", AS_ANOTHER, str(space.root)]
        said = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
        assert f"{space.out}: the build in this folder belongs to {space.lock.owner()} (process 5 on here" in said
        assert "its files cannot be written (Permission denied)" in said


def test_a_folder_inside_a_packed_dataset_is_refused(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    packer.build(source, tmp_path / "out", engine="inline", progress=False)
    with raises(UsageError, found=f"one inside {tmp_path / 'out'}"):
        packer.build(source, tmp_path / "out" / "more" / "b", engine="inline", progress=False)
    assert not (tmp_path / "out" / "more").exists()
