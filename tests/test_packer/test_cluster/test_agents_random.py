"""Agents that are killed and stopped at random moments, round after round: one digest."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.cluster import Case, end, share
from support.cluster_builds import rounds
from support.command import run_packer
from support.packed import fingerprints
from support.processes import workers_of

pytestmark = pytest.mark.slow


def test_random_faults_of_agents_change_no_byte(tmp_path: Path) -> None:
    shared = share(tmp_path / "shared")
    for number, rng in rounds("of agents", 0.4):
        case = Case(tmp_path / f"{number}", shared)
        case.folder.mkdir()
        case.gate.touch()
        run_packer("submit", *case.build, "--quiet", env=case.env)
        agents = [case.start_agent(held=False) for _ in range(2)]
        stopped, faults = [], []
        for _ in range(rng.randrange(1, 4)):
            time.sleep(rng.uniform(0.0, 1.2))
            victim = rng.choice(agents)
            how = rng.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1, None])
            faults.append("a worker killed" if how is None else how.name)
            with suppress(ProcessLookupError, IndexError):
                if how is None:
                    os.kill(rng.choice(workers_of(victim.pid)), signal.SIGKILL)
                elif victim.poll() is None:
                    victim.send_signal(how)
                    if how == signal.SIGSTOP:
                        stopped.append(victim)
        print(f"round {number}: {', '.join(faults)}", flush=True)
        run_packer("work", case.out, "--workers", "1", "--quiet", env=case.env, expect=None)
        for agent in stopped:
            agent.send_signal(signal.SIGCONT)
        for agent in agents:
            end(agent, None)
        run_packer("build", *case.build, "--quiet", env=case.env)
        assert fingerprints(case.out) == shared.expected
        shutil.rmtree(case.folder)
