"""Submitting with a reference voice: the file is checked and stored before the job is accepted."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from api_service import REF_TEXT, assert_problem, build_app, clip
from flask.testing import FlaskClient
from servers import S3Server, s3_client
from werkzeug.test import TestResponse

from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


def _post(client: FlaskClient, parts: dict[str, Any], **options: Any) -> TestResponse:
    return client.post("/v1/jobs", data=parts, content_type="multipart/form-data", **options)


def _job(**fields: Any) -> str:
    return json.dumps({"text": "Good morning.", "ref_text": REF_TEXT, **fields})


def _file(data: bytes, name: str = "voice.wav") -> tuple[io.BytesIO, str]:
    return io.BytesIO(data), name


def _stored_references(settings: Settings, s3: S3Server) -> int:
    answer = s3_client(s3).list_objects_v2(Bucket=settings.s3_bucket, Prefix=f"{settings.s3_prefix}/references/")
    return int(answer["KeyCount"])


def test_clip_is_stored_before_the_job_is_accepted(client: FlaskClient, settings: Settings) -> None:
    sent = clip()
    answer = _post(client, {"request": _job(), "ref_audio": _file(sent)})
    assert answer.status_code == 202, answer.text
    record = Ledger.from_settings(settings).get(answer.get_json()["id"])
    assert record is not None
    assert record.reference_key is not None
    assert ObjectStore(settings).get(record.reference_key) == sent
    assert answer.get_json()["request"]["ref_text"] == REF_TEXT


def test_one_clip_in_many_jobs_is_stored_once(client: FlaskClient, settings: Settings, s3: S3Server) -> None:
    sent = clip()
    ids = {_post(client, {"request": _job(seed=n), "ref_audio": _file(sent)}).get_json()["id"] for n in range(3)}
    assert len(ids) == 3
    assert _stored_references(settings, s3) == 1


def test_request_part_may_be_a_file(client: FlaskClient) -> None:
    parts = {"request": (io.BytesIO(_job().encode()), "job.json", "application/json"), "ref_audio": _file(clip())}
    assert _post(client, parts).status_code == 202


def test_a_job_without_a_voice_may_be_multipart_too(client: FlaskClient, settings: Settings) -> None:
    answer = _post(client, {"request": json.dumps({"text": "Good morning."})})
    assert answer.status_code == 202
    record = Ledger.from_settings(settings).get(answer.get_json()["id"])
    assert record is not None
    assert record.reference_key is None


@pytest.mark.parametrize(
    ("audio", "field"),
    [
        (b"", "ref_audio"),
        (b"garbage that is no audio", "ref_audio"),
        (clip(0.01), "ref_audio"),
        (clip(0.2), "ref_audio"),
        (clip(60.0, 4_000), "ref_audio"),
        (clip(20.0, 8_000), "ref_text"),
    ],
    ids=["empty", "garbage", "10ms", "200ms", "60s", "transcript-too-short"],
)
def test_clips_that_cannot_serve_are_refused_and_not_stored(
    client: FlaskClient, settings: Settings, s3: S3Server, audio: bytes, field: str
) -> None:
    ref_text = "Hi." if field == "ref_text" else REF_TEXT
    answer = _post(client, {"request": _job(ref_text=ref_text), "ref_audio": _file(audio)})
    assert_problem(answer, 422, field)
    assert _stored_references(settings, s3) == 0


def test_a_bad_request_stores_no_clip(client: FlaskClient, settings: Settings, s3: S3Server) -> None:
    assert_problem(_post(client, {"request": _job(speed=99), "ref_audio": _file(clip())}), 422, "speed")
    assert_problem(_post(client, {"request": _job(language="klingonese"), "ref_audio": _file(clip())}), 422, "language")
    assert _stored_references(settings, s3) == 0


def test_clip_without_transcript(client: FlaskClient) -> None:
    parts = {"request": json.dumps({"text": "Good morning."}), "ref_audio": _file(clip())}
    assert_problem(_post(client, parts), 422, "ref_text")


def test_transcript_without_clip(client: FlaskClient) -> None:
    assert_problem(_post(client, {"request": _job()}), 422, "ref_text")


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"ref_audio": "file"}, "request"),
        ({"request": "job", "ref_audio": "file", "reference": "job"}, "reference"),
        ({"request": "job", "ref_audoi": "file"}, "ref_audoi"),
        ({"request": "job", "ref_audio": "job"}, "ref_audio"),
    ],
    ids=["no-request", "unknown-part", "misspelt-part", "audio-not-a-file"],
)
def test_parts_that_are_not_allowed(client: FlaskClient, parts: dict[str, str], field: str) -> None:
    built = {name: _file(clip(1.5)) if kind == "file" else _job() for name, kind in parts.items()}
    assert_problem(_post(client, built), 422, field)


def test_misspelt_part_names_the_nearest(client: FlaskClient) -> None:
    problem = assert_problem(_post(client, {"request": _job(), "ref_audoi": _file(clip())}), 422)
    assert "did you mean ref_audio?" in problem["detail"]


def test_a_part_twice(client: FlaskClient) -> None:
    assert_problem(_post(client, {"request": _job(), "ref_audio": [_file(clip()), _file(clip())]}), 422, "ref_audio")


@pytest.mark.parametrize("body", ["{", '{"text": NaN}', ""])
def test_request_part_that_is_no_json(client: FlaskClient, body: str) -> None:
    assert_problem(_post(client, {"request": body, "ref_audio": _file(clip())}), 400, "request")


def test_no_boundary(client: FlaskClient) -> None:
    assert_problem(client.post("/v1/jobs", data=b"--x", content_type="multipart/form-data"), 400, "Content-Type")


def test_too_many_parts_and_too_many_bytes(settings: Settings) -> None:
    client = build_app(settings.model_copy(update={"max_request_bytes": 20_000})).test_client()
    for parts in ({"request": _job(), "ref_audio": _file(clip())}, {f"part{i}": "x" for i in range(100)}):
        detail = assert_problem(_post(client, parts), 413, "body")["detail"]
        assert re.fullmatch(r"body: must have at most 20000 bytes in \d+ parts, \d+ of them beside files", detail)


def test_same_key_with_another_clip_is_another_body(client: FlaskClient) -> None:
    headers = {"Idempotency-Key": "voice-1"}
    first = _post(client, {"request": _job(), "ref_audio": _file(clip(3.0))}, headers=headers)
    again = _post(client, {"request": _job(), "ref_audio": _file(clip(3.0))}, headers=headers)
    assert first.get_json()["id"] == again.get_json()["id"]
    assert_problem(_post(client, {"request": _job(), "ref_audio": _file(clip(4.0))}, headers=headers), 422)


def test_no_store_means_no_promise(settings: Settings) -> None:
    client = build_app(settings.model_copy(update={"s3_bucket": "no-such-bucket"})).test_client()
    answer = _post(client, {"request": _job(), "ref_audio": _file(clip())})
    assert_problem(answer, 503)
    assert int(answer.headers["Retry-After"]) >= 1
    assert set(Ledger.from_settings(settings).depth().values()) == {0}
