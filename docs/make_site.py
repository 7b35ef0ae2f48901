"""Makes the source of the site in ``build/docs``, from which ``zensical`` builds the site: ``python docs/make_site.py``.

* The pages under ``docs/`` are copied.
* The pages of ``reference/commands`` are made from the parsers of the command line.
* The pages of ``reference/python`` list the public names, and mkdocstrings fills in their docstrings. A public name
  without a docstring is an error.
* Files elsewhere in the repository to which a page links are copied to ``repository/``, and the links follow them.
"""

import argparse
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import griffe

from packer.cli.commands.build import TOPICS
from packer.cli.line import COMMANDS, _parser

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "build" / "docs"
PACKAGES = ("packer", "readers", "readers.augment", "readers.lightning", "shardspec")
INHERITING = ("Loader", "PackedDataset")
"""Classes whose entry has the members of their private bases, which other classes share."""

LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def make() -> None:
    """Make the source of the site."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(REPOSITORY / "docs", SOURCE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, parser in _parser(COMMANDS)[1].items():
        write(f"reference/commands/{name}.md", make_command_page(name, parser))
    for package in PACKAGES:
        write(f"reference/python/{package}.md", make_package_page(package))
    pages = [page.relative_to(SOURCE).as_posix() for page in SOURCE.rglob("*.md")]
    for page in pages:  # grows
        pages += copy_linked_files(page)


def write(page: str, text: str) -> None:
    """Write a page of the site."""
    path = SOURCE / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def copy_linked_files(page: str) -> list[str]:
    """Copy the files outside ``docs/`` to which a page links, and let the links follow. Return the new pages."""
    text = (SOURCE / page).read_text("utf-8")
    new: list[str] = []

    def follow(match: re.Match[str]) -> str:
        target = place_in_site(page, match[1])
        original = REPOSITORY / target.removeprefix("repository/")
        if target.startswith("repository/") and original.is_file() and not (SOURCE / target).exists():
            (SOURCE / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(original, SOURCE / target)
            new.extend([target] if target.endswith(".md") else [])
        return f"]({os.path.relpath(target, PurePosixPath(page).parent)}{match[2] or ''})"

    write(page, LINK.sub(follow, text))
    return new


def place_in_repository(page: str, link: str) -> str:
    """Return the path in the repository of a link on a page of the site."""
    source = page.removeprefix("repository/") if page.startswith("repository/") else f"docs/{page}"
    return os.path.normpath(PurePosixPath(source).parent / link)


def place_in_site(page: str, link: str) -> str:
    """Return the path in the site of a link on a page of the site."""
    path = place_in_repository(page, link)
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def make_command_page(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the page about a command: its usage, and a table of each group of options."""
    parser.prog = f"packer {name}"
    lines = [f"# packer {name}\n", f"{parser.description}\n", "```text", parser.format_usage().rstrip(), "```\n"]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            title = str(group.title).removeprefix("positional ")
            kind = "option" if actions[0].option_strings else "argument"
            lines += [
                f"## {title[0].upper()}{title[1:]}\n",
                *introduce(title),
                f"| {kind} | description |",
                "|---|---|",
            ]
            lines += [describe_option(parser, action) for action in actions] + [""]
    return "\n".join(lines)


def introduce(title: str) -> list[str]:
    """Return the text of a topic, or nothing for another group of options."""
    return [
        re.sub("--[a-z-]+", r"`\g<0>`", topic.text) + f" [More](../../{topic.page.removeprefix('docs/')}).\n"
        for topic in TOPICS.values()
        if topic.title == title
    ]


def describe_option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option's row of the table. Its anchor is its name in Python."""
    formatter = parser._get_formatter()
    call = formatter._format_action_invocation(action)
    text = formatter._expand_help(action) if action.help else ""
    text = re.sub(r"([|*<_])", r"\\\1", text)
    return f'| <a id="{action.dest}"></a>`{call}`'.replace("|`", r"\|`") + f" | {text[:1].upper()}{text[1:]} |"


def make_package_page(package: str) -> str:
    """Return the page about a package, which mkdocstrings fills with the docstrings of the public names."""
    root = griffe.load(package, search_paths=[str(REPOSITORY)], resolve_aliases=True)
    assert root.docstring is not None
    lines = [f"# {package}\n", root.docstring.value.replace("::\n", ":\n"), ""]
    for name in sorted(public_names(root), key=lambda name: (name[0].isupper(), name)):
        if not root[name].has_docstring:
            raise SystemExit(f"{package}.{name} is public and has no docstring")
        inherited = ["    options:", "      inherited_members: true"] if name in INHERITING else []
        lines += [f"::: {package}.{name}", *inherited, ""]
    return "\n".join(lines)


def public_names(package: Any) -> list[str]:
    """Return what a package imports for type checkers: these names are public."""
    return [name for name, member in package.members.items() if member.is_alias and member.runtime is False]


if __name__ == "__main__":
    make()
