"""A small build that agents share, with an item in each task at which they can be held."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.builds.planning.plan import TASK_ITEMS
from support.builds import TESTS, write_images
from support.command import environment, run_packer, start_packer
from support.packed import check_whole, fingerprints
from support.processes import wait_for
from support.steps import GATE

TASKS = 4
LEASE_S = 2.0
STEPS = ("--steps", "decode,resize,support.steps:wait_at_gate")
OPTIONS = ("--size", "16", "--format", "npy", "--shard-size", "12kB", "--label-from", "folder")


@dataclass
class Shared:
    """A source, and the dataset that one undisturbed local build makes of it."""

    source: Path
    expected: dict[str, str]

    def begin(self, folder: Path, *more: object) -> "Case":
        """Plan a build in a new folder, whose agents will be held."""
        case = Case(folder, self)
        run_packer("submit", self.source, case.out, *OPTIONS, *STEPS, "--quiet", *more, env=case.env)
        return case


class Case:
    """One build, begun in a folder of its own."""

    def __init__(self, folder: Path, shared: Shared) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.shared = shared
        self.gate = folder / "gate"
        self.env = environment(python_path=TESTS, PACKER_LEASE_S=str(LEASE_S), **{GATE: str(self.gate)})

    @property
    def build(self) -> tuple[object, ...]:
        """The arguments of ``packer build`` and ``packer submit``."""
        return (self.shared.source, self.out, *OPTIONS, *STEPS)

    def start_agent(self, *more: str, held: bool = True) -> "subprocess.Popen[str]":
        """Start an agent with one worker; `held` waits until it stays at an item."""
        agent = start_packer("work", self.out, "--workers", "1", "--quiet", *more, env=self.env)
        if held:
            wait_for("an agent at an item", lambda: self.doing(agent.pid))
        return agent

    def doing(self, pid: int) -> str:
        """The bad item that an agent is at."""
        for record in (self.out / ".build" / "agents").glob("*.json"):
            found = json.loads(record.read_bytes())
            if found["pid"] == pid and any("bad" in one for one in found["doing"]):
                return str(found["doing"])
        return ""

    def claims(self) -> list[str]:
        """The claims to things that are not done and were not given back."""
        (folder,) = (self.out / ".build" / "claims").iterdir()
        names = sorted(path.name for path in folder.iterdir())
        done = {name.partition(".")[0] for name in names if name.endswith(".done")}
        return [name for name in names if name.partition(".")[0] not in done and not name.endswith(".free")]

    def status(self) -> dict[str, Any]:
        """What ``packer status`` says."""
        found: dict[str, Any] = json.loads(run_packer("status", self.out, "--json", env=self.env).stdout)
        return found

    def finish(self) -> None:
        """Open the gate; the finishing call does what is left, and commits the expected bytes."""
        self.gate.touch()
        run_packer("build", *self.build, "--quiet", env=self.env)
        check_whole(self.out)
        assert fingerprints(self.out) == self.shared.expected


def end(agent: "subprocess.Popen[str]", status: int | None) -> str:
    """Wait for the end of an agent; what it said."""
    out, err = agent.communicate(timeout=120)
    assert status is None or agent.returncode == status, f"{agent.returncode}\n{out}{err}"
    assert "Traceback" not in err, err
    return out + err


def share(folder: Path) -> Shared:
    """Make the source, and build it once."""
    names = [
        f"{'ab'[n >= TASKS * TASK_ITEMS // 2]}/{n:03d}{'-bad' if n % TASK_ITEMS == 2 else ''}.png"
        for n in range(TASKS * TASK_ITEMS)
    ]
    source = write_images(folder / "source", names)
    shared = Shared(source, {})
    case = Case(folder, shared)
    case.gate.touch()
    run_packer("build", *case.build, "--quiet", "--workers", "1", env=case.env)
    shared.expected = fingerprints(case.out)
    return shared
