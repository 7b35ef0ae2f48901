"""The server of `packer view`: what there is to ask for, and what is said if it cannot be had."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from packer.page.cards import shown_text
from packer.page.rendering import static
from packer.page.serving.dataset_pages import DatasetPages
from packer.page.serving.datasets import ViewedDatasets
from packer.page.serving.replies import Page, Pages, Replies, missing
from shardspec.errors import ShardspecError

_STATIC = {"page.css": "text/css", "page.js": "text/javascript"}


def make_app(views: ViewedDatasets, token: str) -> Starlette:
    """The application that answers requests.

    Parameters
    ----------
    views : ViewedDatasets
    token : str
        First part of every path.
    """
    replies = Replies(f"/{token}", views)
    common, datasets = _CommonPages(views, replies), DatasetPages(views, replies)
    pages = {**common.routes, **datasets.routes}
    return Starlette(routes=[Route(replies.root + path, _endpoint(page)) for path, page in pages.items()])


class _CommonPages(Pages):
    """Pages that belong to no single dataset."""

    def __init__(self, views: ViewedDatasets, replies: Replies) -> None:
        super().__init__(views, replies)
        self.routes = {"/": self.start, "/static/{name}": self.file, "/faults": self.faults}

    def start(self, request: Request) -> Response:
        """All datasets; of one, its samples."""
        if len(self._views) == 1:
            return RedirectResponse(f"{self._replies.root}/0/")
        datasets = [one.about for one in self._views]
        return self._replies.page("start.html", request, title="datasets", datasets=datasets)

    def file(self, request: Request) -> Response:
        """The style sheet and the script."""
        name = request.path_params["name"]
        if name not in _STATIC:
            return missing()
        return Response(static(name), media_type=_STATIC[name], headers={"cache-control": "no-cache"})

    def faults(self, request: Request) -> Response:
        """Return the warnings about several datasets, as a part of a page."""
        return self._replies.part("faults.html", request, faults=self._views.shared_faults())


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    """A page that is made in a thread of its own; what is not there, or cannot be read, is said in a line."""

    async def answer(request: Request) -> Response:
        try:
            return await run_in_threadpool(page, request)
        except LookupError:
            return missing()
        except (ShardspecError, MemoryError) as error:
            return PlainTextResponse(shown_text(f"{error}\n"), 422)

    return answer
