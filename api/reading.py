"""Reading requests: strict JSON, multipart with a JSON part, and the headers Prefer and Idempotency-Key.

What cannot be parsed is a 400 and raises `ProblemError`; what parses but is not allowed is left to the models (422).
"""

from __future__ import annotations

import codecs
import difflib
import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from flask import Request
from werkzeug.datastructures import FileStorage
from werkzeug.http import parse_list_header

from api.problems import ProblemError, blamed, malformed, not_allowed

MAX_WAIT_SECONDS = 60
MAX_JSON_BYTES = 2**20
"""The longest text allowed, every character escaped, and the metadata fit; only audio needs more."""
MAX_FIELDS = 100
"""More keys than any request has; each unknown one costs a search for the name that was meant."""
REQUEST_PART = "request"
AUDIO_PART = "ref_audio"
_SECONDS = re.compile(r"[0-9]{1,99}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Submission:
    """A body as it was sent: `fields` is the JSON object, `audio` the bytes of the file part, if there was one."""

    fields: dict[str, Any]
    audio: bytes | None = None


def read_submission(request: Request) -> Submission:
    """The body of `POST /v1/jobs`. Raises `ProblemError` 400, 413, 415 or 422."""
    _refuse_encodings(request)
    if request.mimetype == "application/json":
        return Submission(parse_object(_read_json_body(request), "body"))
    if request.mimetype == "multipart/form-data":
        return _read_multipart(request)
    detail = f"send application/json, or multipart/form-data with the parts {REQUEST_PART} and {AUDIO_PART}"
    raise ProblemError(415, detail, headers={"Accept": "application/json, multipart/form-data"})


def _refuse_encodings(request: Request) -> None:
    """415 for a compressed body, which would be told as JSON that cannot be parsed (RFC 7694 asks for the header)."""
    encodings = request.headers.get("Content-Encoding", "").lower().split(",")
    if all(encoding.strip() in ("", "identity") for encoding in encodings):
        return
    detail = "must be identity, or left out: send the body uncompressed"
    raise blamed(415, "Content-Encoding", detail, headers={"Accept-Encoding": "identity"})


def _read_json_body(request: Request) -> bytes:
    request.max_content_length = min(request.max_content_length or MAX_JSON_BYTES, MAX_JSON_BYTES)
    data = request.get_data(cache=False)
    if request.content_length is None:
        request.stream.read(1)  # Werkzeug cuts a chunked body at the limit in silence; reading on raises its 413
    return data


def _read_multipart(request: Request) -> Submission:
    if "boundary" not in request.mimetype_params:
        raise malformed("Content-Type", "multipart/form-data without a boundary")
    sent = (*request.form.items(multi=True), *request.files.items(multi=True))  # parses the body; raises 413
    names = [name for name, _ in sent]
    for name in names:
        if name not in (REQUEST_PART, AUDIO_PART):
            raise not_allowed(name[:64], _unknown(name, [REQUEST_PART, AUDIO_PART], "part"))
        if names.count(name) > 1:
            raise not_allowed(name, "this part may be sent once only")
    if REQUEST_PART not in names:
        raise not_allowed(REQUEST_PART, "this part is missing; it holds the job as JSON")
    text: str | FileStorage = request.form.get(REQUEST_PART) or request.files.get(REQUEST_PART) or ""
    # Some clients give a part with a content type a file name as well, and so make it a file.
    body = text.stream.read() if isinstance(text, FileStorage) else text.encode()
    fields = parse_object(body, REQUEST_PART)
    if AUDIO_PART in request.form:
        raise not_allowed(AUDIO_PART, "must be sent as a file part, with a file name")
    audio = request.files.get(AUDIO_PART)
    return Submission(fields, None if audio is None else audio.stream.read())


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object from UTF-8 `data`; `where` names the body or part in errors.

    Python's parser takes NaN, Infinity and a key twice; none of them is JSON that other parsers agree on.
    Raises `ProblemError` 400, 413, or 422 for JSON that is no object.
    """
    if len(data) > MAX_JSON_BYTES:
        raise blamed(413, where, f"must have at most {MAX_JSON_BYTES} bytes of JSON")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: no UTF-8 can hold it, so neither the ledger nor an answer could
        raise malformed(where, "has half of a surrogate pair") from None
    except RecursionError:
        raise malformed(where, "the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise malformed(where, f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if data.startswith(codecs.BOM_UTF8):
            raise malformed(where, "starts with a byte order mark; JSON has none") from None
        raise malformed(where, f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except _NotJsonError as error:
        raise malformed(where, f"not JSON: {error}") from None
    except ValueError:  # Python refuses to make an integer of thousands of digits
        raise malformed(where, "holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise not_allowed(where, "must be a JSON object")
    if len(value) > MAX_FIELDS:
        raise not_allowed(where, f"has {len(value)} fields; at most {MAX_FIELDS}")
    return value


class _NotJsonError(ValueError):
    """What Python's parser would take and other parsers would not."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJsonError(f"{name} is not a JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _NotJsonError("a key is given twice in one object")
    return fields


def _unknown(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what}; {hint}"


def idempotency_key(request: Request) -> str | None:
    """The header as it is, quotes included where the client sent a structured string. Raises `ProblemError` 400."""
    value = request.headers.get("Idempotency-Key")
    if value is not None and not _IDEMPOTENCY_KEY.fullmatch(value):
        raise malformed("Idempotency-Key", "must be 1 to 255 visible ASCII characters without spaces")
    return value


def wait_seconds(request: Request) -> int | None:
    """Seconds of `Prefer: wait=N` (RFC 7240), or None; other preferences are ignored, as that standard asks.

    Raises `ProblemError`: 400 for a header that cannot be parsed, 422 for more than `MAX_WAIT_SECONDS`.
    """
    for preference in parse_list_header(",".join(request.headers.getlist("Prefer"))):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() != "wait":
            continue
        if not _SECONDS.fullmatch(value.strip().strip('"')):
            raise malformed("Prefer", "wait must be a whole number of seconds, like wait=30")
        seconds = int(value.strip().strip('"'))
        if seconds > MAX_WAIT_SECONDS:
            raise not_allowed("Prefer", f"wait must be from 0 to {MAX_WAIT_SECONDS} seconds, not {seconds}")
        return seconds  # of a preference given twice, the first one counts
    return None
