"""How well the order ``"blocks"`` mixes, by its window: ``python -m benchmarks.mixing`` prints a table.

The dataset is imagined: 100,000 samples stored class by class, ten classes of equal size, the hardest case. The score
is the total variation distance between the shares of the classes in a batch of 256 and in the dataset, averaged over
the batches of three epochs: 0 if every batch had equal numbers of all classes, 0.9 if every batch had only one class. A
true shuffle is at 0.07, by chance.
"""

import numpy as np

from readers.order.order import Blocks, Order, Shuffle

ROWS, CLASSES, BATCH, EPOCHS = 100_000, 10, 256, 3
WINDOWS, BLOCK_ROWS = (4, 16, 64, 256), (64, 256)


def score(shuffle: Shuffle, block_rows: int = 64, window: int = 16) -> float:
    """The mean distance of batches from the dataset, 0 to 0.9."""
    order = Order(ROWS, shuffle, 0, Blocks.even(ROWS, block_rows), window)
    distances = []
    for epoch in range(EPOCHS):
        rows = order.epoch(epoch).at(np.arange(ROWS // BATCH * BATCH)).rows
        classes = (rows * CLASSES // ROWS).reshape(-1, BATCH)
        shares = np.stack([(classes == c).mean(axis=1) for c in range(CLASSES)], axis=1)
        distances.append(np.abs(shares - 1 / CLASSES).sum(axis=1).mean() / 2)
    return float(np.mean(distances))


def table() -> str:
    """The scores as Markdown."""
    lines = [
        f"| rows of a block | full | {' | '.join(f'window {w}' for w in WINDOWS)} |",
        "|--:|--:" + "|--:" * len(WINDOWS) + "|",
    ]
    full = score("full")
    for rows in BLOCK_ROWS:
        cells = [f"{score('blocks', rows, window):.2f}" for window in WINDOWS]
        lines.append(f"| {rows} | {full:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
