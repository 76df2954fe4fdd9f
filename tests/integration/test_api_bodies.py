"""What bodies are taken and what is said about the others, on a real Redis and a real object store."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from api_service import assert_problem, build_app, submit
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from servers import S3Server

from worker.jobs.ledger import Ledger
from worker.jobs.models import JobRequest
from worker.jobs.settings import Settings


@pytest.fixture(scope="module")
def shared_settings(redis_url: str, s3: S3Server) -> Iterator[Settings]:
    """One key prefix for the whole file: its tests leave jobs behind, and none minds those of the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        prefix = f"test-{secrets.token_hex(6)}"
        yield Settings(
            redis_url=redis_url, redis_prefix=prefix, s3_endpoint=s3.endpoint, s3_bucket=s3.bucket, s3_prefix=prefix
        )


@pytest.fixture(scope="module")
def client(shared_settings: Settings) -> FlaskClient:
    return build_app(shared_settings).test_client()


def test_unknown_tag_is_a_warning_on_the_job(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", json={"text": "Well [breath] hello."})
    assert answer.status_code == 202
    assert any("[breath]" in warning for warning in answer.get_json()["warnings"])


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "[laughter]"},
        {"text": "Hello\nworld"},
        {"text": "hi<|text_end|><|denoise|>"},
        {"language": "zh-CN"},
        {"language": "EN"},
        {"speed": None, "num_step": None},
        {"speed": 1},
        {"expires_in": 60},
        {"metadata": {f"key{i}": "v" * 512 for i in range(16)}},
    ],
    ids=repr,
)
def test_accepted(client: FlaskClient, fields: dict[str, Any]) -> None:
    submit(client, **fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": "..."}, "text"),
        ({"text": "____"}, "text"),
        ({"text": "   "}, "text"),
        ({"text": "😀"}, "text"),
        ({"text": "a" * 50_001}, "text"),
        ({"text": 7}, "text"),
        ({"text": None}, "text"),
        ({"speed": 0}, "speed"),
        ({"speed": -1}, "speed"),
        ({"speed": 1e-6}, "speed"),
        ({"speed": "1.2"}, "speed"),
        ({"num_step": 0}, "num_step"),
        ({"num_step": 10**6}, "num_step"),
        ({"num_step": 8.5}, "num_step"),
        ({"num_step": True}, "num_step"),
        ({"duration": 1e9}, "duration"),
        ({"seed": -1}, "seed"),
        ({"num_steps": 4}, "num_steps"),
        ({"language": "klingonese"}, "language"),
        ({"instruct": "a warm narrator"}, "instruct"),
        ({"format": "midi"}, "format"),
        ({"sample_rate": 7}, "sample_rate"),
        ({"queue": "express"}, "queue"),
        ({"expires_in": 0}, "expires_in"),
        ({"ref_text": "What is said."}, "ref_text"),
        ({"metadata": {f"key{i}": "" for i in range(17)}}, "metadata"),
        ({"metadata": {"key": "v" * 513}}, "metadata.key"),
        ({"metadata": {"key": 1}}, "metadata.key"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_refused(client: FlaskClient, shared_settings: Settings, fields: dict[str, Any], field: str) -> None:
    ledger = Ledger.from_settings(shared_settings)
    before = ledger.depth()
    answer = client.post("/v1/jobs", json={"text": "Good morning.", **fields})
    assert_problem(answer, 422, field)
    assert ledger.depth() == before


def test_missing_text(client: FlaskClient) -> None:
    assert_problem(client.post("/v1/jobs", json={}), 422, "text")


def test_misspelt_field_names_the_nearest(client: FlaskClient) -> None:
    problem = assert_problem(client.post("/v1/jobs", json={"text": "Hi there.", "num_steps": 4}), 422, "num_steps")
    assert "num_step" in problem["errors"][0]["detail"].replace("num_steps", "")


def test_every_bad_field_is_named(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", json={"text": "Hi there.", "speed": 9, "num_step": 0})
    assert {error["field"] for error in assert_problem(answer, 422)["errors"]} == {"speed", "num_step"}


def test_refusal_does_not_repeat_the_text(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", json={"text": "my secret diary", "speed": "my other secret"})
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    "body", [b"{", b"", b'{"text": "Hello.", "speed": NaN}', b'{"text": "Hello.", "speed": Infinity}', b"\xff"]
)
def test_unreadable_json(client: FlaskClient, body: bytes) -> None:
    assert_problem(client.post("/v1/jobs", data=body, content_type="application/json"), 400, "body")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"])
def test_other_content_types(client: FlaskClient, content_type: str) -> None:
    assert_problem(client.post("/v1/jobs", data=b'{"text": "Hello."}', content_type=content_type), 415)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "identity, gzip", "x-unknown"])
@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=b"])
def test_compressed_bodies(client: FlaskClient, encoding: str, content_type: str) -> None:
    body = gzip.compress(b'{"text": "Hello."}')
    headers = {"Content-Encoding": encoding}
    answer = client.post("/v1/jobs", data=body, content_type=content_type, headers=headers)
    problem = assert_problem(answer, 415, "Content-Encoding")
    assert "identity" in problem["detail"]
    assert answer.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", "identity, identity"])
def test_a_body_that_is_said_to_be_as_it_is(client: FlaskClient, encoding: str) -> None:
    answer = client.post("/v1/jobs", json={"text": "Hello."}, headers={"Content-Encoding": encoding})
    assert answer.status_code == 202, answer.text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@hypothesis.settings(max_examples=80, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(sorted(JobRequest.model_fields)) | st.text(max_size=8), JSON_VALUES))
def test_no_body_is_a_fault_of_ours(client: FlaskClient, fields: dict[str, Any]) -> None:
    answer = client.post("/v1/jobs", json=fields)
    if answer.status_code != 202:
        assert_problem(answer, 400 if answer.status_code == 400 else 422)


@pytest.mark.parametrize("job_id", ["job_" + "0" * 32, "nonsense", "..", "job_%00", "x" * 2000])
@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("GET", "/audio")])
def test_unknown_job(client: FlaskClient, job_id: str, method: str, tail: str) -> None:
    assert_problem(client.open(f"/v1/jobs/{job_id}{tail}", method=method), 404)
