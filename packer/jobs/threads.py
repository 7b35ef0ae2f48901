"""One math thread per worker: workers are the parallelism, and sums must not depend on the number of threads."""

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_environment(environment: MutableMapping[str, str]) -> None:
    """Tell libraries that a new process will load to use one thread."""
    for name in _VARIABLES:
        environment[name] = "1"


@contextmanager
def one_thread() -> Iterator[None]:
    """Run OpenCV and torch, as far as they are loaded, with one thread inside the block."""
    cv2, torch = sys.modules.get("cv2"), sys.modules.get("torch")
    before = (cv2.getNumThreads() if cv2 else 1, torch.get_num_threads() if torch else 1)
    _set(cv2, torch, (1, 1))
    try:
        yield
    finally:
        _set(cv2, torch, before)


def _set(cv2: object, torch: object, threads: tuple[int, int]) -> None:
    if cv2 is not None:
        cv2.setNumThreads(threads[0])  # type: ignore[attr-defined]  # the module, seen through sys.modules
    if torch is not None:
        torch.set_num_threads(threads[1])  # type: ignore[attr-defined]  # the module, seen through sys.modules
