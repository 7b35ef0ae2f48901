"""Pages of a dataset: the grid, a sample, its fields, its rejects."""

from collections.abc import Iterator

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from packer.packed.browse.selection import Selection
from packer.page.cards import shown_text
from packer.page.counts import Bar, spread
from packer.page.dataset_view import DatasetView
from packer.page.serving.datasets import ViewedDatasets
from packer.page.serving.query import Query
from packer.page.serving.replies import KEPT, Pages, Replies, broken, missing
from shardspec.errors import CodecError, ItemError, ShardspecError

PAGE_SAMPLES = 100


class DatasetPages(Pages):
    """The pages of datasets."""

    def __init__(self, views: ViewedDatasets, replies: Replies) -> None:
        super().__init__(views, replies)
        self.routes = {
            "/{number:int}/": self.samples,
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
            "/{number:int}/rejects": self.rejects,
            "/{number:int}/rejects/{line:int}.jpg": self.reject_picture,
            "/{number:int}/rejects/{line:int}/{frame:int}.jpg": self.reject_picture,
        }

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
        return self._replies.page(
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

    def about(self, request: Request) -> Response:
        """Return the page about content and origin."""
        one = self._one(request)
        return self._replies.page("about.html", request, one, dataset=one.about)

    def faults(self, request: Request) -> Response:
        """Return the warnings, as a part of a page."""
        faults = [*self._views.shared_faults(), *self._one(request).faults]
        return self._replies.part("faults.html", request, faults=faults)

    def field(self, request: Request) -> Response:
        """The spread of a field, as a part of a page."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        name = request.path_params["name"]
        if name not in one.dataset.small_fields:
            return missing()
        selection = one.dataset.select(query.where) if query.where else None
        base = f"{self._replies.base(request)}/"

        def link(bar: Bar, _place: int) -> Markup:
            address, there = query.narrowed(bar.where, name)
            return Markup('a href="{}{}" class="{}"').format(base, address, "value on" if there else "value")

        found = spread(one.dataset, name, selection)
        return self._replies.page("field.html", request, one, field=found, link=link, live=True)

    def keys(self, request: Request) -> Response:
        """The keys of the selected samples, one a line, in the order shown."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        selection = one.dataset.select(query.where, query.sort)

        def lines() -> Iterator[bytes]:
            for keys in one.dataset.keys(selection):
                yield b"".join(key.encode("utf-8", "surrogateescape") + b"\n" for key in keys)

        headers = {"content-disposition": 'attachment; filename="keys.txt"'}
        return StreamingResponse(lines(), media_type="text/plain; charset=utf-8", headers=headers)

    def find(self, request: Request) -> Response:
        """The sample with a key."""
        row = self._one(request).dataset.find(request.query_params.get("key", ""))
        if row is None:
            return PlainTextResponse("no sample has this key\n", 404)
        return RedirectResponse(f"{self._replies.base(request)}/row/{row}")

    def sample(self, request: Request) -> Response:
        """One sample."""
        one, row = self._row(request)
        query = Query.of(request, one.sort)
        before, after = one.beside(row, query.where, query.sort)
        return self._replies.page(
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
        one, row = self._row(request)
        neighbours = one.track(row)
        return self._replies.page(
            "track.html",
            request,
            one,
            cards=one.cards(neighbours),
            row=row,
            pause=one.pause_ms(neighbours),
            in_track="track" in one.dataset.schema,
        )

    def original(self, request: Request) -> Response:
        """The frame that a sample was cut from, with its box, as a part of a page."""
        one, row = self._row(request)
        found, error = None, ""
        try:
            found = one.original(row)
        except ItemError as wrong:
            error = shown_text(str(wrong))
        return self._replies.page("original.html", request, one, row=row, found=found, error=error)

    def original_picture(self, request: Request) -> Response:
        """The picture of `original`."""
        one, row = self._row(request)
        return Response(one.original(row).jpeg, media_type="image/jpeg", headers=KEPT)

    def picture(self, request: Request) -> Response:
        """A stored picture."""
        one, row = self._row(request)
        name = request.path_params["name"]
        if name not in one.dataset.pictures:
            return missing()
        try:
            found = one.dataset.stored(row, name)
        except CodecError:
            return broken()
        return Response(found.data, media_type=found.media_type, headers=KEPT)

    def rejects(self, request: Request) -> Response:
        """Rejected items, damaged ones, and frames without a sample."""
        one = self._one(request)
        query = Query.of(request, one.sort)
        kind = request.query_params.get("kind", "item")
        lines, more = one.reject_lines(kind, query.page)
        return self._replies.page(
            "rejects.html", request, one, report=one.rejects, lines=lines, kind=kind, page=query.page, more=more
        )

    def reject_picture(self, request: Request) -> Response:
        """A frame of an item that ``rejects.jsonl`` names, the first one if none is asked for."""
        one = self._one(request)
        try:
            found = one.reject_frame(request.path_params["line"], request.path_params.get("frame"))
        except ItemError:
            return broken()
        return missing() if found is None else Response(found, media_type="image/jpeg", headers=KEPT)

    def _one(self, request: Request) -> DatasetView:
        return self._views[request.path_params["number"]]

    def _row(self, request: Request) -> tuple[DatasetView, int]:
        """The dataset and the row that are asked for. `LookupError` if there is no such row."""
        one, row = self._one(request), request.path_params["row"]
        if not 0 <= row < len(one.dataset):
            raise LookupError(row)
        return one, row
