"""What a worker tells Prometheus of itself: windows, steps, audio, uploads, leases.

Metrics belong to the process, as a worker does; the numbers of the queue and of jobs are the ledger's, and the API
serves them. The server is prometheus-client's, on threads of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from worker.jobs.errors import StartupError
from worker.jobs.models import JobResult
from worker.jobs.settings import Settings
from worker.window import Candidate

logger = logging.getLogger(__name__)

_POWERS_OF_TWO = tuple(2**power for power in range(11))

WINDOWS_CLOSED = Counter("omnivoice_windows_closed", "Windows, by what closed them", ["reason"])
WINDOW_JOBS = Histogram("omnivoice_window_jobs", "Jobs of a window when it closed", buckets=_POWERS_OF_TWO)
WINDOW_TOKENS = Histogram(
    "omnivoice_window_tokens", "Tokens of a window when it closed", buckets=[256 * number for number in _POWERS_OF_TWO]
)
WINDOW_WAIT_SECONDS = Histogram(
    "omnivoice_window_wait_seconds",
    "From the arrival of a window's oldest job to its close",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
STEP_SECONDS = Histogram(
    "omnivoice_step_duration_seconds",
    "One step of the synthesizer with requests in it, as the host sees it",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
BATCHES_FAILED = Counter("omnivoice_batches_failed", "Steps that raised and took their whole batch along")
GENERATION_SECONDS = Histogram(
    "omnivoice_job_generation_seconds",
    "Time that a job spent in the model, with its whole batch",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
REAL_TIME_FACTOR = Histogram(
    "omnivoice_job_real_time_factor_ratio",
    "Generation time of a job per second of its audio, its batch mates' share not taken out",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
AUDIO_SECONDS = Counter("omnivoice_audio_seconds", "Audio of the jobs that this worker brought to success")
UPLOAD_SECONDS = Histogram(
    "omnivoice_upload_duration_seconds",
    "Upload of one audio object, its repetitions included",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
UPLOAD_BYTES = Counter("omnivoice_upload_bytes", "Bytes of the audio objects that were uploaded")
UPLOAD_FAILURES = Counter("omnivoice_upload_failures", "Tries to upload that the object store did not accept")
LEASES_LOST = Counter("omnivoice_worker_leases_lost", "Leases that this worker held and found to be lost")
JOBS_HELD = Gauge("omnivoice_worker_jobs_held", "Jobs that this worker holds a lease on")


def serve(settings: Settings) -> None:
    """Serve the metrics where the settings ask for it. Raises `StartupError` where the port cannot be had."""
    if settings.worker_metrics_port is None:
        return
    host = settings.worker_metrics_host
    try:
        server, _ = start_http_server(settings.worker_metrics_port, host)
    except OSError as error:
        where = f"{host} port {settings.worker_metrics_port}"
        raise StartupError(
            f"OMNIVOICE_WORKER_METRICS_PORT: cannot listen on {where}: {error.strerror or error}"
        ) from None
    logger.info("metrics at port %d of %s", server.server_port, host)


def window_closed(reason: str, members: Sequence[Candidate], closed_at: float) -> None:
    """`closed_at` is monotonic seconds, as the candidates' arrival is."""
    WINDOWS_CLOSED.labels(reason).inc()
    WINDOW_JOBS.observe(len(members))
    WINDOW_TOKENS.observe(sum(member.num_tokens for member in members))
    WINDOW_WAIT_SECONDS.observe(closed_at - min(member.arrived_at for member in members))


@contextmanager
def upload(num_bytes: int) -> Iterator[None]:
    """Around an upload with all its repetitions: counted where it ends well."""
    began = time.monotonic()
    yield
    UPLOAD_SECONDS.observe(time.monotonic() - began)
    UPLOAD_BYTES.inc(num_bytes)


def job_succeeded(result: JobResult) -> None:
    """The ledger has accepted this worker's result."""
    seconds = result.timings.generated_ms / 1_000
    GENERATION_SECONDS.observe(seconds)
    AUDIO_SECONDS.inc(result.duration_seconds)
    if result.duration_seconds > 0:
        REAL_TIME_FACTOR.observe(seconds / result.duration_seconds)
