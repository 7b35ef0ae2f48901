"""Randomness as a pure function of integers: (seed, epoch, row) gives a sample's generator, at any number of workers.

The seed and the epoch travel with the sampled index (`SampledIndex`), because persistent worker processes never see the
training loop's objects change. A *row* is always the row in the base dataset: subsets and mixtures keep it.
"""

from typing import Any, Literal, Protocol, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_integer
from shardspec.errors import UsageError
from shardspec.wording import shorten

ROW_BITS = 40
"""Rows are below 2**40, epochs below 2**24, seeds below 2**64: together they fill a Philox key."""

_MAX_EPOCH = (1 << (64 - ROW_BITS)) - 1
_MAX_SEED = (1 << 64) - 1


class SeededTransform(Protocol):
    """A transform of one sample that takes all its random draws from a given generator.

    It is marked by ``seeded = True``; a transform without the mark is called with the sample alone. One object may be
    called from several threads at once only if it keeps no state between calls. A transform with state needs a copy per
    thread, and the `readers` make one by ``copy.deepcopy`` for every worker thread, seeded or not.

    It is called with a sample, a dict of numpy values (``image`` (H, W, 3) uint8 RGB), which it may change in place,
    and with ``rng``, which differs for every (seed, epoch, row). It returns the sample, with any fields.
    """

    seeded: Literal[True]

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """The transformed sample."""
        ...


class SampleTransform(Protocol):
    """A transform of one sample: a dict of numpy values in, a dict out.

    Random draws of its own are not repeatable: in the copies for the threads, generators that the object holds
    (numpy's, torch's, Python's) are replaced by new ones, seeded by the system.
    """

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The transformed sample."""
        ...


AnyTransform = SampleTransform | SeededTransform


def is_seeded(transform: AnyTransform) -> TypeGuard[SeededTransform]:
    """Whether a transform takes a generator: its attribute ``seeded`` is true."""
    return getattr(transform, "seeded", False) is True


def call_transform(transform: AnyTransform, sample: dict[str, Any], rng: np.random.Generator | None) -> dict[str, Any]:
    """The sample that a transform returns. One that is not seeded does not get the generator, and needs none.

    Raises
    ------
    UsageError
        If it returns None, because a ``return`` was forgotten.
    """
    call: Any = transform
    result: dict[str, Any] | None = call(sample, rng) if is_seeded(transform) else call(sample)
    if result is None:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UsageError(f"transform: expected {name} to return the sample, found None: end it with 'return sample'")
    return result


def check_transform(option: str, transform: Any, batches: bool = False) -> None:
    """Refuse what is no transform of samples, or none of batches; the message has the line that works.

    Parameters
    ----------
    option : str
        Where it was given: an option such as ``"transform"``, or a class such as ``"Compose"``.
    transform : Any
    batches : bool
        Whether one of batches is expected.

    Raises
    ------
    UsageError
        If it cannot be called with a sample or a batch.
    """
    what, chain = ("batch", "BatchCompose") if batches else ("sample", "Compose")
    begin = f"{option}=" if option.islower() else ""
    if isinstance(transform, list | tuple):
        raise UsageError(
            f"{option}: expected one transform, found a {type(transform).__name__}: "
            f"write {begin}readers.augment.{chain}([…])"
        )
    if isinstance(transform, type) and any({"__call__", "forward"} & vars(base).keys() for base in transform.__mro__):
        raise UsageError(
            f"{option}: expected a made transform, found the class {transform.__name__}: write {transform.__name__}(…)"
        )
    if not callable(transform):
        raise UsageError(f"{option}: expected a callable from {what} to {what}, found {shorten(transform)}")
    refuse_bare(option, transform, batches)
    if _takes_batches(transform) is (not batches):
        name = type(transform).__name__
        where = ("samples", "transform= or sample_transform=") if batches else ("batches", "batch_transform=")
        raise UsageError(
            f"{option}: expected a transform of {what}{'es' if batches else 's'}, found {name}, one of "
            f"{where[0]}: give it to {where[1]}"
        )


def _takes_batches(transform: Any) -> bool | None:
    """Whether a transform of `readers.augment` takes batches, and not samples; None of others."""
    if not any(base.__module__.startswith("readers.augment") for base in type(transform).__mro__):
        return None
    return hasattr(type(transform), "threaded")


def refuse_bare(option: str, transform: Any, batches: bool = False) -> None:
    """Refuse a transform of another library, which takes pictures, where one of samples or batches is expected.

    Parameters
    ----------
    option : str
        Where it was given: an option such as ``"transform"``, or a class such as ``"Compose"``.
    transform : Any
    batches : bool
        Whether one of batches is expected.

    Raises
    ------
    UsageError
        If it is one of torchvision, Kornia or Albumentations; the message has the line that works.
    """
    user, library = option, library_of(transform)
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
    if batches and library == "albumentations":
        option = "sample_transform"
    elif batches:
        adapter, call = "BatchCompose", call if call == "[…]" else f"[{call}]"
    begin = f"{option}=" if option.islower() else ""
    old = module.startswith("torchvision.") and not module.startswith("torchvision.transforms.v2")
    raise UsageError(
        f"{user}: expected a transform of {'batches' if batches else 'samples'}, found {name} of {library}, which "
        f"takes pictures: write {begin}readers.augment.{adapter}({call})"
        + (", with v2 from torchvision.transforms" if old and not batches else "")
    )


_LIBRARIES = {
    "albumentations": ("Albumentations", "A"),
    "kornia": ("Kornia", "K"),
    "torchvision": ("Torchvision", "v2"),
}
"""Of each library the adapter, and the name under which its transforms are usually imported."""


def library_of(transform: Any) -> str | None:
    """Which of torchvision, Kornia and Albumentations a transform is of; None if of none.

    Counted by the class that defines the call, so a class of one's own that calls in its own way is of none. A
    ``Sequential`` of torch is of the library of its first module.
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


class _Key(np.random.bit_generator.ISeedSequence):
    """Hands a key to Philox as it is; ``Philox(key=...)`` would first read the system's entropy, at thrice the cost."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        """The key."""
        return self._words


def sample_rng(seed: int, epoch: int, row: int) -> np.random.Generator:
    """The generator of one sample in one epoch: Philox 4x64 with the key (seed, epoch · 2**40 + row).

    Philox is a keyed function of a counter: streams of different keys are independent, however similar the keys are. A
    generator takes about 4 µs to make.

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.
    epoch : int
        0 to 2**24 - 1.
    row : int
        Row in the base dataset, 0 to 2**40 - 1.
    """
    key = np.array((seed, (epoch << ROW_BITS) | row), np.uint64)
    philox = np.random.Philox(_Key(key))  # type: ignore[arg-type] # numpy's stub leaves out ISeedSequence
    return np.random.Generator(philox)


def check_seed(seed: int) -> int:
    """The seed; an error if it is not an integer from 0 to 2**64 - 1."""
    number = as_integer("seed", seed)
    if not 0 <= number <= _MAX_SEED:
        raise UsageError(f"seed: expected 0 to 2**64 - 1, found {seed}")
    return number


def check_epoch(epoch: Any) -> int:
    """The epoch; an error if it is not an integer from 0 to 2**24 - 1."""
    number = as_integer("epoch", epoch)
    if not 0 <= number <= _MAX_EPOCH:
        raise UsageError(f"epoch: expected 0 to {_MAX_EPOCH}, found {epoch}")
    return number


class SampledIndex(int):
    """A row index that carries the seed and the epoch under which it was sampled. It is an integer like any other.

    Attributes
    ----------
    seed, epoch : int
    occurrence : int
        How often the row came before in the epoch; each copy of a row is augmented with draws of its own.
    """

    seed: int
    epoch: int
    occurrence: int

    def __new__(cls, index: int, seed: int, epoch: int, occurrence: int = 0) -> Self:
        """An index with its seed, epoch and occurrence."""
        self = super().__new__(cls, index)
        self.seed = seed
        self.epoch = epoch
        self.occurrence = occurrence
        return self

    def again(self, occurrence: int) -> "SampledIndex":
        """The same row as copy number `occurrence`, 0 or more, for samplers that repeat rows."""
        return SampledIndex(int(self), self.seed, self.epoch, as_count("occurrence", occurrence, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self), self.seed, self.epoch, self.occurrence)
