"""Messages, and the reconciler's view of the broker's list, on a real Redis through real Celery."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from job_examples import claimed, running, submitted
from redis import Redis
from redis.exceptions import RedisError
from servers import run_redis, wait_until
from soak.proxy import proxy_to

from worker.jobs import names
from worker.jobs.broker import make_celery, publish
from worker.jobs.connection import connect
from worker.jobs.ledger import Ledger
from worker.jobs.models import Queue
from worker.jobs.reconciler import Reconciler
from worker.jobs.settings import Settings


@pytest.fixture
def app(redis_settings: Settings) -> Iterator[Celery]:
    app = make_celery(redis_settings)
    yield app
    app.close()


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


@pytest.fixture
def patient(redis_client: Redis, redis_settings: Settings) -> Ledger:
    """With leases that do not lapse while a busy machine takes its time."""
    return Ledger(redis_client, redis_settings.model_copy(update={"lease_seconds": 60.0}))


def body_of(message: str) -> Any:
    """Celery's (args, kwargs, embed) of a message as it lies in the list."""
    return json.loads(base64.b64decode(json.loads(message)["body"]))


def take_message(redis_client: Redis, prefix: str, queue: Queue) -> str:
    """What a worker's consumer does: the oldest message leaves the list. Gives the job's id."""
    args, _, _ = body_of(redis_client.rpop(names.message_list_key(prefix, queue.value)))
    return str(args[0])


@pytest.mark.parametrize("queue", list(Queue))
def test_a_message_carries_only_the_id(app: Celery, redis_client: Redis, prefix: str, queue: Queue) -> None:
    job_id = names.new_job_id()
    assert publish(app, job_id, queue)
    messages = redis_client.lrange(names.message_list_key(prefix, queue.value), 0, -1)
    assert len(messages) == 1
    headers = json.loads(messages[0])["headers"]
    assert (headers["task"], headers["argsrepr"], headers["kwargsrepr"]) == (names.TASK_NAME, "", "")
    assert body_of(messages[0])[:2] == [[job_id], {}]


def test_every_key_of_the_broker_is_under_the_prefix(app: Celery, redis_client: Redis, prefix: str) -> None:
    before = set(redis_client.keys("*"))
    publish(app, names.new_job_id(), Queue.BULK)
    new = set(redis_client.keys("*")) - before
    assert new
    assert all(key.startswith(names.broker_prefix(prefix)) for key in new), new


def test_publishing_without_redis_is_reported_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    app = make_celery(Settings(redis_url="redis://:secret-word@127.0.0.1:1/0"))
    with caplog.at_level(logging.WARNING):
        assert publish(app, names.new_job_id(), Queue.INTERACTIVE) is False
    assert "was not announced" in caplog.text
    assert "secret-word" not in caplog.text


def test_publishing_at_once_over_a_connection_that_breaks_is_done(redis_settings: Settings, prefix: str) -> None:
    num_threads, num_each = 8, 100
    messages = names.message_list_key(prefix, "interactive")
    with proxy_to(redis_settings.redis_url) as proxy, connect(redis_settings) as redis:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        app = make_celery(redis_settings.model_copy(update={"redis_url": url}))
        # As kombu's pool does when a producer cannot be revived: it releases its connection twice, and so gives it to
        # more than one thread.
        shared = app.pool.acquire()
        for _ in range(num_threads):
            app.pool.release(shared)

        def publish_many(_: int) -> list[bool]:
            return [publish(app, names.new_job_id(), Queue.INTERACTIVE) for _ in range(num_each)]

        with ThreadPoolExecutor(num_threads) as pool:
            published = [pool.submit(publish_many, index) for index in range(num_threads)]

            def all_done() -> bool:
                return all(future.done() for future in published)

            while not all_done():
                # Not sooner than all are at work again: nothing else is promised than one repetition.
                num_before = redis.llen(messages)
                wait_until(lambda before=num_before: redis.llen(messages) >= before + 5 * num_threads or all_done())
                proxy.reset_all()
            assert all(all(future.result()) for future in published)
        app.close()
        # One whose answer was lost is published twice, which is harmless.
        assert redis.llen(messages) >= num_threads * num_each


def test_what_was_handed_back_goes_before_the_backlog_and_announces_nothing_of_it(
    app: Celery, patient: Ledger, redis_client: Redis, prefix: str
) -> None:
    ledger = patient
    waiting = [submitted_before(ledger, redis_client, prefix, age) for age in (3000, 2000, 1000)]
    for job_id in waiting:
        publish(app, job_id, Queue.INTERACTIVE)
    claim = running(ledger, take_message(redis_client, prefix, Queue.INTERACTIVE))
    ledger.release([claim], announces=True)
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == [], "its holder announces it"
    publish(app, claim.id, Queue.INTERACTIVE, first=True)
    assert take_message(redis_client, prefix, Queue.INTERACTIVE) == claim.id
    claimed(ledger, claim.id)
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == [], "that it was taken says nothing of the others"
    assert [take_message(redis_client, prefix, Queue.INTERACTIVE) for _ in range(2)] == waiting[1:]


def test_a_message_that_was_put_first_and_is_lost_is_announced_again(
    app: Celery, patient: Ledger, redis_client: Redis, prefix: str
) -> None:
    ledger = patient
    lost, taken, waiting = (submitted_before(ledger, redis_client, prefix, age) for age in (3000, 2000, 1000))
    for job_id in (lost, taken, waiting):
        publish(app, job_id, Queue.INTERACTIVE)
    assert take_message(redis_client, prefix, Queue.INTERACTIVE) == lost
    ledger.release([running(ledger, lost)], announces=True)  # and its worker dies before it publishes
    redis_client.hincrby(names.job_key(prefix, lost), "first_ms", -1)  # not in the millisecond of the next claim
    claimed(ledger, take_message(redis_client, prefix, Queue.INTERACTIVE))
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == [(lost, Queue.INTERACTIVE)]
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == []


def test_reconciler_puts_the_oldest_first(app: Celery, ledger: Ledger, redis_client: Redis, prefix: str) -> None:
    ids = [submitted_before(ledger, redis_client, prefix, age) for age in (3000, 2000, 1000)]
    for score, job_id in enumerate(ids):
        redis_client.zadd(names.due_key(prefix, "interactive"), {job_id: score})
    publish(app, names.new_job_id(), Queue.BULK)
    assert Reconciler(ledger, partial(publish, app, first=True), lease_seconds=60).reconcile() == 3
    assert [take_message(redis_client, prefix, Queue.INTERACTIVE) for _ in ids] == ids


def test_a_long_backlog_is_not_announced_again(app: Celery, ledger: Ledger, redis_client: Redis, prefix: str) -> None:
    ids = [submitted(ledger) for _ in range(5)]
    for job_id in ids:
        publish(app, job_id, Queue.INTERACTIVE)
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == []  # their messages are still in the list
    assert redis_client.llen(names.message_list_key(prefix, "interactive")) == 5


def test_a_message_lost_within_a_backlog_is_announced_again(
    app: Celery, ledger: Ledger, redis_client: Redis, prefix: str
) -> None:
    lost, taken, *waiting = ids = [
        submitted_before(ledger, redis_client, prefix, age) for age in (4000, 3000, 2000, 1000)
    ]
    for job_id in ids:
        publish(app, job_id, Queue.INTERACTIVE)
    assert take_message(redis_client, prefix, Queue.INTERACTIVE) == lost  # and its worker dies before the claim
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == []  # nothing tells yet that it is gone
    assert take_message(redis_client, prefix, Queue.INTERACTIVE) == taken
    claimed(ledger, taken)
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == [(lost, Queue.INTERACTIVE)]
    make_all_due(redis_client, prefix)
    assert ledger.overdue() == []
    assert len(waiting) == redis_client.llen(names.message_list_key(prefix, "interactive"))


def test_a_job_that_was_never_announced_is_found(ledger: Ledger) -> None:
    job_id = submitted(ledger, queue="bulk")
    wait_until(lambda: ledger.overdue() == [(job_id, Queue.BULK)], 5, "the announcement")


def test_a_dead_workers_job_is_found_behind_any_backlog(
    app: Celery, ledger: Ledger, redis_client: Redis, prefix: str
) -> None:
    waiting = [submitted(ledger) for _ in range(20)]
    for job_id in waiting:
        publish(app, job_id, Queue.INTERACTIVE)
    claim = running(ledger, submitted(ledger))
    make_all_due(redis_client, prefix)
    found = (claim.id, Queue.INTERACTIVE)  # beside it, one of the waiting may be announced
    wait_until(lambda: found in ledger.overdue(limit=1), 5, "the announcement")


def test_overdue_looks_at_no_more_than_its_limit(ledger: Ledger, redis_client: Redis, prefix: str) -> None:
    ids = {submitted(ledger) for _ in range(7)}
    make_all_due(redis_client, prefix)
    found = [ledger.overdue(limit=3) for _ in range(4)]
    assert [len(each) for each in found] == [3, 3, 1, 0]
    assert {job_id for each in found for job_id, _ in each} == ids


def submitted_before(ledger: Ledger, redis_client: Redis, prefix: str, age_ms: int) -> str:
    """A job announced `age_ms` ago, so that the order of several does not hang on the clock's steps."""
    job_id = submitted(ledger)
    redis_client.hincrbyfloat(names.job_key(prefix, job_id), "announced_ms", -age_ms)
    return job_id


def make_all_due(redis_client: Redis, prefix: str) -> None:
    """As if the time had come at which the reconciler looks at each waiting job."""
    key = names.due_key(prefix, "interactive")
    for job_id in redis_client.zrange(key, 0, -1):
        redis_client.zadd(key, {job_id: 0})


def test_a_message_that_could_not_be_acknowledged_holds_no_place(redis_url: str, tmp_path: Path) -> None:
    received: list[Any] = []
    with run_redis(tmp_path) as url, Redis.from_url(url) as redis, make_celery(Settings(redis_url=url)) as app:
        for _ in range(2):
            assert publish(app, names.new_job_id(), Queue.INTERACTIVE)
        with (
            app.connection_for_read() as connection,
            app.amqp.TaskConsumer(connection, callbacks=[lambda _, message: received.append(message)]) as consumer,
        ):
            consumer.qos(prefetch_count=1)
            connection.drain_events(timeout=5)
            redis.config_set("min-replicas-to-write", 1)
            with pytest.raises(RedisError):
                received[0].ack()
            redis.config_set("min-replicas-to-write", 0)
            connection.drain_events(timeout=5)
    assert len(received) == 2
