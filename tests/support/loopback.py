"""HTTP servers on loopback in this process, for tests that choose every answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar


class Addressed(Protocol):
    """State of a server, with its address."""

    address: str


T = TypeVar("T", bound=Addressed)


class Handler(BaseHTTPRequestHandler):
    """Answers requests from the server's `state`, and prints nothing."""

    state: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving_state(state: T, handler: type[Handler]) -> Iterator[T]:
    """Run a server until the end of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("StatefulHandler", (handler,), {"state": state})) as server:
        server.daemon_threads = True
        state.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
