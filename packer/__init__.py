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
    from packer.builds.build import build, detect, dry_run
    from packer.builds.estimate import Estimate
    from packer.builds.pack import pack
    from packer.builds.result import BuildResult
    from packer.builds.update.compare import UpdateCounts
    from packer.builds.writing.writer import Writer
    from packer.cluster.agent import WorkResult, work
    from packer.cluster.status import AgentStatus, StatusReport, status
    from packer.cluster.submit import SubmitResult, submit
    from packer.environment import DoctorReport, FolderNote, doctor
    from packer.jobs.progress import Progress, ProgressListener
    from packer.jobs.result import JobResult
    from packer.known.listing import DatasetList, list_dataset
    from packer.packed.bench.bench import bench
    from packer.packed.bench.report import BenchReport
    from packer.packed.columns import ColumnsResult, add, drop_field
    from packer.packed.convert import convert
    from packer.packed.copy.cache import CacheReport, cache
    from packer.packed.copy.copy import CopyResult, copy
    from packer.packed.export.export import ExportResult, export
    from packer.packed.inspect.inspect import GenerationNote, InspectReport, inspect
    from packer.packed.inspect.leaks import Leak, Leaks, find_leaks
    from packer.packed.inspect.values import ValueCount, ValueCounts, count_values
    from packer.packed.merge import MergeResult, merge
    from packer.packed.preview import PreviewResult, preview
    from packer.packed.publish.card import Card, card
    from packer.packed.publish.croissant import Croissant, croissant
    from packer.packed.publish.describe import Description, describe
    from packer.packed.rejects import RejectKind, RejectsReport, rejects
    from packer.packed.split.result import SplitPart, SplitResult
    from packer.packed.split.split import split
    from packer.packed.verify.verify import VerifyReport, verify
    from packer.page.report import ReportResult, report
    from packer.page.view import Viewer, view
    from packer.recipe.fields import Array, Image
    from packer.recipe.options import BuildOptions
    from packer.recipe.parsing import StepSpec
    from packer.recipe.recipe import Recipe
    from packer.vision.detect.detections import Detections
    from packer.vision.detect.detector import Detector
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AgentStatus": ImportTarget("packer.cluster.status:AgentStatus"),
            "Array": ImportTarget("packer.recipe.fields:Array"),
            "BenchReport": ImportTarget("packer.packed.bench.report:BenchReport"),
            "BuildOptions": ImportTarget("packer.recipe.options:BuildOptions"),
            "BuildResult": ImportTarget("packer.builds.result:BuildResult"),
            "CacheReport": ImportTarget("packer.packed.copy.cache:CacheReport"),
            "Card": ImportTarget("packer.packed.publish.card:Card"),
            "ColumnsResult": ImportTarget("packer.packed.columns:ColumnsResult"),
            "CopyResult": ImportTarget("packer.packed.copy.copy:CopyResult"),
            "Croissant": ImportTarget("packer.packed.publish.croissant:Croissant"),
            "DatasetList": ImportTarget("packer.known.listing:DatasetList"),
            "Description": ImportTarget("packer.packed.publish.describe:Description"),
            "Detections": ImportTarget("packer.vision.detect.detections:Detections"),
            "Detector": ImportTarget("packer.vision.detect.detector:Detector", "faces-light"),
            "DoctorReport": ImportTarget("packer.environment:DoctorReport"),
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
            "PreviewResult": ImportTarget("packer.packed.preview:PreviewResult", "pack"),
            "Progress": ImportTarget("packer.jobs.progress:Progress"),
            "ProgressListener": ImportTarget("packer.jobs.progress:ProgressListener"),
            "Recipe": ImportTarget("packer.recipe.recipe:Recipe"),
            "RejectKind": ImportTarget("packer.packed.rejects:RejectKind"),
            "RejectsReport": ImportTarget("packer.packed.rejects:RejectsReport"),
            "ReportResult": ImportTarget("packer.page.report:ReportResult"),
            "SplitPart": ImportTarget("packer.packed.split.result:SplitPart"),
            "SplitResult": ImportTarget("packer.packed.split.result:SplitResult"),
            "StatusReport": ImportTarget("packer.cluster.status:StatusReport"),
            "StepSpec": ImportTarget("packer.recipe.parsing:StepSpec"),
            "SubmitResult": ImportTarget("packer.cluster.submit:SubmitResult"),
            "ValueCount": ImportTarget("packer.packed.inspect.values:ValueCount"),
            "ValueCounts": ImportTarget("packer.packed.inspect.values:ValueCounts"),
            "VerifyReport": ImportTarget("packer.packed.verify.verify:VerifyReport"),
            "Viewer": ImportTarget("packer.page.view:Viewer", "view"),
            "WorkResult": ImportTarget("packer.cluster.agent:WorkResult"),
            "Writer": ImportTarget("packer.builds.writing.writer:Writer"),
            "add": ImportTarget("packer.packed.columns:add"),
            "bench": ImportTarget("packer.packed.bench.bench:bench"),
            "build": ImportTarget("packer.builds.build:build"),
            "cache": ImportTarget("packer.packed.copy.cache:cache"),
            "card": ImportTarget("packer.packed.publish.card:card"),
            "convert": ImportTarget("packer.packed.convert:convert"),
            "copy": ImportTarget("packer.packed.copy.copy:copy"),
            "count_values": ImportTarget("packer.packed.inspect.values:count_values"),
            "croissant": ImportTarget("packer.packed.publish.croissant:croissant"),
            "describe": ImportTarget("packer.packed.publish.describe:describe"),
            "detect": ImportTarget("packer.builds.build:detect"),
            "doctor": ImportTarget("packer.environment:doctor"),
            "drop_field": ImportTarget("packer.packed.columns:drop_field"),
            "dry_run": ImportTarget("packer.builds.build:dry_run"),
            "export": ImportTarget("packer.packed.export.export:export"),
            "find_leaks": ImportTarget("packer.packed.inspect.leaks:find_leaks"),
            "inspect": ImportTarget("packer.packed.inspect.inspect:inspect"),
            "list_dataset": ImportTarget("packer.known.listing:list_dataset"),
            "merge": ImportTarget("packer.packed.merge:merge"),
            "pack": ImportTarget("packer.builds.pack:pack"),
            "preview": ImportTarget("packer.packed.preview:preview", "pack"),
            "rejects": ImportTarget("packer.packed.rejects:rejects"),
            "report": ImportTarget("packer.page.report:report"),
            "split": ImportTarget("packer.packed.split.split:split"),
            "status": ImportTarget("packer.cluster.status:status"),
            "submit": ImportTarget("packer.cluster.submit:submit"),
            "verify": ImportTarget("packer.packed.verify.verify:verify"),
            "view": ImportTarget("packer.page.view:view", "view"),
            "work": ImportTarget("packer.cluster.agent:work"),
        },
    )

__all__ = [
    "AgentStatus",
    "Array",
    "BenchReport",
    "BuildOptions",
    "BuildResult",
    "CacheReport",
    "Card",
    "ColumnsResult",
    "CopyResult",
    "Croissant",
    "DatasetList",
    "Description",
    "Detections",
    "Detector",
    "DoctorReport",
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
    "PreviewResult",
    "Progress",
    "ProgressListener",
    "Recipe",
    "RejectKind",
    "RejectsReport",
    "ReportResult",
    "SplitPart",
    "SplitResult",
    "StatusReport",
    "StepSpec",
    "SubmitResult",
    "UpdateCounts",
    "ValueCount",
    "ValueCounts",
    "VerifyReport",
    "Viewer",
    "WorkResult",
    "Writer",
    "add",
    "bench",
    "build",
    "cache",
    "card",
    "convert",
    "copy",
    "count_values",
    "croissant",
    "describe",
    "detect",
    "doctor",
    "drop_field",
    "dry_run",
    "export",
    "find_leaks",
    "inspect",
    "list_dataset",
    "merge",
    "pack",
    "preview",
    "rejects",
    "report",
    "split",
    "status",
    "submit",
    "verify",
    "view",
    "work",
]
