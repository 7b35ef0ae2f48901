"""Selection that a page of the grid shows, as its address encodes it."""

import ast
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request


@dataclass(frozen=True)
class Query:
    """Selection that a page of the grid shows.

    Attributes
    ----------
    where, sort : str
        See `BrowsedDataset.select`.
    page : int
        From 1.
    usual : str
        The order of an address that names none.
    """

    where: str = ""
    sort: str = ""
    page: int = 1
    usual: str = ""

    @classmethod
    def of(cls, request: Request, usual: str = "") -> "Query":
        """Read the query of an address. An invalid page number counts as 1."""
        given = request.query_params
        page = given.get("page", "1")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 12 else 1
        return cls(given.get("where", "").strip(), given.get("sort", usual).strip(), max(1, number), usual)

    def link(self, **changes: Any) -> str:
        """Return the query part of the address of another page."""
        values = {"where": self.where, "sort": self.sort, "page": 1, **changes}
        usual = {"where": "", "sort": self.usual, "page": 1}
        given = {name: value for name, value in values.items() if value != usual[name]}
        return "?" + urlencode(given, errors="replace") if given else ""

    def narrowed(self, where: str, field: str) -> tuple[str, bool]:
        """Return the query with the condition of a bar instead of others on its field, or without it if it is set.

        Returns
        -------
        str
            The query part of the address.
        bool
            Whether the condition is there.
        """
        present, asked = _conditions(self.where), _conditions(where)
        if present is None or asked is None:
            return self.link(where=where), False
        there = set(asked) <= set(present)
        kept = [text for text, names in present.items() if names != {field}]
        return self.link(where=" and ".join(kept if there else [*kept, where])), there


def _conditions(where: str) -> dict[str, set[str]] | None:
    """Return the conditions that ``and`` joins, each with its fields; None if the expression is invalid."""
    if not where:
        return {}
    try:
        tree = ast.parse(where, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    joined = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    found = {}
    for part in tree.values if isinstance(tree, ast.BoolOp) and joined else [tree]:
        text = ast.unparse(part)
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
        found[f"({text})" if isinstance(part, ast.BoolOp) else text] = names
    return found
