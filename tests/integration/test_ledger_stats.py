"""The ledger's numbers: each event is counted once, by the script that makes it happen."""

from __future__ import annotations

import time

import pytest
from job_examples import FAILURE, claimed, new_job, result_of, running, submitted
from redis import Redis
from servers import wait_until

from worker.jobs import names
from worker.jobs.ledger import Ledger, Refusal, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings
from worker.jobs.stats import QueueStats


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


def interactive(ledger: Ledger) -> QueueStats:
    return ledger.stats()[Queue.INTERACTIVE]


def test_an_empty_ledger(ledger: Ledger) -> None:
    for stats in ledger.stats().values():
        assert (stats.num_waiting, stats.num_leased, stats.oldest_seconds, stats.submitted) == (0, 0, None, 0)
        assert dict(stats.ended) == dict.fromkeys(
            [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED], 0
        )


def test_jobs_are_counted_by_queue_from_submit_to_end(ledger: Ledger) -> None:
    submitted(ledger, queue="bulk")
    claim = claimed(ledger, submitted(ledger))
    stats = ledger.stats()
    assert (stats[Queue.BULK].num_waiting, stats[Queue.BULK].num_leased) == (1, 0)
    assert (stats[Queue.INTERACTIVE].num_waiting, stats[Queue.INTERACTIVE].num_leased) == (0, 1)
    ledger.start([claim])
    assert ledger.complete(claim, result_of(claim))
    assert ledger.complete(claim, result_of(claim)), "its answer was lost: the same call again"
    stats = ledger.stats()
    assert stats[Queue.INTERACTIVE].ended[Status.SUCCEEDED] == 1
    assert (stats[Queue.INTERACTIVE].submitted, stats[Queue.INTERACTIVE].attempts) == (1, 1)
    assert stats[Queue.BULK].submitted == 1
    assert not any(stats[Queue.BULK].ended.values())


def test_a_submission_that_is_repeated_counts_once(ledger: Ledger) -> None:
    new = new_job(key="k")
    for _ in range(3):
        ledger.submit(new)
    ledger.submit(new_job(key="k"))
    assert interactive(ledger).submitted == 1


def test_age_is_that_of_the_oldest_job_that_has_not_ended(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    old, young = submitted(ledger), submitted(ledger)
    ages = names.ages_key(redis_settings.redis_prefix, "interactive")
    redis_client.zincrby(ages, -100_000, old)
    redis_client.zincrby(ages, -50_000, young)
    assert interactive(ledger).oldest_seconds == pytest.approx(100, abs=5)
    claim = running(ledger, old)
    assert interactive(ledger).oldest_seconds == pytest.approx(100, abs=5), "running jobs count"
    ledger.end(claim, Status.FAILED, FAILURE)
    assert interactive(ledger).oldest_seconds == pytest.approx(50, abs=5)
    ledger.cancel(young)
    assert interactive(ledger).oldest_seconds is None
    assert interactive(ledger).ended[Status.CANCELLED] == 1


def test_retries_lapsed_leases_and_poison(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = Ledger(redis_client, redis_settings.model_copy(update={"max_attempts": 2}))
    claim = running(ledger, submitted(ledger))
    assert ledger.retry(claim, 0.0)
    assert (interactive(ledger).retried, interactive(ledger).lapsed) == (1, 0)
    running(ledger, claim.id)
    wait_until(lambda: claim.id in dict(ledger.overdue()), 5, "the lease to lapse")
    assert (interactive(ledger).lapsed, interactive(ledger).announced) == (1, 1)
    assert ledger.claim(claim.id, "worker") == Refusal(claim.id, RefusalReason.POISON)
    assert ledger.claim(claim.id, "worker") == Refusal(claim.id, RefusalReason.ENDED)
    stats = interactive(ledger)
    assert (stats.poison, stats.ended[Status.FAILED], stats.attempts) == (1, 1, 2)


def test_a_lease_that_a_claim_finds_lapsed_counts(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    time.sleep(0.35)  # the lease is 0.3 s, and nobody reconciles
    claimed(ledger, claim.id, "other")
    assert interactive(ledger).lapsed == 1


def test_a_record_that_was_removed_by_hand_is_no_oldest_job(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    job_id = submitted(ledger)
    redis_client.delete(names.job_key(redis_settings.redis_prefix, job_id))
    redis_client.zadd(names.due_key(redis_settings.redis_prefix, "interactive"), {job_id: 0})
    assert ledger.overdue() == []
    assert interactive(ledger).oldest_seconds is None
