"""Processes of a module that do something of the test's before, or during, what they are for."""

from pathlib import Path
from textwrap import indent

DIE = "os.kill(os.getpid(), signal.SIGKILL)"


def at_start_of(folder: Path, module: str, code: str) -> Path:
    """Write into a folder what has processes of a module run some code before their own, where it is on the Python path."""
    folder.mkdir(exist_ok=True)
    lines = f"import os, signal, sys\nif {module!r} in sys.orig_argv:\n{indent(code, '    ')}\n"
    (folder / "sitecustomize.py").write_text(lines)
    return folder


def before_each(folder: Path, module: str, event: str, condition: str, deed: str = DIE) -> Path:
    """The same for code before operations that Python tells its audit hooks of: those for whose ``arguments`` a condition holds."""
    lines = f"def hook(event, arguments):\n    if event == {event!r} and {condition}:\n{indent(deed, '        ')}\n"
    return at_start_of(folder, module, f"{lines}sys.addaudithook(hook)")
