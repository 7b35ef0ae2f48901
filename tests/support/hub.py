"""A server on loopback with the endpoints of the Hugging Face Hub that huggingface_hub calls for a dataset.

Its large files are on another host, as the real ones are, and requests to any other host go to it as to a proxy, which
refuses and remembers them.
"""

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from support.command import environment
from support.loopback import Handler, serving_state

TOKEN = "hf_secret"
_LARGE = 200
"""Bytes from which a file is a large one."""


@dataclass
class FakeHub:
    """A running server.

    Attributes
    ----------
    repositories : dict
        The files of each commit of each dataset, the newest last.
    private : set of str
        Datasets that were made as private ones.
    blobs : dict
        Contents of large files by SHA-256.
    requests : list of str
        ``METHOD path`` of every request.
    outside : list of str
        Requests to other hosts.
    failing : dict
        Status to answer with, by pattern of a request.
    passing : list of (int, dict)
        Statuses and headers of the next answers of the API; 0 for a connection that ends without one.
    """

    address: str = ""
    repositories: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)
    passing: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a client. The proxy catches what would go to any other host."""
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.address)
        proxies |= {name.lower(): value for name, value in proxies.items()}
        hosts = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
        own = {"HF_ENDPOINT": self.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        return environment() | proxies | hosts | own

    def newest(self, name: str) -> Mapping[str, bytes]:
        """The files of the newest commit of a dataset."""
        return self.repositories[name][-1]


@contextmanager
def serving_hub() -> Iterator[FakeHub]:
    """Run a server until the end of the block."""
    with serving_state(FakeHub(), _Handler) as hub:
        yield hub


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(Handler):
    state: FakeHub

    def do_GET(self) -> None:  # noqa: N802 -- the server calls it
        self._answer()

    do_HEAD = do_POST = do_PUT = do_CONNECT = do_GET  # noqa: N815

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        request = f"{self.command} {unquote(self.path)}"
        if self.command == "CONNECT" or not self.path.startswith("/"):
            self.state.outside.append(request)
            return self._send(502)
        self.state.requests.append(request)
        if self.state.passing and "/api/" in request:
            status, headers = self.state.passing.pop(0)
            if status:
                return self._send(status, **headers)
            self.close_connection = True
            return None
        for pattern, status in self.state.failing.items():
            if re.search(pattern, request):
                return self._send(status)
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/cdn/(\w+)", path):
            assert "authorization" not in self.headers, "the token must not leave the Hub"
            return self._send_file(self.state.blobs[found[1]])
        if found := re.fullmatch(r"/lfs/(\w+)", path):
            assert _sha(body) == found[1]
            self.state.blobs[found[1]] = body
            return self._send(200)
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self._missing("RepoNotFound", 401)
        if path == "/api/validate-yaml":
            return self._send(200, {})
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}"
            assert given["type"] == "dataset"
            self.state.repositories[name] = [{".gitattributes": b"*.npy filter=lfs"}]
            if given.get("visibility") == "private":
                self.state.private.add(name)
            return self._send(200, {"url": f"{self.state.address}/datasets/{name}"})
        if found := re.fullmatch(r"(?:/api)?/datasets/([\w.-]+/[\w-]+(?:\.[\w-]+)*?)(?:\.git)?(/.*)", path):
            return self._of_repository(found[1], found[2], body)
        return self._send(404)

    def _of_repository(self, name: str, path: str, body: bytes) -> None:
        commits = self.state.repositories.get(name)
        if commits is None:
            return self._missing("RepoNotFound")
        if path == "/info/lfs/objects/batch":
            return self._send(200, {"objects": [self._upload(one) for one in json.loads(body)["objects"]]})
        found = re.fullmatch(r"/([\w-]+)/([^/]+)/?(.*)", path)
        assert found is not None, path
        action, revision, rest = found.groups()
        heads = [f"{number:040x}" for number in range(len(commits))]
        if revision != "main" and revision not in heads:
            return self._missing("RevisionNotFound")
        files = commits[-1 if revision == "main" else heads.index(revision)]
        if action == "revision":
            return self._send(200, {"_id": "1", "id": name, "sha": heads[-1], "private": False, "tags": []})
        if action == "tree":
            inside = [one for one in files if one.startswith(f"{rest}/" if rest else "")]
            return self._send(200, [self._describe(one, files[one]) for one in inside])
        if action == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else re.findall(r"paths=([^&]*)", body.decode())
            known = [unquote(one) for one in asked]
            return self._send(200, [self._describe(one, files[one]) for one in known if one in files])
        if action == "resolve":
            if rest not in files:
                return self._missing("EntryNotFound")
            if len(files[rest]) < _LARGE:
                return self._send_file(files[rest])
            self.state.blobs[_sha(files[rest])] = files[rest]
            other = self.state.address.replace("127.0.0.1", "localhost")
            return self._send(302, location=f"{other}/cdn/{_sha(files[rest])}")
        if action == "preupload":
            return self._send(200, {"files": [self._mode(one, files) for one in json.loads(body)["files"]]})
        assert action == "commit", path
        return self._commit(commits, [json.loads(line) for line in body.splitlines()])

    def _commit(self, commits: list[dict[str, bytes]], lines: list[dict[str, Any]]) -> None:
        files = dict(commits[-1])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                if value.get("parentCommit") not in (None, f"{len(commits) - 1:040x}"):
                    return self._send(412)
            elif line["key"] == "file":
                files[value["path"]] = b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.state.blobs[value["oid"]]
            else:
                assert line["key"] == "deletedFile"
                del files[value["path"]]
        commits.append(files)
        return self._send(
            200, {"commitUrl": f"{self.state.address}/datasets/a/b/commit/1", "commitOid": f"{len(commits) - 1:040x}"}
        )

    def _describe(self, path: str, data: bytes) -> dict[str, Any]:
        lfs = {"lfs": {"oid": _sha(data), "size": len(data), "pointerSize": 130}} if len(data) >= _LARGE else {}
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return {"type": "file", "path": path, "size": len(data), "oid": oid, **lfs}

    def _mode(self, given: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
        mode = "lfs" if given["size"] >= _LARGE else "regular"
        return {"path": given["path"], "uploadMode": mode, "shouldIgnore": False}

    def _upload(self, given: Mapping[str, Any]) -> dict[str, Any]:
        actions = {"actions": {"upload": {"href": f"{self.state.address}/lfs/{given['oid']}"}}}
        return {**given, **({} if given["oid"] in self.state.blobs else actions)}

    def _missing(self, code: str, status: int = 404) -> None:
        self._send(status, {"error": code}, **{"X-Error-Code": code})

    def _send_file(self, data: bytes) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if found is None:
            return self._send(200, data)
        start, stop = int(found[1]), min(int(found[2] or len(data)) + 1, len(data))
        return self._send(206, data[start:stop], **{"content-range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _send(self, status: int, content: Any = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not isinstance(content, bytes):
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
