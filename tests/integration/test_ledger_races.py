"""Several processes' worth of threads on one ledger at once, each with a connection of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from job_examples import FAILURE, claimed, new_job, result_of, running, submitted
from redis import Redis
from servers import wait_until

from worker.jobs.errors import QueueFull
from worker.jobs.ledger import CancelOutcome, Claim, Ledger, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings

T = TypeVar("T")


@pytest.fixture
def slow_lease(redis_client: Redis, redis_settings: Settings) -> Settings:
    """Settings under which no lease lapses while a test races."""
    return redis_settings.model_copy(update={"lease_seconds": 60.0})


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """`call(i)` for each i, all let go at the same moment."""
    barrier = threading.Barrier(count)

    def wait_and_call(index: int) -> T:
        barrier.wait(10)
        return call(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def test_fifty_copies_of_a_message_lead_to_one_lease(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease)
    job_id = submitted(ledger)
    answers = at_once(50, lambda index: ledger.claim(job_id, f"worker-{index}"))
    claims = [answer for answer in answers if isinstance(answer, Claim)]
    assert len(claims) == 1
    assert {answer.reason for answer in answers if not isinstance(answer, Claim)} == {RefusalReason.LEASED}
    assert ledger.start(claims) == [True]


def test_two_reconcilers_announce_a_job_once(redis_client: Redis, redis_settings: Settings) -> None:
    ledgers = [Ledger.from_settings(redis_settings) for _ in range(2)]
    ids = [submitted(ledgers[0]) for _ in range(40)]
    claims = [claimed(ledgers[0], job_id) for job_id in ids]
    ledgers[0].release(claims)  # all of them are due now
    rounds = at_once(2, lambda index: [ledgers[index].overdue(limit=5) for _ in range(8)])
    seen = Counter(job_id for found in rounds for ids_found in found for job_id, _ in ids_found)
    assert seen == Counter(ids)


def test_one_key_sent_many_times_at_once_is_one_job(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease)
    answers = at_once(20, lambda _: ledger.submit(new_job(key="k")))
    assert sum(created for _, created in answers) == 1
    assert len({record.id for record, _ in answers}) == 1
    assert ledger.depth()[Queue.INTERACTIVE] == 1


def test_the_queue_never_holds_more_than_its_bound(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease.model_copy(update={"max_queue": 7}))

    def try_submit(_: int) -> bool:
        try:
            return ledger.submit(new_job())[1]
        except QueueFull:
            return False

    assert sum(at_once(20, try_submit)) == 7
    assert sum(ledger.depth().values()) == 7


def test_cancel_against_start(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease)
    for _ in range(25):
        claim = claimed(ledger, submitted(ledger))
        outcome, started = at_once(2, lambda i, c=claim: ledger.cancel(c.id) if i == 0 else ledger.start([c])[0])
        expected = {CancelOutcome.CANCELLED: False, CancelOutcome.CANCELLING: True}
        assert started is expected[outcome]
        assert ledger.end(claim, Status.CANCELLED)
        assert ledger.get(claim.id).status is Status.CANCELLED


def test_cancel_against_complete(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease)
    for _ in range(25):
        claim = running(ledger, submitted(ledger))
        outcome, completed = at_once(
            2, lambda i, c=claim: ledger.cancel(c.id) if i == 0 else ledger.complete(c, result_of(c))
        )
        record = ledger.get(claim.id)
        if completed:
            assert (outcome, record.status) == (CancelOutcome.ENDED, Status.SUCCEEDED)
        else:
            assert (outcome, record.status, record.result) == (CancelOutcome.CANCELLING, Status.CANCELLED, None)


def test_a_lapsed_holder_and_its_successor_never_both_end_a_job(redis_client: Redis, redis_settings: Settings) -> None:
    ledger = Ledger.from_settings(redis_settings)
    late = running(ledger, submitted(ledger))
    wait_until(ledger.overdue, 5, "the lease to lapse")
    fresh = running(ledger, late.id, "other")
    calls: list[Callable[[], bool]] = [
        lambda: ledger.complete(late, result_of(late, "a" * 64)),
        lambda: ledger.complete(fresh, result_of(fresh, "b" * 64)),
        lambda: ledger.end(late, Status.FAILED, FAILURE),
    ]
    assert at_once(3, lambda index: calls[index]()) == [False, True, False]
    assert ledger.get(late.id).result.sha256 == "b" * 64


def test_many_workers_and_many_jobs_each_ends_once(slow_lease: Settings) -> None:
    ledger = Ledger.from_settings(slow_lease)
    ids = [submitted(ledger) for _ in range(30)]

    def work(worker: int) -> list[str]:
        done = []
        for job_id in ids:
            claim = ledger.claim(job_id, f"worker-{worker}")
            if (
                isinstance(claim, Claim)
                and ledger.start([claim]) == [True]
                and ledger.complete(claim, result_of(claim))
            ):
                done.append(job_id)
        return done

    done = [job_id for ids_done in at_once(6, work) for job_id in ids_done]
    assert sorted(done) == sorted(ids)
    assert sum(ledger.depth().values()) == 0
