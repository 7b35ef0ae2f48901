"""Extension of Griffe, which reads the code for the Python reference: defaults are shown as values, not as expressions.

``Loader(window=WINDOW_BLOCKS)`` becomes ``Loader(window=16)``, and an option of `packer.Recipe` becomes its default.
"""

import dataclasses
import importlib
import inspect
from operator import attrgetter
from typing import Any

import griffe

SIMPLE = (bool, float, int, str, tuple)


class Values(griffe.Extension):
    """Replaces the defaults of parameters and of a dataclass's fields by their values."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the defaults of a package and its modules."""
        self.visit(pkg)

    def visit(self, module: griffe.Module | griffe.Class) -> None:
        """Replace the defaults of the functions, classes and modules in a module or class."""
        for member in module.members.values():
            if member.is_alias:
                continue
            if isinstance(member, griffe.Module | griffe.Class):
                self.visit(member)
            if isinstance(member, griffe.Function):
                expressions = [each for each in member.parameters if isinstance(each.default, griffe.Expr)]
                for parameter in expressions:
                    default = inspect.signature(imported(member)).parameters[parameter.name].default
                    parameter.default = shown(default, parameter.default)
            elif isinstance(member, griffe.Class) and "dataclass" in member.labels:
                for field in dataclasses.fields(imported(member)):
                    attribute = member.members.get(field.name)
                    if attribute is not None:
                        attribute.value = shown(field.default, attribute.value)


def imported(member: griffe.Object) -> Any:
    """Import the object that Griffe has read."""
    path = member.path.removeprefix(f"{member.module.path}.")
    return attrgetter(path)(importlib.import_module(member.module.path))


def shown(value: Any, expression: Any) -> Any:
    """Return a value as text, or the expression if the value has no short text."""
    return repr(value) if value is None or isinstance(value, SIMPLE) else expression
