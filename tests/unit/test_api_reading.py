"""Strict JSON and the request headers."""

from __future__ import annotations

import json

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from api.problems import ProblemError
from api.reading import MAX_JSON_BYTES, idempotency_key, parse_object, wait_seconds


def _request(**headers: str) -> Request:
    return Request(
        EnvironBuilder(headers={name.replace("_", "-"): text for name, text in headers.items()}).get_environ()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"speed": NaN}',
        b'{"speed": Infinity}',
        b'{"speed": -Infinity}',
        b'{"a": {"b": NaN}}',
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"text": "byte order mark"}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "\\ud800"}',
        b'{"\\ud800": 1}',
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b"{'text': 'a'}",
        b'{"text": "a"} {}',
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_not_json_is_malformed(data: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_object(data, "body")
    assert caught.value.body.status == 400
    assert caught.value.body.detail.startswith("body: ")
    for word in ("utf-8-sig", "sys.", "python"):  # advice to whoever wrote the server, not to its callers
        assert word not in caught.value.body.detail.lower()


@pytest.mark.parametrize("data", [b"[]", b"null", b'"text"', b"3"])
def test_json_that_is_no_object_is_not_allowed(data: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_object(data, "request")
    assert caught.value.body.status == 422
    assert caught.value.body.errors[0].field == "request"


def test_json_keeps_text_as_it_is() -> None:
    assert parse_object('{"text": "naïve 😀 \\ud83d\\ude00"}'.encode(), "body") == {"text": "naïve 😀 😀"}


def test_bounds_of_json() -> None:
    with pytest.raises(ProblemError) as too_long:
        parse_object(b'{"text": "' + b"a" * MAX_JSON_BYTES + b'"}', "request")
    assert too_long.value.body.status == 413
    assert [error.field for error in too_long.value.body.errors] == ["request"]
    with pytest.raises(ProblemError) as too_many:
        parse_object(json.dumps({f"field{i}": 1 for i in range(1000)}).encode(), "body")
    assert too_many.value.body.status == 422


def test_the_longest_text_fits_even_when_escaped() -> None:
    text = "😀" * 50_000
    assert parse_object(json.dumps({"text": text}).encode(), "body")["text"] == text


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("wait=10", 10),
        ("wait=0", 0),
        ("wait=60", 60),
        ("WAIT = 5", 5),
        ('wait="7"', 7),
        ("respond-async, wait=3", 3),
        ("wait=4; foo=bar, handling=lenient", 4),
        ("wait=1, wait=2", 1),
        ("respond-async", None),
        ("handling=lenient", None),
        ("", None),
    ],
)
def test_prefer(header: str, seconds: int | None) -> None:
    assert wait_seconds(_request(Prefer=header)) == seconds


@pytest.mark.parametrize(
    ("header", "status"),
    [("wait", 400), ("wait=", 400), ("wait=abc", 400), ("wait=-1", 400), ("wait=1.5", 400), ("wait=61", 422)],
)
def test_prefer_refused(header: str, status: int) -> None:
    with pytest.raises(ProblemError) as caught:
        wait_seconds(_request(Prefer=header))
    assert caught.value.body.status == status
    assert "Prefer" in caught.value.body.detail


def test_idempotency_key() -> None:
    assert idempotency_key(_request()) is None
    assert idempotency_key(_request(Idempotency_Key='"8e03978e"')) == '"8e03978e"'
    for value in ("", "a b", "x" * 256):
        with pytest.raises(ProblemError) as caught:
            idempotency_key(_request(Idempotency_Key=value))
        assert caught.value.body.status == 400
