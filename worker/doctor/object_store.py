"""The object store: everything that the service does with it, once, with one object that is removed again."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException

from worker.doctor.findings import Finding, error, ok, one_line, warning
from worker.jobs.errors import StorageError
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings
from worker.jobs.storage import BRIEF, ObjectStore

LINK_SECONDS = 60
HTTP_TIMEOUT_SECONDS = 10.0
MAX_SKEW_SECONDS = 60.0
REFUSED_SKEW_SECONDS = 900.0
"""S3 refuses a request whose clock is off by more."""

_DATA = b"written by the doctor, to be removed at once"
_OTHER = b"written over it"


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of a plain HTTP GET. `skew_seconds` is the server's clock minus this machine's, None where it names no time."""

    status: int
    body: bytes
    skew_seconds: float | None


def check_storage(settings: Settings) -> list[Finding]:
    """Every finding, up to the first that makes the others pointless. Leaves no object behind, or says so."""
    key = f"checks/{new_job_id()}"
    try:
        store = ObjectStore(settings, BRIEF)
        store.ping()
    except StorageError as problem:
        return [_unusable("bucket", problem)]
    except ValueError as problem:  # boto3's, for an address or a region that is none
        return [error("bucket", one_line(problem), "correct OMNIVOICE_S3_ENDPOINT or OMNIVOICE_S3_REGION")]
    findings = [ok("bucket", f"{settings.s3_bucket} at {settings.s3_endpoint or 'AWS'}")]
    try:
        store.put(key, _DATA, "text/plain")
        findings.append(ok("write", store.uri(key)))
        findings += _look(settings, store, key)
    except StorageError as problem:
        findings.append(_unusable("write and read", problem))
    finally:
        findings.append(_remove(store, key))
    return findings


def _look(settings: Settings, store: ObjectStore, key: str) -> Iterator[Finding]:
    try:
        store.put(key, _OTHER, "text/plain")
    except StorageError as problem:
        if problem.retryable:
            raise
    found = store.get(key)
    if found == _DATA:
        yield ok("conditional write", "an object that is there is not written over")
        yield ok("read", "what was written")
    elif found == _OTHER:
        text = "`If-None-Match: *` is ignored: an object that is there is written over"
        yield warning("conditional write", text, "nothing has to be done: the keys alone keep copies of a job apart")
        yield ok("read", "what was written")
    else:
        yield error("read", "other bytes than were written", "look for a proxy or a cache before the store")
    yield from _link(settings, store.presign(key, LINK_SECONDS), found)


def _link(settings: Settings, url: str, expected: bytes) -> Iterator[Finding]:
    public = settings.s3_public_endpoint
    try:
        answer, unsigned = _get(url), _get(url.partition("?")[0])
    except (OSError, HTTPException) as problem:
        text = f"cannot be opened from here: {one_line(problem)}"
        if public:  # an address for clients need not be one for workers
            yield warning("presigned link", text, f"see that clients reach {public} (OMNIVOICE_S3_PUBLIC_ENDPOINT)")
        else:
            yield error("presigned link", text, "set OMNIVOICE_S3_PUBLIC_ENDPOINT to where clients reach the store")
        return
    if (answer.status, answer.body) != (200, expected):
        text = f"the store answers {answer.status}"
        yield error("presigned link", text, "see that no proxy changes Host or path, and that the clocks agree")
    else:
        yield ok("presigned link", "opens without credentials")
    if unsigned.status == 200:
        text = "objects open without a signature: whoever knows an address needs no link"
        yield warning("privacy", text, "take anonymous reading off the bucket")
    yield from _clock(answer)


def _clock(answer: _Answer) -> Iterator[Finding]:
    skew = answer.skew_seconds
    if skew is None:
        return
    text = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > REFUSED_SKEW_SECONDS:
        yield error("clock", text, "let NTP keep both: S3 refuses requests that are 15 minutes off")
    elif abs(skew) > MAX_SKEW_SECONDS:
        yield warning("clock", text, "let NTP keep both: at 15 minutes S3 refuses every request")
    else:
        yield ok("clock", f"within {MAX_SKEW_SECONDS:g} s of this machine's")


def _get(url: str) -> _Answer:
    """Raises `OSError` or `HTTPException` where there is no answer; an error status is one."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_SECONDS) as response:  # http or https, as boto3 made it
            status, body, date = response.status, response.read(), response.headers["Date"]
    except urllib.error.HTTPError as refusal:
        with refusal:
            status, body, date = refusal.code, b"", refusal.headers["Date"]
    return _Answer(status, body, parsedate_to_datetime(date).timestamp() - time.time() if date else None)


def _remove(store: ObjectStore, key: str) -> Finding:
    try:
        store.delete(key)
        if not store.exists(key):
            return ok("delete", "the object is gone")
        text = f"{store.uri(key)} is still there"
    except StorageError as problem:
        text = f"{store.uri(key)} may be left behind: {one_line(problem)}"
    return error("delete", text, "give the credentials the right to delete, and remove the object")


def _unusable(subject: str, problem: StorageError) -> Finding:
    if problem.retryable:
        return error(subject, one_line(problem), "start the store, free its disk, or correct OMNIVOICE_S3_ENDPOINT")
    remedy = "create the bucket, or correct OMNIVOICE_S3_BUCKET, AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY"
    return error(subject, one_line(problem), remedy)
