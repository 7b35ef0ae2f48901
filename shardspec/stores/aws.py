"""Settings and credentials of AWS as its command line finds them, and requests to S3 that obstore does not have."""

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.credentials import CredentialProvider, CredentialResolver, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, ConfigParseError, ProfileNotFound
from botocore.session import Session

from shardspec.errors import ShardspecError, StoreError, UsageError
from shardspec.stores.checksums import Checksum
from shardspec.wording import LONG, cut, list_some, shorten

_LIFETIME = timedelta(minutes=5)
"""Time after which botocore is asked for credentials again. It renews those that expire at least ten minutes earlier."""
_NO_DIGEST = ("aws:kms", "aws:kms:dsse")
"""Kinds of encryption for which an ETag is not a digest of the content (S3 API Reference, "Object", ETag)."""
_EXPRESS = "--x-s3"
"""Ending of the names of directory buckets, whose ETags are random."""
_ALGORITHMS = ("CRC64NVME", "SHA256", "SHA1", "CRC32C", "CRC32")
_CHANGED = (304, 404, 412)
_UNTOLD = (400, 403, 405, 501)
"""Statuses of servers that do not have a request or do not allow it."""
_MD5 = re.compile(r'"?([0-9a-f]{32})(?:-([0-9]+))?"?\Z')

_ALIASES = {"endpoint_url": "endpoint", "default_region": "region"}
"""Other names under which obstore takes these settings."""


class Account:
    """The settings for S3 that were given, and those of botocore for the others.

    botocore reads environment variables and the files of the AWS command line, runs ``credential_process``, uses the
    tokens of ``aws sso login``, and asks the metadata services of virtual machines and containers.

    Parameters
    ----------
    url : str
        ``s3://BUCKET/PREFIX``
    given : mapping
        Settings by the names of obstore, which have priority.

    Attributes
    ----------
    problem : ShardspecError or None
        Why there are no credentials. obstore hides the errors of the functions that it calls.

    Raises
    ------
    UsageError
        If the profile does not exist, or if the files cannot be read.
    """

    def __init__(self, url: str, given: Mapping[str, Any]) -> None:
        self.problem: ShardspecError | None = None
        self._url = url
        self._bucket, self._prefix = urlsplit(url).netloc, urlsplit(url).path.strip("/")
        plain = {name.lower().removeprefix("aws_"): value for name, value in given.items()}
        self._given = {_ALIASES.get(name, name): value for name, value in plain.items()}
        self._session = Session()
        try:
            scoped = self._session.get_scoped_config()
            # The stager changes the environment for the next client before the credentials of this one are needed.
            self._session.get_component("credential_provider").get_provider("env").environ = dict(os.environ)
            endpoint = ConfiguredEndpointProvider(self._session.full_config, scoped, "s3").provide()
            self.settings = {"region": self._session.get_config_variable("region"), "endpoint": endpoint}
        except ProfileNotFound:
            names = list_some(sorted(self._session.available_profiles)) or "none"
            raise UsageError(
                f"There is no AWS profile {shorten(self._session.profile)}, which AWS_PROFILE names",
                found=f"the profiles {names}" if names != "none" else "no profiles",
                hint="check AWS_PROFILE, AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE",
            ) from None
        except (ConfigParseError, UnicodeDecodeError) as error:
            raise UsageError(f"The files of the AWS command line cannot be read: {cut(str(error), LONG)}") from None
        chosen = {**self.settings, **self._given}
        self.settings = {name: chosen[name] for name in self.settings if chosen[name]}

    @property
    def endpoint(self) -> str:
        """The URL of the server, or an empty text for that of AWS."""
        return str(self.settings.get("endpoint", ""))

    @property
    def signs(self) -> bool:
        """True if requests need credentials."""
        skips = self._given.get("skip_signature", os.environ.get("AWS_SKIP_SIGNATURE", ""))
        return str(skips).lower() not in ("true", "1", "yes", "on", "y")

    def options(self) -> dict[str, Any]:
        """Return settings for obstore in addition to those that were given."""
        found = {name: value for name, value in self.settings.items() if name not in self._given}
        if self.signs and not {"access_key_id", "credential_provider"} & self._given.keys():
            found["credential_provider"] = self._provide
        return found

    def _provide(self) -> dict[str, Any]:
        """Return the current credentials, as obstore asks for them."""
        self.problem = None
        try:
            keys = self._credentials.get_frozen_credentials()
        except ShardspecError as error:
            self.problem = error
            raise
        except Exception as error:  # of a metadata service, a server of tokens, a command
            text = cut(" ".join(str(error).split()), LONG)
            self.problem = StoreError(
                f"The credentials cannot be obtained: {text}",
                place=self._url,
                hint="check the AWS profile, or log in again (`aws sso login`)",
            )
            raise self.problem from None
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _LIFETIME,
        }

    @cached_property
    def _credentials(self) -> Any:
        found = self._session.get_credentials()
        if found is None:
            raise StoreError(
                "no credentials were found",
                place=self._url,
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or `storage_options`",
            )
        return found

    # Requests that obstore does not have.

    @cached_property
    def _client(self) -> Any:
        provide = self._given.get("credential_provider")
        if provide is not None:
            self._session.register_component("credential_provider", CredentialResolver([_GivenProvider(provide)]))
        return self._session.create_client(
            "s3",
            region_name=self.settings.get("region", "us-east-1"),
            endpoint_url=self.endpoint or None,
            config=Config(
                retries={"mode": "standard", "total_max_attempts": 6},
                s3={"addressing_style": "path" if self.endpoint else "auto"},
                signature_version=None if self.signs else UNSIGNED,
            ),
            # Without these, the session has its own.
            aws_access_key_id=self._given.get("access_key_id"),
            aws_secret_access_key=self._given.get("secret_access_key"),
            aws_session_token=self._given.get("session_token", self._given.get("token")),
        )

    def checksum(self, name: str, etag: str, *, exact: bool = False) -> Checksum | None:
        """Return the most useful digest or checksum that S3 has of an object, or None if it has none or does not tell.

        Parameters
        ----------
        name, etag : str
            The object. If it has another ETag now, nothing is returned.
        exact : bool
            Whether to ask for the size of each part, instead of expecting that all but the last are equal.
        """
        where = {"Bucket": self._bucket, "Key": "/".join(filter(None, (self._prefix, name)))}
        with self._reporting(name):
            try:
                found = self._client.head_object(**where, IfMatch=etag, ChecksumMode="ENABLED")
                for algorithm in _ALGORITHMS if found.get("ChecksumType") != "COMPOSITE" else ():
                    value = found.get(f"Checksum{algorithm}", "")
                    if value and "-" not in value:
                        return Checksum(algorithm, base64.b64decode(value))
                md5 = _MD5.match(found["ETag"])
                encrypted = found.get("ServerSideEncryption") in _NO_DIGEST or "SSECustomerAlgorithm" in found
                if md5 is None or encrypted or self._bucket.endswith(_EXPRESS):
                    return None
                parts = None if md5[2] is None else self._parts(where, found["ContentLength"], int(md5[2]), exact)
                return None if md5[2] is not None and parts is None else Checksum("MD5", bytes.fromhex(md5[1]), parts)
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status not in (*_CHANGED, *_UNTOLD):
                    raise
                md5 = _MD5.match(etag) if status in _UNTOLD else None
                return Checksum("MD5", bytes.fromhex(md5[1])) if md5 is not None and md5[2] is None else None

    def _parts(self, where: Mapping[str, str], size: int, count: int, exact: bool) -> tuple[int, ...] | None:
        """Return the sizes of the parts of an object, or None if the server does not know them."""
        numbers = iter(range(1, count + 1))
        sizes = [self._client.head_object(**where, PartNumber=next(numbers))["ContentLength"]]
        if sizes[0] == size and count > 1:  # the server ignores the number
            return None
        equal = [min(sizes[0], size - start) for start in range(0, size, max(1, sizes[0]))]
        if len(equal) == count and not exact:
            return tuple(equal)
        sizes += [self._client.head_object(**where, PartNumber=number)["ContentLength"] for number in numbers]
        return tuple(sizes) if sum(sizes) == size else None

    def abort_uploads(self, is_ours: Callable[[str], Any]) -> None:
        """Abort the unfinished multipart uploads of objects below the URL for whose names a function returns true."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        with self._reporting(""):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for one in page.get("Uploads", ()):
                    if is_ours(one["Key"].removeprefix(prefix)):
                        where = {"Bucket": self._bucket, "Key": one["Key"], "UploadId": one["UploadId"]}
                        self._client.abort_multipart_upload(**where)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            text = cut(" ".join(str(error).split()), LONG)
            raise StoreError(text, place="/".join(filter(None, (self._url, name)))) from None


class _GivenProvider(CredentialProvider):  # type: ignore[misc] # botocore has no types
    """Credentials from a function of the user, which botocore calls again before they expire.

    Parameters
    ----------
    provide : callable
        Returns a dict as obstore asks for it. Credentials without ``expires_at`` are used for a while (`_LIFETIME`).
    """

    METHOD = "storage_options"

    def __init__(self, provide: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._provide = provide

    def load(self) -> DeferredRefreshableCredentials:
        """Return credentials that are obtained on first use."""
        return DeferredRefreshableCredentials(self._fetch, self.METHOD)

    def _fetch(self) -> dict[str, Any]:
        keys = self._provide()
        expires = keys.get("expires_at") or datetime.now(UTC) + _LIFETIME
        return {
            "access_key": keys.get("access_key_id"),
            "secret_key": keys.get("secret_access_key"),
            "token": keys.get("token"),
            "expiry_time": expires.isoformat(),
        }
