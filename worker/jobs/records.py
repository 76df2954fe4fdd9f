"""What the ledger takes and gives: plain data, and how it lies in a Redis hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from worker.jobs.models import Job, JobError, JobRequest, JobResult, Queue, Status
from worker.jobs.tracing import TraceContext, trace_id_of

SCHEMA = 1
"""Version of the record's fields. A process leaves a record with a higher one alone: it belongs to a newer release.

A field that older releases can do without needs no new version. One that they would misread does; then `from_hash` and
the scripts have to read both, as long as a record of the old one may be there (`retention_hours` after the last)."""

UNPUBLISHED = str(2**53)
"""`announced_ms` of a job whose id waits to be published until there is room in the broker's list."""

POISON = JobError(
    type="poison",
    title="The job was lost with its worker each time it ran",
    detail="no attempt came to an end; the worker died or stopped answering in every one",
)
UNREADABLE = JobError(
    type="unreadable-request",
    title="The job's request cannot be read",
    detail="the worker does not accept the request that the API stored; do both run the same release?",
)


def is_readable(fields: Mapping[str, str]) -> bool:
    """Whether a record is of a version that this release knows."""
    version = fields.get("schema", "")
    return version.isdecimal() and int(version) <= SCHEMA


@dataclass(frozen=True, slots=True)
class NewJob:
    """A checked request on its way into the ledger.

    `estimate_seconds` is the audio that it will take; `owner` the name of the key that sent it; `fingerprint` a hash
    of the body, compared when `idempotency_key` was seen before.
    """

    id: str
    request: JobRequest
    estimate_seconds: float
    owner: str
    reference_key: str | None = None
    warnings: tuple[str, ...] = ()
    idempotency_key: str | None = None
    fingerprint: str = ""
    trace: TraceContext | None = None

    def to_hash(self) -> dict[str, str]:
        """The record's fields that do not depend on Redis's clock."""
        traced = {} if self.trace is None else {"traceparent": self.trace.to_header()}
        return {
            **traced,
            "schema": str(SCHEMA),
            "id": self.id,
            "status": Status.QUEUED.value,
            "queue": self.request.queue.value,
            "owner": self.owner,
            "request": self.request.model_dump_json(exclude_none=True),
            "reference_key": self.reference_key or "",
            "estimate_seconds": repr(self.estimate_seconds),
            "warnings": json.dumps(self.warnings),
            "attempts": "0",
            "token": "0",
        }


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the ledger holds it. Times are ms since 1970 by Redis's clock.

    One that is not `is_published` waits for room among the messages; a claim or a reconciler publishes it.
    `started_at` is that of its last start; None while it waits, and where no start counts as an attempt.
    """

    id: str
    status: Status
    queue: Queue
    owner: str
    request: JobRequest
    reference_key: str | None
    estimate_seconds: float
    created_at: int
    started_at: int | None
    finished_at: int | None
    attempts: int
    cancel_requested: bool
    warnings: tuple[str, ...]
    error: JobError | None
    result: JobResult | None
    trace_id: str | None = None
    is_published: bool = True

    @classmethod
    def from_hash(cls, fields: Mapping[str, str]) -> JobRecord:
        """Read a hash of `SCHEMA` or older. Raises `ValueError` (pydantic's is one) where it is not one."""
        waits = fields["status"] == Status.QUEUED
        return cls(
            id=fields["id"],
            status=Status(fields["status"]),
            queue=Queue(fields["queue"]),
            owner=fields["owner"],
            request=JobRequest.model_validate_json(fields["request"]),
            reference_key=fields["reference_key"] or None,
            estimate_seconds=float(fields["estimate_seconds"]),
            created_at=int(fields["created_ms"]),
            started_at=None if waits or fields["attempts"] == "0" else _optional_int(fields.get("started_ms")),
            finished_at=_optional_int(fields.get("finished_ms")),
            attempts=int(fields["attempts"]),
            cancel_requested="cancel" in fields,
            warnings=tuple(json.loads(fields["warnings"])),
            error=JobError.model_validate_json(fields["error"]) if "error" in fields else None,
            result=JobResult.model_validate_json(fields["result"]) if "result" in fields else None,
            trace_id=trace_id_of(fields.get("traceparent")),
            is_published=fields.get("announced_ms") != UNPUBLISHED or "first_ms" in fields,
        )

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.request.metadata)

    def to_job(self, links: Mapping[str, str], audio_url: str | None = None) -> Job:
        """The job for clients; `audio_url` is a fresh link to its audio."""
        return Job(
            id=self.id,
            status=self.status,
            queue=self.queue,
            created_at=_utc(self.created_at),
            started_at=_utc(self.started_at) if self.started_at is not None else None,
            finished_at=_utc(self.finished_at) if self.finished_at is not None else None,
            attempts=self.attempts,
            request=self.request,
            cancel_requested=self.cancel_requested and not self.status.is_final,
            warnings=self.warnings,
            error=self.error,
            result=self.result.model_copy(update={"audio_url": audio_url}) if self.result else None,
            metadata=self.metadata,
            trace_id=self.trace_id,
            links=dict(links),
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on a job. `token` fences it: once the job is leased again, nothing done with this one counts.

    `attempts` are those already counted: 1 or more means that a worker was lost with this job, so it runs alone.
    `queued_at_ms` is when the job came, or when an operator queued it again.
    """

    id: str
    token: int
    attempts: int
    request: JobRequest
    reference_key: str | None
    estimate_seconds: float
    queued_at_ms: int
    queue: Queue
    warnings: tuple[str, ...] = ()
    trace_id: str | None = None

    @property
    def log_fields(self) -> dict[str, object]:
        """What every log line about this attempt carries."""
        return {"job": self.id, "attempt": self.attempts + 1, "trace_id": self.trace_id}

    @property
    def must_run_alone(self) -> bool:
        return self.attempts >= 1


class RefusalReason(StrEnum):
    """Why a message leads to no work; in every case it is simply acknowledged."""

    UNKNOWN = "unknown"
    ENDED = "ended"
    LEASED = "leased"
    EXPIRED = "expired"
    POISON = "poison"
    NEWER_SCHEMA = "newer_schema"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """No lease was given. For expired, poison and unreadable this call has ended the job."""

    id: str
    reason: RefusalReason

    @property
    def has_ended_job(self) -> bool:
        return self.reason in (RefusalReason.EXPIRED, RefusalReason.POISON, RefusalReason.UNREADABLE)


class CancelOutcome(StrEnum):
    """CANCELLED: it has ended so. CANCELLING: it runs and will end so. ENDED: it had ended before, in any way."""

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Hold(StrEnum):
    """What a heartbeat finds: HELD go on; CANCELLED stop and end it so; LOST stop and forget it."""

    HELD = "held"
    CANCELLED = "cancelled"
    LOST = "lost"


def _optional_int(text: str | None) -> int | None:
    return int(text) if text else None


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
