"""Access control of the server of `packer view`."""

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from packer.page.rendering import POLICY
from shardspec.wording import program

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_LONGEST_QUERY = 12_000
"""Bytes."""


class Guard:
    """Answers only read requests with the token, to an address of this machine.

    A page of another site whose name resolves to this machine (DNS rebinding) sends that name as ``Host``, and is
    refused.

    Parameters
    ----------
    token : str
        First part of every path.
    host : str
        Another name of this machine, besides its addresses and ``localhost``.
    """

    def __init__(self, app: Starlette, token: str, host: str) -> None:
        self._app = app
        self._token = token
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"expected http, found {scope['type']}")
        refused = self._refuse(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def send_safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((n.encode(), v.encode()) for n, v in _HEADERS.items())]
            await send(message)

        await self._app(scope, receive, send_safely)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if not self._is_ours(headers.get(b"host", b"").decode("latin-1")):
            return PlainTextResponse("unknown host\n", 421, _HEADERS)
        token = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return PlainTextResponse(f"expected the whole address that {program()} view has printed\n", 403, _HEADERS)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET\n", 405, {**_HEADERS, "allow": "GET, HEAD"})
        if len(scope["query_string"]) > _LONGEST_QUERY:
            return PlainTextResponse("the query is too long\n", 414, _HEADERS)
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if name.lower() in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
