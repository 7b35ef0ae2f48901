"""Checks of arguments. Each returns the value in its final form, or raises a UsageError that names the argument."""

from collections.abc import Collection, Iterable
from operator import index
from typing import Any

from shardspec.errors import UsageError
from shardspec.wording import did_you_mean, shorten

_ORDER = (
    "the order is chosen by shuffle=, seed= and weights=; "
    "readers.Loader takes a custom one as order=, sampler= or batch_sampler="
)

_NO_PROCESSES = "leave it out, since threads make the batches, and no process is started"

_INSTEAD = {
    "batch_sampler": _ORDER,
    "collate_fn": "batches are collated as they are read: "
    "change samples by sample_transform=, whole batches by batch_transform=",
    "generator": "the order is a function of seed= and the epoch",
    "in_order": "leave it out, since batches always come in order",
    "multiprocessing_context": _NO_PROCESSES,
    "num_workers": "use workers=, the number of threads",
    "persistent_workers": _NO_PROCESSES,
    "pin_memory_device": "use device=",
    "prefetch_factor": "use prefetch=, the number of batches ahead of the training loop, over all threads",
    "sampler": _ORDER,
    "timeout": "use timeout_s=",
    "worker_init_fn": _NO_PROCESSES,
}


def as_integer(name: str, value: Any) -> int:
    """Return an integer of any library's type as an ``int``; a bool does not count as one."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise UsageError(option=name, expected="an integer", found=shorten(value))


def as_count(name: str, value: Any, least: int = 1, unit: str = "") -> int:
    """Return an integer of at least `least`. `unit`, singular or plural to suit `least`, is for the message."""
    number = as_integer(name, value)
    if number < least:
        raise UsageError(option=name, expected=f"{f'{least} {unit}'.strip()} or more", found=number)
    return number


def as_choice(name: str, value: Any, known: Collection[str]) -> str:
    """Return one of some texts."""
    if isinstance(value, str) and value in known:
        return value
    raise UsageError(option=name, expected=f"one of {', '.join(map(repr, known))}", found=shorten(value))


def as_number(name: str, value: Any) -> float:
    """Return a number as a float; text is refused even if it spells one."""
    try:
        if not isinstance(value, str | bytes | bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UsageError(option=name, expected="a number", found=shorten(value))


def as_pair(name: str, value: Any) -> tuple[float, float]:
    """Return two numbers."""
    try:
        low, high = value
    except (TypeError, ValueError):
        raise UsageError(option=name, expected="two numbers", found=shorten(value)) from None
    return as_number(name, low), as_number(name, high)


def as_range(user: str, name: str, value: Any) -> tuple[float, float]:
    """Return the bounds of a share that a transform draws: above 0, at most 1, and ascending."""
    least, most = as_pair(f"{user}: {name}", value)
    if not 0 < least <= most <= 1:
        raise UsageError(place=user, expected=f"{name}s (least, largest) above 0 and at most 1", found=value)
    return least, most


def as_probability(user: str, value: Any) -> float:
    """Return a transform's ``p``, from 0 to 1."""
    p = as_number(f"{user}: p", value)
    if not 0 <= p <= 1:
        raise UsageError(place=user, expected="a probability p from 0 to 1", found=value)
    return p


def refuse_unknown(names: Iterable[str], known: Iterable[str], user: str = "Loader") -> None:
    """Refuse arguments that `user` does not have, and say what to use instead of arguments of torch's DataLoader."""
    for name in names:
        instead = _INSTEAD.get(name)
        if instead is not None:
            raise UsageError(
                option=name, expected=f"an argument of {user}", found="one of torch's DataLoader", hint=instead
            )
        raise UsageError(
            option=name, expected=f"an argument of {user}", found=f"none of that name{did_you_mean(name, known)}"
        )
