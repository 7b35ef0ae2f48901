"""A server of objects on loopback, in this process, with the headers that a test chooses."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from support.loopback import Handler, serving_state


@dataclass
class ObjectServer:
    """A running server. It answers HEAD and GET, with ranges, for every path that ends in the name of an object.

    Attributes
    ----------
    objects : dict of str to bytes
    headers : dict of str to str
        Sent with every object.
    etags : list of str
        Sent in turn, as by servers behind one address. By default, the MD5 of the content.
    flips : int
        Number of whole answers whose last byte is still to be changed.
    cuts : int
        Number of answers to GET that are still to end in the middle.
    answers : list of (int, dict)
        Statuses and headers of the next answers, with the content that a header "body" has.
    seen : list of (str, dict)
        ``METHOD path`` and headers of each request.
    ranges : bool
        Whether ranges are sent. If not, the whole content is sent in their place.
    sent : int
        Number of bytes of all answers to GET.
    on_get : callable, optional
        Called before each answer to GET.
    """

    address: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    etags: list[str] = field(default_factory=list)
    flips: int = 0
    cuts: int = 0
    answers: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    seen: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    ranges: bool = True
    sent: int = 0
    on_get: Callable[[], None] | None = None

    def count(self, method: str) -> int:
        """Number of requests of a method."""
        return sum(request.startswith(f"{method} ") for request, _ in self.seen)


@contextmanager
def serving_objects() -> Iterator[ObjectServer]:
    """Run a server until the end of the block."""
    with serving_state(ObjectServer(), _Handler) as found:
        yield found


class _Handler(Handler):
    state: ObjectServer

    def do_GET(self) -> None:  # noqa: N802 -- the server calls it
        state = self.state
        state.seen.append((f"{self.command} {self.path}", dict(self.headers)))
        if self.command == "GET" and state.on_get is not None:
            state.on_get()
        if state.answers:
            status, headers = state.answers.pop(0)
            return self._send(status, headers.get("body", "").encode(), headers)
        path = unquote(urlsplit(self.path).path)
        data = next((data for name, data in state.objects.items() if path.endswith(f"/{name}")), None)
        if data is None:
            return self._send(404, b"", {})
        etag = hashlib.md5(data).hexdigest()
        if state.etags:
            state.etags.append(etag := state.etags.pop(0))
        headers = {"etag": f'"{etag}"', "last-modified": "Tue, 15 Nov 1994 12:45:26 GMT", **state.headers}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if span is not None and int(span[1]) >= len(data):
            return self._send(416, b"", {})
        if span is not None and state.ranges:
            start, stop = int(span[1]), min(int(span[2] or len(data)) + 1, len(data))
            part = {"content-range": f"bytes {start}-{stop - 1}/{len(data)}"}
            return self._send(206, data[start:stop], {**headers, **part})
        if self.command == "GET" and state.flips:
            state.flips -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        return self._send(200, data, headers)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: int, data: bytes, headers: Mapping[str, Any]) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.state.sent += len(data)
            if self.state.cuts and status < 400:
                self.state.cuts -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            with suppress(BrokenPipeError, ConnectionResetError):  # a client may have enough
                self.wfile.write(data)
