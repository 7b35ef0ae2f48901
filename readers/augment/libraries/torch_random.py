"""Torch's random draws from a separate generator, in one thread, without touching the global generator."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWS = frozenset(
    (
        torch.bernoulli,
        torch.binomial,
        torch.multinomial,
        torch.normal,
        torch.poisson,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch._sample_dirichlet,
        torch._standard_gamma,
        Tensor.bernoulli,
        Tensor.bernoulli_,
        Tensor.cauchy_,
        Tensor.exponential_,
        Tensor.geometric_,
        Tensor.log_normal_,
        Tensor.multinomial,
        Tensor.normal_,
        Tensor.random_,
        Tensor.uniform_,
    )
)
"""Functions of torch with an argument ``generator``."""

_LIKE: Mapping[Callable[..., Tensor], Callable[..., Tensor]] = {
    torch.rand_like: torch.rand,
    torch.randint_like: torch.randint,
    torch.randn_like: torch.randn,
}
"""Functions that draw numbers in the shape of a tensor. Not every version of torch accepts a generator for them."""


class TorchDraws(TorchFunctionMode):
    """Context in which torch draws in this thread from separate generators.

    The global generators are neither used nor changed, so threads do not affect each other or the training loop.

    Parameters
    ----------
    seed : int or None
        0 to 2**63 - 1, for a generator on each device. None leaves the draws to the global generators and only counts
        them.
    rows : int
        Size below which a draw counts as small.

    Attributes
    ----------
    small : int
        Number of draws so far with fewer than `rows` numbers.
    """

    def __init__(self, seed: int | None, rows: int = 0) -> None:
        super().__init__()
        self.rows, self.small = rows, 0
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _LIKE and self._seed is not None:
            like = args[0]
            given = {"dtype": like.dtype, "device": like.device, **given}
            given.pop("memory_format", None)
            func, args = _LIKE[func], (*args[1:], tuple(like.shape))
        if func not in _DRAWS and func not in _LIKE:
            return func(*args, **given)
        if self._seed is not None and given.get("generator") is None:
            given["generator"] = self._generator(args, given)
        drawn = func(*args, **given)
        self.small += drawn.numel() < self.rows
        return drawn

    def _generator(self, args: Sequence[Any], given: Mapping[str, Any]) -> torch.Generator:
        tensors = [value for value in (*args, *given.values()) if isinstance(value, Tensor)]
        named = given.get("device")
        device = torch.device(named) if named is not None else tensors[0].device if tensors else None
        if device is None:
            device = torch.get_default_device()
        if device.type == "cuda" and device.index is None:  # "cuda" and the tensors on it share one generator
            device = torch.device("cuda", torch.cuda.current_device())
        found = self._generators.get(device)
        if found is None:
            found = self._generators[device] = torch.Generator(device)
            found.manual_seed(self._seed or 0)
        return found
