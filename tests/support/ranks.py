"""Scripts in separate processes, alone or as the ranks of one training."""

import subprocess
import sys
from pathlib import Path

from support.command import COMMAND_LIMIT_S, environment

# Gloo's threads outlive the process group, and one that still holds a tensor aborts the process while the interpreter
# is being torn down (described in pytorch/pytorch#179291). So a rank runs what is registered for its exit, and leaves.
_LEAVE = """
import atexit, os, sys
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)
"""


def run_script(*arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python on a file, on ``-m`` and a module, or on ``-c`` and a text, with its arguments; it must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_ranks(script: str, *arguments: object, each: tuple[object, ...] = ("", "")) -> list[tuple[str, str]]:
    """Run a text on several ranks at once; return what each wrote to standard output and error.

    Parameters
    ----------
    script : str
        Gets `arguments`, its rank, and its element of `each`.
    each : tuple
        One element for each rank.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script + _LEAVE, *map(str, arguments), str(rank), str(own)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, own in enumerate(each)
    ]
    outputs = [process.communicate(timeout=COMMAND_LIMIT_S) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * len(ranks), [errors for _, errors in outputs]
    return outputs
