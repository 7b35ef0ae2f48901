"""Result of a build: the dataset, the counts of its items, and notes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packer.builds.records import BrokenTracks
from packer.builds.update.compare import UpdateCounts
from packer.jobs.result import JobResult
from packer.recipe.options import BuildOptions
from shardspec.entries import Counts, total
from shardspec.errors import TooManyRejectsError
from shardspec.typing.field_types import LABEL
from shardspec.wording import LISTED, counted, list_some, one_line, program


@dataclass(frozen=True, repr=False)
class BuildResult(JobResult):
    """The dataset that a build made, with the counts of its items.

    If the dataset was finished before the call, the attributes `enlarged`, `broken_tracks`, `unused_boxes`
    and `wide_colours` are None. In a store, `labels` is then empty.

    Attributes
    ----------
    enlarged : int or None
        Samples whose image was smaller than `size` and was enlarged; None if the recipe has no size.
    broken_tracks : BrokenTracks or None
        Videos that lost frames because their tracks broke; None if the recipe chooses no track.
    unused_boxes : int or None
        Boxes of packed items for frames that were not sampled or could not be read; None if the recipe has no boxes.
    wide_colours : mapping of str to int, or None
        Number of videos by the HDR or wide-gamut standard of their colours; None if there are no such videos.
    growth : UpdateCounts or None
        In an update, how the source compares with the dataset; None for a new dataset.
    labels : dict of int to int
        Number of samples by label; empty if the samples have no labels.
    notes : tuple of str
        Notes for the user about the source, one line each, for example about missing labels or ignored files.
    changed : tuple of str
        Entries about the dataset, such as ``"title"``, that this call changed in a dataset finished before.
    """

    enlarged: int | None = None
    broken_tracks: BrokenTracks | None = None
    unused_boxes: int | None = None
    wide_colours: Mapping[str, int] | None = None
    growth: UpdateCounts | None = None
    labels: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the result as text: classes, remarks about frames, tracks, boxes and JPEGs, and the notes."""
        faces = f"{self._describe_broken_tracks()}{self._describe_boxes()}"
        images = f"{self._describe_progressive()}{self._describe_colours()}{self._describe_enlarged()}"
        images = f"{images}{self._describe_sizes()}"
        more = f"{self._describe_labels()}{self._describe_growth()}{faces}{images}"
        return "\n".join((f"{super().describe()}{more}", *self.notes))

    def _facts(self) -> dict[str, Any]:
        broken = None if self.broken_tracks is None else self.broken_tracks.videos
        more = {
            "enlarged": self.enlarged,
            "broken_tracks": broken,
            "unused_boxes": self.unused_boxes,
        }
        grown = {} if self.growth is None else {"update": self.growth.to_json()}
        wide = {"wide_colours": self.wide_colours}
        counts = {**self.counts.to_json(), "labels": dict(self._named_labels())}
        return {**counts, **more, **wide, **grown, "notes": self.notes, "changed": self.changed}

    def _done_again(self) -> str:
        return f"{', '.join(self.changed)} changed" if self.changed else super()._done_again()

    def _contents(self) -> str:
        counts = self.counts
        lost = [f"{counts.rejected_items} rejected"]
        if counts.damaged_items:
            lost.append(f"{counts.damaged_items} damaged and packed only in part")
        if counts.ignored_files:
            lost.append(f"{counts.ignored_files} ignored")
        if counts.frames_without_sample:
            lost.append(f"{counted(counts.frames_without_sample, 'frame')} without a sample")
        return f"{super()._contents()} from {counts.packed_items} of {counted(counts.items, 'item')}, {', '.join(lost)}"

    def _describe_growth(self) -> str:
        growth = self.growth
        if growth is None:
            return ""
        mended = f"; {growth.mended} of {growth.retried} retried items are packed now" if growth.retried else ""
        return f"\nitems of the source: {growth.describe()}{mended}"

    def _describe_broken_tracks(self) -> str:
        recipe, found = self.manifest.newest.recipe, self.broken_tracks
        if found is None or not found.videos:
            return ""
        closer = _describe_closer(recipe)
        return (
            f"\nin {found.videos} of {counted(found.of, 'video')} faces could not be followed from one sampled frame "
            f"to the next, so --choose {recipe['choose']} kept {counted(found.samples, 'sample')} "
            f"of {counted(found.frames, 'frame')} with faces: "
            f"{f'sample frames closer together ({closer}), or ' if closer else ''}"
            "choose without tracks (--choose largest)"
        )

    def _describe_boxes(self) -> str:
        if not self.unused_boxes:
            return ""
        closer = _describe_closer(self.manifest.newest.recipe)
        return (
            f"\nunused boxes: {self.unused_boxes}, for frames that were not sampled or do not exist"
            f"{f' ({closer} samples more frames)' if closer else ''}"
        )

    def _describe_progressive(self) -> str:
        count, stored = self.counts.progressive_jpegs, self.manifest.newest.recipe.get("progressive")
        if not count:
            return ""
        images = counted(self.counts.samples, "image")
        if stored == "baseline":
            return f"\n{count} of {images} were progressive JPEGs: converted to baseline without loss"
        return (
            f"\n{count} of {images} are progressive JPEGs, which take about three times as long to decode in every epoch "
            "as baseline JPEGs; --progressive baseline converts them without loss"
        )

    def _describe_colours(self) -> str:
        if not self.wide_colours:
            return ""
        videos = counted(sum(self.wide_colours.values()), "video")
        kinds = ", ".join(f"{count} in {name}" for name, count in self.wide_colours.items())
        return (
            f"\n{videos} with HDR or wide-gamut colours ({kinds}), which are packed as stored and look pale: "
            "convert them to BT.709 first if the others are ordinary videos"
        )

    def _describe_enlarged(self) -> str:
        if not self.enlarged:
            return ""
        recipe = self.manifest.newest.recipe
        if recipe.get("resize") == "bucket":
            return f"\nenlarged to their bucket: {counted(self.enlarged, 'image')}, without more detail than before"
        size = recipe["size"]
        return (
            f"\nenlarged to --size {size}: {counted(self.enlarged, 'image')}, without more detail than before: choose "
            "a smaller --size, or leave small images out"
        )

    def _describe_sizes(self) -> str:
        """Describe that batches cannot be arrays, and the remedies, if the images have different sizes."""
        image = self.manifest.schema.by_name.get("image")
        if image is None or not image.is_image or None not in image.shape[:2]:
            return ""
        recipe = self.manifest.newest.recipe
        if recipe.get("resize") == "bucket":
            return (
                '\nthe images have several shapes: Loader(dataset, batch_by="bucket") makes batches of one shape each'
            )
        size = recipe.get("size") or 256
        return (
            "\nthe images have different sizes, so batches hold them as lists: pack them with "
            f"--size {size} --resize exact, or crop them while reading, with "
            'decode={"image": RandomResizedCrop(224)}'
        )

    def _named_labels(self) -> list[tuple[str, int]]:
        """Return the name of each class and its number of samples. Labels without names are numbers."""
        if not self.labels:
            return []
        classes = self.manifest.schema[LABEL].classes or ()
        numbers = sorted({*self.labels, *range(len(classes))})
        names = [classes[number] if 0 <= number < len(classes) else str(number) for number in numbers]
        return [(name, self.labels.get(number, 0)) for name, number in zip(names, numbers, strict=True)]

    def _describe_labels(self) -> str:
        named = self._named_labels()
        if not named:
            return ""
        what = "labels" if self.manifest.schema[LABEL].classes is None else "classes"
        if len(named) <= LISTED:
            return f"\n{what}: {list_some([f'{name} ({count})' for name, count in named])}"
        (fewest, least), (largest, most) = (pick(named, key=lambda pair: pair[1]) for pick in (min, max))
        span = f"{counted(least, 'sample')} of {one_line(fewest)} to {counted(most, 'sample')} of {one_line(largest)}"
        return f"\n{what}: {len(named)}, from {span}"

    @property
    def counts(self) -> Counts:
        """Counts of the items of all generations."""
        return total(self.manifest.generations)


def _describe_closer(recipe: Mapping[str, Any]) -> str:
    """Suggest an option that samples frames closer together; empty if every frame is taken."""
    for name, change in (
        ("frames", "a larger --frames"),
        ("fps", "a higher --fps"),
        ("resample_fps", "a higher --resample-fps"),
        ("every", "a smaller --every"),
    ):
        value = recipe.get(name)
        if value is not None and (name, value) != ("every", 1):
            return f"{change} than {value}"
    return "--every 10 in place of --keyframes" if recipe.get("keyframes") else ""


def check_rejects(result: BuildResult, options: BuildOptions) -> None:
    """Raise `TooManyRejectsError` if more items were rejected than allowed."""
    counts = result.counts
    share = counts.rejected_items / max(1, counts.items)
    if share > options.max_rejects:
        raise TooManyRejectsError(
            f"packed, but {counts.rejected_items} of {counted(counts.items, 'item')} ({share:.1%}) were rejected, more "
            f"than {options.max_rejects:.1%}; the dataset holds the others",
            place=result.path,
            hint=f"see why by `{program()} rejects {result.path}`; to accept them, repeat with `max_rejects` "
            f"{math.ceil(share * 100)}%",
            result=result,
        )
