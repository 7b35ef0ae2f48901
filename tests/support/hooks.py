"""Processes of a module that run code of a test before, or during, their own work."""

from pathlib import Path
from textwrap import indent

DIE = "os.kill(os.getpid(), signal.SIGKILL)"


def at_start_of(folder: Path, module: str, code: str) -> Path:
    """Write a file that makes processes of a module run some code before their own, if its folder is on the path."""
    folder.mkdir(exist_ok=True)
    lines = f"import os, signal, sys\nif {module!r} in sys.orig_argv:\n{indent(code, '    ')}\n"
    (folder / "sitecustomize.py").write_text(lines)
    return folder


def before_each(folder: Path, module: str, event: str, condition: str, deed: str = DIE) -> Path:
    """Write such a file for code before operations of an audit event whose ``arguments`` fulfil a condition."""
    lines = f"def hook(event, arguments):\n    if event == {event!r} and {condition}:\n{indent(deed, '        ')}\n"
    return at_start_of(folder, module, f"{lines}sys.addaudithook(hook)")
