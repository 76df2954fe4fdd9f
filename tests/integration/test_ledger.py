"""One job's life in the ledger, on a real Redis."""

from __future__ import annotations

import time

import pytest
from job_examples import FAILURE, claimed, new_job, result_of, running, submitted
from redis import Redis
from servers import wait_until

from worker.jobs import names
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import CancelOutcome, Claim, Hold, Ledger, Refusal, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


def let_lapse(ledger: Ledger, claim: Claim) -> None:
    """Wait until the lease of `claim` has lapsed and the reconciler has queued its job again."""
    wait_until(lambda: claim.id in dict(ledger.overdue()), 5, "a lapsed lease")


def test_a_job_from_submit_to_its_result(ledger: Ledger) -> None:
    new = new_job(seed=7, queue="bulk", metadata={"row": "12"})
    record, created = ledger.submit(new)
    assert created
    assert (record.id, record.status, record.attempts, record.queue) == (new.id, Status.QUEUED, 0, Queue.BULK)
    assert record.request == new.request
    assert abs(record.created_at - time.time() * 1000) < 5_000
    assert ledger.depth() == {Queue.INTERACTIVE: 0, Queue.BULK: 1}

    claim = claimed(ledger, new.id)
    assert (claim.attempts, claim.request, claim.queued_at_ms) == (0, new.request, record.created_at)
    assert ledger.get(new.id).status is Status.QUEUED
    assert ledger.start([claim]) == [True]
    started = ledger.get(new.id)
    assert (started.status, started.attempts) == (Status.RUNNING, 1)
    assert started.started_at >= record.created_at

    assert ledger.complete(claim, result_of(claim), warnings=["unknown tag [breath]"])
    ended = ledger.get(new.id)
    assert (ended.status, ended.result, ended.error) == (Status.SUCCEEDED, result_of(claim), None)
    assert ended.warnings == ("unknown tag [breath]",)
    assert ended.metadata == {"row": "12"}
    assert ended.finished_at >= started.started_at
    assert ledger.depth()[Queue.BULK] == 0


def test_warnings_of_submit_and_of_the_engine_are_joined_without_doubles(ledger: Ledger) -> None:
    new = new_job()
    ledger.submit(type(new)(new.id, new.request, 1.0, "test", warnings=("a", "b")))
    claim = running(ledger, new.id)
    ledger.complete(claim, result_of(claim), warnings=("b", "c"))
    assert ledger.get(new.id).warnings == ("a", "b", "c")


def test_an_unknown_job(ledger: Ledger) -> None:
    job_id = names.new_job_id()
    assert ledger.get(job_id) is None
    assert ledger.claim(job_id, "worker") == Refusal(job_id, RefusalReason.UNKNOWN)
    assert ledger.cancel(job_id) is CancelOutcome.UNKNOWN


def test_a_failed_job_keeps_its_error(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.end(claim, Status.FAILED, FAILURE)
    ended = ledger.get(claim.id)
    assert (ended.status, ended.error, ended.result) == (Status.FAILED, FAILURE, None)


def test_a_leased_job_is_refused_to_others(ledger: Ledger) -> None:
    claim = claimed(ledger, submitted(ledger))
    assert ledger.claim(claim.id, "other") == Refusal(claim.id, RefusalReason.LEASED)


def test_heartbeats_keep_a_lease(ledger: Ledger, redis_settings: Settings) -> None:
    claim = running(ledger, submitted(ledger))
    until = time.monotonic() + 2 * redis_settings.lease_seconds
    while time.monotonic() < until:
        assert ledger.heartbeat([claim]) == {claim.id: Hold.HELD}
        assert ledger.overdue() == []
        time.sleep(redis_settings.lease_seconds / 10)
    assert ledger.complete(claim, result_of(claim))


def test_a_lapsed_lease_queues_the_job_again_and_fences_its_holder_off(ledger: Ledger) -> None:
    late = running(ledger, submitted(ledger))
    let_lapse(ledger, late)
    queued = ledger.get(late.id)
    assert (queued.status, queued.attempts, queued.started_at) == (Status.QUEUED, 1, None)
    assert ledger.heartbeat([late]) == {late.id: Hold.LOST}
    assert not ledger.complete(late, result_of(late))

    fresh = running(ledger, late.id, "other")
    assert fresh.token > late.token
    assert fresh.must_run_alone
    assert not ledger.complete(late, result_of(late, "a" * 64))
    assert not ledger.end(late, Status.FAILED, FAILURE)
    assert not ledger.retry(late, 0)
    ledger.release([late])
    assert ledger.get(late.id).status is Status.RUNNING
    assert ledger.complete(fresh, result_of(fresh, "b" * 64))
    assert ledger.get(late.id).result.sha256 == "b" * 64


def test_claim_takes_over_a_lapsed_lease_without_a_reconciler(ledger: Ledger) -> None:
    late = running(ledger, submitted(ledger))
    fresh = wait_until(lambda: isinstance(found := ledger.claim(late.id, "other"), Claim) and found, 5, "a claim")
    assert ledger.get(late.id).status is Status.QUEUED
    assert not ledger.complete(late, result_of(late))
    assert ledger.start([late, fresh]) == [False, True]


def test_a_paused_job_keeps_its_lease_and_counts_a_new_attempt_when_it_starts(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    for _ in range(2):  # a repeated call gives nothing back twice
        assert ledger.pause(claim)
        paused = ledger.get(claim.id)
        assert (paused.status, paused.attempts, paused.started_at) == (Status.QUEUED, 0, None)
    assert ledger.claim(claim.id, "other").reason is RefusalReason.LEASED
    assert not ledger.complete(claim, result_of(claim))
    assert ledger.start([claim]) == [True]
    assert ledger.get(claim.id).attempts == 1
    assert ledger.complete(claim, result_of(claim))
    assert not ledger.pause(claim)


def test_a_job_is_not_completed_before_it_was_started(ledger: Ledger) -> None:
    claim = claimed(ledger, submitted(ledger))
    assert not ledger.complete(claim, result_of(claim))
    assert ledger.get(claim.id).status is Status.QUEUED


def test_a_job_that_never_ends_is_poison_after_max_attempts(ledger: Ledger, redis_settings: Settings) -> None:
    job_id = submitted(ledger)
    for attempt in range(redis_settings.max_attempts):
        claim = running(ledger, job_id)
        assert claim.attempts == attempt
        started_at = ledger.get(job_id).started_at
        let_lapse(ledger, claim)
    assert ledger.claim(job_id, "worker") == Refusal(job_id, RefusalReason.POISON)
    ended = ledger.get(job_id)
    assert ended.started_at == started_at > ended.created_at, "that of its last start"
    assert (ended.status, ended.error.type, ended.attempts) == (Status.FAILED, "poison", redis_settings.max_attempts)


def test_an_ended_job_tells_its_last_start_if_an_attempt_counts(ledger: Ledger) -> None:
    retried, released, paused = (running(ledger, submitted(ledger)) for _ in range(3))
    started_at = ledger.get(retried.id).started_at
    assert ledger.retry(retried, 60)
    ledger.release([released])
    assert ledger.pause(paused)
    for claim in (retried, released, paused):
        assert ledger.get(claim.id).started_at is None, "it waits"
        assert ledger.cancel(claim.id) is CancelOutcome.CANCELLED
    ended = [ledger.get(claim.id) for claim in (retried, released, paused)]
    assert [record.attempts for record in ended] == [1, 0, 0]
    assert [record.started_at for record in ended] == [started_at, None, None]


def test_jobs_that_only_waited_are_not_burnt(ledger: Ledger, redis_settings: Settings) -> None:
    job_id = submitted(ledger)
    for _ in range(redis_settings.max_attempts + 1):  # its worker dies each time before the window closes
        let_lapse(ledger, claimed(ledger, job_id))
    assert running(ledger, job_id).attempts == 0


def test_release_gives_the_attempt_back_and_the_job_is_due_at_once(ledger: Ledger) -> None:
    waiting, started = claimed(ledger, submitted(ledger)), running(ledger, submitted(ledger))
    ledger.release([waiting, started])
    assert [ledger.get(claim.id).attempts for claim in (waiting, started)] == [0, 0]
    assert {job_id for job_id, _ in ledger.overdue()} == {waiting.id, started.id}
    assert not ledger.complete(started, result_of(started))


def test_retry_keeps_the_attempt_and_waits(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.retry(claim, 0.2)
    assert ledger.overdue() == []
    wait_until(lambda: ledger.overdue() == [(claim.id, Queue.INTERACTIVE)], 5, "the retry to be due")
    assert ledger.get(claim.id).attempts == 1


def test_start_counts_once_for_each_lease(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.start([claim]) == [True]  # as if the first answer had been lost
    assert ledger.get(claim.id).attempts == 1


def test_ending_again_the_same_way_is_no_failure(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.complete(claim, result_of(claim))
    assert ledger.complete(claim, result_of(claim))  # as if the first answer had been lost
    assert not ledger.end(claim, Status.FAILED, FAILURE)


@pytest.mark.parametrize("final", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED])
def test_an_ended_job_never_changes(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings, final: Status
) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.complete(claim, result_of(claim)) if final is Status.SUCCEEDED else ledger.end(claim, final)
    key = names.job_key(redis_settings.redis_prefix, claim.id)
    before = redis_client.hgetall(key)
    assert before["status"] == final

    assert ledger.claim(claim.id, "other") == Refusal(claim.id, RefusalReason.ENDED)
    assert ledger.cancel(claim.id) is CancelOutcome.ENDED
    ledger.start([claim])
    ledger.heartbeat([claim])
    ledger.release([claim])
    ledger.retry(claim, 0)
    ledger.complete(claim, result_of(claim, "f" * 64), ["late"])
    for status in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
        ledger.end(claim, status, FAILURE)
    assert ledger.overdue() == []
    assert redis_client.hgetall(key) == before
    hours = redis_settings.retention_hours
    assert (hours - 1) * 3600 < redis_client.ttl(key) <= hours * 3600


def test_a_waiting_job_is_cancelled_at_once(ledger: Ledger) -> None:
    queued, leased = submitted(ledger), claimed(ledger, submitted(ledger))
    assert ledger.cancel(queued) is CancelOutcome.CANCELLED
    assert ledger.cancel(leased.id) is CancelOutcome.CANCELLED
    assert ledger.start([leased]) == [False]
    assert ledger.heartbeat([leased]) == {leased.id: Hold.CANCELLED}
    assert {ledger.get(job_id).status for job_id in (queued, leased.id)} == {Status.CANCELLED}
    assert ledger.depth()[Queue.INTERACTIVE] == 0


def test_an_accepted_cancel_wins_over_every_other_end(ledger: Ledger) -> None:
    claims = [running(ledger, submitted(ledger)) for _ in range(5)]
    assert {ledger.cancel(claim.id) for claim in claims} == {CancelOutcome.CANCELLING}
    assert ledger.get(claims[0].id).cancel_requested
    assert set(ledger.heartbeat(claims).values()) == {Hold.CANCELLED}
    obeyed, completed, failed, released, retried = claims
    assert ledger.end(obeyed, Status.CANCELLED)
    assert not ledger.complete(completed, result_of(completed))
    assert not ledger.end(failed, Status.FAILED, FAILURE)
    ledger.release([released])
    assert not ledger.retry(retried, 0)
    for claim in claims:
        ended = ledger.get(claim.id)
        assert (ended.status, ended.result, ended.error) == (Status.CANCELLED, None, None)


def test_a_job_cancelled_between_its_voice_and_its_window_does_not_start(ledger: Ledger) -> None:
    """Encoding a voice has counted the attempt already; the window asks again."""
    claim = running(ledger, submitted(ledger))
    assert ledger.cancel(claim.id) is CancelOutcome.CANCELLING
    assert ledger.start([claim]) == [False]
    assert ledger.get(claim.id).status is Status.CANCELLED


def test_a_cancel_whose_worker_dies_ends_with_the_lease(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    assert ledger.cancel(claim.id) is CancelOutcome.CANCELLING
    wait_until(lambda: ledger.overdue() == [] and ledger.get(claim.id).status.is_final, 5, "the end")
    assert ledger.get(claim.id).status is Status.CANCELLED


def test_a_job_whose_worker_is_dead_is_cancelled_at_once(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger))
    wait_until(lambda: ledger.cancel(claim.id) is CancelOutcome.CANCELLED, 5, "the lease to lapse")
    assert ledger.get(claim.id).status is Status.CANCELLED
    assert not ledger.complete(claim, result_of(claim))


def test_a_job_past_its_time_expires_when_claimed_or_looked_at(ledger: Ledger) -> None:
    by_claim, by_reconciler = (submitted(ledger, expires_in=0.001) for _ in range(2))
    time.sleep(0.005)
    assert ledger.claim(by_claim, "worker") == Refusal(by_claim, RefusalReason.EXPIRED)
    assert ledger.overdue() == []
    assert {ledger.get(job_id).status for job_id in (by_claim, by_reconciler)} == {Status.EXPIRED}


def test_a_job_whose_time_runs_out_before_its_window_closes_expires(ledger: Ledger) -> None:
    """A busy worker claims early: the time in its window counts as time in the queue."""
    claim = claimed(ledger, submitted(ledger, expires_in=0.05))
    time.sleep(0.06)
    assert ledger.start([claim]) == [False]
    record = ledger.get(claim.id)
    assert (record.status, record.attempts) == (Status.EXPIRED, 0)


def test_a_job_that_was_started_in_time_does_not_expire(ledger: Ledger) -> None:
    claim = running(ledger, submitted(ledger, expires_in=0.05))
    time.sleep(0.06)
    assert ledger.heartbeat([claim]) == {claim.id: Hold.HELD}
    assert ledger.complete(claim, result_of(claim))


def test_without_redis_every_call_says_so() -> None:
    ledger = Ledger.from_settings(Settings(redis_url="redis://127.0.0.1:1/0"))
    for call in (lambda: ledger.submit(new_job()), lambda: ledger.get("job_0"), ledger.depth, ledger.ping):
        with pytest.raises(QueueUnavailable, match="Redis cannot be used") as refused:
            call()
        assert "\n" not in str(refused.value)
