"""The mechanical part of how docstrings read; CONTRIBUTING.md has the rest."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RIDDLES = re.compile(r"(What|Whether|Which|Those|That of|Who|In words)\b")


@pytest.mark.parametrize("package", ["packer", "readers", "shardspec"])
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if RIDDLES.match(text):
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert found == []
