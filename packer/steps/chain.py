"""The chain of steps that turns one item into samples."""

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packer.assembly.samples import PackedSamples
from packer.recipe import Recipe, StepSpec
from packer.sources.item import PACKED_ROW, REASON_LENGTH, Item
from packer.sources.member_bytes import close_contents, read_arrays
from packer.steps.encode import KEPT, OriginalBytes, image_codec
from packer.steps.packed_frames import track_frames
from packer.steps.report import ItemReport
from packer.vision.detect.interface import FaceDetector
from packer.vision.faults import describe_error, describe_line
from shardspec.columns import Columns
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

ONCE = "_once"
"""Key of a frame that carries the names of the fields that the sample of its track has once; by default, the item's columns
and a few others (`packer.steps.gather`)."""

STILL: Mapping[str, Any] = {"frame": 0, "time": 0.0, "frame_position": 0}
"""Values for an image of the fields that locate a frame in its video."""

STEPS: Mapping[str, ImportTarget] = {
    "decode": ImportTarget("packer.steps.decode:make", "pack"),
    "detect": ImportTarget("packer.steps.faces.detect:make", "faces-light"),
    "faces": ImportTarget("packer.steps.faces.step:make", "faces-light"),
    "resize": ImportTarget("packer.steps.resize:make", "pack"),
    "sound": ImportTarget("packer.steps.sound:make", "pack"),
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
        made = [(spec.use, _make_step(spec, recipe, functions or {}, resources)) for spec in recipe.chain]
        self.steps = [(name, step) for name, step in made if step is not unchanged]
        if recipe.sample != "frame":
            make: Callable[[Recipe], Step] = import_target("packer.steps.gather:make_gathering", what="--sample")
            self.steps.append(("gather", make(recipe)))

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
        steps = [("source", lambda _: self._load(item, report)), *self.steps]
        samples: Iterator[Sample] = iter(())
        given = [0] * len(steps)
        ended: list[int] = []
        stages: list[Generator[Sample]] = []
        try:
            for place, (name, step) in enumerate(steps):
                samples = _run_step(name, step, samples, given, ended, place)
                stages.append(samples)
            yield from samples
        finally:
            # An error may keep a stage alive until a garbage collection, which may run in any thread.
            for stage in reversed(stages):
                stage.close()
        if not given[-1] and not report.empty:
            # Blame the first step that ended, not the first in the chain without samples: a step that requests no
            # samples leaves the steps before it unread.
            barren = next(place for place in ended if not given[place])
            raise StepError(steps[barren][0], _describe_none(report, given[barren - 1] if barren else 0))

    def close(self) -> None:
        """Close the packed dataset or the archive that items were read from."""
        self._packed.close()
        close_contents()

    def _load(self, item: Item, report: ItemReport) -> Iterator[Sample]:
        """Yield an item's columns, its arrays in an archive, and its fields if it consists of rows of a packed dataset."""
        start: Sample = {"source": item.name, ITEM: item, REPORT: report}
        for fields in self._packed.frames(item):
            yield {**start, **fields, **item.columns, **read_arrays(item)}


def unchanged(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Pass samples on: the step of a recipe that has nothing to do, which is left out of a chain."""
    return samples


def _run_step(
    name: str, step: Step, samples: Iterator[Sample], given: list[int], ended: list[int], place: int
) -> Generator[Sample]:
    """Yield the samples of a step, counted in ``given[place]``, and append `place` to `ended` at the end.

    An error of the step names it. An error of an earlier step passes through.
    """
    try:
        made = step(samples)
        if not isinstance(made, Iterable):
            raise ItemError(expected="a generator of samples", found=type(made).__name__, hint="does it yield?")
        for sample in made:
            _check_sample(sample)
            given[place] += 1
            yield sample
    except (StepError, MissingDependencyError):  # a library missing on this machine is not the item's fault
        raise
    except (Exception, SystemExit) as error:
        raise _step_error(name, step, error) from error
    ended.append(place)


def _step_error(name: str, step: Step, error: BaseException) -> StepError:
    if isinstance(error, ItemError):
        return StepError(name, str(error) or describe_error(error))
    return StepError(name, f"{describe_error(error)}{_place_in_file(step, error)}")


def _place_in_file(step: Step, error: BaseException) -> str:
    """Return the line of a user's step that raised an error; empty for built-in steps, whose lines help no user."""
    function = inspect.unwrap(step.func if isinstance(step, partial) else step)
    code = getattr(function, "__code__", None)
    if code is None or function.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return ""
    return describe_line(error, code.co_filename)


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


PACKED_KEY = "_packed_key"
"""Key under which a sample carries the key of its row in the packed dataset."""

_PYTHON_TYPES: Mapping[str, type] = {"<i8": int, "<f8": float, "|b1": bool}
"""Dtypes of scalars that steps get as Python numbers, because NumPy would store these as the same dtype."""

_BLOCK_ROWS, _BLOCK_BYTES = 64, 1 << 20
"""Limits of a block of consecutive rows that are read together: reading one row takes nearly as long as many."""


class PackedItems:
    """Loads the fields of items that are packed rows. Keeps the last dataset open; not safe between threads."""

    def __init__(self, recipe: Recipe) -> None:
        self._codec = image_codec(recipe)
        self._keeps_label = recipe.label_from == "auto" and not recipe.numbers_classes
        self._path: str | None = None
        self._samples: PackedSamples | None = None
        self._block: Columns = {}
        self._of_block = range(0)
        self._next = -1

    def load(self, item: Item) -> dict[str, Any]:
        """Return all fields of an item's row, decoded; an empty dict if the item is not a packed row.

        If the image already has the recipe's encoding, its encoded bytes are included. They are stored unchanged unless
        a step changes the image.
        """
        if PACKED_ROW not in item.columns:
            return {}
        row, digest = item.columns[PACKED_ROW][:2]
        return self._load_row(self._open(item, digest), row)

    def frames(self, item: Item) -> Iterator[dict[str, Any]]:
        """Yield the fields of each frame of an item that has several rows (`PackedVideos`); otherwise what `load` returns."""
        place = item.columns.get(PACKED_ROW)
        if not isinstance(place, Mapping):
            yield self.load(item)
            return
        samples = self._open(item, place["digest"])
        found: Iterator[dict[str, Any]] = (
            track_frames(samples, place["rows"])
            if samples.schema.holds_tracks
            else (self._load_row(samples, row) for row in place["rows"])
        )
        for frame in found:
            known = {PACKED_KEY: frame["key"]} if "key" in frame else {}
            yield {**frame, **known, ONCE: place["once"]}

    def _open(self, item: Item, digest: str) -> PackedSamples:
        if self._samples is None or self._path != item.path:
            self.close()
            # The digests of local files were compared when the items were listed.
            self._path, self._samples = item.path, PackedSamples(item.file.path, check="size", digest=digest)
        return self._samples

    def _load_row(self, samples: PackedSamples, row: int) -> dict[str, Any]:
        columns = self._read(samples, row)
        (sample,) = samples.decode(columns)
        for field in samples.schema:
            if field.is_scalar and field.dtype in _PYTHON_TYPES:
                sample[field.name] = _PYTHON_TYPES[field.dtype](sample[field.name])
        if not self._keeps_label:
            sample.pop("label", None)
            mark = samples.schema.validity("label")
            if mark is not None:
                del sample[mark]  # the field that says which samples have a label
        if "key" in sample:
            sample[PACKED_KEY] = sample["key"]
        return {**sample, KEPT: self._kept(samples, sample, columns)}

    def _read(self, samples: PackedSamples, row: int) -> Columns:
        """Return the encoded values of a row. If rows are read in sequence, the next rows are read ahead."""
        if row not in self._of_block:
            count = 1
            if row == self._next and samples.row_bytes < _BLOCK_BYTES:
                count = min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, samples.row_bytes), len(samples) - row)
            try:
                block = samples.read_encoded(range(row, row + count))
            except Exception:  # raised by any library; if this row is the cause, reading it alone reports the error
                count, block = 1, samples.read_encoded([row])
            self._block, self._of_block = block, range(row, row + count)
        self._next, at = row + 1, row - self._of_block.start
        # Copy, so that a step's changes to an array are gone when the item is retried.
        return {
            name: values[at : at + 1] if isinstance(values, list) else values[at : at + 1].copy()
            for name, values in self._block.items()
        }

    def close(self) -> None:
        """Close the open dataset."""
        self._block, self._of_block, self._next = {}, range(0), -1
        if self._samples is not None:
            self._samples.rows.close()
            self._samples = None

    def _kept(self, samples: PackedSamples, sample: Mapping[str, Any], columns: Columns) -> OriginalBytes | None:
        field = samples.schema.by_name.get("image")
        # The stored bytes of a raw image may begin with its shape, which a part stores separately.
        if field is None or field.codec.name == "raw" or field.codec != self._codec:
            return None
        sample["image"].setflags(write=False)  # a change in place would not change the kept bytes
        return OriginalBytes(sample["image"], bytes(columns["image"][0]), self._codec.name)


def sample_key(item: Item, key: str, number: int) -> str:
    """Return the key of a sample from a packed row: the row's key; further samples get an unused number."""
    if isinstance(item.columns[PACKED_ROW], Mapping):  # each frame has a key
        return key
    taken = sum(item.columns[PACKED_ROW][2:])
    return f"{key}-{number + taken:06d}" if number else key
