"""Jobs and results for tests of the queue."""

from __future__ import annotations

from typing import Any

from worker.jobs import names
from worker.jobs.ledger import Claim, JobRecord, Ledger, NewJob
from worker.jobs.models import JobError, JobRequest, JobResult, Timings
from worker.jobs.names import new_job_id

FAILURE = JobError(type="generation-failed", title="Generation failed", detail="the result is silent")


def new_job(text: str = "Nice to meet you.", *, owner: str = "test", key: str | None = None, **body: Any) -> NewJob:
    """A job that is not submitted yet; `key` is an idempotency key, whose fingerprint is the text."""
    request = JobRequest.parse({"text": text, **body})
    return NewJob(new_job_id(), request, 1.5, owner, idempotency_key=key, fingerprint=text)


def submitted(ledger: Ledger, **body: Any) -> str:
    """Id of a new job in the ledger, whose message is lost: a test puts in those that it needs."""
    record, created = ledger.submit(new_job(**body))
    assert created
    lose_message(ledger, record)
    return record.id


def lose_message(ledger: Ledger, record: JobRecord) -> None:
    """The job's message, if it has one, leaves the broker's list, and no worker has it."""
    messages = names.message_list_key(ledger._prefix, record.queue.value)
    for message in ledger._redis.lrange(messages, 0, -1):
        if record.id in message:
            ledger._redis.lrem(messages, 1, message)


def claimed(ledger: Ledger, job_id: str, worker: str = "worker") -> Claim:
    claim = ledger.claim(job_id, worker)
    assert isinstance(claim, Claim), claim
    return claim


def running(ledger: Ledger, job_id: str, worker: str = "worker") -> Claim:
    claim = claimed(ledger, job_id, worker)
    assert ledger.start([claim]) == [True]
    return claim


def result_of(claim: Claim, digest: str = "0" * 64) -> JobResult:
    """What a worker stores for `claim`; `digest` tells results apart."""
    timings = Timings(queued_ms=1.0, batched_ms=2.0, generated_ms=3.0, decoded_ms=4.0, uploaded_ms=5.0)
    return JobResult(
        uri=f"s3://omnivoice/audio/{claim.id}/{claim.token}.wav",
        sha256=digest,
        bytes=44,
        content_type="audio/wav",
        format="wav",
        duration_seconds=1.5,
        sample_rate=24_000,
        seed=2**64 - 1,
        timings=timings,
        batch_size=1,
    )
