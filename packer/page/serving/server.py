"""The server of `packer view`: what there is to ask for, and what is said if it cannot be had."""

from collections.abc import Awaitable, Callable, Collection

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from packer.packed.shown.background import NotReadyError
from packer.page.cards import shown_text
from packer.page.rendering import static
from packer.page.serving.dataset_pages import DatasetPages
from packer.page.serving.replies import Page, Pages, Replies, missing
from packer.page.serving.shown import Shown
from shardspec.errors import ShardspecError

_STATIC = {"page.css": "text/css", "page.js": "text/javascript"}


def make_app(shown: Shown, token: str) -> Starlette:
    """The application that answers requests.

    Parameters
    ----------
    shown : Shown
    token : str
        First part of every path.
    """
    replies = Replies(f"/{token}", shown)
    common, datasets = _CommonPages(shown, replies), DatasetPages(shown, replies)
    pages = {**common.routes, **datasets.routes}
    parts = {common.faults, *datasets.parts}
    return Starlette(
        routes=[Route(replies.root + path, _endpoint(page, replies, parts)) for path, page in pages.items()]
    )


class _CommonPages(Pages):
    """Pages that belong to no single dataset."""

    def __init__(self, shown: Shown, replies: Replies) -> None:
        super().__init__(shown, replies)
        self.routes = {"/": self.start, "/static/{name}": self.file, "/faults": self.faults}

    def start(self, request: Request) -> Response:
        """All datasets; of one, its samples."""
        if len(self._shown) == 1:
            return RedirectResponse(f"{self._replies.root}/0/")
        datasets = [one.about for one in self._shown]
        return self._replies.page("start.html", request, title="datasets", datasets=datasets)

    def file(self, request: Request) -> Response:
        """The style sheet and the script."""
        name = request.path_params["name"]
        if name not in _STATIC:
            return missing()
        return Response(static(name), media_type=_STATIC[name], headers={"cache-control": "no-cache"})

    def faults(self, request: Request) -> Response:
        """Return the warnings about several datasets, as a part of a page."""
        return self._replies.part("faults.html", request, faults=self._shown.shared_faults())


def _endpoint(page: Page, replies: Replies, parts: Collection[Page]) -> Callable[[Request], Awaitable[Response]]:
    """A page that is made in a thread of its own; what is not there, or cannot be read, is said in a line."""

    async def answer(request: Request) -> Response:
        try:
            return await run_in_threadpool(page, request)
        except NotReadyError as unready:
            return replies.waiting(request, unready.job, is_part=page in parts)
        except LookupError:
            return missing()
        except (ShardspecError, MemoryError) as error:
            return PlainTextResponse(shown_text(f"{error}\n"), 422)

    return answer
