"""What decides the bytes beside the recipe: library versions, and the detector's runtime once ``auto`` is resolved."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packer.recipe import Recipe
from packer.steps.encode import load_to_baseline
from packer.steps.faces.boxes import digest_file_or_folder
from packer.vision.detect.runtime import gpu_name, resolve_runtime
from packer.vision.landmarks import KINDS
from shardspec.errors import UsageError
from shardspec.formats import get_format
from shardspec.registry import import_target

_CORE = ("facepack", "numpy", "pillow", "simplejpeg")
_OF_STEP: Mapping[str, tuple[str, ...]] = {
    "decode": ("av",),
    "faces": ("facenet-pytorch", "opencv-python-headless"),
    "resize": ("opencv-python-headless",),
}


def describe_runtime(recipe: Recipe) -> dict[str, str]:
    """Versions of this project and of the libraries that a recipe uses, by name, the ``detector`` where it looks for faces, and digests of the files it names.

    Of the detector also the name of its GPU.

    Of a step ``module:function`` it is the file of that module, and not what the module imports.

    Raises
    ------
    MissingDependencyError, UsageError
        A library is not installed, or the detector's runtime cannot run on the device; a file cannot be read.
    """
    names = {*_CORE, *get_format(recipe.format).libraries}
    steps = [step.use for step in recipe.chain]
    names.update(name for step in steps for name in _OF_STEP.get(step, ()))
    runtime = {}
    if "faces" in steps:
        runtime["detector"] = _detector(recipe)
        names.add(runtime["detector"])
        names.update(KINDS[recipe.landmarks].libraries)
        if recipe.boxes is None:
            device = gpu_name(recipe.device)
            runtime |= {} if device is None else {"detector device": device}
    if recipe.progressive == "baseline":
        load_to_baseline()
        names.add("jpeglib")
    for option in ("boxes", "landmark_model"):
        path = getattr(recipe, option)
        if path is not None and "faces" in steps:
            runtime[option] = digest_file_or_folder(path)
    for step in steps:
        origin = _file_of(step)
        if origin is not None:
            runtime[f"file of step {step}"] = digest_file_or_folder(origin)
    runtime.update((name, _version(name)) for name in sorted(names))
    return dict(sorted(runtime.items()))


def _file_of(step: str) -> str | None:
    """The file of a user's step's module; None for a built-in step, and where there is none (a notebook's cell, ``python -c``)."""
    module, colon, _ = step.partition(":")
    try:
        spec = find_spec(module) if colon else None
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def library_versions(format: str) -> dict[str, str]:
    """Versions of this project and of the libraries that write a format."""
    return {name: _version(name) for name in sorted({"facepack", "numpy", *get_format(format).libraries})}


def _detector(recipe: Recipe) -> str:
    try:
        name = resolve_runtime(recipe.detector, recipe.device)
        if recipe.device != "cpu" and name == "torch":
            import_target("packer.vision.detect.torch_runtime:check_device", what="--device", extra="faces")(
                recipe.device
            )
        return name
    except ValueError as error:
        raise UsageError(str(error)) from error


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
