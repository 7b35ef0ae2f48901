"""Arguments of commands: those of a Python function, made from its signature and docstring, and those of a build."""

import argparse
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import packer
from packer.cli.output import print_out
from packer.jobs.result import Result
from packer.recipe import TEXT_LISTS
from shardspec.errors import TooManyRejectsError
from shardspec.formats import FORMATS
from shardspec.layout import is_url

_PYTHON_ONLY = ("progress", "storage_options")
"""Parameters without an option: ``--quiet`` stands for `progress`, and every user of the machine sees a command line."""

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "diff out": ("-o", "--out"),
    "preview out": ("-o", "--out"),
    "report out": ("-o", "--out"),
    "view table": ("--with",),
}
"""Options that are not named like their parameter, or whose parameter has no default."""

_METAVARS: Mapping[str, str] = {
    "share": "K/N",
    **dict.fromkeys(("by", "into", "stratify", "one_per", "on"), "FIELD"),
    **dict.fromkeys(("url", "homepage"), "URL"),
    **dict.fromkeys(("seed", "shuffle"), "SEED"),
    **dict.fromkeys(("start", "track"), "ROW"),
    "cell": "PX",
    "key": "COLUMN",
    "ratios": "NAME=SHARE,…",
    "seconds": "SECONDS",
    "shard_size": "SIZE",
    "time_limit": "MINUTES",
    "transform": "MODULE:NAME",
    "where": "CONDITION",
}
"""Placeholders of options that say more than those that follow from types."""

_MADE: Mapping[str, str] = {
    "add": "dataset",
    "compute": "dataset",
    "convert": "out",
    "describe": "dataset",
    "drop_field": "dataset",
    "merge": "out",
    "remove": "dataset",
}
"""The argument that names the dataset of a function's result."""


class FunctionCommand:
    """A command that calls the function of `packer` of the same name, and prints its result.

    Raises
    ------
    MissingDependencyError
        If a library that the function needs is not installed.
    """

    def __init__(self, command: str) -> None:
        self._function = function_of(command)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the function's parameters."""
        add_parameters(parser, self._function)

    def run(self, options: argparse.Namespace) -> int:
        """Call the function, and return the exit status."""
        made = _MADE.get(self._function.__name__)
        if made is None:
            print_result(options, call(self._function, options))
        else:
            print_job(options, lambda: call(self._function, options), getattr(options, made))
        return 0


def function_of(command: str) -> Callable[..., Any]:
    """Return the function of `packer` that a command calls."""
    found: Callable[..., Any] = getattr(packer, "list_dataset" if command == "list" else command.replace("-", "_"))
    return found


def add_output_arguments(parser: argparse.ArgumentParser, *, takes_time: bool = True) -> None:
    """Add the options about what is printed."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if takes_time:
        parser.add_argument("--quiet", action="store_true", help="show no progress")


class _Parameter(NamedTuple):
    """A parameter of a function, as its docstring describes it."""

    name: str
    kind: str
    text: str


def add_parameters(
    parser: argparse.ArgumentParser, function: Callable[..., Any], left_out: Collection[str] = ()
) -> None:
    """Add the parameters of a function as arguments. Only those that are given will be in the namespace.

    A parameter without a default is a positional argument, unless it is keyword-only. The help of an option is the first
    sentence of its description.
    """
    documented = {one.name: one for one in _read_docstring(function)}
    parameters = inspect.signature(function).parameters
    flags = {name: flag for name in parameters if (flag := _flags(function.__name__, parameters[name]))}
    for name, parameter in parameters.items():
        if name in _PYTHON_ONLY or name in left_out or parameter.kind is parameter.VAR_KEYWORD:
            continue
        _, kind, text = documented.get(name, _Parameter(name, "", ""))  # none with python -OO
        how = _describe_value(name, parameter, kind, is_option=name in flags)
        how["help"] = _help(text, parameter.default, flags)
        if how.get("action") == "append":
            how["help"] += " (repeatable)"
        if name in flags:
            required = parameter.default is parameter.empty
            parser.add_argument(*flags[name], dest=name, default=argparse.SUPPRESS, required=required, **how)
        else:
            parser.add_argument(name, default=argparse.SUPPRESS, **how)
    add_output_arguments(parser, takes_time="progress" in parameters)


def _flags(function: str, parameter: inspect.Parameter) -> tuple[str, ...]:
    """Return the names of a parameter's option, or none for a positional argument."""
    name = parameter.name
    if (known := _FLAGS.get(f"{function} {name}")) is not None:
        return known
    if parameter.kind is not parameter.KEYWORD_ONLY and (parameter.default in (parameter.empty, (), None)):
        return ("-o", "--out") if name == "out" and parameter.default is None else ()
    return (*(["-o"] if name == "out" else []), "--" + name.replace("_", "-"))


def _describe_value(name: str, parameter: inspect.Parameter, kind: str, *, is_option: bool) -> dict[str, Any]:
    """Return how `argparse` reads the value of a parameter."""
    annotation = parameter.annotation
    kinds = [get_origin(one) or one for one in get_args(annotation) if get_origin(annotation) is not Sequence]
    kinds = kinds or [get_origin(annotation) or annotation]
    if kinds == [bool]:
        return {"action": "store_true"}
    how: dict[str, Any] = {}
    several = not is_option and Sequence in kinds and name.endswith("s")
    choices = sorted(FORMATS) if name == "format" else re.findall(r'"([\w-]+)"', kind) if kind.startswith("{") else []
    if choices:
        how["choices"] = choices
    elif is_option:
        follows = "N" if {int, float} & {*kinds} else "PATH" if "path" in kind else "TEXT"
        how["metavar"] = _METAVARS.get(name, follows)
    else:
        how["metavar"] = name.upper().removesuffix("S") if several else name.upper()
    if several:
        how["nargs"] = "+" if parameter.default is parameter.empty else "*"
    elif is_option and Sequence in kinds and str in kinds:
        how["action"] = "append"
    elif is_option and Sequence in kinds:
        how |= {"type": split_names, "metavar": "NAME,…"}
    elif not is_option and parameter.default is not parameter.empty:
        how["nargs"] = "?"
    elif str not in kinds and {int, float} & {*kinds}:
        how["type"] = float if float in kinds else int
    return how


def _read_docstring(function: Callable[..., Any]) -> Iterator[_Parameter]:
    """Yield the parameters in a docstring. A text ``See `packer.NAME`.`` stands for that function's text."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", inspect.getdoc(function) or "", re.S | re.M)
    for entry in re.findall(r"^\S.*\n(?: .*\n?|\n)*", section[1] + "\n" if section else "", re.M):
        head, _, text = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        text = " ".join(text.split())
        other = re.fullmatch(r"See `packer\.(\w+)`\.", text)
        known = {one.name: one for one in _read_docstring(getattr(packer, other[1]))} if other else {}
        for name in names.split(", "):
            yield known.get(name, _Parameter(name, kind, text))


def _help(text: str, default: Any, flags: Mapping[str, Sequence[str]]) -> str:
    """Return the first sentence of a parameter's description as the help of an option."""

    def spell(match: re.Match[str]) -> str:
        name = match[1]
        return flags[name][-1] if name in flags else name.replace("packer.", "packer ")

    text = re.split(r"\.\s+(?=[A-Z`])", text.removesuffix("."))[0].removeprefix("Whether to ")
    text = re.sub(r"(?<!`)`([\w.]+)`(?!`)", spell, text).replace("``", "").replace("%", "%%")
    first = text.partition(" ")[0]
    text = text if any(map(str.isupper, first[1:])) else text[:1].lower() + text[1:]
    shows = default is not False and default not in (inspect.Parameter.empty, None, (), "") and "default" not in text
    return f"{text} (default: {default})" if shows else text


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(part.strip() for part in text.split(","))


def call(function: Callable[..., Any], options: argparse.Namespace, **more: Any) -> Any:
    """Call the Python function of a command with the options that are its parameters, ``progress``, and `more`."""
    given = {"progress": not getattr(options, "quiet", False), **vars(options)}
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in names}, **more)


def print_result(options: argparse.Namespace, result: Result) -> None:
    """Print a result as text or JSON."""
    print_out(json.dumps(result.to_json()) if options.json else result.describe())


def print_job(options: argparse.Namespace, run: Callable[[], Any], path: str) -> None:
    """Run a job, and print its result as `print_made` does, even if it has more rejects than allowed."""
    try:
        result = run()
    except TooManyRejectsError as error:
        if error.result is not None:
            print_made(options, error.result, path)
        raise
    print_made(options, result, path)


def print_made(options: argparse.Namespace, result: Any, path: str) -> None:
    """Print a result with its `path` as the user typed it, so that it fits the next command."""
    print_result(options, dataclasses.replace(result, path=path if is_url(path) else Path(path)))


def add_option(group: argparse._ArgumentGroup, spec: "dataclasses.Field[Any]") -> None:
    """Add one attribute as an option. Options that are not given are absent, so that the recipe file applies."""
    meta, flag = spec.metadata, "--" + spec.name.replace("_", "-")
    common: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS, "help": _option_help(spec)}
    kinds = getattr(spec.type, "__args__", (spec.type,))
    if meta.get("optional"):
        group.add_argument(flag, nargs="?", const=True, metavar=meta["metavar"], **common)
        return
    if bool in kinds:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        return
    if "choices" in meta:
        common["choices"] = meta["choices"]
    else:
        common["metavar"] = meta.get("metavar", spec.name.upper())
    if spec.name in TEXT_LISTS:
        common |= {"action": "append", "type": str}
    elif spec.name == "steps" or meta.get("commas"):
        common["type"] = split_names
    elif not meta.get("bytes") and "parse" not in meta:
        common["type"] = kinds[0] if kinds[0] in (int, float) else str
    group.add_argument(flag, **common)


def _option_help(spec: "dataclasses.Field[Any]") -> str:
    text = str(spec.metadata["help"]).replace("%", "%%")
    if spec.default in (None, (), False) or "default" in text:
        return text
    return f"{text} (default: {spec.default})"
