"""The ledger over a connection that breaks after Redis has acted and before its answer arrives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from job_examples import FAILURE, claimed, new_job, result_of, running, submitted
from redis import Redis
from servers import SwallowingProxy, wait_until

from worker.jobs.connection import connect
from worker.jobs.ledger import CancelOutcome, Hold, Ledger
from worker.jobs.models import Status
from worker.jobs.settings import Settings


@pytest.fixture
def proxy(redis_url: str) -> Iterator[SwallowingProxy]:
    port = urlsplit(redis_url).port
    assert port is not None
    proxy = SwallowingProxy(port)
    yield proxy
    proxy.close()


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings, proxy: SwallowingProxy) -> Ledger:
    """Through the proxy, with a lease that does not lapse meanwhile."""
    url = f"redis://127.0.0.1:{proxy.port}/0"
    return Ledger.from_settings(redis_settings.model_copy(update={"redis_url": url, "lease_seconds": 60.0}))


@pytest.fixture(autouse=True)
def _loaded_scripts(ledger: Ledger) -> None:
    """Each script has run once, so that an answer that is lost is that of the script and not of its loading."""
    claim, other, third = (running(ledger, submitted(ledger)) for _ in range(3))
    ledger.heartbeat([claim])
    ledger.complete(claim, result_of(claim))
    ledger.release([other])
    ledger.cancel(third.id)


def test_submit(ledger: Ledger, proxy: SwallowingProxy) -> None:
    before = sum(ledger.depth().values())
    proxy.swallow()
    record, created = ledger.submit(new_job(key="k"))
    assert proxy.swallowed == 1
    assert created
    assert ledger.submit(new_job(key="k")) == (record, False)
    assert sum(ledger.depth().values()) == before + 1


def test_claim(ledger: Ledger, proxy: SwallowingProxy) -> None:
    job_id = submitted(ledger)
    proxy.swallow()
    claim = claimed(ledger, job_id)
    assert proxy.swallowed == 1
    assert claim.token == 1
    assert ledger.start([claim]) == [True]


@pytest.mark.parametrize("lost_answer", [1, 2], ids=["of loading", "of running"])
def test_start(ledger: Ledger, proxy: SwallowingProxy, lost_answer: int) -> None:
    claims = [claimed(ledger, submitted(ledger)) for _ in range(3)]
    proxy.swallow(lost_answer)
    assert ledger.start(claims) == [True, True, True]
    assert proxy.swallowed == lost_answer
    assert [ledger.get(claim.id).attempts for claim in claims] == [1, 1, 1]


def test_complete(ledger: Ledger, proxy: SwallowingProxy) -> None:
    claim = running(ledger, submitted(ledger))
    proxy.swallow()
    assert ledger.complete(claim, result_of(claim))
    assert proxy.swallowed == 1
    assert ledger.get(claim.id).status is Status.SUCCEEDED


def test_fail(ledger: Ledger, proxy: SwallowingProxy) -> None:
    claim = running(ledger, submitted(ledger))
    proxy.swallow()
    assert ledger.end(claim, Status.FAILED, FAILURE)
    assert proxy.swallowed == 1


def test_release(ledger: Ledger, proxy: SwallowingProxy) -> None:
    claim = running(ledger, submitted(ledger))
    proxy.swallow(2)
    ledger.release([claim])
    assert proxy.swallowed == 2
    record = ledger.get(claim.id)
    assert (record.status, record.attempts) == (Status.QUEUED, 0)


def test_cancel_of_a_running_job(ledger: Ledger, proxy: SwallowingProxy) -> None:
    claim = running(ledger, submitted(ledger))
    proxy.swallow()
    assert ledger.cancel(claim.id) is CancelOutcome.CANCELLING
    assert proxy.swallowed == 1
    assert ledger.heartbeat([claim]) == {claim.id: Hold.CANCELLED}


def test_cancel_of_a_waiting_job(ledger: Ledger, proxy: SwallowingProxy) -> None:
    job_id = submitted(ledger)
    proxy.swallow()
    assert ledger.cancel(job_id) is CancelOutcome.CANCELLED
    assert proxy.swallowed == 1
    assert ledger.cancel(job_id) is CancelOutcome.ENDED, "another call than the one that ended it"


def test_scripts_are_loaded_again_after_a_restart(ledger: Ledger, redis_client: Redis) -> None:
    claim = claimed(ledger, submitted(ledger))
    redis_client.script_flush()
    assert ledger.start([claim]) == [True]
    redis_client.script_flush()
    assert ledger.complete(claim, result_of(claim))


def test_as_many_threads_as_there_are_may_wait_for_redis_at_once(
    redis_client: Redis, redis_settings: Settings, prefix: str
) -> None:
    """All threads of an API that has just started, for example: none is refused for want of a connection."""
    num_threads = 160
    with connect(redis_settings) as shared, ThreadPoolExecutor(num_threads) as pool:
        waiting = [pool.submit(shared.blpop, [f"{prefix}:list"], timeout=4) for _ in range(num_threads)]

        def all_wait_or_one_failed() -> bool:
            has_failed = any(future.done() and future.exception() for future in waiting)
            return has_failed or redis_client.info("clients")["blocked_clients"] >= num_threads

        wait_until(all_wait_or_one_failed, what="a connection for each thread")
        redis_client.rpush(f"{prefix}:list", *range(num_threads))
        assert sorted(int(future.result()[1]) for future in waiting) == list(range(num_threads))
