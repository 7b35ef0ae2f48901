"""Transforms of samples: their protocol, how they are called, and which are refused with a hint."""

from typing import Any, Protocol, TypeGuard

import numpy as np

from shardspec.errors import UsageError
from shardspec.wording import shorten


class SeededTransform(Protocol):
    """A transform of one sample that takes all its random draws from a given generator.

    It has an attribute ``seeded = True``; a transform without it is called with the sample alone. An object may be
    called from several threads at once only if it keeps no state between calls. The `readers` therefore copy every
    transform for every worker thread with ``copy.deepcopy``, seeded or not.

    It is called with a sample, a dict of numpy values (``image`` (H, W, 3) uint8 RGB), which it may change in place,
    and with ``rng``, which differs for every (seed, epoch, row). It returns the sample, with any fields.
    """

    @property
    def seeded(self) -> bool:
        """True; usually an attribute of the class."""
        ...

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the transformed sample."""
        ...


class SampleTransform(Protocol):
    """A transform of one sample, from dict to dict.

    Its random draws are not repeatable: in the copies for the threads, generators that the object holds (numpy's,
    torch's, Python's) are replaced by new ones, seeded by the system.
    """

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the transformed sample."""
        ...


AnyTransform = SampleTransform | SeededTransform


def is_seeded(transform: AnyTransform) -> TypeGuard[SeededTransform]:
    """Return whether a transform takes a generator: its attribute ``seeded`` is True."""
    return getattr(transform, "seeded", False) is True


def call_transform(transform: AnyTransform, sample: dict[str, Any], rng: np.random.Generator | None) -> dict[str, Any]:
    """Call a transform, with the generator if it is seeded, and check that it returns the sample."""
    call: Any = transform
    result: dict[str, Any] | None = call(sample, rng) if is_seeded(transform) else call(sample)
    if result is None:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UsageError(
            option="transform",
            expected=f"{name} to return the sample",
            found="None",
            hint="end it with 'return sample'",
        )
    return result


def check_transform(option: str, transform: Any, batches: bool = False) -> None:
    """Check that a value is a transform of samples, or of batches; the message of an error has the line that works.

    Parameters
    ----------
    option : str
        Where it was given: an option such as ``"transform"``, or a class such as ``"Compose"``.
    batches : bool
        Whether a transform of batches is expected.
    """
    what, chain = ("batch", "BatchCompose") if batches else ("sample", "Compose")
    begin = f"{option}=" if option.islower() else ""
    if isinstance(transform, list | tuple):
        raise UsageError(
            option=option,
            expected="one transform",
            found=f"a {type(transform).__name__}",
            hint=f"write {begin}readers.augment.{chain}([…])",
        )
    if isinstance(transform, type) and any({"__call__", "forward"} & vars(base).keys() for base in transform.__mro__):
        raise UsageError(
            option=option,
            expected="a made transform",
            found=f"the class {transform.__name__}",
            hint=f"write {transform.__name__}(…)",
        )
    if not callable(transform):
        raise UsageError(option=option, expected=f"a callable from {what} to {what}", found=shorten(transform))
    refuse_bare(option, transform, batches)
    if _takes_batches(transform) is (not batches):
        name = type(transform).__name__
        where = ("samples", "transform= or sample_transform=") if batches else ("batches", "batch_transform=")
        raise UsageError(
            option=option,
            expected=f"a transform of {what}{'es' if batches else 's'}",
            found=f"{name}, one of {where[0]}",
            hint=f"give it to {where[1]}",
        )


def _takes_batches(transform: Any) -> bool | None:
    """Return whether a transform of `readers.augment` takes batches instead of samples; None for other transforms."""
    if not any(base.__module__.startswith("readers.augment") for base in type(transform).__mro__):
        return None
    return hasattr(type(transform), "threaded")


def refuse_bare(option: str, transform: Any, batches: bool = False) -> None:
    """Refuse an image transform of torchvision, Kornia or Albumentations; the message has the line that works."""
    library = library_of(transform)
    if library is None:
        return
    name, module = type(transform).__name__, type(transform).__module__
    adapter, short = _LIBRARIES[library]
    call = f"{short}.{name}(…)" if module.startswith(library) else f"{name}(…)"
    if module.startswith("torch.") or (library == "albumentations" and name == "Compose"):
        call = "[…]"
    elif library == "albumentations":
        call = f"[{call}]"
    elif "_presets" in module:
        call = "v2.Compose([…])"
    where = option
    if batches and library == "albumentations":
        where = "sample_transform"
    elif batches or adapter == "BatchCompose":
        where, adapter, call = "batch_transform", "BatchCompose", call if call == "[…]" else f"[{call}]"
    old = module.startswith("torchvision.") and not module.startswith("torchvision.transforms.v2")
    raise UsageError(
        option=option,
        expected=f"a transform of {'batches' if batches else 'samples'}",
        found=f"{name} of {library}, which takes images",
        hint=f"write {f'{where}=' if where.islower() else ''}readers.augment.{adapter}({call})"
        + (", with v2 from torchvision.transforms" if old else ""),
    )


_LIBRARIES = {
    "albumentations": ("Albumentations", "A"),
    "kornia": ("BatchCompose", "K"),
    "torchvision": ("Torchvision", "v2"),
}
"""The adapter of each library, and the name under which its transforms are usually imported."""


def library_of(transform: Any) -> str | None:
    """Return the library of a transform, torchvision, Kornia or Albumentations, or None.

    The class that defines the call decides, so a custom class with its own call belongs to none. A ``Sequential`` of
    torch belongs to the library of its first module.
    """
    if isinstance(transform, type) or not callable(transform):
        return None
    kind = type(transform)
    method = "forward" if hasattr(kind, "forward") else "__call__"
    definer = next((base for base in kind.__mro__ if method in vars(base)), kind)
    root, _, rest = definer.__module__.partition(".")
    if definer.__name__ == "Sequential" and root == "torch":
        return next((library_of(part) for part in transform), None)
    if root == "torchvision" and not rest.startswith("transforms"):
        return None
    return root if root in _LIBRARIES else None
