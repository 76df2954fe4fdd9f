"""Every error answer of the API: RFC 9457 `application/problem+json`, Flask's own errors included.

Views raise `ProblemError` or let an error of the engine or the ledger pass; this module alone turns them into answers,
so a status code means the same thing on every route. The models' findings name fields and do not repeat values.
"""

from __future__ import annotations

import http
import logging
from collections.abc import Iterable, Mapping

from flask import Flask, Response, request
from pydantic import BaseModel, ConfigDict, Field
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
from werkzeug.wrappers import Response as AnyResponse

from omnivoice.errors import InvalidRequest
from worker.jobs.errors import IdempotencyConflict, InvalidJob, NewerRelease, QueueFull, QueueUnavailable, StorageError

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_OUTAGE_SECONDS = 5
"""What a client is told to wait when Redis or the object store is gone."""

_log = logging.getLogger(__name__)

MAX_NAME_CHARS = 64
"""What a client calls things (an unknown field, a path) is repeated in the answer up to this length."""
MAX_ERRORS = 20


class FieldError(BaseModel):
    """One field of the request that is not allowed."""

    field: str = Field(description="Name of the field, part or header, dotted where it is nested")
    detail: str = Field(description="What is wrong with it and what is allowed")


class Problem(BaseModel):
    """RFC 9457 problem details."""

    model_config = ConfigDict(title="Problem")

    type: str = Field("about:blank", description="`about:blank` where the status says it all, else a URN of this API")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    errors: list[FieldError] = Field(default=[], description="One entry a field, where fields are to blame")


class ProblemError(Exception):
    """An error answer: `kind` is its last URN part (None: nothing beyond the status), `headers` are added to it."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        title: str | None = None,
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})
        self.body = Problem(
            type="about:blank" if kind is None else f"urn:omnivoice:{kind}",
            title=title or http.HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            errors=list(errors),
        )

    def response(self) -> Response:
        text = self.body.model_dump_json(exclude={"errors"} if not self.body.errors else None)
        return Response(text, status=self.body.status, content_type=CONTENT_TYPE, headers=self.headers)


def malformed(what: str, detail: str) -> ProblemError:
    """400: `what` (the body, a part, a header) cannot be parsed."""
    return blamed(400, what, detail, kind="malformed", title="Malformed request")


def blamed(
    status: int,
    field: str,
    detail: str,
    *,
    kind: str | None = None,
    title: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemError:
    """A problem of which one field, header, part or the body is to blame."""
    errors = [FieldError(field=field, detail=detail)]
    return ProblemError(status, f"{field}: {detail}", kind=kind, title=title, errors=errors, headers=headers)


def not_allowed(field: str, detail: str) -> ProblemError:
    """422: one field has a value that is not allowed."""
    return _fields_not_allowed([FieldError(field=field, detail=detail)])


def _fields_not_allowed(errors: list[FieldError]) -> ProblemError:
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"{first.field}: {first.detail}{more}"
    return ProblemError(422, detail, kind="invalid-request", title="Invalid request", errors=errors[:MAX_ERRORS])


def _from_http(error: HTTPException) -> ProblemError:
    """Flask's and Werkzeug's own errors; their extra headers (Allow, Retry-After) stay."""
    headers = {k: v for k, v in error.get_headers() if k.lower() not in ("content-type", "content-length")}
    status = error.code or 500
    path, method = request.path[:MAX_NAME_CHARS], request.method[:MAX_NAME_CHARS]
    match error:
        case NotFound():
            detail = f"there is no {path}; /openapi.json tells what there is"
        case MethodNotAllowed(valid_methods=allowed):
            detail = f"{method} is not allowed for {path}; allowed: {', '.join(sorted(allowed or ()))}"
        case RequestEntityTooLarge():
            detail = f"must have at most {request.max_content_length} bytes"
            if request.mimetype == "multipart/form-data":
                beside_files = f"{request.max_form_memory_size} of them beside files"
                detail += f" in {request.max_form_parts} parts, {beside_files}"
            return blamed(413, "body", detail, headers=headers)
        case _:
            detail = error.description or http.HTTPStatus(status).phrase
    return ProblemError(status, detail, headers=headers)


def _outage(detail: str, kind: str) -> ProblemError:
    headers = {"Retry-After": str(RETRY_AFTER_OUTAGE_SECONDS)}
    return ProblemError(503, detail, kind=kind, headers=headers)


def to_problem(error: Exception) -> ProblemError:
    """The one table from exceptions to answers; what is not in it is a fault of ours, logged and told as a bare 500."""
    match error:
        case ProblemError():
            return error
        case InvalidJob():
            found = [FieldError(field=field[:MAX_NAME_CHARS], detail=detail) for field, detail in error.problems]
            return _fields_not_allowed(found)
        case InvalidRequest():
            return not_allowed(error.field, error.message)
        case QueueFull():
            headers = {"Retry-After": str(max(1, round(error.retry_after)))}
            return ProblemError(429, "the queue is full; try again later", kind="queue-full", headers=headers)
        case IdempotencyConflict():
            detail = "this key was used for another request; use a new key for a new request"
            errors = [FieldError(field="Idempotency-Key", detail=detail)]
            return ProblemError(422, detail, kind="idempotency-conflict", title="Idempotency conflict", errors=errors)
        case QueueUnavailable():
            outage = "newer release" if isinstance(error, NewerRelease) else "redis"
            _log.warning("queue unavailable: %s", error, extra={"outage": outage})
            return _outage("the queue (Redis) cannot be reached", "queue-unavailable")
        case StorageError():
            _log.warning("object store unavailable: %s", error, extra={"outage": "store"})
            return _outage("the object store (S3) cannot be reached", "storage-unavailable")
        case _:
            return ProblemError(500, "the server failed to answer this request; the fault is in its log")


def _answer(error: Exception) -> AnyResponse:
    if isinstance(error, HTTPException):
        if error.response is not None or (error.code or 500) < 400:  # a redirect is an exception in Werkzeug too
            return error.get_response()
        return _from_http(error).response()
    problem = to_problem(error)
    if problem.body.status == 500:
        _log.error("unhandled error", exc_info=error)
    return problem.response()


def register(app: Flask) -> None:
    """Answer every exception of `app` by this module."""
    app.register_error_handler(Exception, _answer)
