"""kill -9 of a worker at each step of a job: nothing is lost, and nothing is seen twice."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
from promises import Promises
from servers import S3Server, wait_until
from soak.proxy import proxy_to
from workers import Desk, WorkerProcess, run_worker

from worker.jobs import names
from worker.jobs.models import Queue, Status

LEASE_SECONDS = 1

NextWorker = contextlib.AbstractContextManager[WorkerProcess]


@pytest.fixture
def next_worker(environment: dict[str, str], tmp_path: Path) -> NextWorker:
    """The one that takes over."""
    return run_worker(environment, tmp_path / "next.log", lease_seconds=LEASE_SECONDS)


def test_while_a_window_forms(
    desk: Desk, promises: Promises, environment: dict[str, str], next_worker: NextWorker, tmp_path: Path
) -> None:
    settings = {"max_wait_ms": 60_000, "lease_seconds": LEASE_SECONDS, "log_level": "debug"}
    with run_worker(environment, tmp_path / "killed.log", **settings) as worker:
        ids = [promises.submit(f"Guest {index} waits.") for index in range(3)]
        events = "waits for a window"
        wait_until(lambda: sum(str(line["event"]).startswith(events) for line in worker.lines()) == 3, what="a window")
        worker.signal(signal.SIGKILL)
        worker.wait_exit(5)
    with next_worker:
        assert promises.assert_kept() == {"succeeded": 3}
    assert {desk.record(job_id).attempts for job_id in ids} == {1}, "they only waited"


def test_while_it_uploads(
    desk: Desk, promises: Promises, environment: dict[str, str], s3: S3Server, next_worker: NextWorker, tmp_path: Path
) -> None:
    with proxy_to(s3.endpoint) as proxy:
        settings = {"s3_endpoint": f"http://127.0.0.1:{proxy.port}", "lease_seconds": LEASE_SECONDS}
        with run_worker(environment, tmp_path / "killed.log", **settings) as worker:
            proxy.forget_at(b"PUT /")
            job_id = promises.submit("I am on my way.")
            wait_until(lambda: proxy.num_struck, what="an upload")
            assert desk.record(job_id).status is Status.RUNNING
            worker.signal(signal.SIGKILL)
            worker.wait_exit(5)
    with next_worker:
        assert promises.assert_kept() == {"succeeded": 1}
    assert desk.record(job_id).attempts == 2


def test_between_upload_and_complete(
    desk: Desk, promises: Promises, environment: dict[str, str], next_worker: NextWorker, tmp_path: Path
) -> None:
    """The object of the lost attempt lies in the store; no record ever points at it."""
    with proxy_to(desk.settings.redis_url) as proxy:
        settings = {"redis_url": f"redis://127.0.0.1:{proxy.port}/0", "lease_seconds": LEASE_SECONDS}
        with run_worker(environment, tmp_path / "killed.log", **settings) as worker:
            proxy.forget_at(b"s3://")  # the result, which `complete` brings
            job_id = promises.submit("I am all but done.")
            wait_until(lambda: proxy.num_struck, what="the result")
            assert desk.record(job_id).status is Status.RUNNING
            [orphan] = desk.audio_keys()
            worker.signal(signal.SIGKILL)
            worker.wait_exit(5)
    with next_worker:
        assert promises.assert_kept() == {"succeeded": 1}
    record = desk.record(job_id)
    assert record.attempts == 2
    assert record.result is not None
    assert not record.result.uri.endswith(orphan)


def test_between_taking_a_message_and_noting_it(
    desk: Desk, promises: Promises, environment: dict[str, str], next_worker: NextWorker, tmp_path: Path
) -> None:
    """kombu pops a message, then notes it as unacknowledged: a worker that dies in between takes it along."""
    messages = names.message_list_key(desk.settings.redis_prefix, Queue.INTERACTIVE.value)
    with run_worker(environment, tmp_path / "killed.log", lease_seconds=LEASE_SECONDS) as worker:
        wait_until(lambda: is_stopped_while_it_waits(desk, worker), what="a worker that waits for messages")
        job_id = promises.submit("Who has my message?")
        assert desk.redis.llen(messages) == 0, "Redis has given it to the worker that waited"
        assert not desk.redis.hlen(names.broker_prefix(desk.settings.redis_prefix) + "unacked")
        worker.signal(signal.SIGKILL)
        worker.wait_exit(5)
    with next_worker:
        assert promises.assert_kept() == {"succeeded": 1}
    assert desk.record(job_id).attempts == 1


def is_stopped_while_it_waits(desk: Desk, worker: WorkerProcess) -> bool:
    """Stop the worker; let it go on where that was between two waits."""
    worker.signal(signal.SIGSTOP)
    if desk.redis.info("clients")["blocked_clients"]:
        return True
    worker.signal(signal.SIGCONT)
    return False
