"""The OpenAPI 3.1 description, built from the pydantic models that the API validates with.

Why not a library: flask-openapi3 4.3 was weighed. It reads bodies with `get_json(silent=True)`, so JSON that cannot be
parsed is taken for null (422, not 400) and NaN is accepted; a view takes a JSON body or a form, not both, so multipart
with a JSON part would need a second path; and it wants Flask subclassed. What is left for it to do, joining pydantic's
schemas with a table of operations, is this file. A test holds the table against the routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic.json_schema import models_json_schema

from api.problems import CONTENT_TYPE, Problem
from api.reading import AUDIO_PART, MAX_WAIT_SECONDS, REQUEST_PART
from worker.jobs.models import Job, JobRequest

Schema = dict[str, Any]

API_VERSION = "0.1.0"
_REF = "#/components/schemas/{model}"
_HEADERS: dict[str, tuple[str, Schema]] = {
    "Location": ("Where the job, or its audio, is", {"type": "string", "format": "uri-reference"}),
    "Retry-After": ("Seconds to wait before the next call", {"type": "integer", "minimum": 0}),
    "Preference-Applied": ("The `Prefer` that was honoured", {"type": "string"}),
    "traceresponse": ("The W3C trace of the request, as in `traceparent`", {"type": "string"}),
    "Accept": ("The media types that are taken, where another was sent", {"type": "string"}),
    "Accept-Encoding": ("The content coding that is taken, where another was sent", {"type": "string"}),
    "WWW-Authenticate": ("The scheme that is asked for", {"type": "string"}),
}
_PROBLEMS: dict[int, tuple[str, tuple[str, ...]]] = {
    400: ("The JSON or a header cannot be parsed", ()),
    401: ("No API key, or one that is not known", ("WWW-Authenticate",)),
    403: ("A page of an origin that is not allowed; only without API keys", ()),
    404: ("No such job, or another key's", ()),
    413: ("The body is too large", ()),
    421: ("Host is not a name of this machine; only without API keys", ()),
    415: (
        "The body is neither JSON nor multipart/form-data, or its `Content-Encoding` is another than identity",
        ("Accept", "Accept-Encoding"),
    ),
    422: ("A field or value is not allowed; `errors` names it", ()),
    429: ("The queue is full", ("Retry-After",)),
    500: ("A fault of the server", ()),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of an operation. `model` names a schema for JSON; None is an answer without content."""

    status: int
    description: str
    model: str | None = None
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: what it takes and answers. `problems` are statuses of `_PROBLEMS` beside its own `answers`."""

    method: str
    path: str
    name: str
    summary: str
    answers: tuple[Answer, ...]
    problems: tuple[int, ...] = ()
    parameters: tuple[Schema, ...] = ()
    body: Schema | None = None
    guarded: bool = True


def _parameter(name: str, where: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}


def _submission_body() -> Schema:
    job = {"$ref": _REF.format(model="JobRequest")}
    form = {
        "type": "object",
        "required": [REQUEST_PART],
        "properties": {
            REQUEST_PART: job,
            AUDIO_PART: {
                "type": "string",
                "contentMediaType": "application/octet-stream",
                "description": "Reference voice, 1 to 30 s, in any format that libsndfile reads; needs `ref_text`",
            },
        },
        "additionalProperties": False,
    }
    encoding = {REQUEST_PART: {"contentType": "application/json"}, AUDIO_PART: {"contentType": "audio/*"}}
    content = {"application/json": {"schema": job}, "multipart/form-data": {"schema": form, "encoding": encoding}}
    return {"required": True, "content": content}


_JOB_ID = _parameter("id", "path", "Id of the job", {"type": "string"})
_WAIT = f"`wait=N` holds the answer until the job has ended or N seconds (at most {MAX_WAIT_SECONDS}) have passed"
_IDEMPOTENCY = (
    "The same key and body give the same job, however often they are sent; the same key with another body, 422"
)
_TRACE = "W3C trace to go on with; a new one where it is absent or malformed"
_OUTAGE = Answer(503, "Redis or the object store cannot be reached", "Problem", ("Retry-After",))

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/jobs",
        "submitJob",
        "Submit a text to be spoken",
        (Answer(202, "The job is queued", "Job", ("Location", "Retry-After", "traceresponse")), _OUTAGE),
        (400, 401, 413, 415, 422, 429, 500),
        (
            _parameter("Idempotency-Key", "header", _IDEMPOTENCY, {"type": "string", "minLength": 1, "maxLength": 255}),
            _parameter("traceparent", "header", _TRACE, {"type": "string"}),
        ),
        _submission_body(),
    ),
    Operation(
        "get",
        "/v1/jobs/{id}",
        "getJob",
        "Look at a job, or wait for its end",
        (Answer(200, "The job", "Job", ("Preference-Applied", "Retry-After")), _OUTAGE),
        (400, 401, 404, 422, 500),
        (_JOB_ID, _parameter("Prefer", "header", _WAIT, {"type": "string", "examples": ["wait=30"]})),
    ),
    Operation(
        "delete",
        "/v1/jobs/{id}",
        "cancelJob",
        "Cancel a job",
        (
            Answer(200, "It was queued and is cancelled", "Job"),
            Answer(202, "It runs and ends at its next step", "Job", ("Retry-After",)),
            Answer(409, "It has ended already", "Problem"),
            _OUTAGE,
        ),
        (401, 404, 500),
        (_JOB_ID,),
    ),
    Operation(
        "get",
        "/v1/jobs/{id}/audio",
        "getAudio",
        "Go to the audio of a job",
        (
            Answer(302, "To a presigned URL of the audio, good for a short time", None, ("Location",)),
            Answer(409, "The job has not succeeded", "Problem", ("Retry-After",)),
            Answer(410, "The retention of the audio is over", "Problem"),
            _OUTAGE,
        ),
        (401, 404, 500),
        (_JOB_ID,),
    ),
    Operation(
        "get", "/livez", "live", "Whether the process answers", (Answer(200, "It does", "Health"),), guarded=False
    ),
    Operation(
        "get",
        "/readyz",
        "ready",
        "Whether jobs can be taken",
        (
            Answer(200, "They can", "Health"),
            Answer(503, "They cannot; `errors` names what is missing", "Problem", ("Retry-After",)),
        ),
        guarded=False,
    ),
)


def build_openapi(*, keys_needed: bool) -> Schema:
    """The whole document, ready for JSON. `keys_needed` is false for a service without API keys."""
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, keys_needed)
    components: Schema = {"schemas": _schemas()}
    if keys_needed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OmniVoice job queue",
            "version": API_VERSION,
            "description": "Text in, audio in an object store out. Every error is an RFC 9457 problem.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


def _schemas() -> dict[str, Schema]:
    models = [(JobRequest, "validation"), (Job, "serialization"), (Problem, "serialization")]
    _, document = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]  # invariant list
    schemas: dict[str, Schema] = document["$defs"]
    schemas["Health"] = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
    return schemas


def _statuses(operation: Operation, keys_needed: bool) -> tuple[int, ...]:
    """Statuses of `_PROBLEMS` that the operation answers: with keys 401, without them the guard of `api.access`."""
    if keys_needed:
        return operation.problems
    others = tuple(status for status in operation.problems if status != HTTPStatus.UNAUTHORIZED)
    return (*others, 421) if operation.method == "get" else (*others, 403, 421)


def _operation(operation: Operation, keys_needed: bool) -> Schema:
    statuses = _statuses(operation, keys_needed)
    problems = [Answer(status, _PROBLEMS[status][0], "Problem", _PROBLEMS[status][1]) for status in statuses]
    answers = sorted([*operation.answers, *problems], key=lambda answer: answer.status)
    description: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {str(answer.status): _answer(answer) for answer in answers},
    }
    if operation.parameters:
        description["parameters"] = list(operation.parameters)
    if operation.body is not None:
        description["requestBody"] = operation.body
    if operation.guarded and keys_needed:
        description["security"] = [{"key": []}]
    return description


def _answer(answer: Answer) -> Schema:
    described: Schema = {"description": answer.description}
    if answer.model is not None:
        media_type = CONTENT_TYPE if answer.model == "Problem" else "application/json"
        described["content"] = {media_type: {"schema": {"$ref": _REF.format(model=answer.model)}}}
    if answer.headers:
        described["headers"] = {
            name: {"description": _HEADERS[name][0], "schema": _HEADERS[name][1]} for name in answer.headers
        }
    return described
