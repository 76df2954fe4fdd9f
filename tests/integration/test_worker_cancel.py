"""A cancelled job ends as cancelled, whether it waits or runs, and its mates do not notice."""

from __future__ import annotations

from pathlib import Path

from servers import wait_until
from workers import Desk, assert_speaks, run_worker

from worker.jobs.ledger import CancelOutcome
from worker.jobs.models import Status


def test_running_job_is_cancelled_at_the_next_step(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    together = {"tone_window_ms": 4_000, "max_batch_requests": 2, "max_wait_ms": 20_000}
    with run_worker(environment, tmp_path / "worker.log", **together):
        cancelled, mate = desk.submit("Never mind."), desk.submit("Carry on.")
        desk.wait_for(cancelled, Status.RUNNING)
        desk.wait_for(mate, Status.RUNNING)
        assert desk.ledger.cancel(cancelled) is CancelOutcome.CANCELLING
        record = desk.wait_for(cancelled, Status.CANCELLED)
        [other] = desk.wait_ended([mate])
        assert_speaks(desk.audio(other), "Carry on.")
    assert record.result is None
    assert (record.finished_at or 0) + 500 < (other.finished_at or 0), "it ended at a step, not with its window"
    assert [key.split("/")[1] for key in desk.audio_keys()] == [mate]


def test_running_job_is_cancelled_without_waiting_for_a_heartbeat(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {"tone_window_ms": 8_000, "lease_seconds": 120}  # in steps of 2 s
    with run_worker(environment, tmp_path / "worker.log", **settings):
        job_id = desk.submit("Never mind.")
        desk.wait_for(job_id, Status.RUNNING)
        assert desk.ledger.cancel(job_id) is CancelOutcome.CANCELLING
        desk.wait_for(job_id, Status.CANCELLED, 6)


def test_job_cancelled_while_it_waits_never_starts(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=3_000, max_batch_requests=1) as worker:
        running = desk.submit("I am first.")
        desk.wait_for(running, Status.RUNNING)
        waiting = desk.submit("I am second.")
        key = f"{desk.settings.redis_prefix}:job:{waiting}"
        wait_until(lambda: desk.redis.hexists(key, "lease_ms"), what="the claim")
        assert desk.ledger.cancel(waiting) is CancelOutcome.CANCELLED
        records = desk.wait_ended([running, waiting])
        # Only once its task is over is it certain that the job is not run after all.
        wait_until(lambda: any(line.get("job") == waiting for line in worker.lines()), what="the task's end")
    assert [record.status for record in records] == [Status.SUCCEEDED, Status.CANCELLED]
    assert records[1].attempts == 0
    assert len(desk.audio_keys()) == 1
