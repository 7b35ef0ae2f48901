"""The chain of steps that turns one item into samples."""

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packer.recipe import Recipe, StepSpec
from packer.sources.archives.arrays import read_arrays
from packer.sources.contents import close_contents
from packer.sources.item import REASON_LENGTH, Item
from packer.steps.packed import PackedItems
from packer.steps.report import ItemReport
from packer.vision.detect.detections import FaceDetector
from packer.vision.faults import describe_error, describe_line
from shardspec.errors import ItemError, MissingDependencyError, UsageError
from shardspec.registry import ImportTarget, import_target, resolve
from shardspec.wording import counted, cut, did_you_mean, one_line, shorten


@dataclass(frozen=True, slots=True)
class StepResources:
    """Resources that steps may use. They affect the speed of the steps, but never the bytes of their samples.

    Attributes
    ----------
    detector : FaceDetector or None
        Finds faces; None if the worker loads its own detector.
    decodes_ahead : bool
        Whether a separate thread decodes frames while later steps run; true if the worker has a core to spare.
    only_encodes : bool
        Whether samples are only passed to the `Encoder`. An image whose bytes are kept is then checked but not decoded,
        and ``image`` is a placeholder of the right shape.
    """

    detector: FaceDetector | None = None
    decodes_ahead: bool = False
    only_encodes: bool = False


Sample = dict[str, Any]
Step = Callable[[Iterator[Sample]], Iterator[Sample]]

ITEM = "_item"
REPORT = "_report"
"""Keys of a sample that carry the `Item` and its `ItemReport`; keys with a leading underscore are never stored."""

SAMPLED = "_sampled"
"""Key of a video's frames that carries the indices of all sampled frames; None if they are not known in advance."""

NEIGHBOURS = "_neighbours"
"""Key of a video's frames that carries the indices of the possible substitutes for each sampled frame (``refill``)."""

STILL: Mapping[str, Any] = {"frame": 0, "time": 0.0, "frame_position": 0}
"""Values for an image of the fields that locate a frame in its video."""

STEPS: Mapping[str, ImportTarget] = {
    "decode": ImportTarget("packer.steps.decode:make", "pack"),
    "detect": ImportTarget("packer.steps.faces.detect:make", "faces"),
    "faces": ImportTarget("packer.steps.faces.step:make", "faces"),
    "resize": ImportTarget("packer.steps.resize:make", "pack"),
}

_PLAIN = StepResources()
_NO_OPTIONS = "step {!r} takes its options from the recipe, found {}"


class StepError(Exception):
    """An error of a step. Carries the step's name; ``__cause__`` is the exception that the step raised."""

    def __init__(self, step: str, reason: str) -> None:
        reason = cut(one_line(reason), REASON_LENGTH)
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class Pipeline:
    """The steps of a recipe, made once per worker and run once per item.

    Parameters
    ----------
    recipe : Recipe
    functions : dict of str to callable
        Steps passed as Python functions, by their names in the recipe.
    resources : StepResources
    """

    def __init__(
        self,
        recipe: Recipe,
        functions: Mapping[str, Step] | None = None,
        resources: StepResources = _PLAIN,
    ) -> None:
        self._packed = PackedItems(recipe)
        self.steps = [(spec.use, _make_step(spec, recipe, functions or {}, resources)) for spec in recipe.chain]

    def run(self, item: Item, report: ItemReport) -> Generator[Sample]:
        """Yield the samples of one item, in order. Close the generator if it is not exhausted.

        Raises
        ------
        StepError
            If a step raises an exception or ends without yielding a sample. The error names the first such step, and
            the item yields no more samples.
        MissingDependencyError
            If a library that a built-in step needs is not installed.
        """
        start: Sample = {"source": item.name, ITEM: item, REPORT: report}
        samples = _guard("source", self._load, iter([start]))
        given = [1] + [0] * len(self.steps)
        ended: list[int] = []
        with ExitStack() as stack:
            for place, (name, step) in enumerate(self.steps, start=1):
                stage = _count(_guard(name, step, samples), given, ended, place)
                # An error may keep the stage alive until a garbage collection, which may run in any thread.
                stack.callback(stage.close)
                samples = stage
            yield from samples
        if not given[-1] and not report.empty:
            # Blame the first step that ended, not the first in the chain without samples: a step that requests no
            # samples leaves the steps before it unread.
            barren = next(place for place in ended if not given[place])
            raise StepError(self.steps[barren - 1][0], _describe_none(report, given[barren - 1]))

    def close(self) -> None:
        """Close the packed dataset or the archive that items were read from."""
        self._packed.close()
        close_contents()

    def _load(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Add the item's columns, its arrays in an archive, and its fields if it is a row of a packed dataset."""
        for sample in samples:
            item = sample[ITEM]
            yield {**sample, **self._packed.load(item), **item.columns, **read_arrays(item)}


def _guard(name: str, step: Step, samples: Iterator[Sample]) -> Iterator[Sample]:
    """Run a step and name it in the error that it raises. An error of an earlier step passes through."""
    try:
        given = step(samples)
        if not isinstance(given, Iterable):
            raise ItemError(expected="a generator of samples", found=type(given).__name__, hint="does it yield?")
        for sample in given:
            _check_sample(sample)
            yield sample
    except (StepError, MissingDependencyError):  # a library missing on this machine is not the item's fault
        raise
    except ItemError as error:
        raise StepError(name, str(error) or describe_error(error)) from error
    except (Exception, SystemExit) as error:
        raise StepError(name, f"{describe_error(error)}{_place_in_file(step, error)}") from error


def _place_in_file(step: Step, error: BaseException) -> str:
    """Return the line of a user's step that raised an error; empty for built-in steps, whose lines help no user."""
    function = inspect.unwrap(step.func if isinstance(step, partial) else step)
    code = getattr(function, "__code__", None)
    if code is None or function.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return ""
    return describe_line(error, code.co_filename)


def _count(samples: Iterator[Sample], given: list[int], ended: list[int], place: int) -> Generator[Sample]:
    """Yield the samples and count them in ``given[place]``; append `place` to `ended` at the end."""
    for sample in samples:
        given[place] += 1
        yield sample
    ended.append(place)


def _describe_none(report: ItemReport, taken: int) -> str:
    """Describe why a step yielded no samples: the reasons for skipped frames, and the number of samples it received."""
    skipped = sum(map(len, report.skipped.values()))
    reasons = [f"{reason} ({counted(len(frames), 'frame')})" for reason, frames in report.skipped.items()]
    if skipped < max(1, report.frames):
        reasons.insert(0, f"gave no sample (received {counted(taken, 'sample')})")
    return ", ".join(reasons)


def _check_sample(sample: Any) -> None:
    """Check that a sample is a dict, and that its ``image`` has the dtype and shape that steps and readers expect."""
    if not isinstance(sample, dict):
        raise ItemError(expected="samples as dicts", found=type(sample).__name__)
    image = sample.get("image")
    if image is None:
        return
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ItemError(expected="image as a uint8 array (H, W, 3), RGB", found=found)


def require_image(sample: Sample) -> None:
    """Check that a sample has an image, for steps that work on it.

    Raises
    ------
    ItemError
            If neither an earlier step nor the source provides an image.
    """
    if sample.get("image") is None:
        raise ItemError(expected="an image", found="none", hint="begin the steps with decode, which reads it")


def check_steps(recipe: Recipe, functions: Mapping[str, Step]) -> None:
    """Check that the steps of a recipe exist, before a build is planned. Built-in steps are not imported.

    Raises
    ------
    UsageError, MissingDependencyError
        If a step does not exist, is not callable, or takes no options but was given some.
    """
    for spec in recipe.chain:
        if spec.use in functions or ":" in spec.use:
            _make_step(spec, recipe, functions)
        elif spec.use not in STEPS:
            raise UsageError(
                f"unknown step {shorten(spec.use)}: expected module:function or one of {', '.join(sorted(STEPS))}"
                f"{did_you_mean(spec.use, STEPS)}"
            )
        elif spec.options:
            raise UsageError(_NO_OPTIONS.format(spec.use, ", ".join(spec.options)))


def _make_step(
    spec: StepSpec, recipe: Recipe, functions: Mapping[str, Step], resources: StepResources = _PLAIN
) -> Step:
    """Return the callable of a step: built-in, passed in Python, or imported."""
    if spec.use in functions:
        step: Step = functions[spec.use]
    elif ":" in spec.use:
        step = import_target(spec.use, what=f"step {spec.use!r}")
    else:
        if spec.options:
            raise UsageError(_NO_OPTIONS.format(spec.use, ", ".join(spec.options)))
        make: Callable[[Recipe, StepResources], Step] = resolve("step", spec.use, STEPS)
        return make(recipe, resources)
    if not callable(step):
        raise UsageError(place=f"step {spec.use!r}", expected="a generator function", found=type(step).__name__)
    return partial(step, **spec.options) if spec.options else step
