"""Two releases on one ledger: an older one leaves a newer record alone, a newer one finishes what an older one had."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from api_service import build_app
from job_examples import claimed, result_of, running, submitted
from redis import Redis
from servers import wait_until
from workers import Desk, run_worker

from worker.jobs import names
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Claim, Ledger, Refusal, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.records import SCHEMA
from worker.jobs.settings import Settings

FIRST_RELEASE = {
    "schema": "1",
    "status": "queued",
    "queue": "interactive",
    "owner": "local",
    "request": '{"text":"Written by the first release.","duration":1.0,"format":"wav","sample_rate":24000,'
    '"queue":"interactive","metadata":{"row":"12"}}',
    "reference_key": "",
    "estimate_seconds": "1.0",
    "warnings": "[]",
    "attempts": "0",
    "token": "0",
}
"""A waiting job as release 0.1.0 stored it, but for its id and times: no trace, and nothing in ages and totals."""


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


def make_newer(redis: Redis, settings: Settings, job_id: str) -> dict[str, str]:
    """Turn a record into one of the next release, whose request this one cannot read; the record as it was."""
    key = names.job_key(settings.redis_prefix, job_id)
    before: dict[str, str] = redis.hgetall(key)
    redis.hset(key, mapping={"schema": SCHEMA + 1, "request": "packed in another way", "mood": "merry"})
    redis.hset(key, "status", "awaiting-the-moon")
    return before


def store_first_release(redis: Redis, settings: Settings, **changed: str) -> str:
    job_id, now_ms = names.new_job_id(), int(time.time() * 1_000)
    times = {"created_ms": str(now_ms), "announced_ms": str(now_ms)}
    key = names.job_key(settings.redis_prefix, job_id)
    redis.hset(key, mapping={**FIRST_RELEASE, "id": job_id, **times, **changed})
    if "lease_ms" in changed:
        redis.zadd(names.leases_key(settings.redis_prefix, "interactive"), {job_id: int(changed["lease_ms"])})
    else:
        redis.zadd(names.due_key(settings.redis_prefix, "interactive"), {job_id: now_ms})
    return job_id


# -- older process, newer record ---------------------------------------------------------------------------------------


def test_a_worker_leaves_a_newer_job_to_newer_workers(
    desk: Desk, environment: dict[str, str], redis_client: Redis, settings: Settings, tmp_path: Path
) -> None:
    newer = desk.submit("For the next release.", is_lost=True)
    key = names.job_key(settings.redis_prefix, newer)
    before = make_newer(redis_client, settings, newer)
    as_stored = redis_client.hgetall(key)
    with run_worker(environment, tmp_path / "worker.log", lease_seconds=0.3) as worker:

        def num_logged(event: str) -> int:
            return sum(line["event"] == event and line.get("job") == newer for line in worker.lines())

        wait_until(lambda: num_logged("nothing to do: newer_schema") >= 3, 20, "three looks at the newer job")
        assert num_logged("published again") >= 3, "a newer worker is to get its chance"
        ours = desk.submit("For this release.")
        [record] = desk.wait_ended([ours])
        assert record.status is Status.SUCCEEDED
        assert redis_client.hgetall(key) == as_stored
        assert redis_client.ttl(key) == -1
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(20) == 0
        assert redis_client.hgetall(key) == as_stored, "nor is it touched at the end"
    redis_client.delete(key)
    redis_client.hset(key, mapping=before)  # what a newer worker would make of it
    with run_worker(environment, tmp_path / "newer.log", lease_seconds=0.3):
        [record] = desk.wait_ended([newer])
    assert (record.status, record.attempts) == (Status.SUCCEEDED, 1)


def test_a_newer_job_whose_lease_lapsed_is_not_taken_back(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    claim = running(ledger, submitted(ledger))
    make_newer(redis_client, redis_settings, claim.id)
    key = names.job_key(redis_settings.redis_prefix, claim.id)
    before = redis_client.hgetall(key)
    wait_until(lambda: (claim.id, Queue.INTERACTIVE) in ledger.overdue(), 5, "its announcement, for newer workers")
    assert redis_client.hgetall(key) == before
    assert ledger.stats()[Queue.INTERACTIVE].lapsed == 0


def test_a_record_without_a_version_is_nobodys_and_stops_nobody(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    odd, ours = submitted(ledger), submitted(ledger)
    key = names.job_key(redis_settings.redis_prefix, odd)
    redis_client.hdel(key, "schema")
    before = redis_client.hgetall(key)
    assert ledger.claim(odd, "worker") == Refusal(odd, RefusalReason.NEWER_SCHEMA)
    with pytest.raises(QueueUnavailable, match="newer release"):
        ledger.get(odd)
    found: set[str] = set()

    def both_announced() -> bool:
        found.update(job_id for job_id, _ in ledger.overdue())
        return found >= {odd, ours}

    wait_until(both_announced, 5, "both announcements")
    assert redis_client.hgetall(key) == before


# -- newer process, older record ---------------------------------------------------------------------------------------


def test_jobs_of_the_first_release_are_finished(
    desk: Desk, environment: dict[str, str], redis_client: Redis, settings: Settings, tmp_path: Path
) -> None:
    """One that waited, and one whose worker was stopped hard by the upgrade."""
    waiting = store_first_release(redis_client, settings)
    lapsed = {"lease_ms": "1000", "status": "running", "attempts": "1", "token": "2", "counted": "1", "nonce": "n"}
    lost = store_first_release(redis_client, settings, **lapsed, worker="gone", started_ms="1000")
    with run_worker(environment, tmp_path / "worker.log", lease_seconds=0.3) as worker:
        records = desk.wait_ended([waiting, lost])
        lines = worker.lines()
    assert [(record.status, record.attempts) for record in records] == [(Status.SUCCEEDED, 1), (Status.SUCCEEDED, 2)]
    assert records[0].metadata == {"row": "12"}
    for record in records:
        assert desk.audio(record)
    assert all("trace_id" not in line for line in lines if line.get("job") in (waiting, lost))
    shown = build_app(settings).test_client().get(f"/v1/jobs/{waiting}").get_json()
    assert (shown["status"], shown["trace_id"]) == ("succeeded", None)


def test_a_job_that_an_older_worker_ended_is_not_the_oldest_for_ever(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings
) -> None:
    """Such a worker knows no ages: it leaves the job's there."""
    claim = running(ledger, submitted(ledger))
    ages = names.ages_key(redis_settings.redis_prefix, "interactive")
    came = redis_client.zscore(ages, claim.id)
    assert ledger.complete(claim, result_of(claim))
    redis_client.zadd(ages, {claim.id: came})
    waiting = claimed(ledger, submitted(ledger))
    assert isinstance(waiting, Claim)
    ledger.overdue()
    assert redis_client.zrange(ages, 0, -1) == [waiting.id]


def test_the_example_is_the_first_releases() -> None:
    """So that nobody mends the example instead of the code that has to read it."""
    assert FIRST_RELEASE["schema"] == "1"
    assert set(json.loads(FIRST_RELEASE["request"])) == {
        *("text", "duration", "format", "sample_rate", "queue", "metadata")
    }
