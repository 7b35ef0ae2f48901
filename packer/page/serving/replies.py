"""Answers to requests: filled templates, pictures, and what is said in place of what is not there."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from packer.page.dataset_view import DatasetView
from packer.page.rendering import render, templates
from packer.page.serving.datasets import ViewedDatasets

Page = Callable[[Request], Response]
"""Makes the answer to a request."""

KEPT = {"cache-control": "private, max-age=3600"}
NOT_KEPT = {"cache-control": "no-store"}
"""Pages are not cached: the dataset may grow, and the user may repair a file that did not decode."""

_BROKEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 120"><rect width="120" height="120" fill="#20262d"/>'
    '<text x="60" y="64" font-size="13" font-family="sans-serif" fill="#c9d1d9" text-anchor="middle">does not decode'
    "</text></svg>"
)


class Replies:
    """Answers with the templates of the pages.

    Parameters
    ----------
    root : str
        The first part of every path, with its slash.
    views : ViewedDatasets
    """

    def __init__(self, root: str, views: ViewedDatasets) -> None:
        self.root = root
        self._views = views
        for name in templates().list_templates():  # which takes as long as the first page
            templates().get_template(name)

    def base(self, request: Request) -> str:
        """The first parts of the paths of the requested dataset."""
        number = request.path_params.get("number")
        return self.root if number is None else f"{self.root}/{number}"

    def page(
        self, template: str, request: Request, one: DatasetView | None = None, status: int = 200, **values: Any
    ) -> Response:
        """A page; of a dataset, with what all its pages show."""
        if one is not None:
            picture = one.dataset.picture
            values |= {"base": self.base(request), "name": one.name, "several": len(self._views) > 1}
            values |= {"title": one.name, "has_rejects": one.has_rejects}
            values |= {"field_name": None if picture is None else picture.name, "pictures": one.dataset.pictures}
            values |= {"total": len(one.dataset), "has_originals": one.originals is not None}
        return self._filled(template, status, path=request.url.path, **{"live": True, **values})

    def part(self, template: str, request: Request, **values: Any) -> Response:
        """A part of a page, or a page that is filled by parts."""
        return self._filled(template, 200, base=self.base(request), live=True, **values)

    def _filled(self, template: str, status: int, **values: Any) -> Response:
        text = render(template, root=self.root, **values)
        return HTMLResponse(text.encode("utf-8", "replace"), status, headers=NOT_KEPT)


class Pages:
    """Pages of one kind.

    Parameters
    ----------
    views : ViewedDatasets
    replies : Replies

    Attributes
    ----------
    routes : mapping of str to callable
        The pages, by path.
    """

    routes: Mapping[str, Page]

    def __init__(self, views: ViewedDatasets, replies: Replies) -> None:
        self._views = views
        self._replies = replies


def broken() -> Response:
    """A picture in the place of one that does not decode."""
    return Response(_BROKEN, media_type="image/svg+xml", headers=NOT_KEPT)


def missing() -> Response:
    """Nothing lies at this address."""
    return PlainTextResponse("there is nothing here\n", 404)
