"""Start a job in its folder: find the finished dataset, resume the unfinished job, or start a new one."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from packer.jobs.mirror import has_files
from packer.jobs.plan import JobPlan
from packer.jobs.upload import Upload
from packer.workspace import Workspace, append_line
from packer.workspace.disk_list import Reiterable
from packer.workspace.durable import read_record, write_durably, write_if_changed
from packer.workspace.folder import begun_on, committed, discard, prepare_folder, prepare_update
from packer.workspace.machines import MADE_ON, PIECES, RUNTIME, describe_others, here
from packer.workspace.replacement import finish
from shardspec.errors import BuildError, ResumeMismatchError, UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest, seal
from shardspec.wording import counted, program


class JobStart:
    """Starts or resumes one plan in one folder.

    Parameters
    ----------
    layout : Layout
        The dataset's folder.
    space : Workspace
        The plan's workspace in the folder.
    overwrite : bool
        Whether the plan may replace another dataset in the folder.
    on_message : callable
        Called with lines for the user.
    upload : Upload or None
        If given, the dataset belongs in a store, and the folder holds only the workspace.

    Attributes
    ----------
    sessions : int
        Number of calls that have worked on the job, including this call.
    """

    def __init__(
        self,
        plan: JobPlan,
        layout: Layout,
        space: Workspace,
        overwrite: bool,
        on_message: Callable[[str], None],
        upload: Upload | None,
    ) -> None:
        self._plan = plan
        self._record = plan.record
        self._kind = plan.settings.kind
        self._layout = layout
        self._space = space
        self._overwrite = overwrite
        self._on_message = on_message
        self._upload = upload
        self._place = layout.root if upload is None else upload.url
        self.sessions = 1

    def find_finished(self) -> Manifest | None:
        """Return the dataset if this plan has made it and nothing else is in progress.

        Takes no lock, because the folder may be read-only.
        """
        if self._overwrite or self._record.base is not None:
            return None
        with suppress(OSError, BuildError):  # reported when the folder is entered
            remote = self._space.remote
            begun = self._space.root.exists() if remote is None else has_files(remote)
            manifest = None if begun else self._committed()
            return manifest if manifest is not None and self._record.made(manifest) else None
        return None

    def start_or_resume(self) -> Manifest | None:
        """Start or resume the job; return the dataset if it is already finished."""
        if self._upload is not None:
            self._upload.check(self._space, self._overwrite)
        made = None
        if self._record.base is not None:
            self._enter_update(self._record.base)
        else:
            made = self._enter()
        if self._upload is not None and made is None:
            self._upload.begin(self._space)
        return made

    def start_without_plan(self) -> None:
        """Start a job that cannot be resumed, without writing a plan.

        Raises
        ------
        UsageError, ResumeMismatchError
            If the folder holds anything other than a dataset to overwrite, or the unfinished build of another plan.
        """
        space, overwrite = self._space, self._overwrite
        replaced = finish(space)
        manifest = committed(self._layout)
        if not replaced and begun_on(space, manifest):
            old = self._read_plan()
            if not overwrite:
                self._refuse_other_plan(old)
        why = "" if manifest is None else counted(manifest.samples, "sample")
        remedy = "" if manifest is None else self._record.advise(manifest)
        prepare_folder(self._layout, space, manifest, overwrite, why, remedy, self._layout.root)

    def start_pieces(self, more: Mapping[str, Any]) -> None:
        """Write the plan into a folder of pieces, which must be new or empty.

        Parameters
        ----------
        more : mapping
            Further entries of the plan's document.

        Raises
        ------
        UsageError
            If the folder holds other files.
        """
        prepare_folder(self._layout, self._space, None, False, "", "", self._layout.root)
        self._write_plan(more)

    def _enter(self) -> Manifest | None:
        """Return the dataset if this plan has made it; otherwise resume or start the job."""
        space, overwrite, upload = self._space, self._overwrite, self._upload
        replaced = finish(space) if upload is None else upload.finish(space)
        manifest = self._committed()
        begun = not replaced and begun_on(space, manifest)
        if manifest is not None and self._record.made(manifest) and (replaced or not overwrite):
            if not begun:  # an unfinished replacement of this dataset stays for the call that started it
                space.remove()
            return manifest
        why = (
            ""
            if manifest is None or overwrite
            else f"made by another plan: {self._record.describe_made(self._layout, manifest)}"
        )
        if begun:
            old = self._read_plan()
            same = old["fingerprint"] == self._record.fingerprint
            if same and (manifest is None or overwrite):
                self._resume()
                return None
            goes_on = space.replaced.exists() if overwrite else manifest is None
            if goes_on and self._take_over(old):
                if manifest is not None:
                    write_durably(space.replaced, manifest.dumps())
                self._write_plan()
                return None
            if manifest is None and not overwrite and not same:
                self._refuse_other_plan(old)
            if same:
                why += "; an unfinished build of this plan is to replace it: add --overwrite to resume it"
        remedy = "" if manifest is None else self._record.advise(manifest)
        prepare_folder(self._layout, space, manifest, overwrite, why, remedy, self._place)
        self._write_plan()
        return None

    def _read_plan(self) -> dict[str, Any]:
        """Read the plan in the folder. Pieces are refused, because shares hold no lock and may be at work there."""
        old = read_record(self._space.plan)
        if PIECES in old:
            root = self._layout.root
            raise UsageError(
                place=root,
                expected="a new or empty folder",
                found="pieces of a build",
                hint=f"{program()} merge {root} OUT makes a dataset from them; to discard them, delete the folder",
            )
        return old

    def _committed(self) -> Manifest | None:
        """Return the manifest of the dataset at the job's place."""
        return committed(self._layout) if self._upload is None else self._upload.manifest

    def _enter_update(self, base: Manifest) -> None:
        space = self._space
        self._check_standing(base)
        if space.plan.exists() and not space.replaced.exists():
            old = read_record(space.plan)
            if begun_on(space, base) and old["fingerprint"] == self._record.fingerprint:
                self._resume()
                return
            self._take_over(old)
        prepare_update(space, base)
        self._write_plan()

    def _check_standing(self, expected: Manifest) -> None:
        """Check that the dataset in the folder has not changed since the plan was made."""
        if self._committed() != expected:
            raise BuildError(
                place=self._place,
                expected="the dataset that the work was planned for",
                found="that it has changed since",
                hint="run the same command again",
            )

    def _take_over(self, old: Mapping[str, Any]) -> bool:
        """Clear the workspace of another plan, but keep results that this plan can use; return whether there are any."""
        space = self._space
        can = old["kind"] == self._kind and space.remote is None
        line = self._record.take_over(space, old) if can else None
        if line is None:
            return False
        self._count_sessions()
        discard(space, kept=True)
        self._on_message(line)
        return True

    def _count_sessions(self) -> None:
        self.sessions += sum(line.get("did") == "session" for line in self._space.read_journal())

    def _resume(self) -> None:
        self._space.sweep()
        self._count_sessions()
        self._write_plan()  # the same source files may have been moved since
        self._record.resume(self._space)

    def _refuse_other_plan(self, old: Mapping[str, Any]) -> None:
        kind = old["kind"]
        if kind == self._kind:
            difference = self._record.describe_unfinished(self._space, old)
        else:
            difference = f"it is a {kind}, and this is a {self._kind}"
        versions = describe_others(old.get(RUNTIME, {}), self._record.to_json().get(RUNTIME, {}))
        what, how = ("settings or versions", f"install {versions} and ") if versions else ("settings", "")
        raise ResumeMismatchError(
            (
                f"the unfinished {kind} here was started with other {what} ({difference}): {how}repeat "
                "the original command to resume it, or add --overwrite to discard it and start again"
            ),
            place=self._place,
        )

    def _write_plan(self, more: Mapping[str, Any] | None = None) -> None:
        """Write the items and the plan, and record a session of the job."""
        self._space.create_results(len(self._plan.tasks))
        lines = self._record.take_item_lines()
        write_if_changed(self._space.items, Reiterable(lambda: (line.encode("ascii") for line in lines)))
        write_if_changed(
            self._space.plan, [seal(json.dumps({**self._record.to_json(), **(more or {}), MADE_ON: here()}))]
        )
        append_line(self._space.journal, {"did": "session"})
