"""An S3 server on loopback (moto), in a separate process, that fails on request."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from support.command import environment

BUCKET = "data"
_FAULTS = "/_faults"
_HANGS_S = 30


@dataclass(frozen=True)
class StoreServer:
    """A running server with the empty bucket `BUCKET`."""

    address: str

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a client. No client can reach any other endpoint."""
        return environment(**self.variables)

    @property
    def variables(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "sécret-value", "AWS_DEFAULT_REGION": "us-east-1"}
        return {**keys, "AWS_ENDPOINT_URL": self.address}

    def fail(self, *faults: Mapping[str, Any]) -> None:
        """Fail the next requests: each fault is ``{"match": pattern of "METHOD path", "kind": ..., "times": n}``."""
        self._request("POST", _FAULTS, json.dumps(faults).encode())

    def left(self) -> list[int]:
        """Return how often each fault has not happened yet."""
        return [fault["times"] for fault in json.loads(self._request("GET", _FAULTS))]

    def objects(self, prefix: str) -> dict[str, int]:
        """Sizes of the objects below a prefix, without it."""
        answer = self._request("GET", f"/{BUCKET}?list-type=2&prefix={prefix}/").decode()
        names = re.findall(r"<Key>(.*?)</Key>.*?<Size>(\d+)</Size>", answer, re.DOTALL)
        return {name.removeprefix(f"{prefix}/"): int(size) for name, size in names}

    def make_bucket(self, name: str) -> None:
        self._request("PUT", f"/{name}")

    def put(self, name: str, data: bytes) -> None:
        self._request("PUT", f"/{BUCKET}/{name}", data)

    def _request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        with urlopen(
            Request(self.address + path, data, {"content-type": "application/octet-stream"}, method=method), timeout=30
        ) as answer:
            content: bytes = answer.read()
            return content


@contextmanager
def serving() -> Iterator[StoreServer]:
    """Run a server until the end of the block."""
    command = [sys.executable, "-m", "support.stores"]
    env = environment(python_path=Path(__file__).parents[1])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            server = StoreServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
            server.make_bucket(BUCKET)
            yield server
        finally:
            process.kill()


@contextmanager
def web_server(root: Path) -> Iterator[str]:
    """Serve a folder until the end of the block. The server ignores ranges."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[5]}"
        finally:
            process.kill()


def _serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, _Faulty(DomainDispatcherApplication(create_backend_app)), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


class _Faulty:
    """A WSGI application in front of moto that injects faults."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._faults: list[dict[str, Any]] = []
        self._writing = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == _FAULTS:
            if method == "POST":
                self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            start("200 OK", [("content-type", "application/json")])
            return [json.dumps(self._faults).encode()]
        kind = self._next(f"{method} {path}")
        if kind == "501" and not {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys():
            kind = None
        if kind in ("500", "501", "503", "403", "404", "expired"):
            status, code = ("400", "ExpiredToken") if kind == "expired" else (kind, f"Fault{kind}")
            body = f"<Error><Code>{code}</Code></Error>".encode()
            start(f"{status} fault", [("content-type", "application/xml"), ("content-length", str(len(body)))])
            return [body]
        if kind == "hang":
            time.sleep(_HANGS_S)
        if kind in ("reset", "hang"):
            environ["werkzeug.socket"].shutdown(2)
            return []
        if kind == "whole":
            environ.pop("HTTP_RANGE", None)
        if kind == "unconditional":
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._writing if method == "PUT" else nullcontext():  # moto compares and writes in two steps
            answer = self._app(environ, start)
        if kind in (None, "whole", "unconditional"):
            return answer
        body = b"".join(answer)
        if kind == "flip":
            return [body[:-1], bytes([body[-1] ^ 1])]
        if kind == "trickle":
            return _trickle(body)
        assert kind == "cut", kind
        return _cut(environ["werkzeug.socket"], body)

    def _next(self, request: str) -> str | None:
        for fault in self._faults:
            if fault["times"] and re.search(fault["match"], request):
                fault["times"] -= 1
                return str(fault["kind"])
        return None


def _cut(socket: Any, body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    socket.shutdown(2)


def _trickle(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), -(-len(body) // 10)):
        yield body[start : start - (-len(body) // 10)]
        time.sleep(0.3)


if __name__ == "__main__":
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")  # moto asks boto3 for some
    _serve()
