"""Pages of a build while it runs."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from packer.page.building import Building
from packer.page.looking import Looking
from packer.page.serving.replies import NOT_KEPT, Pages, Replies, broken, missing
from packer.page.serving.shown import Shown
from shardspec.errors import ItemError


class BuildPages(Pages):
    """The pages of builds."""

    def __init__(self, shown: Shown, replies: Replies) -> None:
        super().__init__(shown, replies)
        self.routes = {
            "/{number:int}/build": self.build,
            "/{number:int}/build/state": self.state,
            "/{number:int}/build/samples/{task:int}/{row:int}": self.picture,
            "/{number:int}/build/rejects/{task:int}/{row:int}.jpg": self.reject,
        }

    def build(self, request: Request) -> Response:
        """A build as it is now; the page looks again by itself."""
        one = self._shown[request.path_params["number"]]
        if _is_over(one):
            return RedirectResponse(f"{self._replies.base(request)}/")
        return self._replies.part("build.html", request, name=one.name, title=one.name, several=len(self._shown) > 1)

    def state(self, request: Request) -> Response:
        """The state of a build, as a part of a page."""
        number = request.path_params["number"]
        one = self._shown[number]
        if _is_over(one):
            return self._replies.part("finished.html", request, name=one.name)
        if reason := self._shown.why_refused(number):
            return self._replies.part("refused.html", request, reason=reason)
        build = self._shown.build(number)
        return self._replies.part("state.html", request, state=build.state(), samples=build.samples())

    def picture(self, request: Request) -> Response:
        """The picture of a sample that a build has packed."""
        asked = request.path_params
        found = self._shown.build(asked["number"]).picture(asked["task"], asked["row"])
        return missing() if found is None else Response(found.data, media_type=found.media_type, headers=NOT_KEPT)

    def reject(self, request: Request) -> Response:
        """The first frame of an item that a build has rejected."""
        asked = request.path_params
        try:
            found = self._shown.build(asked["number"]).reject_picture(asked["task"], asked["row"])
        except ItemError:
            return broken()
        return missing() if found is None else Response(found, media_type="image/jpeg", headers=NOT_KEPT)


def _is_over(one: Looking | Building) -> bool:
    """Whether there is a dataset, and no build any more."""
    return isinstance(one, Looking) and not Building(one.dataset.path).is_there
