"""What the ledger takes in: the bound, idempotency keys, and records that this release cannot read."""

from __future__ import annotations

import json

import pytest
from job_examples import new_job, result_of, running, submitted
from redis import Redis
from servers import wait_until

from worker.jobs import names
from worker.jobs.errors import IdempotencyConflict, QueueFull, QueueUnavailable
from worker.jobs.ledger import Ledger, Refusal, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


def with_settings(ledger_redis: Redis, settings: Settings, **changes: object) -> Ledger:
    return Ledger(ledger_redis, Settings.model_validate({**settings.model_dump(), **changes}))


def test_submitting_again_leaves_the_job_as_it_is(ledger: Ledger) -> None:
    new = new_job()
    ledger.submit(new)
    claim = running(ledger, new.id)
    record, created = ledger.submit(new)  # as if the first answer had come late
    assert created
    assert (record.status, record.attempts) == (Status.RUNNING, 1)
    assert ledger.complete(claim, result_of(claim))


def test_a_job_is_announced_once_with_its_record(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = with_settings(redis_client, redis_settings, max_published=2)
    waiting = names.message_list_key(redis_settings.redis_prefix, Queue.BULK.value)
    first, keyed, beyond = (new_job(f"Number {key}.", key=key, queue="bulk") for key in ("a", "b", "c"))
    for new in (first, first, keyed, new_job("Number b.", key="b", queue="bulk"), beyond):
        ledger.submit(new)
    messages = [json.loads(message) for message in redis_client.lrange(waiting, 0, -1)]
    assert [json.loads(message["body"])[0] for message in messages] == [[keyed.id], [first.id]]
    assert {message["properties"]["delivery_info"]["routing_key"] for message in messages} == {Queue.BULK.value}
    assert len({message["properties"]["delivery_tag"] for message in messages}) == 2
    running(ledger, first.id)  # its claim makes room for what waits
    assert redis_client.llen(waiting) == 2, "the list is as long as it may be: nobody has taken a message"
    redis_client.rpop(waiting)
    running(ledger, keyed.id)
    assert json.loads(json.loads(redis_client.lindex(waiting, 0))["body"])[0] == [beyond.id]


def test_a_full_queue_refuses_and_takes_again_when_a_job_ends(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = with_settings(redis_client, redis_settings, max_queue=2)
    first, _ = submitted(ledger), submitted(ledger, queue="bulk")
    with pytest.raises(QueueFull, match="2 unfinished") as refused:
        ledger.submit(new_job())
    assert refused.value.retry_after > 0
    running(ledger, first)
    with pytest.raises(QueueFull):
        ledger.submit(new_job())
    ledger.cancel(first)
    with pytest.raises(QueueFull):  # it still runs
        ledger.submit(new_job())
    wait_until(lambda: not ledger.overdue() and ledger.get(first).status.is_final, 5, "the end")
    submitted(ledger)


def test_an_idempotency_key_leads_to_one_job(ledger: Ledger) -> None:
    first, created = ledger.submit(new_job("Hello.", key="k"))
    assert created
    again, created = ledger.submit(new_job("Hello.", key="k"))
    assert not created
    assert again == first
    with pytest.raises(IdempotencyConflict):
        ledger.submit(new_job("Good bye.", key="k"))
    other, created = ledger.submit(new_job("Good bye.", key="k", owner="other"))
    assert created
    assert other.id != first.id
    assert ledger.depth()[Queue.INTERACTIVE] == 2


def test_an_idempotency_key_finds_its_job_when_the_queue_is_full(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = with_settings(redis_client, redis_settings, max_queue=1)
    first, _ = ledger.submit(new_job(key="k"))
    assert ledger.submit(new_job(key="k")) == (first, False)


def test_an_idempotency_key_is_forgotten_after_the_retention(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = with_settings(redis_client, redis_settings, retention_hours=0.1 / 3600)
    first, _ = ledger.submit(new_job("Hello.", key="k"))
    running_claim = running(ledger, first.id)
    assert ledger.complete(running_claim, result_of(running_claim))
    wait_until(lambda: ledger.get(first.id) is None, 5, "the retention to pass")
    _, created = ledger.submit(new_job("Good bye.", key="k"))
    assert created


def test_a_record_of_a_newer_release_is_left_alone(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    job_id = submitted(ledger)
    key = names.job_key(redis_settings.redis_prefix, job_id)
    redis_client.hset(key, mapping={"schema": 2, "request": "what only the newer release can read"})
    before = redis_client.hgetall(key)
    assert ledger.claim(job_id, "worker") == Refusal(job_id, RefusalReason.NEWER_SCHEMA)
    with pytest.raises(QueueUnavailable, match="newer release"):
        ledger.cancel(job_id)
    with pytest.raises(QueueUnavailable, match="newer release"):
        ledger.get(job_id)
    wait_until(lambda: ledger.overdue() == [(job_id, Queue.INTERACTIVE)], 5, "its announcement")  # for a newer worker
    assert redis_client.hgetall(key) == before


def test_a_request_that_cannot_be_read_fails_its_job(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    job_id = submitted(ledger)
    key = names.job_key(redis_settings.redis_prefix, job_id)
    redis_client.hset(key, "request", '{"text": "Hello.", "field_of_another_release": 1}')
    assert ledger.claim(job_id, "worker") == Refusal(job_id, RefusalReason.UNREADABLE)
    assert redis_client.hmget(key, "status") == ["failed"]
    assert "unreadable-request" in redis_client.hget(key, "error")
