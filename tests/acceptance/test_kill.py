"""A worker dies in the middle of a batch. Every job still ends, once, and its record and its object agree."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from api_service import REF_TEXT, clip
from servers import wait_until
from workers import Desk, assert_speaks, run_worker

from worker.app import BROKEN_EXIT_STATUS
from worker.jobs.models import Status
from worker.watchdog import EXIT_STATUS

LEASE_SECONDS = 2


def running_of(desk: Desk, ids: list[str]) -> list[str]:
    return [job_id for job_id in ids if desk.record(job_id).status is Status.RUNNING]


@pytest.mark.parametrize("mode", ["request", "step"])
def test_kill_9_in_a_batch(mode: str, desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    texts = [f"Row {index}: the meeting is at noon." for index in range(10)]
    slow = {"mode": mode, "tone_window_ms": 20_000, "max_batch_requests": 4, "max_wait_ms": 10_000}
    with run_worker(environment, tmp_path / "killed.log", **slow) as worker:
        ids = [desk.submit(text) for text in texts]
        # Not always the first four: tasks are threads, and the order in which they claim is theirs.
        wait_until(lambda: len(running_of(desk, ids)) == 4, what="a full batch")
        in_batch = running_of(desk, ids)
        worker.signal(signal.SIGKILL)
        worker.wait_exit(5)
    with run_worker(environment, tmp_path / "next.log", mode=mode, tone_window_ms=50, max_batch_requests=4):
        records = desk.wait_ended(ids, 40)
        audio = [desk.audio(record) for record in records]
    for text, record, data in zip(texts, records, audio, strict=True):
        assert_speaks(data, text)
        # Jobs that only waited are not burnt; those that ran when their worker died are tried again, alone.
        assert record.attempts == (2 if record.id in in_batch else 1)
        if record.id in in_batch:
            assert record.result is not None
            assert record.result.batch_size == 1
    assert sorted(key.split("/")[1] for key in desk.audio_keys()) == sorted(ids), "one object a job"
    assert [desk.record(job_id) for job_id in ids] == records, "an ended job never changes"


def test_worker_that_comes_back_late_changes_nothing(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    """Stopped for longer than its lease, in its batch, while another worker does its job."""
    with run_worker(environment, tmp_path / "stopped.log", tone_window_ms=1_000) as stopped:
        job_id = desk.submit("Who is first?")
        desk.wait_for(job_id, Status.RUNNING)
        stopped.signal(signal.SIGSTOP)
        with run_worker(environment, tmp_path / "other.log"):
            [record] = desk.wait_ended([job_id])
            desk.audio(record)
            stopped.signal(signal.SIGCONT)
            late = ("late copy", "stopped: the lease")
            wait_until(lambda: any(stopped.has_logged(event) for event in late), what="the late worker's answer")
    assert record.attempts == 2
    assert desk.record(job_id) == record
    assert_speaks(desk.audio(record), "Who is first?")
    assert len(desk.audio_keys()) == 1, "the late copy removes what it uploaded"


def test_message_lost_between_list_and_worker(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    job_id = desk.submit("My message is lost.", is_lost=True)
    with run_worker(environment, tmp_path / "worker.log"):
        [record] = desk.wait_ended([job_id])
    assert record.attempts == 1
    assert_speaks(desk.audio(record), "My message is lost.")


def test_job_that_ends_its_worker_each_time_fails_in_the_end(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    """The watchdog ends a worker whose batch hangs; a job that hangs every worker is poison."""
    hangs = {"tone_window_ms": 600_000, "batch_deadline_seconds": 0.5, "max_attempts": 2, "lease_seconds": 1}
    job_id = ""
    for attempt in (1, 2):
        log_file = tmp_path / f"worker-{attempt}.log"
        with run_worker(environment, log_file, **hangs) as worker:
            job_id = job_id or desk.submit("I hang.")
            assert worker.wait_exit(15) == EXIT_STATUS
        text = log_file.read_text()
        assert "most recent call first" in text, "the stacks tell where it hung"
        assert "batcher.py" in text
        assert desk.record(job_id).attempts == attempt
    with run_worker(environment, tmp_path / "last.log", max_attempts=2, lease_seconds=1):
        [record] = desk.wait_ended([job_id])
    assert (record.status, record.attempts, record.result) == (Status.FAILED, 2, None)
    assert record.error is not None
    assert record.error.type == "poison"


DEADLY_TEXT = "Nobody hears me twice."
# A worker to which a reference clip with that text does what a bad one can do to a device.
DEADLY_CLIPS = """
import os, signal, sys
import worker.synthesizers
from worker.__main__ import main

class Deadly(worker.synthesizers.ToneSynthesizer):
    def encode_voice(self, waveform, sample_rate, ref_text, preprocess=True):
        if ref_text == {deadly!r}:
            {deed}
        return super().encode_voice(waveform, sample_rate, ref_text, preprocess)

worker.synthesizers.ToneSynthesizer = Deadly
sys.exit(main(os.environ))
"""


def test_clip_that_ends_its_worker_each_time_fails_its_job_alone(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    """Encoding a voice counts as an attempt, and a second one runs while nothing else does. Clips that wait for
    theirs are not burnt with it."""
    limits = {"max_attempts": 3, "lease_seconds": 2, "tone_window_ms": 300}
    for name in ("deadly", *(f"harmless-{index}" for index in range(3))):
        desk.store.put(f"references/{name}", clip(), "audio/wav")
    job_id = desk.submit("I am deadly.", reference_key="references/deadly", ref_text=DEADLY_TEXT)
    mates = [desk.submit(f"Mate {index}.") for index in range(4)]
    for index in range(3):
        key = f"references/harmless-{index}"
        mates.append(desk.submit(f"I mean no harm, {index}.", reference_key=key, ref_text=REF_TEXT))
    program = ("-c", DEADLY_CLIPS.format(deadly=DEADLY_TEXT, deed="os.kill(os.getpid(), signal.SIGKILL)"))
    for attempt in (1, 2, 3):
        with run_worker(environment, tmp_path / f"worker-{attempt}.log", program, **limits) as worker:
            assert worker.wait_exit(15) == -signal.SIGKILL
        assert desk.record(job_id).attempts == attempt
    with run_worker(environment, tmp_path / "last.log", **limits):
        [record] = desk.wait_ended([job_id])
        ended = desk.wait_ended(mates)
    assert record.error is not None
    assert (record.status, record.error.type, record.attempts) == (Status.FAILED, "poison", 3)
    assert {mate.status for mate in ended} == {Status.SUCCEEDED}
    assert max(mate.attempts for mate in ended) <= 2, "the first death may take mates along, later ones none"


def test_synthesizer_that_breaks_on_clips_hands_back_and_ends(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    """A lost device fails every call: the worker ends for another to take over, and the jobs are not failed by it."""
    desk.store.put("references/broken", clip(), "audio/wav")
    program = ("-c", DEADLY_CLIPS.format(deadly=DEADLY_TEXT, deed="raise RuntimeError('the device is lost')"))
    with run_worker(environment, tmp_path / "broken.log", program, max_attempts=9, lease_seconds=1) as worker:
        ids = [desk.submit(f"Job {n}.", reference_key="references/broken", ref_text=DEADLY_TEXT) for n in range(4)]
        assert worker.wait_exit(20) == BROKEN_EXIT_STATUS
    assert not any(desk.record(job_id).status.is_final for job_id in ids)
    with run_worker(environment, tmp_path / "sound.log", max_attempts=9, lease_seconds=1):
        assert {record.status for record in desk.wait_ended(ids)} == {Status.SUCCEEDED}
