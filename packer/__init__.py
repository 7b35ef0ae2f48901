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

from shardspec.registry import Entry, lazy_names

__version__: str

if TYPE_CHECKING:
    from packer.builds.build import build, dry_run
    from packer.builds.detect import detect
    from packer.builds.estimate import Estimate
    from packer.builds.pack import pack
    from packer.builds.result import BuildResult
    from packer.builds.update.compare import Growth
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
    from packer.packed.export.export import ExportResult, export
    from packer.packed.inspect.inspect import GenerationNote, InspectReport, inspect
    from packer.packed.inspect.leaks import Leak, Leaks, find_leaks
    from packer.packed.inspect.values import ValueCount, ValueCounts, count_values
    from packer.packed.merge import MergeResult, merge
    from packer.packed.preview import PreviewResult, preview
    from packer.packed.rejects import RejectKind, RejectsReport, rejects
    from packer.packed.split.result import SplitPart, SplitResult
    from packer.packed.split.split import split
    from packer.packed.verify.verify import VerifyReport, verify
    from packer.page.report import ReportResult, report
    from packer.page.view import Viewer, view
    from packer.recipe.fields import Array, Image
    from packer.recipe.options import BuildOptions
    from packer.recipe.recipe import Recipe
    from packer.recipe.steps import StepSpec
    from packer.vision.detect.detections import Detections
    from packer.vision.detect.detector import Detector
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AgentStatus": Entry("packer.cluster.status:AgentStatus"),
            "Array": Entry("packer.recipe.fields:Array"),
            "BenchReport": Entry("packer.packed.bench.report:BenchReport"),
            "BuildOptions": Entry("packer.recipe.options:BuildOptions"),
            "BuildResult": Entry("packer.builds.result:BuildResult"),
            "ColumnsResult": Entry("packer.packed.columns:ColumnsResult"),
            "DatasetList": Entry("packer.known.listing:DatasetList"),
            "Detections": Entry("packer.vision.detect.detections:Detections"),
            "Detector": Entry("packer.vision.detect.detector:Detector", "faces"),
            "DoctorReport": Entry("packer.environment:DoctorReport"),
            "Estimate": Entry("packer.builds.estimate:Estimate"),
            "ExportResult": Entry("packer.packed.export.export:ExportResult"),
            "FolderNote": Entry("packer.environment:FolderNote"),
            "GenerationNote": Entry("packer.packed.inspect.inspect:GenerationNote"),
            "Growth": Entry("packer.builds.update.compare:Growth"),
            "InspectReport": Entry("packer.packed.inspect.inspect:InspectReport"),
            "JobResult": Entry("packer.jobs.result:JobResult"),
            "Leak": Entry("packer.packed.inspect.leaks:Leak"),
            "Leaks": Entry("packer.packed.inspect.leaks:Leaks"),
            "MergeResult": Entry("packer.packed.merge:MergeResult"),
            "Image": Entry("packer.recipe.fields:Image"),
            "PreviewResult": Entry("packer.packed.preview:PreviewResult", "pack"),
            "Progress": Entry("packer.jobs.progress:Progress"),
            "ProgressListener": Entry("packer.jobs.progress:ProgressListener"),
            "Recipe": Entry("packer.recipe.recipe:Recipe"),
            "RejectKind": Entry("packer.packed.rejects:RejectKind"),
            "RejectsReport": Entry("packer.packed.rejects:RejectsReport"),
            "ReportResult": Entry("packer.page.report:ReportResult"),
            "SplitPart": Entry("packer.packed.split.result:SplitPart"),
            "SplitResult": Entry("packer.packed.split.result:SplitResult"),
            "StatusReport": Entry("packer.cluster.status:StatusReport"),
            "StepSpec": Entry("packer.recipe.steps:StepSpec"),
            "SubmitResult": Entry("packer.cluster.submit:SubmitResult"),
            "ValueCount": Entry("packer.packed.inspect.values:ValueCount"),
            "ValueCounts": Entry("packer.packed.inspect.values:ValueCounts"),
            "VerifyReport": Entry("packer.packed.verify.verify:VerifyReport"),
            "Viewer": Entry("packer.page.view:Viewer", "view"),
            "WorkResult": Entry("packer.cluster.agent:WorkResult"),
            "Writer": Entry("packer.builds.writing.writer:Writer"),
            "add": Entry("packer.packed.columns:add"),
            "bench": Entry("packer.packed.bench.bench:bench"),
            "build": Entry("packer.builds.build:build"),
            "convert": Entry("packer.packed.convert:convert"),
            "count_values": Entry("packer.packed.inspect.values:count_values"),
            "detect": Entry("packer.builds.detect:detect"),
            "doctor": Entry("packer.environment:doctor"),
            "drop_field": Entry("packer.packed.columns:drop_field"),
            "dry_run": Entry("packer.builds.build:dry_run"),
            "export": Entry("packer.packed.export.export:export"),
            "find_leaks": Entry("packer.packed.inspect.leaks:find_leaks"),
            "inspect": Entry("packer.packed.inspect.inspect:inspect"),
            "list_dataset": Entry("packer.known.listing:list_dataset"),
            "merge": Entry("packer.packed.merge:merge"),
            "pack": Entry("packer.builds.pack:pack"),
            "preview": Entry("packer.packed.preview:preview", "pack"),
            "rejects": Entry("packer.packed.rejects:rejects"),
            "report": Entry("packer.page.report:report"),
            "split": Entry("packer.packed.split.split:split"),
            "status": Entry("packer.cluster.status:status"),
            "submit": Entry("packer.cluster.submit:submit"),
            "verify": Entry("packer.packed.verify.verify:verify"),
            "view": Entry("packer.page.view:view", "view"),
            "work": Entry("packer.cluster.agent:work"),
        },
    )

__all__ = [
    "AgentStatus",
    "Array",
    "BenchReport",
    "BuildOptions",
    "BuildResult",
    "ColumnsResult",
    "DatasetList",
    "Detections",
    "Detector",
    "DoctorReport",
    "Estimate",
    "ExportResult",
    "FolderNote",
    "GenerationNote",
    "Growth",
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
    "ValueCount",
    "ValueCounts",
    "VerifyReport",
    "Viewer",
    "WorkResult",
    "Writer",
    "add",
    "bench",
    "build",
    "convert",
    "count_values",
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
