"""Jobs made by the service's own code on real servers, for tests to damage."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from redis import Redis

from tests.job_examples import lose_message
from tests.soak.checker import Keys, Store, Verdict, judge
from tests.soak.evidence import Evidence, Submission
from tests.sounds import wav_of
from worker.jobs import names
from worker.jobs.ledger import Claim, Ledger, NewJob
from worker.jobs.models import JobRequest, JobResult, Timings
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore
from worker.synthesizers import tone_hertz

RATE = 24_000
MAX_ATTEMPTS = 3


@dataclass
class Scene:
    """Four jobs that ended as they should, made by the service's own code, and the evidence of their client."""

    redis: Redis
    settings: Settings
    store: Store
    writer: ObjectStore
    ledger: Ledger
    evidence: Evidence
    spoken: str
    other: str
    cancelled: str
    expired: str

    @property
    def keys(self) -> Keys:
        return Keys(self.settings.redis_prefix)

    def judge(self) -> Verdict:
        return judge(self.redis, self.store, self.evidence, MAX_ATTEMPTS, self.keys)

    def set(self, job_id: str, **fields: str | int) -> None:
        for name, value in fields.items():
            self.redis.hset(self.keys.job(job_id), name, str(value))

    def get(self, job_id: str, name: str) -> str:
        return str(self.redis.hget(self.keys.job(job_id), name))

    def change_result(self, job_id: str, **fields: object) -> None:
        self.set(job_id, result=json.dumps({**json.loads(self.get(job_id, "result")), **fields}))

    def object_key(self, job_id: str) -> str:
        return f"audio/{job_id}/{self.get(job_id, 'token')}.wav"

    def write(self, key: str, data: bytes) -> None:
        self.store.client.put_object(Bucket=self.store.bucket, Key=self.store.prefix + key, Body=data)

    def submit(self, index: int, **options: Any) -> str:
        submission = Submission(index, f"Job {index} says this.", **options)
        fields: dict[str, object] = {"text": submission.text, "metadata": {"index": str(index)}}
        if submission.expires_in is not None:
            fields["expires_in"] = submission.expires_in
        record, _ = self.ledger.submit(NewJob(names.new_job_id(), JobRequest.parse(fields), 0.5, "test"))
        lose_message(self.ledger, record)  # nobody here takes any
        self.evidence.note_attempt(submission)
        self.evidence.note_accepted(record.id, submission)
        return record.id

    def claim(self, job_id: str) -> Claim:
        claim = self.ledger.claim(job_id, "worker")
        assert isinstance(claim, Claim)
        return claim

    def succeed(self, job_id: str) -> None:
        claim = self.claim(job_id)
        assert self.ledger.start([claim]) == [True]
        key, data = names.audio_key(job_id, claim.token, "wav"), tone(claim.request.text)
        self.writer.put(key, data, "audio/wav")
        assert self.ledger.complete(claim, result_of(self.writer.uri(key), data))
        self.evidence.note_status(job_id, "succeeded")


def tone(text: str, seconds: float = 0.5) -> bytes:
    samples = 0.3 * np.sin(2 * np.pi * tone_hertz(text) * np.arange(round(seconds * RATE)) / RATE)
    return wav_of(samples, RATE)


def result_of(uri: str, data: bytes) -> JobResult:
    return JobResult(
        uri=uri,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        content_type="audio/wav",
        format="wav",
        duration_seconds=(len(data) - 44) / 2 / RATE,
        sample_rate=RATE,
        seed=0,
        timings=Timings(queued_ms=1.0, batched_ms=1.0, generated_ms=1.0, decoded_ms=1.0, uploaded_ms=1.0),
        batch_size=1,
    )
