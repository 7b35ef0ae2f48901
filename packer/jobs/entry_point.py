"""How a process of our own modules is started."""

import os
import sys
from pathlib import Path

from packer.jobs.threads import limit_environment


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours, ``python -m`` with nothing added to the path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def inherited_environment() -> dict[str, str]:
    """The environment of this process: what can be imported here (steps, too) can there, in the same order; math runs in one thread."""
    found = dict(os.environ)
    limit_environment(found)
    found["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return found
