"""Real workers before more jobs than ids are published."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from promises import Promises
from redis import Redis
from servers import S3Server, wait_until
from workers import Desk, run_worker

from worker.jobs import names
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings

BOUND = 4


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    desk = Desk(settings.model_copy(update={"max_published": BOUND}))
    yield desk
    desk.close()


@pytest.fixture
def bounded(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "OMNIVOICE_MAX_PUBLISHED": str(BOUND)}


@contextmanager
def longest_list(redis: Redis, settings: Settings) -> Iterator[list[int]]:
    """Fills what it gives with the most messages that were seen in the broker's list at once."""
    key, ended, longest = names.message_list_key(settings.redis_prefix, "interactive"), threading.Event(), [0]

    def look() -> None:
        while not ended.wait(0.001):
            longest[0] = max(longest[0], redis.llen(key))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield longest
    finally:
        ended.set()
        looking.join()


def test_workers_go_on_without_a_reconciler_and_in_order(
    desk: Desk, bounded: dict[str, str], redis_client: Redis, tmp_path: Path
) -> None:
    """With leases of a minute a reconciler is there every 15 s: what is done sooner was published by the claims."""
    ids = [desk.submit(f"Row {index}.") for index in range(100)]
    bulk = [desk.submit(f"Bulk {index}.", queue="bulk") for index in range(50)]
    assert redis_client.llen(names.message_list_key(desk.settings.redis_prefix, "interactive")) == BOUND
    num_threads = 4
    slow = {"lease_seconds": 60, "tone_window_ms": 1, "max_wait_ms": 1, "max_batch_requests": 1}
    with (
        longest_list(redis_client, desk.settings) as longest,
        run_worker(bounded, tmp_path / "worker.log", **slow) as worker,
    ):
        records = desk.wait_ended([*ids, *bulk], 14)
        lines = worker.lines()
    assert {record.status for record in records} == {Status.SUCCEEDED}
    assert {record.attempts for record in records} == {1}
    assert longest[0] == BOUND
    assert not [line for line in lines if line["event"] == "published again"]
    started = [line["job"] for line in lines if line["event"] == "started"]
    for queue in (ids, bulk):
        places = [queue.index(job_id) for job_id in started if job_id in queue]
        # Tasks are threads: one may start before another that came a little sooner.
        assert all(abs(place - index) <= 2 * num_threads for index, place in enumerate(places)), places
    assert max(started.index(job_id) for job_id in bulk[:10]) < 60, "interactive jobs do not starve bulk"


def test_kill_9_again_and_again_before_a_backlog(
    desk: Desk, bounded: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    """Messages in the hands of the dead are found, and what waits without one goes on."""
    promises = Promises(desk, s3)
    for index in range(60):
        promises.submit(f"Row {index}: nobody is told yet.")
    running = {"lease_seconds": 1, "tone_window_ms": 20, "max_wait_ms": 5, "max_batch_requests": 4}

    def num_ended() -> int:
        return sum(desk.ledger.stats()[Queue.INTERACTIVE].ended.values())

    for life in range(3):
        before = num_ended()
        with run_worker(bounded, tmp_path / f"killed-{life}.log", **running) as worker:
            wait_until(lambda before=before: num_ended() >= before + 8, 20, "some jobs")
            worker.signal(signal.SIGKILL)
            worker.wait_exit(5)
    assert num_ended() < 60
    with run_worker(bounded, tmp_path / "last.log", **running):
        assert promises.assert_kept() == {"succeeded": 60}
