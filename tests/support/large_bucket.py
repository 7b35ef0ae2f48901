"""A server on loopback that answers as S3 for any number of objects, none of which exists anywhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import DEVNULL, PIPE, Popen
from urllib.parse import parse_qs, urlsplit

_PAGE = 1000
_FOLDERS = 100
_CONTENT = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    '<ETag>"{:032x}"</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>'
)


@contextmanager
def large_bucket() -> Iterator[dict[str, str]]:
    """Run the server, and yield the environment of its clients. ``s3://data/N`` and ``s3://data/N-flat`` have N images."""
    with Popen([sys.executable, __file__], stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
            yield {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(process.stdout.readline())}"}
        finally:
            process.kill()


@lru_cache(maxsize=10_000)
def _page(prefix: str, start: int) -> bytes:
    name, _, kind = prefix.strip("/").partition("-")
    most = int(name)
    per_folder = -(-most // (1 if kind else _FOLDERS))
    numbers = range(start, min(most, start + _PAGE))
    found = (
        _CONTENT.format(f"{prefix}class-{number // per_folder:03d}/{number:08d}.jpg", number, 1000 + number % 1000)
        for number in numbers
    )
    more = start + _PAGE < most
    token = f"<NextContinuationToken>{start + _PAGE}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>data</Name><KeyCount>{len(numbers)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(found)}</ListBucketResult>"
    ).encode()


class _Bucket(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        body = _page(query["prefix"][0], int(query.get("continuation-token", ["0"])[0])) if "prefix" in query else b""
        self.send_response(200 if body else 404)
        self.send_header("content-type", "application/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bucket)
    print(server.server_port, flush=True)
    server.serve_forever()
