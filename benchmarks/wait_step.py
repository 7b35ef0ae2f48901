"""A step of one's own that waits: items that take a known time and no processor, so that three "nodes" fit on two cores."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np


def wait(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Wait for the item's `wait_ms`, and give as many `samples` of `side` x `side` pixels; 80 take what a face does."""
    for sample in samples:
        time.sleep(sample["wait_ms"] / 1e3)
        side = int(sample["side"])
        image = np.full((side, side, 3), sample["number"] % 251, np.uint8)
        for _ in range(sample["samples"]):
            yield {"image": image}
