"""SIGTERM: what runs is finished, what waits is handed back unharmed, and the exit comes in time."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_service import REF_TEXT, clip
from servers import wait_until
from workers import Desk, assert_speaks, run_worker

from worker.app import BROKEN_EXIT_STATUS, THREADS_PER_BATCH_REQUEST
from worker.jobs import names
from worker.jobs.ledger import Claim, Ledger
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings
from worker.lifecycle import FORCED_EXIT_STATUS


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    desk = Desk(settings)
    yield desk
    desk.close()


@pytest.mark.parametrize("mode", ["request", "step"])
def test_sigterm_under_load_burns_no_attempt_and_loses_nothing(
    mode: str, desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    drain_seconds = 10.0
    settings = {"mode": mode, "tone_window_ms": 400, "max_batch_requests": 4, "drain_seconds": drain_seconds}
    texts = [f"Box {index} goes on the upper shelf." for index in range(30)]
    with run_worker(environment, tmp_path / "first.log", **settings) as first:
        ids = [desk.submit(text) for text in texts]
        wait_until(lambda: any(desk.record(job_id).status is Status.SUCCEEDED for job_id in ids), what="a first result")
        first.signal(signal.SIGTERM)
        assert first.wait_exit(drain_seconds + 5) == 0
        records = [desk.record(job_id) for job_id in ids]
        assert {record.status for record in records} == {Status.SUCCEEDED, Status.QUEUED}, "not the whole queue"
        for record in records:
            assert record.attempts == (1 if record.status is Status.SUCCEEDED else 0)
    with run_worker(environment, tmp_path / "second.log", **settings | {"tone_window_ms": 20}):
        records = desk.wait_ended(ids)
        audio = [desk.audio(record) for record in records]
    assert all(record.attempts == 1 for record in records)
    for text, data in zip(texts, audio, strict=True):
        assert_speaks(data, text)
    assert len(desk.audio_keys()) == len(ids)


def test_jobs_handed_back_go_before_the_backlog(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    settings = {"max_batch_requests": 1, "tone_window_ms": 1_000, "drain_seconds": 20, "lease_seconds": 15}
    with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
        ids = [desk.submit(f"Row {index}.") for index in range(12)]
        messages = names.message_list_key(desk.settings.redis_prefix, Queue.INTERACTIVE.value)
        leases = names.leases_key(desk.settings.redis_prefix, Queue.INTERACTIVE.value)
        wait_until(lambda: desk.redis.zcard(leases) == THREADS_PER_BATCH_REQUEST, what="a claim by each thread")
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(20) == 0
    waiting = [job_id for job_id in ids if desk.record(job_id).status is Status.QUEUED]
    in_list = [job_in(message) for message in desk.redis.lrange(messages, 0, -1)]
    assert sorted(in_list) == sorted(waiting), "each once"
    handed_back = [line["job"] for line in worker.lines() if str(line["event"]).startswith("handed back")]
    assert len(handed_back) >= 2
    assert set(in_list[-len(handed_back) :]) == set(handed_back), "the list is read from its right end"


def job_in(message: str) -> str:
    """The id in a message of the broker's list: the ledger writes it as it is, kombu in base64."""
    found = json.loads(message)
    is_encoded = found["properties"]["body_encoding"] == "base64"
    body = base64.b64decode(found["body"]) if is_encoded else found["body"]
    return str(json.loads(body)[0][0])


def test_idle_worker_exits_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log", drain_seconds=60) as worker:
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(20) == 0


def test_open_window_is_closed_at_once_and_run(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    settings = {"max_wait_ms": 60_000, "drain_seconds": 60, "log_level": "debug"}
    with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
        job_id = desk.submit("Do not wait for more.")
        wait_until(lambda: worker.has_logged("waits for a window"), what="the open window")
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(20) == 0
    assert_speaks(desk.audio(desk.record(job_id)), "Do not wait for more.")


def test_sigterm_with_a_synthesizer_that_hangs(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    drain_seconds = 3.0
    hangs = {"tone_window_ms": 600_000, "max_batch_requests": 2, "drain_seconds": drain_seconds}
    with run_worker(environment, tmp_path / "hangs.log", **hangs) as worker:
        ids = [desk.submit(f"Stuck {index}.") for index in range(4)]
        wait_until(lambda: any(desk.record(job_id).status is Status.RUNNING for job_id in ids), what="the hang")
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(drain_seconds + 5) == 0, "an end that had to be forced has another status"
    records = [desk.record(job_id) for job_id in ids]
    assert {(record.status, record.attempts) for record in records} == {(Status.QUEUED, 0)}
    with run_worker(environment, tmp_path / "works.log"):
        records = desk.wait_ended(ids, 15)
    assert {(record.status, record.attempts) for record in records} == {(Status.SUCCEEDED, 1)}


def test_sigterm_while_a_clip_waits_to_be_alone_behind_what_hangs(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    """A job that was lost with its worker encodes its voice alone, and what hangs keeps it from that."""
    drain_seconds = 4.0
    desk.store.put("references/voice", clip(), "audio/wav")
    lost = desk.submit("I was lost before.", is_lost=True, reference_key="references/voice", ref_text=REF_TEXT)
    earlier = Ledger(desk.redis, desk.settings.model_copy(update={"lease_seconds": 60}))  # longer than any start takes
    claim = earlier.claim(lost, "an earlier worker")
    assert isinstance(claim, Claim)
    earlier.start([claim])
    hangs = {"tone_window_ms": 600_000, "drain_seconds": drain_seconds, "lease_seconds": 2}
    with run_worker(environment, tmp_path / "hangs.log", **hangs) as worker:
        stuck = desk.submit("Stuck.")
        desk.wait_for(stuck, Status.RUNNING)
        desk.ledger.retry(claim, 0)
        wait_until(lambda: desk.redis.hget(names.job_key(desk.settings.redis_prefix, lost), "lease_ms"), what="a claim")
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(drain_seconds + 5) == 0, "nothing hangs to the end, which would be forced"
    records = [desk.record(job_id) for job_id in (lost, stuck)]
    assert [(record.status, record.attempts) for record in records] == [(Status.QUEUED, 1), (Status.QUEUED, 0)]


SLOW_TO_FINISH = """
import os, sys
from worker.app import Worker
from worker.jobs.settings import Settings
from worker.logs import logs_of_a_start
from worker.synthesizers import ToneSynthesizer

with logs_of_a_start("info"):
    worker = Worker(Settings.from_environment(os.environ), ToneSynthesizer(0.02, finishing_seconds=1.0))
sys.exit(worker.run())
"""


@pytest.mark.parametrize("mode", ["request", "step"])
def test_sigterm_waits_for_what_is_generated_and_not_finished(
    mode: str, desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {"mode": mode, "max_wait_ms": 0, "max_batch_requests": 2, "drain_seconds": 20}
    with run_worker(environment, tmp_path / "worker.log", ["-c", SLOW_TO_FINISH], **settings) as worker:
        ids = [desk.submit(f"Box {index} is being closed.") for index in range(6)]
        for job_id in ids:  # more than a window holds
            wait_until(lambda job_id=job_id: desk.record(job_id).status is not Status.QUEUED, what="its start")
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(15) == 0
    records = [desk.record(job_id) for job_id in ids]
    assert {(record.status, record.attempts) for record in records} == {(Status.SUCCEEDED, 1)}
    for index, record in enumerate(records):
        assert_speaks(desk.audio(record), f"Box {index} is being closed.")


BROKEN_WORKER = """
import os, sys
from worker.app import Worker
from worker.jobs.settings import Settings
from worker.logs import logs_of_a_start
from worker.synthesizers import ToneSynthesizer

class BrokenSynthesizer(ToneSynthesizer):
    def step(self):
        raise RuntimeError("the device is lost")

with logs_of_a_start("info"):
    worker = Worker(Settings.from_environment(os.environ), BrokenSynthesizer())
sys.exit(worker.run())
"""


def test_worker_with_a_broken_synthesizer_ends_and_says_so(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {"max_wait_ms": 500, "max_batch_requests": 2}
    with run_worker(environment, tmp_path / "broken.log", program=["-c", BROKEN_WORKER], **settings) as worker:
        ids = [desk.submit(f"Job {index}.") for index in range(6)]
        assert worker.wait_exit(15) == BROKEN_EXIT_STATUS
        assert worker.has_logged("the worker ends, its synthesizer is broken: the device is lost")
    records = [desk.record(job_id) for job_id in ids]
    assert {record.status for record in records} == {Status.QUEUED}
    assert sorted(record.attempts for record in records) == [0, 0, 0, 0, 1, 1], "only its first batch was burnt"
    with run_worker(environment, tmp_path / "works.log"):
        records = desk.wait_ended(ids)
    assert {record.status for record in records} == {Status.SUCCEEDED}


ENDLESS_WORKER = """
import os, sys, time
from worker.__main__ import main

class Endless:
    sleep = time.sleep

    def __del__(self):
        self.sleep(600)

endless = Endless()
sys.exit(main(os.environ))
"""


def test_an_interpreter_that_hangs_in_its_own_end_is_ended(environment: dict[str, str], tmp_path: Path) -> None:
    """Daemon threads do not run there, so no timer of Python's can end it."""
    with run_worker(environment, tmp_path / "endless.log", program=["-c", ENDLESS_WORKER], drain_seconds=2.0) as worker:
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(20) == FORCED_EXIT_STATUS
