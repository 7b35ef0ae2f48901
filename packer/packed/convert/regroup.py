"""``packer convert --sample``: the frames of a packed dataset become tracks or videos, and these become frames."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.assembly.plan import Merge
from packer.assembly.records import PACKED, ReportWriter, reported_items
from packer.builds.assembly import BuildAssembler
from packer.builds.build import finish_build
from packer.builds.job import BuildJob
from packer.builds.planning.plan import make_plan
from packer.builds.provenance import describe_runtime
from packer.builds.result import BuildResult
from packer.jobs.progress import ProgressListener, counted_stage
from packer.jobs.upload import Upload
from packer.packed.plan import PackedInput
from packer.packed.split.part import ItemsOfRows
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.packed import PackedVideos
from packer.workspace import read_lines
from shardspec.entries import total
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

ENCODING = ("encode", "quality", "gop", "subsampling", "most_seconds")
"""Options of a conversion to other samples, besides ``sample``."""

_SAMPLED_BY = ("fps", "resample_fps", "audio")
"""Options of the build that made the frames, which say when a frame ends and how much of the sound belongs to it."""


def regroup(
    one: PackedInput,
    target: Path,
    sample: str,
    chosen: Mapping[str, Any],
    how: BuildOptions,
    listener: ProgressListener,
    upload: Upload | None,
) -> BuildResult:
    """Join the frames of a dataset to tracks or videos, or divide these into frames.

    Parameters
    ----------
    sample : {"frame", "track", "item"}
    chosen : mapping
        Options of `Recipe`: ``format``, ``shard_size`` and ``shuffle``, and those in `ENCODING`.
    """
    manifest = one.manifest
    made_by = [generation.recipe for generation in manifest.generations]
    sampled = {name: made_by[0].get(name) for name in _SAMPLED_BY}
    if any({name: recipe.get(name) for name in _SAMPLED_BY} != sampled for recipe in made_by):
        sampled = {}
    # A packed row has its pixels already: the step ``decode`` passes it on.
    recipe = Recipe.from_options({"format": manifest.format, **sampled, **chosen, "steps": "decode", "sample": sample})
    how = replace(how, on_error="fail", max_rejects=1.0)  # the dataset's own rejects stay
    job = RegroupJob.of_input(one, recipe, how, listener)
    return finish_build(job, (), None, target, how, listener, upload)


class RegroupJob(BuildJob):
    """A build whose items are the items of a packed dataset, with their rows. Its reports are those of the dataset."""

    @classmethod
    def of_input(
        cls, one: PackedInput, recipe: Recipe, options: BuildOptions, listener: ProgressListener
    ) -> "RegroupJob":
        """Plan the items of a dataset.

        Raises
        ------
        UsageError
            If the dataset does not suit the samples.
        """
        items = ItemsOfRows(one)
        groups = items.groups

        def name_of(row: int) -> str:
            return f"row-{row:08d}" if groups is None else groups.names[groups.of_row[row]]

        with counted_stage(listener, "listing"):
            listing = PackedVideos(one.path, recipe.sample, name_of).list_items("auto", Recipe.path_column)
        plan, lines = make_plan(recipe, describe_runtime(recipe), listing)
        plan = replace(plan, inputs=[one.provenance()])
        job = cls(plan, lines, options, recipe, about=listing.about, from_packed=True)
        job._input, job._by_number = one, items.keys
        return job

    _input: PackedInput
    _by_number: bool

    def _assemble(self, assembler: BuildAssembler) -> Merge:
        merge = super()._assemble(assembler)
        manifest = self._input.manifest
        carry_reports(assembler.reports_folder, Layout(self._input.path), manifest, self._by_number)
        (made,) = merge.generations
        counts = replace(total(manifest.generations), samples=made.rows, progressive_jpegs=0)
        return replace(merge, generations=(made._replace(generation=replace(made.generation, counts=counts)),))


def carry_reports(folder: Path, layout: Layout, manifest: Manifest, by_number: bool) -> None:
    """Replace the reports in a folder by those of the dataset that its samples were made from.

    Each packed item gets the number of its new samples. If the dataset was itself packed from a packed one, several of
    its items, which are named by keys, are one item here: its samples are shared between them.

    Parameters
    ----------
    by_number : bool
        Whether the items are named by keys, and are matched by the number at the beginning of the key.
    """
    made: dict[str, deque[int]] = defaultdict(deque)
    for line in read_lines(folder / ITEMS_NAME):
        made[_number_of(line["item"]) if by_number else line["item"]].append(line["samples"])
    if manifest.find_file(ITEMS_NAME) is None:
        for name in (ITEMS_NAME, REJECTS_NAME):
            (folder / name).unlink(missing_ok=True)
        return
    if by_number:
        packed = Counter(_number_of(i.item["item"]) for i in reported_items(layout, manifest) if i.state == PACKED)
        made = {number: _share(sum(counts), packed[number]) for number, counts in made.items()}
    writer = ReportWriter(folder)
    try:
        for item in reported_items(layout, manifest):
            one = item.of_generation(0)
            if item.state == PACKED and (item.item["samples"] or by_number):
                counted = made.get(_number_of(item.item["item"]) if by_number else item.item["item"])
                line = {name: value for name, value in one.item.items() if name != "progressive"}
                one = one._replace(item={**line, "samples": counted.popleft() if counted else 0})
            writer.write(one)
        writer.finish()
    finally:
        writer.close()


def _number_of(key: str) -> str:
    return key.partition("-")[0]


def _share(samples: int, items: int) -> deque[int]:
    """Divide samples between items: one for each of the first, and all that are left for the last."""
    counts = [int(place < samples) for place in range(items)]
    return deque([*counts[:-1], samples - sum(counts[:-1])] if items else [])
