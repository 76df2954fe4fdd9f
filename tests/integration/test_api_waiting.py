"""Long polls are told of ends as they come; what nobody was told of is found by looking."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from api_service import build_app, submit, succeed_job
from redis import Redis
from servers import wait_until

from api.waiting import LongPoll
from worker.jobs import names
from worker.jobs.ledger import JobRecord, Ledger
from worker.jobs.models import Status
from worker.jobs.settings import Settings

NEVER = 3_600.0
PATIENCE_SECONDS = 30.0


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger.from_settings(settings)


@pytest.fixture
def redis(settings: Settings) -> Redis:
    return Redis.from_url(settings.redis_url, decode_responses=True)


def record_of(ledger: Ledger, job_id: str) -> JobRecord:
    record = ledger.get(job_id)
    assert record is not None
    return record


def is_listened_to(redis: Redis, settings: Settings, listeners: int = 1) -> bool:
    channel = names.ended_channel(settings.redis_prefix)
    return dict(redis.pubsub_numsub(channel))[channel] == listeners


def test_every_waiter_is_told_of_its_own_job(settings: Settings, ledger: Ledger, redis: Redis) -> None:
    """With looks an hour apart only the publication can have told them: of success, and of a cancel."""
    client = build_app(settings).test_client()
    poll = LongPoll(ledger, threading.Event(), max_waiting=8, look_seconds=NEVER)
    succeeding, cancelled, staying = (submit(client) for _ in range(3))
    with ThreadPoolExecutor(4) as pool:
        waits: dict[str, list[Future[tuple[JobRecord, bool]]]] = {
            job: [pool.submit(poll.wait, record_of(ledger, job), seconds) for seconds in waiting]
            for job, waiting in {succeeding: [60.0, 60.0], cancelled: [60.0], staying: [1.0]}.items()
        }
        wait_until(lambda: is_listened_to(redis, settings), PATIENCE_SECONDS, "a subscription")
        succeed_job(settings, succeeding)
        ledger.cancel(cancelled)
        for wait in waits[succeeding]:
            record, honoured = wait.result(PATIENCE_SECONDS)
            assert (record.status, honoured) == (Status.SUCCEEDED, True)
        assert waits[cancelled][0].result(PATIENCE_SECONDS)[0].status == Status.CANCELLED
        assert waits[staying][0].result(PATIENCE_SECONDS)[0].status == Status.QUEUED


def test_an_end_that_comes_before_the_wait_is_seen_at_once(settings: Settings, ledger: Ledger) -> None:
    job_id = submit(build_app(settings).test_client())
    before = record_of(ledger, job_id)
    succeed_job(settings, job_id)
    poll = LongPoll(ledger, threading.Event(), max_waiting=1, look_seconds=NEVER)
    assert poll.wait(before, 60.0)[0].status == Status.SUCCEEDED


def test_a_lost_subscription_costs_a_look_and_is_renewed(settings: Settings, ledger: Ledger, redis: Redis) -> None:
    client = build_app(settings).test_client()
    poll = LongPoll(ledger, threading.Event(), max_waiting=2, look_seconds=0.2)
    first, second = submit(client), submit(client)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(poll.wait, record_of(ledger, first), 60.0)
        wait_until(lambda: is_listened_to(redis, settings), PATIENCE_SECONDS, "a subscription")
        redis.client_kill_filter(_type="pubsub")
        succeed_job(settings, first)
        assert waiting.result(PATIENCE_SECONDS)[0].status == Status.SUCCEEDED
        wait_until(lambda: is_listened_to(redis, settings), PATIENCE_SECONDS, "a new subscription")
        waiting = pool.submit(poll.wait, record_of(ledger, second), 60.0)
        succeed_job(settings, second)
        assert waiting.result(PATIENCE_SECONDS)[0].status == Status.SUCCEEDED


def test_a_stop_ends_every_wait(settings: Settings, ledger: Ledger, redis: Redis) -> None:
    stopping = threading.Event()
    poll = LongPoll(ledger, stopping, max_waiting=2, look_seconds=NEVER)
    job_id = submit(build_app(settings).test_client())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll.wait, record_of(ledger, job_id), 60.0)
        wait_until(lambda: is_listened_to(redis, settings), PATIENCE_SECONDS, "a subscription")
        started = time.monotonic()
        stopping.set()
        record, honoured = waiting.result(PATIENCE_SECONDS)
    assert (record.status, honoured) == (Status.QUEUED, False)
    assert time.monotonic() - started < 5
    wait_until(lambda: is_listened_to(redis, settings, 0), PATIENCE_SECONDS, "the end of the subscription")
