"""The pages of `packer view`: their paths, and the queries in their addresses."""

import ast
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from packer.analysis.duplicates.result import Duplicates
from packer.packed.browse.columns import Selection
from packer.packed.browse.dataset import RANDOM
from packer.packed.browse.tracks import pause_ms, sound_of, sound_of_sample, track_rows
from packer.page.counts import Bar, spread
from packer.page.dataset_view import DatasetView
from packer.page.groups import arrange_groups, show_groups
from packer.page.rendering import render, static, templates
from packer.page.summary import find_shared
from readers.drawing.values import printable
from shardspec.errors import CodecError, ItemError, ShardspecError, system_reason

PAGE_SAMPLES = 100
PAGE_GROUPS = 20

_TRACK = 240
"""Maximum number of samples of a track on a page."""
_WAVEFORM = 400
"""Points of a waveform."""

_PART_BYTES = 1 << 16

_STATIC = {"page.css": "text/css", "page.js": "text/javascript"}
_CACHED = {"cache-control": "private, max-age=3600"}
# Pages are not cached, because the dataset may grow, and the user may repair a file that did not decode.
_NOT_CACHED = {"cache-control": "no-store"}
_BROKEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 120"><rect width="120" height="120" fill="#20262d"/>'
    '<text x="60" y="64" font-size="13" font-family="sans-serif" fill="#c9d1d9" text-anchor="middle">does not decode'
    "</text></svg>"
)


@dataclass(frozen=True)
class Query:
    """Selection that a page of the grid shows.

    Attributes
    ----------
    where, sort : str
        See `BrowsedDataset.select`.
    page : int
        Page number, from 1.
    usual : str
        The order if the address names none.
    """

    where: str = ""
    sort: str = ""
    page: int = 1
    usual: str = ""

    @classmethod
    def of(cls, request: Request, usual: str = "") -> "Query":
        """Read the query of an address. An invalid page number counts as 1."""
        given = request.query_params
        page = given.get("page", "1")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 12 else 1
        return cls(given.get("where", "").strip(), given.get("sort", usual).strip(), max(1, number), usual)

    def link(self, **changes: Any) -> str:
        """Return the query part of the address of another page."""
        given = self._given(**changes)
        return "?" + urlencode(given, errors="replace") if given else ""

    @property
    def hidden(self) -> dict[str, Any]:
        """The values of a form that jumps to another page."""
        return self._given()

    def _given(self, **changes: Any) -> dict[str, Any]:
        values = {"where": self.where, "sort": self.sort, "page": 1, **changes}
        usual = {"where": "", "sort": self.usual, "page": 1}
        return {name: value for name, value in values.items() if value != usual[name]}

    def narrowed(self, where: str, field: str) -> tuple[str, bool]:
        """Toggle a bar's condition: return the query with it in place of other conditions on its field, or without it.

        Returns
        -------
        str
            The query part of the address.
        bool
            Whether the query already has the condition.
        """
        present, asked = _conditions(self.where), _conditions(where)
        if present is None or asked is None:
            return self.link(where=where), False
        there = set(asked) <= set(present)
        kept = [text for text, names in present.items() if names != {field}]
        return self.link(where=" and ".join(kept if there else [*kept, where])), there


def _conditions(where: str) -> dict[str, set[str]] | None:
    """Return the conditions that ``and`` joins, each with its fields; None if the expression is invalid."""
    if not where:
        return {}
    try:
        tree = ast.parse(where, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    joined = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    found = {}
    for part in tree.values if isinstance(tree, ast.BoolOp) and joined else [tree]:
        text = ast.unparse(part)
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
        found[f"({text})" if isinstance(part, ast.BoolOp) else text] = names
    return found


class Pages:
    """The pages as methods. Each takes the request, then the dataset and the row in its path."""

    def __init__(self, views: Sequence[DatasetView], root: str, duplicates: Duplicates | None = None) -> None:
        self._views, self._root, self._duplicates = views, root, duplicates
        self._groups = [] if duplicates is None else arrange_groups(duplicates)
        for name in templates().list_templates():  # compiling them takes as long as the first page
            templates().get_template(name)

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        of_dataset: dict[str, Callable[..., Response]] = {
            "": self.samples,
            "about": self.about,
            "faults": self.faults,
            "field/{name}": self.field,
            "keys.txt": self.keys,
            "keep.jsonl": self.keep,
            "find": self.find,
            "row/{row:int}": self.sample,
            "row/{row:int}/track": self.track,
            "row/{row:int}/track.wav": self.sound,
            "row/{row:int}/original": self.original,
            "row/{row:int}/original.jpg": self.original_image,
            "row/{row:int}/sound.wav": self.sound_of_sample,
            "row/{row:int}/{name}/play": self.video,
            "row/{row:int}/{name}": self.image,
            "rejects": self.rejects,
            "rejects/{line:int}.jpg": self.reject_image,
            "rejects/{line:int}/{frame:int}.jpg": self.reject_image,
        }
        pages: dict[str, Callable[..., Response]] = {
            "/": self.start,
            "/static/{name}": self.file,
            "/faults": self.shared_faults,
            "/duplicates": self.duplicates,
            **{f"/{{number:int}}/{path}": page for path, page in of_dataset.items()},
        }
        return [Route(self._root + path, self._endpoint(page)) for path, page in pages.items()]

    def start(self, request: Request) -> Response:
        """List the datasets, or show the samples of the only one."""
        if self._duplicates is not None:
            return RedirectResponse(f"{self._root}/duplicates")
        if len(self._views) == 1:
            return RedirectResponse(f"{self._root}/0/")
        return self._page("start.html", request, title="datasets", datasets=[one.about for one in self._views])

    def duplicates(self, request: Request) -> Response:
        """Show a page of the groups of samples that look the same, the nearest first."""
        if self._duplicates is None:
            return _missing()
        pages = max(1, -(-len(self._groups) // PAGE_GROUPS))
        page = min(Query.of(request).page, pages)
        some = self._groups[(page - 1) * PAGE_GROUPS : page * PAGE_GROUPS]
        groups = []
        for group, samples in show_groups(some, lambda number, rows: self._views[number].cards(rows)):
            shown = []
            for sample, card in samples:
                picture = self._views[sample.dataset].dataset.picture
                address = f"{self._root}/{sample.dataset}/row/{sample.row}"
                shown.append((sample, card, "" if picture is None else f"{address}/{picture.name}", address))
            groups.append((group, shown))
        summary = printable(self._duplicates.describe().partition("\n")[0].rstrip(":"))
        return self._page(
            "duplicates.html",
            request,
            title="duplicates",
            names=[one.name for one in self._views],
            summary=summary,
            groups=groups,
            page=page,
            pages=pages,
        )

    def file(self, request: Request) -> Response:
        """Send the style sheet or the script."""
        name = request.path_params["name"]
        if name not in _STATIC:
            return _missing()
        return Response(static(name), media_type=_STATIC[name], headers={"cache-control": "no-cache"})

    def shared_faults(self, request: Request) -> Response:
        """Return warnings about several datasets, as a part of a page."""
        return self._page("faults.html", request, faults=self._shared)

    def samples(self, request: Request, one: DatasetView) -> Response:
        """Show a page of the grid."""
        query = Query.of(request, one.sort)
        selection, error = Selection(0), ""
        try:
            selection = one.dataset.select(query.where, query.sort)
        except ShardspecError as wrong:
            error = printable(str(wrong))
        pages = max(1, -(-len(selection) // PAGE_SAMPLES))
        page = min(query.page, pages)
        some = selection.rows((page - 1) * PAGE_SAMPLES, page * PAGE_SAMPLES)
        return self._page(
            "samples.html",
            request,
            query=query,
            error=error,
            status=400 if error else 200,
            cards=one.cards(some, query.sort.removeprefix("-").removeprefix(RANDOM)),
            selected=len(selection),
            page=page,
            pages=pages,
            fields=sorted(
                (name for name in one.dataset.small_fields if name != "key"), key=lambda name: name != "label"
            ),
            sorts=one.dataset.small_fields,
            example=one.example,
            layer_names=one.layers,
        )

    def about(self, request: Request, one: DatasetView) -> Response:
        """Show the contents and the origin of a dataset."""
        return self._page("about.html", request, dataset=one.about)

    def faults(self, request: Request, one: DatasetView) -> Response:
        """Return warnings about a dataset, as a part of a page."""
        return self._page("faults.html", request, faults=[*self._shared, *one.faults])

    def field(self, request: Request, one: DatasetView) -> Response:
        """Return the bar chart of a field, as a part of a page."""
        query = Query.of(request, one.sort)
        name = request.path_params["name"]
        if name not in one.dataset.small_fields:
            return _missing()
        selection = one.dataset.select(query.where) if query.where else None

        def link(bar: Bar) -> Markup:
            address, there = query.narrowed(bar.where, name)
            return Markup('a href="{}/{}" class="{}"').format(
                self._base(request), address, "value on" if there else "value"
            )

        return self._page("field.html", request, field=spread(one.dataset, name, selection), link=link)

    def keys(self, request: Request, one: DatasetView) -> Response:
        """Send the keys of the selected samples, one per line, in the order shown."""
        query = Query.of(request, one.sort)
        selection = one.dataset.select(query.where, query.sort)

        with ExitStack() as stack:
            # Read whole before the first byte is sent, so that damage is still an error.
            file = stack.enter_context(tempfile.TemporaryFile())
            for keys in one.dataset.keys(selection):
                file.writelines(key.encode("utf-8", "surrogateescape") + b"\n" for key in keys)
            file.seek(0)
            kept = stack.pop_all()

        def parts() -> Iterator[bytes]:
            with kept:
                while part := file.read(_PART_BYTES):
                    yield part

        headers = {"content-disposition": 'attachment; filename="keys.txt"'}
        return StreamingResponse(parts(), media_type="text/plain; charset=utf-8", headers=headers)

    def keep(self, request: Request, one: DatasetView) -> Response:
        """Send a table for `packer.add` with a line per sample: its key, and whether the selection has it."""
        query = Query.of(request, one.sort)
        kept = iter(one.dataset.select(query.where).mask.tolist())
        keys = one.dataset.keys(one.dataset.select())
        lines = ("".join(json.dumps({"key": key, "keep": next(kept)}) + "\n" for key in some) for some in keys)
        headers = {"content-disposition": 'attachment; filename="keep.jsonl"'}
        return StreamingResponse(lines, media_type="application/jsonl; charset=utf-8", headers=headers)

    def find(self, request: Request, one: DatasetView) -> Response:
        """Redirect to the sample with a key."""
        row = one.dataset.find(request.query_params.get("key", ""))
        if row is None:
            return PlainTextResponse("no sample has this key\n", 404)
        return RedirectResponse(f"{self._base(request)}/row/{row}")

    def sample(self, request: Request, one: DatasetView, row: int) -> Response:
        """Show one sample."""
        query = Query.of(request, one.sort)
        before, after = one.beside(row, query.where, query.sort)
        return self._page(
            "sample.html",
            request,
            query=query,
            row=row,
            before=before,
            after=after,
            card=one.cards([row])[0],
            values=one.values(row),
            videos=one.dataset.playable,
            heard=sound_of_sample(one.dataset, row) is not None,
            layer_names=one.layers,
            has_track="source" in one.dataset.small_fields,
            has_original=one.originals is not None and one.dataset.sound is None and "source" in one.dataset.schema,
        )

    def track(self, request: Request, one: DatasetView, row: int) -> Response:
        """Return the neighbours of a sample, as a part of a page."""
        neighbours = track_rows(one.dataset, row, _TRACK)
        sound = sound_of(one.dataset, neighbours)
        return self._page(
            "track.html",
            request,
            cards=one.cards(neighbours),
            row=row,
            pause=pause_ms(one.dataset, neighbours),
            in_track="track" in one.dataset.schema,
            peaks=None if sound is None else sound.peaks(_WAVEFORM).tolist(),
        )

    def sound(self, _request: Request, one: DatasetView, row: int) -> Response:
        """Send the sound of the neighbours of a sample."""
        found = sound_of(one.dataset, track_rows(one.dataset, row, _TRACK))
        return _missing() if found is None else Response(found.wav(), media_type="audio/wav", headers=_CACHED)

    def video(self, request: Request, one: DatasetView, row: int) -> Response:
        """Send a stored video."""
        name = request.path_params["name"]
        found = one.dataset.played(row, name) if name in one.dataset.videos else None
        return _missing() if found is None else Response(found.data, media_type=found.media_type, headers=_CACHED)

    def sound_of_sample(self, _request: Request, one: DatasetView, row: int) -> Response:
        """Send the sound of a sample that is a video or a sound."""
        found = sound_of_sample(one.dataset, row)
        return _missing() if found is None else Response(found.wav(), media_type="audio/wav", headers=_CACHED)

    def original(self, request: Request, one: DatasetView, row: int) -> Response:
        """Return the frame that a sample was cut from, with its box, as a part of a page."""
        found, error = None, ""
        try:
            found = one.original(row)
        except ItemError as wrong:
            error = printable(str(wrong))
        return self._page("original.html", request, row=row, found=found, error=error)

    def original_image(self, _request: Request, one: DatasetView, row: int) -> Response:
        """Send the frame that a sample was cut from."""
        return Response(one.original(row).jpeg, media_type="image/jpeg", headers=_CACHED)

    def image(self, request: Request, one: DatasetView, row: int) -> Response:
        """Send a stored image."""
        name = request.path_params["name"]
        if name not in one.dataset.images:
            return _missing()
        try:
            found = one.dataset.stored(row, name)
        except CodecError:
            return _broken()
        return Response(found.data, media_type=found.media_type, headers=_CACHED)

    def rejects(self, request: Request, one: DatasetView) -> Response:
        """Show rejected items, damaged items, or frames without a sample."""
        page = Query.of(request).page
        kind = request.query_params.get("kind", "item")
        lines, more = one.reject_lines(kind, page)
        return self._page("rejects.html", request, report=one.rejects, lines=lines, kind=kind, page=page, more=more)

    def reject_image(self, request: Request, one: DatasetView) -> Response:
        """Send a frame of an item in ``rejects.jsonl``: the requested frame, or the first."""
        try:
            found = one.reject_frame(request.path_params["line"], request.path_params.get("frame"))
        except ItemError:
            return _broken()
        return _missing() if found is None else Response(found, media_type="image/jpeg", headers=_CACHED)

    @cached_property
    def _shared(self) -> list[str]:
        return list(find_shared([one.dataset for one in self._views]))

    def _base(self, request: Request) -> str:
        return f"{self._root}/{request.path_params['number']}"

    def _page(self, template: str, request: Request, status: int = 200, **values: Any) -> Response:
        if "number" in request.path_params:
            one = self._views[request.path_params["number"]]
            image = one.dataset.picture
            values |= {"base": self._base(request), "name": one.name, "several": len(self._views) > 1}
            values |= {
                "title": one.name,
                "has_rejects": one.has_rejects,
                "has_duplicates": self._duplicates is not None,
            }
            values |= {"field_name": None if image is None else image.name, "images": one.dataset.images}
            values |= {"total": len(one.dataset), "has_originals": one.originals is not None}
        text = render(template, root=self._root, live=True, **values)
        return HTMLResponse(text.encode("utf-8", "replace"), status, headers=_NOT_CACHED)

    def _endpoint(self, page: Callable[..., Response]) -> Callable[[Request], Awaitable[Response]]:
        """Run a page in a thread. A missing dataset or row, or a failure to read it, is answered with one line."""

        def answer(request: Request) -> Response:
            given: list[Any] = [request]
            if "number" in request.path_params:
                given.append(self._views[request.path_params["number"]])
            if "row" in request.path_params:
                given.append(request.path_params["row"])
                if given[-1] >= len(given[1].dataset):
                    return _missing()
            return page(*given)

        async def endpoint(request: Request) -> Response:
            try:
                return await run_in_threadpool(answer, request)
            except LookupError:
                return _missing()
            except (ShardspecError, MemoryError) as error:
                return PlainTextResponse(printable(f"{error}\n"), 422)
            except OSError as error:
                return PlainTextResponse(printable(f"{system_reason(error)}\n"), 500)

        return endpoint


def _broken() -> Response:
    """Return a placeholder for an image that does not decode."""
    return Response(_BROKEN, media_type="image/svg+xml", headers=_NOT_CACHED)


def _missing() -> Response:
    return PlainTextResponse("not found\n", 404)
