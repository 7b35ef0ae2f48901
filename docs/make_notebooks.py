"""Runs the tutorials and writes each as a notebook with its outputs: ``python docs/make_notebooks.py [FOLDER]``.

The page is the only source. Its commands and Python blocks become cells, which a Jupyter kernel executes. An output on
the page is replaced by the output of the run, and an image by the file of this name that the commands above it wrote.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DOCS = Path(__file__).parent
TUTORIALS = ("deepfakes", "lips")

CELL = re.compile(r"```python\n(.*?)\n```|((?:^ {4}[^\n]*\n)+)|!\[[^\]]*\]\(\S+/(\S+)\)|```\n.*?\n```", re.S | re.M)


def make(name: str, folder: Path) -> None:
    """Run the tutorial of this name in an empty folder, and write its notebook into `folder`."""
    text = (DOCS / "start" / f"{name}.md").read_text("utf-8")
    cells, end = [], 0
    for match in CELL.finditer(text):
        cells.append(new_markdown_cell(text[end : match.start()].strip("\n")))
        end = match.end()
        code, commands, image = match.groups()
        if commands:
            code = re.sub(" +", " ", re.sub("^ {4}", "!", commands.replace("\\\n", "").strip("\n"), flags=re.M))
        elif image:
            code = f'from PIL import Image\n\nImage.open("{image}")'
        if code:
            cells.append(new_code_cell(code))
    cells.append(new_markdown_cell(text[end:].strip("\n")))
    notebook = new_notebook(cells=[cell for cell in cells if cell.source])
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"  # instead of a random one
    with tempfile.TemporaryDirectory() as work:
        for example in (DOCS.parent / "examples").glob("*.py"):
            shutil.copy(example, work)
        nbclient.execute(notebook, cwd=work, coalesce_streams=True, record_timing=False)
    nbformat.write(notebook, folder / f"{name}.ipynb")


if __name__ == "__main__":
    # The commands of this environment
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in TUTORIALS:
        make(name, Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "start").absolute())
