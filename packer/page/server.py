"""The server of `packer view`: what there is to ask for, and pages of datasets."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from packer.packed.shown.background import Background, Job, NotReadyError
from packer.packed.shown.dataset import ShownDataset
from packer.packed.shown.selection import Selection
from packer.page.building import Building
from packer.page.cards import shown_text
from packer.page.counts import Bar, spread
from packer.page.facts import find_shared
from packer.page.looking import Looking
from packer.page.query import Query
from packer.page.rendering import render, static, templates
from shardspec.errors import CodecError, DatasetError, ItemError, ShardspecError, UsageError
from shardspec.layout import Layout

PAGE_SAMPLES = 100
_STATIC = {"page.css": "text/css", "page.js": "text/javascript"}
_KEPT = {"cache-control": "private, max-age=3600"}
_NOT_KEPT = {"cache-control": "no-store"}
"""What a build shows under an address changes once it is begun anew; what does not decode may be mended."""
_BROKEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 120"><rect width="120" height="120" fill="#20262d"/>'
    '<text x="60" y="64" font-size="13" font-family="sans-serif" fill="#c9d1d9" text-anchor="middle">does not decode'
    "</text></svg>"
)


class Pages:
    """The pages of some datasets.

    Parameters
    ----------
    shown : sequence of Looking or Building
    token : str
    opened : callable, optional
        Opens the dataset that a build has become, with what the user has given to show it with.
    """

    def __init__(
        self, shown: Sequence[Looking | Building], token: str, opened: Callable[[Path], Looking] | None = None
    ) -> None:
        self._shown = list(shown)
        self._opened = opened or (lambda path: Looking(ShownDataset(path)))
        self._root = f"/{token}"
        self._builds: dict[int, Building] = {}
        self._refused: dict[int, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._background = Background()
        self._comparing: tuple[list[ShownDataset], Job[list[str]]] | None = None
        for name in templates().list_templates():  # which takes as long as the first page
            templates().get_template(name)

    def app(self) -> Starlette:
        """The application."""
        routes: dict[str, Callable[[Request], Response]] = {
            "/": self.start,
            "/static/{name}": self.file,
            "/{number:int}/": self.samples,
            "/faults": self.shared_faults,
            "/{number:int}/about": self.about,
            "/{number:int}/faults": self.faults,
            "/{number:int}/field/{name}": self.field,
            "/{number:int}/keys.txt": self.keys,
            "/{number:int}/find": self.find,
            "/{number:int}/row/{row:int}": self.sample,
            "/{number:int}/row/{row:int}/track": self.track,
            "/{number:int}/row/{row:int}/original": self.original,
            "/{number:int}/row/{row:int}/original.jpg": self.original_picture,
            "/{number:int}/row/{row:int}/{name}": self.picture,
            "/{number:int}/build": self.build,
            "/{number:int}/build/state": self.build_state,
            "/{number:int}/build/samples/{task:int}/{row:int}": self.build_picture,
            "/{number:int}/build/rejects/{task:int}/{row:int}.jpg": self.build_reject,
            "/{number:int}/rejects": self.rejects,
            "/{number:int}/rejects/{line:int}/{frame:int}.jpg": self.reject_picture,
        }
        return Starlette(routes=[Route(self._root + path, self._endpoint(page)) for path, page in routes.items()])

    def start(self, request: Request) -> Response:
        """All datasets; of one, its samples."""
        if len(self._shown) == 1:
            return RedirectResponse(f"{self._root}/0/")
        datasets = [one.about if isinstance(one, Looking) else {"name": one.name} for one in self._shown]
        return self._page("start.html", request, title="datasets", datasets=datasets)

    def shared_faults(self, request: Request) -> Response:
        """What deserves a warning of several datasets, as a part of a page."""
        return self._part("faults.html", request, faults=self._shared)

    def file(self, request: Request) -> Response:
        """The style sheet and the script."""
        name = request.path_params["name"]
        if name not in _STATIC:
            return _missing()
        return Response(static(name), media_type=_STATIC[name], headers={"cache-control": "no-cache"})

    def samples(self, request: Request) -> Response:
        """A page of the grid."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        selection, error = Selection(0), ""
        try:
            selection = one.dataset.select(query.where, query.sort)
        except ShardspecError as wrong:
            error = shown_text(str(wrong))
        pages = max(1, -(-len(selection) // PAGE_SAMPLES))
        page = min(query.page, pages)
        some = selection.rows((page - 1) * PAGE_SAMPLES, page * PAGE_SAMPLES)
        made = self._page(
            "samples.html",
            request,
            one,
            query=query,
            error=error,
            status=400 if error else 200,
            cards=one.cards(some, query.sort.removeprefix("-")),
            selected=len(selection),
            page=page,
            pages=pages,
            fields=[name for name in one.dataset.small_fields if name != "key"],
            sorts=one.dataset.small_fields,
            example=one.example,
            layer_names=one.layers,
        )
        one.dataset.open_shards()
        return made

    def about(self, request: Request) -> Response:
        """What was packed and how."""
        one = self._one(request)
        return self._page("about.html", request, one, dataset=one.about)

    def faults(self, request: Request) -> Response:
        """What deserves a warning, as a part of a page."""
        return self._part("faults.html", request, faults=[*self._shared, *self._one(request).faults])

    def field(self, request: Request) -> Response:
        """The spread of a field, as a part of a page."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        name = request.path_params["name"]
        if name not in one.dataset.small_fields:
            return _missing()
        selection = one.dataset.select(query.where) if query.where else None
        base = f"{self._root}/{request.path_params['number']}/"

        def link(bar: Bar, _place: int) -> Markup:
            address, there = query.narrowed(bar.where, name)
            return Markup('a href="{}{}" class="{}"').format(base, address, "value on" if there else "value")

        return self._page("field.html", request, one, field=spread(one.dataset, name, selection), link=link, live=True)

    def keys(self, request: Request) -> Response:
        """The keys of the selected samples, one a line, in the order shown."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        while True:
            try:
                selection = one.dataset.select(query.where, query.sort)
                break
            except NotReadyError as unready:
                unready.job.wait()

        def lines() -> Iterator[bytes]:
            for keys in one.dataset.keys(selection):
                yield b"".join(key.encode("utf-8", "surrogateescape") + b"\n" for key in keys)

        headers = {"content-disposition": 'attachment; filename="keys.txt"'}
        return StreamingResponse(lines(), media_type="text/plain; charset=utf-8", headers=headers)

    def find(self, request: Request) -> Response:
        """The sample with a key."""
        one, key = self._one(request), request.query_params.get("key", "")
        row = one.dataset.find(key)
        if row is None:
            return PlainTextResponse("no sample has this key\n", 404)
        return RedirectResponse(f"{self._root}/{request.path_params['number']}/row/{row}")

    def sample(self, request: Request) -> Response:
        """One sample."""
        one, row = self._one(request), request.path_params["row"]
        if not 0 <= row < len(one.dataset):
            return _missing()
        query = Query.of(request, one.sort)
        before, after = one.beside(row, query.where, query.sort)
        return self._page(
            "sample.html",
            request,
            one,
            query=query,
            row=row,
            before=before,
            after=after,
            card=one.cards([row])[0],
            values=one.values(row),
            layer_names=one.layers,
            has_track="source" in one.dataset.small_fields,
            has_original=one.originals is not None and "source" in one.dataset.schema,
        )

    def track(self, request: Request) -> Response:
        """The neighbours of a sample, as a part of a page."""
        one, row = self._one(request), request.path_params["row"]
        if not 0 <= row < len(one.dataset):
            return _missing()
        neighbours = one.track(row)
        pause = one.pause_ms(neighbours)
        return self._page(
            "track.html",
            request,
            one,
            cards=one.cards(neighbours),
            row=row,
            pause=pause,
            in_track="track" in one.dataset.schema,
        )

    def original(self, request: Request) -> Response:
        """The frame that a sample was cut from, with its box, as a part of a page."""
        one, row = self._one(request), request.path_params["row"]
        if not 0 <= row < len(one.dataset):
            return _missing()
        try:
            found = one.original(row)
        except ItemError as error:
            return self._page("original.html", request, one, row=row, found=None, error=shown_text(str(error)))
        return self._page("original.html", request, one, row=row, found=found, error="")

    def original_picture(self, request: Request) -> Response:
        """The picture of `original`."""
        one, row = self._one(request), request.path_params["row"]
        if not 0 <= row < len(one.dataset):
            return _missing()
        return Response(one.original(row).jpeg, media_type="image/jpeg", headers=_KEPT)

    def picture(self, request: Request) -> Response:
        """A stored picture."""
        one, row, name = self._one(request), request.path_params["row"], request.path_params["name"]
        if not 0 <= row < len(one.dataset) or name not in one.dataset.pictures:
            return _missing()
        try:
            found = one.dataset.stored(row, name)
        except CodecError:
            return _broken()
        return Response(found.data, media_type=found.media_type, headers=_KEPT)

    def build(self, request: Request) -> Response:
        """A build as it is now; the page looks again by itself."""
        one = self._any(request)
        if isinstance(one, Looking) and not Building(one.dataset.path).is_there:
            return RedirectResponse(f"{self._root}/{request.path_params['number']}/")
        return self._part("build.html", request, name=one.name, title=one.name, several=len(self._shown) > 1)

    def build_state(self, request: Request) -> Response:
        """The state of a build, as a part of a page."""
        one = self._any(request)
        if isinstance(one, Looking) and not Building(one.dataset.path).is_there:
            return self._part("finished.html", request, name=one.name)
        if isinstance(one, Building) and (refused := self._refused.get(request.path_params["number"])) is not None:
            return self._part("refused.html", request, reason=refused[1])
        build = self._build_of(request)
        state = build.state()
        return self._part("state.html", request, state=state, samples=build.samples())

    def build_picture(self, request: Request) -> Response:
        """The picture of a sample that a build has packed."""
        found = self._build_of(request).picture(request.path_params["task"], request.path_params["row"])
        return _missing() if found is None else Response(found.data, media_type=found.media_type, headers=_NOT_KEPT)

    def build_reject(self, request: Request) -> Response:
        """The first frame of an item that a build has rejected."""
        try:
            found = self._build_of(request).reject_picture(request.path_params["task"], request.path_params["row"])
        except ItemError:
            return _broken()
        return _missing() if found is None else Response(found, media_type="image/jpeg", headers=_NOT_KEPT)

    def rejects(self, request: Request) -> Response:
        """Rejected items, damaged ones, and frames without a sample."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        kind = request.query_params.get("kind", "item")
        lines, more = one.reject_lines(kind, query.page)
        return self._page(
            "rejects.html", request, one, report=one.rejects, lines=lines, kind=kind, page=query.page, more=more
        )

    def reject_picture(self, request: Request) -> Response:
        """A frame of an item that ``rejects.jsonl`` names."""
        one = self._one(request)
        try:
            found = one.reject_frame(request.path_params["line"], request.path_params["frame"])
        except ItemError:
            return _broken()
        return _missing() if found is None else Response(found, media_type="image/jpeg", headers=_KEPT)

    @property
    def _shared(self) -> list[str]:
        """What several of the datasets have in common, and should not; found once for those that are there."""
        there = [one.dataset for one in self._shown if isinstance(one, Looking)]
        if len(there) < 2:
            return []
        with self._lock:
            if self._comparing is None or self._comparing[0] != there:
                self._comparing = there, Job("comparing sources", lambda job: list(find_shared(there)))
                self._background.run(self._comparing[1])
            job = self._comparing[1]
        return job.result(there[0].patience_s)

    def _one(self, request: Request) -> Looking:
        one = self._any(request)
        if isinstance(one, Building):
            raise _StillBuildingError
        return one

    def _any(self, request: Request) -> Looking | Building:
        """A dataset; or a build, whose dataset takes its place once it is there."""
        number: int = request.path_params["number"]
        if number >= len(self._shown):
            raise LookupError
        one = self._shown[number]
        if isinstance(one, Building):
            one = self._shown[number] = self._opened_if_done(number, one)
        return one

    def _opened_if_done(self, number: int, build: Building) -> Looking | Building:
        """The dataset that a build has become; the build, and a reason, if it cannot be shown."""
        try:
            stamp = Layout(build.path).manifest.stat().st_mtime_ns
        except OSError:
            return build
        if self._refused.get(number, (0, ""))[0] != stamp:
            try:
                return self._opened(build.path)
            except (DatasetError, UsageError) as error:
                self._refused[number] = stamp, shown_text(str(error))
        return build

    def _build_of(self, request: Request) -> Building:
        one = self._any(request)
        if isinstance(one, Building):
            return one
        building = self._builds.setdefault(request.path_params["number"], Building(one.dataset.path))
        if not building.is_there:
            raise LookupError
        return building

    def _part(self, template: str, request: Request, **values: Any) -> Response:
        number = request.path_params.get("number")
        base = self._root if number is None else f"{self._root}/{number}"
        text = render(template, root=self._root, base=base, live=True, **values)
        return HTMLResponse(text.encode("utf-8", "replace"), headers=_NOT_KEPT)

    def _page(
        self, template: str, request: Request, one: Looking | None = None, status: int = 200, **values: Any
    ) -> Response:
        if one is not None:
            number = self._shown.index(one)
            picture = one.dataset.picture
            values |= {"base": f"{self._root}/{number}", "name": one.name, "several": len(self._shown) > 1}
            values |= {"title": one.name, "has_rejects": one.has_rejects}
            values |= {"has_build": Building(one.dataset.path).is_there}
            values |= {"field_name": None if picture is None else picture.name, "pictures": one.dataset.pictures}
            values |= {"total": len(one.dataset), "has_originals": one.originals is not None}
        text = render(template, root=self._root, path=request.url.path, **{"live": True, **values})
        return HTMLResponse(text.encode("utf-8", "replace"), status, headers=_NOT_KEPT)

    def _endpoint(self, page: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """A page that is made in a thread of its own; what is not there, or cannot be read, is said in a line."""

        async def answer(request: Request) -> Response:
            try:
                return await run_in_threadpool(page, request)
            except NotReadyError as unready:
                return self._waiting(request, unready.job, is_part=page in self._parts)
            except _StillBuildingError:
                return RedirectResponse(f"{self._root}/{request.path_params['number']}/build")
            except LookupError:
                return _missing()
            except (ShardspecError, MemoryError) as error:
                return PlainTextResponse(shown_text(f"{error}\n"), 422)

        return answer

    @property
    def _parts(self) -> tuple[Callable[[Request], Response], ...]:
        """What the script puts into a page, and asks for again while it is not ready."""
        return self.field, self.track, self.faults, self.shared_faults

    def _waiting(self, request: Request, job: Job[Any], *, is_part: bool) -> Response:
        """In place of a page or a part that is not ready; asked for again, until it is."""
        heading = request.path_params.get("name", "") if is_part else ""
        template = "waiting_part.html" if is_part else "waiting.html"
        text = render(template, root=self._root, title=job.what, job=job, heading=heading, live=True)
        return HTMLResponse(text.encode("utf-8", "replace"), 202, headers=_NOT_KEPT)


class _StillBuildingError(Exception):
    """A page of a dataset was asked for, and there is only a build as yet."""


def _broken() -> Response:
    """A picture in the place of one that does not decode."""
    return Response(_BROKEN, media_type="image/svg+xml", headers=_NOT_KEPT)


def _missing() -> Response:
    return PlainTextResponse("there is nothing here\n", 404)
