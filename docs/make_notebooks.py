"""Runs the tutorials and writes each as a notebook with its outputs: ``python docs/make_notebooks.py [FOLDER]``.

The page is the only source. Its commands and Python blocks become cells. An output on the page is replaced by the output
of the run, and an image by the file of this name that the commands above it wrote. A notebook is JSON, so no package
is needed.
"""

import ast
import base64
import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TUTORIALS = ("deepfakes", "lips")

CELL = re.compile(r"```python\n(.*?)\n```|((?:^ {4}[^\n]*\n)+)|!\[[^\]]*\]\(\S+/(\S+)\)|```\n.*?\n```", re.S | re.M)


def make(name: str, folder: Path) -> None:
    """Run the tutorial of this name in an empty folder, and write its notebook into `folder`."""
    text = (DOCS / "start" / f"{name}.md").read_text("utf-8")
    cells: list[dict[str, Any]] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    end = 0
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        for example in (DOCS.parent / "examples").glob("*.py"):
            shutil.copy(example, work)
        sys.path.insert(0, work)
        for match in CELL.finditer(text):
            cells.append(make_cell("markdown", text[end : match.start()]))
            end = match.end()
            code, commands, image = match.groups()
            if commands:
                source = re.sub("^ {4}", "!", commands.replace("\\\n", "").strip("\n"), flags=re.M)
                cells.append(make_cell("code", re.sub(" +", " ", source), run_commands(commands)))
            elif code or image:
                code = code or f'from PIL import Image\n\nImage.open("{image}")'
                cells.append(make_cell("code", code, run_python(code, names)))
        cells.append(make_cell("markdown", text[end:]))
    cells = [cell for cell in cells if cell["source"]]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def make_cell(kind: str, source: str, outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a cell of the notebook."""
    cell = {"cell_type": kind, "metadata": {}, "source": source.strip("\n")}
    return cell if outputs is None else {**cell, "execution_count": None, "outputs": outputs}


def run_commands(lines: str) -> list[dict[str, Any]]:
    """Run the indented commands of a page in the current folder."""
    shown = []
    for line in lines.replace("\\\n", "").splitlines():
        words = shlex.split(line)
        command = [sys.executable, *(["-m", "packer"] if words[0] == "packer" else []), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise SystemExit(f"{line.strip()} failed:\n{done.stdout}{done.stderr}")
        shown.append(done.stdout)
    return show_text("".join(shown))


def run_python(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell like Jupyter: the value of an expression in its last line is shown, as an image if it is one."""
    *body, last = ast.parse(code).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
        else:
            exec(compile(code, "cell", "exec"), names)  # noqa: S102
    outputs = show_text(printed.getvalue())
    if hasattr(value, "_repr_png_"):
        image = base64.b64encode(value._repr_png_()).decode()
        outputs.append({"output_type": "display_data", "data": {"image/png": image}, "metadata": {}})
    return outputs


def show_text(text: str) -> list[dict[str, Any]]:
    """Return printed text as the outputs of a cell."""
    return [{"output_type": "stream", "name": "stdout", "text": text}] if text else []


if __name__ == "__main__":
    for name in TUTORIALS:
        make(name, Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "start").absolute())
