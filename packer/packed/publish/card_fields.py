"""Facts about a packed dataset that its card and its Croissant description share."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.jobs.progress import without_values
from packer.packed.rejects import parse_report
from packer.recipe import Recipe
from packer.recipe.command_line import changed_options
from readers.formats.npy import map_npy
from shardspec.entries import Counts, Generation, total
from shardspec.layout import REJECTS_NAME, Layout
from shardspec.manifest import Manifest
from shardspec.schema import NO_CLASS, Field

MEANINGS: Mapping[str, str] = {
    "key": "Name of the sample, unique in the dataset",
    "source": "Path of the image, video or sound file that the sample comes from",
    "label": "Class of the sample; -1 if unknown",
    "image": "Image",
    "landmarks": "Points of the face in pixels of the image (x, y)",
    "landmarks_valid": "False if the sample has no landmarks",
    "hull": "Outline of the face in pixels of the image (x, y)",
    "regions": "Boxes of left eye, right eye, nose and mouth in pixels of the image (x0, y0, x1, y1)",
    "box": "Box of the face in pixels of the video frame or source image (x0, y0, x1, y1)",
    "score": "Confidence of the face detector, 0 to 1",
    "matrix": "Affine map from pixels of the frame to pixels of the image, 2 x 3",
    "frame": "Number of the frame in its video, from 0",
    "time": "Time of the frame in its video, or of the sound in its file, in seconds",
    "audio": "Waveform, in 16 bits",
    "audio_rate": "Samples of the waveform per second",
    "track": "Number of the face track in its video; -1 if none",
    "frame_position": "Position among the frames that were sampled from the video, from 0",
    "split": "Official split of the sample",
}
"""Reserved field names (`shardspec/SPEC.md`, section 3), and the split."""

_OF_SPLITS = "split"


@dataclass(frozen=True)
class Facts:
    """Facts about a dataset in a folder.

    Attributes
    ----------
    layout : Layout
    manifest : Manifest
    """

    layout: Layout
    manifest: Manifest

    @property
    def counts(self) -> Counts:
        """Counts of all generations together."""
        return total(self.manifest.generations)

    @cached_property
    def classes(self) -> dict[str, int]:
        """Samples of each class of ``label``, from its index; empty if there is none."""
        schema, entry = self.manifest.schema, self.layout.find_index(self.manifest, "label")
        if entry is None or not self.layout.file(entry).exists():
            return {}
        self.layout.check_digest(entry)
        values = map_npy(self.layout.file(entry), schema["label"].numpy_dtype, (self.manifest.samples,))
        numbers, counts = np.unique(values, return_counts=True)
        found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        named = {name: found.get(number, 0) for number, name in enumerate(schema["label"].classes or ())}
        return named | ({"(no class)": found[NO_CLASS]} if NO_CLASS in found else {})

    def count_splits(self) -> dict[str, int]:
        """Count the samples of each official split. The texts are read from all shards."""
        if _OF_SPLITS not in self.manifest.schema or self.manifest.schema[_OF_SPLITS].kind != "text":
            return {}
        groups = read_groups(self.layout.root, _OF_SPLITS)
        return dict(zip(groups.names, groups.sizes().tolist(), strict=True))

    @cached_property
    def rejects(self) -> list[tuple[str, str, int]]:
        """Step, reason and number of rejected items, the most frequent first, without names and numbers in reasons."""
        entry = self.manifest.find_file(REJECTS_NAME)
        if entry is None:
            return []
        lines = (line for line in parse_report(self.layout.file(entry)) if line.get("kind") == "item")
        found = Counter((str(line.get("step")), without_values(str(line.get("reason")))) for line in lines)
        return [(step, reason, count) for (step, reason), count in found.most_common()]

    @property
    def shows_faces(self) -> bool:
        """True if the images show faces that were found or cut."""
        return any(name in self.manifest.schema for name in ("landmarks", "box"))


def public_options(generation: Generation) -> dict[str, Any]:
    """Return the options of a recipe that are not at their defaults, with paths cut to their last part."""
    paths = {name for name, spec in Recipe.__dataclass_fields__.items() if spec.metadata.get("path")}

    def shown(name: str, value: Any) -> Any:
        if name not in paths:
            return value
        return PurePath(value).name if isinstance(value, str) else [PurePath(str(one)).name for one in value]

    return {name: shown(name, value) for name, value in changed_options(generation.recipe).items()}


def describe_shape(field: Field) -> str:
    """Return the shape of a field's values, such as ``224 x 224 x 3``."""
    return " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
