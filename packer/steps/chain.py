"""The chain of steps that turns one item into samples."""

import inspect
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packer.recipe import Recipe, StepSpec
from packer.sources.item import REASON_LENGTH, Item, ItemReport
from packer.steps.packed import PackedItems
from packer.vision.detect.detections import FaceDetector
from packer.vision.faults import describe_error
from shardspec.errors import ItemError, UsageError
from shardspec.registry import Entry, import_target, resolve
from shardspec.wording import counted, cut, did_you_mean


@dataclass(frozen=True, slots=True)
class Equipment:
    """What steps may use. It decides how fast they are, and no byte of what they give.

    Attributes
    ----------
    detector : FaceDetector or None
        What finds faces; None if the worker is to load one.
    decodes_ahead : bool
        Whether frames are decoded in a thread of their own while the steps after work: where the worker has a core to spare for it.
    """

    detector: FaceDetector | None = None
    decodes_ahead: bool = False


Sample = dict[str, Any]
Step = Callable[[Iterator[Sample]], Iterator[Sample]]

ITEM = "_item"
REPORT = "_report"
"""Keys of a sample that carry the `Item` and its `ItemReport`; keys with a leading underscore are never stored."""

SAMPLED = "_sampled"
"""Key of a video's frames that carries the indices of all that are asked for, None where they are not known beforehand."""

STEPS: Mapping[str, Entry] = {
    "decode": Entry("packer.steps.decode:make", "pack"),
    "faces": Entry("packer.steps.faces.step:make", "faces"),
    "resize": Entry("packer.steps.resize:make", "pack"),
}

_PLAIN = Equipment()
_NO_OPTIONS = "step {!r} takes its options from the recipe, found {}"


class StepError(Exception):
    """A step raised. Carries the step's name; the cause is what it raised."""

    def __init__(self, step: str, reason: str) -> None:
        reason = cut(reason, REASON_LENGTH)
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class Pipeline:
    """The steps of a recipe, made once per worker and run once per item.

    Parameters
    ----------
    recipe : Recipe
    functions : dict of str to callable
        Steps passed as Python functions, by the name that stands in the recipe.
    equipment : Equipment
    """

    def __init__(
        self,
        recipe: Recipe,
        functions: Mapping[str, Step] | None = None,
        equipment: Equipment = _PLAIN,
    ) -> None:
        self._packed = PackedItems(recipe)
        self.steps = [(spec.use, _make_step(spec, recipe, functions or {}, equipment)) for spec in recipe.chain]

    def run(self, item: Item, report: ItemReport) -> Generator[Sample]:
        """The samples of one item, in order. To be closed where it is not run to its end.

        Raises
        ------
        StepError
            A step raised, or ended without having given a sample: the first that did so is named. Nothing more comes from this item.
        """
        start: Sample = {"source": item.name, ITEM: item, REPORT: report}
        samples = _guard("source", self._load, iter([start]))
        given = [1] + [0] * len(self.steps)
        ended: list[int] = []
        with ExitStack() as stack:
            for place, (name, step) in enumerate(self.steps, start=1):
                stage = _count(_guard(name, step, samples), given, ended, place)
                # An error may keep it alive until some collection of garbage, which may run in any thread.
                stack.callback(stage.close)
                samples = stage
            yield from samples
        if not given[-1]:
            # Not the first that gave none: a step that does not ask for samples leaves those before it unread.
            barren = next(place for place in ended if not given[place])
            raise StepError(self.steps[barren - 1][0], _describe_none(report, given[barren - 1]))

    def close(self) -> None:
        """Close what items were read from."""
        self._packed.close()

    def _load(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The item's columns, and its fields where it is a row of a packed dataset."""
        for sample in samples:
            item = sample[ITEM]
            yield {**sample, **self._packed.load(item), **item.columns}


def _guard(name: str, step: Step, samples: Iterator[Sample]) -> Iterator[Sample]:
    """Run a step, naming it in what it raises. A failure of an earlier step passes through."""
    try:
        given = step(samples)
        if not isinstance(given, Iterable):
            raise ItemError(f"expected a generator of samples, found {type(given).__name__}: does it yield?")
        for sample in given:
            _check_sample(sample)
            yield sample
    except StepError:
        raise
    except ItemError as error:
        raise StepError(name, str(error) or describe_error(error)) from error
    except (Exception, SystemExit) as error:
        raise StepError(name, f"{describe_error(error)}{_place_in_file(step, error)}") from error


def _place_in_file(step: Step, error: BaseException) -> str:
    """Where in the file of a user's step an error came from; empty for steps of ours, so that no reason changes with their lines."""
    function = inspect.unwrap(step.func if isinstance(step, partial) else step)
    code = getattr(function, "__code__", None)
    if code is None or function.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == code.co_filename]
    return f" ({Path(code.co_filename).name}, line {lines[-1]})" if lines else ""


def _count(samples: Iterator[Sample], given: list[int], ended: list[int], place: int) -> Generator[Sample]:
    """The same samples, counted in ``given[place]``; at their end `place` is put behind those in `ended`."""
    for sample in samples:
        given[place] += 1
        yield sample
    ended.append(place)


def _describe_none(report: ItemReport, taken: int) -> str:
    """Why a step gave no sample of those that it was given: by what was skipped, and in so many words if that was not all."""
    skipped = sum(map(len, report.skipped.values()))
    reasons = [f"{reason} ({counted(len(frames), 'frame')})" for reason, frames in report.skipped.items()]
    if skipped < max(1, report.frames):
        reasons.insert(0, f"gave no sample ({counted(taken, 'sample')} came to it)")
    return ", ".join(reasons)


def _check_sample(sample: Any) -> None:
    """What a step gives is a dict, and its ``image`` a picture as every later step and reader takes it."""
    if not isinstance(sample, dict):
        raise ItemError(f"expected samples as dicts, found {type(sample).__name__}")
    image = sample.get("image")
    if image is None:
        return
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ItemError(f"expected image as a uint8 array (H, W, 3), RGB, found {found}")


def require_image(sample: Sample) -> None:
    """For steps that work on the picture.

    Raises
    ------
    ItemError
        No step before has made one, and the source brought none.
    """
    if sample.get("image") is None:
        raise ItemError("expected an image, found none: begin the steps with decode, which reads it")


def check_steps(recipe: Recipe, functions: Mapping[str, Step]) -> None:
    """Find the steps of a recipe before anything is planned; the built-in ones are not imported.

    Raises
    ------
    UsageError, MissingDependencyError
        A step is not there, or not callable, or takes no options.
    """
    for spec in recipe.chain:
        if spec.use in functions or ":" in spec.use:
            _make_step(spec, recipe, functions)
        elif spec.use not in STEPS:
            raise UsageError(
                f"unknown step {spec.use!r}: expected module:function or one of {', '.join(sorted(STEPS))}"
                f"{did_you_mean(spec.use, STEPS)}"
            )
        elif spec.options:
            raise UsageError(_NO_OPTIONS.format(spec.use, ", ".join(spec.options)))


def _make_step(spec: StepSpec, recipe: Recipe, functions: Mapping[str, Step], equipment: Equipment = _PLAIN) -> Step:
    """The callable of a step: built-in, passed in Python, or imported."""
    if spec.use in functions:
        step: Step = functions[spec.use]
    elif ":" in spec.use:
        step = import_target(spec.use, what=f"step {spec.use!r}")
    else:
        if spec.options:
            raise UsageError(_NO_OPTIONS.format(spec.use, ", ".join(spec.options)))
        make: Callable[[Recipe, Equipment], Step] = resolve("step", spec.use, STEPS)
        return make(recipe, equipment)
    if not callable(step):
        raise UsageError(f"step {spec.use!r}: expected a generator function, found {type(step).__name__}")
    return partial(step, **spec.options) if spec.options else step
