"""LRW: ``WORD/{train,val,test}/WORD_NNNNN.mp4``, each with a text file."""

from itertools import islice

from packer.known.tree import DatasetFilter, Tree, TreeContents, join
from packer.vision.media import is_picture

SPLITS = ("train", "val", "test")
_MOST_TRIED = 20
"""Number of folders searched for clips when a dataset is recognised."""


def find(tree: Tree, choice: DatasetFilter) -> TreeContents:
    """Find the clips of every word; the word is the label."""
    base = tree.locate(
        lambda folder: any(_is_word(tree, folder, word) for word in islice(tree.folders(folder), _MOST_TRIED)),
        "folders WORD/train, WORD/val, WORD/test (LRW's lipread_mp4)",
    )
    found = TreeContents()
    for word in tree.each(tree.folders(base), "words"):
        found.unlisted += tree.paths(join(base, word), is_picture)
        for split in filter(choice.wants, SPLITS):
            folder = join(base, word, split)
            videos = tree.videos(folder)
            texts = {name.removesuffix(".txt") for name in tree.files(folder, lambda name: name.endswith(".txt"))}
            found.missing += [join(folder, f"{name}.mp4") for name in sorted(texts - set(videos))]
            for name, path in videos.items():
                if name.startswith(f"{word}_"):
                    duration = _seconds(tree.read_sidecar(join(folder, f"{name}.txt"), "duration"))
                    found.rows.append({"path": path, "label": word, "split": split, "duration": duration})
                else:
                    found.unlisted.append(path)
    without = sum(row["duration"] is None for row in found.rows)
    if without:
        found.notes.append(f"clips without a text file with the duration of the word: {without}")
    return found


def _is_word(tree: Tree, base: str, word: str) -> bool:
    return any(name.startswith(f"{word}_") for split in SPLITS for name in tree.videos(join(base, word, split)))


def _seconds(text: str | None) -> float | None:
    """Parse a duration such as ``0.53 seconds``."""
    try:
        seconds = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
