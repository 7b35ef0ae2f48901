"""LRW: ``WORD/{train,val,test}/WORD_NNNNN.mp4``, each with a text file beside it."""

from itertools import islice

from packer.known.tree import Choice, Found, Tree, is_media, join

SPLITS = ("train", "val", "test")
_LOOKED_AT = 20
"""Folders that are opened to see whether a folder is that of LRW."""


def find(tree: Tree, choice: Choice) -> Found:
    """The clips of every word; the word is the label."""
    base = tree.locate(
        lambda folder: any(_is_word(tree, folder, word) for word in islice(tree.folders(folder), _LOOKED_AT)),
        "folders WORD/train, WORD/val, WORD/test (LRW's lipread_mp4)",
    )
    found = Found()
    timeless = 0
    for word in tree.each(tree.folders(base), "words"):
        found.unlisted += [join(base, word, name) for name in tree.files(join(base, word), is_media)]
        for split in filter(choice.wants, SPLITS):
            folder = join(base, word, split)
            videos = tree.videos(folder)
            texts = {name.removesuffix(".txt") for name in tree.files(folder, lambda name: name.endswith(".txt"))}
            found.missing += [join(folder, f"{name}.mp4") for name in sorted(texts - set(videos))]
            for name, path in videos.items():
                if not name.startswith(f"{word}_"):
                    found.unlisted.append(path)
                    continue
                duration = _duration(tree.read_sidecar(join(folder, f"{name}.txt"))) if name in texts else None
                timeless += duration is None
                found.rows.append({"path": path, "label": word, "split": split, "duration": duration})
    if timeless:
        found.notes.append(f"clips without a text file that says how long the word is: {timeless}")
    return found


def _is_word(tree: Tree, base: str, word: str) -> bool:
    """Return whether a folder is that of a word: some clip in it begins with its name."""
    return any(name.startswith(f"{word}_") for split in SPLITS for name in tree.videos(join(base, word, split)))


def _duration(lines: list[str]) -> float | None:
    """The length of the word in seconds, from the line ``Duration: 0.53 seconds``."""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "Duration":
            try:
                seconds = float(value.split()[0])
            except (ValueError, IndexError):
                return None
            return seconds if 0 <= seconds < float("inf") else None
    return None
