"""Functions that compute columns: found by name, and described by the fields and options that they take."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe.parsing import StepSpec
from shardspec.errors import UsageError
from shardspec.registry import ImportTarget, import_target, resolve
from shardspec.schema import Schema
from shardspec.wording import did_you_mean, list_some, program, shorten

FUNCTIONS: Mapping[str, ImportTarget] = {
    "digest": ImportTarget("packer.analysis.measures.digest:Digest"),
    "face": ImportTarget("packer.analysis.measures.face:Face", "pack"),
    "hash": ImportTarget("packer.analysis.measures.hash:PerceptualHash", "pack"),
    "identity": ImportTarget("packer.analysis.measures.identity:Identity", "dlib"),
    "quality": ImportTarget("packer.analysis.measures.quality:Quality", "pack"),
    "statistics": ImportTarget("packer.analysis.measures.statistics:Statistics"),
}
"""Built-in functions, by name."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Function:
    """A function that computes columns from batches, or a class whose objects do.

    Attributes
    ----------
    name : str
        A key of `FUNCTIONS`, or ``"module:function"``.
    options : dict
        Values of its keyword-only parameters.
    version : str
        Its attribute ``version``, or the SHA-256 of its source. Empty if neither is known.
    fields : tuple of str
        Fields that it takes: its positional parameters.
    optional : tuple of str
        Those among `fields` that have a default, which the function gets if the dataset has no such field.
    """

    name: str
    options: Mapping[str, Any]
    version: str
    fields: tuple[str, ...]
    optional: tuple[str, ...]
    _target: Callable[..., Any] = field(repr=False, compare=False)

    @property
    def record(self) -> dict[str, Any]:
        """How the values are computed, as a manifest records it with a column."""
        return {"function": self.name, "version": self.version, "options": dict(self.options)}

    @property
    def per(self) -> tuple[str, ...]:
        """Fields whose values group samples that get one value together; empty for a value of each sample."""
        return tuple(getattr(self._target, "per", ()))

    @property
    def frames(self) -> int:
        """Samples of each group that are looked at: its option ``frames``, or one."""
        option = inspect.signature(self._target).parameters.get("frames")
        frames = self.options.get("frames", 1 if option is None else option.default)
        if type(frames) is not int or frames < 1:
            raise UsageError(
                place=f"function {self.name}",
                option="frames",
                expected="an integer of 1 or more",
                found=shorten(frames),
            )
        return frames

    def rank(self, dataset: Any) -> npt.NDArray[Any]:
        """Return how well each sample of a dataset shows its group, (N,): greater is better.

        A class may have a static method ``rank``, called with whole columns of the fields that it names. Otherwise the
        first samples are the best.
        """
        rank: Callable[..., npt.NDArray[Any]] | None = getattr(self._target, "rank", None)
        if rank is None:
            return np.zeros(len(dataset))
        return rank(**{name: dataset.column(name) for name in inspect.signature(rank).parameters})

    def fields_in(self, schema: Schema, place: str) -> tuple[str, ...]:
        """Return the fields that it takes from a dataset.

        Raises
        ------
        UsageError
            If the dataset lacks one that is needed.
        """
        for name in self.fields:
            if name not in schema and name not in self.optional:
                of_videos = name == "image" and schema.holds_tracks
                raise UsageError(
                    place=place,
                    expected=f"a field {name!r}, which the function {self.name} takes",
                    found=list_some(list(schema.names)) + ("" if of_videos else did_you_mean(name, schema.names)),
                    hint=f"{program()} convert DATASET OUT --sample frame makes images of videos" if of_videos else "",
                )
        return tuple(name for name in self.fields if name in schema)

    def make(self, device: str) -> Callable[..., Values]:
        """Return what is called with fields of each batch. An object of a class is made now, on the device."""
        if not inspect.isclass(self._target):
            return lambda **fields: self._target(**fields, **self.options)
        takes_device = "device" in inspect.signature(self._target).parameters
        made: Any = self._target
        call: Callable[..., Values] = made(**self.options, **({"device": device} if takes_device else {}))
        return call


def open_function(given: Any) -> Function:
    """Find a function, and check its options.

    Parameters
    ----------
    given : str, mapping or callable
        A name, ``"name,option=value,…"``, ``{"use": name, option: value}``, or a function or class itself.

    Raises
    ------
    UsageError
        If there is no such function, or if it does not take these options.
    MissingDependencyError
        If a library that it needs is not installed.
    """
    if callable(given):
        module, name = getattr(given, "__module__", "?"), getattr(given, "__qualname__", type(given).__name__)
        spec, target = StepSpec(f"{module}:{name}"), given
    else:
        spec = parse(given)
        builtin = ":" not in spec.use
        target = (
            resolve("function", spec.use, FUNCTIONS)
            if builtin
            else import_target(spec.use, what=f"function {spec.use}")
        )
    if not callable(target):
        raise UsageError(place=f"function {spec.use}", expected="a function or a class", found=type(target).__name__)
    positional, options = _parameters(target, spec.use)
    for option in spec.options:
        if option not in options:
            found = f"{shorten(option)}{did_you_mean(option, options)}"
            raise UsageError(
                place=f"function {spec.use}", expected=f"an option of it ({list_some(options) or 'none'})", found=found
            )
    optional = tuple(one.name for one in positional if one.default is not one.empty)
    names = tuple(one.name for one in positional)
    return Function(spec.use, spec.options, _version_of(target), names, optional, target)


def parse(given: Any) -> StepSpec:
    """Read a function's name and its options; text has the form ``name,option=value,…`` with JSON values or words."""
    if not isinstance(given, str):
        return StepSpec.parse(given)
    name, *rest = given.split(",")
    options: dict[str, Any] = {}
    for part in rest:
        option, equals, value = part.partition("=")
        if not equals:
            raise UsageError(option="functions", expected="name,option=value", found=shorten(given))
        try:
            options[option.strip()] = json.loads(value)
        except ValueError:
            options[option.strip()] = value
    return StepSpec(name.strip(), options)


def _parameters(target: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], list[str]]:
    """Return the positional parameters, which are fields, and the names of the options."""
    call: Any = target
    kept: Sequence[inspect.Parameter] = ()
    if inspect.isclass(target):
        call = target.__call__
        kept = [one for one in inspect.signature(target).parameters.values() if one.name != "device"]
    parameters = list(inspect.signature(call).parameters.values())[1 if inspect.isclass(target) else 0 :]
    fields = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    if not fields:
        raise UsageError(
            place=f"function {name}", expected="parameters named as the fields that it takes", found="none"
        )
    options = kept if inspect.isclass(target) else [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    return fields, [one.name for one in options]


def _version_of(target: Any) -> str:
    version = getattr(target, "version", None)
    if version is not None:
        return str(version)
    if getattr(target, "__closure__", None) or getattr(target, "__self__", None) is not None:
        return ""  # values that it holds are not in its source
    try:
        source = Path(inspect.getfile(inspect.unwrap(target) if callable(target) else target)).read_bytes()
    except (OSError, TypeError):
        try:
            source = inspect.getsource(target).encode()
        except (OSError, TypeError):
            return ""
    return hashlib.sha256(source).hexdigest()
