"""The ``packer`` command, also called ``facepack``: finds the subcommand, runs it, and turns errors into messages.

Exit status: 0 done; 1 a job failed, or a check found something; 2 invalid usage, such as a missing folder; 3 finished
with more rejects than allowed, or with leaks between datasets; 130 ended by Ctrl-C, ``kill``, Slurm's time limit or the
end of the session.
"""

import argparse
import codecs
import io
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from packer.cli import EXIT_INTERRUPTED, Interrupts
from packer.cli.output import print_out
from shardspec.errors import MissingDependencyError, ShardspecError, system_reason
from shardspec.wording import LENGTH, LONG, PROGRAM, cut, did_you_mean, list_some, program, shorten

GROUPS: Mapping[str, Mapping[str, str]] = {
    "pack": {
        "build": "pack images or videos from a folder, table or archive into a dataset; repeat the command to resume",
        "detect": "detect faces and pack their boxes without images, for builds with --boxes; repeat the command to resume",
        "list": "list a public dataset, laid out as published, as a table for packer build",
        "status": "show the progress and rejects of an unfinished build, and who is at work",
    },
    "look and check": {
        "inspect": "show the contents of a packed dataset",
        "diff": "compare two packed datasets: samples, fields and pixels that differ (exit status 1 if any)",
        "view": "browse packed datasets: filter, sort, and show every sample with its geometry",
        "preview": "draw a contact sheet of samples with their geometry",
        "report": "write an HTML report on packed datasets: counts, histograms, rejects, samples",
        "verify": "check a packed dataset against its manifest, byte for byte",
        "rejects": "summarise why items were rejected, and write them to a table",
        "duplicates": "find samples that look the same, in a dataset or between datasets (exit status 3 with leaks)",
        "bench": "compare the speed of reading raw files and the packed dataset",
    },
    "derive datasets and columns": {
        "split": "split a packed dataset into train, val and test, keeping groups together",
        "merge": "merge packed datasets that have the same fields, or the pieces of one build",
        "convert": "convert a packed dataset to another format, or its frames to tracks and back",
        "copy": "copy a packed dataset, or a part of it, between folders and object stores, and check every byte",
        "export": "export a packed dataset as image files and a table",
        "compute": "compute columns from the samples of a packed dataset; repeat the command to resume",
        "add": "add columns of a table, such as predictions, to a packed dataset",
        "drop-field": "remove added fields from a packed dataset",
        "remove": "remove samples from a packed dataset for good; repeat the command to resume",
    },
    "publish": {
        "describe": "show or change the title, licence, citation and limitations of a packed dataset",
        "card": "describe a packed dataset in Markdown, as the Hugging Face Hub reads it",
        "croissant": "describe a packed dataset in Croissant (JSON-LD), for search engines and other loaders",
    },
    "help and maintenance": {
        "help": "explain a topic of packer build and list its options",
        "doctor": "report versions, extras, usable cores and memory, file systems and GPUs, for bug reports",
        "cache": "list and delete the cached files of remote datasets",
    },
}
"""The commands in groups, each with its help."""

COMMANDS: Mapping[str, str] = {name: help for group in GROUPS.values() for name, help in group.items()}

OWN_MODULES = (
    "build",
    "detect",
    "diff",
    "duplicates",
    "export",
    "help",
    "inspect",
    "split",
    "verify",
    "view",
)
"""Commands with a module in `packer.cli.commands`. Any other calls the function of its name, and prints the result."""

_DESCRIPTION = "Pack image and face datasets once; read them fast in training."

_EXAMPLES = """\
packer build videos/ faces/ --preset faces --every 10 --label-from folder
packer view faces/"""

_IN_HELP = re.compile(rf"\b{PROGRAM}(?= [a-z])")

_FOLDER_GONE = "the current folder was deleted: change to another folder (cd), or use absolute paths"

AGAIN: Mapping[str, str] = {
    **dict.fromkeys(("build", "compute", "convert", "copy", "detect", "merge", "remove", "split"), "to resume"),
    "export": "to start over (nothing was kept)",
}
"""Effect of repeating a command after an interruption. Commands that are not listed leave nothing behind."""


_TABLE = "labels come from a table: pack the table, with the folder of its files as --root: packer build TABLE OUT --root DIR"
_RATIOS = "give the shares of the parts with packer split DATASET OUT --by FIELD --ratios train=0.8,val=0.1,test=0.1"

OTHER_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--labels", "--label-file", "--labels-file", "--annotations", "--csv"), _TABLE),
    **dict.fromkeys(("--train", "--val", "--test", "--train-split", "--val-split", "--test-split"), _RATIOS),
    **dict.fromkeys(("--train-size", "--val-size", "--test-size", "--train-ratio", "--val-ratio"), _RATIOS),
}
"""Options of other tools, and how to do what they are for."""

_SHARES = (
    "packer build --share K/N packs the share of one job, and packer merge makes the dataset (docs/howto/cluster.md)"
)

FORMER: Mapping[str, str] = {
    "submit": f"in a job array, {_SHARES}",
    "work": f"in a job array, {_SHARES}",
    "srun": f"use --engine ray with ray symmetric-run in an allocation; in a job array, {_SHARES}",
}
"""Commands and values of options that earlier versions had, and what replaces them."""

_SIDES = re.compile(r"([0-9]+)\s*[x×,*]\s*[0-9]+\Z")


def prepare(arguments: Sequence[str]) -> Callable[[Interrupts], int]:
    """Parse the command line and import its command. Return a function that runs it and returns the exit status."""
    with suppress(FileNotFoundError):  # it may have been deleted
        sys.path.append(str(Path.cwd()))  # a step named module:function may be in the current folder
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A folder's name may be invalid UTF-8, and another encoding may lack characters. Neither should be an error.
        utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name == "help" and arguments[-1] in COMMANDS.keys() - {"help"}:
        name, arguments = arguments[-1], [arguments[-1], "--help"]
    parser, parsers = _parser([name])
    command = parsers.get(name or "")
    options, rest = parser.parse_known_args(arguments)
    if rest:
        (command or parser).refuse_rest(rest)
    if options.command is None:
        parser.print_help()
        return lambda interrupts: 2
    names = {} if command is None else command.names(options)
    return partial(_run, options, arguments, names)


def _run(options: Namespace, arguments: Sequence[str], names: Mapping[str, str], interrupts: Interrupts) -> int:
    """Run the chosen command. `names` maps the Python names of its arguments to their names on the command line."""
    name = options.command
    writes = name in AGAIN and not getattr(options, "dry_run", False)
    again = f": run the same command again {AGAIN[name]} ({program()} {shlex.join(arguments)})" if writes else ""
    try:
        interrupts.begin(f"{program()}: interrupted{again}")
        status = _run_command(options, names)
        interrupts.end()
    except KeyboardInterrupt:
        interrupts.report()
        return EXIT_INTERRUPTED
    return status


def _run_command(options: Namespace, names: Mapping[str, str]) -> int:
    """Run the chosen command, and print the error that ends it."""
    name = options.command
    try:
        status: int = _runner_of(name).run(options)
    except MemoryError as error:
        if options.debug:
            raise
        _print_error(name, str(error) or "memory ran out")
        return ShardspecError.exit_code
    except ShardspecError as error:
        if options.debug:
            raise
        _print_error(name, error.sentence(names))
        return error.exit_code
    except BrokenPipeError:
        return 0
    except OSError as error:
        if options.debug:
            raise
        place = "" if error.filename is None else f"{cut(os.fsdecode(error.filename), LONG)}: "
        gone = not place and _is_current_folder_gone()
        _print_error(name, _FOLDER_GONE if gone else f"{place}{system_reason(error)}")
        return ShardspecError.exit_code
    return status


def _is_current_folder_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _print_error(command: str, message: str) -> None:
    print(f"{program()} {command}: {message}", file=sys.stderr)


def _parser(chosen: Collection[str | None]) -> "tuple[CommandParser, dict[str, CommandParser]]":
    """Return the parser and those of the commands, by name.

    Only the chosen commands get their arguments, so no other command's module is imported.
    """
    parser = CommandParser(prog=program(), usage="%(prog)s COMMAND [OPTIONS]", description=_DESCRIPTION)
    parser.epilog = (
        f"{program()} COMMAND --help explains a command, and {program()} help lists the topics of a build.\n"
        "Exit status: 0 done; 1 failed, or a check found something; 2 invalid usage; 3 too many rejects or leaks."
    )
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="show program's version number and exit")
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=("bash", "zsh", "fish"),
        help="print a script that completes commands",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog=program())
    parsers: dict[str, CommandParser] = {}
    for name, help in COMMANDS.items():
        command = parsers[name] = commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            conflict_handler="resolve",  # a command may have a short help for -h
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name in chosen:
            try:
                _runner_of(name).add_arguments(command)
            except MissingDependencyError as error:
                command.exit(error.exit_code, f"{command.prog}: {error}\n")
    return parser, parsers


def _runner_of(command: str) -> Any:
    """Return what adds the arguments of a command and runs it.

    Raises
    ------
    MissingDependencyError
        If a library that the command needs is not installed.
    """
    if command in OWN_MODULES:
        return import_module(f"packer.cli.commands.{command}")
    return import_module("packer.cli.arguments").FunctionCommand(command)


class _Version(argparse.Action):
    """Prints the version and exits. The version is looked up only here, because the lookup is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the version and exit."""
        from importlib.metadata import version

        parser._print_message(f"{parser.prog} {version('facepack')}\n", sys.stdout)
        parser.exit()


class _Completion(argparse.Action):
    """Prints a shell's completion script and exits. Values that are neither a choice nor a number complete as paths."""

    def __call__(self, parser: argparse.ArgumentParser, _options: Any, shell: Any, *_: Any) -> NoReturn:
        """Print the script and exit."""
        import shtab

        usable: list[str] = []
        for name in COMMANDS:
            with suppress(MissingDependencyError):
                _runner_of(name).add_arguments(argparse.ArgumentParser())
                usable.append(name)
        whole, parsers = _parser(usable)
        for action in [action for command in parsers.values() for action in command._actions]:
            if action.nargs != 0 and action.type in (None, str) and action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        print_out(shtab.complete(whole, shell).removesuffix("\n"))
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """A parser with short errors, for ``packer`` and each of its commands. Options cannot be abbreviated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "allow_abbrev": False})
        self._commands: Any = None

    def names(self, options: Namespace) -> dict[str, str]:
        """Return the command-line names of the arguments by their Python names.

        If there is a recipe file, only typed options are included, since the others are named as in the file.
        """
        return {
            action.dest: next((name for name in action.option_strings if name.startswith("--")), str(action.metavar))
            for action in self._actions
            if not getattr(options, "config", None) or hasattr(options, action.dest)
        }

    def format_help(self) -> str:
        """Return the help. That of ``packer`` itself lists the commands in their groups."""
        if self._commands is None:
            return super().format_help()
        entries = {entry.dest: entry for entry in self._commands._choices_actions}
        sections = {title: [entries[name] for name in names] for title, names in GROUPS.items()}
        return self.format_sections({**sections, "options": self._optionals._group_actions}, _EXAMPLES, self.epilog)

    def format_sections(
        self, sections: Mapping[str, Sequence[argparse.Action]], examples: str, epilog: str | None
    ) -> str:
        """Return a help with examples, and with the given actions in sections."""
        formatter = argparse.RawDescriptionHelpFormatter(self.prog)
        formatter.add_usage(self.usage, (), ())
        formatter.add_text(self.description)
        formatter.start_section("examples")
        formatter.add_text(examples)
        formatter.end_section()
        for title, actions in sections.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(epilog)
        return formatter.format_help()

    def add_subparsers(self, **options: Any) -> Any:
        """Add the commands, whose parsers are of this class too."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Report an unknown option before any error that follows from it."""
        if self._commands is None:
            args = list(args or ())
            self._refuse_unknown(args)
        return super().parse_known_args(args, namespace)

    def refuse_rest(self, rest: Sequence[str]) -> NoReturn:
        """Exit with an error about surplus arguments."""
        self._refuse_unknown(rest)
        self.error(f"expected no further arguments, found {list_some(list(map(shorten, rest)))}")

    def error(self, message: str) -> NoReturn:
        """Print an error and exit with status 2."""
        self.exit(2, f"{self.prog}: {cut(message, 2 * LONG)} ({self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print the help, or an error."""
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
            return
        try:
            print_out(_IN_HELP.sub(self.prog.split()[0], message.removesuffix("\n")))
        except ShardspecError as error:
            self.exit(error.exit_code, f"{self.prog}: {error}\n")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                if option in OTHER_OPTIONS:
                    advice = _IN_HELP.sub(program(), OTHER_OPTIONS[option])
                    self.exit(2, f"{self.prog}: there is no option {option}: {advice}\n")
                like = get_close_matches(option[2:], [name[2:] for name in known if name.startswith("--")], n=1)
                if like:
                    self.exit(2, f"{self.prog}: there is no option {option}; did you mean --{like[0]}?\n")
                self.error(f"there is no option {cut(option, LENGTH)}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        kind = {int: "an integer", float: "a number"}.get(action.type)  # type: ignore[call-overload]
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError:
            if kind is None:
                raise
            sides = _SIDES.match(text) if action.dest == "size" else None
            advice = "" if sides is None else f": write --size {sides[1]} --resize exact"
            raise argparse.ArgumentError(action, f"expected {kind}, found {shorten(text)}{advice}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if value in FORMER:
            advice = _IN_HELP.sub(program(), FORMER[value])
            raise argparse.ArgumentError(
                None if action is self._commands else action, f"{value} no longer exists: {advice}"
            )
        like, listed = did_you_mean(str(value), names), ", ".join(names)
        if action is self._commands:
            raise argparse.ArgumentError(None, f"there is no command {shorten(value)}: expected one of {listed}{like}")
        raise argparse.ArgumentError(action, f"expected one of {listed}, found {shorten(value)}{like}")
