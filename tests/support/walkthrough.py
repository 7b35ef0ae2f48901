"""Runs a page of the docs as a reader would: its blocks, from top to bottom, in an empty folder.

* Lines indented by four spaces, and fences of ``sh`` and ``bash``, are commands.
* A fence of ``python`` runs with the names of those before it. If it begins with ``# name.py``, or has a
  ``title="name"`` as fences of other languages, it is saved as that file.
* A fence without a language is what the block before it prints. Numbers with a decimal point, digests and times vary;
  ``…`` stands for anything.
* ``<!-- not run: reason -->`` and ``<!-- needs LIBRARY -->`` hold for the next block, and ``<!-- exit status N -->`` for
  its last command. The site does not show them.
"""

import contextlib
import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock

from support.command import COMMAND_LIMIT_S, REPOSITORY, environment, run_packer, start_packer
from support.stores import serving

EXAMPLES = REPOSITORY / "examples"

_BLOCK = re.compile(
    r"^(?P<mark><!-- .*? -->)\n+(?=```|    \S)"
    r"|^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<fenced>.*?)^```$"
    r"|(?:(?<=\n\n)|(?<=-->\n))(?P<indented>(?:^ {4}(?!\|)[^\n]*\n(?:\n(?= {4}))?)+)",
    re.DOTALL | re.MULTILINE,
)
_KINDS = {"": "output", "sh": "commands", "bash": "commands", "python": "python"}
_FILE = re.compile(r"# ([\w.]+\.\w+)(?=[:\s])")
_VARYING = re.compile(
    r"\b[0-9a-f]{64}\b|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\+00:00)?|-?\d+\.\d+"
    r"|(?<=agent )\S+, process \d+ on \S+|\d+(?= ?(?:%|MB free|s with|of \d+ (?:validation|right)))"
)


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    kind: str
    """``commands``, ``python``, ``file`` or ``output``."""
    text: str
    line: int
    name: str = ""
    """Of a file."""
    marks: tuple[str, ...] = ()

    def mark(self, prefix: str) -> str | None:
        """Return what a mark says after a prefix, or None."""
        return next((mark.removeprefix(prefix).strip() for mark in self.marks if mark.startswith(prefix)), None)


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text("utf-8")
    marks: list[str] = []
    for match in _BLOCK.finditer(text):
        if match["mark"]:
            marks.append(match["mark"].removeprefix("<!--").removesuffix("-->").strip())
            continue
        line = text.count("\n", 0, match.start()) + 1
        if match["indented"]:
            yield Block("commands", re.sub("^ {4}", "", match["indented"], flags=re.M), line, marks=tuple(marks))
        else:
            language, code = match["language"], match["fenced"]
            named = _FILE.match(code)
            name = match["title"] or (named[1] if named and language not in ("", "sh", "bash") else "")
            kind = "file" if name else _KINDS.get(language)
            if kind:
                yield Block(kind, code, line + 1, name, tuple(marks))
        marks = []


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if _words_of(line)]


def _words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def beginnings(page: Path) -> Iterator[tuple[str, ...]]:
    """Yield the first command of a page, its first two, and so on, as long as there are no other blocks between them."""
    begun: tuple[str, ...] = ()
    for block in read_blocks(page):
        if block.kind == "output":
            continue
        if block.kind != "commands" or block.marks:
            return
        for line in commands_of(block):
            begun = (*begun, shlex.join(_words_of(line)))
            yield begun


@dataclass
class Walk:
    """A reader who follows a page in a folder."""

    folder: Path
    made: Path | None = None
    """Folder for what `common` commands make, which run once for all pages."""
    common: Collection[tuple[str, ...]] = ()
    """Commands with which several pages begin (`beginnings`)."""
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    """By the last block."""
    begun: tuple[str, ...] = ()
    """The commands and other blocks so far."""

    def follow(self, page: Path) -> None:
        """Run the blocks of a page in order. If it names a bucket, a server on this machine has it."""
        shutil.copytree(EXAMPLES, self.folder / "examples", dirs_exist_ok=True)  # of the clone, as the README calls it
        for example in EXAMPLES.glob("*.py"):
            shutil.copy(example, self.folder)
        modules, variables = set(sys.modules), dict(os.environ)
        sys.path.insert(0, str(self.folder))
        os.environ["FACEPACK_CACHE"] = str(self.folder / ".cache")
        try:
            with contextlib.chdir(self.folder), contextlib.ExitStack() as stack:
                if "s3://my-bucket" in page.read_text("utf-8"):
                    server = stack.enter_context(serving())
                    server.make_bucket("my-bucket")
                    os.environ.update(server.variables)
                for block in read_blocks(page):
                    try:
                        self.take(block)
                    except BaseException as error:
                        error.add_note(f"{page.relative_to(REPOSITORY)}:{block.line}")
                        raise
        finally:
            sys.path.remove(str(self.folder))
            os.environ.clear()
            os.environ.update(variables)
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(self.folder)):
                    del sys.modules[name]

    def take(self, block: Block) -> None:
        """Run, save or compare a block."""
        if block.kind == "output":
            if self.printed:
                compare(block.text, self.printed)
            return
        self.printed = ""
        library = block.mark("needs ")
        if block.mark("not run:") is not None or (library and find_spec(library) is None):
            return
        if block.kind != "commands":
            self.begun = (*self.begun, block.text)
        if block.kind == "file":
            Path(block.name).write_text(block.text, "utf-8")
        elif block.kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * (block.line - 1) + block.text, "page.md", "exec"), self.names)
            self.printed = out.getvalue()
        else:
            lines = commands_of(block)
            for line in lines:
                status = int(block.mark("exit status ") or 0) if line is lines[-1] else 0
                self.printed += self.run_once(line, status)

    def run_once(self, line: str, status: int) -> str:
        """Run a command, or copy what it made and return what it printed, if a page before began in the same way."""
        self.begun = (*self.begun, shlex.join(_words_of(line)))
        if self.made is None or self.begun not in self.common:
            return self.run(line, status)
        made = self.made / hashlib.sha256(repr(self.begun).encode()).hexdigest()
        with FileLock(f"{made}.lock"):
            if not made.exists():
                printed = self.run(line, status)
                shutil.copytree(self.folder, made / "files")
                (made / "printed").write_text(printed, "utf-8")
                return printed
        shutil.copytree(made / "files", self.folder, dirs_exist_ok=True)
        return (made / "printed").read_text("utf-8")

    def run(self, line: str, status: int) -> str:
        """Run a command; what it prints, its errors first, since these are of progress."""
        program, *words = _words_of(line)
        if program == "pip":
            return ""
        if program == "export":
            os.environ.update({name: value for name, _, value in (word.partition("=") for word in words)})
            return ""
        if program == "packer" and words[0] == "view":
            return look(*words)
        if program == "packer" and not {"&&", "|", ">"} & set(words):
            done = run_packer(words[0], *words[1:], expect=status, python_path=self.folder)
        else:
            done = subprocess.run(
                ["bash", "-c", line], env=with_commands(), capture_output=True, text=True, timeout=COMMAND_LIMIT_S
            )
            assert done.returncode == status, f"{line}\n{done.stdout}{done.stderr}"
        return done.stderr + done.stdout


def with_commands() -> dict[str, str]:
    """The environment of a shell that finds the commands of this Python."""
    return environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def look(*words: str) -> str:
    """Open the page that a command serves, then press Ctrl-C."""
    with start_packer(*words) as process:
        assert process.stdout is not None
        shown = process.stdout.readline()
        address = re.search(r"http://\S+", shown)
        assert address, shown + process.communicate()[1]
        with urllib.request.urlopen(address[0], timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        return shown + process.communicate(timeout=COMMAND_LIMIT_S)[0]


def compare(shown: str, printed: str) -> None:
    """Fail unless the lines of an output are among the printed ones, in their order."""
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        if line.startswith(("packing: ", "writing: ")) or not line.strip("… "):
            continue  # progress depends on time
        pattern = re.escape(_VARYING.sub("<N>", line)).replace("…", ".*")
        found = any(re.fullmatch(pattern, _VARYING.sub("<N>", other).rstrip()) for other in lines)
        assert found, f"not printed: {line}\n--- printed:\n{printed}"


if __name__ == "__main__":
    # Shows what every block of a page prints, and what fails: PYTHONPATH=tests python -m support.walkthrough PAGE
    import tempfile
    import traceback

    class Shown(Walk):
        def take(self, block: Block) -> None:
            print(f"--- line {block.line}: {block.kind} {block.marks or ''}\n{block.text}", flush=True)
            try:
                super().take(block)
            except Exception:
                traceback.print_exc(file=sys.stdout)
            print("" if block.kind == "output" else f">>> {self.printed}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        Shown(Path(folder)).follow(Path(sys.argv[1]).resolve())
