"""A worker's own metrics, and its log, from real jobs through a real process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from gate import gate_to
from metrics import assert_conventional, value
from servers import free_ports, wait_until
from workers import Desk, run_worker

from worker.jobs.models import Status
from worker.jobs.settings import Settings


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    desk = Desk(settings)
    yield desk
    desk.close()


def test_what_four_jobs_leave_in_metrics(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    [port] = free_ports(1)
    limits = {"max_batch_requests": 4, "max_wait_ms": 20_000, "tone_window_ms": 80}
    with run_worker(environment, tmp_path / "worker.log", worker_metrics_port=port, **limits):
        ids = [desk.submit(f"Number {number}.") for number in range(4)]
        records = desk.wait_ended(ids)

        def read() -> str:
            return httpx.get(f"http://127.0.0.1:{port}/metrics").text

        wait_until(lambda: value(read(), "omnivoice_worker_jobs_held") == 0, what="all leases to be let go")
        text = read()
    assert [record.status for record in records] == [Status.SUCCEEDED] * 4
    results = [record.result for record in records]
    assert value(text, "omnivoice_windows_closed_total", reason="max_requests") == 1
    assert value(text, "omnivoice_window_jobs_sum") == 4
    assert value(text, "omnivoice_window_jobs_count") == 1
    assert value(text, "omnivoice_window_tokens_sum") > 0
    assert 0 <= value(text, "omnivoice_window_wait_seconds_sum") < 20
    assert value(text, "omnivoice_step_duration_seconds_count") == 8
    assert value(text, "omnivoice_step_duration_seconds_sum") >= 0.08
    assert value(text, "omnivoice_audio_seconds_total") == pytest.approx(sum(r.duration_seconds for r in results))
    assert value(text, "omnivoice_job_generation_seconds_sum") == pytest.approx(
        sum(r.timings.generated_ms for r in results) / 1_000
    )
    assert value(text, "omnivoice_job_real_time_factor_ratio_sum") == pytest.approx(
        sum(r.timings.generated_ms / 1_000 / r.duration_seconds for r in results)
    )
    assert value(text, "omnivoice_upload_duration_seconds_count") == 4
    assert value(text, "omnivoice_upload_bytes_total") == sum(r.bytes for r in results)
    assert value(text, "omnivoice_upload_failures_total") == 0
    assert value(text, "omnivoice_worker_leases_lost_total") == 0
    assert value(text, "process_resident_memory_bytes") > 0
    assert_conventional(text)


def test_failed_uploads_are_counted(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    """The store is gone while the audio is on its way: a gate before it is closed by the job's own start."""
    store_port = urlsplit(environment["OMNIVOICE_S3_ENDPOINT"]).port
    assert store_port
    [port] = free_ports(1)
    with (
        gate_to(store_port) as gate,
        run_worker(
            environment,
            tmp_path / "worker.log",
            worker_metrics_port=port,
            s3_endpoint=f"http://127.0.0.1:{gate.port}",
        ) as worker,
    ):
        gate.close()
        job_id = desk.submit("Wait for the store.")
        url = f"http://127.0.0.1:{port}/metrics"
        wait_until(lambda: value(httpx.get(url).text, "omnivoice_upload_failures_total") >= 1, 30, "a failed upload")
        gate.open()
        [record] = desk.wait_ended([job_id])
        assert record.status is Status.SUCCEEDED
        waits = [line for line in worker.lines() if str(line["event"]).startswith("upload waits")]
        assert waits
        assert (waits[0]["job"], waits[0]["attempt"]) == (job_id, 1)


def test_metrics_are_off_unless_a_port_is_given(environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log") as worker:
        assert not worker.has_logged("metrics at")
