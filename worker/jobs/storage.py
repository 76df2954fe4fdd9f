"""Objects in an S3-compatible store: audio and reference clips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)

from worker.jobs.errors import StorageError
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings

CONNECT_TIMEOUT_SECONDS = 3.0
MAX_CONNECTIONS = 64

T = TypeVar("T")

_SHA256 = "sha256"
_WRONG_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403", "ExpiredToken"}
_MISSING = {"NoSuchKey", "404", "NotFound"}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call may take: tries, with boto3's jittered back-off between them, of so many seconds each.

    A connection that is half-open, since a firewall forgot it or a host vanished, costs the first of them. Where
    `slow_read_timeout_seconds` are given, a call that was not answered in time is made anew with that time for each
    try: a store may be slow, and a long upload lie for many seconds in buffers on its way. Without `repeats_timeouts`
    the first try that was not answered in time is the last.
    """

    max_tries: int = 4
    read_timeout_seconds: float = 5.0
    slow_read_timeout_seconds: float | None = 20.0
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    repeats_timeouts: bool = True


BRIEF = Patience(max_tries=2, read_timeout_seconds=4.0, slow_read_timeout_seconds=None)
"""For checks and for the API: somebody waits for the answer, and a 503 now is better than a 202 in a minute."""
PROBE = Patience(
    max_tries=2,
    read_timeout_seconds=2.5,
    slow_read_timeout_seconds=None,
    connect_timeout_seconds=2.5,
    repeats_timeouts=False,
)
"""For readiness: who asks gives up after seconds, and asks again."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `listed_seconds` are since 1970, by the store's clock."""

    key: str
    age_seconds: float
    listed_seconds: float


class ObjectStore:
    """One bucket, keys under `s3_prefix`. Safe to share between threads. Every method raises `StorageError`.

    A key is written once: a second write of the same bytes is taken as done, one of other bytes is refused. Stores that
    do not know `If-None-Match` overwrite instead; keys that hold a lease's token keep late copies apart there too.
    """

    def __init__(self, settings: Settings, patience: Patience = Patience()) -> None:
        self._bucket = settings.s3_bucket
        self._prefix = f"{settings.s3_prefix.strip('/')}/" if settings.s3_prefix.strip("/") else ""
        self._where = f"bucket {settings.s3_bucket} at {settings.s3_endpoint or 'AWS'}"
        self._client = _client(settings, settings.s3_endpoint, patience)
        self._patient_client: Any = None
        self._repeats_timeouts = patience.repeats_timeouts
        if slow_seconds := patience.slow_read_timeout_seconds:
            slow = replace(patience, read_timeout_seconds=slow_seconds)
            self._patient_client = _client(settings, settings.s3_endpoint, slow)
            self._on_timeout(self._patient_client, repeats=True)
        self._on_timeout(self._client, repeats=patience.repeats_timeouts and self._patient_client is None)
        # A signature covers the host, so links are signed for the address under which clients reach the store.
        public = settings.s3_public_endpoint
        self._signer = _client(settings, public, patience) if public else self._client

    def check(self) -> None:
        """The bucket is there and takes, gives and deletes an object."""
        key = f"checks/{new_job_id()}"
        data = b"written at start to see that it can be"
        self.ping()
        self.put(key, data, "text/plain")
        if self.get(key) != data:
            raise StorageError(f"{self._where} does not give back what was written", retryable=False)
        self.delete(key)

    def ping(self) -> None:
        """The store answers and the bucket is there: what readiness asks, without writing."""
        with self._errors():
            self._call(lambda client: client.head_bucket(Bucket=self._bucket))

    def put(self, key: str, data: bytes, content_type: str, sha256: str | None = None) -> None:
        """Write `data` once. `sha256` is its hex digest, computed where the caller has not."""
        digest = sha256 or hashlib.sha256(data).hexdigest()
        try:
            with self._errors():
                self._call(
                    lambda client: client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + key,
                        Body=data,
                        ContentType=content_type,
                        Metadata={_SHA256: digest},
                        IfNoneMatch="*",
                    )
                )
        except _AlreadyThere:
            if self._stored_digest(key) != digest:
                raise StorageError(f"{self.uri(key)} already holds other bytes", retryable=False) from None

    def get(self, key: str) -> bytes:
        """The object's bytes."""
        with self._errors(key):
            return self._call(
                lambda client: bytes(client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read())
            )

    def exists(self, key: str) -> bool:
        """Whether there is an object at `key`."""
        try:
            with self._errors(key):
                self._head(key)
        except _NotThere:
            return False
        return True

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there counts as removed."""
        with self._errors(key):
            self._call(lambda client: client.delete_object(Bucket=self._bucket, Key=self._prefix + key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove up to 1,000 objects in one call. Raises `StorageError` where one of them is left."""
        if not keys:
            return
        doomed = {"Objects": [{"Key": self._prefix + key} for key in keys], "Quiet": True}
        with self._errors():
            answer = self._call(lambda client: client.delete_objects(Bucket=self._bucket, Delete=doomed))
        for failure in answer.get("Errors", ()):
            raise StorageError(f"{self._where} does not delete objects: {failure.get('Code')}", retryable=True)

    def page(self, folder: str, after: str, limit: int) -> tuple[list[StoredObject], bool]:
        """Up to `limit` objects of `folder` in the order of their keys, behind `after`; and whether these are all."""
        start = {"StartAfter": self._prefix + after} if after else {}
        with self._errors():
            answer = self._call(
                lambda client: client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._prefix + folder, MaxKeys=limit, **start
                )
            )
        listed = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        found = [
            StoredObject(
                item["Key"].removeprefix(self._prefix),
                (listed - item["LastModified"]).total_seconds(),
                listed.timestamp(),
            )
            for item in answer.get("Contents", ())
        ]
        return found, not (found and answer["IsTruncated"])

    def presign(self, key: str, seconds: int, filename: str | None = None) -> str:
        """A URL that reads the object for `seconds` without credentials, saved by browsers as `filename`."""
        params: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        if filename is not None:
            params["ResponseContentDisposition"] = f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
        with self._errors(key):
            url: str = self._signer.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
        return url

    def uri(self, key: str) -> str:
        """`s3://bucket/…` of a key."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def key_of(self, uri: str) -> str:
        """The key of a URI that `uri` made. Raises `StorageError` for one of another bucket or prefix."""
        start = self.uri("")
        if not uri.startswith(start):
            raise StorageError(f"{uri} is not under {start}, where this process keeps its objects", retryable=False)
        return uri.removeprefix(start)

    def _stored_digest(self, key: str) -> str:
        """SHA-256 of what lies at `key`: as noted when it was written, else of its bytes (some stores drop notes)."""
        with self._errors(key):
            noted = self._head(key)["Metadata"].get(_SHA256)
        return noted or hashlib.sha256(self.get(key)).hexdigest()

    def _head(self, key: str) -> Any:
        return self._call(lambda client: client.head_object(Bucket=self._bucket, Key=self._prefix + key))

    def _call(self, use: Callable[[Any], T]) -> T:
        try:
            return use(self._client)
        except ReadTimeoutError:
            self._forget_idle_connections()
            if self._patient_client is None:
                raise
        return use(self._patient_client)

    def _on_timeout(self, client: Any, *, repeats: bool) -> None:
        """After a try without an answer: the next one, if there is any, needs a new connection, or the client that has
        more patience."""

        def look(caught_exception: Exception | None = None, **_: object) -> None:
            if isinstance(caught_exception, ReadTimeoutError):
                self._forget_idle_connections()
                if not repeats:
                    raise caught_exception
            if isinstance(caught_exception, ConnectTimeoutError) and not self._repeats_timeouts:
                raise caught_exception

        client.meta.events.register("needs-retry.s3", look)

    def _forget_idle_connections(self) -> None:
        """Where one was half-open, those that lie in the pools are likely to be: each would cost a try of its own."""
        for client in (self._client, self._patient_client):
            if client is not None:
                client.close()

    @contextmanager
    def _errors(self, key: str | None = None) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._from_answer(error, key) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StorageError(
                f"{self._where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", retryable=False
            ) from error
        except ReadTimeoutError as error:
            raise StorageError(f"{self._where} does not answer; is its disk full?", retryable=True) from error
        except (BotoCoreError, OSError) as error:
            raise StorageError(f"{self._where} cannot be reached: {_one_line(error)}", retryable=True) from error

    def _from_answer(self, error: ClientError, key: str | None) -> StorageError:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == 412:
            return _AlreadyThere(f"{self._where}: the object is already there", retryable=False)
        if code == "RequestTimeTooSkewed":
            return StorageError(
                f"{self._where} has another time than this machine's clock; set both by NTP", retryable=False
            )
        if code in _WRONG_CREDENTIALS or status == 403:
            return StorageError(f"{self._where} refuses the credentials ({code})", retryable=False)
        if code == "NoSuchBucket" or (status == 404 and key is None):
            return StorageError(f"{self._where} does not exist", retryable=False)
        if code in _MISSING:
            return _NotThere(f"{self.uri(key or '')} does not exist", retryable=False)
        note = "; is its disk full?" if status in (500, 507) else ""
        retryable = status >= 500 or status in (408, 409, 429)
        return StorageError(f"{self._where} answered {status}: {_one_line(error)}{note}", retryable=retryable)


class _NotThere(StorageError):
    """No object at the key."""


class _AlreadyThere(StorageError):
    """`If-None-Match: *` was not met."""


def _client(settings: Settings, endpoint: str | None, patience: Patience) -> Any:
    # A session of its own: boto3's default session is not safe to use from several threads.
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=settings.s3_region,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if endpoint else "auto"},
            retries={"mode": "standard", "total_max_attempts": patience.max_tries},
            connect_timeout=patience.connect_timeout_seconds,
            read_timeout=patience.read_timeout_seconds,
            tcp_keepalive=True,
            max_pool_connections=MAX_CONNECTIONS,
            request_checksum_calculation=settings.s3_checksums,
            response_checksum_validation=settings.s3_checksums,
        ),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
