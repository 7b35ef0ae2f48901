"""Stores: every byte of a whole object is compared with what the store knows of it, and settings reach the client."""

import base64
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from botocore.session import Session
from support.errors import raises
from support.objects import ObjectServer, serving_objects
from support.stores import BUCKET, StoreServer

from shardspec.errors import StoreError, UsageError
from shardspec.stores import Store

DATA = bytes(range(256)) * 64
HUGE = os.urandom(1 << 20) * 17
LARGE = HUGE[: 11 << 20]
KEYS = {"access_key_id": "test", "secret_access_key": "secret", "region": "us-east-1"}

pytestmark = pytest.mark.usefixtures("leaks_allowed")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine reach a client, and no client asks a metadata service."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.fixture
def objects() -> Iterator[ObjectServer]:
    with serving_objects() as server:
        yield server


def s3_client(address: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    return Session().create_client("s3", endpoint_url=address, **keys)


def store_of(kind: str, server: ObjectServer) -> Store:
    if kind == "gs":
        return Store("gs://data/set", {"base_url": server.address, "skip_signature": True})
    if kind == "az":
        options = {"endpoint": server.address, "account_name": "me", "account_key": base64.b64encode(b"key").decode()}
        return Store("az://data/set", options)
    return Store("s3://data/set", {"endpoint": server.address, **KEYS})


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


@pytest.mark.parametrize(
    ("kind", "headers", "etag"),
    [
        ("s3", {}, hashlib.md5(DATA).hexdigest()),
        ("gs", {}, hashlib.md5(DATA).hexdigest()),
        ("az", {"content-md5": md5(DATA)}, "0x8D5B0E0E1B2F4C3"),
    ],
)
def test_a_byte_flipped_in_transit_is_detected(
    objects: ObjectServer, tmp_path: Path, kind: str, headers: dict[str, str], etag: str
) -> None:
    objects.objects["a.jpg"], objects.headers, objects.etags = DATA, headers, [etag]
    store, path = store_of(kind, objects), tmp_path / "a.jpg"
    objects.flips = 1
    store.download("a.jpg", path)
    assert path.read_bytes() == DATA
    assert objects.count("GET") == 2
    objects.flips = 2
    with raises(StoreError, place=f"{kind}://data/set/a.jpg"):
        store.download("a.jpg", path)


@pytest.mark.parametrize("kind", ["encrypted", "none"])
def test_an_etag_that_is_not_a_digest_is_not_compared(objects: ObjectServer, tmp_path: Path, kind: str) -> None:
    """The ETag of an object that is encrypted with a customer's key has the form of an MD5."""
    objects.objects["a.jpg"] = DATA
    objects.headers = {"x-amz-server-side-encryption": "aws:kms"} if kind == "encrypted" else {}
    objects.etags = ["0" * 32 if kind == "encrypted" else "v1"]
    store_of("s3", objects).download("a.jpg", tmp_path / "a.jpg")
    assert (tmp_path / "a.jpg").read_bytes() == DATA
    assert objects.count("GET") == 1


@pytest.mark.parametrize("kind", ["parts", "unequal", "misleading", "CRC64NVME", "CRC32C", "CRC32", "SHA256"])
def test_objects_of_several_parts_are_compared(here: StoreServer, tmp_path: Path, kind: str) -> None:
    client, key = s3_client(here.address), f"parts/{kind}.mp4"
    where = {"Bucket": BUCKET, "Key": key}
    sizes = {"parts": (5, 5, 1), "unequal": (5, 6), "misleading": (6, 5, 6)}.get(kind, ())
    data = HUGE[: sum(sizes or (11,)) << 20]
    if sizes:
        upload = client.create_multipart_upload(**where)["UploadId"]
        parts = []
        for number, size in enumerate(sizes, 1):
            start = sum(sizes[: number - 1]) << 20
            body = data[start : start + (size << 20)]
            sent = client.upload_part(**where, PartNumber=number, UploadId=upload, Body=body)
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
    else:
        client.put_object(**where, Body=data, ChecksumAlgorithm=kind, ServerSideEncryption="aws:kms")
    store, path = Store(here.url("parts")), tmp_path / "a.mp4"
    for times in (1, 2):
        here.fail({"match": f"GET .*{kind}", "kind": "flip", "times": times})
        if times == 1:
            store.download(f"{kind}.mp4", path)
            assert path.read_bytes() == data
        else:
            with raises(StoreError):
                store.download(f"{kind}.mp4", path)
        assert here.left() == [0]


def test_servers_that_send_different_etags_do_not_end_a_cut_download(objects: ObjectServer, tmp_path: Path) -> None:
    objects.objects["a.bin"], objects.etags, objects.cuts = LARGE, ["one", "two"], 1
    store = Store(f"{objects.address}/set")
    store.download("a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == LARGE
    for size in (0, len(LARGE)):
        objects.cuts = 3
        assert b"".join(store.chunks("a.bin", size)) == LARGE
    objects.cuts = 1
    assert store.read("a.bin", len(LARGE)) == LARGE


def test_an_object_that_is_replaced_while_it_is_read_is_read_again(objects: ObjectServer, tmp_path: Path) -> None:
    objects.objects["a.bin"], objects.cuts, other = LARGE, 1, LARGE[::-1]

    def replace() -> None:
        objects.objects["a.bin"] = other if objects.count("GET") > 1 else LARGE

    objects.on_get = replace
    store_of("s3", objects).download("a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == other


def requested_keys(objects: ObjectServer) -> list[str]:
    """The access keys of the requests, without repetitions."""
    found = [headers["authorization"].partition("Credential=")[2].partition("/")[0] for _, headers in objects.seen]
    return list(dict.fromkeys(found))


def write_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: str, credentials: str = "") -> None:
    for name, text in {"AWS_CONFIG_FILE": config, "AWS_SHARED_CREDENTIALS_FILE": credentials}.items():
        (tmp_path / name.lower()).write_text(text)
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.mark.parametrize("kind", ["services", "endpoint_url", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_settings_are_found_as_by_the_command_line_of_aws(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Endpoint and region of a profile count beside keys in the environment."""
    objects.objects["a.bin"] = DATA
    config = "[profile lab]\nregion = eu-west-9\n"
    if kind == "services":
        config += f"services = here\n[services here]\ns3 =\n  endpoint_url = {objects.address}\n"
    elif kind == "endpoint_url":
        config += f"endpoint_url = {objects.address}\n"
    else:
        config += "endpoint_url = http://127.0.0.1:1\n"
        monkeypatch.setenv(kind, objects.address)
    write_config(monkeypatch, tmp_path, config, "[lab]\naws_access_key_id = OTHER\naws_secret_access_key = y\n")
    monkeypatch.setenv("AWS_DEFAULT_PROFILE", "lab")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MINE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert Store("s3://data/set").read("a.bin", 1 << 20) == DATA
    (request, headers) = objects.seen[0]
    assert request == "GET /data/set/a.bin"
    assert "/eu-west-9/s3/" in headers["authorization"]
    assert requested_keys(objects) == ["MINE"]


def test_credentials_are_renewed_while_a_store_is_used(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command prints other keys each time, which expire at once."""
    objects.objects["a.bin"] = DATA
    count = tmp_path / "count"
    count.write_text("")
    (tmp_path / "keys.py").write_text(
        "import datetime, json, pathlib, sys\n"
        "file = pathlib.Path(sys.argv[1]); file.write_text(file.read_text() + 'x')\n"
        "end = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)).isoformat()\n"
        "key = f'KEY{len(file.read_text())}'\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': key, 'SecretAccessKey': 's', 'Expiration': end}))\n"
    )
    command = f"{sys.executable} {tmp_path / 'keys.py'} {count}"
    config = f"[profile lab]\nregion = us-east-1\nendpoint_url = {objects.address}\ncredential_process = {command}\n"
    write_config(monkeypatch, tmp_path, config)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    store = Store("s3://data/set")
    while len(requested_keys(objects)) < 2:
        assert store.read("a.bin", 1 << 20) == DATA
        assert len(objects.seen) < 1000
    assert "KEY" not in repr(store)


def test_keys_from_a_function_are_renewed_for_checksums_too(objects: ObjectServer, tmp_path: Path) -> None:
    objects.objects["a.jpg"], objects.etags = DATA, ["0" * 32]
    objects.headers = {"x-amz-server-side-encryption": "aws:kms"}
    made: list[str] = []

    def provide() -> dict[str, Any]:
        made.append(f"KEY{len(made)}")
        soon = datetime.now(UTC) + timedelta(seconds=20)
        return {"access_key_id": made[-1], "secret_access_key": "s", "token": "t", "expires_at": soon}

    store = Store("s3://data/set", {"endpoint": objects.address, "region": "eu-1", "credential_provider": provide})
    for _ in range(3):
        store.download("a.jpg", tmp_path / "a.jpg")
    seen = [headers for request, headers in objects.seen if request.startswith("HEAD ")]
    asked = [{name.lower(): value for name, value in headers.items()} for headers in seen]
    keys = [headers["authorization"].partition("Credential=")[2].partition("/")[0] for headers in asked]
    assert len(set(keys)) == len(keys) == 3
    assert {headers["x-amz-security-token"] for headers in asked} == {"t"}


def test_errors_name_the_problem_with_credentials(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", objects.address)
    with raises(StoreError, place="s3://data/set"):
        Store("s3://data/set").stat("a.bin")
    failing = f"[profile lab]\ncredential_process = {sys.executable} -c 1/0\n"
    write_config(monkeypatch, tmp_path, failing)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        Store("s3://data/set").stat("a.bin")
    monkeypatch.setenv("AWS_PROFILE", "laboratory")
    with pytest.raises(UsageError, match=r"'laboratory'.*AWS_PROFILE"):
        Store("s3://data/set")
    assert objects.seen == []


def test_a_wrong_clock_is_named(objects: ObjectServer) -> None:
    """An answer to HEAD has no content, and does not say why the request was refused."""
    body = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"
    objects.answers += [(403, {}), (403, {"body": body})]
    with pytest.raises(StoreError, match="clock"):
        store_of("s3", objects).stat("a.bin")


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_servers_without_tls_can_be_used(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    objects.objects["a.bin"] = DATA
    assert store_of(kind, objects).read("a.bin", 1 << 20) == DATA
    if kind == "az":
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", objects.address)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"key").decode())
        assert Store("az://data/set").read("a.bin", 1 << 20) == DATA


@pytest.mark.parametrize("kind", ["s3", "http"])
@pytest.mark.parametrize("ranges", [True, False])
def test_parts_of_a_large_object_are_requested_in_parallel(objects: ObjectServer, kind: str, ranges: bool) -> None:
    """Also of a server that ignores ranges, from which the rest is then read as a whole."""
    objects.objects["a.bin"], objects.ranges = LARGE, ranges
    barrier, met = Barrier(2), []

    def meet() -> None:
        if len(met) < 2:
            with suppress(BrokenBarrierError):
                barrier.wait(timeout=120)
                met.append(True)

    store = Store(f"{objects.address}/set") if kind == "http" else store_of("s3", objects)
    assert b"".join(store.chunks("a.bin", len(LARGE))) == LARGE
    if ranges:
        assert objects.count("GET") in (3, 4)
        objects.on_get = meet
    assert b"".join(store.chunks("a.bin", len(LARGE))) == LARGE
    assert len(met) >= 2 * ranges
    objects.on_get = None
    for wrong in (LARGE[: 9 << 20], LARGE[: 5 << 20], b"x"):
        objects.objects["a.bin"] = wrong
        assert b"".join(store.chunks("a.bin", len(LARGE))) != LARGE


def test_the_number_of_connections_is_an_option(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    objects.objects["a.bin"] = LARGE
    assert b"".join(Store(f"{objects.address}/set", {"connections": 1}).chunks("a.bin", len(LARGE))) == LARGE
    assert objects.count("GET") == 1
    for value in (0, "many", -1):
        with raises(UsageError, option="connections"):
            Store(f"{objects.address}/set", {"connections": value})
        monkeypatch.setenv("FACEPACK_CONNECTIONS", str(value))
        with raises(UsageError, option="connections"):
            Store(f"{objects.address}/set")
