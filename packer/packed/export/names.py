"""Names of exported images and sounds: by class and key, or as in the source."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Any

from packer.assembly.samples import PackedSamples
from packer.vision.media import medium_of
from packer.workspace.hashing import number_all, repeated
from shardspec.codecs import image_types, video_types
from shardspec.errors import UsageError
from shardspec.schema import Field
from shardspec.wording import list_some

UNLABELLED = "images"
UNLABELLED_SOUNDS = "sounds"
"""Folders of images and sounds without labels."""

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    **{name: image.suffixes for name, image in image_types().items()},
    "raw": image_types()["png"].suffixes,
    **{name: (video.suffix,) for name, video in video_types().items()},
    "wav": (".wav",),
    "flac": (".flac",),
}
"""Suffixes of an image or a video by its codec, the usual one first, and of sound by the type of its files."""

SOUNDS = ("wav", "flac")
"""Types of files of sound."""

_UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|\ud800-\udfff]|^[.\s]|[.\s]\Z')
_NAME_CHARACTERS = 80


class KeyNames:
    """Names like ``<class>/<key>.jpg``."""

    def __init__(self, samples: PackedSamples, codec: str) -> None:
        schema = samples.schema
        self._folders = _class_folders(schema["label"]) if "label" in schema else None
        self._suffix = SUFFIXES[codec][0]
        self._unlabelled = UNLABELLED_SOUNDS if codec in SOUNDS else UNLABELLED

    def name(self, encoded: Mapping[str, Any], number: int) -> tuple[str, str]:
        """Return the path of the file of an encoded sample, without its suffix, and the suffix."""
        folder = self._unlabelled
        if self._folders is not None:
            label = int(encoded["label"])
            folder = self._folders[label] if 0 <= label < len(self._folders) else safe_name(str(label))
        key = _decode(encoded["key"]) if "key" in encoded else ""
        name = safe_name(key)
        # A name that had to be changed might equal another one; the row's number makes it unique.
        return f"{folder}/{name if name == key and key else f'{name}.row-{number:08d}'}", self._suffix


class SourceNames:
    """Names as in the field ``source``, with its folders. Samples of one file get the number of their frame, piece or row.

    Raises
    ------
    UsageError
        If there is no such field.
    """

    def __init__(self, samples: PackedSamples, codec: str) -> None:
        schema = samples.schema
        if "source" not in schema or schema["source"].kind != "text":
            raise UsageError(
                option="names", expected="a field 'source' of text in the dataset", found=list_some(schema.names)
            )
        self._suffixes = SUFFIXES[codec]
        self._rows = samples.rows
        numbers = (name for name in ("frame", "piece") if name in schema and schema[name].is_scalar)
        self._number = next(numbers, None)
        self._several = frozenset(repeated(number_all(map(_fold, self._all(frames=False)))).tolist())
        every = chain(self._all(frames=False), self._all(frames=True))
        self._alike = frozenset(repeated(number_all(map(_fold, every))).tolist())

    def name(self, encoded: Mapping[str, Any], number: int) -> tuple[str, str]:
        """Return the path of the file of an encoded sample, without its suffix, and the suffix."""
        source = _decode(encoded["source"])
        stem, suffix = self._split(source)
        is_new = not source.startswith(stem)  # the changed name might equal another one
        if hash(_fold((stem, suffix))) in self._several:
            of_frame = self._with_frame(stem, encoded)
            if not is_new and hash(_fold((of_frame, suffix))) not in self._alike:
                return of_frame, suffix
            is_new = True
        return f"{stem}.row-{number:08d}" if is_new else stem, suffix

    def _all(self, frames: bool) -> Iterator[tuple[str, str]]:
        fields = ["source", *([] if self._number is None else [self._number])]
        for batch in self._rows.batches(fields):
            for place, source in enumerate(batch["source"]):
                stem, suffix = self._split(_decode(source))
                values = {name: batch[name][place] for name in fields}
                yield self._with_frame(stem, values) if frames else stem, suffix

    def _split(self, source: str) -> tuple[str, str]:
        """Return a safe path without suffix, and the suffix of the image: that of the source if it fits."""
        own = PurePosixPath(source).suffix if medium_of(source) is not None else ""
        stem = source.removesuffix(own) if own else source
        return "/".join(map(safe_name, stem.split("/"))), own if own.lower() in self._suffixes else self._suffixes[0]

    def _with_frame(self, stem: str, encoded: Mapping[str, Any]) -> str:
        return stem if self._number is None else f"{stem}.{self._number}-{int(encoded[self._number]):06d}"


NAMES: Mapping[str, type[KeyNames] | type[SourceNames]] = {"key": KeyNames, "source": SourceNames}


def _fold(path: tuple[str, str]) -> str:
    """Return the path as a file system compares it that ignores case."""
    return "".join(path).casefold()


def _decode(text: Any) -> str:
    return bytes(text).decode("utf-8", "surrogateescape")


def _class_folders(label: Field) -> list[str]:
    """Return a separate folder for each class."""
    folders: list[str] = []
    taken: set[str] = set()
    for number, name in enumerate(label.classes or ()):
        safe = safe_name(name)
        numbered = (f"{safe}.class-{free}" for free in count(number))
        candidates = numbered if safe != name else chain([safe], numbered)
        folder = next(candidate for candidate in candidates if candidate.lower() not in taken)
        folders.append(folder)
        taken.add(folder.lower())
    return folders


def safe_name(text: str) -> str:
    """Turn text into a file name for any system: no unsafe characters, not too long, never hidden."""
    return _UNSAFE.sub("_", text)[:_NAME_CHARACTERS] or "_"
