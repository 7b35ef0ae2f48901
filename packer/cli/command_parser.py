"""The command line's parser: a wrong call is told in one line that names the command, and what may have been meant."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from shardspec.suggest import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` with short errors, for ``packer`` and each of its commands. Options cannot be abbreviated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "allow_abbrev": False})
        self._commands: argparse.Action | None = None

    def add_subparsers(self, **options: Any) -> Any:
        """The commands, which are parsers of this class too."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an option that a command does not have is told before anything that follows from it."""
        if self._commands is None:
            self._refuse_unknown(list(args or ()))
        return super().parse_known_args(args, namespace)

    def refuse_rest(self, rest: Sequence[str]) -> NoReturn:
        """End with an error about arguments that nobody asked for."""
        self._refuse_unknown(rest)
        self.error(f"expected no further arguments, found {' '.join(map(repr, rest))}")

    def error(self, message: str) -> NoReturn:
        """End with exit status 2."""
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help)\n")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                like = get_close_matches(option, [name for name in known if name.startswith("--")], n=1)
                if like:
                    self.exit(2, f"{self.prog}: there is no option {option}; did you mean {like[0]}?\n")
                self.error(f"there is no option {option}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        like, listed = did_you_mean(str(value), names), ", ".join(names)
        if action is self._commands:
            raise argparse.ArgumentError(None, f"there is no command {value!r}: expected one of {listed}{like}")
        raise argparse.ArgumentError(action, f"expected one of {listed}, found {value!r}{like}")
