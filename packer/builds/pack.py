"""``packer.pack``: a function from an input to samples, called in worker processes."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packer.builds.build import run_build
from packer.builds.job import BuildRequest
from packer.builds.result import BuildResult
from packer.jobs.progress import ProgressListener
from packer.recipe import Recipe, StepSpec
from packer.recipe.engines import ENGINES
from packer.recipe.fields import Image, declare
from packer.recipe.options import BuildOptions
from packer.recipe.parsing import encodings_with
from packer.recipe.recipe import DEFAULT_ENCODING, DEFAULT_QUALITY
from packer.sources.inputs import InputsSource
from packer.steps.call import Function
from packer.workspace.folder import output_folder
from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.wording import shorten

_WORKER = "packer.jobs.worker"


def pack(
    function: Function | str,
    inputs: Iterable[Any],
    out: str | os.PathLike[str],
    *,
    fields: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    format: str = Recipe.format,
    encode: str = DEFAULT_ENCODING,
    quality: int = DEFAULT_QUALITY,
    subsampling: str = Recipe.subsampling,
    shard_size: str | int | None = Recipe.shard_size,
    shuffle: int | None = None,
    workers: str | int = BuildOptions.workers,
    engine: str = BuildOptions.engine,
    item_timeout: float = BuildOptions.item_timeout,
    on_error: str = BuildOptions.on_error,
    max_rejects: float | str = BuildOptions.max_rejects,
    overwrite: bool = False,
    progress: bool | ProgressListener = True,
) -> BuildResult:
    """Pack the samples that a function returns for each input. Repeat the call to resume an interrupted build.

    The bytes of the dataset do not depend on the number of workers. Every input is reported: if the function raises an
    exception, the input is a reject with that reason, and if it returns nothing, the input has no samples.

    Parameters
    ----------
    function : callable or str
        Called with one input. It returns a dict, an iterable of dicts (it may be a generator), or None. Worker
        processes import the function, so it must be defined at the top level of a module. This may be the script
        itself, if the call is under ``if __name__ == "__main__":``. A string ``"module:name"`` names the function, too.
    inputs : iterable
        Strings, paths, numbers, and lists, tuples and dicts of them.
    out : path
        Output folder; must be new, empty, or hold an unfinished build to resume.
    fields, classes
        See `Writer`. Without `fields`, the types are inferred from each sample. An input is then a reject if its
        samples have other fields or types than the samples of most inputs.
    format, encode, quality, subsampling, shard_size, shuffle
        See `Writer`.
    workers, engine, item_timeout, on_error, max_rejects, overwrite
        See `BuildOptions`. With ``engine="inline"`` the function is called in this process and may be any callable.
    progress : bool or ProgressListener
        See `build`.

    Returns
    -------
    BuildResult

    Raises
    ------
    UsageError
        If the call is invalid, or worker processes cannot import the function.
    ResumeMismatchError, BuildLockedError, BuildError, TooManyRejectsError
        See `build`.
    """
    _refuse_worker()
    options = BuildOptions(
        workers=workers,
        engine=engine,
        item_timeout=item_timeout,
        on_error=on_error,
        max_rejects=max_rejects,  # type: ignore[arg-type]  # `BuildOptions` converts it to a fraction
        overwrite=overwrite,
    )
    inline = ENGINES[options.engine].takes_functions
    name = function if isinstance(function, str) else _name_of(function, inline)
    called = import_target(name, what=f"function {name!r}") if isinstance(function, str) else function
    if not callable(called):
        raise UsageError(option="function", expected="a function", found=type(called).__name__)
    chosen = {"format": format, "encode": encode, "quality": quality, "subsampling": subsampling}
    recipe = Recipe.from_options({**chosen, "shard_size": shard_size, "shuffle": shuffle, "steps": (StepSpec(name),)})
    declaration = declare(fields, classes, image_of(recipe, fields).codec)
    if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
        raise UsageError(option="inputs", expected="a list or another iterable of inputs", found=shorten(inputs))
    source = InputsSource(list(inputs), classes)
    functions: dict[str, Any] = {name: called} if inline else {}
    request = BuildRequest(source, output_folder(out), recipe, options, functions, declaration)
    return run_build(request, progress)


def image_of(recipe: Recipe, fields: Mapping[str, Any] | None) -> Image:
    """Return how images of undeclared fields are stored.

    Raises
    ------
    UsageError
        If fields are declared, and options for images are given as well.
    """
    usual = Recipe()
    given = [name for name in ("encode", "quality", "subsampling") if getattr(recipe, name) != getattr(usual, name)]
    if fields is not None and given:
        raise UsageError(
            "applies only if no fields are declared",
            option=given[0],
            hint=f"declare it in fields, as packer.Image({recipe.encode!r})",
        )
    read = [name for name in ("quality", "subsampling") if recipe.encode in encodings_with(name)]
    return Image(recipe.encode, **{name: getattr(recipe, name) for name in read})


def _refuse_worker() -> None:
    """Refuse a call in a worker process, which happens if the script has no ``if __name__ == "__main__":``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _WORKER:
        raise UsageError(
            "packer.pack was called again by a worker process, which imports the function's module",
            hint='put the call under if __name__ == "__main__":',
        )


def _name_of(function: Any, inline: bool) -> str:
    """Return the name of a function. With the inline engine, the function need not be importable."""
    try:
        return _import_name(function)
    except UsageError:
        if not inline:
            raise
    return f"{getattr(function, '__module__', 'function')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _import_name(function: Any) -> str:
    """Return the name ``module:function`` under which worker processes import a function.

    Raises
    ------
    UsageError
        If they cannot import it, because it is a lambda, is defined inside another function, or is not in a file.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str):
        raise _not_importable(f"{type(function).__name__}, which has no name")
    if not name.isidentifier():
        raise _not_importable(
            "a lambda" if "<lambda>" in name else f"{name!r}, which is defined inside another function or class"
        )
    if getattr(sys.modules.get(module), name, None) is not function:
        raise _not_importable(f"{name!r}, but the module {module!r} has another object of that name")
    return f"{_main_module(name) if module == '__main__' else module}:{name}"


def _main_module(function: str) -> str:
    """Return the name under which worker processes can import the main script."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    if file is None:
        raise _not_importable(f"{function!r}, which is not in a file (a notebook, or python -c)")
    stem = Path(file).stem
    found = find_spec(stem) if stem.isidentifier() else None
    if found is None or found.origin is None or not Path(found.origin).samefile(file):
        raise _not_importable(f"{function!r} in {Path(file).name}, which cannot be imported as {stem!r}")
    return stem


def _not_importable(found: str) -> UsageError:
    return UsageError(
        option="function",
        expected="a function that worker processes can import",
        found=found,
        hint="define it at the top level of a module, or use engine='inline' to call it in this process",
    )
