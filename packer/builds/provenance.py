"""Record everything besides the recipe that affects the bytes: library versions, and the choices made for ``auto``."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from packer.jobs.child import SyncChild
from packer.recipe import Recipe
from packer.steps.chain import STEPS
from packer.steps.encode import load_to_baseline
from packer.steps.faces.boxes import digest_file_or_folder
from packer.vision.detect.interface import declare
from packer.vision.detect.networks import gpu_name, load_weights, resolve_runtime
from packer.vision.landmarks import KINDS
from packer.workspace.machines import library_version
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.registry import check_installed, import_target

_CORE = ("deflate", "facepack", "numpy", "pillow", "simplejpeg")
_OF_STEP: Mapping[str, tuple[str, ...]] = {
    "decode": ("av",),
    "detect": ("opencv-python-headless",),
    "faces": ("opencv-python-headless",),
    "resize": ("opencv-python-headless",),
    "sound": ("av",),
}

_TRIAL_LIMIT_S = 300.0


def describe_runtime(recipe: Recipe, *, declared: bool = False) -> dict[str, str]:
    """Return the versions of this project and of a recipe's libraries, its detector, and the digests of its files.

    This is called before a plan is written, so missing libraries or models are reported early. For a step
    ``module:function``, the digest is that of the module's file only, not of the modules that it imports. If fields are
    `declared`, images are encoded by the codecs of the fields, otherwise by a faster encoder where there is one.

    Raises
    ------
    MissingDependencyError, UsageError
        If a library or the detector's weights are not installed, if the detector's runtime cannot run on the device, or
        if a file cannot be read.
    """
    names = {*_CORE, *_libraries_of(recipe.format)}
    steps = [step.use for step in recipe.chain]
    for step in steps:
        if step in ("detect", "faces") or (step == "resize" and recipe.resizes):
            check_installed(("cv2",), what=f"step {step!r}", extra=STEPS[step].extra)
    names.update(name for step in steps for name in _OF_STEP.get(step, ()))
    if recipe.encode == "jpeg" and not recipe.restart_markers and not declared:
        names.add("opencv-python-headless")  # encodes ``image``: see `packer.vision.encode`
    if recipe.sample != "frame":
        check_installed(("av",), what=f"--encode {recipe.encode}", extra="pack")
        names.add("av")  # with the encoders in its wheel
    runtime: dict[str, str] = {}
    if recipe.detects:
        runtime |= _describe_detector(recipe)
    if "faces" in steps:
        kind = KINDS[recipe.landmarks]
        check_installed(kind.needs, what=f"--landmarks {recipe.landmarks}", extra=kind.extra)
        names.update(kind.libraries)
        if recipe.landmark_model is not None and not Path(recipe.landmark_model).is_file():
            raise UsageError(
                option="landmark_model",
                expected="a .tflite file",
                found=f"nothing at {recipe.landmark_model}",
                hint="see docs/howto/landmarks.md for how to get MediaPipe's face_landmark.tflite",
            )
    if (recipe.detects and recipe.has_custom_detector) or ("faces" in steps and recipe.landmark_model is not None):
        runtime |= _try_models(recipe)
    if recipe.progressive == "baseline":
        load_to_baseline()
        names.add("jpeglib")
    for option in ("boxes", "landmark_model"):
        path = getattr(recipe, option)
        if path is not None and "faces" in steps:
            runtime[option] = digest_file_or_folder(path)
    functions = {f"step {step}": step for step in steps}
    functions |= {f"detector {recipe.detector}": recipe.detector} if recipe.detects else {}
    for what, function in functions.items():
        origin = _file_of(function)
        if origin is not None:
            runtime[f"file of {what}"] = digest_file_or_folder(origin)
    runtime.update((name, library_version(name)) for name in sorted(names))
    return dict(sorted(runtime.items()))


def _file_of(function: str) -> str | None:
    """Return the file of a custom function's module, or None for a built-in name and for code that is not in a file."""
    module, colon, _ = function.partition(":")
    try:
        spec = find_spec(module) if colon else None
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def library_versions(format: str, *, encodes: bool = False) -> dict[str, str]:
    """Return the versions of this project and of the libraries that write a format, and encode samples, by name.

    Raises
    ------
    MissingDependencyError
        If a library that the format needs is not installed.
    """
    core = _CORE if encodes else ("facepack", "numpy")
    return {name: library_version(name) for name in sorted({*core, *_libraries_of(format)})}


def _libraries_of(format: str) -> tuple[str, ...]:
    """Return the libraries that affect a shard's bytes. Raise if one that the format needs is not installed."""
    found = get_format(format)
    check_installed(found.needs, what=f"format {format!r}", extra=found.writer.extra)
    return found.libraries


def _describe_detector(recipe: Recipe) -> dict[str, str]:
    """Return the detector's name, everything that affects its boxes, and the properties that it declares."""
    name = recipe.detector
    found: dict[str, str] = {}
    if not recipe.has_custom_detector:
        try:
            name = resolve_runtime(name, recipe.device)
            found = declare("the detector", load_weights().declared)
            if recipe.device != "cpu" and name == "torch":
                check = import_target("packer.vision.detect.torch_runtime:check_device", what="--device", extra="faces")
                check(recipe.device)
        except ValueError as error:
            raise UsageError(str(error)) from error
        found[name] = library_version(name)
    device = gpu_name(recipe.device)
    return {"detector": name, **found} | ({} if device is None else {"detector device": device})


def _try_models(recipe: Recipe) -> dict[str, str]:
    """Try the user's models in a separate process, and return the properties that a custom detector declares.

    Raises
    ------
    UsageError
        If a model cannot be loaded, or if the detector fails on a black frame.
    """
    tried = {"preset": "faces", "landmarks": recipe.landmarks, "landmark_model": recipe.landmark_model}
    tried |= {"detector": recipe.detector, "device": recipe.device} if recipe.detects else {}
    with SyncChild(["packer.builds.planning.model_trial", json.dumps(tried)]) as child:
        answer = child.answer(_TRIAL_LIMIT_S)
        if answer is None or answer["event"] == "died":
            how = f"were not ready after {_TRIAL_LIMIT_S:g} s" if answer is None else f"died, {child.describe_death()}"
            raise UsageError(f"the process that tries the detector {recipe.detector} and the landmark model {how}")
    if answer["event"] == "failed":
        raise UsageError(answer["message"])
    declared: dict[str, str] = answer["declared"]
    return declared
