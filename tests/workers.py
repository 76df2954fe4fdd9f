"""A worker process under test, and a desk that submits jobs to it and looks at what came out."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from job_examples import lose_message
from servers import wait_until

from worker.jobs.broker import make_celery
from worker.jobs.connection import connect
from worker.jobs.ledger import JobRecord, Ledger, NewJob
from worker.jobs.models import JobRequest, Status
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore
from worker.synthesizers import tone_hertz

REPOSITORY = Path(__file__).parents[1]
START_SECONDS = 90.0
"""Imports of the model take seconds, and many of them where others use the cores."""
JOB_SECONDS = 30.0


@dataclass
class WorkerProcess:
    """`python -m worker`, with its standard error in a file."""

    process: subprocess.Popen[bytes]
    log_file: Path

    def lines(self) -> list[dict[str, Any]]:
        """The log's JSON lines so far."""
        text = self.log_file.read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def has_logged(self, event: str) -> bool:
        return any(str(line["event"]).startswith(event) for line in self.lines())

    def wait_ready(self) -> None:
        wait_until(lambda: self.has_logged("ready") or self.process.poll() is not None, START_SECONDS, "the worker")
        assert self.process.poll() is None, self.log_file.read_text(errors="replace")[-2000:]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_exit(self, seconds: float) -> int:
        return self.process.wait(timeout=seconds)


@contextlib.contextmanager
def run_worker(
    environment: Mapping[str, str], log_file: Path, program: Sequence[str] = ("-m", "worker"), **settings: object
) -> Iterator[WorkerProcess]:
    """A worker that is ready; `settings` are `OMNIVOICE_*` variables in lower case. Killed at the end."""
    variables = {f"OMNIVOICE_{name.upper()}": str(value) for name, value in settings.items()}
    with log_file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *program], cwd=REPOSITORY, env={**environment, **variables}, stderr=output
        )
    worker = WorkerProcess(process, log_file)
    try:
        worker.wait_ready()
        yield worker
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Desk:
    """Submits jobs as the API does, and reads records and objects."""

    settings: Settings

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.redis, self.settings)

    @cached_property
    def redis(self) -> Any:
        return connect(self.settings)

    @cached_property
    def store(self) -> ObjectStore:
        return ObjectStore(self.settings)

    @cached_property
    def celery(self) -> Any:
        return make_celery(self.settings)

    def submit(self, text: str, *, reference_key: str | None = None, is_lost: bool = False, **fields: object) -> str:
        """One second of audio unless `duration` says otherwise; the job's id. Its message `is_lost`: before any worker
        is there that may take it."""
        request = JobRequest.parse({"text": text, "duration": 1.0, **fields})
        new = NewJob(new_job_id(), request, request.duration or 1.0, "test", reference_key)
        record, _ = self.ledger.submit(new)
        if is_lost:
            lose_message(self.ledger, record)
        return record.id

    def record(self, job_id: str) -> JobRecord:
        record = self.ledger.get(job_id)
        assert record is not None, job_id
        return record

    def wait_for(self, job_id: str, status: Status, seconds: float = JOB_SECONDS) -> JobRecord:
        wait_until(lambda: self.record(job_id).status is status, seconds, f"{job_id} to be {status.value}")
        return self.record(job_id)

    def wait_ended(self, job_ids: Iterable[str], seconds: float = JOB_SECONDS) -> list[JobRecord]:
        ids = list(job_ids)
        wait_until(lambda: all(self.record(job_id).status.is_final for job_id in ids), seconds, "the end of all jobs")
        return [self.record(job_id) for job_id in ids]

    def audio(self, record: JobRecord) -> bytes:
        """The job's object, after checking that record and bytes agree."""
        assert record.status is Status.SUCCEEDED, record.error
        assert record.result is not None
        data = self.store.get(self.store.key_of(record.result.uri))
        assert hashlib.sha256(data).hexdigest() == record.result.sha256
        assert len(data) == record.result.bytes
        return data

    def audio_keys(self) -> list[str]:
        """Keys of all audio objects under the test's prefix."""
        root = f"{self.settings.s3_prefix}/"
        client = self.store._client
        answer = client.list_objects_v2(Bucket=self.settings.s3_bucket, Prefix=f"{root}audio/")
        return [item["Key"].removeprefix(root) for item in answer.get("Contents", [])]

    def close(self) -> None:
        self.celery.close()
        self.redis.close()


def wav_samples(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.int16]], int]:
    """(samples,) and the sample rate of a mono 16-bit WAV file, read by the standard library."""
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2"), file.getframerate()


def pitch_hertz(samples: np.ndarray[Any, Any], sample_rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * sample_rate / len(samples)


def assert_speaks(data: bytes, text: str) -> None:
    """A WAV file of the tone synthesizer holds the tone of this text, not of another."""
    samples, sample_rate = wav_samples(data)
    resolution = sample_rate / len(samples)
    assert abs(pitch_hertz(samples, sample_rate) - tone_hertz(text)) <= resolution
