"""What tests of the API share: an application on real servers, a worker's part, a clip, the shape of errors."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis
from werkzeug.test import TestResponse

from api.app import create_app
from tests.sounds import wav_of
from worker.jobs import names
from worker.jobs.connection import connect_for_clients
from worker.jobs.ledger import Claim, Ledger
from worker.jobs.models import JobError, JobResult, Status, Timings
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore

AUDIO = b"RIFF-like bytes that stand for a job's audio"
REF_TEXT = "Nice to meet you, I have heard a lot about your work."


def build_app(settings: Settings) -> Flask:
    """The application as `api.wsgi` builds it, from a settings object instead of the environment."""
    ledger = Ledger(connect_for_clients(settings), settings)
    return create_app(settings, ledger, ObjectStore(settings))


def submit(client: FlaskClient, **fields: Any) -> str:
    """Submit a job; gives its id."""
    answer = client.post("/v1/jobs", json={"text": "Good morning.", **fields})
    assert answer.status_code == 202, answer.text
    return str(answer.get_json()["id"])


def num_messages(settings: Settings, redis: Redis, queue: str = "interactive") -> int:
    """Messages that wait in the broker for a worker of `queue`."""
    return int(redis.llen(names.message_list_key(settings.redis_prefix, queue)))


def start_job(settings: Settings, job_id: str) -> tuple[Ledger, Claim]:
    """Claim a job and start it, as a worker does."""
    ledger = Ledger.from_settings(settings)
    claim = ledger.claim(job_id, "test-worker")
    assert isinstance(claim, Claim)
    assert ledger.start([claim]) == [True]
    return ledger, claim


def succeed_job(settings: Settings, job_id: str) -> JobResult:
    """Bring a queued job to its end, with `AUDIO` in the store."""
    ledger, claim = start_job(settings, job_id)
    store = ObjectStore(settings)
    key = names.audio_key(job_id, claim.token, "wav")
    store.put(key, AUDIO, "audio/wav")
    result = JobResult(
        uri=store.uri(key),
        sha256=hashlib.sha256(AUDIO).hexdigest(),
        bytes=len(AUDIO),
        content_type="audio/wav",
        format="wav",
        duration_seconds=1.5,
        sample_rate=24_000,
        seed=7,
        timings=Timings(queued_ms=1.0, batched_ms=2.0, generated_ms=3.0, decoded_ms=4.0, uploaded_ms=5.0),
        batch_size=1,
    )
    assert ledger.complete(claim, result)
    return result


def fail_job(settings: Settings, job_id: str) -> None:
    ledger, claim = start_job(settings, job_id)
    error = JobError(type="generation-failed", title="Generation failed", detail="the audio is silent")
    assert ledger.end(claim, Status.FAILED, error)


def clip(seconds: float = 3.0, sample_rate: int = 16_000) -> bytes:
    """A WAV file that could be a voice as far as a check can tell: a tone that swells and fades."""
    moment = np.arange(int(seconds * sample_rate)) / sample_rate
    samples = 0.3 * np.sin(2 * np.pi * 180 * moment) * (1 + 0.5 * np.sin(2 * np.pi * 3 * moment))
    return wav_of(samples, sample_rate)


def assert_problem(answer: TestResponse, status: int, field: str | None = None) -> dict[str, Any]:
    """The answer is an RFC 9457 problem with this status that blames `field`; gives its body."""
    assert answer.status_code == status, answer.text
    assert answer.content_type == "application/problem+json"
    problem: dict[str, Any] = answer.get_json(force=True)
    assert set(problem) <= {"type", "title", "status", "detail", "errors"}
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    if field is not None:
        assert field in [error["field"] for error in problem["errors"]]
        assert all(error["detail"] for error in problem["errors"])
    return problem
