"""Tables of names whose targets are imported on first use."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any

from shardspec.errors import MissingDependencyError, UsageError
from shardspec.wording import did_you_mean, shorten


@dataclass(frozen=True)
class ImportTarget:
    """Target of a name, and the extra that installs the libraries it needs.

    Attributes
    ----------
    target : str
        ``"module:attribute"``.
    extra : str or None
        Extra to install if a library is missing; None if the core suffices.
    """

    target: str
    extra: str | None = None


def resolve(kind: str, name: str, table: Mapping[str, ImportTarget]) -> Any:
    """Import and return the target of `name` in `table`.

    Parameters
    ----------
    kind : str
        Kind of the names, for messages: ``"format"``, ``"codec"``, ``"step"``.

    Raises
    ------
    UsageError
        If the name is not in the table.
    MissingDependencyError
        If a library is not installed. The message names the extra.
    """
    entry = table.get(name) if isinstance(name, str) else None
    if entry is None:
        like = did_you_mean(str(name), table)
        raise UsageError(f"unknown {kind} {shorten(name)}: expected one of {', '.join(sorted(table))}{like}")
    return import_target(entry.target, what=f"{kind} {name!r}", extra=entry.extra)


def import_target(target: str, *, what: str, extra: str | None = None) -> Any:
    """Import ``"module:attribute"``.

    Parameters
    ----------
    target : str
    what : str
        Feature that needs the target, for messages.
    extra : str or None
        See `ImportTarget`.

    Raises
    ------
    UsageError
        If the target has another form, or its module or attribute does not exist.
    MissingDependencyError
        If a library is not installed.
    """
    module_name, separator, attribute = target.partition(":")
    if not (separator and module_name and attribute):
        raise UsageError(place=what, expected="'module:name'", found=shorten(target))
    if module_name.startswith(".") or module_name.endswith(".py") or "/" in module_name:
        raise UsageError(
            place=what,
            expected=(
                f"a module such as '{PurePath(module_name).stem.lstrip('.') or 'module'}:{attribute}', "
                "whose folder is on the Python path"
            ),
            found=shorten(target),
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        own = missing and (module_name == missing or module_name.startswith(missing + "."))
        if extra is None and own:
            raise UsageError(f"there is no module {shorten(missing)} on the Python path", place=what) from error
        raise _missing(missing, what, extra) from error
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        raise UsageError(place=what, expected=f"Python in {place}", found="a mistake", hint=error.msg) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UsageError(f"module {shorten(module_name)} has no attribute {shorten(attribute)}", place=what) from None


def check_installed(modules: Iterable[str], *, what: str, extra: str | None = None) -> None:
    """Check that top-level modules exist without importing them, or raise `MissingDependencyError`.

    `what` and `extra` are those of `import_target`.
    """
    for module in modules:
        if find_spec(module) is None:
            raise _missing(module, what, extra)


def _missing(module: str, what: str, extra: str | None) -> MissingDependencyError:
    advice = f'pip install "facepack[{extra}]"' if extra else f"install {shorten(module)}"
    return MissingDependencyError(f"{what} needs the library {shorten(module)}, which is not installed: {advice}")


def lazy_names(package: str, table: Mapping[str, ImportTarget]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package whose public names are imported on first use.

    A package assigns both in the branch that type checkers ignore, and imports the names in the other, so that type
    checkers report misspelt names::

        if TYPE_CHECKING:
            from package.module import thing
        else:
            __getattr__, __dir__ = lazy_names(__name__, {"thing": ImportTarget("package.module:thing")})

        __all__ = ["thing"]

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    table : dict of str to ImportTarget
        Public names. ``__version__`` needs no entry.
    """

    def find(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version  # slow to import

            return version("facepack")
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{did_you_mean(name, table)}")
        value = import_target(table[name].target, what=f"{package}.{name}", extra=table[name].extra)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        own = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*own, *table})

    return find, names
