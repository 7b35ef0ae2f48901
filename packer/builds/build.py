"""``packer.build`` and ``packer.dry_run``: the build as Python calls."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, overload
from urllib.parse import urlsplit

from packer.assembly.plan import LABELS
from packer.builds.estimate import Estimate, estimate
from packer.builds.job import BuildJob, BuildRequest
from packer.builds.pieces.share import Share, ShareResult, ShareTerms, pack_share
from packer.builds.planning.listing import list_items
from packer.builds.provenance import describe_runtime
from packer.builds.records import BuildTotals, stored_labels
from packer.builds.result import BuildResult, check_rejects
from packer.builds.update.base import find_base
from packer.builds.update.checks import describe_outdated
from packer.builds.update.compare import UpdateCounts, compare
from packer.jobs.job import Job, finish_upload
from packer.jobs.progress import ProgressListener, counted_stage, listener_of
from packer.jobs.upload import Upload, output_store
from packer.recipe import Recipe, StepSpec, refuse_unknown
from packer.recipe.engines import ENGINES, FOR_FUNCTIONS, check_reachable, refuse_main
from packer.recipe.keywords import BuildKeywords
from packer.recipe.options import BUILD_OPTION_NAMES, OPTION_NAMES, BuildOptions, share_settings
from packer.sources.base import Source
from packer.sources.opening import open_source
from packer.steps.chain import Step, check_steps
from packer.workspace import Workspace
from packer.workspace.describing import change_about
from packer.workspace.folder import clear_addition, finish_interrupted, output_folder
from packer.workspace.remote import DEFAULT_WORK, RemoteFiles, check_places
from packer.workspace.scratch import TemporaryFiles
from shardspec.errors import UsageError
from shardspec.layout import Layout, is_url
from shardspec.stores import Store, check_sendable, names_store, writable_store
from shardspec.wording import program, shorten


@overload
def build(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    share: None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[BuildKeywords],
) -> BuildResult: ...
@overload
def build(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    share: str,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[BuildKeywords],
) -> ShareResult: ...
def build(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    share: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[BuildKeywords],
) -> BuildResult | ShareResult:
    """Pack a source into a dataset. Call it again with the same arguments to resume an interrupted build.

    Parameters
    ----------
    source : path, sequence of mapping, or Source
        A folder, a packed dataset, a table (CSV, TSV, JSON lines, Parquet) with a path column, an archive (tar, LMDB,
        RecordIO, Parquet with images inside), or a folder or quoted pattern of archives; or the URL of one of them, except
        of a packed dataset. In Python also rows as dicts (paths relative to the current folder), or an object with
        ``list_items``.
    out : path or str
        Output folder, or a URL in an object store, such as ``s3://bucket/faces``; must be new, empty, or hold an
        unfinished build to resume. With a URL, each shard is uploaded when it is finished, and the manifest last.
    recipe : Recipe, optional
        A recipe, instead of its attributes as keyword arguments.
    share : str, optional
        Pack only share K of N, such as 2/8, into pieces for `packer.merge`. Share K has every N-th task of the plan, and
        K counts from 1. All N calls have the same source and options, and one folder or separate folders.
    storage_options : mapping, optional
        Credentials, region and endpoint for `out` and the source, and others (`shardspec.stores.Store`); by default from
        the environment.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.
    **options
        Attributes of `Recipe` and of `BuildOptions`, such as ``preset="faces"``. `steps` may contain Python functions.

    Returns
    -------
    BuildResult or ShareResult
        A `ShareResult` with `share`.

    Raises
    ------
    UsageError
        If the call is invalid, or the folder holds other files.
    ResumeMismatchError
        If the folder holds the unfinished build, or the pieces, of another call.
    BuildLockedError
        If another process is building in the folder.
    BuildError
        If the build cannot continue. Repeat the call to resume.
    StoreError
        If the store refuses requests, or fails for longer than its retries last. Repeat the call to resume.
    TooManyRejectsError
        If the build finished with more rejects than allowed, or if no item yielded a sample.
    """
    part = None if share is None else Share.parse(share)
    with share_settings(storage_options, out):
        request = _resolve(source, out, recipe, dict(options), storage_options)
        for step in request.recipe.chain:
            refuse_main(step.use, request.options.engine)
        check_steps(request.recipe, request.functions)
        if ENGINES[request.options.engine].many_hosts:
            check_reachable(request.options.ray_address)
        if part is not None:
            _check_sharing(request)
            listener = listener_of(progress)

            def make_plan() -> tuple[BuildJob, tuple[str, ...]]:
                planned = plan_build(request, listener)
                assert not isinstance(planned, BuildResult)  # returned only for updates
                return planned[:2]

            return pack_share(ShareTerms(part, _name_source(source), request, make_plan), listener)
        upload = None if request.store is None else Upload(request.store.url, storage_options, request.remote)
        return run_build(request, progress, upload)


def run_build(request: BuildRequest, progress: bool | ProgressListener, upload: Upload | None = None) -> BuildResult:
    """List the items of a source and pack them (see `build`).

    Parameters
    ----------
    upload
        See `packer.jobs.job.Job`.
    """
    listener = listener_of(progress)
    planned = plan_build(request, listener)
    if isinstance(planned, BuildResult):
        if upload is not None:
            finish_upload(upload, request.out, listener)
            planned = dataclasses.replace(planned, path=upload.url)
        planned = _described(planned, request.out, request.options, upload)
        check_rejects(planned, request.options)
        return planned
    return finish_build(*planned, request.out, request.options, listener, upload)


def finish_build(
    job: BuildJob,
    notes: tuple[str, ...],
    growth: UpdateCounts | None,
    out: Path,
    options: BuildOptions,
    listener: ProgressListener,
    upload: Upload | None = None,
) -> BuildResult:
    """Run a planned build, and describe the dataset (see `plan_build`)."""
    runner = Job(job, out, options, listener, upload)
    done, more = runner.run(), dict[str, Any]()
    if runner.noted is not None:
        totals = dict(runner.noted)
        labels = dict(totals.pop(LABELS))
        more = {**vars(BuildTotals.from_json(totals)), "labels": labels}
        mended = more.pop("mended")
        growth = None if growth is None else dataclasses.replace(growth, mended=mended)
    if job.record.base is not None:
        notes = (*notes, *describe_outdated(done.path, job.record.base, done.manifest))
    made = BuildResult(**vars(done), **more, growth=growth, notes=notes)
    result = _described(made, out, options, upload)
    check_rejects(result, options)
    return result


def _described(result: BuildResult, out: Path, options: BuildOptions, upload: Upload | None) -> BuildResult:
    """Store the options about a dataset that an earlier call finished, and count its labels."""
    manifest = result.manifest
    if not result.labels and upload is None:
        result = dataclasses.replace(result, labels=stored_labels(Layout(out), manifest))
    about = dataclasses.replace(manifest.about, **options.about)
    if about == manifest.about:
        return result
    if upload is None:
        manifest = change_about(out, lambda _: about)
    else:
        manifest = dataclasses.replace(manifest, about=about)
        upload.replace_manifest(manifest)
    changed = tuple(name for name, value in vars(about).items() if value != getattr(result.manifest.about, name))
    return dataclasses.replace(result, manifest=manifest, changed=changed)


def plan_build(
    request: BuildRequest, listener: ProgressListener
) -> tuple[BuildJob, tuple[str, ...], UpdateCounts | None] | BuildResult:
    """List the items of a source, and plan the build.

    Returns
    -------
    job : BuildJob
    notes : tuple of str
        Notes for the user about the source, one line each.
    growth : UpdateCounts or None
        In an update, how the source compares with the dataset. If the dataset is up to date, the result is returned
        instead of these three values.
    """
    recipe, options, out = request.recipe, request.options, request.out
    listing = list_items(request.source, recipe, listener)
    runtime = describe_runtime(recipe, declared=request.declaration is not None)
    notes = tuple(listing.notes)
    space, comparison = Workspace(Layout(out).build), None
    if options.grows:
        finish_interrupted(space)
        comparison = compare(*find_base(request), listing, recipe, runtime, options)
    if comparison is not None:
        notes = (*notes, *comparison.notes)
        listing = comparison.listing
        if not comparison.has_work:
            clear_addition(space, listener.on_message)
            return BuildResult(out, comparison.base, True, found_finished=True, growth=comparison.growth, notes=notes)
    with counted_stage(listener, "planning", len(listing.items[: recipe.limit])):
        job = BuildJob.of_listing(request, runtime, listing, comparison)
    return job, notes, None if comparison is None else comparison.growth


def _check_sharing(request: BuildRequest) -> None:
    """Check the options of a build of one share."""
    options, store = request.options, request.store
    given = {
        "update": options.update,
        "retry_rejects": options.retry_rejects is not False,
        "overwrite": options.overwrite,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError("cannot be used together with `share`", option=name, hint="leave one of them out")
    if store is not None:
        raise UsageError(
            option="out",
            expected="a local folder for the pieces",
            found=store.url,
            hint=f"copy the merged dataset with {program()} copy",
        )


def _name_source(source: Any) -> str | None:
    """Return the absolute path or the URL of a source; None for rows and objects."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = os.fspath(source)
    return path if is_url(path) else str(Path(path).absolute())


def dry_run(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
    **options: Unpack[BuildKeywords],
) -> Estimate:
    """Estimate the time and space that a build needs, by packing a few of its items into a temporary folder.

    For an update, the estimate also compares the source with the dataset. Nothing is written to `out`.

    Parameters
    ----------
    source, out, recipe, storage_options, progress, **options
        See `build`.

    Returns
    -------
    Estimate

    Raises
    ------
    UsageError
        If the call is invalid.
    """
    with share_settings(storage_options, out):
        return estimate(_resolve(source, out, recipe, dict(options), storage_options), listener_of(progress))


def _resolve(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Source,
    out: str | os.PathLike[str],
    recipe: Recipe | None,
    options: dict[str, Any],
    storage_options: Mapping[str, Any] | None = None,
) -> BuildRequest:
    """Open the source and the places of a call, and resolve its options."""
    remote = None
    recipe, how, functions = resolve_options(recipe, options)
    store = output_store(out, storage_options)
    if store is not None and isinstance(source, str) and f"{store.url}/".startswith(f"{source.rstrip('/')}/"):
        raise UsageError(option="out", expected="a place outside the source", found=store.url)
    if store is None:
        refuse_work(how)
        target = output_folder(out)
    elif (url := _remote_work(store, how)) is not None:
        scratch = TemporaryFiles()
        remote, target = _open_remote(url, source, store, storage_options, scratch), scratch.path / "dataset"
    else:
        target = output_folder(f"{store.url.rpartition('/')[2]}.work" if how.work is None else how.work, "work")
    return BuildRequest(open_source(source, target, recipe), target, recipe, how, functions, store=store, remote=remote)


def _remote_work(out: Store, options: BuildOptions) -> str | None:
    """Return the URL of the workspace, or None if it is a local folder."""
    if options.work is None:
        return out.place(DEFAULT_WORK) if ENGINES[options.engine].many_hosts or options.grows else None
    if names_store(options.work):
        return options.work
    if options.grows:
        raise UsageError(
            option="work",
            expected="a URL of the output's store for an update",
            found=options.work,
            hint="leave the option out to use OUT/.build/work",
        )
    return None


def _open_remote(
    url: str, source: Any, out: Store, options: Mapping[str, Any] | None, scratch: TemporaryFiles
) -> RemoteFiles:
    """Open the store of the workspace.

    Raises
    ------
    UsageError
        If objects cannot be written there, or if the place is that of the source.
    """
    check_sendable(options or {})
    scheme = urlsplit(out.url).scheme
    work = writable_store(url, options) if urlsplit(url).scheme == scheme else None
    if not isinstance(work, Store):  # workers have the options of one store
        raise UsageError(
            option="work", expected=f"a folder, or a URL of the output's store, {scheme}://", found=shorten(url)
        )
    check_places(work, out, source)
    return RemoteFiles(work, out, scratch=scratch)


def refuse_work(options: BuildOptions) -> None:
    """Refuse a separate folder to work in for a dataset in a local folder."""
    if options.work is not None:
        raise UsageError("read only if the output is a URL", option="work", hint="leave the option out")


def resolve_options(recipe: Recipe | None, options: dict[str, Any]) -> tuple[Recipe, BuildOptions, Mapping[str, Step]]:
    """Resolve recipe, options and functions of a call.

    Raises
    ------
    UsageError
        If an option is unknown or invalid.
    """
    refuse_unknown(options, (*OPTION_NAMES, "recipe", "progress"))
    how = {name: options.pop(name) for name in list(options) if name in BUILD_OPTION_NAMES}
    functions: dict[str, Step] = {}
    if recipe is None:
        if isinstance(options.get("steps"), Sequence) and not isinstance(options["steps"], str):
            options["steps"] = tuple(_name_step(step, functions) for step in options["steps"])
        recipe = Recipe.from_options(options)
    elif options:
        raise UsageError(expected="either a recipe or its options", found="both", hint=", ".join(options))
    if functions and "engine" not in how:
        how["engine"] = FOR_FUNCTIONS
    # Absolute before planning: the plan must not depend on the current folder.
    roots = tuple(root if is_url(root) else str(Path(root).absolute()) for root in recipe.root)
    if roots != recipe.root:
        recipe = dataclasses.replace(recipe, root=roots)
    return recipe, BuildOptions(**how), functions


def _name_step(step: Any, functions: dict[str, Step]) -> Any:
    """Return the name of a step. A Python function gets a name and is added to `functions`."""
    if not callable(step) or isinstance(step, StepSpec):
        return step
    name = f"{getattr(step, '__module__', 'function')}.{getattr(step, '__qualname__', 'step')}"
    functions[name] = step
    return name
