"""From a waveform to a job that has succeeded: file, upload, ledger, in that order.

The object lies in the store before the ledger says so, under a key that holds the lease's token: two copies of a job
never write the same object, and only the one that the ledger accepts is ever visible.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from omnivoice.audio.files import AUDIO_FORMATS, encode_audio
from omnivoice.audio.postprocess import scale_to_full
from omnivoice.errors import GenerationFailed
from omnivoice.request import SynthesisResult
from worker import metrics
from worker.entry import Synthesized
from worker.jobs import names
from worker.jobs.errors import StorageError
from worker.jobs.ledger import Claim, Hold, Ledger
from worker.jobs.models import JobResult, Timings
from worker.jobs.outages import Outage
from worker.jobs.storage import ObjectStore
from worker.leases import Lease
from worker.patience import keep_trying, outlast_redis

logger = logging.getLogger(__name__)

UPLOAD_PATIENCE_LEASES = 4
"""How many leases long a finished waveform waits for the object store: making it again is dearer than holding it."""


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    sha256: str
    content_type: str
    key: str
    duration_seconds: float
    encoded_ms: float
    warnings: tuple[str, ...]


class Delivery:
    """Delivers results. `is_draining` ends the patience with servers that do not answer."""

    def __init__(
        self, ledger: Ledger, store: ObjectStore, lease_seconds: float, is_draining: Callable[[], bool]
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._lease_seconds = lease_seconds
        self._is_draining = is_draining
        self._outage = Outage(logger, "upload")

    def deliver(self, lease: Lease, outcome: Synthesized, claimed_at: float) -> bool:
        """Whether the job has succeeded by this copy. `claimed_at` is monotonic seconds.

        Raises `GenerationFailed` for a waveform that no file can hold, `StorageError` and `QueueUnavailable` when
        patience with the servers is over.
        """
        claim = lease.claim
        file = _encode(claim, outcome.result)
        if lease.state is Hold.LOST:
            return False
        began = time.monotonic()
        self._upload(lease, file)
        uploaded_ms = (time.monotonic() - began) * 1_000
        logger.info("uploaded", extra={"bytes": len(file.data), "ms": round(uploaded_ms, 1)})
        result = JobResult(
            uri=self._store.uri(file.key),
            sha256=file.sha256,
            bytes=len(file.data),
            content_type=file.content_type,
            format=claim.request.format,
            duration_seconds=file.duration_seconds,
            sample_rate=claim.request.sample_rate,
            seed=outcome.result.seed,
            timings=_timings(claim, outcome, claimed_at, file.encoded_ms, uploaded_ms),
            batch_size=outcome.batch_size,
        )
        is_accepted = outlast_redis(
            lambda: self._ledger.complete(claim, result, (*outcome.result.warnings, *file.warnings)),
            self._is_draining,
            self._lease_seconds,
        )
        is_delivered = is_accepted or self._withdraw(claim, file.key)
        if is_delivered:
            metrics.job_succeeded(result)
        return is_delivered

    def _upload(self, lease: Lease, file: _File) -> None:
        try:
            with metrics.upload(len(file.data)):
                keep_trying(
                    lambda: self._store.put(file.key, file.data, file.content_type, file.sha256),
                    lambda error: self._may_wait(lease, error),
                    UPLOAD_PATIENCE_LEASES * self._lease_seconds,
                )
        except StorageError:
            self._outage.gives_up(lease.claim.id)
            raise
        self._outage.succeeded(lease.claim.id)

    def _may_wait(self, lease: Lease, error: Exception) -> bool:
        metrics.UPLOAD_FAILURES.inc()
        may_wait = (
            isinstance(error, StorageError) and error.retryable and lease.state is Hold.HELD and not self._is_draining()
        )
        if may_wait:
            self._outage.waits(lease.claim.id, error)
        return may_wait

    def _withdraw(self, claim: Claim, key: str) -> bool:
        """The ledger refused: delete this copy's object, unless the record turns out to point at it."""
        record = self._ledger.get(claim.id)
        if record is not None and record.result is not None and record.result.uri == self._store.uri(key):
            return True
        try:
            self._store.delete(key)
        except StorageError as error:
            logger.warning("late copy %s not deleted: %s", key, error, extra={"job": claim.id})
        return False


def _encode(claim: Claim, result: SynthesisResult) -> _File:
    if result.waveform is None:
        raise GenerationFailed("the synthesizer returned neither audio nor an error")
    began = time.monotonic()
    wanted = claim.request
    # `encode_audio` scales such a waveform down; the job says so, since it is quieter than it was made.
    peak = scale_to_full(result.waveform)[1]
    data = encode_audio(result.waveform, result.sample_rate, wanted.format, wanted.sample_rate)
    kind = AUDIO_FORMATS[wanted.format]
    return _File(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        content_type=kind.content_type,
        key=names.audio_key(claim.id, claim.token, kind.extension),
        duration_seconds=result.duration_seconds,
        encoded_ms=(time.monotonic() - began) * 1_000,
        warnings=(f"audio: peaked at {peak:.3g}, scaled to 1",) if peak > 1.0 else (),
    )


def _timings(claim: Claim, outcome: Synthesized, claimed_at: float, encoded_ms: float, uploaded_ms: float) -> Timings:
    # Redis's clock wrote `queued_at_ms`, this host's reads it: a skew must not make a negative time of it.
    queued_ms_ago = time.time() * 1_000 - claim.queued_at_ms
    claimed_ms_ago = (time.monotonic() - claimed_at) * 1_000
    engine = outcome.result.timings
    return Timings(
        queued_ms=round(max(0.0, queued_ms_ago - claimed_ms_ago), 3),
        batched_ms=round((outcome.closed_at - claimed_at) * 1_000, 3),
        generated_ms=round(engine.generated_ms, 3),
        decoded_ms=round(engine.decoded_ms + encoded_ms, 3),
        uploaded_ms=round(uploaded_ms, 3),
    )
