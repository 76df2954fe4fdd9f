"""One job from its message to its end: claim, prepare, wait for the batcher, deliver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from omnivoice.errors import GenerationFailed, InvalidRequest, OmniVoiceError, RequestAborted
from omnivoice.planning import plan
from worker.batcher import Batcher
from worker.delivery import Delivery
from worker.entry import Entry, HandedBack, NotStarted, Outcome, Rejected, Synthesized
from worker.jobs.errors import QueueUnavailable, StorageError
from worker.jobs.ledger import Claim, Hold, Ledger, Refusal
from worker.jobs.models import JobError, Queue, Status
from worker.leases import Lease, Leases
from worker.log_context import bound
from worker.patience import backoff_seconds, outlast_redis
from worker.voices import NotEncoded, Voices
from worker.window import Candidate

logger = logging.getLogger(__name__)

INTERNAL_ERROR = JobError(
    type="internal-error",
    title="The worker failed on this job",
    detail="a fault of the service, not of the request; the worker's log has it under the job's id",
)


class JobRunner:
    """Runs jobs, one a calling thread. `publish` announces a job that is handed back before those that wait."""

    def __init__(
        self,
        ledger: Ledger,
        batcher: Batcher,
        leases: Leases,
        voices: Voices,
        delivery: Delivery,
        publish: Callable[[str, Queue], bool],
        *,
        worker_name: str,
        lease_seconds: float,
        max_attempts: int,
        is_draining: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._batcher = batcher
        self._leases = leases
        self._voices = voices
        self._delivery = delivery
        self._publish = publish
        self._worker_name = worker_name
        self._lease_seconds = lease_seconds
        self._max_attempts = max_attempts
        self._is_draining = is_draining

    def run(self, job_id: str) -> None:
        """Never raises: what the ledger does not learn here, it learns when the lease lapses."""
        try:
            self._claim_and_work(job_id)
        except QueueUnavailable as error:
            logger.warning("given up, the reconciler will publish it again: %s", error, extra={"job": job_id})
        except Exception:
            logger.exception("given up, the reconciler will publish it again", extra={"job": job_id})

    def _claim_and_work(self, job_id: str) -> None:
        claim = self._ledger.claim(job_id, self._worker_name)
        if isinstance(claim, Refusal):
            self._tell(claim)
            return
        with bound(**claim.log_fields), self._leases.hold(claim) as lease:
            self._attempt(lease)

    def _tell(self, refusal: Refusal) -> None:
        """Log why there is nothing to do; where that has ended the job, with all that its other lines name."""
        fields: dict[str, object] = {"job": refusal.id}
        if not refusal.has_ended_job:
            logger.info("nothing to do: %s", refusal.reason.value, extra=fields)
            return
        if record := self._ledger.get(refusal.id):
            fields |= {"attempt": record.attempts, "trace_id": record.trace_id}
        logger.warning("ended without work: %s", refusal.reason.value, extra=fields)

    def _attempt(self, lease: Lease) -> None:
        try:
            self._work(lease, claimed_at=time.monotonic())
        except OmniVoiceError as error:
            self._fail(lease.claim, _describe(error))
        except StorageError as error:
            self._retry_later(lease.claim, error)
        except QueueUnavailable:
            raise
        except Exception:
            # Not to be tried again: it would most likely fail again, and for ever where no attempt was counted.
            logger.exception("job failed on a fault of the worker")
            self._fail(lease.claim, INTERNAL_ERROR)

    def _work(self, lease: Lease, claimed_at: float) -> None:
        claim = lease.claim
        try:
            entry = self._prepare(claim)
        except NotEncoded as missing:
            self._end_as(missing.outcome_for(claim), lease, claimed_at)
            return
        try:
            self._end_as(self._batcher.submit(entry).result(), lease, claimed_at)
        finally:
            self._batcher.settle(entry)

    def _end_as(self, outcome: Outcome, lease: Lease, claimed_at: float) -> None:
        claim = lease.claim
        match outcome:
            case NotStarted():
                logger.info("not started: cancelled, past its time, or another worker's")
            case HandedBack(reason, counts_attempt):
                self._hand_back(claim, reason, counts_attempt)
            case Rejected(error):
                raise error
            case Synthesized(result) if isinstance(result.error, RequestAborted):
                self._abandon(lease)
            case Synthesized(result) if result.error is not None:
                raise result.error
            case Synthesized():
                with bound(window=outcome.window, batch_size=outcome.batch_size):
                    is_delivered = self._delivery.deliver(lease, outcome, claimed_at)
                    late = "late copy, not delivered: the job was cancelled, or is another worker's"
                    logger.info("succeeded" if is_delivered else late)

    def _prepare(self, claim: Claim) -> Entry:
        """Everything that can be done before the window: the voice, and the plan with the request's size.

        Raises `InvalidRequest`, and `StorageError` after counting the attempt: the store may fail for this job alone,
        and a job that never counts an attempt would come back for ever.
        """
        try:
            voice = self._voices.prompt(claim)
        except StorageError:
            self._ledger.start([claim])
            raise
        request = claim.request.to_synthesis_request(voice)
        candidate = Candidate(
            arrived_at=time.monotonic(),
            num_tokens=plan(request).num_tokens,
            is_bulk=claim.queue is Queue.BULK,
            runs_alone=claim.must_run_alone,
        )
        return Entry(claim, request, candidate)

    def _abandon(self, lease: Lease) -> None:
        if lease.state is Hold.CANCELLED:
            self._end(lease.claim, Status.CANCELLED)
        else:
            logger.info("stopped: the lease is another worker's")

    def _hand_back(self, claim: Claim, reason: str, counts_attempt: bool) -> None:
        logger.info("handed back: %s", reason)
        if not counts_attempt:
            self._ledger.release([claim], announces=True)
            self._publish(claim.id, claim.queue)
        elif claim.attempts + 1 >= self._max_attempts:
            self._fail(claim, _describe(GenerationFailed(reason)))
        elif self._ledger.retry(claim, 0.0, announces=True):
            self._publish(claim.id, claim.queue)

    def _retry_later(self, claim: Claim, error: StorageError) -> None:
        attempts = claim.attempts + 1
        logger.warning("object store: %s", error)
        if self._is_draining():
            self._hand_back(claim, "the worker is draining", counts_attempt=False)
        elif attempts >= self._max_attempts:
            title = "The object store could not be used"
            self._fail(claim, JobError(type="storage-error", title=title, detail=str(error)))
        else:
            self._ledger.retry(claim, backoff_seconds(attempts))

    def _fail(self, claim: Claim, error: JobError) -> None:
        self._end(claim, Status.FAILED, error)

    def _end(self, claim: Claim, status: Status, error: JobError | None = None) -> None:
        is_accepted = outlast_redis(
            lambda: self._ledger.end(claim, status, error), self._is_draining, self._lease_seconds
        )
        # Refused where the lease is lost, or where a cancel came first: the ledger has then ended the job as cancelled.
        logger.info("ended" if is_accepted else "late copy", extra={"status": status.value})


def _describe(error: OmniVoiceError) -> JobError:
    if isinstance(error, InvalidRequest):
        return JobError(type="invalid-request", title=f"The field {error.field} is not allowed", detail=str(error))
    return JobError(type="generation-failed", title="No usable audio came out", detail=str(error))
