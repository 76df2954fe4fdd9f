"""The object store or Redis goes away for a while, and the jobs in hand still end as they should."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from gate import gate_to
from metrics import value
from servers import S3Server, free_ports, wait_until
from soak.proxy import Proxy
from workers import Desk, assert_speaks, run_worker

from worker.jobs.models import Status
from worker.jobs.settings import Settings


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    desk = Desk(settings)
    yield desk
    desk.close()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def test_finished_audio_waits_for_the_store(
    desk: Desk, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    with gate_to(port_of(s3.endpoint)) as gate:
        endpoint = f"http://127.0.0.1:{gate.port}"
        [port] = free_ports(1)
        settings = {"s3_endpoint": endpoint, "lease_seconds": 3, "worker_metrics_port": port}
        with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
            gate.close()
            ids = [desk.submit(f"Upload {index} later.") for index in range(8)]
            for job_id in ids:
                desk.wait_for(job_id, Status.RUNNING)
            # Longer than boto3's own retries take, so that the worker's patience is what carries the jobs over.
            wait_until(lambda: num_failed_uploads(port) >= 4, 20, "failed uploads")
            gate.open()
            records = desk.wait_ended(ids)
            told = [line for line in worker.lines() if "waits" in str(line["event"])]
    assert [line["level"] for line in told] == ["warning", "info"], "one line when it begins, one when it is over"
    for index, record in enumerate(records):
        assert record.attempts == 1, "audio that is made must not be made again"
        assert_speaks(desk.audio(record), f"Upload {index} later.")


def num_failed_uploads(port: int) -> float:
    return value(httpx.get(f"http://127.0.0.1:{port}/metrics").text, "omnivoice_upload_failures_total")


def test_half_open_connections_to_the_store_hold_jobs_up_for_seconds(
    desk: Desk, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    with contextlib.closing(Proxy(port_of(s3.endpoint))) as proxy:
        settings = {"s3_endpoint": f"http://127.0.0.1:{proxy.port}", "lease_seconds": 15}
        with run_worker(environment, tmp_path / "worker.log", **settings):
            desk.wait_ended([desk.submit(f"Before {index}.") for index in range(8)])
            proxy.forget_all()
            wait_until(lambda: proxy.num_struck, what="connections that are kept")
            began = time.monotonic()
            ids = [desk.submit(f"After {index}.") for index in range(8)]
            records = desk.wait_ended(ids)
            assert time.monotonic() - began < 12, "the promise is 15 s"
    for index, record in enumerate(records):
        assert record.attempts == 1
        assert_speaks(desk.audio(record), f"After {index}.")


def test_store_that_stays_away_ends_in_a_failed_job(
    desk: Desk, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    with gate_to(port_of(s3.endpoint)) as gate:
        settings = {"s3_endpoint": f"http://127.0.0.1:{gate.port}", "lease_seconds": 0.5, "max_attempts": 2}
        with run_worker(environment, tmp_path / "worker.log", **settings):
            gate.close()
            [record] = desk.wait_ended([desk.submit("In vain.")], 40)
    assert (record.status, record.attempts, record.result) == (Status.FAILED, 2, None)
    assert record.error is not None
    assert record.error.type == "storage-error"


def test_redis_away_for_longer_than_a_lease(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    """The leases lapse, and the late copies and the new ones still make one result each."""
    back = "Redis answers again"
    with gate_to(port_of(desk.settings.redis_url)) as gate:
        settings = {"redis_url": f"redis://127.0.0.1:{gate.port}/0", "tone_window_ms": 500, "lease_seconds": 1}
        with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
            ids = [desk.submit(f"Number {index}.") for index in range(6)]
            desk.wait_for(ids[0], Status.RUNNING)
            gate.close()
            wait_until(lambda: worker.has_logged("heartbeat failed"), what="a failed heartbeat")
            wait_until(lambda: worker.has_logged("given up") or all_lapsed(desk, ids), what="the end of the leases")
            gate.open()
            records = desk.wait_ended(ids, 60)
            wait_until(lambda: worker.has_logged(back), what="the line that Redis is back")
            events = [line["event"] for line in worker.lines()]
    for told in ("no message is taken", "heartbeat failed", "reconciling failed", back):
        assert sum(event.startswith(told) for event in events) <= 1, "each tells once of an outage"
    assert any(event.startswith("no message is taken") for event in events)
    assert not any("\n" in event for event in events)
    for index, record in enumerate(records):
        assert_speaks(desk.audio(record), f"Number {index}.")
    assert len(desk.audio_keys()) <= sum(record.attempts for record in records)


def test_sigterm_while_redis_is_away_still_ends_in_time(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    drain_seconds = 1.5
    with gate_to(port_of(desk.settings.redis_url)) as gate:
        settings = {"redis_url": f"redis://127.0.0.1:{gate.port}/0", "drain_seconds": drain_seconds}
        with run_worker(environment, tmp_path / "cut-off.log", tone_window_ms=60_000, **settings) as worker:
            job_id = desk.submit("Nobody hears me.")
            desk.wait_for(job_id, Status.RUNNING)
            gate.close()
            wait_until(lambda: worker.has_logged("heartbeat failed"), what="a failed heartbeat")
            worker.signal(signal.SIGTERM)
            worker.wait_exit(drain_seconds + 5)
    with run_worker(environment, tmp_path / "next.log"):
        [record] = desk.wait_ended([job_id])
    # It could not be handed back, so its lease had to lapse, and its attempt counts.
    assert (record.status, record.attempts) == (Status.SUCCEEDED, 2)
    assert_speaks(desk.audio(record), "Nobody hears me.")


def all_lapsed(desk: Desk, ids: list[str]) -> bool:
    seconds, microseconds = desk.redis.time()
    now_ms = seconds * 1_000 + microseconds // 1_000
    leases = [desk.redis.hget(f"{desk.settings.redis_prefix}:job:{job_id}", "lease_ms") for job_id in ids]
    return all(lease is None or int(lease) < now_ms for lease in leases)
