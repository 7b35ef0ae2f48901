"""``packer view``: show packed datasets in the browser, from a server with access control on this machine."""

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from packer.analysis.duplicates.result import Duplicates
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.packed.browse.dataset import BrowsedDataset
from packer.page.dataset_view import DatasetView
from packer.page.groups import find_duplicates
from packer.page.rendering import POLICY
from packer.page.server import Pages
from packer.recipe.checks import checked
from packer.sources.stores.packed import partial_folder
from shardspec.errors import UsageError
from shardspec.wording import program

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8017
_TOKEN_BYTES = 16
_GRACE_S = 1
_LOOK_S = 1.0

_CONNECTIONS = 32
"""Open connections above which waiting ones are closed. A browser opens six."""
_AT_ONCE = 16
"""Connections that are accepted at a time. Three times as many may be open before the first of them is counted."""

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_LONGEST_QUERY = 12_000
"""Maximum length of a query in bytes."""


class Guard:
    """Answers a request only if it reads, has the token, and is sent to an address of this machine.

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

        async def send_safely(message: Message) -> None:
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


def make_app(views: Sequence[DatasetView], token: str, host: str, duplicates: Duplicates | None = None) -> Guard:
    """Return the application that answers requests.

    Parameters
    ----------
    views : sequence of DatasetView
        The datasets to show. Addresses refer to datasets by number.
    token : str
        First part of every path.
    host : str
        Another name of this machine (`Guard`).
    duplicates : Duplicates, optional
        Of these datasets, to show on a page.
    """
    return Guard(Starlette(routes=Pages(views, f"/{token}", duplicates).routes()), token, host)


class _Connection(H11Protocol):
    """A connection, which is closed if it waits for a request and many newer ones are open.

    The server has no time limit for a first request, so unused connections would take all file descriptors.
    """

    _numbers = count()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._number = next(self._numbers)
        if len(self.connections) > _CONNECTIONS:
            waiting = [one for one in self.connections if isinstance(one, _Connection) and one._is_waiting()]
            if waiting:
                min(waiting, key=lambda one: one._number).shutdown()

    def _is_waiting(self) -> bool:
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)


class Viewer(Result):
    """A server of pages, in a separate thread. Use as a context manager, or call `close`.

    Parameters
    ----------
    listener : socket
        Closed at the end.

    Attributes
    ----------
    address : str
        The address to open in a browser.
    """

    def __init__(self, app: Guard, listener: socket.socket, token: str) -> None:
        host, port = listener.getsockname()[:2]
        self.address = f"http://{_bracketed(host)}:{port}/{token}/"
        self._listener = listener
        settings = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            http=_Connection,
            backlog=_AT_ONCE,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="packer view", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until `close` is called, or raise `KeyboardInterrupt` on Ctrl-C."""
        try:
            while self._thread.is_alive():
                self._thread.join(_LOOK_S)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server. May be called twice."""
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def describe(self) -> str:
        """Return the address."""
        return self.address

    def to_json(self) -> dict[str, Any]:
        """Return the address as JSON."""
        return {"address": self.address}


def view(
    datasets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    source: str | os.PathLike[str] | None = None,
    table: str | os.PathLike[str] | None = None,
    duplicates: bool = False,
    host: str = LOOPBACK,
    port: int | None = None,
    progress: bool | ProgressListener = True,
) -> Viewer:
    """Serve pages that show packed datasets, in a thread of this process, to anyone who knows the address.

    Parameters
    ----------
    datasets : path or sequence of path
        Packed datasets. `packer.status` shows the progress of a build.
    source : path, optional
        The folder or archive that the dataset was packed from, to show whole frames with their boxes, and rejected
        items.
    table : path, optional
        CSV, TSV, JSON lines or Parquet with a column ``key``: its other columns are shown as further fields. With a
        column ``loss``, or ``prediction`` (a class, compared with ``label``), the worst samples come first.
    duplicates : bool
        Whether to search for samples that look the same (`packer.duplicates`), and show their groups side by side.
    host : str
        The address to listen on. With any other than this machine's own, other hosts can connect if they know the
        whole address.
    port : int, optional
        By default 8017, or any free port if it is taken; 0 chooses a free port.
    progress : bool or ProgressListener
        Whether to print remarks on the address to standard error, or the listener to receive them.

    Returns
    -------
    Viewer

    Raises
    ------
    UsageError
        If an argument is invalid, or the port is taken.
    DatasetError
        If a dataset cannot be read.
    """
    given = [datasets] if isinstance(datasets, str | os.PathLike) else datasets
    paths = [partial_folder(path, "datasets") for path in given]
    if not paths:
        raise UsageError(expected="a packed dataset or several", found="none")
    listener = listener_of(progress)
    folder, joined = (None if path is None else Path(path) for path in (source, table))
    views = [DatasetView(BrowsedDataset(path, joined), folder) for path in paths]
    found = find_duplicates(given, listener) if checked("duplicates", duplicates, bool) else None
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    listening = _listen(host, port)
    for line in describe_address(listening.getsockname()[:2], os.environ.get("SSH_CONNECTION", "")):
        listener.on_message(line)
    return Viewer(make_app(views, token, host, found), listening, token)


def describe_address(address: tuple[str, int], ssh: str = "") -> list[str]:
    """Describe an address, with the command of a tunnel over SSH, or a warning if other hosts can connect.

    Parameters
    ----------
    address : (str, int)
        Host and port of the listening socket.
    ssh : str
        ``SSH_CONNECTION``: the addresses and ports of the client and of this machine.
    """
    host, port = address
    lines, parts = [], ssh.split()
    if host not in (LOOPBACK, "::1"):
        lines.append(f"{program()} view: listening on {host}: anyone with the address sees everything, unencrypted")
    elif len(parts) == 4:
        lines.append(
            f"{program()} view: on your own machine run: ssh -L {port}:{_bracketed(host)}:{port} {parts[2]}, and open the "
            "address there"
        )
    return [*lines, f"{program()} view: open this address in a browser; Ctrl-C stops the server:"]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; if the default port is taken, on any free port."""
    port = checked("port", port, int | None)
    if port is not None and not 0 <= port < 1 << 16:
        raise UsageError(option="port", expected="0 to 65535", found=port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, DEFAULT_PORT if port is None else port), family=family)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _listen(host, 0)
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
        asked = DEFAULT_PORT if port is None else port
        raise UsageError(f"cannot listen: {reason}", place=f"host {host}, port {asked}") from error
