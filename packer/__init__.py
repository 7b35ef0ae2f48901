"""The pack stage: preprocess raw images and videos once, in parallel, and work with the packed datasets.

These functions do everything that the command line does, with options of the same names::

    import packer

    result = packer.build("videos/", "faces/", preset="faces", every=10, label_from="folder")
    packer.verify("faces/", deep=True).problems
    packer.split("faces/", "parts/", by="source", ratios="train=0.8,val=0.2")

Paths may be text. Each result has a one-line ``repr``, a text for people (``describe()``) and JSON for programs
(``to_json()``). Functions that take time have the argument ``progress``: True shows progress on standard error, False
shows nothing, and a `ProgressListener` receives it.

Names resolve on first use, so that ``import packer`` loads neither torch nor a format library.
"""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

__version__: str

if TYPE_CHECKING:
    from packer.analysis.compute.compute import ComputeResult, compute
    from packer.analysis.duplicates.find import duplicates
    from packer.analysis.duplicates.result import DuplicatePair, Duplicates, DuplicateSample
    from packer.analysis.statistics import PixelStatistics, pixel_statistics
    from packer.builds.build import build, dry_run
    from packer.builds.detect import detect
    from packer.builds.estimate import Estimate
    from packer.builds.pack import pack
    from packer.builds.pieces.share import ShareResult
    from packer.builds.result import BuildResult
    from packer.builds.update.compare import UpdateCounts
    from packer.builds.writing.writer import Writer
    from packer.environment import DoctorReport, FolderNote, doctor
    from packer.jobs.progress import Progress, ProgressListener
    from packer.jobs.result import JobResult
    from packer.known.listing import DatasetList, list_dataset
    from packer.packed.bench.bench import bench
    from packer.packed.bench.report import BenchReport
    from packer.packed.columns import ColumnsResult, add, drop_field
    from packer.packed.convert.convert import convert
    from packer.packed.copy.cache import CacheReport, cache
    from packer.packed.copy.copy import CopyResult, copy
    from packer.packed.export.export import ExportResult, export
    from packer.packed.inspect.diff import Difference, diff
    from packer.packed.inspect.inspect import GenerationNote, InspectReport, inspect
    from packer.packed.inspect.leaks import Leak, Leaks, find_leaks
    from packer.packed.inspect.status import StatusReport, status
    from packer.packed.inspect.values import ValueCount, ValueCounts, count_values
    from packer.packed.merge import MergeResult, merge
    from packer.packed.preview import PreviewResult, preview
    from packer.packed.publish.card import Card, card
    from packer.packed.publish.croissant import Croissant, croissant
    from packer.packed.publish.describe import Description, describe
    from packer.packed.rejects import RejectKind, RejectsReport, rejects
    from packer.packed.remove import RemoveResult, remove
    from packer.packed.split.result import SplitPart, SplitResult
    from packer.packed.split.split import split
    from packer.packed.verify.verify import VerifyReport, verify
    from packer.page.report import ReportResult, report
    from packer.page.view import Viewer, view
    from packer.recipe.fields import Array, Image
    from packer.recipe.options import BuildOptions
    from packer.recipe.parsing import StepSpec
    from packer.recipe.recipe import Recipe
    from packer.vision.detect.detector import Detector
    from packer.vision.detect.interface import Detections
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Array": ImportTarget("packer.recipe.fields:Array"),
            "BenchReport": ImportTarget("packer.packed.bench.report:BenchReport"),
            "BuildOptions": ImportTarget("packer.recipe.options:BuildOptions"),
            "BuildResult": ImportTarget("packer.builds.result:BuildResult"),
            "CacheReport": ImportTarget("packer.packed.copy.cache:CacheReport"),
            "Card": ImportTarget("packer.packed.publish.card:Card"),
            "ColumnsResult": ImportTarget("packer.packed.columns:ColumnsResult"),
            "CopyResult": ImportTarget("packer.packed.copy.copy:CopyResult"),
            "ComputeResult": ImportTarget("packer.analysis.compute.compute:ComputeResult"),
            "Croissant": ImportTarget("packer.packed.publish.croissant:Croissant"),
            "DatasetList": ImportTarget("packer.known.listing:DatasetList"),
            "Description": ImportTarget("packer.packed.publish.describe:Description"),
            "Detections": ImportTarget("packer.vision.detect.interface:Detections"),
            "Detector": ImportTarget("packer.vision.detect.detector:Detector", "faces-light"),
            "Difference": ImportTarget("packer.packed.inspect.diff:Difference"),
            "DoctorReport": ImportTarget("packer.environment:DoctorReport"),
            "DuplicatePair": ImportTarget("packer.analysis.duplicates.result:DuplicatePair"),
            "DuplicateSample": ImportTarget("packer.analysis.duplicates.result:DuplicateSample"),
            "Duplicates": ImportTarget("packer.analysis.duplicates.result:Duplicates"),
            "Estimate": ImportTarget("packer.builds.estimate:Estimate"),
            "ExportResult": ImportTarget("packer.packed.export.export:ExportResult"),
            "FolderNote": ImportTarget("packer.environment:FolderNote"),
            "GenerationNote": ImportTarget("packer.packed.inspect.inspect:GenerationNote"),
            "UpdateCounts": ImportTarget("packer.builds.update.compare:UpdateCounts"),
            "InspectReport": ImportTarget("packer.packed.inspect.inspect:InspectReport"),
            "JobResult": ImportTarget("packer.jobs.result:JobResult"),
            "Leak": ImportTarget("packer.packed.inspect.leaks:Leak"),
            "Leaks": ImportTarget("packer.packed.inspect.leaks:Leaks"),
            "MergeResult": ImportTarget("packer.packed.merge:MergeResult"),
            "Image": ImportTarget("packer.recipe.fields:Image"),
            "PixelStatistics": ImportTarget("packer.analysis.statistics:PixelStatistics"),
            "PreviewResult": ImportTarget("packer.packed.preview:PreviewResult"),
            "Progress": ImportTarget("packer.jobs.progress:Progress"),
            "ProgressListener": ImportTarget("packer.jobs.progress:ProgressListener"),
            "Recipe": ImportTarget("packer.recipe.recipe:Recipe"),
            "RejectKind": ImportTarget("packer.packed.rejects:RejectKind"),
            "RejectsReport": ImportTarget("packer.packed.rejects:RejectsReport"),
            "RemoveResult": ImportTarget("packer.packed.remove:RemoveResult"),
            "ReportResult": ImportTarget("packer.page.report:ReportResult"),
            "ShareResult": ImportTarget("packer.builds.pieces.share:ShareResult"),
            "SplitPart": ImportTarget("packer.packed.split.result:SplitPart"),
            "SplitResult": ImportTarget("packer.packed.split.result:SplitResult"),
            "StatusReport": ImportTarget("packer.packed.inspect.status:StatusReport"),
            "StepSpec": ImportTarget("packer.recipe.parsing:StepSpec"),
            "ValueCount": ImportTarget("packer.packed.inspect.values:ValueCount"),
            "ValueCounts": ImportTarget("packer.packed.inspect.values:ValueCounts"),
            "VerifyReport": ImportTarget("packer.packed.verify.verify:VerifyReport"),
            "Viewer": ImportTarget("packer.page.view:Viewer", "view"),
            "Writer": ImportTarget("packer.builds.writing.writer:Writer"),
            "add": ImportTarget("packer.packed.columns:add"),
            "bench": ImportTarget("packer.packed.bench.bench:bench"),
            "build": ImportTarget("packer.builds.build:build"),
            "cache": ImportTarget("packer.packed.copy.cache:cache"),
            "card": ImportTarget("packer.packed.publish.card:card"),
            "compute": ImportTarget("packer.analysis.compute.compute:compute"),
            "convert": ImportTarget("packer.packed.convert.convert:convert"),
            "copy": ImportTarget("packer.packed.copy.copy:copy"),
            "count_values": ImportTarget("packer.packed.inspect.values:count_values"),
            "croissant": ImportTarget("packer.packed.publish.croissant:croissant"),
            "describe": ImportTarget("packer.packed.publish.describe:describe"),
            "detect": ImportTarget("packer.builds.detect:detect"),
            "diff": ImportTarget("packer.packed.inspect.diff:diff"),
            "doctor": ImportTarget("packer.environment:doctor"),
            "drop_field": ImportTarget("packer.packed.columns:drop_field"),
            "dry_run": ImportTarget("packer.builds.build:dry_run"),
            "duplicates": ImportTarget("packer.analysis.duplicates.find:duplicates", "pack"),
            "export": ImportTarget("packer.packed.export.export:export"),
            "find_leaks": ImportTarget("packer.packed.inspect.leaks:find_leaks"),
            "inspect": ImportTarget("packer.packed.inspect.inspect:inspect"),
            "list_dataset": ImportTarget("packer.known.listing:list_dataset"),
            "merge": ImportTarget("packer.packed.merge:merge"),
            "pack": ImportTarget("packer.builds.pack:pack"),
            "pixel_statistics": ImportTarget("packer.analysis.statistics:pixel_statistics"),
            "preview": ImportTarget("packer.packed.preview:preview"),
            "rejects": ImportTarget("packer.packed.rejects:rejects"),
            "report": ImportTarget("packer.page.report:report"),
            "remove": ImportTarget("packer.packed.remove:remove"),
            "split": ImportTarget("packer.packed.split.split:split"),
            "status": ImportTarget("packer.packed.inspect.status:status"),
            "verify": ImportTarget("packer.packed.verify.verify:verify"),
            "view": ImportTarget("packer.page.view:view", "view"),
        },
    )

__all__ = [
    "Array",
    "BenchReport",
    "BuildOptions",
    "BuildResult",
    "CacheReport",
    "Card",
    "ColumnsResult",
    "ComputeResult",
    "CopyResult",
    "Croissant",
    "DatasetList",
    "Description",
    "Detections",
    "Detector",
    "Difference",
    "DoctorReport",
    "DuplicatePair",
    "DuplicateSample",
    "Duplicates",
    "Estimate",
    "ExportResult",
    "FolderNote",
    "GenerationNote",
    "Image",
    "InspectReport",
    "JobResult",
    "Leak",
    "Leaks",
    "MergeResult",
    "PixelStatistics",
    "PreviewResult",
    "Progress",
    "ProgressListener",
    "Recipe",
    "RejectKind",
    "RejectsReport",
    "RemoveResult",
    "ReportResult",
    "ShareResult",
    "SplitPart",
    "SplitResult",
    "StatusReport",
    "StepSpec",
    "UpdateCounts",
    "ValueCount",
    "ValueCounts",
    "VerifyReport",
    "Viewer",
    "Writer",
    "add",
    "bench",
    "build",
    "cache",
    "card",
    "compute",
    "convert",
    "copy",
    "count_values",
    "croissant",
    "describe",
    "detect",
    "diff",
    "doctor",
    "drop_field",
    "dry_run",
    "duplicates",
    "export",
    "find_leaks",
    "inspect",
    "list_dataset",
    "merge",
    "pack",
    "pixel_statistics",
    "preview",
    "rejects",
    "remove",
    "report",
    "split",
    "status",
    "verify",
    "view",
]
