"""Makes ``docs/api.md``, the list of the public names, from the code: ``python docs/make_api.py``.

The code is read, not imported, so no library needs to be there.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "api.md"
PACKAGES = ("packer", "readers", "readers.augment", "readers.lightning", "shardspec")

HEAD = """\
# Public names

Each with the first line of its docstring; `help(packer.build)` shows the rest. A name loads what it needs on first
use. Every other name of the packages is internal and may change.

This page is made from the code by `python docs/make_api.py`.
"""


def make() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(section(package) for package in PACKAGES)])


def section(package: str) -> str:
    """The part of the page about one package."""
    tree = ast.parse(path_of(package).read_text(encoding="utf-8"))
    names = sorted(public_names(tree), key=lambda found: (found[0][0].isupper(), found[0]))
    rows = [
        f"| `{package}.{name}{call}` | {line} |" for name, module in names for call, line in [describe(module, name)]
    ]
    return "\n".join(
        [f"## {package}\n", f"{first_line(ast.get_docstring(tree))}\n", "| name | |", "|---|---|", *rows, ""]
    )


def public_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each public name of a package and the module that defines it: what its ``__init__`` imports for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for found in node.body:
                assert isinstance(found, ast.ImportFrom)
                assert found.module
                for alias in found.names:
                    yield alias.name, found.module


def describe(module: str, name: str) -> tuple[str, str]:
    """What stands behind a name that is called, and the first line of its docstring; a constant's stands below it."""
    body = ast.parse(path_of(module).read_text(encoding="utf-8")).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "()", first_line(ast.get_docstring(node))
        if isinstance(node, ast.ClassDef) and node.name == name:
            return "", first_line(ast.get_docstring(node))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(following, ast.Expr), f"{module}.{name} has no docstring"
            return "", first_line(ast.literal_eval(following.value))
    raise LookupError(f"{module} does not define {name}")


def first_line(docstring: str | None) -> str:
    """The first line of a docstring in Markdown, fit for a table."""
    assert docstring
    return docstring.partition("\n")[0].replace("``", "`").replace("|", "\\|")


def path_of(module: str) -> Path:
    """The file of a module."""
    path = REPOSITORY.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    PAGE.write_text(make(), encoding="utf-8")
